//! Synthetic harvests: a key-value store with four scavengers of which one crashed and one was refused, one
//! of which only the end is known, one that was cut short, and one without a primary.

use membound_types::{
    CpuId, DurationBin, FollowedPlan, HarvestRole, HarvestRun, HarvestRunOptions, HarvestSlots,
    HarvestedPrimary, HarvestedSite, HarvestedStall, IdlePolicy, Kind, Latencies, LatencySource,
    Missing, NotMeasured, PlanSource, PrimaryLatency, SCHEMA_VERSION, Scavenger, ScavengerMoves,
    ScavengerState, SiteState, SlotMode, SlowdownGuard, SmtPolicy, YieldDistances, YieldKind,
};

/// The bound on distances in the fixture, in nanoseconds.
pub(crate) const BOUND_NS: f64 = 300.0;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Rounds to digits that survive writing and reading JSON.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Histogram of durations around `middle_ns` with a tail, in bins of an eighth of an octave.
fn around(middle_ns: f64, requests: f64) -> Vec<DurationBin> {
    (-16..40)
        .map(|step| {
            let edge = |step: i32| (middle_ns * 2_f64.powf(f64::from(step) / 8.0)).round();
            let far = f64::from(step);
            let share = (-far * far / 18.0).exp() + 0.01 * (-(far - 20.0).powi(2) / 40.0).exp();
            DurationBin {
                from_ns: edge(step),
                to_ns: edge(step + 1),
                count: (requests * share / 7.6) as u64,
            }
        })
        .collect()
}

/// Percentiles according to the histogram: the ends of the bins that contain them.
fn latencies(middle_ns: f64, requests: f64) -> Latencies {
    let histogram = around(middle_ns, requests);
    let total: u64 = histogram.iter().map(|bin| bin.count).sum();
    let at = |share: f64| {
        let mut counted = 0;
        let reached = histogram.iter().find(|bin| {
            counted += bin.count;
            counted as f64 >= share * total as f64
        });
        reached.map_or(0.0, |bin| bin.to_ns)
    };
    Latencies {
        requests: total,
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p95_ns: at(0.95),
        p99_ns: at(0.99),
        max_ns: at(1.0),
        histogram,
    }
}

fn scavenger(command: &str, copy: u32, state: ScavengerState) -> Scavenger {
    let cpu_s = 2.41 - 0.2 * f64::from(copy);
    Scavenger {
        command: words(command),
        copy,
        exit_code: (state == ScavengerState::Finished).then_some(0),
        signal: None,
        state,
        reason: None,
        cpu_s: Some(rounded(cpu_s)),
        in_stalls_s: Some(rounded(cpu_s - 0.12)),
        in_waits_s: 0.04,
        own_thread_s: 0.08,
        calls: 5312,
        turns: 6_100_000,
        output: Some(format!("/tmp/compress.{copy}.log")),
    }
}

fn site(side: HarvestRole, symbol: &str, offset: u64, gain: Option<f64>) -> HarvestedSite {
    HarvestedSite {
        side,
        module: match side {
            HarvestRole::Primary => "/usr/bin/store",
            HarvestRole::Scavenger => "/usr/bin/compress",
        }
        .to_owned(),
        offset,
        symbol: symbol.to_owned(),
        kind: match gain {
            Some(_) => YieldKind::Primary,
            None => YieldKind::Scavenger,
        },
        state: SiteState::In,
        reason: None,
        predicted_gain: gain,
    }
}

fn sites() -> Vec<HarvestedSite> {
    let mut out = site(
        HarvestRole::Primary,
        "Store::evict(unsigned long)",
        0x1302,
        Some(0.021),
    );
    out.state = SiteState::Out;
    out.reason = Some("the primary was slower with it".to_owned());
    let mut refused = site(HarvestRole::Primary, "", 0x2210, Some(0.014));
    refused.state = SiteState::Refused;
    refused.reason = Some("no patch: a jump leads into its bytes".to_owned());
    vec![
        site(
            HarvestRole::Primary,
            "std::map<std::string, std::pair<long, long>>::find(std::string const&)",
            0x1251,
            Some(0.412),
        ),
        site(HarvestRole::Primary, "Store::scan", 0x1290, Some(0.083)),
        out,
        refused,
        site(HarvestRole::Scavenger, "deflate", 0x2f41, Some(0.12)),
        site(HarvestRole::Scavenger, "deflate", 0x2fa0, None),
        site(HarvestRole::Scavenger, "crc32", 0x3104, None),
    ]
}

/// Distances around 140 ns, of which 52 in 10 000 exceed the bound.
fn distances() -> YieldDistances {
    let counts = [
        (60.0, 80.0, 310),
        (80.0, 100.0, 1_220),
        (100.0, 120.0, 2_140),
        (120.0, 140.0, 2_260),
        (140.0, 160.0, 1_600),
        (160.0, 180.0, 980),
        (180.0, 200.0, 640),
        (200.0, 220.0, 370),
        (220.0, 240.0, 230),
        (240.0, 270.0, 138),
        (270.0, 300.0, 60),
        (300.0, 400.0, 31),
        (400.0, 800.0, 12),
        (800.0, 3_200.0, 6),
        (12_800.0, 25_600.0, 3),
    ];
    YieldDistances {
        p50: Some(131.0),
        p90: Some(196.0),
        p99: Some(268.0),
        max: Some(18_400.0),
        bound: Some(BOUND_NS),
        within_bound: Some(0.9948),
        timed: 10_000,
        skipped: 0,
        histogram: counts
            .map(|(from_ns, to_ns, count)| DurationBin {
                from_ns,
                to_ns,
                count,
            })
            .into(),
    }
}

fn options() -> HarvestRunOptions {
    HarvestRunOptions {
        per_thread: 2,
        idle: IdlePolicy::Harvest,
        smt: SmtPolicy::On,
        siblings: vec![vec![CpuId(0), CpuId(1)], vec![CpuId(2), CpuId(3)]],
        bound_ns: Some(BOUND_NS),
        max_overhead: 0.05,
        max_slowdown: Some(0.05),
        requests: Some("store_begin..store_end".to_owned()),
        slo_p95_ns: Some(400_000.0),
        without: Vec::new(),
        finish: false,
        plans: vec![
            FollowedPlan {
                role: HarvestRole::Primary,
                source: PlanSource::Given,
                path: Some("store.plan.json".to_owned()),
                command: words("./store --keys 1000000"),
                planted_after_s: None,
            },
            FollowedPlan {
                role: HarvestRole::Scavenger,
                source: PlanSource::Made,
                path: None,
                command: words("./compress -9 logs.tar"),
                planted_after_s: None,
            },
        ],
    }
}

/// A harvest with every field present.
pub(crate) fn full() -> HarvestRun {
    let mut crashed = scavenger("./compress -9 logs.tar", 2, ScavengerState::Crashed);
    crashed.signal = Some(11);
    crashed.reason = Some("signal 11 at 0x2f41 in deflate".to_owned());
    let mut refused = scavenger("./index --threads 8", 0, ScavengerState::Refused);
    refused.reason = Some("it is for another processor than x86-64".to_owned());
    (refused.cpu_s, refused.in_stalls_s) = (None, None);
    refused.in_waits_s = 0.0;
    (refused.own_thread_s, refused.calls, refused.turns) = (0.0, 0, 0);
    refused.output = None;
    HarvestRun {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Harvest,
        incomplete: false,
        membound_version: "0.1.0".to_owned(),
        date: "2026-11-20T17:02:11Z".to_owned(),
        host: "db-7".to_owned(),
        cpu: "AMD EPYC 9355".to_owned(),
        wall_s: 12.4,
        options: options(),
        primary: HarvestedPrimary {
            command: words("./store --keys 1000000"),
            exit_code: Some(0),
            signal: None,
            wall_s: Some(12.2),
            cpu_s: 11.8,
            threads: 2,
            yields: 41_200_000,
            first_turn_s: Some(0.04),
            slowdown: Some(0.018),
            slowdown_low: Some(0.012),
            slowdown_high: Some(0.024),
            latency: Some(PrimaryLatency {
                source: LatencySource::Marker,
                by: "store_begin..store_end".to_owned(),
                with: Some(latencies(83_000.0, 240_000.0)),
                without: Some(latencies(80_000.0, 12_000.0)),
                spanning: 1204,
            }),
        },
        moves: ScavengerMoves {
            steals: 12,
            reclaimed: 3,
            calls: 4567,
            interrupted: 8,
            overdue: 1,
        },
        scavengers: vec![
            scavenger("./compress -9 logs.tar", 0, ScavengerState::Finished),
            scavenger("./compress -9 logs.tar", 1, ScavengerState::Unfinished),
            crashed,
            refused,
        ],
        stall: HarvestedStall {
            before_s: Some(7.4),
            harvested_s: Some(5.1),
            left_s: Some(2.3),
        },
        distance_ns: distances(),
        sites: sites(),
        balance: None,
        guard: Some(SlowdownGuard {
            checks: 118,
            yields_taken_out: 2,
            yields_put_back: 1,
            yields_out: 1,
            steps_out: 3,
            steps_in: 2,
            final_share: 0.94,
        }),
        slots: HarvestSlots {
            mode: SlotMode::Kernel,
            why: "with scavengers beside the command it was slower than it may be".to_owned(),
            smt_s: 4.5,
            beside_s: 4.2,
            changes: 3,
            cpus: vec![CpuId(1), CpuId(3)],
        },
        missing: Vec::new(),
        notes: vec!["the profile that the plan was made from had 812 samples".to_owned()],
    }
}

fn missing(field: &str, reason: &str, remedy: Option<&str>) -> Missing {
    Missing {
        table: field.to_owned(),
        why: NotMeasured {
            reason: reason.to_owned(),
            remedy: remedy.map(str::to_owned),
        },
    }
}

/// A harvest of which only the end is known.
pub(crate) fn bare() -> HarvestRun {
    let mut options = options();
    (options.bound_ns, options.max_slowdown) = (None, None);
    (options.requests, options.slo_p95_ns) = (None, None);
    options.plans.clear();
    HarvestRun {
        incomplete: false,
        options,
        primary: HarvestedPrimary {
            command: words("./store --keys 1000000"),
            ..HarvestedPrimary::default()
        },
        moves: ScavengerMoves::default(),
        scavengers: Vec::new(),
        stall: HarvestedStall::default(),
        distance_ns: YieldDistances::default(),
        sites: Vec::new(),
        guard: None,
        slots: HarvestSlots::default(),
        missing: vec![
            missing(
                "primary.slowdown",
                "no scavenger ran",
                Some("give one with --scavenger"),
            ),
            missing(
                "primary.latency",
                "no socket was served and no marker was met",
                None,
            ),
            missing("stall", "the plan holds no stall", None),
            missing("distance_ns", "no time slice was timed", None),
            missing("sites", "no load yields", Some("profile a longer run")),
            missing("topology", "/sys/devices/system/cpu is not readable", None),
        ],
        notes: Vec::new(),
        ..full()
    }
}

/// A harvest ended by a signal in the middle: some parts are known.
pub(crate) fn cut_short() -> HarvestRun {
    let mut run = full();
    run.incomplete = true;
    run.primary.exit_code = None;
    run.primary.signal = Some(15);
    run.primary.slowdown = Some(0.071);
    (run.primary.slowdown_low, run.primary.slowdown_high) = (Some(0.06), Some(0.082));
    run.stall.left_s = None;
    run.distance_ns.within_bound = None;
    run.distance_ns.bound = None;
    run.options.bound_ns = None;
    if let Some(latency) = &mut run.primary.latency {
        latency.without = None;
    }
    run.scavengers.truncate(2);
    run.missing = vec![
        missing(
            "stall.left_s",
            "the run ended before it was looked at",
            None,
        ),
        missing(
            "primary.latency.without",
            "3 requests came in phases without scavengers",
            Some("run longer"),
        ),
    ];
    run
}

/// Programs that yield to each other.
pub(crate) fn no_primary() -> HarvestRun {
    let mut run = full();
    run.primary = HarvestedPrimary::default();
    run.stall.before_s = None;
    run.stall.left_s = None;
    run.guard = None;
    run.options.max_slowdown = None;
    (run.options.requests, run.options.slo_p95_ns) = (None, None);
    run.sites.retain(|it| it.side == HarvestRole::Scavenger);
    run.scavengers = (0..40)
        .map(|copy| scavenger("./chase 256M", copy % 8, ScavengerState::Finished))
        .enumerate()
        .map(|(copy, mut it)| {
            it.copy = copy as u32;
            it
        })
        .collect();
    run
}
