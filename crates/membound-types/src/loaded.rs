//! `measure loaded`: latency while other threads inject traffic.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodePolicy, PageKind, Samples};

/// Reads and writes of the injecting threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TrafficMix {
    /// Lines read per round of an injector.
    pub reads: u32,
    /// Lines written per round of an injector.
    pub writes: u32,
}

impl TrafficMix {
    /// Largest number of reads or writes that is accepted when a mix is parsed.
    pub const MAX_LINES: u32 = 16;
}

impl fmt::Display for TrafficMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

impl FromStr for TrafficMix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = |part: &str| part.parse().ok().filter(|count| *count <= Self::MAX_LINES);
        let counts = text
            .split_once(':')
            .and_then(|(reads, writes)| Some((count(reads)?, count(writes)?)));
        match counts {
            Some((reads, writes)) if reads + writes > 0 => Ok(Self { reads, writes }),
            _ => Err(format!(
                "`{text}` is no mix: use READS:WRITES, as in 2:1, at most {} each",
                Self::MAX_LINES
            )),
        }
    }
}

/// Latency at one level of traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadedPoint {
    /// Read:write mix of the traffic.
    pub mix: TrafficMix,
    /// Number of injecting threads.
    pub injectors: u32,
    /// Pause between rounds of an injector, in steps of about a core cycle; `null` if the injectors are
    /// idle.
    pub delay_steps: Option<u32>,
    /// Traffic that the injectors reached, in 10⁹ bytes per second: lines read and written by all injectors
    /// together, without the read that precedes the write of a line (write-allocate).
    pub gb_s: f64,
    /// Latency of a chase in DRAM during the traffic, in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
    /// `ns` in core clock cycles.
    pub cycles: f64,
    /// Raw batches of the chase.
    pub batches: Samples,
}

/// Result of `measure loaded`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loaded {
    /// All measured points.
    pub points: Vec<LoadedPoint>,
    /// Page kind of the chase and the traffic.
    pub page: PageKind,
    /// Node of the chase and the traffic.
    pub node: NodePolicy,
    /// Size of the chase's buffer in bytes.
    pub chase_bytes: u64,
    /// Points that could not be measured, each with the reason.
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
