//! `measure c2c`: how long a line takes from one core to another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CpuId, Samples};

/// Two CPUs that hand a line to and fro.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CorePair {
    /// CPU that starts.
    pub from: CpuId,
    /// CPU that answers.
    pub to: CpuId,
    /// One way, in nanoseconds: half a round trip.
    pub one_way_ns: f64,
    /// Lower end of the 95 % interval.
    pub one_way_low_ns: f64,
    /// Upper end of the 95 % interval.
    pub one_way_high_ns: f64,
    /// The batches, one way in nanoseconds.
    pub batches: Samples,
}

/// The part `c2c`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreToCore {
    /// CPUs, in the order of the matrix.
    pub cpus: Vec<CpuId>,
    /// Every unordered pair.
    pub pairs: Vec<CorePair>,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
