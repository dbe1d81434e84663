//! `doctor`: properties of this machine, permissions, and the method available for each capability.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Kind, MachineInfo};

/// One examined property of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Group in the report, such as `processor`, `pages`, `counters`.
    pub group: String,
    /// Stable key, such as `thp`, `perf_event_paranoid`, `msr`.
    pub key: String,
    /// Value as text for the reader, or why it is unknown.
    pub value: crate::Outcome<String>,
    /// The value for programs, if it has structure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// A capability of membound and the method used for it on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capability {
    /// Name, such as `latency`, `huge pages`, `prefetcher control`.
    pub what: String,
    /// How well the capability works on this machine.
    pub state: CapabilityState,
    /// Method used on this machine, in a sentence.
    pub how: String,
    /// What to enable for a better method, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<String>,
}

named! {
    /// How well a capability works on a machine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CapabilityState {
        /// With the best method.
        Full = "full",
        /// With a fallback method.
        Reduced = "reduced",
        /// Not available.
        Absent = "absent",
    }
}

/// Document of `membound doctor --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Doctor {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Doctor`].
    pub kind: Kind,
    /// Host, CPU, declared caches, timer and conditions.
    #[serde(flatten)]
    pub machine: MachineInfo,
    /// All examined properties.
    pub findings: Vec<Finding>,
    /// Capabilities of membound on this machine.
    pub capabilities: Vec<Capability>,
}
