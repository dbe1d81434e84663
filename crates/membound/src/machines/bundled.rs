//! Machines that come with membound, for estimates of how long a program would wait there.
//!
//! Each is a machine profile that holds only levels, line size and bandwidth of memory. Its label `figures`
//! names the source: `membound measure`, or a publication.

use anyhow::Context;
use membound_types::MachineProfile;

/// Names and documents of the machines.
const MACHINES: [(&str, &str); 6] = [
    (
        "amd-zen4-guest",
        include_str!("../../machines/amd-zen4-guest.json"),
    ),
    (
        "amd-zen5-guest",
        include_str!("../../machines/amd-zen5-guest.json"),
    ),
    (
        "intel-emerald-rapids-guest",
        include_str!("../../machines/intel-emerald-rapids-guest.json"),
    ),
    (
        "intel-knl-ddr",
        include_str!("../../machines/intel-knl-ddr.json"),
    ),
    (
        "intel-knl-mcdram",
        include_str!("../../machines/intel-knl-mcdram.json"),
    ),
    (
        "sgi-origin2000",
        include_str!("../../machines/sgi-origin2000.json"),
    ),
];

/// The names, separated by commas.
pub(crate) fn names() -> String {
    MACHINES.map(|(name, _)| name).join(", ")
}

/// The profile of a machine, and its name with the source of its figures; `None` for an unknown name.
pub(crate) fn bundled(name: &str) -> Option<anyhow::Result<(String, MachineProfile)>> {
    let (name, text) = MACHINES.iter().find(|(known, _)| *known == name)?;
    let read = serde_json::from_str::<MachineProfile>(text)
        .with_context(|| format!("the bundled machine {name} cannot be read"));
    Some(read.map(|profile| {
        let figures = profile.machine.conditions.labels.get("figures");
        let label = match figures {
            Some(figures) => format!("{name} ({figures})"),
            None => (*name).to_owned(),
        };
        (label, profile)
    }))
}

#[cfg(test)]
mod tests {
    use membound_types::LevelKind;

    use super::*;

    #[test]
    fn every_machine_has_levels_bandwidth_and_a_source() {
        let mut published = 0;
        for (name, _) in MACHINES {
            let (label, profile) = bundled(name).expect(name).expect(name);
            let is_published = label.contains("published figures");
            let is_measured = label.contains("measured by membound measure");
            assert!(is_published != is_measured, "{label}");
            published += usize::from(is_published);
            if is_published {
                has_sources(name, &profile);
            }
            let memory = profile.levels.last().expect(name);
            assert_eq!(memory.kind, LevelKind::Memory, "{name}");
            let latencies = profile.levels.iter().map(|level| level.latency_ns);
            assert!(latencies.is_sorted(), "{name}");
            assert!(profile.line.known().is_some(), "{name}");
            let bandwidth = profile.bandwidth.known().expect(name);
            assert!(!bandwidth.points.is_empty(), "{name}");
        }
        assert_eq!(published, 3);
        assert!(bundled("no-such-machine").is_none());
    }

    /// Every figure that was not measured names where it was published.
    fn has_sources(name: &str, profile: &MachineProfile) {
        let labels = &profile.machine.conditions.labels;
        for figure in [
            "caches",
            "clock",
            "L1 latency",
            "L2 latency",
            "memory latency",
            "memory bandwidth",
        ] {
            let source = labels.get(&format!("source: {figure}"));
            assert!(source.is_some_and(|it| it.len() > 20), "{name}: {figure}");
        }
        for level in &profile.levels {
            let cycles = level.latency_ns * profile.machine.timer.core_clock_hz * 1e-9;
            assert!(
                (level.latency_cycles / cycles - 1.0).abs() < 0.01,
                "{name}: {} cycles of {}",
                level.latency_cycles,
                level.name
            );
            assert!(level.latency_low_ns <= level.latency_ns, "{name}");
            assert!(level.latency_high_ns >= level.latency_ns, "{name}");
        }
    }
}
