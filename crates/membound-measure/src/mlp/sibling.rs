//! Waits for moments in which this thread has its core alone.
//!
//! While two hardware threads of a core run, each has its part of the reorder buffer: on AMD's cores one half. In a
//! guest the other thread may be another guest's, and nothing tells of it but the window itself. Where the size of
//! the whole buffer is published, two loads with most of it between them overlap only while the core is not shared.

use std::time::{Duration, Instant};

use membound_types::Filler;

use crate::Error;

/// Two kinds in turns, so that no register file is full before the reorder buffer is.
pub(super) const GATE_PATTERN: [Filler; 2] = [Filler::Integer, Filler::Vector];
/// Fillers between the two loads, as a share of the published entries: more than a part of the buffer holds, and less
/// than all of it.
const SHARE_OF_BUFFER: f64 = 0.8;
/// The two loads are in sequence with this many times as many fillers as there are entries.
const SURELY_OUTSIDE: u32 = 2;
/// Repetitions of the times of two loads at once and in sequence.
const REPETITIONS: u32 = 5;

/// What is timed while another hardware thread may run.
pub(super) trait Timing {
    /// Ticks of two loads with the fillers that are searched.
    fn ticks(&mut self) -> Result<f64, Error>;

    /// Ticks of two loads with this many fillers of [`GATE_PATTERN`] between them.
    fn gate_ticks(&mut self, fillers: u32) -> Result<f64, Error>;
}

/// Tells whether another hardware thread is busy on this core.
#[derive(Debug)]
pub(super) struct Sibling {
    gate_fillers: u32,
    /// Two loads that take at most this many ticks overlap.
    overlapping_ticks: f64,
    /// Time that may still be spent on waiting.
    left: Duration,
    /// True if the core was not shared when it was last checked.
    is_alone: bool,
}

impl Sibling {
    /// For a reorder buffer of `published` entries; waits for `patience` in all. `gate_ticks` times two loads with this
    /// many fillers of [`GATE_PATTERN`] between them. `None` where two loads take as long at once as in sequence.
    pub(super) fn watch(
        published: u32,
        patience: Duration,
        mut gate_ticks: impl FnMut(u32) -> Result<f64, Error>,
    ) -> Result<Option<Self>, Error> {
        // Other threads only make loads slower.
        let mut shortest = |fillers| -> Result<f64, Error> {
            let mut ticks = f64::INFINITY;
            for _ in 0..REPETITIONS {
                ticks = ticks.min(gate_ticks(fillers)?);
            }
            Ok(ticks)
        };
        let at_once = shortest(0)?;
        let in_sequence = shortest(SURELY_OUTSIDE * published)?;
        Ok((in_sequence > 1.35 * at_once).then(|| Self {
            gate_fillers: (SHARE_OF_BUFFER * f64::from(published)) as u32,
            overlapping_ticks: f64::midpoint(at_once, in_sequence),
            left: patience,
            is_alone: false,
        }))
    }

    /// Whether a time that [`Self::undisturbed`] returns was not lengthened by another hardware thread.
    pub(super) fn is_trusted(&self) -> bool {
        !self.left.is_zero()
    }

    /// Times until the two loads overlap, or the core was not shared before and after. Once the time for waiting
    /// is used up, the first time counts.
    pub(super) fn undisturbed(&mut self, timing: &mut impl Timing) -> Result<f64, Error> {
        let mut waiting: Option<Instant> = None;
        loop {
            let ticks = timing.ticks()?;
            if ticks <= self.overlapping_ticks || self.left.is_zero() {
                self.spend(waiting);
                return Ok(ticks);
            }
            let was_alone = self.is_alone;
            self.is_alone = self.has_core(timing)?;
            if was_alone && self.is_alone {
                self.spend(waiting);
                return Ok(ticks);
            }
            let since = *waiting.get_or_insert_with(Instant::now);
            while !self.is_alone && since.elapsed() < self.left {
                self.is_alone = self.has_core(timing)?;
            }
            if since.elapsed() >= self.left {
                self.left = Duration::ZERO;
                return Ok(ticks);
            }
        }
    }

    /// Whether the core is not shared now.
    fn has_core(&self, timing: &mut impl Timing) -> Result<bool, Error> {
        Ok(timing.gate_ticks(self.gate_fillers)? <= self.overlapping_ticks)
    }

    fn spend(&mut self, waiting: Option<Instant>) {
        let waited = waiting.map_or(Duration::ZERO, |since| since.elapsed());
        self.left = self.left.saturating_sub(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core with 256 entries; `shared` says for each timing whether another thread has half of them.
    struct Core<'a> {
        fillers: u32,
        shared: &'a mut dyn FnMut() -> bool,
        timings: u32,
    }

    impl Core<'_> {
        fn time(&mut self, fillers: u32) -> f64 {
            self.timings += 1;
            let entries = if (self.shared)() { 128 } else { 256 };
            if fillers + 2 <= entries { 400.0 } else { 800.0 }
        }
    }

    impl Timing for Core<'_> {
        fn ticks(&mut self) -> Result<f64, Error> {
            Ok(self.time(self.fillers))
        }

        fn gate_ticks(&mut self, fillers: u32) -> Result<f64, Error> {
            Ok(self.time(fillers))
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// The time with this many fillers, and the number of timings.
    fn found(fillers: u32, left: Duration, shared: &mut dyn FnMut() -> bool) -> (f64, u32) {
        let mut sibling = Sibling {
            gate_fillers: 204,
            overlapping_ticks: 600.0,
            left,
            is_alone: false,
        };
        let mut core = Core {
            fillers,
            shared,
            timings: 0,
        };
        let ticks = sibling.undisturbed(&mut core).unwrap();
        (ticks, core.timings)
    }

    /// True for the first `count` calls.
    fn first(count: u32) -> impl FnMut() -> bool {
        let mut calls = 0;
        move || {
            calls += 1;
            calls <= count
        }
    }

    #[test]
    fn a_window_is_timed_again_when_the_core_is_free() {
        assert_eq!(found(200, HOUR, &mut first(50)).0, 400.0);
        assert_eq!(found(300, HOUR, &mut first(50)).0, 800.0);
        // It becomes busy again between two timings.
        let mut calls = 0;
        let mut often = || {
            calls += 1;
            calls % 7 != 0 && calls % 8 != 0
        };
        assert_eq!(found(200, HOUR, &mut often).0, 400.0);
    }

    #[test]
    fn loads_that_overlap_without_fillers_calibrate_the_gate() {
        let watch = |in_sequence: f64| {
            let ticks = |fillers| Ok(if fillers < 512 { 400.0 } else { in_sequence });
            Sibling::watch(256, HOUR, ticks).unwrap()
        };
        let sibling = watch(800.0).unwrap();
        assert_eq!(
            (sibling.gate_fillers, sibling.overlapping_ticks),
            (204, 600.0)
        );
        assert!(watch(500.0).is_none());
    }

    #[test]
    fn nothing_waits_where_the_loads_overlap_or_no_time_is_left() {
        assert_eq!(found(100, HOUR, &mut || true), (400.0, 1));
        assert_eq!(found(200, Duration::ZERO, &mut || true), (800.0, 1));
    }

    #[test]
    fn a_core_that_is_never_free_is_measured_as_it_is() {
        let left = Duration::from_millis(5);
        assert_eq!(found(200, left, &mut || true).0, 800.0);
    }
}
