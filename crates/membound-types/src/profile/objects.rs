//! Objects: their stalls, their fields, and how much memory they held over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{NamedShare, Share};

/// An object, or all blocks of one allocating call chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectRow {
    /// `file:line (size)` of the allocation, symbol, thread or path.
    pub name: String,
    /// What it is.
    pub kind: ObjectClass,
    /// Bytes of one block (the median where they differ).
    pub size_bytes: u64,
    /// Call chain of the allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Blocks that were allocated; an estimate where they were sampled.
    pub blocks: u64,
    /// Fewest blocks that there were, with 95 % confidence, where they were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_low: Option<u64>,
    /// Most blocks that there were, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_high: Option<u64>,
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// Average lifetime of a block in seconds, where it was freed.
    pub lifetime_s: Option<f64>,
    /// Whether threads fight over lines of it.
    pub false_sharing: bool,
    /// Share of its accesses to pages of the accessing thread's node.
    pub node_local_fraction: Option<f64>,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
    /// Where inside: hot fields and lines, by offset.
    pub offsets: Vec<OffsetRow>,
    /// Lines of code that stall on it, most stalled first: name and share of all CPU time.
    pub code: Vec<NamedShare>,
}

named! {
    /// What an object is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ObjectClass {
        /// Blocks of an allocator.
        Heap = "heap",
        /// Memory mapped without a file.
        Mapped = "mapped",
        /// A mapped file.
        File = "file",
        /// A variable of a module.
        Global = "global",
        /// A thread's stack.
        Stack = "stack",
        /// Nothing more is known.
        Unknown = "unknown",
    }
}

/// One frame of an allocation's call chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallFrame {
    /// Function.
    pub function: String,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// File of the code.
    pub module: String,
}

/// A place inside an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetRow {
    /// Bytes from the beginning of the block.
    pub offset: u64,
    /// Bytes accessed there.
    pub bytes: u32,
    /// Accesses seen.
    pub accesses: u64,
    /// Share of the object's stall.
    pub stall_fraction: f64,
    /// Average latency.
    pub avg_latency_ns: Option<f64>,
}

/// What a function did to an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionObjectRow {
    /// Function, as in `functions`.
    pub function: String,
    /// File of the function's code.
    pub module: String,
    /// Object, as in `objects`.
    pub object: String,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// Memory that was allocated and not freed yet, over time. Allocated bytes count, whether they were used
/// or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryUse {
    /// Most live bytes at once.
    pub peak_bytes: u64,
    /// When that was, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes of all objects.
    pub timeline: Vec<MemoryMoment>,
    /// By object, largest peak first.
    pub objects: Vec<MemoryRow>,
}

/// Live bytes from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryMoment {
    /// Since when, in seconds since the run began; until the next moment.
    pub t_s: f64,
    /// Live bytes.
    pub bytes: u64,
}

/// Live bytes of an object over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// Object, named as in `objects`.
    pub name: String,
    /// What it is.
    pub kind: ObjectClass,
    /// Most live bytes at once.
    pub peak_bytes: u64,
    /// When that was, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes at the end.
    pub end_bytes: u64,
    /// Over time.
    pub timeline: Vec<MemoryMoment>,
}
