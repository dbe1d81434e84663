//! The facts and permissions of this machine, and how each thing will be measured on it.
//!
//! Findings are facts; capabilities follow from them for each thing that membound does: how it will
//! be done here, and what would improve it.

mod capabilities;
mod findings;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use membound_types::{
    Cache, CpuId, Doctor, Kind, MachineInfo, NotMeasured, Outcome, SCHEMA_VERSION, Timer,
};

use crate::counters::{Pmu, breakpoints, hardware_cycles, pmus, software_clock};
use crate::numa::Topology;
use crate::pages::{HugePool, Thp};
use crate::prefetcher::Controls;
use crate::{Root, caches, dimm, machine, machine_info, numa, vmhost};

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

/// Facts that are read once and used by several findings and capabilities.
struct Facts<'a> {
    root: &'a Root,
    machine: &'a MachineInfo,
    /// The CPU that represents the others where CPUs could differ.
    cpu: CpuId,
    caches: Vec<Cache>,
    topology: Topology,
    thp: Thp,
    pools: Vec<HugePool>,
    pmus: Vec<Pmu>,
    controls: Outcome<Vec<String>>,
    slots: Outcome<Vec<dimm::Slot>>,
    virtual_machines: Vec<vmhost::VirtualMachine>,
    probes: Probes,
}

impl Facts<'_> {
    fn is_guest(&self) -> bool {
        self.machine.conditions.hypervisor.is_some()
    }

    fn pool(&self, page_bytes: u64) -> Option<&HugePool> {
        self.pools.iter().find(|pool| pool.page_bytes == page_bytes)
    }
}

/// Facts that only an attempt can show.
#[derive(Clone, Debug)]
struct Probes {
    hardware_cycles: Result<(), NotMeasured>,
    software_clock: Result<(), NotMeasured>,
    /// Number of debug registers.
    breakpoints: Result<u32, NotMeasured>,
    placement: Result<(), NotMeasured>,
}

impl Probes {
    fn tried() -> Self {
        Self {
            hardware_cycles: hardware_cycles(),
            software_clock: software_clock(),
            breakpoints: breakpoints(),
            placement: numa::permitted().map_err(NotMeasured::from),
        }
    }

    /// For a test tree, about which system calls say nothing.
    fn untried() -> Self {
        let reason = NotMeasured {
            reason: "not tried: this is not the running machine".to_owned(),
            remedy: None,
        };
        Self {
            hardware_cycles: Err(reason.clone()),
            software_clock: Err(reason.clone()),
            breakpoints: Err(reason.clone()),
            placement: Err(reason),
        }
    }
}
