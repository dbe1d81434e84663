//! Which build this is.

use std::collections::BTreeMap;

use membound_platform::{Root, machine_info};
use membound_types::{MachineInfo, Timer};

/// Version, commit and profile, as `--version`, run files and profiles say them.
pub(crate) const BUILD: &str = env!("MEMBOUND_BUILD");

/// The day of the commit, YYYY-MM-DD; empty where the commit is not known.
pub(crate) const DATE: &str = env!("MEMBOUND_DATE");

/// The machine and its conditions, written by this build.
pub(crate) fn machine(root: &Root, timer: Timer, labels: BTreeMap<String, String>) -> MachineInfo {
    MachineInfo {
        membound_version: BUILD.to_owned(),
        ..machine_info(root, timer, labels)
    }
}
