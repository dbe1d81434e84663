//! `measure latency`: a dependent chase over size × stride × pattern × page × node × copies.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, NodePolicy, PageKind, Samples};

named! {
    /// The order in which a chase visits a buffer.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum Pattern {
        /// One random cycle over all elements.
        Random = "random",
        /// A ring of pointers, each one stride forward, as lat_mem_rd walks it.
        Stride = "stride",
        /// Random inside a page, then the next page at random: the TLB stays out of it.
        PageRandom = "page-random",
        /// One random cycle whose elements hold a scrambled offset instead of a pointer, so
        /// that prefetchers which follow pointers cannot.
        Indexed = "indexed",
    }
}

named! {
    /// Whether the chase also writes the lines it visits.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum Access {
        /// Loads only: lines leave a cache without being written back.
        Clean = "clean",
        /// Every visited line is written too, and has to be written back when it leaves.
        Dirty = "dirty",
    }
}

/// State of the hardware prefetchers during a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefetchState {
    /// As the machine was found.
    Default,
    /// All that can be controlled are off.
    Off,
    /// The data stream control register of a POWER processor has this value.
    #[serde(untagged)]
    Dscr(Dscr),
    /// The named one is off.
    #[serde(untagged)]
    Without(String),
}

/// A value of the data stream control register of POWER processors, `dscr=N` in documents: the
/// prefetch depth in the low three bits (0 the processor's own, 1 none, 2 shallowest … 7
/// deepest), 8 for store streams, 16 for strides of more than a line (Power ISA).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Dscr(u8);

impl Dscr {
    /// The largest value whose bits are all meant here.
    pub const MOST: u8 = 31;

    /// `None` for a value with other bits.
    #[must_use]
    pub fn new(value: u8) -> Option<Self> {
        (value <= Self::MOST).then_some(Self(value))
    }

    /// The register's value.
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
            .ok_or_else(|| format!("`{text}` is not dscr=0 to dscr={}", Self::MOST))
    }
}

impl PrefetchState {
    /// The state of a name in documents and on the command line.
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

/// One point of a latency curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyPoint {
    /// Bytes that one copy walks over.
    pub size_bytes: u64,
    /// Distance between elements in bytes.
    pub stride_bytes: u64,
    /// Order of the visits.
    pub pattern: Pattern,
    /// Clean or dirty lines.
    pub access: Access,
    /// Pages behind the buffer, as verified.
    pub page: PageKind,
    /// CPU of the first copy.
    pub cpu: CpuId,
    /// Where the buffer lies.
    pub node: NodePolicy,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Copies that ran at once, each on its own CPU and buffer.
    pub threads: u32,
    /// Load-to-use latency (the first cycle included), median over the batches of the
    /// faster mode; over all copies.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
    /// `ns` in core clock cycles.
    pub cycles: f64,
    /// Number of batches behind `ns`.
    pub samples: u32,
    /// The batches, and what disturbed them.
    pub batches: Samples,
    /// Share of the buffer that the page kind covers, where it is less than asked
    /// (0 to 1); `null` when all of it is as asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_share: Option<f64>,
    /// Whether comparison with other patterns says that prefetchers shortened this point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch_taint: Option<PrefetchTaint>,
}

/// A point whose latency a prefetcher shortened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefetchTaint {
    /// The pattern that it was compared with.
    pub against: Pattern,
    /// This point's latency divided by that pattern's at the same size.
    pub ratio: f64,
}

/// What one copy sees of a cache against what several see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreDifference {
    /// Copies in the crowded run.
    pub threads: u32,
    /// Size of the outermost cache as one copy sees it, in bytes.
    pub alone_bytes: u64,
    /// The same with `threads` copies at once.
    pub crowded_bytes: u64,
    /// What it means: a shared cache, or lateral cast-out from a private one.
    pub meaning: String,
}

/// The part `latency`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// All points, in order of page, pattern, access, node, copies, stride and size.
    pub points: Vec<LatencyPoint>,
    /// Comparison of one copy with several, where several were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowding: Vec<CoreDifference>,
    /// Combinations that were asked for and could not be had: what and why.
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
            // Not a value of the register.
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
