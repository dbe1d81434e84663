//! The settings of each table, and which of them are the same run.

use std::time::Duration;

use membound_types::{CpuId, ExploreSweep, HarvestPart};

use super::explore_config::BoundNs;
use super::load::Load;

/// Default bounds and distances, in nanoseconds; `None`: none.
const BOUNDS_NS: [Option<f64>; 6] = [
    Some(50.0),
    Some(100.0),
    Some(200.0),
    Some(500.0),
    Some(1000.0),
    None,
];
/// Default distances where parts are left out at each, in nanoseconds: the shortest and the longest that
/// differ, and one between. Each takes a run for every part.
const PARTS_DISTANCES_NS: [Option<f64>; 3] = [Some(50.0), Some(200.0), Some(1000.0)];
/// Parts that lower the cost of a yield. Without them, a yield saves every register, at each iteration.
const YIELD_COST_PARTS: [HarvestPart; 4] = [
    HarvestPart::Liveness,
    HarvestPart::Vectors,
    HarvestPart::Loops,
    HarvestPart::LoopSaves,
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
    /// The line of a plot that it belongs to, in tables that cross two settings.
    pub(super) series: Option<String>,
    /// Index of the load on the primary; 0 without loads.
    pub(super) load: usize,
    pub(super) scheduling: Scheduling,
}

impl Setting {
    fn new(name: impl Into<String>, at: Option<f64>, scheduling: Scheduling) -> Self {
        Self {
            name: name.into(),
            at,
            series: None,
            load: 0,
            scheduling,
        }
    }

    /// Key of a run: settings with the same key share one run per round.
    pub(super) fn key(&self) -> String {
        format!("{} {:?}", self.load, self.scheduling)
    }

    fn harvest(name: impl Into<String>, at: Option<f64>, how: Harvesting) -> Self {
        Self::new(name, at, Scheduling::Harvest(how))
    }
}

impl Scheduling {
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
    pub(super) loads: Vec<Load>,
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
        ExploreSweep::Load => loads(inputs),
        ExploreSweep::PartsByDistance => parts_by_distance(inputs),
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
        Setting::harvest(
            ns_name(distance_ns),
            distance_ns,
            at_distance(distance_ns, &[]),
        )
    };
    bounds_ns(inputs).into_iter().map(setting).collect()
}

/// A harvest with this distance between a scavenger's yields (`None`: any) and without some parts.
fn at_distance(distance_ns: Option<f64>, without: &[HarvestPart]) -> Harvesting {
    let any = distance_ns.is_none().then_some(HarvestPart::Distance);
    Harvesting {
        distance_ns,
        without: any.into_iter().chain(without.iter().copied()).collect(),
        ..Harvesting::default()
    }
}

/// Each part left out at each distance, and all parts that lower the cost of a yield.
fn parts_by_distance(inputs: &SweepInputs) -> Vec<Setting> {
    // Without the first the distance has no effect, and without the second no scavenger runs.
    let varies = |part: &HarvestPart| !matches!(part, HarvestPart::Distance | HarvestPart::Switch);
    let each = HarvestPart::ALL.into_iter().filter(varies);
    let left_out: Vec<(&str, Vec<HarvestPart>)> = [("nothing", Vec::new())]
        .into_iter()
        .chain(each.map(|part| (part.name(), vec![part])))
        .chain([("yield costs", YIELD_COST_PARTS.to_vec())])
        .collect();
    let distances = match inputs.bounds.is_empty() {
        true => PARTS_DISTANCES_NS.to_vec(),
        false => bounds_ns(inputs),
    };
    let setting = |distance_ns: Option<f64>, (name, parts): &(&str, Vec<HarvestPart>)| Setting {
        series: Some((*name).to_owned()),
        ..Setting::harvest(
            format!("{}, {name}", ns_name(distance_ns)),
            distance_ns,
            at_distance(distance_ns, parts),
        )
    };
    let at = |distance_ns| {
        left_out
            .iter()
            .map(move |parts| setting(distance_ns, parts))
    };
    distances.into_iter().flat_map(at).collect()
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

/// Scavengers as processes with the lowest weight that a normal process can have.
const NICE_19: Scheduling = Scheduling::Kernel(&["nice", "-n", "19"]);
/// Scavengers as processes that run only where no other process wants the CPU, nearly.
const SCHED_IDLE: Scheduling = Scheduling::Kernel(&["chrt", "--idle", "0"]);

fn schedulers(inputs: &SweepInputs) -> Vec<Setting> {
    vec![
        Setting::new("alone", None, Scheduling::Alone),
        Setting::new("one after another", None, Scheduling::OneAfterAnother),
        Setting::new("nice 19", None, NICE_19),
        Setting::new("SCHED_IDLE", None, SCHED_IDLE),
        Setting::new("SMT", None, Scheduling::Sibling(inputs.sibling)),
        Setting::harvest("harvest", None, Harvesting::default()),
    ]
}

/// Each load under each of several schedulers.
fn loads(inputs: &SweepInputs) -> Vec<Setting> {
    let schedulers = [
        ("alone", Scheduling::Alone),
        ("nice 19", NICE_19),
        ("SCHED_IDLE", SCHED_IDLE),
        ("harvest", Scheduling::Harvest(Harvesting::default())),
    ];
    let setting =
        |(index, load): (usize, &Load), (name, scheduling): &(&str, Scheduling)| Setting {
            series: Some((*name).to_owned()),
            load: index,
            ..Setting::new(
                format!("{}, {name}", load.text),
                Some(load.value),
                scheduling.clone(),
            )
        };
    let at = |load| schedulers.iter().map(move |of| setting(load, of));
    inputs.loads.iter().enumerate().flat_map(at).collect()
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
    use std::collections::BTreeSet;

    use super::*;

    fn inputs() -> SweepInputs {
        SweepInputs {
            bounds: Vec::new(),
            overheads: Vec::new(),
            sibling: None,
            alone_p95_ns: None,
            loads: Vec::new(),
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
        assert_eq!(rows(ExploreSweep::Load), 0);
        // All parts but two, "nothing" and "yield costs", at three distances.
        let lines = HarvestPart::ALL.len() - 2 + 2;
        assert_eq!(rows(ExploreSweep::PartsByDistance), 3 * lines);
        let complete_inputs = SweepInputs {
            alone_p95_ns: Some(1000.0),
            bounds: vec![BoundNs(Some(70.0)), BoundNs(None)],
            overheads: vec![0.003, 0.07],
            loads: ["1000", "2e3"].map(|text| text.parse().unwrap()).to_vec(),
            ..inputs()
        };
        let names = |sweep| -> Vec<String> {
            let rows = of_sweep(sweep, &complete_inputs).into_iter();
            rows.map(|setting| setting.name).collect()
        };
        assert_eq!(names(ExploreSweep::Bound), ["70 ns", "none"]);
        assert_eq!(names(ExploreSweep::Overhead), ["0.3 %", "7 %"]);
        assert_eq!(
            names(ExploreSweep::Load),
            [
                "1000, alone",
                "1000, nice 19",
                "1000, SCHED_IDLE",
                "1000, harvest",
                "2e3, alone",
                "2e3, nice 19",
                "2e3, SCHED_IDLE",
                "2e3, harvest",
            ]
        );
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
            found.unwrap().key()
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
        assert_eq!(
            key(ExploreSweep::Distance, "200 ns"),
            key(ExploreSweep::PartsByDistance, "200 ns, nothing")
        );
    }

    #[test]
    fn the_same_scheduler_at_another_load_is_another_run() {
        let inputs = SweepInputs {
            loads: ["1", "2"].map(|text| text.parse().unwrap()).to_vec(),
            ..inputs()
        };
        let keys: BTreeSet<String> = of_sweep(ExploreSweep::Load, &inputs)
            .iter()
            .map(Setting::key)
            .collect();
        assert_eq!(keys.len(), 8);
    }

    #[test]
    fn yield_costs_left_out_are_all_parts_that_lower_them() {
        let rows = of_sweep(ExploreSweep::PartsByDistance, &inputs());
        let last = rows.last().unwrap();
        assert_eq!(
            (last.name.as_str(), last.at),
            ("1000 ns, yield costs", Some(1000.0))
        );
        let Scheduling::Harvest(how) = &last.scheduling else {
            panic!("{last:?}");
        };
        assert_eq!(how.without, YIELD_COST_PARTS);
    }
}
