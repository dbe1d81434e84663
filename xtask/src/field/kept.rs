//! Runs of the field, as far as pages need them.

use serde::Deserialize;

use super::session::Row;

/// A run of the field, as `bench/results` keeps it.
#[derive(Deserialize)]
pub(super) struct Kept {
    pub(super) commit: Option<String>,
    pub(super) machine: Machine,
    pub(super) summary: Summary,
}

impl Kept {
    /// Microarchitecture of the machine's processors, if it is known.
    pub(super) fn microarchitecture(&self) -> Option<&str> {
        self.machine.cpu.microarchitecture.as_deref()
    }
}

#[derive(Deserialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) cpu: Cpu,
}

#[derive(Deserialize)]
pub(super) struct Cpu {
    pub(super) model_name: String,
    #[serde(default)]
    pub(super) microarchitecture: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Summary {
    pub(super) rows: Vec<Row>,
    #[serde(default)]
    pub(super) skipped: Vec<Skipped>,
}

/// An entry that was not run.
#[derive(Clone, Debug, Deserialize, serde::Serialize)]
pub(crate) struct Skipped {
    pub(crate) entry: String,
    pub(crate) reason: String,
}
