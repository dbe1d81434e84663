//! The loop around a site: its other work, and its time with its data in the first cache.

use super::{Estimate, Executed};

/// A factor with the ends of its range.
pub(super) struct Factor {
    pub(super) least: f64,
    pub(super) usual: f64,
    pub(super) most: f64,
}

/// Work of the loop around a site, other than waiting.
///
/// A processor does other work of a loop while an access waits, and samples then show none of that
/// work. If the data were near, the work would take its own time again, so this part of the
/// wait does not cost the program anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Instructions of the loop that are executed once per execution of the site.
    pub instructions: f64,
    /// CPU time of the loop's samples that did not wait for one of its accesses, in nanoseconds.
    pub visible_ns: f64,
    /// CPU time of the samples that waited for any access of the loop, in nanoseconds.
    pub waiting_ns: f64,
}

/// Cycles per instruction without waiting for memory: from code that keeps four units busy to code
/// that mispredicts often.
const CYCLES_PER_INSTRUCTION: Factor = Factor {
    least: 0.25,
    usual: 0.5,
    most: 1.0,
};

impl Work {
    /// Time in nanoseconds of work that is hidden behind the waits of a site with the time `time_ns`.
    ///
    /// `hits_ns` is the site's own cost, which does not count as waiting; `instruction_ns` is the time of an
    /// instruction.
    fn hidden_ns(&self, time_ns: f64, executions: f64, hits_ns: f64, instruction_ns: f64) -> f64 {
        let all_ns = executions * self.instructions * instruction_ns;
        let of_site = (time_ns / self.waiting_ns).min(1.0);
        ((all_ns - self.visible_ns) * of_site - hits_ns).max(0.0)
    }

    /// `stall` of a site with the time `time_ns` minus the hidden work.
    pub(super) fn exposed(
        &self,
        stall: Estimate,
        time_ns: f64,
        executed: Executed,
        core_hz: f64,
    ) -> Estimate {
        if core_hz <= 0.0 || self.waiting_ns <= 0.0 {
            return stall.clamped(0.0, time_ns);
        }
        let hits_ns = (time_ns - stall.value).max(0.0);
        let hidden = |executions: f64, cycles: f64| {
            self.hidden_ns(time_ns, executions, hits_ns, cycles * 1e9 / core_hz)
        };
        let Factor { least, usual, most } = CYCLES_PER_INSTRUCTION;
        Estimate::new(
            stall.value - hidden(executed.count, usual),
            stall.low - hidden(executed.high, most),
            stall.high - hidden(executed.low, least),
        )
        .clamped(0.0, time_ns)
    }
}

/// The loop around a site, whose iterations were measured with their data in the first cache.
///
/// What its iterations take beyond that is the wait for memory, however accesses overlap with each other, with
/// prefetchers and with other work. The site must be executed once in each iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedLoop {
    /// Time in nanoseconds of an iteration with its data in the first cache, and the range of its measurements.
    pub iteration_ns: Estimate,
    /// CPU time of the loop's samples, in nanoseconds.
    pub loop_ns: f64,
    /// CPU time of the samples that are attributed to accesses of the loop, in nanoseconds.
    pub waiting_ns: f64,
    /// Iterations each time that the loop is entered, if blocks were counted.
    pub iterations: Option<f64>,
}

/// Iterations from which on entering and leaving a loop takes a small part of its time.
const MIN_LONG_LOOP_ITERATIONS: f64 = 64.0;

/// Relative error of the time of an iteration in the first cache: in the program, the loop's code is aligned
/// differently, its values are others, and it begins and ends now and then.
pub const CACHED_LOOP_ERROR: f64 = 0.1;

impl CachedLoop {
    /// True if the loop is known to take no more time than its iterations do.
    pub(super) fn is_long(&self) -> bool {
        self.iterations
            .is_some_and(|it| it >= MIN_LONG_LOOP_ITERATIONS)
    }

    /// Stall of a site with the time `time_ns` that was `executed` in the loop; `None` if the loop took less time
    /// than its iterations do in the first cache: then these are not what the program executed.
    pub(super) fn stall(&self, time_ns: f64, executed: Executed) -> Option<Estimate> {
        let of_site = time_ns / self.waiting_ns.max(time_ns).max(f64::MIN_POSITIVE);
        let Estimate { value, low, high } = self.iteration_ns;
        let left = |executions: f64, iteration_ns: f64| {
            (self.loop_ns - executions * iteration_ns).max(0.0) * of_site
        };
        let possible = executed.low * low <= self.loop_ns * (1.0 + CACHED_LOOP_ERROR);
        possible.then(|| {
            Estimate::new(
                left(executed.count, value),
                left(executed.high, high * (1.0 + CACHED_LOOP_ERROR)),
                left(executed.low, low * (1.0 - CACHED_LOOP_ERROR)),
            )
            .clamped(0.0, time_ns)
        })
    }
}
