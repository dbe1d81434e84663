//! The hardware: processor, caches, memory and pages.

use std::collections::BTreeMap;

use membound_types::{CacheKind, Finding, Outcome};
use serde_json::{Value, json};

use super::finding::{known, outcome};
use crate::doctor::facts::Facts;
use crate::doctor::words::{count, short, size};
use crate::{dimm, list, memory, pages};

pub(super) fn processor(facts: &Facts<'_>) -> Vec<Finding> {
    let cpu = &facts.machine.cpu;
    let mut name = match (cpu.vendor.as_str(), cpu.model_name.as_str()) {
        ("", "") => "unknown".to_owned(),
        (vendor, "") => vendor.to_owned(),
        (_, model) => model.to_owned(),
    };
    if let (Some(family), Some(model)) = (cpu.family, cpu.model) {
        name.push_str(&format!(" (family {family:#x}, model {model:#x})"));
    }
    let mut found = vec![known("cpu", name, Value::Null)];
    found.push(outcome(
        "microarchitecture",
        match &cpu.microarchitecture {
            Some(name) => Outcome::Known(name.clone()),
            None => Outcome::missing("not in the table of known families and models"),
        },
    ));
    found.push(match cpu.published_rob {
        Some(entries) => known(
            "reorder_buffer",
            format!("{entries} entries, as published"),
            json!(entries),
        ),
        None => outcome(
            "reorder_buffer",
            Outcome::missing("no published figure is known; `measure mlp` finds it"),
        ),
    });
    let online = list::show_cpus(&cpu.online);
    let mut cpus = format!("{} online ({online})", cpu.online.len());
    if cpu.allowed != cpu.online {
        cpus.push_str(&format!(
            ", this process may use {}",
            list::show_cpus(&cpu.allowed)
        ));
    }
    found.push(known(
        "cpus",
        cpus,
        json!({"online": cpu.online, "allowed": cpu.allowed}),
    ));
    let smt = if cpu.smt_siblings.is_empty() {
        "no two online CPUs share a core".to_owned()
    } else {
        let groups: Vec<String> = cpu
            .smt_siblings
            .iter()
            .take(4)
            .map(|g| list::show_cpus(g))
            .collect();
        let more = if cpu.smt_siblings.len() > 4 {
            ", …"
        } else {
            ""
        };
        format!(
            "{} with siblings: {}{more}",
            count(cpu.smt_siblings.len(), "core"),
            groups.join("; "),
        )
    };
    found.push(known("smt", smt, json!(cpu.smt_siblings)));
    found
}

pub(super) fn caches(facts: &Facts<'_>) -> Vec<Finding> {
    if facts.machine.caches.is_empty() {
        return vec![outcome(
            "caches",
            Outcome::missing("neither sysfs nor CPUID declares any; `measure` finds them"),
        )];
    }
    facts
        .machine
        .caches
        .iter()
        .map(|cache| {
            let letter = match cache.kind {
                CacheKind::Data => "d",
                CacheKind::Instruction => "i",
                CacheKind::Unified => "",
            };
            let instances = facts
                .caches
                .iter()
                .filter(|other| {
                    (other.level, other.kind, other.size_bytes)
                        == (cache.level, cache.kind, cache.size_bytes)
                })
                .count();
            let mut text = size(cache.size_bytes);
            if let Some(line) = cache.line_bytes {
                text.push_str(&format!(", lines of {line} bytes"));
            }
            if let Some(ways) = cache.ways {
                text.push_str(&format!(", {}", count(ways as usize, "way")));
            }
            text.push_str(&match (instances, cache.shared_by.len()) {
                (_, 0) => String::new(),
                (1, 1) => ", one".to_owned(),
                (1, sharers) => format!(", one, shared by {sharers} CPUs"),
                (_, 1) => format!(", {instances} of them, one for each CPU"),
                (_, sharers) => format!(", {instances} of them, each for {sharers} CPUs"),
            });
            known(&format!("l{}{letter}", cache.level), text, json!(cache))
        })
        .collect()
}

pub(super) fn memory_group(facts: &Facts<'_>) -> Vec<Finding> {
    let available = memory::available_bytes(facts.root);
    let total = facts.machine.memory_bytes;
    let mut found = vec![known(
        "memory",
        format!(
            "{}, of which this process can have {}",
            size(total),
            size(available)
        ),
        json!({"total_bytes": total, "available_bytes": available}),
    )];
    if let Some(left) = memory::cgroup_left(facts.root) {
        found.push(known(
            "cgroup",
            format!("this process's cgroup leaves {}", size(left)),
            json!({"left_bytes": left}),
        ));
    }
    let nodes: Vec<String> = facts
        .topology
        .nodes
        .iter()
        .map(|node| {
            let memory = match node.memory_bytes {
                0 => "no memory".to_owned(),
                bytes => size(bytes),
            };
            format!(
                "node {} {memory}, cpus {}",
                node.id,
                list::show_cpus(&node.cpus)
            )
        })
        .collect();
    let detail: Vec<Value> = facts
        .topology
        .nodes
        .iter()
        .map(|node| {
            json!({
                "node": node.id, "cpus": node.cpus, "memory_bytes": node.memory_bytes,
                "free_bytes": node.free_bytes, "distances": node.distances,
            })
        })
        .collect();
    found.push(known(
        "numa_nodes",
        format!("{}: {}", facts.topology.nodes.len(), nodes.join("; ")),
        json!(detail),
    ));
    found.push(outcome(
        "dimms",
        facts.slots.clone().map(|slots| dimms(&slots)),
    ));
    found
}

fn dimms(slots: &[dimm::Slot]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for module in slots.iter().filter_map(|slot| slot.module.as_ref()) {
        let mut name = module
            .size_bytes
            .map_or_else(|| "unknown size".to_owned(), size);
        name.push_str(&format!(" {}", module.kind));
        match (module.configured_mts, module.rated_mts) {
            (Some(at), Some(rated)) if at < rated => {
                name.push_str(&format!(" at {at} MT/s (made for {rated})"));
            }
            (Some(speed), _) | (None, Some(speed)) => name.push_str(&format!(" at {speed} MT/s")),
            (None, None) => {}
        }
        *kinds.entry(name).or_default() += 1;
    }
    let full: usize = kinds.values().sum();
    let modules: Vec<String> = kinds
        .iter()
        .map(|(kind, number)| format!("{number} × {kind}"))
        .collect();
    let mut text = format!("{full} of {} filled", count(slots.len(), "slot"));
    if !modules.is_empty() {
        text.push_str(&format!(": {}", modules.join(", ")));
    }
    text
}

pub(super) fn page_group(facts: &Facts<'_>) -> Vec<Finding> {
    let base = pages::base_page_bytes() as u64;
    let mut found = vec![known("base_page", size(base), json!(base))];
    let thp = &facts.thp;
    found.push(outcome(
        "thp",
        thp.enabled.clone().map(|state| {
            let mut text = state.to_string();
            if let Some(bytes) = thp.huge_bytes {
                text.push_str(&format!(", pages of {}", size(bytes)));
            }
            if let Some(defrag) = &thp.defrag {
                text.push_str(&format!(", defrag {defrag}"));
            }
            if let Some(shmem) = &thp.shmem {
                text.push_str(&format!(", shared memory {shmem}"));
            }
            text
        }),
    ));
    let daemon = &thp.khugepaged;
    if let (Some(pages), Some(sleep)) = (daemon.pages_to_scan, daemon.scan_sleep_ms) {
        found.push(known(
            "khugepaged",
            format!(
                "looks at {pages} pages every {} s, {}",
                short(sleep as f64 / 1e3),
                if daemon.defrag == Some(false) {
                    "does not defragment"
                } else {
                    "defragments"
                },
            ),
            Value::Null,
        ));
    }
    if !thp.medium_kib.is_empty() {
        let sizes: Vec<String> = thp.medium_kib.iter().map(|kib| size(kib << 10)).collect();
        found.push(known(
            "mthp",
            format!("the kernel may also use pages of {}", sizes.join(", ")),
            json!(thp.medium_kib),
        ));
    }
    for pool in &facts.pools {
        found.push(known(
            &format!("hugetlb_{}k", pool.page_bytes >> 10),
            format!(
                "{} of {} in the pool, {} free",
                count(usize::try_from(pool.total).unwrap_or(usize::MAX), "page"),
                size(pool.page_bytes),
                pool.usable()
            ),
            json!({"page_bytes": pool.page_bytes, "total": pool.total, "free": pool.usable()}),
        ));
    }
    found
}
