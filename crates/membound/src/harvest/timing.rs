//! How long turns may last, and what times are reckoned in.

use std::time::Duration;

use membound_measure::Clock;
use membound_types::{MachineProfile, Timer};

use super::plan::USUAL_BOUND_NS;

/// Time until data of memory are there where no machine profile says it, in nanoseconds.
const USUAL_LATENCY_NS: f64 = 100.0;
/// Part of the bound that a turn may have used up by its reckoning and go on.
const SPAN: f64 = 0.75;
/// Part of the bound that there may be from one yield of a scavenger to the next.
const DISTANCE: f64 = 0.5;

/// How long turns may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// What a load from memory takes.
    pub(super) hidden_ns: f64,
    /// Until the command's data are there.
    pub(super) span_ns: f64,
    /// From one yield of a scavenger to the next.
    pub(super) distance_ns: f64,
}

impl Timing {
    pub(super) fn of(bound_ns: Option<f64>, machine: Option<&MachineProfile>) -> Self {
        let latency_ns = machine
            .and_then(|machine| machine.levels.last())
            .map_or(USUAL_LATENCY_NS, |level| level.latency_ns);
        let (span_ns, distance_ns) = match bound_ns {
            None => (latency_ns, USUAL_BOUND_NS),
            // A turn lasts the span, and then up to the next yield. Most of these are far nearer than the longest
            // way: whether both together are too long is what is measured.
            Some(bound_ns) => {
                let distance_ns = bound_ns - latency_ns.min(bound_ns * DISTANCE);
                (latency_ns.min(bound_ns * SPAN), distance_ns)
            }
        };
        Self {
            hidden_ns: latency_ns,
            span_ns,
            distance_ns,
        }
    }
}

/// Ticks of the time stamp counter in a nanosecond: the machine profile's, or found out.
pub(super) fn ticks_per_ns(machine: Option<&MachineProfile>) -> f64 {
    const LOOK: Duration = Duration::from_millis(10);
    /// Where the counter is not one to measure by.
    const USUAL: f64 = 2.0;
    let rate =
        |timer: &Timer| (timer.name == "tsc" && timer.rate_hz > 0.0).then_some(timer.rate_hz);
    let known = machine.and_then(|machine| rate(&machine.machine.timer));
    let found = || rate(&Clock::calibrate(LOOK).describe(0.0));
    known.or_else(found).map_or(USUAL, |hz| hz * 1e-9)
}
