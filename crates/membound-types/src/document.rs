//! The envelope of everything that is written as JSON.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MachineInfo;
use crate::names::named;

/// Version of all schemas in this crate. It grows when a field changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

named! {
    /// What a document holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Kind {
        /// `membound doctor`.
        Doctor = "doctor",
        /// A machine profile: several parts of `measure`.
        Machine = "machine",
        /// `measure --cpu 0,1`: a machine profile for each CPU.
        Processors = "processors",
        /// `measure latency`.
        Latency = "latency",
        /// `measure mlp`.
        Mlp = "mlp",
        /// `measure window`.
        Window = "window",
        /// `measure bandwidth`.
        Bandwidth = "bandwidth",
        /// `measure loaded`.
        Loaded = "loaded",
        /// `measure tlb`.
        Tlb = "tlb",
        /// `measure prefetch`.
        Prefetch = "prefetch",
        /// `measure numa`.
        Numa = "numa",
        /// `measure c2c`.
        C2c = "c2c",
        /// `measure calibration`.
        Calibration = "calibration",
        /// `model fit`.
        Model = "model",
        /// `model show`.
        Topology = "topology",
        /// `model predict`.
        Prediction = "prediction",
        /// `compare`.
        Comparison = "comparison",
        /// `rewrite plan`.
        RewritePlan = "rewrite-plan",
        /// `rewrite check`.
        RewriteCheck = "rewrite-check",
        /// `report`.
        Profile = "profile",
        /// `compare` of runs.
        RunComparison = "run-comparison",
        /// `harvest plan`.
        HarvestPlan = "plan",
        /// `harvest run`.
        Harvest = "harvest",
        /// `harvest explore`.
        HarvestExplore = "harvest-explore",
        /// `harvest batch`.
        HarvestBatch = "harvest-batch",
    }
}

/// One part of `measure`, with the machine it was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Document<P> {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// What `part` is.
    pub kind: Kind,
    /// Cut short: what stands here is true, but there is less of it than was asked.
    #[serde(default)]
    pub incomplete: bool,
    /// The machine and the conditions of the run.
    pub machine: MachineInfo,
    /// The measurements.
    #[serde(flatten)]
    pub part: P,
}
