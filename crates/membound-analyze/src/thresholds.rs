//! Limits from which on figures are flagged and findings reported, and the evidence that a finding needs.
//!
//! None of them describes a machine: the cost of a level comes from the machine profile.

/// Limits from which on figures are flagged and findings reported, and the evidence that a finding needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Stalled share of the whole run from which on it is called memory bound. A fifth: the gain from
    /// changing the data's layout must exceed what such a change usually costs elsewhere.
    pub memory_bound: f64,
    /// Stalled share below which a run is called *not* memory bound, so that the reader does not look for a
    /// problem. Between this and `memory_bound` there is no verdict.
    pub not_memory_bound: f64,
    /// Stalled share of all CPU time from which on a row of a table is flagged.
    pub row_stall: f64,
    /// The same for rows whose average latency exceeds `latency_ratio`.
    pub slow_row_stall: f64,
    /// Share of all CPU time stalled on one object from which on the object is a finding.
    pub hot_object: f64,
    /// Average latency from which on a row is flagged, as a multiple of the innermost cache's latency.
    /// Document 001's hot object had eleven times (44 cycles against 4); four times is what a second cache
    /// costs almost everywhere, which is no alarm yet.
    pub latency_ratio: f64,
    /// Smallest share of all CPU time that a contended line must cost to be a finding.
    pub sharing_cost: f64,
    /// Fewest observed accesses of each of two threads to a contended line, and fewest stores of one of
    /// them. With fewer, a coincidence cannot be distinguished from contention.
    pub sharing_accesses: u64,
    /// Fewest alternations between a writer and other threads on a contended line. A thread that hands its
    /// memory to another makes one, a program with phases a few.
    pub sharing_turns: u64,
    /// Share of the accesses to a line that must be of one kind (to bytes that others write, or to other
    /// bytes) for the line to be called true or false sharing. So the main thread's initialisation of an
    /// array does not turn false sharing into true sharing.
    pub sharing_kind: f64,
    /// Remote share of an object's accesses from which on its placement is a finding.
    pub remote: f64,
    /// Smallest share of all CPU time that a finding about placement must concern.
    pub placement_stall: f64,
    /// Share of the machine's measured maximum from which on bandwidth is a finding: latency under load
    /// rises steeply beyond it.
    pub bandwidth: f64,
    /// Share of the time above `bandwidth` from which on it is a finding.
    pub busy_time: f64,
    /// Most findings that are shown.
    pub findings: usize,
    /// Share of all CPU time from which on a function is listed.
    pub listed_function: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            memory_bound: 0.20,
            not_memory_bound: 0.10,
            row_stall: 0.05,
            slow_row_stall: 0.01,
            hot_object: 0.10,
            latency_ratio: 5.0,
            sharing_cost: 0.01,
            sharing_accesses: 8,
            sharing_turns: 6,
            sharing_kind: 0.2,
            remote: 0.2,
            placement_stall: 0.02,
            bandwidth: 0.7,
            busy_time: 0.2,
            findings: 6,
            listed_function: 0.005,
        }
    }
}
