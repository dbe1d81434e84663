//! From where on a figure is worth a look, and how much evidence a finding needs.
//!
//! None of these describes a machine: what a level costs comes from the machine profile.

/// From where on a figure is worth a look, and how much evidence a finding needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Stalled share of the whole run from which on it is called memory bound. A fifth:
    /// what a rewrite of the data's layout can give back must exceed what such a rewrite
    /// usually costs elsewhere.
    pub memory_bound: f64,
    /// Stalled share below which a run is called *not* memory bound, so that the reader
    /// does not look for a problem. Between this and `memory_bound` figures stand without a verdict.
    pub not_memory_bound: f64,
    /// Stalled share of all CPU time from which on a row of a table is flagged.
    pub row_stall: f64,
    /// The same for rows whose average latency is past `latency_ratio`.
    pub slow_row_stall: f64,
    /// Share of all CPU time stalled on one object from which on it is a finding.
    pub hot_object: f64,
    /// Average latency from which on it is flagged, as a multiple of the innermost
    /// cache's. Document 001's hot object stood at eleven times (44 cycles against 4); four
    /// times is what a second cache costs almost everywhere, which is no alarm yet.
    pub latency_ratio: f64,
    /// Share of all CPU time that a contended line must cost.
    pub sharing_cost: f64,
    /// Accesses of each of two threads that must have been seen on a contended line, and
    /// stores of one of them. Below this a chance meeting cannot be told from a fight.
    pub sharing_accesses: u64,
    /// How often a writer and others must have taken turns on a contended line. A thread
    /// that hands its memory to another makes one turn, a phased program a few.
    pub sharing_turns: u64,
    /// Share of the accesses to a line that must be of a kind (to bytes that others write,
    /// or beside them) for the line to be called that kind of sharing; the initialisation
    /// of an array by the main thread is not to make false sharing true.
    pub sharing_kind: f64,
    /// Remote share of an object's accesses from which on its placement is a finding.
    pub remote: f64,
    /// Share of all CPU time that a finding about placement must concern.
    pub placement_stall: f64,
    /// Share of the machine's measured maximum from which on bandwidth is a finding:
    /// latency under load rises steeply beyond it.
    pub bandwidth: f64,
    /// Share of the time above that from which on it is a finding.
    pub busy_time: f64,
    /// Findings that are shown at most.
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
