//! Accesses that go through memory in order.

use super::Served;

/// Share of the measured bandwidth up to which a loop waits for something else, and from which
/// it waits for bandwidth.
const MAX_UNBOUND_BANDWIDTH_SHARE: f64 = 0.5;
const MIN_BOUND_BANDWIDTH_SHARE: f64 = 0.9;

/// The lines that a site moves in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Lines moved per execution: advance ÷ bytes of a line, at most 1 (doubled
    /// if lines are written back).
    pub lines_per_execution: f64,
    /// Time per line for one thread at the measured bandwidth of the machine,
    /// in nanoseconds.
    pub line_ns: f64,
    /// Time in nanoseconds of the lines that other accesses of the same loop move in order per
    /// execution of this one. They share the bandwidth, and the loop's samples are attributed to
    /// whichever of its accesses waits.
    pub other_streams_ns: f64,
    /// Number of such other accesses.
    pub other_streams: u32,
    /// CPU time of the function that contains the stream's loop, in nanoseconds.
    pub function_ns: f64,
    /// Level or memory from which the lines come.
    pub served: Served,
}

impl Stream {
    /// Time in nanoseconds to move the lines of `executions` executions.
    pub(super) fn moved_ns(&self, executions: f64) -> f64 {
        executions
            * self
                .lines_per_execution
                .mul_add(self.line_ns, self.other_streams_ns)
    }

    /// Confidence that the loop waits for bandwidth, 0 to 1, from the share of its time that moving
    /// the lines of `executions` executions takes.
    pub(super) fn bound(&self, executions: f64) -> f64 {
        if self.function_ns <= 0.0 {
            return 0.0;
        }
        let used = self.moved_ns(executions) / self.function_ns;
        ((used - MAX_UNBOUND_BANDWIDTH_SHARE)
            / (MIN_BOUND_BANDWIDTH_SHARE - MAX_UNBOUND_BANDWIDTH_SHARE))
            .clamp(0.0, 1.0)
    }
}
