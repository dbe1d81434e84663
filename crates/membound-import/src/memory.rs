//! Data that a processor reports for an access that it sampled itself.

/// The unit that sampled an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// Intel's Processor Event-Based Sampling.
    Pebs,
    /// AMD's Instruction-Based Sampling.
    Ibs,
    /// Arm's Statistical Profiling Extension.
    Spe,
    /// Another unit, which perf does not name.
    Other,
}

/// Kind of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Not known.
    #[default]
    Unknown,
    /// A load.
    Load,
    /// A store.
    Store,
    /// A load and a store in one instruction.
    LoadStore,
    /// A prefetch.
    Prefetch,
    /// An instruction fetch.
    Execute,
}

/// The source of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Served {
    /// Not known.
    #[default]
    Unknown,
    /// The L1 cache.
    L1,
    /// A line fill buffer: the line was being fetched already.
    LineFill,
    /// The L2 cache.
    L2,
    /// The L3 cache.
    L3,
    /// An L4 cache, or a memory-side cache.
    L4,
    /// A cache of unknown level.
    Cache,
    /// Another core's cache.
    RemoteCache,
    /// Memory of the local node.
    Dram,
    /// Memory of another node.
    RemoteDram,
    /// Persistent memory.
    Persistent,
    /// Memory attached by CXL.
    Cxl,
    /// A device.
    Device,
    /// Uncached memory.
    Uncached,
}

/// Result of the snoop of other caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Snoop {
    /// Not known.
    #[default]
    Unknown,
    /// No other cache was snooped.
    None,
    /// No other cache had the line.
    Miss,
    /// Another cache had the line unmodified.
    Hit,
    /// Another cache had the line modified.
    Modified,
    /// Another cache forwarded the line.
    Forwarded,
}

/// Where the address translation was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Translation {
    /// Not known.
    #[default]
    Unknown,
    /// In the L1 TLB.
    L1,
    /// In the L2 TLB.
    L2,
    /// In a TLB of unknown level.
    Tlb,
    /// By a page table walk.
    Walk,
}

/// An access that a processor sampled itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Kind of access.
    pub operation: Operation,
    /// The source of the line.
    pub served: Served,
    /// If `served` is unknown: the outermost cache known to have missed.
    pub missed: Option<Served>,
    /// Result of the snoop of other caches.
    pub snoop: Snoop,
    /// Where the address translation was found.
    pub translation: Translation,
    /// True if the access was atomic; `None` if not known.
    pub locked: Option<bool>,
    /// Latency in core clock cycles.
    pub latency_cycles: Option<u32>,
    /// Virtual address of the access.
    pub address: Option<u64>,
    /// Physical address of the access.
    pub physical_address: Option<u64>,
}
