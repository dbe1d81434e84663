//! Accesses that the processor sampled, which imported runs contain beside samples of time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Basis;
use crate::names::named;

/// Accesses that the processor sampled. Shares refer to all sampled accesses, each weighted by the number
/// of events that it represents; they are no shares of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareView {
    /// Basis of these figures: always [`Basis::Measured`].
    pub basis: Basis,
    /// Sampling units: `PEBS`, `IBS`, `SPE`.
    pub samplers: Vec<String>,
    /// Number of sampled accesses.
    pub accesses: u64,
    /// Sampled accesses that read.
    pub loads: u64,
    /// Sampled accesses that wrote.
    pub stores: u64,
    /// Average latency in core clock cycles, over the accesses with a measured latency.
    pub latency_cycles: Option<f64>,
    /// Share of the accesses whose address was translated by a page walk, among those with a known
    /// translation.
    pub walked_fraction: Option<f64>,
    /// Accesses by source of the line, nearest first.
    pub levels: Vec<HardwareLevelRow>,
    /// Accesses by function: most cycles first, then most accesses.
    pub functions: Vec<HardwareCodeRow>,
    /// Cache lines that another core had changed, most often first.
    pub changed_lines: Vec<ChangedLineRow>,
}

/// Sampled accesses by source of the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareLevelRow {
    /// `L1`, `line-fill`, `L2`, `L3`, `L4`, `cache`, `remote-cache`, `DRAM`, `remote-DRAM`, `persistent`, `CXL`,
    /// `device`, `uncached`; `beyond L1` and the like where only a miss is known; `unknown`.
    pub name: String,
    /// Number of sampled accesses.
    pub accesses: u64,
    /// Their share of all sampled accesses.
    pub fraction: f64,
    /// Their average latency in core clock cycles, if measured.
    pub latency_cycles: Option<f64>,
}

/// Sampled accesses of one function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareCodeRow {
    /// Name of the function.
    pub name: String,
    /// File of the function's code.
    pub module: String,
    /// Number of sampled accesses.
    pub accesses: u64,
    /// Their share of all sampled accesses.
    pub fraction: f64,
    /// Their share of all measured latency cycles.
    pub cycles_fraction: Option<f64>,
    /// Their average latency in core clock cycles, if measured.
    pub latency_cycles: Option<f64>,
    /// Source of most of their lines, as in [`HardwareLevelRow::name`].
    pub level: String,
}

/// Cache line that another core had changed before sampled accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedLineRow {
    /// Process of the address.
    pub pid: u32,
    /// Address of the line's first byte.
    pub address: u64,
    /// Sampled accesses to the line.
    pub accesses: u64,
    /// Sampled accesses that found the line changed by another core.
    pub changed: u64,
    /// Number of threads with sampled accesses to the line.
    pub threads: u32,
    /// Functions with sampled accesses to the line, most often first.
    pub functions: Vec<String>,
}

named! {
    /// Processor unit that samples accesses.
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
    /// Operation of a sampled access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Operation {
        /// Data was read.
        Load = "load",
        /// Data was written.
        Store = "store",
        /// Data was read and written.
        LoadStore = "load-store",
        /// A prefetch.
        Prefetch = "prefetch",
        /// Code was fetched.
        Execute = "execute",
    }
}

named! {
    /// Source of the line of a sampled access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum ServedBy {
        /// The first-level cache.
        L1 = "l1",
        /// A fill buffer: the line was already being fetched.
        LineFill = "line-fill",
        /// The second-level cache.
        L2 = "l2",
        /// The third-level cache.
        L3 = "l3",
        /// A fourth cache, or a memory-side cache.
        L4 = "l4",
        /// A cache of unknown level.
        Cache = "cache",
        /// Another core's cache.
        RemoteCache = "remote-cache",
        /// Memory of the CPU's own node.
        Dram = "dram",
        /// Memory of another node.
        RemoteDram = "remote-dram",
        /// Persistent memory.
        Persistent = "persistent",
        /// Memory attached through CXL.
        Cxl = "cxl",
        /// Memory of a device.
        Device = "device",
        /// Uncached memory.
        Uncached = "uncached",
    }
}

named! {
    /// Answer of other caches to a sampled access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Snoop {
        /// No other cache was asked.
        None = "none",
        /// No other cache had the line.
        Miss = "miss",
        /// Another cache had the line unchanged.
        Hit = "hit",
        /// Another cache had changed the line.
        Modified = "modified",
        /// Another cache sent the line.
        Forwarded = "forwarded",
    }
}

named! {
    /// Translation of the address of a sampled access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Translation {
        /// The first-level TLB had it.
        L1 = "l1",
        /// The second-level TLB had it.
        L2 = "l2",
        /// A TLB of unknown level had it.
        Tlb = "tlb",
        /// A page walk was needed.
        Walk = "walk",
    }
}
