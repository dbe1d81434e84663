//! Accesses that a processor sampled itself, from recordings of other profilers.

use serde::{Deserialize, Serialize};

use crate::{StackId, ThreadId};

/// An access that a processor sampled itself. What is `None` is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareAccess {
    /// When.
    pub t_ns: u64,
    /// Which thread.
    pub thread: ThreadId,
    /// On which CPU.
    pub cpu: Option<u16>,
    /// Call chain; its innermost frame is the access.
    pub stack: StackId,
    /// What sampled it.
    pub sampler: AccessSampler,
    /// What it did.
    pub operation: Option<Operation>,
    /// Where the line came from.
    pub served: Option<ServedBy>,
    /// The outermost cache that is known not to have had the line, where `served` is not known.
    pub missed: Option<ServedBy>,
    /// What other caches answered.
    pub snoop: Option<Snoop>,
    /// How the address was translated.
    pub translation: Option<Translation>,
    /// Whether no other core could come between.
    pub locked: Option<bool>,
    /// Core clock cycles that it took.
    pub latency_cycles: Option<u32>,
    /// What it accessed.
    pub address: Option<u64>,
    /// The same in physical memory.
    pub physical_address: Option<u64>,
    /// Events that it stands for, by which it was chosen.
    pub period: u64,
}

/// What of a processor samples accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessSampler {
    /// Intel's Processor Event-Based Sampling.
    Pebs,
    /// AMD's Instruction-Based Sampling.
    Ibs,
    /// Arm's Statistical Profiling Extension.
    Spe,
    /// It is not known what.
    Other,
}

/// What a sampled access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Read.
    Load,
    /// Wrote.
    Store,
    /// Read and wrote.
    LoadStore,
    /// Fetched ahead.
    Prefetch,
    /// Fetched code.
    Execute,
}

/// Where the line of a sampled access came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedBy {
    /// The innermost cache.
    L1,
    /// A buffer for a line that was on its way already.
    LineFill,
    /// The second cache.
    L2,
    /// The third cache.
    L3,
    /// A fourth cache, or one on the side of memory.
    L4,
    /// A cache, it is not known which.
    Cache,
    /// Another core's cache.
    RemoteCache,
    /// Memory of the own node.
    Dram,
    /// Memory of another node.
    RemoteDram,
    /// Persistent memory.
    Persistent,
    /// Memory behind CXL.
    Cxl,
    /// A device.
    Device,
    /// Memory that is not cached.
    Uncached,
}

/// What other caches answered a sampled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Snoop {
    /// None was asked.
    None,
    /// None had the line.
    Miss,
    /// One had the line unchanged.
    Hit,
    /// One had changed the line.
    Modified,
    /// One sent the line.
    Forwarded,
}

/// How the address of a sampled access was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Translation {
    /// By the first TLB.
    L1,
    /// By the second TLB.
    L2,
    /// By one of the TLBs.
    Tlb,
    /// By a walk of the page table.
    Walk,
}
