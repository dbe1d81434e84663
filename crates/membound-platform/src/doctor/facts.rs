//! Facts that several findings and capabilities use.

use membound_types::{Cache, CpuId, MachineInfo, NotMeasured, Outcome};

use crate::counters::{Pmu, breakpoints, hardware_cycles, software_clock};
use crate::numa::Topology;
use crate::pages::{HugePool, Thp};
use crate::{Root, dimm, numa, vmhost};

/// Facts that are read once and used by several findings and capabilities.
pub(super) struct Facts<'a> {
    pub(super) root: &'a Root,
    pub(super) machine: &'a MachineInfo,
    /// The CPU that represents the others where CPUs could differ.
    pub(super) cpu: CpuId,
    pub(super) caches: Vec<Cache>,
    pub(super) topology: Topology,
    pub(super) thp: Thp,
    pub(super) pools: Vec<HugePool>,
    pub(super) pmus: Vec<Pmu>,
    pub(super) controls: Outcome<Vec<String>>,
    pub(super) slots: Outcome<Vec<dimm::Slot>>,
    pub(super) virtual_machines: Vec<vmhost::VirtualMachine>,
    pub(super) probes: Probes,
}

impl Facts<'_> {
    pub(super) fn is_guest(&self) -> bool {
        self.machine.conditions.hypervisor.is_some()
    }

    pub(super) fn pool(&self, page_bytes: u64) -> Option<&HugePool> {
        self.pools.iter().find(|pool| pool.page_bytes == page_bytes)
    }
}

/// Facts that only an attempt can show.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    pub(super) hardware_cycles: Result<(), NotMeasured>,
    pub(super) software_clock: Result<(), NotMeasured>,
    /// Number of debug registers.
    pub(super) breakpoints: Result<u32, NotMeasured>,
    pub(super) placement: Result<(), NotMeasured>,
}

impl Probes {
    pub(super) fn tried() -> Self {
        Self {
            hardware_cycles: hardware_cycles(),
            software_clock: software_clock(),
            breakpoints: breakpoints(),
            placement: numa::permitted().map_err(NotMeasured::from),
        }
    }

    /// For a test tree, about which system calls say nothing.
    pub(super) fn untried() -> Self {
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
