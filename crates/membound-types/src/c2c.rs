//! `measure c2c`: time to transfer a cache line from one core to another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CpuId, Samples};

/// Two CPUs that pass a cache line back and forth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorePair {
    /// CPU that starts the exchange.
    pub from: CpuId,
    /// CPU that answers.
    pub to: CpuId,
    /// Time of one transfer in nanoseconds: half a round trip.
    pub one_way_ns: f64,
    /// Lower end of the 95 % interval of `one_way_ns`.
    pub one_way_low_ns: f64,
    /// Upper end of the 95 % interval of `one_way_ns`.
    pub one_way_high_ns: f64,
    /// Raw batches: one transfer, in nanoseconds.
    pub batches: Samples,
}

/// Result of `measure c2c`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreToCore {
    /// Measured CPUs, in the order of the matrix.
    pub cpus: Vec<CpuId>,
    /// All unordered pairs of CPUs.
    pub pairs: Vec<CorePair>,
    /// Pairs that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
