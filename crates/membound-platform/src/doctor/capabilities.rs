//! How membound does each thing on this machine, and what would improve it.

use membound_types::{Capability, CapabilityState, NotMeasured, ThpState};

use super::facts::Facts;
use super::words::{count, percent, size};
use crate::vmhost::Placement;
use crate::{cgroup, list};

use CapabilityState::{Absent, Full, Reduced};

const MIB2: u64 = 2 << 20;
const GIB1: u64 = 1 << 30;

/// Judges one capability by the facts.
type Judge = fn(&Facts<'_>) -> Capability;

/// All capabilities.
pub(super) fn all(facts: &Facts<'_>) -> Vec<Capability> {
    let capabilities: [(&str, Judge); 17] = [
        ("timing", timing),
        ("steadiness", steadiness),
        ("latency", latency),
        ("4k pages", |_| {
            full("base pages, with huge pages refused for the buffer")
        }),
        ("thp pages", transparent),
        ("2m pages", |facts| pool(facts, MIB2)),
        ("1g pages", |facts| pool(facts, GIB1)),
        ("mlp", mlp),
        ("misses per access", misses),
        ("window", |_| {
            full("user and system time of whole sweeps, as in Seidl's program")
        }),
        ("bandwidth", bandwidth),
        ("loaded", loaded),
        ("tlb", tlb),
        ("prefetch", prefetch),
        ("numa", numa),
        ("c2c", core_to_core),
        ("smt copies", copies),
    ];
    let named = |(what, of): (&str, Judge)| Capability {
        what: what.to_owned(),
        ..of(facts)
    };
    capabilities.map(named).to_vec()
}

/// A capability whose name the caller adds.
fn capability(
    state: CapabilityState,
    how: impl Into<String>,
    better: Option<String>,
) -> Capability {
    Capability {
        what: String::new(),
        state,
        how: how.into(),
        better,
    }
}

fn full(how: impl Into<String>) -> Capability {
    capability(Full, how, None)
}

fn reduced(how: impl Into<String>) -> Capability {
    capability(Reduced, how, None)
}

fn absent(how: impl Into<String>) -> Capability {
    capability(Absent, how, None)
}

/// The reason as part of a sentence, and the remedy.
fn because(reason: &NotMeasured) -> (String, Option<String>) {
    (reason.reason.clone(), reason.remedy.clone())
}

fn timing(facts: &Facts<'_>) -> Capability {
    let timer = &facts.machine.timer;
    if timer.rate_hz <= 0.0 {
        return reduced("the timer has not been calibrated");
    }
    let quantum_us = timer.quantum_ticks as f64 / timer.rate_hz * 1e6;
    let batch = format!(
        "{} in batches of at least {} µs, a thousand of its steps",
        timer.name,
        (quantum_us * 1000.0).ceil()
    );
    if timer.name.starts_with("clock_") {
        return capability(
            Reduced,
            batch,
            Some("a processor whose counter user programs may read".to_owned()),
        );
    }
    if !timer.invariant {
        return reduced(format!(
            "{batch}; its rate is checked against the clock, because nothing declares it constant"
        ));
    }
    full(batch)
}

/// Whether figures stay the same from one batch to the next on this machine.
fn steadiness(facts: &Facts<'_>) -> Capability {
    let conditions = &facts.machine.conditions;
    let mut how = "switches and migrations".to_owned();
    if facts.is_guest() {
        how.push_str(", time stolen by the hypervisor");
    }
    how.push_str(
        " and changes of the core clock are looked for in every batch, and the batch is repeated",
    );
    let mut better = Vec::new();
    if let Some(governor) = conditions.governor.known()
        && governor != "performance"
    {
        better.push(format!(
            "the governor is {governor}: as root: cpupower frequency-set -g performance"
        ));
    }
    if let Some(cpus) = cgroup::cpu_quota(facts.root)
        && cpus < facts.machine.cpu.allowed.len() as f64
    {
        better.push(format!(
            "the cgroup stops this process when it has used {} of a CPU: lift the quota (docker \
             --cpus)",
            percent(cpus)
        ));
    }
    let moving = facts
        .virtual_machines
        .iter()
        .filter(|machine| matches!(machine.placement, Placement::Migrating | Placement::Shared))
        .count();
    if moving > 0 {
        better.push(format!(
            "pin the virtual CPUs of {} to CPUs of their own on one socket",
            count(moving, "virtual machine")
        ));
    }
    if facts.is_guest() {
        better.push(
            "on the host: pin each virtual CPU of this guest to a CPU of its own on one socket"
                .to_owned(),
        );
    }
    let state = if better.is_empty() { Full } else { Reduced };
    let better = (!better.is_empty()).then(|| better.join("; "));
    capability(state, how, better)
}

/// Whether the measuring crate emits kernels for this processor.
fn emits(facts: &Facts<'_>) -> bool {
    ["x86_64", "aarch64"].contains(&facts.machine.cpu.architecture.as_str())
}

fn latency(facts: &Facts<'_>) -> Capability {
    let allowed = facts.machine.cpu.allowed.len();
    if emits(facts) {
        return full(format!(
            "emitted chains of dependent loads on {}",
            count(allowed, "CPU")
        ));
    }
    reduced("compiled chains of dependent loads: kernels are emitted on x86-64 and aarch64 only")
}

fn transparent(facts: &Facts<'_>) -> Capability {
    let enable = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    match facts.thp.enabled.known() {
        Some(ThpState::Never) => capability(
            Absent,
            "transparent huge pages are off",
            Some(enable.to_owned()),
        ),
        Some(_) => {
            let bytes = facts
                .thp
                .huge_bytes
                .map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
            full(format!(
                "asked for with madvise, pages{bytes}, verified in smaps"
            ))
        }
        None => {
            let (how, better) = facts
                .thp
                .enabled
                .why_missing()
                .map_or_else(Default::default, because);
            capability(Absent, how, better)
        }
    }
}

fn pool(facts: &Facts<'_>, page_bytes: u64) -> Capability {
    match facts.pool(page_bytes) {
        Some(pool) if pool.usable() > 0 => full(format!(
            "from the hugetlb pool: up to {}",
            size(pool.usable().saturating_mul(page_bytes))
        )),
        Some(_) => {
            let kib = page_bytes >> 10;
            let wanted = if page_bytes == MIB2 { 576 } else { 1 };
            capability(
                Absent,
                "the hugetlb pool is empty",
                Some(format!(
                    "as root: echo {wanted} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"
                )),
            )
        }
        None => absent(format!(
            "the kernel has no pool of pages of {}",
            size(page_bytes)
        )),
    }
}

fn mlp(facts: &Facts<'_>) -> Capability {
    if !emits(facts) {
        return absent("its kernels are emitted on x86-64 and aarch64 only");
    }
    let fence = if facts.machine.cpu.architecture == "aarch64" {
        "dsb and isb as the fence"
    } else if facts.is_guest() {
        "lfence as the fence, because cpuid traps to the hypervisor here"
    } else {
        "lfence or cpuid as the fence"
    };
    full(format!("emitted kernels with {fence}"))
}

fn misses(facts: &Facts<'_>) -> Capability {
    match &facts.probes.hardware_cycles {
        Ok(()) => full("counted by the core's PMU in addition to the times"),
        Err(reason) => {
            let (how, better) = because(reason);
            capability(Absent, how, better)
        }
    }
}

fn bandwidth(facts: &Facts<'_>) -> Capability {
    let cpus = count(facts.machine.cpu.allowed.len(), "CPU");
    let how = format!("read, write, copy and triad on 1 to {cpus}, by time and bytes");
    let empty = facts.slots.known().map_or(0, |slots| {
        slots.iter().filter(|slot| slot.module.is_none()).count()
    });
    let better = (empty > 0).then(|| {
        let slots = if empty == 1 { "slot is" } else { "slots are" };
        format!("{empty} memory {slots} empty: a channel without a module lowers the maximum")
    });
    capability(Full, how, better)
}

fn loaded(facts: &Facts<'_>) -> Capability {
    let cpus = facts.machine.cpu.allowed.len();
    if cpus < 2 {
        return one_cpu();
    }
    full(format!(
        "a chase on one CPU under stepped traffic from {}",
        count(cpus - 1, "other CPU")
    ))
}

fn one_cpu() -> Capability {
    capability(
        Absent,
        "this process may run on one CPU only, and it takes two",
        Some("start membound with a wider affinity (taskset) or cpuset".to_owned()),
    )
}

fn tlb(facts: &Facts<'_>) -> Capability {
    let mut how = "reach and cost from chases with one line on each page".to_owned();
    if facts.is_guest() {
        how.push_str("; the cost includes the host's part of the page walk");
    }
    full(how)
}

fn prefetch(facts: &Facts<'_>) -> Capability {
    let curves = "which patterns are prefetched, from curves";
    match facts.controls.why_missing() {
        None => full(format!(
            "{curves}; and with each prefetcher off, put back by a guard process"
        )),
        Some(reason) => {
            let (why, better) = because(reason);
            capability(Reduced, format!("{curves} alone: {why}"), better)
        }
    }
}

fn numa(facts: &Facts<'_>) -> Capability {
    let memory = facts.topology.memory_nodes();
    if facts.topology.nodes.len() < 2 {
        return absent("one node: there is nothing to compare");
    }
    let bare: Vec<u32> = facts
        .topology
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|id| !memory.contains(id))
        .map(|id| id.0)
        .collect();
    let mut how = format!(
        "CPUs of each node against the memory of nodes {}, verified page by page",
        list::show_nodes(&memory)
    );
    if !bare.is_empty() {
        how.push_str(&format!("; no memory on {}", list::show(bare)));
    }
    match &facts.probes.placement {
        Ok(()) => full(how),
        Err(reason) => {
            let (why, better) = because(reason);
            capability(Absent, why, better)
        }
    }
}

fn core_to_core(facts: &Facts<'_>) -> Capability {
    let cpus = facts.machine.cpu.allowed.len();
    if cpus < 2 {
        return one_cpu();
    }
    full(format!(
        "a line handed to and fro in {} of CPUs",
        count(cpus * (cpus - 1) / 2, "pair")
    ))
}

fn copies(facts: &Facts<'_>) -> Capability {
    let cpu = &facts.machine.cpu;
    if cpu.smt_siblings.is_empty() {
        let how = if facts.is_guest() {
            "the hypervisor shows no siblings: copies run one a virtual CPU, which may share a core"
        } else {
            "no two CPUs share a core: copies run one a core"
        };
        return absent(how);
    }
    let usable = cpu
        .smt_siblings
        .iter()
        .filter(|group| {
            group
                .iter()
                .filter(|sibling| cpu.allowed.contains(sibling))
                .count()
                > 1
        })
        .count();
    if usable == 0 {
        return capability(
            Absent,
            "this process may use one CPU of each core only",
            Some("start membound with a wider affinity (taskset) or cpuset".to_owned()),
        );
    }
    full(format!(
        "copies one a core, or two on {}",
        count(usable, "core")
    ))
}
