//! `doctor`: what this machine is, what it permits, and how each thing will be measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Kind, MachineInfo};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Group it is shown under, such as `processor`, `pages`, `counters`.
    pub group: String,
    /// Stable key, such as `thp`, `perf_event_paranoid`, `msr`.
    pub key: String,
    /// What was found, for a person.
    pub value: crate::Outcome<String>,
    /// The same for a program, where it has structure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// Something membound does, and how it will be done here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capability {
    /// What it is, such as `latency`, `huge pages`, `prefetcher control`.
    pub what: String,
    /// How well it works here.
    pub state: CapabilityState,
    /// How it will be done here, in a sentence.
    pub how: String,
    /// What to switch on for better, where there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<String>,
}

named! {
    /// How well something works on this machine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CapabilityState {
        /// As well as anywhere.
        Full = "full",
        /// By a second-best way.
        Reduced = "reduced",
        /// Not at all.
        Absent = "absent",
    }
}

/// The document that `membound doctor --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Doctor {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Doctor`].
    pub kind: Kind,
    /// Host, CPU, declared caches, timer and conditions.
    #[serde(flatten)]
    pub machine: MachineInfo,
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// What membound does, and how here.
    pub capabilities: Vec<Capability>,
}
