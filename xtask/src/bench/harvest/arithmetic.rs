//! Computations from the figures of runs: limits, slopes, paired intervals, agreement. Nothing here
//! runs or prints anything. Times are nanoseconds, ratios are plain numbers.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use membound_model::stats::student_95;
use membound_types::Calibration;

use super::super::common::median;

/// Maximum speed-up of interleaving `contexts` chases over one, when a load takes `load_ns` and a
/// switch `switch_ns`: L / max(L / n, s).
///
/// A switch of zero time leaves n, the number of loads in flight at once.
pub(super) fn limit(load_ns: f64, switch_ns: f64, contexts: u32) -> f64 {
    load_ns / (load_ns / f64::from(contexts)).max(switch_ns)
}

/// The time of a switch under misses, from pairs of contexts and the time per hop of all of them
/// together. An iteration of the ring contains every context's switch, so its growth by one context
/// is the time of a switch.
///
/// It is computed between the two largest numbers of contexts, where the data have arrived when an
/// iteration ends. `None` with fewer than two, or when the iteration does not grow: then waiting
/// hides the switch completely.
pub(super) fn switch_ns(hops: &[(u32, f64)]) -> Option<f64> {
    let mut sorted = hops.to_vec();
    sorted.sort_unstable_by_key(|(contexts, _)| *contexts);
    let [.., (few, few_ns), (many, many_ns)] = sorted[..] else {
        return None;
    };
    let grown = f64::from(many) * many_ns - f64::from(few) * few_ns;
    let slope = grown / f64::from(many - few);
    (many > few && slope > 0.0).then_some(slope)
}

/// Share of single loads from memory, on large pages, that take longer than `bound_ns` by
/// themselves on this machine, from the sampler's calibration; the cost of timing is subtracted. A
/// time slice with such a load is at least as long.
pub(super) fn loads_beyond(calibration: &Calibration, bound_ns: f64) -> Option<f64> {
    let memory = calibration.levels.iter().find(|it| it.name == "DRAM")?;
    let own = memory.hit_ticks?;
    let (mut all, mut beyond) = (0, 0);
    for it in &memory.ticks {
        all += it.count;
        if (it.ticks as f64 - own) / calibration.tick_hz * 1e9 > bound_ns {
            beyond += it.count;
        }
    }
    (all > 0).then(|| beyond as f64 / all as f64)
}

/// The mean of paired differences, and its interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Paired {
    /// Mean of the ratios less 1: 0.01 is one per cent more than alone.
    pub(super) mean: f64,
    /// Lower end of its 95 % interval.
    pub(super) low: f64,
    /// Upper end.
    pub(super) high: f64,
    /// Number of pairs.
    pub(super) pairs: usize,
}

impl Paired {
    /// Computed from pairs (alone, with): Student's t on the ratios, which assumes independent
    /// pairs; `None` with fewer than two.
    pub(super) fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        if pairs.len() < 2 {
            return None;
        }
        let changes: Vec<f64> = pairs
            .iter()
            .map(|(alone, with)| with / alone - 1.0)
            .collect();
        let count = float(pairs.len());
        let mean = changes.iter().sum::<f64>() / count;
        let squares: f64 = changes.iter().map(|change| (change - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        let half = student_95(pairs.len() - 1) * error;
        Some(Self {
            mean,
            low: mean - half,
            high: mean + half,
            pairs: pairs.len(),
        })
    }

    /// Whether the whole interval lies within `most` of no change.
    pub(super) fn within(&self, most: f64) -> bool {
        self.low >= -most && self.high <= most
    }
}

/// The share of the primary's stall time that was harvested: the time that the work takes alone,
/// divided by the stall time.
///
/// `units` of work in the run, `units_per_s` of the scavenger alone, `stall_s` of the primary in
/// seconds.
pub(super) fn turned_into_work(units: f64, units_per_s: f64, stall_s: f64) -> f64 {
    units / units_per_s / stall_s
}

/// The most work among `points` (percentile, work) whose percentile does not exceed `percentile`,
/// with 2 % for chance. `None` when all exceed it.
pub(super) fn work_at_no_worse(points: &[(f64, f64)], percentile: f64) -> Option<f64> {
    let good = points.iter().filter(|(one, _)| *one <= percentile * 1.02);
    good.map(|(_, work)| *work).max_by(f64::total_cmp)
}

/// Size of the intersection of two choices, as a share of their union; 1 when both are empty.
pub(super) fn agreement<T: Ord>(one: &BTreeSet<T>, other: &BTreeSet<T>) -> f64 {
    let either = one.union(other).count();
    if either == 0 {
        return 1.0;
    }
    float(one.intersection(other).count()) / float(either)
}

/// Longest inter-yield distance of a scavenger that keeps time slices within `bound_ns` where the
/// primary's loads take `latency_ns`: as `harvest run` computes it for its own plans.
pub(super) fn distance_ns(bound_ns: f64, latency_ns: f64) -> f64 {
    bound_ns - latency_ns.min(bound_ns / 2.0)
}

/// An amount of work, scaled; at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "amounts are positive and far below 2^53"
)]
pub(super) fn scaled(amount: u64, scale: f64) -> u64 {
    ((amount as f64 * scale) as u64).max(1)
}

/// A count as a floating-point number.
pub(super) const fn float(count: usize) -> f64 {
    count as f64
}

/// The median of `of` over all runs.
pub(super) fn middle<T>(runs: &[T], of: impl Fn(&T) -> f64) -> Result<f64> {
    median(&runs.iter().map(of).collect::<Vec<_>>()).context("no run was asked for")
}

#[cfg(test)]
mod tests {
    use membound_types::{CalibratedLevel, TickCount};

    use super::*;

    fn close(found: f64, truth: f64) {
        assert!(
            (found - truth).abs() < 1e-9 * truth.abs().max(1.0),
            "{found} is not {truth}"
        );
    }

    #[test]
    fn the_limit_is_all_loads_at_once_until_switches_take_as_long() {
        close(limit(100.0, 5.0, 2), 2.0);
        close(limit(100.0, 5.0, 20), 20.0);
        close(limit(100.0, 5.0, 64), 20.0);
        close(limit(100.0, 0.0, 64), 64.0);
    }

    #[test]
    fn a_switch_is_what_one_more_context_adds_to_a_lap() {
        // Iterations of 100 ns until 8 switches of 14 ns take longer.
        let hops = [(2, 50.0), (16, 14.0), (4, 25.0), (8, 14.0)];
        close(switch_ns(&hops).unwrap(), 14.0);
        // An iteration of 20 ns and 6 ns per context.
        close(
            switch_ns(&[(8, 68.0 / 8.0), (16, 116.0 / 16.0)]).unwrap(),
            6.0,
        );
        assert_eq!(switch_ns(&[(8, 12.0), (16, 6.0)]), None);
        assert_eq!(switch_ns(&[(8, 12.0)]), None);
        assert_eq!(switch_ns(&[(8, 12.0), (8, 13.0)]), None);
    }

    #[test]
    fn loads_are_told_from_what_timing_them_costs() {
        // 50 ticks of 2 GHz are the timing's own: the loads take 100, 200 and 300 ns.
        let ticks = [(250, 6), (450, 3), (650, 1)].map(|(ticks, count)| TickCount { ticks, count });
        let mut calibration = Calibration {
            tick_hz: 2e9,
            ..Calibration::default()
        };
        assert_eq!(loads_beyond(&calibration, 200.0), None);
        calibration.levels.push(CalibratedLevel {
            name: "DRAM".to_owned(),
            ticks: ticks.to_vec(),
            hit_ticks: Some(50.0),
            ..CalibratedLevel::default()
        });
        close(loads_beyond(&calibration, 150.0).unwrap(), 0.4);
        close(loads_beyond(&calibration, 200.0).unwrap(), 0.1);
        close(loads_beyond(&calibration, 400.0).unwrap(), 0.0);
    }

    #[test]
    fn paired_intervals_are_students() {
        // Changes of 1, 2 and 3 %: mean 2, deviation 1; t with 2 degrees of freedom is 4.3027.
        let pairs = [(100.0, 101.0), (100.0, 102.0), (200.0, 206.0)];
        let found = Paired::of(&pairs).unwrap();
        close(found.mean, 0.02);
        assert!((found.high - 0.02 - 0.01 * 4.302_652_73 / 3.0_f64.sqrt()).abs() < 1e-9);
        close(found.low + found.high, 0.04);
        assert!(found.within(0.05) && !found.within(0.04));
        assert_eq!(Paired::of(&pairs[..1]), None);
    }

    #[test]
    fn work_is_worth_what_it_takes_alone() {
        close(turned_into_work(300.0, 200.0, 3.0), 0.5);
    }

    #[test]
    fn work_is_compared_where_requests_are_no_slower() {
        let points = [(100.0, 1.0), (110.0, 2.0), (130.0, 9.0)];
        assert_eq!(work_at_no_worse(&points, 110.0), Some(2.0));
        assert_eq!(work_at_no_worse(&points, 108.0), Some(2.0));
        assert_eq!(work_at_no_worse(&points, 500.0), Some(9.0));
        assert_eq!(work_at_no_worse(&points, 50.0), None);
    }

    #[test]
    fn choices_agree_by_what_they_share() {
        let set = |sites: &[u64]| sites.iter().copied().collect::<BTreeSet<u64>>();
        close(agreement(&set(&[1, 2, 3]), &set(&[2, 3, 4])), 0.5);
        close(agreement(&set(&[]), &set(&[])), 1.0);
        close(agreement(&set(&[1]), &set(&[])), 0.0);
    }

    #[test]
    fn distances_leave_room_for_the_load() {
        close(distance_ns(300.0, 100.0), 200.0);
        close(distance_ns(150.0, 100.0), 75.0);
    }

    #[test]
    fn amounts_are_never_none() {
        assert_eq!(scaled(1000, 0.25), 250);
        assert_eq!(scaled(10, 0.001), 1);
    }
}
