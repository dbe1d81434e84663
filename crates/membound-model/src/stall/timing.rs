//! Corrects ticks of timed loads for a change in the cost of timing itself.
//!
//! Just before each timed load a hit in the innermost cache is timed in the same way. The time of
//! that hit, and the further time of the second cache, are fixed numbers of core cycles but not of
//! timer ticks: at another core clock they take another number of ticks. A
//! virtual machine's clock changes with the load of its neighbours, even between two levels of one
//! calibration.

use membound_types::{CalibratedLevel, TickCount};

use super::Served;
use super::bins::{collected, mean_ticks, on_steps};

/// State of the timing at a site, besides the ticks by which loads are corrected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Standard error of the ticks by which loads were corrected.
    pub error: f64,
    /// Ticks of a timed hit ÷ ticks of a hit when the innermost level was calibrated.
    pub pace: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            error: 0.0,
            pace: 1.0,
        }
    }
}

/// Range of `pace` that a change of the clock can cause.
const PACE_RANGE: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// Range of ticks beyond a hit that scale with the core clock, as a multiple of the second cache's.
const CLOCK_SCALED_RANGE_FACTOR: f64 = 1.5;

/// The part of the axis of calibrated ticks that scales with the core clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Mean ticks of a load from the innermost level.
    hit: f64,
    /// Ticks beyond `hit` that scale with the core clock.
    reach: f64,
}

impl Axis {
    /// The axis of calibrated levels; `innermost` is the index of the first level.
    pub(super) fn of(levels: &[&CalibratedLevel], innermost: usize) -> Self {
        let first = levels[innermost];
        let hit = mean_ticks(&first.ticks);
        let second = levels
            .iter()
            .find(|level| Served::of(&level.name) == Served::L2);
        let beyond = second.map_or(0.0, |level| {
            let (shift, pace) = timing_cost(first, level);
            (mean_ticks(&level.ticks) - shift - hit) / pace
        });
        Self {
            hit,
            reach: CLOCK_SCALED_RANGE_FACTOR * beyond.max(0.0),
        }
    }

    /// Ticks at the calibration's clock of a load that took `ticks` at `pace`, with the correction
    /// by the time of a hit already applied.
    pub(super) fn at(&self, ticks: f64, pace: f64) -> f64 {
        let pace = pace.clamp(*PACE_RANGE.start(), *PACE_RANGE.end());
        let beyond = (ticks - self.hit).clamp(0.0, self.reach * pace);
        ticks - beyond * (1.0 - 1.0 / pace)
    }

    /// The ticks of `level` as if it had been calibrated at the clock of `first`.
    pub(super) fn calibrated(
        &self,
        first: &CalibratedLevel,
        level: &CalibratedLevel,
        step: u32,
    ) -> Vec<TickCount> {
        let (shift, pace) = timing_cost(first, level);
        let moved = level.ticks.iter().flat_map(|entry| {
            let ticks = self.at(f64::from(entry.ticks) - shift, pace);
            on_steps(ticks, entry.count as f64, step)
        });
        collected(moved.collect())
    }
}

/// Difference in ticks, and ratio, of the cost of timing at `level` to that at `first`.
fn timing_cost(first: &CalibratedLevel, level: &CalibratedLevel) -> (f64, f64) {
    match (first.hit_ticks, level.hit_ticks) {
        (Some(usual), Some(here)) if usual > 0.0 => (here - usual, here / usual),
        _ => (0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(name: &str, ticks: u32, hit: f64) -> CalibratedLevel {
        CalibratedLevel {
            name: name.to_owned(),
            latency_ns: 1.0,
            ticks: vec![TickCount { ticks, count: 100 }],
            hit_ticks: Some(hit),
            ..CalibratedLevel::default()
        }
    }

    #[test]
    fn caches_of_the_core_take_as_many_cycles_at_every_clock() {
        // The second cache takes 10 ticks beyond a hit of 40, and was calibrated when everything took
        // 5/4 of that.
        let (first, second) = (level("L1", 40, 40.0), level("L2", 62, 50.0));
        let far = level("L3", 100, 40.0);
        let axis = Axis::of(&[&first, &second, &far], 0);
        let ticks_of = |level| {
            let counts = axis.calibrated(&first, level, 1);
            counts
                .iter()
                .map(|it| (it.ticks, it.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(ticks_of(&first), [(40, 100)]);
        assert_eq!(ticks_of(&second), [(49, 40), (50, 60)]);
        assert_eq!(ticks_of(&far), [(100, 100)]);
        // At the calibration's own clock, or before a hit, only the correction applies.
        assert_eq!(axis.at(49.0, 1.0), 49.0);
        assert_eq!(axis.at(30.0, 1.25), 30.0);
        // Ticks farther out are memory's time, and the transition has no step.
        let limit = axis.hit + axis.reach * 1.25;
        assert!((axis.at(limit, 1.25) - axis.at(limit + 1e-9, 1.25)).abs() < 1e-6);
        assert!((axis.at(200.0, 1.25) - (200.0 - axis.reach * 0.25)).abs() < 1e-9);
    }

    #[test]
    fn calibrations_without_hits_stay_as_they_are() {
        let (first, mut second) = (level("L1", 40, 40.0), level("L2", 62, 50.0));
        second.hit_ticks = None;
        let axis = Axis::of(&[&first, &second], 0);
        assert_eq!(axis.calibrated(&first, &second, 2), second.ticks);
    }
}
