//! Detects sites that go through memory in order.
//!
//! A single timed load of a stream is fast: the fences around it give the prefetchers time, and
//! most loads find the line that an earlier one fetched. The addresses show nevertheless that the
//! program waits for the memory's bandwidth: they advance.

/// How a site's address advances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advance {
    /// Mean bytes from one execution to the next; negative if addresses descend.
    pub bytes_per_execution: f64,
    /// Bytes between the lowest and the highest address in `addresses`.
    pub span_bytes: u64,
    /// Share of the steps that agree with the advance, 0 to 1.
    pub regularity: f64,
    /// Number of steps against the advance: how often it began again.
    pub turns: usize,
}

/// Fewest non-zero steps for a verdict.
const MIN_STEPS: usize = 8;
/// Least share of the steps in one direction. Random addresses have half in each.
const MIN_ONE_DIRECTION_SHARE: f64 = 0.75;
/// Largest ratio of a step to the median step that counts as advance: the executions between
/// samples are uniformly distributed from 1 to twice their mean.
const MAX_STEP_RATIO: f64 = 4.0;

/// How `addresses` advance; `None` if they are too few or follow no order.
///
/// `addresses` are those of one thread's samples of one site, in order; `period` is the mean number
/// of executions between samples.
#[must_use]
pub fn advance(addresses: &[u64], period: f64) -> Option<Advance> {
    let steps: Vec<f64> = addresses
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]).cast_signed() as f64)
        .filter(|step| *step != 0.0)
        .collect();
    if steps.len() < MIN_STEPS || period <= 0.0 {
        return None;
    }
    let upward = steps.iter().filter(|step| **step > 0.0).count();
    let sign = if 2 * upward >= steps.len() { 1.0 } else { -1.0 };
    let mut along: Vec<f64> = steps
        .iter()
        .map(|step| step * sign)
        .filter(|step| *step > 0.0)
        .collect();
    if (along.len() as f64) < MIN_ONE_DIRECTION_SHARE * steps.len() as f64 {
        return None;
    }
    along.sort_by(f64::total_cmp);
    let usual = along[along.len() / 2];
    let fitting = along.partition_point(|step| *step <= MAX_STEP_RATIO * usual);
    // Pauses between sampling windows make single steps long; the mean of the other steps is more
    // precise than the median.
    let mean = along[..fitting].iter().sum::<f64>() / fitting as f64;
    let span = addresses.iter().max()? - addresses.iter().min()?;
    Some(Advance {
        bytes_per_execution: sign * mean / period,
        span_bytes: span,
        regularity: fitting as f64 / steps.len() as f64,
        turns: steps.len() - along.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses that a sampler with a constant interval sees.
    fn sampled(executions: impl Iterator<Item = u64>, period: u64) -> Vec<u64> {
        let mut state = 1_u64;
        let mut left = 0;
        executions
            .filter(|_| {
                if left > 0 {
                    left -= 1;
                    return false;
                }
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(3);
                left = (state >> 33) % (2 * period);
                true
            })
            .collect()
    }

    #[test]
    fn a_stream_advances_by_its_stride_however_often_it_begins_again() {
        let passes = (0..6).flat_map(|_| (0..100_000_u64).map(|index| 0x7000_0000 + 8 * index));
        let found = advance(&sampled(passes, 1000), 1000.0).unwrap();
        assert!((found.bytes_per_execution - 8.0).abs() < 1.0, "{found:?}");
        assert!(found.span_bytes > 700_000 && found.regularity > 0.9);
        assert!((3..=6).contains(&found.turns), "{found:?}");
        let down = (0..300_000_u64).map(|index| 0x7000_0000 - 64 * index);
        let found = advance(&sampled(down, 500), 500.0).unwrap();
        assert!((found.bytes_per_execution + 64.0).abs() < 8.0, "{found:?}");
        assert_eq!(found.turns, 0);
    }

    #[test]
    fn random_addresses_and_a_single_one_do_not_advance() {
        let mut state = 7_u64;
        let random = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(9);
            state >> 36
        });
        let addresses: Vec<u64> = random.take(500).collect();
        assert_eq!(advance(&addresses, 1000.0), None);
        assert_eq!(advance(&[0x1000; 500], 1000.0), None);
        assert_eq!(advance(&[0x1000, 0x2000, 0x3000], 1000.0), None);
        // One pass is a tenth of the period, so the samples show no order.
        let short = (0..400_000_u64).map(|index| 0x1000 + 8 * (index % 100));
        assert_eq!(advance(&sampled(short, 1000), 1000.0), None);
    }
}
