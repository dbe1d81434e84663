//! The few figures of a machine profile that a reader wants first.

use membound_types::{
    Bandwidth, BandwidthKernel, BandwidthPoint, Figure, LevelKind, MachineInfo, MachineProfile,
    Mlp, Outcome, Timer,
};

use super::titles::mlp_title;
use crate::units;

/// Read bandwidth of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bandwidths {
    /// One thread, in 10⁹ bytes per second.
    pub(crate) one_gb_s: Option<f64>,
    /// Largest number of threads with its bandwidth in 10⁹ bytes per second.
    pub(crate) all: Option<(u32, f64)>,
}

/// Read bandwidth of the level `name`, if it was measured.
pub(crate) fn level_bandwidth(bandwidth: &Bandwidth, name: &str) -> Option<Bandwidths> {
    let reads = || {
        bandwidth.points.iter().filter(|point| {
            point.kernel == BandwidthKernel::Read
                && point.level.as_deref() == Some(name)
                && point.gb_s.is_finite()
        })
    };
    let best = |threads: u32| {
        reads()
            .filter(|point| point.threads == threads)
            .map(|point| point.gb_s)
            .max_by(f64::total_cmp)
    };
    let most = reads().map(|point| point.threads).max()?;
    Some(Bandwidths {
        one_gb_s: best(1),
        all: (most > 1)
            .then(|| best(most).map(|gb_s| (most, gb_s)))
            .flatten(),
    })
}

/// Highest bandwidth of main memory by any kernel.
pub(crate) fn dram_bandwidth(profile: &MachineProfile) -> Outcome<&BandwidthPoint> {
    let bandwidth = match &profile.bandwidth {
        Outcome::Known(bandwidth) => bandwidth,
        Outcome::Missing { not_measured } => {
            return Outcome::Missing {
                not_measured: not_measured.clone(),
            };
        }
    };
    let memory = profile
        .levels
        .iter()
        .find(|level| level.kind == LevelKind::Memory)
        .map_or("DRAM", |level| level.name.as_str());
    bandwidth
        .points
        .iter()
        .filter(|point| point.level.as_deref() == Some(memory) && point.gb_s.is_finite())
        .max_by(|a, b| a.gb_s.total_cmp(&b.gb_s))
        .map_or_else(
            || Outcome::missing("no bandwidth point lies in main memory"),
            Outcome::Known,
        )
}

/// Identity of the machine as pairs of label and value; unknown entries are left out.
pub(crate) fn identity(machine: &MachineInfo) -> Vec<(&'static str, String)> {
    let cpu = &machine.cpu;
    let mut out = vec![("host", machine.host.clone())];
    let mut model = cpu.model_name.trim().to_owned();
    if model.is_empty() {
        model = format!("{} {}", cpu.vendor, cpu.architecture)
            .trim()
            .to_owned();
    }
    if let Some(name) = &cpu.microarchitecture {
        model = format!("{model} ({name})");
    }
    out.push(("processor", model));
    let smt = if cpu.smt_siblings.is_empty() {
        ", no SMT".to_owned()
    } else {
        format!(
            " on {} (SMT)",
            units::plural(cpu.smt_siblings.len(), "core")
        )
    };
    let allowed = if cpu.allowed.len() == cpu.online.len() {
        String::new()
    } else {
        format!(", {} allowed", cpu.allowed.len())
    };
    out.push((
        "CPUs",
        format!("{}{smt}{allowed}", units::plural(cpu.online.len(), "CPU")),
    ));
    out.push(("memory", units::bytes(machine.memory_bytes)));
    out.push((
        "hypervisor",
        machine
            .conditions
            .hypervisor
            .clone()
            .unwrap_or_else(|| "none (bare metal)".to_owned()),
    ));
    out.push(("kernel", machine.conditions.kernel.clone()));
    out.push(("date", machine.date.clone()));
    out.retain(|(_, value)| !value.is_empty());
    out
}

/// Resolution of the clock: `steps of 10 ns`, and a note if its rate may change. `None` if its rate is
/// unknown.
pub(crate) fn timer_steps(timer: &Timer) -> Option<String> {
    (timer.rate_hz > 0.0).then(|| {
        let quantum_ns = timer.quantum_ticks as f64 / timer.rate_hz * 1e9;
        let rate = if timer.invariant {
            ""
        } else {
            ", rate not constant"
        };
        format!("steps of {}{rate}", units::ns(quantum_ns))
    })
}

/// Row of document 000's summary table: effect of a condition on one load and on the parallelism,
/// formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MlpCondition {
    pub(crate) label: String,
    /// Cycles of one load.
    pub(crate) one: String,
    /// Cycles of two loads in sequence.
    pub(crate) pair: String,
    pub(crate) rule: String,
    pub(crate) throughput: String,
    /// Cycles of one load beyond the first condition's.
    pub(crate) overhead: String,
}

/// One row for each measured condition.
pub(crate) fn mlp_conditions(mlp: &Mlp) -> Vec<MlpCondition> {
    let none = || "–".to_owned();
    let first = mlp.one_load_cycles.known();
    std::iter::once(mlp)
        .chain(&mlp.others)
        .map(|run| {
            let one = run.one_load_cycles.known();
            MlpCondition {
                label: mlp_title(run),
                one: one.map_or_else(none, super::with_interval),
                pair: super::pair(run).unwrap_or_else(none),
                rule: super::rule(run).unwrap_or_else(none),
                throughput: super::throughput(run).unwrap_or_else(none),
                overhead: if std::ptr::eq(run, mlp) {
                    units::compact(0.0)
                } else {
                    one.zip(first).map_or_else(none, overhead)
                },
            }
        })
        .collect()
}

/// Formats the difference of `one` and `first`, with the interval for two independent figures.
fn overhead((one, first): (&Figure, &Figure)) -> String {
    let off = |figure: &Figure| (figure.high - figure.low) / 2.0;
    let half_width = off(one).hypot(off(first));
    let difference = one.value - first.value;
    format!(
        "{} {}",
        units::compact(difference),
        units::interval(difference - half_width, difference + half_width)
    )
}
