//! The envelope of everything that is written as JSON.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MachineInfo;

/// Version of all schemas in this crate. It grows when a field changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// What a document holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `membound doctor`.
    Doctor,
    /// A machine profile: several parts of `measure`.
    Machine,
    /// `measure latency`.
    Latency,
    /// `measure mlp`.
    Mlp,
    /// `measure window`.
    Window,
    /// `measure bandwidth`.
    Bandwidth,
    /// `measure loaded`.
    Loaded,
    /// `measure tlb`.
    Tlb,
    /// `measure prefetch`.
    Prefetch,
    /// `measure numa`.
    Numa,
    /// `measure c2c`.
    C2c,
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
