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
        /// Properties and capabilities of a machine (`membound doctor`).
        Doctor = "doctor",
        /// A machine profile: several parts of `measure`.
        Machine = "machine",
        /// `measure --cpu 0,1`: a machine profile for each CPU.
        Processors = "processors",
        /// Latency curves (`measure latency`).
        Latency = "latency",
        /// Memory-level parallelism and windows of the core (`measure mlp`).
        Mlp = "mlp",
        /// Seidl's windows (`measure window`).
        Window = "window",
        /// Bandwidth by kernel (`measure bandwidth`).
        Bandwidth = "bandwidth",
        /// Latency under load (`measure loaded`).
        Loaded = "loaded",
        /// Address translation (`measure tlb`).
        Tlb = "tlb",
        /// Hardware prefetchers (`measure prefetch`).
        Prefetch = "prefetch",
        /// Nodes by nodes (`measure numa`).
        Numa = "numa",
        /// Cores by cores (`measure c2c`).
        C2c = "c2c",
        /// Histograms of the latency sampler's patch (`measure calibration`).
        Calibration = "calibration",
        /// Fitted hierarchy model (`model fit`).
        Model = "model",
        /// Topology with attainable rates (`model show`).
        Topology = "topology",
        /// Predicted times (`model predict`).
        Prediction = "prediction",
        /// Comparison of machine profiles (`compare`).
        Comparison = "comparison",
        /// What can be patched in a binary (`rewrite plan`).
        RewritePlan = "rewrite-plan",
        /// Results of a fully patched program (`rewrite check`).
        RewriteCheck = "rewrite-check",
        /// Analysis of a recorded run (`report`).
        Profile = "profile",
        /// Comparison of runs (`compare`).
        RunComparison = "run-comparison",
        /// Plan of yields (`harvest plan`).
        HarvestPlan = "plan",
        /// Result of a harvest (`harvest run`).
        Harvest = "harvest",
        /// Comparison of harvest settings (`harvest explore`).
        HarvestExplore = "harvest-explore",
        /// Result of a batch of jobs (`harvest batch`).
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
