//! Cache lines that several threads access.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CallFrame, Figure};

/// A contended cache line: several threads access it, and at least one of them writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedLine {
    /// Address of the line's first byte in the process; of the costliest line, if several lines of one
    /// object are contended in the same way.
    pub line_address: u64,
    /// Size of a line in bytes.
    pub line_bytes: u32,
    /// First addresses of all contended lines that the entry covers, ascending.
    #[serde(default)]
    pub lines: Vec<u64>,
    /// Process of the line.
    pub pid: u32,
    /// Name of the object in the line.
    pub object: String,
    /// Call chain of the object's allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Offset of the line from the start of the object.
    pub object_offset: Option<u64>,
    /// Threads that access the line, with the bytes that they access.
    pub threads: Vec<SharingThread>,
    /// Distinct accessed offsets in the line.
    pub offsets: Vec<u32>,
    /// Code that accesses the line.
    pub sites: Vec<SharingSite>,
    /// Average latency of accesses to the line, in nanoseconds.
    pub avg_latency_ns: Option<f64>,
    /// Average latency in core clock cycles.
    pub avg_latency_cycles: Option<f64>,
    /// Latency of a hit in the innermost cache in nanoseconds, for comparison.
    pub l1_latency_ns: Option<f64>,
    /// Share of all CPU time that contention for the line costs.
    pub stall_fraction: f64,
    /// Share of the wall time that separating the data would save.
    pub predicted_gain: Option<Figure>,
    /// Costs that the threads cause to each other, measured by stopping all but one of them for a moment;
    /// cost and gain of the entry are then measured. Empty if this was not tried or gave no result.
    #[serde(default)]
    pub held: Vec<SharingCost>,
    /// Advice for the reader.
    pub advice: String,
    /// Hits of hardware watchpoints on the line by thread; `None` if the line was not watched.
    pub confirmed: Option<Vec<WatchedBytes>>,
    /// Confidence of the finding, 0 to 1.
    pub confidence: f64,
}

/// Cost that the other users of a line cause to one thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingCost {
    /// Thread identifier.
    pub tid: u32,
    /// Share of its CPU time that the thread saved while the others were stopped.
    pub share: Figure,
    /// CPU time in seconds during which it and other threads used the line.
    pub cpu_s: f64,
    /// Number of measured spans of time.
    pub spans: u64,
}

/// Use of a shared line by one thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingThread {
    /// Thread identifier.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// First accessed offset in the line.
    pub from: u32,
    /// Offset behind the last accessed byte.
    pub to: u32,
    /// Number of observed loads.
    pub loads: u64,
    /// Number of observed stores.
    pub stores: u64,
}

/// Code that accesses a shared line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingSite {
    /// `file:line`, or the instruction.
    pub name: String,
    /// Name of the containing function.
    pub function: String,
    /// True if it writes.
    pub stores: bool,
    /// Number of observed accesses.
    pub accesses: u64,
}

/// Accesses of a thread that a watchpoint recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedBytes {
    /// Thread identifier.
    pub tid: u32,
    /// Offset in the line.
    pub offset: u32,
    /// Number of accessed bytes.
    pub bytes: u32,
    /// Number of hits.
    pub hits: u64,
}
