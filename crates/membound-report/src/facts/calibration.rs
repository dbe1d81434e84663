//! Deciles of a calibrated level's histogram.

use membound_types::CalibratedLevel;

/// Ticks that at least 10 %, 50 % and 90 % of the timed loads do not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deciles {
    pub(crate) tenth: u32,
    pub(crate) median: u32,
    pub(crate) nine_tenths: u32,
}

/// Deciles of `level`; `None` if nothing was timed.
pub(crate) fn deciles(level: &CalibratedLevel) -> Option<Deciles> {
    let total: u64 = level.ticks.iter().map(|bin| bin.count).sum();
    let at = |share: f64| {
        let mut counted = 0;
        level.ticks.iter().find_map(|bin| {
            counted += bin.count;
            (counted as f64 >= share * total as f64).then_some(bin.ticks)
        })
    };
    (total > 0).then_some(())?;
    Some(Deciles {
        tenth: at(0.1)?,
        median: at(0.5)?,
        nine_tenths: at(0.9)?,
    })
}

/// Ticks up to which histograms are shown: the largest ninth decile of all levels.
pub(crate) fn longest(levels: &[CalibratedLevel]) -> u32 {
    let longest = levels.iter().filter_map(deciles);
    longest.map(|it| it.nine_tenths).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::TickCount;

    #[test]
    fn deciles_are_observed_ticks() {
        let bin = |ticks, count| TickCount { ticks, count };
        let mut level = CalibratedLevel {
            ticks: vec![bin(52, 80), bin(78, 15), bin(9000, 5)],
            ..CalibratedLevel::default()
        };
        let found = deciles(&level).unwrap();
        assert_eq!((found.tenth, found.median, found.nine_tenths), (52, 52, 78));
        assert_eq!(longest(std::slice::from_ref(&level)), 78);
        level.ticks.clear();
        assert_eq!(deciles(&level), None);
    }
}
