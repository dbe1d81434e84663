//! Histograms of durations: classes with their beginning and end in nanoseconds, and the number of durations in
//! each.

use membound_types::DurationBin;

/// Number of durations at or below `bound`; the class that contains `bound` counts in proportion.
pub fn share_within(times: &[(u64, u64, u64)], bound: f64) -> f64 {
    times
        .iter()
        .map(|&(from, to, count)| {
            let below = ((bound - from as f64) / (to - from) as f64).clamp(0.0, 1.0);
            below * count as f64
        })
        .sum()
}

/// Number of durations in all classes.
pub fn count(times: &[(u64, u64, u64)]) -> u64 {
    times.iter().map(|(_, _, count)| count).sum()
}

/// The quantile at `share`, in nanoseconds, with the durations of a class taken as evenly spread in it;
/// `None` without any.
pub fn quantile(times: &[(u64, u64, u64)], share: f64) -> Option<f64> {
    let wanted = share * count(times) as f64;
    let mut before = 0_u64;
    for &(from, to, count) in times {
        let here = before + count;
        if here as f64 >= wanted && count > 0 {
            let inside = ((wanted - before as f64) / count as f64).clamp(0.0, 1.0);
            return Some(from as f64 + inside * (to - from) as f64);
        }
        before = here;
    }
    None
}

/// The classes in the form of the document.
pub fn bins(times: &[(u64, u64, u64)]) -> Vec<DurationBin> {
    let bin = |&(from, to, count): &(u64, u64, u64)| DurationBin {
        from_ns: from as f64,
        to_ns: to as f64,
        count,
    };
    times.iter().map(bin).collect()
}

/// Adds `count` durations to the class of one nanosecond that begins at `from`.
#[cfg(test)]
pub(crate) fn add(times: &mut Vec<(u64, u64, u64)>, from: u64, count: u64) {
    match times.iter_mut().find(|it| it.0 == from) {
        Some((_, _, known)) => *known += count,
        None => times.push((from, from + 1, count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [(u64, u64, u64); 3] = [(100, 110, 90), (200, 220, 8), (1000, 1100, 2)];

    #[test]
    fn a_quantile_lies_in_its_class() {
        for (share, expected) in [
            (0.0, 100.0),
            (0.45, 105.0),
            (0.9, 110.0),
            (0.94, 210.0),
            (0.99, 1050.0),
            (1.0, 1100.0),
        ] {
            let found = quantile(&TIMES, share).unwrap();
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[(1, 2, 0)], 0.5), None);
    }

    #[test]
    fn a_class_counts_as_far_as_it_lies_below() {
        for (bound, expected) in [(99.0, 0.0), (105.0, 45.0), (150.0, 90.0), (210.0, 94.0)] {
            let found = share_within(&TIMES, bound);
            assert!((found - expected).abs() < 1e-6, "{bound}: {found}");
        }
        assert_eq!((count(&TIMES), count(&[])), (100, 0));
    }
}
