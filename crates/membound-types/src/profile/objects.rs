//! Objects: their stalls, fields, and live bytes over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{NamedShare, Share};

/// An object; all heap blocks of one allocating call chain are one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectRow {
    /// `file:line (size)` of the allocation, or symbol, thread or path.
    pub name: String,
    /// Kind of memory.
    pub kind: ObjectClass,
    /// Size of one block in bytes (the median if sizes differ).
    pub size_bytes: u64,
    /// Call chain of the allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Number of allocated blocks; an estimate if blocks were sampled.
    pub blocks: u64,
    /// Lower bound of `blocks` with 95 % confidence, if blocks were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_low: Option<u64>,
    /// Upper bound of `blocks` with 95 % confidence, if blocks were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_high: Option<u64>,
    /// Bytes of all blocks together.
    pub total_bytes: u64,
    /// Average lifetime of a block in seconds, if blocks were freed.
    pub lifetime_s: Option<f64>,
    /// True if threads contend for lines of the object without sharing data.
    pub false_sharing: bool,
    /// Share of its accesses that go to pages of the accessing thread's node.
    pub node_local_fraction: Option<f64>,
    /// Samples, stall, executions and latency.
    #[serde(flatten)]
    pub share: Share,
    /// Accessed fields or stretches within the object, by offset.
    pub offsets: Vec<OffsetRow>,
    /// Source lines that stall on the object, most stalled first: name and share of all CPU time.
    pub code: Vec<NamedShare>,
}

named! {
    /// Kind of an object's memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ObjectClass {
        /// Blocks of a heap allocator.
        Heap = "heap",
        /// Anonymous mapping.
        Mapped = "mapped",
        /// A mapped file.
        File = "file",
        /// A global variable of a module.
        Global = "global",
        /// A thread's stack.
        Stack = "stack",
        /// Unknown memory.
        Unknown = "unknown",
    }
}

/// Frame of an allocation's call chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallFrame {
    /// Name of the function.
    pub function: String,
    /// Path of the source file, if known.
    pub file: Option<String>,
    /// Source line, if known.
    pub line: Option<u32>,
    /// Path of the module with the code.
    pub module: String,
}

/// Accesses at one offset of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetRow {
    /// Bytes from the start of the block.
    pub offset: u64,
    /// Number of bytes accessed there.
    pub bytes: u32,
    /// Observed accesses.
    pub accesses: u64,
    /// Share of the object's stall.
    pub stall_fraction: f64,
    /// Average latency in nanoseconds, if measured.
    pub avg_latency_ns: Option<f64>,
}

/// Accesses of one function to one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionObjectRow {
    /// Function, named as in `functions`.
    pub function: String,
    /// File of the function's code.
    pub module: String,
    /// Object, named as in `objects`.
    pub object: String,
    /// Samples, stall, executions and latency.
    #[serde(flatten)]
    pub share: Share,
}

/// Live bytes over time: allocated and not yet freed, whether used or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryUse {
    /// Largest number of live bytes at once.
    pub peak_bytes: u64,
    /// Time of the peak, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes of all objects together.
    pub timeline: Vec<MemoryMoment>,
    /// Live bytes by object, largest peak first.
    pub objects: Vec<MemoryRow>,
}

/// Live bytes from one moment to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryMoment {
    /// Start of the moment, in seconds since the run began.
    pub t_s: f64,
    /// Live bytes until the next moment.
    pub bytes: u64,
}

/// Live bytes of one object over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// Object, named as in `objects`.
    pub name: String,
    /// Kind of the object's memory.
    pub kind: ObjectClass,
    /// Largest number of live bytes at once.
    pub peak_bytes: u64,
    /// Time of the peak, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes at the end of the run.
    pub end_bytes: u64,
    /// Live bytes over time.
    pub timeline: Vec<MemoryMoment>,
}
