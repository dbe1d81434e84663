//! The kernel's PMUs, by their use for membound.

use crate::Root;

pub(super) const DEVICES: &str = "sys/bus/event_source/devices";

/// What a PMU counts or samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmuKind {
    /// Events of a core.
    Core,
    /// AMD instruction-based sampling of operations: addresses and latencies of loads.
    IbsOp,
    /// AMD instruction-based sampling of fetches.
    IbsFetch,
    /// Arm statistical profiling: addresses and latencies of loads.
    Spe,
    /// Memory controllers, fabric and last-level cache, shared by many cores.
    Uncore,
    /// Events that the kernel itself makes: clocks, faults, breakpoints, tracepoints.
    Kernel,
    /// Any other PMU.
    Other,
}

/// One performance monitoring unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Its name under `/sys/bus/event_source/devices`.
    pub name: String,
    /// What it counts or samples.
    pub kind: PmuKind,
    /// Its type number for `perf_event_open`.
    pub type_number: Option<u32>,
    /// The names of its events.
    pub events: Vec<String>,
}

/// All PMUs, by name.
#[must_use]
pub fn pmus(root: &Root) -> Vec<Pmu> {
    root.names(DEVICES)
        .into_iter()
        .map(|name| Pmu {
            kind: kind(&name),
            type_number: root.number(format!("{DEVICES}/{name}/type")),
            events: root
                .names(format!("{DEVICES}/{name}/events"))
                .into_iter()
                .filter(|event| !event.contains('.'))
                .collect(),
            name,
        })
        .collect()
}

fn kind(name: &str) -> PmuKind {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name {
        "cpu" | "cpu_core" | "cpu_atom" | "cpu_lowpower" => PmuKind::Core,
        "ibs_op" => PmuKind::IbsOp,
        "ibs_fetch" => PmuKind::IbsFetch,
        "software" | "breakpoint" | "tracepoint" | "kprobe" | "uprobe" => PmuKind::Kernel,
        _ if begins(&["armv8_", "armv9_", "apple_"]) => PmuKind::Core,
        _ if begins(&["arm_spe_"]) => PmuKind::Spe,
        _ if begins(&[
            "uncore_", "amd_df", "amd_l3", "amd_umc", "arm_cmn", "arm_dsu", "hisi_", "nest_",
            "hv_24x7",
        ]) =>
        {
            PmuKind::Uncore
        }
        _ => PmuKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn kinds_by_name() {
        let tree = Tree::new()
            .file(&format!("{DEVICES}/cpu/type"), "4\n")
            .file(
                &format!("{DEVICES}/cpu/events/mem-loads"),
                "event=0xcd,umask=0x1,ldlat=3\n",
            )
            .file(&format!("{DEVICES}/cpu/events/slots.scale"), "1\n")
            .file(&format!("{DEVICES}/ibs_op/type"), "11\n")
            .dir(&format!("{DEVICES}/arm_spe_0"))
            .dir(&format!("{DEVICES}/uncore_imc_0"))
            .dir(&format!("{DEVICES}/software"))
            .dir(&format!("{DEVICES}/msr"));
        let found: Vec<_> = pmus(&tree.root())
            .into_iter()
            .map(|pmu| (pmu.name, pmu.kind, pmu.type_number, pmu.events.len()))
            .collect();
        let expect = |name: &str, kind, number, events| (name.to_owned(), kind, number, events);
        assert_eq!(
            found,
            [
                expect("arm_spe_0", PmuKind::Spe, None, 0),
                expect("cpu", PmuKind::Core, Some(4), 1),
                expect("ibs_op", PmuKind::IbsOp, Some(11), 0),
                expect("msr", PmuKind::Other, None, 0),
                expect("software", PmuKind::Kernel, None, 0),
                expect("uncore_imc_0", PmuKind::Uncore, None, 0),
            ]
        );
    }
}
