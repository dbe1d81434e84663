//! Levels of the memory hierarchy, and the line size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

named! {
    /// Kind of a level: cache or memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum LevelKind {
        /// A cache.
        #[default]
        Cache = "cache",
        /// Main memory: the outermost level.
        Memory = "memory",
    }
}

/// Level of the memory hierarchy, found from the latency curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Name: `L1`, `L2`, `L3`, …, `DRAM`.
    pub name: String,
    /// Whether the level is a cache or memory.
    pub kind: LevelKind,
    /// Effective size in bytes: where the curve leaves the plateau; `null` for memory.
    pub size_bytes: Option<u64>,
    /// Lower end of the interval of `size_bytes`.
    pub size_low_bytes: Option<u64>,
    /// Upper end of the interval of `size_bytes`.
    pub size_high_bytes: Option<u64>,
    /// Load-to-use latency on the plateau, in nanoseconds.
    pub latency_ns: f64,
    /// Lower end of the range of nine tenths of the plateau's points (a plateau may be tilted), or of their
    /// intervals if that range is wider.
    pub latency_low_ns: f64,
    /// Upper end of that range.
    pub latency_high_ns: f64,
    /// `latency_ns` in core clock cycles.
    pub latency_cycles: f64,
    /// Line size from stride curves, else as declared; see [`Level::line_basis`].
    pub line_bytes: Option<u32>,
    /// Basis of `line_bytes`.
    pub line_basis: Option<crate::Basis>,
    /// Size declared by sysfs or CPUID for this level, in bytes.
    pub declared_bytes: Option<u64>,
    /// A sentence if effective and declared size differ, or if the level is private and evicts lines into a
    /// neighbour's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Line size found from stride curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineSize {
    /// Line size in bytes.
    pub bytes: u32,
    /// Bytes fetched together if a neighbouring line is fetched with a line (adjacent-line prefetch);
    /// otherwise equal to `bytes`.
    pub sector_bytes: u32,
    /// Basis of the line size.
    pub basis: crate::Basis,
}
