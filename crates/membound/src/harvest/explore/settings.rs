//! The settings of each table, and which of them are the same run.

use std::time::Duration;

use membound_types::{CpuId, ExploreSweep, HarvestPart};

use super::args::BoundNs;

/// Default bounds and distances, in nanoseconds; `None`: none.
const BOUNDS_NS: [Option<f64>; 6] = [
    Some(50.0),
    Some(100.0),
    Some(200.0),
    Some(500.0),
    Some(1000.0),
    None,
];
/// Default limits of the overhead of yields, as shares of the CPU time.
const OVERHEAD_SHARES: [f64; 6] = [0.002, 0.01, 0.02, DEFAULT_OVERHEAD_SHARE, 0.1, 0.2];
/// Default limit of the overhead in `harvest run` and `harvest plan`.
pub(super) const DEFAULT_OVERHEAD_SHARE: f64 = 0.05;
/// Sampling periods of profiles in milliseconds: the first gives a hundred times as many samples as the last.
const PERIODS_MS: [f64; 4] = [0.25, DEFAULT_PERIOD_MS, 5.0, 25.0];
/// Default sampling period of `membound profile`, in milliseconds.
pub(super) const DEFAULT_PERIOD_MS: f64 = 1.27;
/// Numbers of programs at once (document 003's table).
const PROGRAM_COUNTS: [u32; 5] = [1, 2, 4, 6, 8];
/// Latency objectives, as multiples of the 95th percentile without scavengers.
const SLO_FACTORS: [f64; 5] = [1.1, 1.25, 1.5, 2.0, 4.0];

/// Parameters of a harvest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Harvesting {
    /// `--bound-ns`.
    pub(super) bound_ns: Option<f64>,
    /// Maximum time between two yields in scavengers' plans, in nanoseconds; `None`: derived from the bound.
    pub(super) distance_ns: Option<f64>,
    /// Share of the CPU time that yields may cost on hits, which limits how many loads yield; `None`: the
    /// default.
    pub(super) max_overhead: Option<f64>,
    /// Parts of the harvest that are switched off.
    pub(super) without: Vec<HarvestPart>,
    /// `--slo-p95`.
    pub(super) slo_p95_ns: Option<f64>,
    pub(super) scavengers: ScavengerSet,
}

/// The scavengers that run with the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ScavengerSet {
    /// The scavengers that the user named.
    #[default]
    Named,
    /// This many copies of the first scavenger, which run in time slices only.
    CopiesOfFirst(u32),
    /// The named scavengers, held at their first yield: there is no time slice.
    Waiting,
    /// A program that ends before the primary begins.
    EndedScavenger,
}

/// How the programs are scheduled.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scheduling {
    /// The primary by itself.
    Alone,
    /// All programs, one after another.
    OneAfterAnother,
    /// By the kernel, with scavengers started by this command.
    Kernel(&'static [&'static str]),
    /// Scavengers on the SMT sibling of the primary's CPU; `None`: there is none.
    Sibling(Option<CpuId>),
    /// By a harvest.
    Harvest(Harvesting),
    /// The primary under the profiler with this sampling period, on any CPU; `None`: without the profiler.
    Profiled(Option<Duration>),
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) at: Option<f64>,
    pub(super) scheduling: Scheduling,
}

impl Setting {
    fn new(name: impl Into<String>, at: Option<f64>, scheduling: Scheduling) -> Self {
        Self {
            name: name.into(),
            at,
            scheduling,
        }
    }

    fn harvest(name: impl Into<String>, at: Option<f64>, how: Harvesting) -> Self {
        Self::new(name, at, Scheduling::Harvest(how))
    }
}

impl Scheduling {
    /// Key of a run: settings with the same key share one run per round.
    pub(super) fn key(&self) -> String {
        format!("{self:?}")
    }

    /// Rough duration in seconds, where the primary takes `primary_s` by itself and all scavengers take
    /// `scavengers_s`.
    pub(super) fn estimate_s(&self, primary_s: f64, scavengers_s: f64) -> f64 {
        /// Assumed share of the scavengers' time that a harvest hides.
        const HIDDEN_SHARE: f64 = 0.3;
        /// Start-up time of membound, in seconds.
        const START_S: f64 = 0.3;
        match self {
            Self::Alone | Self::OneAfterAnother => 0.0,
            Self::Kernel(_) | Self::Sibling(Some(_)) => primary_s + scavengers_s,
            Self::Sibling(None) => 0.0,
            Self::Harvest(how) => {
                let scavengers_s = match how.scavengers {
                    ScavengerSet::Named => scavengers_s,
                    ScavengerSet::CopiesOfFirst(copies) => primary_s * f64::from(copies),
                    ScavengerSet::Waiting | ScavengerSet::EndedScavenger => 0.0,
                };
                START_S + primary_s + scavengers_s * (1.0 - HIDDEN_SHARE)
            }
            Self::Profiled(Some(_)) => 1.5 + primary_s,
            Self::Profiled(None) => primary_s,
        }
    }
}

/// Inputs from which the settings of all tables are made.
#[derive(Clone, Debug)]
pub(super) struct SweepInputs {
    pub(super) bounds: Vec<BoundNs>,
    pub(super) overheads: Vec<f64>,
    /// The SMT sibling of the primary's CPU, if there is one.
    pub(super) sibling: Option<CpuId>,
    /// The 95th percentile of request durations without scavengers.
    pub(super) alone_p95_ns: Option<f64>,
}

/// The rows of a table.
pub(super) fn of_sweep(sweep: ExploreSweep, inputs: &SweepInputs) -> Vec<Setting> {
    match sweep {
        ExploreSweep::Bound => bounds(inputs),
        ExploreSweep::Distance => distances(inputs),
        ExploreSweep::Overhead => overheads(inputs),
        ExploreSweep::Parts => parts(),
        ExploreSweep::Periods => periods(),
        ExploreSweep::Chases => at_once(),
        ExploreSweep::Kernel => schedulers(inputs),
        ExploreSweep::Slo => objectives(inputs),
    }
}

fn bounds_ns(inputs: &SweepInputs) -> Vec<Option<f64>> {
    if inputs.bounds.is_empty() {
        return BOUNDS_NS.to_vec();
    }
    inputs.bounds.iter().map(|bound| bound.0).collect()
}

fn ns_name(ns: Option<f64>) -> String {
    ns.map_or_else(|| "none".to_owned(), |ns| format!("{ns} ns"))
}

fn bounds(inputs: &SweepInputs) -> Vec<Setting> {
    let setting = |bound_ns| {
        let how = Harvesting {
            bound_ns,
            ..Harvesting::default()
        };
        Setting::harvest(ns_name(bound_ns), bound_ns, how)
    };
    bounds_ns(inputs).into_iter().map(setting).collect()
}

fn distances(inputs: &SweepInputs) -> Vec<Setting> {
    let setting = |distance_ns: Option<f64>| {
        let without = match distance_ns {
            Some(_) => Vec::new(),
            None => vec![HarvestPart::Distance],
        };
        let how = Harvesting {
            distance_ns,
            without,
            ..Harvesting::default()
        };
        Setting::harvest(ns_name(distance_ns), distance_ns, how)
    };
    bounds_ns(inputs).into_iter().map(setting).collect()
}

fn overheads(inputs: &SweepInputs) -> Vec<Setting> {
    let setting = |&share: &f64| {
        let how = Harvesting {
            max_overhead: (share != DEFAULT_OVERHEAD_SHARE).then_some(share),
            ..Harvesting::default()
        };
        // Removes digits that come from converting the typed percentage to a share.
        let percent = (share * 1e8).round() / 1e6;
        Setting::harvest(format!("{percent} %"), Some(share), how)
    };
    let all = match inputs.overheads.is_empty() {
        true => &OVERHEAD_SHARES[..],
        false => &inputs.overheads,
    };
    all.iter().map(setting).collect()
}

fn parts() -> Vec<Setting> {
    let without = |part: HarvestPart| {
        let how = Harvesting {
            without: vec![part],
            // Without switches, no yield gives way to the primary, and scavengers would run to their end
            // before it begins.
            scavengers: match part {
                HarvestPart::Switch => ScavengerSet::EndedScavenger,
                _ => ScavengerSet::Named,
            },
            ..Harvesting::default()
        };
        Setting::harvest(part.name(), None, how)
    };
    let all = Setting::harvest("nothing", None, Harvesting::default());
    std::iter::once(all)
        .chain(HarvestPart::ALL.map(without))
        .collect()
}

fn periods() -> Vec<Setting> {
    let profiled = |ms: f64| {
        let period = Duration::from_secs_f64(ms * 1e-3);
        Setting::new(
            format!("{ms} ms"),
            Some(ms),
            Scheduling::Profiled(Some(period)),
        )
    };
    let without = Setting::new("not profiled", None, Scheduling::Profiled(None));
    std::iter::once(without)
        .chain(PERIODS_MS.map(profiled))
        .collect()
}

fn at_once() -> Vec<Setting> {
    let setting = |programs: u32| {
        let (name, at) = (programs.to_string(), Some(f64::from(programs)));
        match programs {
            1 => Setting::new(name, at, Scheduling::Alone),
            _ => {
                let how = Harvesting {
                    scavengers: ScavengerSet::CopiesOfFirst(programs - 1),
                    ..Harvesting::default()
                };
                Setting::harvest(name, at, how)
            }
        }
    };
    PROGRAM_COUNTS.map(setting).to_vec()
}

fn schedulers(inputs: &SweepInputs) -> Vec<Setting> {
    vec![
        Setting::new("alone", None, Scheduling::Alone),
        Setting::new("one after another", None, Scheduling::OneAfterAnother),
        Setting::new("nice 19", None, Scheduling::Kernel(&["nice", "-n", "19"])),
        Setting::new(
            "SCHED_IDLE",
            None,
            Scheduling::Kernel(&["chrt", "--idle", "0"]),
        ),
        Setting::new("SMT", None, Scheduling::Sibling(inputs.sibling)),
        Setting::harvest("harvest", None, Harvesting::default()),
    ]
}

fn objectives(inputs: &SweepInputs) -> Vec<Setting> {
    let Some(alone_ns) = inputs.alone_p95_ns else {
        return Vec::new();
    };
    let setting = |times: f64| {
        let slo_ns = (alone_ns * times).round();
        let how = Harvesting {
            slo_p95_ns: Some(slo_ns),
            ..Harvesting::default()
        };
        Setting::harvest(format!("{:.2} µs", slo_ns * 1e-3), Some(slo_ns), how)
    };
    SLO_FACTORS.map(setting).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> SweepInputs {
        SweepInputs {
            bounds: Vec::new(),
            overheads: Vec::new(),
            sibling: None,
            alone_p95_ns: None,
        }
    }

    #[test]
    fn tables_have_a_row_for_each_setting() {
        let rows = |sweep| of_sweep(sweep, &inputs()).len();
        assert_eq!(rows(ExploreSweep::Bound), 6);
        assert_eq!(rows(ExploreSweep::Distance), 6);
        assert_eq!(rows(ExploreSweep::Overhead), 6);
        assert_eq!(rows(ExploreSweep::Parts), 1 + HarvestPart::ALL.len());
        assert_eq!(rows(ExploreSweep::Periods), 5);
        assert_eq!(rows(ExploreSweep::Chases), 5);
        assert_eq!(rows(ExploreSweep::Kernel), 6);
        assert_eq!(rows(ExploreSweep::Slo), 0);
        let complete_inputs = SweepInputs {
            alone_p95_ns: Some(1000.0),
            bounds: vec![BoundNs(Some(70.0)), BoundNs(None)],
            overheads: vec![0.003, 0.07],
            ..inputs()
        };
        let names = |sweep| -> Vec<String> {
            let rows = of_sweep(sweep, &complete_inputs).into_iter();
            rows.map(|setting| setting.name).collect()
        };
        assert_eq!(names(ExploreSweep::Bound), ["70 ns", "none"]);
        assert_eq!(names(ExploreSweep::Overhead), ["0.3 %", "7 %"]);
        assert_eq!(
            of_sweep(ExploreSweep::Slo, &complete_inputs)[1].at,
            Some(1250.0)
        );
    }

    #[test]
    fn equal_runs_have_equal_keys() {
        let key = |sweep, name: &str| {
            let rows = of_sweep(sweep, &inputs()).into_iter();
            let found = rows.into_iter().find(|setting| setting.name == name);
            found.unwrap().scheduling.key()
        };
        let usual = key(ExploreSweep::Kernel, "harvest");
        assert_eq!(usual, key(ExploreSweep::Bound, "none"));
        assert_eq!(usual, key(ExploreSweep::Parts, "nothing"));
        assert_eq!(usual, key(ExploreSweep::Overhead, "5 %"));
        assert_ne!(usual, key(ExploreSweep::Bound, "200 ns"));
        assert_ne!(usual, key(ExploreSweep::Overhead, "10 %"));
        assert_eq!(
            key(ExploreSweep::Distance, "none"),
            key(ExploreSweep::Parts, "distance")
        );
    }
}
