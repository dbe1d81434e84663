//! The facts and permissions of this machine, and how each thing will be measured on it.
//!
//! Findings are facts; capabilities follow from them for each thing that membound does: how it will
//! be done here, and what would improve it.

mod capabilities;
mod facts;
mod findings;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use membound_types::{Doctor, Kind, SCHEMA_VERSION, Timer};

use facts::{Facts, Probes};

use crate::counters::pmus;
use crate::numa::Topology;
use crate::pages::{HugePool, Thp};
use crate::prefetcher::Controls;
use crate::{Root, caches, dimm, machine, machine_info, vmhost};

/// Examines everything. `timer` comes from the code that calibrated it.
///
/// Takes a fraction of a second, most of it for the threads of other processes.
#[must_use]
pub fn examine(root: &Root, timer: Timer) -> Doctor {
    let probes = if root.is_system() {
        Probes::tried()
    } else {
        Probes::untried()
    };
    examine_with(root, timer, probes)
}

fn examine_with(root: &Root, timer: Timer, probes: Probes) -> Doctor {
    let machine = machine_info(root, timer, BTreeMap::new());
    let facts = Facts {
        cpu: machine::measuring_cpu(root, &machine.cpu),
        caches: caches::read(root),
        topology: Topology::read(root),
        thp: Thp::read(root),
        pools: HugePool::read(root),
        pmus: pmus(root),
        controls: Controls::detect(root, &machine.cpu)
            .map(|controls| controls.names().into_iter().map(str::to_owned).collect()),
        slots: dimm::slots(root),
        virtual_machines: vmhost::virtual_machines(root),
        machine: &machine,
        probes,
        root,
    };
    let findings = findings::all(&facts);
    let capabilities = capabilities::all(&facts);
    Doctor {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Doctor,
        findings,
        capabilities,
        machine,
    }
}
