//! `measure loaded`: latency while other threads inject traffic.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodePolicy, PageKind, Samples};

/// What the injecting threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TrafficMix {
    /// Lines read in each round of the injector.
    pub reads: u32,
    /// Lines written in each round of the injector.
    pub writes: u32,
}

impl TrafficMix {
    /// Most lines of either kind that a mix may name when it is read from text.
    pub const MOST: u32 = 16;
}

impl fmt::Display for TrafficMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

impl FromStr for TrafficMix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = |part: &str| part.parse().ok().filter(|count| *count <= Self::MOST);
        let counts = text
            .split_once(':')
            .and_then(|(reads, writes)| Some((count(reads)?, count(writes)?)));
        match counts {
            Some((reads, writes)) if reads + writes > 0 => Ok(Self { reads, writes }),
            _ => Err(format!(
                "`{text}` is no mix: use READS:WRITES, as in 2:1, at most {} each",
                Self::MOST
            )),
        }
    }
}

/// One point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadedPoint {
    /// Read:write mix of the traffic.
    pub mix: TrafficMix,
    /// Injecting threads.
    pub injectors: u32,
    /// Pause between rounds of an injector, in steps of about a core cycle; `null` when it is
    /// idle.
    pub delay_steps: Option<u32>,
    /// Traffic that the injectors reached, in 10⁹ bytes a second: lines read and written, all
    /// injectors together; the read of a line before it is written (write-allocate) is not
    /// counted.
    pub gb_s: f64,
    /// Latency of a chase in DRAM meanwhile, in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
    /// `ns` in core clock cycles.
    pub cycles: f64,
    /// The batches of the chase.
    pub batches: Samples,
}

/// The part `loaded`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loaded {
    /// All points.
    pub points: Vec<LoadedPoint>,
    /// Pages behind the chase and the traffic.
    pub page: PageKind,
    /// Where they lie.
    pub node: NodePolicy,
    /// Bytes under the chase.
    pub chase_bytes: u64,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_as_it_is_shown() {
        for (text, reads, writes) in [("1:0", 1, 0), ("0:1", 0, 1), ("16:16", 16, 16)] {
            assert_eq!(text.parse(), Ok(TrafficMix { reads, writes }));
            assert_eq!(TrafficMix { reads, writes }.to_string(), text);
        }
        for text in ["", "1", "1:", ":1", "0:0", "17:1", "1:17", "-1:2", "1:2:3"] {
            assert_eq!(
                text.parse::<TrafficMix>(),
                Err(format!(
                    "`{text}` is no mix: use READS:WRITES, as in 2:1, at most 16 each"
                ))
            );
        }
    }
}
