//! Identity of this build.

use std::collections::BTreeMap;

use membound_platform::{Root, machine_info};
use membound_types::{MachineInfo, Timer};

/// Version, commit and profile, as shown by `--version`, run files and machine profiles.
pub(crate) const BUILD: &str = env!("MEMBOUND_BUILD");

/// The day of the commit, YYYY-MM-DD; empty if the commit is not known.
pub(crate) const DATE: &str = env!("MEMBOUND_DATE");

/// The machine and its conditions, with the version of this build.
pub(crate) fn machine(root: &Root, timer: Timer, labels: BTreeMap<String, String>) -> MachineInfo {
    MachineInfo {
        membound_version: BUILD.to_owned(),
        ..machine_info(root, timer, labels)
    }
}
