//! `measure latency`: latency of a dependent chase over size × stride × pattern × page × node × copies.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, NodePolicy, PageKind, Samples};

named! {
    /// Order in which a chase visits a buffer.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum Pattern {
        /// One random cycle over all elements.
        Random = "random",
        /// A ring of pointers, each one stride ahead, as in lat_mem_rd.
        Stride = "stride",
        /// Random within a page, then the next page at random, so that TLB misses are rare.
        PageRandom = "page-random",
        /// One random cycle whose elements hold a scrambled offset instead of a pointer, so that
        /// prefetchers cannot follow pointers.
        Indexed = "indexed",
    }
}

named! {
    /// Whether the chase also writes the visited lines.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum Access {
        /// Loads only: a cache evicts lines without writing them back.
        Clean = "clean",
        /// Every visited line is also written, so a cache must write it back on eviction.
        Dirty = "dirty",
    }
}

/// State of the hardware prefetchers during a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefetchState {
    /// As found on the machine.
    Default,
    /// All prefetchers that can be controlled are off.
    Off,
    /// The data stream control register (DSCR) of a POWER processor has this value.
    #[serde(untagged)]
    Dscr(Dscr),
    /// The named prefetcher is off.
    #[serde(untagged)]
    Without(String),
}

/// Value of the data stream control register of POWER processors, `dscr=N` in documents: the prefetch depth
/// in the low three bits (0 the processor's default, 1 none, 2 shallowest … 7 deepest), 8 for store
/// streams, 16 for strides of more than a line (Power ISA).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Dscr(u8);

impl Dscr {
    /// Largest value in which all bits have a meaning here.
    pub const MAX: u8 = 31;

    /// Checks a value; `None` if it has other bits.
    #[must_use]
    pub fn new(value: u8) -> Option<Self> {
        (value <= Self::MAX).then_some(Self(value))
    }

    /// Value of the register.
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Dscr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dscr={}", self.0)
    }
}

impl From<Dscr> for String {
    fn from(dscr: Dscr) -> Self {
        dscr.to_string()
    }
}

impl TryFrom<String> for Dscr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let value = text.strip_prefix("dscr=").and_then(|it| it.parse().ok());
        value
            .and_then(Self::new)
            .ok_or_else(|| format!("`{text}` is not dscr=0 to dscr={}", Self::MAX))
    }
}

impl PrefetchState {
    /// Parses a name as used in documents and on the command line.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        match name {
            "default" => Self::Default,
            "off" => Self::Off,
            other => match Dscr::try_from(other.to_owned()) {
                Ok(dscr) => Self::Dscr(dscr),
                Err(_) => Self::Without(other.to_owned()),
            },
        }
    }
}

impl fmt::Display for PrefetchState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Off => f.pad("off"),
            Self::Dscr(dscr) => f.pad(&dscr.to_string()),
            Self::Without(name) => f.pad(name),
        }
    }
}

/// Latency of one chase under one set of conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyPoint {
    /// Size of the buffer of one copy in bytes.
    pub size_bytes: u64,
    /// Distance between elements in bytes.
    pub stride_bytes: u64,
    /// Order in which elements are visited.
    pub pattern: Pattern,
    /// Clean or dirty lines.
    pub access: Access,
    /// Page kind of the buffer, as verified.
    pub page: PageKind,
    /// CPU of the first copy.
    pub cpu: CpuId,
    /// Node of the buffer.
    pub node: NodePolicy,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Number of copies that ran at once, each on its own CPU and buffer.
    pub threads: u32,
    /// Load-to-use latency in nanoseconds, including the first cycle: median over the batches of the faster
    /// mode, over all copies.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
    /// `ns` in core clock cycles.
    pub cycles: f64,
    /// Number of batches that `ns` is based on.
    pub samples: u32,
    /// Raw batches and perturbations.
    pub batches: Samples,
    /// Share of the buffer with the requested page kind (0 to 1); `null` if all of it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_share: Option<f64>,
    /// Prefetchers shortened this point, according to a comparison with other patterns; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch_taint: Option<PrefetchTaint>,
}

/// Evidence that a prefetcher shortened a point's latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefetchTaint {
    /// Pattern that the point was compared with.
    pub against: Pattern,
    /// Latency of the point ÷ that of the other pattern at the same size.
    pub ratio: f64,
}

/// Effective cache size for one copy, compared with several copies at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreDifference {
    /// Number of copies in the run with several.
    pub threads: u32,
    /// Effective size of the outermost cache with one copy, in bytes.
    pub alone_bytes: u64,
    /// Effective size of the outermost cache with `threads` copies, in bytes.
    pub crowded_bytes: u64,
    /// Interpretation: a shared cache, or lateral cast-out from a private one.
    pub meaning: String,
}

/// Result of `measure latency`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// All measured points, in order of page, pattern, access, node, copies, stride and size.
    pub points: Vec<LatencyPoint>,
    /// Comparisons of one copy with several, if several were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowding: Vec<CoreDifference>,
    /// Requested combinations that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_prefetchers_are_their_names_in_documents() {
        let seven = Dscr::new(7).unwrap();
        for (state, name) in [
            (PrefetchState::Default, "default"),
            (PrefetchState::Off, "off"),
            (PrefetchState::Dscr(seven), "dscr=7"),
            (
                PrefetchState::Without("l2-streamer".to_owned()),
                "l2-streamer",
            ),
            // 32 is beyond the bits of the register.
            (PrefetchState::Without("dscr=32".to_owned()), "dscr=32"),
        ] {
            assert_eq!(state.to_string(), name);
            assert_eq!(PrefetchState::of_name(name), state);
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<PrefetchState>(&json).unwrap(), state);
        }
        assert_eq!(Dscr::new(32), None);
    }
}
