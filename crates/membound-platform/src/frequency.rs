//! Core clock policy: governor, boost, nominal frequency, and idle states.

use membound_types::{CpuId, Outcome};

use crate::Root;

const CPUS: &str = "sys/devices/system/cpu";

/// The frequency governor of a CPU.
#[must_use]
pub fn governor(root: &Root, cpu: CpuId) -> Outcome<String> {
    match root.attribute(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")) {
        Some(governor) => Outcome::Known(governor),
        None => Outcome::missing("the kernel controls no core clock here (no cpufreq)"),
    }
}

/// Whether the core clock may rise above its nominal rate.
#[must_use]
pub fn turbo(root: &Root, cpu: CpuId) -> Outcome<bool> {
    if let Some(off) = root.number::<u8>(format!("{CPUS}/intel_pstate/no_turbo")) {
        return Outcome::Known(off == 0);
    }
    for file in [
        format!("{CPUS}/cpu{cpu}/cpufreq/boost"),
        format!("{CPUS}/cpufreq/boost"),
    ] {
        if let Some(on) = root.number::<u8>(file) {
            return Outcome::Known(on != 0);
        }
    }
    Outcome::missing("neither intel_pstate/no_turbo nor cpufreq/boost is there")
}

/// Core clock figures that the machine declares, in hertz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// The nominal rate, without boost.
    pub nominal_hz: Option<u64>,
    /// The highest rate that the policy permits.
    pub max_hz: Option<u64>,
    /// The rate at the time of reading.
    pub current_hz: Option<u64>,
}

/// What cpufreq and `/proc/cpuinfo` declare for a CPU.
#[must_use]
pub fn clock(root: &Root, cpu: CpuId) -> Clock {
    let khz = |name: &str| {
        root.number::<u64>(format!("{CPUS}/cpu{cpu}/cpufreq/{name}"))?
            .checked_mul(1000)
    };
    let cppc = root
        .number::<u64>(format!("{CPUS}/cpu{cpu}/acpi_cppc/nominal_freq"))
        .filter(|&mhz| mhz > 0)
        .and_then(|mhz| mhz.checked_mul(1_000_000));
    Clock {
        nominal_hz: khz("base_frequency").or(cppc),
        max_hz: khz("scaling_max_freq").or_else(|| khz("cpuinfo_max_freq")),
        current_hz: khz("scaling_cur_freq").or_else(|| cpuinfo_hz(root, cpu)),
    }
}

/// `cpu MHz` of x86 or `clock : 3800.000000MHz` of POWER.
fn cpuinfo_hz(root: &Root, cpu: CpuId) -> Option<u64> {
    let text = root.read("proc/cpuinfo").ok()?;
    let mut here = false;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key.trim() {
            "processor" => here = value.parse() == Ok(cpu.0),
            "cpu MHz" | "clock" if here => {
                let mhz: f64 = value.trim_end_matches("MHz").parse().ok()?;
                return (mhz > 0.0).then_some((mhz * 1e6) as u64);
            }
            _ => {}
        }
    }
    None
}

/// An idle state that the kernel may put a CPU into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Its name, such as `C6`.
    pub name: String,
    /// Time to leave it in microseconds, as declared.
    pub latency_us: u64,
    /// Whether it is switched off for this CPU.
    pub disabled: bool,
    /// How often it was entered.
    pub usage: Option<u64>,
}

/// The idle states of a CPU, shallowest first; empty where the kernel manages none.
#[must_use]
pub fn idle_states(root: &Root, cpu: CpuId) -> Vec<IdleState> {
    let dir = format!("{CPUS}/cpu{cpu}/cpuidle");
    root.numbered(&dir, "state")
        .into_iter()
        .filter_map(|state| {
            let file = |name: &str| format!("{dir}/state{state}/{name}");
            Some(IdleState {
                name: root.attribute(file("name"))?,
                latency_us: root.number(file("latency")).unwrap_or(0),
                disabled: root
                    .number::<u8>(file("disable"))
                    .is_some_and(|off| off != 0),
                usage: root.number(file("usage")),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn intel_and_amd_spell_boost_differently() {
        let cpu = CpuId(0);
        let intel = Tree::new().file(&format!("{CPUS}/intel_pstate/no_turbo"), "1\n");
        assert_eq!(turbo(&intel.root(), cpu), Outcome::Known(false));
        let amd = Tree::new().file(&format!("{CPUS}/cpufreq/boost"), "1\n");
        assert_eq!(turbo(&amd.root(), cpu), Outcome::Known(true));
        let policy = Tree::new()
            .file(&format!("{CPUS}/cpufreq/boost"), "1\n")
            .file(&format!("{CPUS}/cpu0/cpufreq/boost"), "0\n");
        assert_eq!(turbo(&policy.root(), cpu), Outcome::Known(false));
        assert!(turbo(&Tree::new().root(), cpu).known().is_none());
    }

    #[test]
    fn clocks_are_in_hertz() {
        let tree = Tree::new()
            .file(&format!("{CPUS}/cpu3/cpufreq/base_frequency"), "2400000\n")
            .file(
                &format!("{CPUS}/cpu3/cpufreq/scaling_max_freq"),
                "3800000\n",
            )
            .file(
                &format!("{CPUS}/cpu3/cpufreq/scaling_governor"),
                "performance\n",
            )
            .file(
                "proc/cpuinfo",
                "processor : 2\ncpu MHz : 1.0\nprocessor : 3\ncpu MHz : 3100.5\n",
            );
        let root = tree.root();
        assert_eq!(
            clock(&root, CpuId(3)),
            Clock {
                nominal_hz: Some(2_400_000_000),
                max_hz: Some(3_800_000_000),
                current_hz: Some(3_100_500_000),
            }
        );
        assert_eq!(
            governor(&root, CpuId(3)),
            Outcome::Known("performance".to_owned())
        );
        assert_eq!(clock(&root, CpuId(9)), Clock::default());
    }

    #[test]
    fn idle_states_are_in_order() {
        let state = |index: u32, file: &str| format!("{CPUS}/cpu0/cpuidle/state{index}/{file}");
        let tree = Tree::new()
            .file(&state(10, "name"), "C10\n")
            .file(&state(10, "latency"), "890\n")
            .file(&state(10, "disable"), "1\n")
            .file(&state(2, "name"), "C1E\n")
            .file(&state(2, "latency"), "10\n")
            .file(&state(2, "disable"), "0\n");
        let states = idle_states(&tree.root(), CpuId(0));
        assert_eq!(states.len(), 2);
        assert_eq!(
            (states[0].name.as_str(), states[0].disabled),
            ("C1E", false)
        );
        assert_eq!((states[1].latency_us, states[1].disabled), (890, true));
    }
}
