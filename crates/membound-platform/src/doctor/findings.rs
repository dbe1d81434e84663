//! The facts, group by group, in the order in which they are shown.

mod finding;
mod hardware;

use finding::{known, missing, outcome};
use hardware::{caches, memory_group, page_group, processor};
use membound_types::{Finding, Outcome, Timer};
use serde_json::{Value, json};

use super::facts::Facts;
use super::words::{count, percent, rate, short};
use crate::counters::{PmuKind, paranoid};
use crate::vmhost::VirtualMachine;
use crate::{cgroup, frequency, hypervisor, list, msr};

/// Makes the findings of one group from the facts.
type Group = fn(&Facts<'_>) -> Vec<Finding>;

/// All findings.
pub(super) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let groups: [(&str, Group); 9] = [
        ("processor", processor),
        ("caches as declared", caches),
        ("memory", memory_group),
        ("pages", page_group),
        ("clocks", clocks),
        ("virtualisation", virtualisation),
        ("permissions", permissions),
        ("counters", counters),
        ("prefetchers", prefetchers),
    ];
    let mut found = Vec::new();
    for (name, group) in groups {
        found.extend(group(facts).into_iter().map(|finding| Finding {
            group: name.to_owned(),
            ..finding
        }));
    }
    found
}

fn clocks(facts: &Facts<'_>) -> Vec<Finding> {
    let timer = &facts.machine.timer;
    let conditions = &facts.machine.conditions;
    let turbo = conditions.turbo.clone();
    let mut found = vec![
        if timer.rate_hz > 0.0 {
            calibrated_timer(timer)
        } else {
            outcome("timer", Outcome::missing("not calibrated"))
        },
        if timer.core_clock_hz > 0.0 {
            known(
                "core_clock",
                format!("{} by a chain of dependent adds", rate(timer.core_clock_hz)),
                json!(timer.core_clock_hz),
            )
        } else {
            outcome("core_clock", Outcome::missing("not calibrated"))
        },
        outcome("clocksource", clock_source(facts)),
        outcome("governor", conditions.governor.clone()),
        outcome(
            "turbo",
            turbo.map(|on| if on { "on" } else { "off" }.to_owned()),
        ),
    ];
    found.extend(declared_clock(facts));
    found.push(idle_states(facts));
    found
}

fn calibrated_timer(timer: &Timer) -> Finding {
    let quantum_ns = timer.quantum_ticks as f64 / timer.rate_hz * 1e9;
    known(
        "timer",
        format!(
            "{} at {}, in steps of {} ({} ns), {} ns for two readings, {}",
            timer.name,
            rate(timer.rate_hz),
            count(
                usize::try_from(timer.quantum_ticks).unwrap_or(usize::MAX),
                "tick"
            ),
            short(quantum_ns),
            short(timer.overhead_ns),
            if timer.invariant {
                "invariant"
            } else {
                "not declared invariant"
            },
        ),
        json!(timer),
    )
}

/// The kernel's clock source, with all that it could use.
fn clock_source(facts: &Facts<'_>) -> Outcome<String> {
    let attribute = |name: &str| {
        let directory = "sys/devices/system/clocksource/clocksource0";
        facts.root.attribute(format!("{directory}/{name}"))
    };
    let Some(current) = attribute("current_clocksource") else {
        return Outcome::missing("the kernel does not tell its clock source");
    };
    Outcome::Known(match attribute("available_clocksource") {
        Some(available) if available != current => {
            let available: Vec<&str> = available.split_whitespace().collect();
            format!("{current} (of {})", available.join(", "))
        }
        _ => current,
    })
}

/// The frequencies that the kernel declares, if any.
fn declared_clock(facts: &Facts<'_>) -> Option<Finding> {
    let clock = frequency::clock(facts.root, facts.cpu);
    let parts: Vec<String> = [
        ("nominal", clock.nominal_hz),
        ("highest", clock.max_hz),
        ("now", clock.current_hz),
    ]
    .into_iter()
    .filter_map(|(name, hz)| Some(format!("{name} {}", rate(hz? as f64))))
    .collect();
    (!parts.is_empty()).then(|| {
        known(
            "declared_clock",
            parts.join(", "),
            json!({"nominal_hz": clock.nominal_hz, "max_hz": clock.max_hz, "current_hz": clock.current_hz}),
        )
    })
}

fn idle_states(facts: &Facts<'_>) -> Finding {
    let states = frequency::idle_states(facts.root, facts.cpu);
    if states.is_empty() {
        return outcome(
            "idle_states",
            Outcome::missing("the kernel manages no idle states here"),
        );
    }
    let names: Vec<String> = states
        .iter()
        .map(|state| {
            let off = if state.disabled { ", off" } else { "" };
            format!("{} ({} µs{off})", state.name, state.latency_us)
        })
        .collect();
    known("idle_states", names.join(", "), Value::Null)
}

fn virtualisation(facts: &Facts<'_>) -> Vec<Finding> {
    let name = facts.machine.conditions.hypervisor.clone();
    let mut found = vec![known(
        "hypervisor",
        name.clone()
            .unwrap_or_else(|| "none: bare metal, as far as can be seen".to_owned()),
        json!(name),
    )];
    if let Some(container) = hypervisor::container(facts.root) {
        found.push(known("container", container, Value::Null));
    }
    if let Some(cpus) = cgroup::cpu_quota(facts.root) {
        found.push(known(
            "cpu_quota",
            format!(
                "this process's cgroup may use {} of a CPU's time",
                percent(cpus)
            ),
            json!(cpus),
        ));
    }
    if facts.is_guest() {
        found.push(known(
            "nested_paging",
            "a TLB miss walks the guest's page tables and, for each of their entries, the \
             host's: huge pages on the host count as much as those here",
            Value::Null,
        ));
    }
    let host_switch = [
        ("sys/module/kvm_intel/parameters/ept", "EPT"),
        ("sys/module/kvm_amd/parameters/npt", "NPT"),
    ];
    for (file, name) in host_switch {
        if let Some(state) = facts.root.attribute(file) {
            let on = matches!(state.as_str(), "Y" | "1");
            found.push(known(
                "kvm",
                format!(
                    "this machine can be a host; {name} is {}",
                    if on { "on" } else { "off" }
                ),
                Value::Null,
            ));
        }
    }
    found.extend(facts.virtual_machines.iter().map(virtual_machine));
    if facts.virtual_machines.is_empty() {
        found.push(known(
            "virtual_machines",
            "none that this user can see run here",
            Value::Null,
        ));
    }
    found
}

fn virtual_machine(machine: &VirtualMachine) -> Finding {
    let threads: Vec<Value> = machine
        .threads
        .iter()
        .map(|thread| {
            json!({
                "tid": thread.tid, "name": thread.name, "vcpu": thread.is_vcpu,
                "allowed": thread.allowed,
            })
        })
        .collect();
    let vcpus: Vec<String> = machine
        .threads
        .iter()
        .filter(|thread| thread.is_vcpu)
        .map(|thread| format!("{} on {}", thread.name, list::show_cpus(&thread.allowed)))
        .collect();
    let mut text = format!(
        "{}, {}: {}",
        machine.name,
        count(machine.threads.len(), "thread"),
        machine.placement.advice()
    );
    if !vcpus.is_empty() {
        text.push_str(&format!(" ({})", vcpus.join("; ")));
    }
    known(&format!("vm_{}", machine.pid), text, json!(threads))
}

fn permissions(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = vec![match paranoid(facts.root) {
        Some(level) => known(
            "perf_event_paranoid",
            match level {
                ..=-1 => format!("{level}: everything is permitted"),
                0 => "0: CPU-wide events too, no raw tracepoints".to_owned(),
                1 => "1: own threads, with the kernel's part".to_owned(),
                2 => "2: own threads, user mode".to_owned(),
                _ => format!("{level}: nothing without CAP_PERFMON"),
            },
            json!(level),
        ),
        None => outcome(
            "perf_event_paranoid",
            Outcome::missing("the kernel has no perf events"),
        ),
    }];
    let status = facts.root.read("proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok())
    };
    found.push(match field("Seccomp:") {
        Some(0) => known("seccomp", "off", json!(0)),
        Some(mode) => {
            let filters = field("Seccomp_filters:").map_or_else(String::new, |number| {
                format!(", {}", count(number as usize, "filter"))
            });
            let name = if mode == 1 { "strict" } else { "on" };
            known("seccomp", format!("{name}{filters}"), json!(mode))
        }
        None => outcome("seccomp", Outcome::missing("the kernel does not tell")),
    });
    if facts.machine.cpu.architecture == "x86_64" {
        let access = msr::MsrFiles::new(facts.root).access(facts.cpu);
        found.push(match access {
            Ok(()) => known("msr", "registers can be read and written", Value::Null),
            Err(reason) => missing("msr", reason),
        });
    }
    found.push(match &facts.probes.placement {
        Ok(()) => known("memory_placement", "permitted", Value::Null),
        Err(reason) => missing("memory_placement", reason.clone()),
    });
    found
}

fn counters(facts: &Facts<'_>) -> Vec<Finding> {
    let of_kind = |kind: PmuKind| -> Vec<&str> {
        facts
            .pmus
            .iter()
            .filter(|pmu| pmu.kind == kind)
            .map(|pmu| pmu.name.as_str())
            .collect()
    };
    let mut found = Vec::new();
    for (key, kind, what) in [
        ("core_pmu", PmuKind::Core, "core PMU"),
        ("ibs", PmuKind::IbsOp, "AMD instruction-based sampling"),
        ("spe", PmuKind::Spe, "Arm statistical profiling"),
        (
            "uncore",
            PmuKind::Uncore,
            "memory-controller or fabric counters",
        ),
    ] {
        let names = of_kind(kind);
        // The absence of another vendor's feature is not worth showing.
        let foreign = match kind {
            PmuKind::IbsOp => facts.machine.cpu.vendor != "AuthenticAMD",
            PmuKind::Spe => facts.machine.cpu.architecture != "aarch64",
            _ => false,
        };
        if names.is_empty() && foreign {
            continue;
        }
        found.push(if names.is_empty() {
            outcome(key, Outcome::missing(format!("the kernel shows no {what}")))
        } else {
            let mut shown = names.iter().take(6).copied().collect::<Vec<_>>().join(", ");
            if names.len() > 6 {
                shown.push_str(&format!(", … ({} in all)", names.len()));
            }
            known(key, shown, json!(names))
        });
    }
    found.push(match &facts.probes.hardware_cycles {
        Ok(()) => known("hardware_cycles", "can be counted", Value::Null),
        Err(reason) => missing("hardware_cycles", reason.clone()),
    });
    found.push(match &facts.probes.software_clock {
        Ok(()) => known("cpu_clock", "samples without a PMU", Value::Null),
        Err(reason) => missing("cpu_clock", reason.clone()),
    });
    found.push(match &facts.probes.breakpoints {
        Ok(number) => known(
            "debug_registers",
            format!("{} for watching data", count(*number as usize, "register")),
            json!(number),
        ),
        Err(reason) => missing("debug_registers", reason.clone()),
    });
    found
}

fn prefetchers(facts: &Facts<'_>) -> Vec<Finding> {
    let control = outcome(
        "prefetcher_control",
        facts
            .controls
            .clone()
            .map(|names| format!("can switch {}", names.join(", "))),
    );
    let states = facts.machine.conditions.prefetchers.clone();
    let told_already =
        states.known().is_none() && states.why_missing() == control.value.why_missing();
    let mut found = vec![control];
    if !told_already {
        found.push(Finding {
            group: String::new(),
            key: "prefetcher_state".to_owned(),
            detail: states.known().map(|states| json!(states)),
            value: states.map(|states| {
                let states: Vec<String> = states
                    .iter()
                    .map(|(name, on)| format!("{name} {}", if *on { "on" } else { "off" }))
                    .collect();
                states.join(", ")
            }),
        });
    }
    found
}
