//! Lengths of time slices, and the rate of the time stamp counter.

use std::time::Duration;

use membound_measure::Clock;
use membound_types::{MachineProfile, Timer};

use crate::planning::USUAL_BOUND_NS;

/// Latency of memory where there is no machine profile, in nanoseconds.
const DEFAULT_LATENCY_NS: f64 = 100.0;
/// Share of the bound after which a slice must end by the scavenger's own count of time.
const CREDIT_SHARE_OF_BOUND: f64 = 0.75;
/// Share of the bound that is left at least for the time from one yield of a scavenger to the next.
const MIN_DISTANCE_SHARE_OF_BOUND: f64 = 0.5;

/// Lengths of time slices, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Latency of a load from memory.
    pub(crate) hidden_ns: f64,
    /// Time until the command's data have arrived: a slice ends at the first yield after it.
    pub(crate) span_ns: f64,
    /// Maximum time from one yield of a scavenger to the next.
    pub(crate) distance_ns: f64,
}

impl Timing {
    pub(crate) fn of(bound_ns: Option<f64>, machine: Option<&MachineProfile>) -> Self {
        let latency_ns = machine
            .and_then(|machine| machine.levels.last())
            .map_or(DEFAULT_LATENCY_NS, |level| level.latency_ns);
        let (span_ns, distance_ns) = match bound_ns {
            None => (latency_ns, USUAL_BOUND_NS),
            // A slice lasts the span, and then up to the next yield. Most yields are far nearer than the
            // maximum distance; whether the sum exceeds the bound is measured.
            Some(bound_ns) => {
                let distance_ns = bound_ns - latency_ns.min(bound_ns * MIN_DISTANCE_SHARE_OF_BOUND);
                (
                    latency_ns.min(bound_ns * CREDIT_SHARE_OF_BOUND),
                    distance_ns,
                )
            }
        };
        Self {
            hidden_ns: latency_ns,
            span_ns,
            distance_ns,
        }
    }
}

/// Ticks of the time stamp counter per nanosecond: from the machine profile, or measured for 10 ms.
pub(crate) fn ticks_per_ns(machine: Option<&MachineProfile>) -> f64 {
    const MEASURING_TIME: Duration = Duration::from_millis(10);
    /// Used where the counter is not fit for measuring.
    const DEFAULT_TICKS_PER_NS: f64 = 2.0;
    let rate =
        |timer: &Timer| (timer.name == "tsc" && timer.rate_hz > 0.0).then_some(timer.rate_hz);
    let known = machine.and_then(|machine| rate(&machine.machine.timer));
    let found = || rate(&Clock::calibrate(MEASURING_TIME).describe(0.0));
    known
        .or_else(found)
        .map_or(DEFAULT_TICKS_PER_NS, |hz| hz * 1e-9)
}
