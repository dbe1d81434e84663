//! The machine and the conditions of a run, as every document carries them.

use std::collections::BTreeMap;

use membound_types::{Conditions, Cpu, CpuId, MachineInfo, Timer};

use crate::{Root, affinity, caches, cpu, date, frequency, hypervisor, memory, pages, prefetcher};

/// Reads everything about the machine that a document carries; `timer` comes from the code that
/// calibrated it, `labels` from the user.
#[must_use]
pub fn machine_info(root: &Root, timer: Timer, labels: BTreeMap<String, String>) -> MachineInfo {
    let processor = cpu::read(root);
    let here = measuring_cpu(root, &processor);
    MachineInfo {
        host: root
            .attribute("proc/sys/kernel/hostname")
            .unwrap_or_else(|| "unknown".to_owned()),
        date: date::now_utc(),
        membound_version: env!("CARGO_PKG_VERSION").to_owned(),
        caches: caches::kinds(&caches::read(root)),
        memory_bytes: memory::total_bytes(root),
        timer,
        conditions: conditions(root, &processor, here, labels),
        cpu: processor,
    }
}

/// The CPU whose governor and boost represent the run: the calling thread's on the machine itself,
/// else the first that is allowed.
pub(crate) fn measuring_cpu(root: &Root, processor: &Cpu) -> CpuId {
    if root.is_system() {
        return affinity::current_cpu();
    }
    processor.allowed.first().copied().unwrap_or(CpuId(0))
}

fn conditions(
    root: &Root,
    processor: &Cpu,
    here: CpuId,
    labels: BTreeMap<String, String>,
) -> Conditions {
    Conditions {
        thp: pages::Thp::read(root).enabled,
        governor: frequency::governor(root, here),
        turbo: frequency::turbo(root, here),
        hypervisor: hypervisor::name(root),
        prefetchers: prefetcher::states(root, processor, here),
        kernel: root
            .attribute("proc/sys/kernel/osrelease")
            .unwrap_or_else(|| "unknown".to_owned()),
        labels,
    }
}
