//! Envelope of all JSON documents: version, kind, and the machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MachineInfo;
use crate::names::named;

/// Version of all schemas in this crate. It increases when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

named! {
    /// Kind of a JSON document, named by the command that writes it.
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

/// Result of one part of `measure`, with the machine that it was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Document<P> {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Kind of `part`.
    pub kind: Kind,
    /// True if the run was cut short: the content is valid, but less than was requested.
    #[serde(default)]
    pub incomplete: bool,
    /// The machine and the conditions of the run.
    pub machine: MachineInfo,
    /// Measurements of the part.
    #[serde(flatten)]
    pub part: P,
}
