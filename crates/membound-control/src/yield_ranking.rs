//! Which of the command's yields are installed while its slowdown is limited: those with the lowest gain per cost are
//! removed first and installed again last.
//!
//! The rank of a yield is its predicted gain divided by its cost on hits, as in the plan (`membound_harvest`'s
//! choice). Both are shares of the command's CPU time, as are slowdowns.

use crate::tuning::{
    CALM_JUDGEMENTS, CALM_SHARE_OF_LIMIT, MIN_INSTALLED_GAIN_SHARE, REMOVED_COST_SHARE,
    TOO_SLOW_JUDGEMENTS, YIELD_RELAPSE_JUDGEMENTS,
};

/// Figures of one of the command's yields, from the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YieldFigures {
    /// CPU time that it harvests, as a share of the command's.
    pub gain: f64,
    /// Its cost on hits, as a share of the command's CPU time.
    pub hit_cost: f64,
    /// Executions per second of CPU time, where known.
    pub rate: Option<f64>,
}

/// Slowdowns of the command, as shares of its time without yields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// How much slower it is while scavengers are admitted than while they are not.
    pub(crate) slower: f64,
    /// Cost on hits of the installed yields while no scavenger is admitted.
    pub(crate) overhead: f64,
    /// Maximum share of the time in which scavengers are admitted.
    pub(crate) max_admitted_share: f64,
}

impl Pace {
    /// The slowdown where scavengers are admitted as much as allowed.
    fn at_full_admission(self) -> f64 {
        self.slower.max(0.0) * self.max_admitted_share + self.overhead
    }
}

/// The command's yields, ranked by gain per cost, and how many of them are installed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Yields {
    /// Yields with the highest gain per cost first, each with its index among the command's yields.
    ranked: Vec<(usize, YieldFigures)>,
    /// The first `installed` yields are installed.
    installed: usize,
    /// How many were installed before each removal that has not been undone.
    before: Vec<usize>,
    /// How many stay while admitting scavengers less can help.
    min_installed: usize,
    /// Consecutive judgements that found the command too slow, and well below the limit.
    slow: u32,
    calm: u32,
    /// Judgements well below the limit after which yields are installed again.
    patience: u32,
    /// Judgements since yields were last installed again.
    since_reinstalled: Option<u32>,
}

/// A change of the installed yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Some are removed.
    Removed,
    /// Some are installed again.
    Reinstalled,
}

impl Yields {
    /// Ranks the yields, all of which are installed at first.
    pub(crate) fn new(yields: &[YieldFigures]) -> Self {
        let gain_per_cost = |it: &YieldFigures| it.gain / it.hit_cost.max(f64::MIN_POSITIVE);
        let mut yields: Vec<(usize, YieldFigures)> = yields.iter().copied().enumerate().collect();
        yields.sort_by(|(_, a), (_, b)| {
            let by_gain_per_cost = gain_per_cost(b).total_cmp(&gain_per_cost(a));
            by_gain_per_cost.then(b.gain.total_cmp(&a.gain))
        });
        let gain = |it: &(usize, YieldFigures)| it.1.gain.max(0.0);
        let wanted: f64 = yields.iter().map(gain).sum::<f64>() * MIN_INSTALLED_GAIN_SHARE;
        let mut sum = 0.0;
        let below = yields.iter().take_while(|it| {
            sum += gain(it);
            sum < wanted
        });
        Self {
            min_installed: below.count() + 1,
            installed: yields.len(),
            ranked: yields,
            patience: CALM_JUDGEMENTS[0],
            ..Self::default()
        }
    }

    /// Indices of the yields that must not be installed.
    pub(crate) fn removed(&self) -> Vec<usize> {
        let removed = self.ranked.get(self.installed..).unwrap_or_default();
        removed.iter().map(|(index, _)| *index).collect()
    }

    /// Whether any yield is removed.
    pub(crate) const fn is_any_removed(&self) -> bool {
        self.installed < self.ranked.len()
    }

    /// Whether there are yields and all of them are removed.
    pub(crate) fn all_removed(&self) -> bool {
        self.installed == 0 && !self.ranked.is_empty()
    }

    /// Cost on hits of the installed yields while no scavenger is admitted, as a share of the command's time
    /// without yields: the planned cost, scaled from the planned rate of executions to `slices_per_s`, the
    /// rate of time slices measured now.
    pub(crate) fn overhead(&self, slices_per_s: f64) -> f64 {
        let installed = self.ranked.get(..self.installed).unwrap_or_default();
        let cost: f64 = installed.iter().map(|(_, it)| it.hit_cost).sum();
        let planned: f64 = installed.iter().filter_map(|(_, it)| it.rate).sum();
        let share = if planned > 0.0 {
            cost * slices_per_s / planned
        } else {
            cost
        };
        // So far a share of the time with yields; convert it into a share of the time without.
        let share = share.min(0.99);
        share / (1.0 - share)
    }

    /// Whether yields may be removed at this pace, where the command may be slower by `most`.
    pub(crate) fn may_remove(&self, pace: Pace, most: f64) -> bool {
        self.installed > self.min_installed(pace, most)
    }

    /// How many yields stay installed: none if they cost too much even while no scavenger is admitted.
    fn min_installed(&self, pace: Pace, most: f64) -> usize {
        if pace.overhead > most {
            0
        } else {
            self.min_installed
        }
    }

    /// Judges the pace of the command, which may be slower by `most`.
    pub(crate) fn judge(&mut self, pace: Pace, most: f64) -> Option<Change> {
        let slowdown_at_full_admission = pace.at_full_admission();
        self.slow = if slowdown_at_full_admission > most {
            self.slow + 1
        } else {
            0
        };
        self.calm = if slowdown_at_full_admission < most * CALM_SHARE_OF_LIMIT {
            self.calm + 1
        } else {
            0
        };
        self.since_reinstalled = self.since_reinstalled.map(|since| since + 1);
        if self.slow >= TOO_SLOW_JUDGEMENTS && self.may_remove(pace, most) {
            let soon = self
                .since_reinstalled
                .is_some_and(|since| since <= YIELD_RELAPSE_JUDGEMENTS);
            if soon {
                self.patience = (2 * self.patience).min(CALM_JUDGEMENTS[1]);
            }
            self.remove_step(self.min_installed(pace, most));
            return Some(Change::Removed);
        }
        if self.calm >= self.patience
            && let Some(before) = self.before.pop()
        {
            self.installed = before;
            self.since_reinstalled = Some(0);
            self.begin_anew();
            return Some(Change::Reinstalled);
        }
        None
    }

    /// Removes yields until `REMOVED_COST_SHARE` of the hit cost is gone, at least one, and keeps the first
    /// `least`.
    fn remove_step(&mut self, least: usize) {
        self.before.push(self.installed);
        let installed = self.ranked.get(..self.installed).unwrap_or_default();
        let cost: f64 = installed.iter().map(|(_, it)| it.hit_cost).sum();
        let mut gone = 0.0;
        for (_, it) in installed.iter().skip(least).rev() {
            self.installed -= 1;
            gone += it.hit_cost;
            if gone >= cost * REMOVED_COST_SHARE {
                break;
            }
        }
        self.since_reinstalled = None;
        self.begin_anew();
    }

    /// The judgements so far were of other yields.
    fn begin_anew(&mut self) {
        self.slow = 0;
        self.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields with these gains and costs on hits.
    fn yields(of: &[(f64, f64)]) -> Yields {
        let yields = of.iter().map(|&(gain, hit_cost)| YieldFigures {
            gain,
            hit_cost,
            rate: Some(1000.0),
        });
        Yields::new(&yields.collect::<Vec<_>>())
    }

    fn pace(slower: f64) -> Pace {
        Pace {
            slower,
            overhead: 0.0,
            max_admitted_share: 1.0,
        }
    }

    /// The removed yields after each change, where the command is slower by `slower` for
    /// `judgements` judgements.
    fn after(yields: &mut Yields, slower: f64, judgements: u32) -> Vec<Vec<usize>> {
        (0..judgements)
            .filter_map(|_| yields.judge(pace(slower), 0.1).map(|_| yields.removed()))
            .collect()
    }

    /// Worth 0, 2, 10, -1 and 1; 0.04 of cost in all.
    const FIVE: [(f64, f64); 5] = [
        (0.0, 0.01),
        (0.02, 0.01),
        (0.1, 0.01),
        (-0.005, 0.005),
        (0.005, 0.005),
    ];

    #[test]
    fn yields_with_the_lowest_rank_are_removed_first_and_restored_last() {
        let mut yields = yields(&FIVE);
        assert_eq!(after(&mut yields, 0.5, 2), [[0; 0]; 0]);
        // Removes a quarter of 0.04 at least, then of 0.025, but keeps the yields with most of the gain.
        let steps = after(&mut yields, 0.5, 20);
        assert_eq!(steps, [vec![0, 3], vec![1, 4, 0, 3]]);
        assert!(!yields.may_remove(pace(0.5), 0.1) && !yields.all_removed());
        let steps = after(&mut yields, 0.01, 30);
        assert_eq!(steps, [vec![0, 3], vec![]]);
    }

    #[test]
    fn nothing_changes_between_the_limit_and_half_of_it() {
        let mut yields = yields(&FIVE);
        assert_eq!(after(&mut yields, 0.5, 3), [[0, 3]]);
        for _ in 0..50 {
            assert_eq!(after(&mut yields, 0.051, 1), [[0; 0]; 0]);
            assert_eq!(after(&mut yields, 0.099, 1), [[0; 0]; 0]);
            // Single judgements are noise.
            assert_eq!(after(&mut yields, 0.2, 2), [[0; 0]; 0]);
            assert_eq!(after(&mut yields, -0.02, 7), [[0; 0]; 0]);
        }
        assert_eq!(yields.removed(), [0, 3]);
    }

    #[test]
    fn those_that_must_go_again_soon_stay_out_twice_as_long_each_time() {
        let mut yields = yields(&[(0.1, 0.01), (0.0, 0.01)]);
        let mut waited = Vec::new();
        for _ in 0..8 {
            assert_eq!(after(&mut yields, 0.5, 3), [[1]]);
            let mut judgements = 0;
            while yields.judge(pace(0.0), 0.1).is_none() {
                judgements += 1;
            }
            waited.push(judgements + 1);
        }
        assert_eq!(waited, [8, 16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn all_yields_are_removed_if_they_cost_too_much_without_scavengers() {
        let mut yields = yields(&[(0.1, 0.2)]);
        let dear = Pace {
            slower: 0.0,
            overhead: yields.overhead(1000.0),
            max_admitted_share: 1.0,
        };
        assert!((dear.overhead - 0.25).abs() < 1e-9, "{dear:?}");
        let changes: Vec<Change> = (0..9).filter_map(|_| yields.judge(dear, 0.1)).collect();
        assert_eq!(changes, [Change::Removed]);
        assert!(yields.all_removed());
        assert!(yields.overhead(0.0).abs() < 1e-9);
    }

    #[test]
    fn the_hit_cost_scales_with_the_rate_of_slices() {
        let yields = yields(&[(0.1, 0.02), (0.1, 0.03)]);
        // 2000 a second were planned to cost 5 %: 4000 cost 10 % of the time with them.
        assert!((yields.overhead(4000.0) - 0.1 / 0.9).abs() < 1e-9);
        assert!((yields.overhead(1e9) - 99.0).abs() < 1e-6);
    }

    #[test]
    fn without_yields_none_may_go() {
        let mut none = Yields::new(&[]);
        assert_eq!(after(&mut none, 9.0, 9), [[0; 0]; 0]);
        assert!(!none.all_removed());
    }
}
