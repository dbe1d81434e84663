//! What a processor says of an access that it sampled itself.

/// What sampled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// Intel's Processor Event-Based Sampling.
    Pebs,
    /// AMD's Instruction-Based Sampling.
    Ibs,
    /// Arm's Statistical Profiling Extension.
    Spe,
    /// Another sampler: perf does not name it.
    Other,
}

/// What an access did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Not known.
    #[default]
    Unknown,
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

/// Where the line came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Served {
    /// Not known.
    #[default]
    Unknown,
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

/// What other caches answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Snoop {
    /// Not known.
    #[default]
    Unknown,
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

/// How the address was translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Translation {
    /// Not known.
    #[default]
    Unknown,
    /// By the first TLB.
    L1,
    /// By the second TLB.
    L2,
    /// By one of the TLBs.
    Tlb,
    /// By a walk of the page table.
    Walk,
}

/// An access that a processor sampled itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAccess {
    /// What it did.
    pub operation: Operation,
    /// Where the line came from.
    pub served: Served,
    /// Where `served` is unknown: the outermost cache that the access is known to have missed.
    pub missed: Option<Served>,
    /// What other caches answered.
    pub snoop: Snoop,
    /// How the address was translated.
    pub translation: Translation,
    /// Whether no other core could come between; `None`: not known.
    pub locked: Option<bool>,
    /// Core clock cycles that it took.
    pub latency_cycles: Option<u32>,
    /// What it accessed.
    pub address: Option<u64>,
    /// The same in physical memory.
    pub physical_address: Option<u64>,
}
