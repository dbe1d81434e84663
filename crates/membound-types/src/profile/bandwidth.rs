//! Memory traffic over time, by domain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Basis, NamedShare, Outcome};

/// Traffic of one domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthDomain {
    /// `DRAM`: all memory; `DRAM 0`: memory of node (or package) 0; `interconnect 0→1`: transfers from node
    /// 0 to node 1.
    pub domain: String,
    /// How the traffic was obtained.
    pub basis: Basis,
    /// Traffic over time.
    pub timeline: Vec<BandwidthMoment>,
    /// Share of the time by bandwidth.
    pub histogram: Vec<BandwidthBin>,
    /// Highest bandwidth measured on this machine with the program's number of concurrent threads and its
    /// mix of reads and writes, in 10⁹ bytes per second.
    pub machine_max_gb_s: Outcome<f64>,
    /// Average over the run, in 10⁹ bytes per second.
    pub average_gb_s: f64,
    /// Lower end of what the interval of the accesses' executions leaves possible for `average_gb_s`, if it is modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_low_gb_s: Option<f64>,
    /// Upper end of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_high_gb_s: Option<f64>,
    /// Objects that cause the traffic: name and share of it.
    pub objects: Vec<NamedShare>,
    /// Source lines that cause the traffic: name and share of it.
    pub lines: Vec<NamedShare>,
}

/// Average traffic of one moment of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthMoment {
    /// Start of the moment, in seconds since the run began.
    pub t_s: f64,
    /// Bytes read, in 10⁹ bytes per second.
    pub read_gb_s: f64,
    /// Bytes written, in 10⁹ bytes per second.
    pub write_gb_s: f64,
}

/// Bin of the histogram of bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthBin {
    /// Lower edge in 10⁹ bytes per second.
    pub from_gb_s: f64,
    /// Upper edge in 10⁹ bytes per second.
    pub to_gb_s: f64,
    /// Share of the time within the bin.
    pub fraction: f64,
}
