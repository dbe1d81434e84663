//! Lines of memory that several threads access.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CallFrame, Figure};

/// A line that several threads access, at least one of them writing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedLine {
    /// First address of the line in the process; of the costliest, where several lines of
    /// one object are contended in the same way.
    pub line_address: u64,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// First addresses of all contended lines that this speaks of, ascending.
    #[serde(default)]
    pub lines: Vec<u64>,
    /// Process.
    pub pid: u32,
    /// Name of the object in it.
    pub object: String,
    /// Call chain of its allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Offset of the line from the beginning of the object.
    pub object_offset: Option<u64>,
    /// Threads that access the line, and which bytes.
    pub threads: Vec<SharingThread>,
    /// Distinct offsets in the line that are accessed.
    pub offsets: Vec<u32>,
    /// Code that accesses it.
    pub sites: Vec<SharingSite>,
    /// Average latency of accesses to it.
    pub avg_latency_ns: Option<f64>,
    /// The same in core clock cycles.
    pub avg_latency_cycles: Option<f64>,
    /// Latency of a hit in the innermost cache, for comparison.
    pub l1_latency_ns: Option<f64>,
    /// Share of all CPU time that it costs.
    pub stall_fraction: f64,
    /// Share of the wall time that separating the data would save.
    pub predicted_gain: Option<Figure>,
    /// What the threads cost each other, seen by holding all but one of them for a moment: then
    /// the cost and the gain are measured. Empty where it was not tried, or told nothing.
    #[serde(default)]
    pub held: Vec<SharingCost>,
    /// What to do.
    pub advice: String,
    /// Hits of hardware watchpoints on it by thread; `None` when it was not watched.
    pub confirmed: Option<Vec<WatchedBytes>>,
    /// How sure it is, 0 to 1.
    pub confidence: f64,
}

/// What the other users of a line cost one thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingCost {
    /// Its number.
    pub tid: u32,
    /// Share of its CPU time that it did not take while the others were held.
    pub share: Figure,
    /// CPU time in which it used the line while others did, in seconds.
    pub cpu_s: f64,
    /// Spans of time that tell it.
    pub spans: u64,
}

/// A thread's part in a shared line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingThread {
    /// Number.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// First offset in the line that it accesses.
    pub from: u32,
    /// Behind the last offset.
    pub to: u32,
    /// Loads seen.
    pub loads: u64,
    /// Stores seen.
    pub stores: u64,
}

/// Code that accesses a shared line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingSite {
    /// `file:line` or instruction.
    pub name: String,
    /// Function.
    pub function: String,
    /// Whether it writes.
    pub stores: bool,
    /// Accesses seen.
    pub accesses: u64,
}

/// Bytes that a thread was seen to access by a watchpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedBytes {
    /// Thread.
    pub tid: u32,
    /// Offset in the line.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    /// Hits.
    pub hits: u64,
}
