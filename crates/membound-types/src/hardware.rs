//! Accesses that a processor sampled itself: what imported runs hold beside samples of time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Basis;
use crate::names::named;

/// Accesses that the processor sampled itself. Shares are those of all sampled accesses, each with the
/// events that it stands for; they are no shares of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareView {
    /// How these figures were got: [`Basis::Measured`].
    pub basis: Basis,
    /// What sampled them: `PEBS`, `IBS`, `SPE`.
    pub samplers: Vec<String>,
    /// Sampled accesses.
    pub accesses: u64,
    /// Those that read.
    pub loads: u64,
    /// Those that wrote.
    pub stores: u64,
    /// Average core clock cycles of the accesses whose latency was measured.
    pub latency_cycles: Option<f64>,
    /// Share of the accesses whose address was translated by a walk of the page table, among those
    /// whose translation is known.
    pub walked_fraction: Option<f64>,
    /// By where lines came from, nearest first.
    pub levels: Vec<HardwareLevelRow>,
    /// By function, most cycles first, then most accesses.
    pub functions: Vec<HardwareCodeRow>,
    /// Lines of memory that another core had changed, most often first.
    pub changed_lines: Vec<ChangedLineRow>,
}

/// Where lines of sampled accesses came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareLevelRow {
    /// `L1`, `line-fill`, `L2`, `L3`, `L4`, `cache`, `remote-cache`, `DRAM`, `remote-DRAM`, `persistent`, `CXL`,
    /// `device`, `uncached`; `beyond L1` and the like where only a miss is known; `unknown`.
    pub name: String,
    /// Sampled accesses.
    pub accesses: u64,
    /// Their share.
    pub fraction: f64,
    /// Their average latency in core clock cycles, where it was measured.
    pub latency_cycles: Option<f64>,
}

/// A function's sampled accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareCodeRow {
    /// Function.
    pub name: String,
    /// File of the code.
    pub module: String,
    /// Sampled accesses.
    pub accesses: u64,
    /// Their share.
    pub fraction: f64,
    /// Their share of all measured cycles.
    pub cycles_fraction: Option<f64>,
    /// Their average latency in core clock cycles, where it was measured.
    pub latency_cycles: Option<f64>,
    /// Where most of their lines came from, as in [`HardwareLevelRow::name`].
    pub level: String,
}

/// A line of memory that was sampled while another core had changed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedLineRow {
    /// Process.
    pub pid: u32,
    /// First address of the line.
    pub address: u64,
    /// Sampled accesses to it.
    pub accesses: u64,
    /// Those that found it changed by another core.
    pub changed: u64,
    /// Threads that were sampled there.
    pub threads: u32,
    /// Functions that were sampled there, most often first.
    pub functions: Vec<String>,
}

named! {
    /// Unit of a processor that samples accesses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum AccessSampler {
        /// Intel's Processor Event-Based Sampling.
        Pebs = "pebs",
        /// AMD's Instruction-Based Sampling.
        Ibs = "ibs",
        /// Arm's Statistical Profiling Extension.
        Spe = "spe",
        /// The recording does not name the unit.
        Other = "other",
    }
}

named! {
    /// What a sampled access did.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Operation {
        /// Read.
        Load = "load",
        /// Wrote.
        Store = "store",
        /// Read and wrote.
        LoadStore = "load-store",
        /// Fetched ahead.
        Prefetch = "prefetch",
        /// Fetched code.
        Execute = "execute",
    }
}

named! {
    /// Where the line of a sampled access came from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum ServedBy {
        /// The innermost cache.
        L1 = "l1",
        /// A buffer for a line that was on its way already.
        LineFill = "line-fill",
        /// The second cache.
        L2 = "l2",
        /// The third cache.
        L3 = "l3",
        /// A fourth cache, or one on the side of memory.
        L4 = "l4",
        /// A cache of unknown level.
        Cache = "cache",
        /// Another core's cache.
        RemoteCache = "remote-cache",
        /// Memory of the own node.
        Dram = "dram",
        /// Memory of another node.
        RemoteDram = "remote-dram",
        /// Persistent memory.
        Persistent = "persistent",
        /// Memory behind CXL.
        Cxl = "cxl",
        /// A device.
        Device = "device",
        /// Memory that is not cached.
        Uncached = "uncached",
    }
}

named! {
    /// What other caches answered a sampled access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Snoop {
        /// None was asked.
        None = "none",
        /// None had the line.
        Miss = "miss",
        /// One had the line unchanged.
        Hit = "hit",
        /// One had changed the line.
        Modified = "modified",
        /// One sent the line.
        Forwarded = "forwarded",
    }
}

named! {
    /// How the address of a sampled access was translated.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Translation {
        /// By the first TLB.
        L1 = "l1",
        /// By the second TLB.
        L2 = "l2",
        /// By one of the TLBs.
        Tlb = "tlb",
        /// By a walk of the page table.
        Walk = "walk",
    }
}
