//! Memory traffic over time, by domain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Basis, NamedShare, Outcome};

/// Traffic of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthDomain {
    /// `DRAM`: all memory; `DRAM 0`: that of node (or package) 0; `interconnect 0→1`: what goes from node 0
    /// to node 1.
    pub domain: String,
    /// How it was got.
    pub basis: Basis,
    /// Over time.
    pub timeline: Vec<BandwidthMoment>,
    /// Share of the time by bandwidth.
    pub histogram: Vec<BandwidthBin>,
    /// The most that this machine was measured to do with as many threads at once as the
    /// program had, for the program's mix of bytes read and written.
    pub machine_max_gb_s: Outcome<f64>,
    /// Average over the run.
    pub average_gb_s: f64,
    /// Objects that cause it: name and share of the traffic.
    pub objects: Vec<NamedShare>,
    /// Source lines that cause it.
    pub lines: Vec<NamedShare>,
}

/// Traffic of a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthMoment {
    /// Beginning, in seconds since the run's.
    pub t_s: f64,
    /// Read, in 10⁹ bytes a second.
    pub read_gb_s: f64,
    /// Written, in 10⁹ bytes a second.
    pub write_gb_s: f64,
}

/// A step of the histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthBin {
    /// From this bandwidth on.
    pub from_gb_s: f64,
    /// Up to this.
    pub to_gb_s: f64,
    /// Share of the time.
    pub fraction: f64,
}
