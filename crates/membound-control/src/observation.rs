//! What is observed of a harvest at a poll.

use std::time::Duration;

/// Number of time slices, and CPU time of the threads in which they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// Number of time slices.
    pub count: u64,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
}

/// Counters of a harvest since it began. Histograms are those of [`crate::durations`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Yields of the command at which scavengers were admitted, and CPU time of its threads meanwhile.
    pub with: Slices,
    /// The same while no scavenger was admitted.
    pub without: Slices,
    /// Durations of the time slices that were timed.
    pub slices: Vec<(u64, u64, u64)>,
    /// Durations of requests while scavengers were admitted, and while none was; `None` if not measured.
    pub requests: Option<[Vec<(u64, u64, u64)>; 2]>,
}

/// What is observed at a poll.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Time since the harvest began.
    pub now: Duration,
    /// Counters so far.
    pub counters: &'a Counters,
    /// Whether no change of yields is pending.
    pub is_settled: bool,
    /// Whether a scavenger was on an SMT sibling of the command's hardware threads.
    pub uses_siblings: bool,
    /// Progress of each scavenger, in loads with a yield; `None` if it has not begun or has ended.
    pub progress: &'a [Option<u64>],
    /// Processors that scavengers without a command may use.
    pub processors: usize,
}
