//! Comparisons written by hand: two profiles under two conditions, and a fleet with one
//! bad host.

use std::collections::BTreeMap;

use membound_types::{
    Basis, ComparedCurve, ComparedFigure, ComparedProfile, ComparedValue, Comparison,
    ComparisonMethod, ComparisonSummary, ConditionRow, CurvePair, CurveVerdict, Figure,
    FigureDifference, FigureVerdict, FleetFigure, FleetGroup, Guard, GuardHit, Kind, LoadsTime,
    NodePolicy, NoiseFloor, OddCondition, OddProfile, Outcome, Outlier, Overlay, OverlayCurve,
    OverlayPoint, PageKind, SCHEMA_VERSION, SkippedFile, Worse,
};

/// Two runs of a guest: huge pages on, then off in the guest.
/// T(N) under two conditions, and what placements scatter over.
fn overlays() -> Vec<Overlay> {
    let curve = |profile: &str, condition: &str, each: f64, spread: f64| OverlayCurve {
        profile: profile.into(),
        condition: condition.into(),
        label: condition.replace(" pages", ""),
        points: (1..=12)
            .map(|n| {
                let y = 200.0 + each * f64::from(n);
                OverlayPoint {
                    x: f64::from(n),
                    y,
                    low: Some(y - spread),
                    high: Some(y + spread),
                }
            })
            .collect(),
    };
    let overlay = |name: &str, title: &str, curves| Overlay {
        name: name.into(),
        title: title.into(),
        x_unit: "loads".into(),
        y_unit: "cycles".into(),
        curves,
    };
    vec![
        overlay(
            "parallel",
            "T(N): loads at once",
            vec![
                curve("H0G0", "H0G0, thp pages", 20.0, 4.0),
                curve("H0G1", "H0G1, 4k pages", 60.0, 6.0),
            ],
        ),
        overlay(
            "placements",
            "T(N) on new pages each time",
            vec![curve("H0G0", "H0G0, thp pages", 20.0, 40.0)],
        ),
    ]
}

pub(crate) fn two_profiles() -> Comparison {
    let mut comparison = empty();
    comparison.profiles = vec![
        profile("H0G0", [("guest-thp", "on"), ("host-thp", "on")]),
        profile("H0G1", [("guest-thp", "off"), ("host-thp", "on")]),
    ];
    comparison.summaries = vec![ComparisonSummary {
        profile: "H0G1".into(),
        compared: 6,
        same: 1,
        worse: 2,
        better: 1,
        neither: 1,
        unknown: 1,
        missing: 1,
    }];
    comparison.figures = figures();
    comparison.curves = curves();
    comparison.conditions = conditions();
    comparison.overlays = overlays();
    comparison.notes = vec!["H0G1 has no c2c, which H0G0 has".into()];
    comparison.guard = Some(Guard {
        limit_percent: 10.0,
        exceeded: true,
        worst: vec![GuardHit {
            profile: "H0G1".into(),
            figure: "levels.DRAM.latency_ns".into(),
            title: "DRAM latency".into(),
            unit: "ns".into(),
            value: 178.0,
            reference: 160.0,
            relative: 0.1125,
        }],
    });
    comparison
}

/// A directory of 40 profiles: one host with a slow memory, one without a part.
pub(crate) fn fleet() -> Comparison {
    let mut comparison = empty();
    comparison.fleets = vec![
        FleetGroup {
            cpu: "AMD EPYC 9B45 (Zen 5)".into(),
            profiles: 40,
            limit_sigmas: Some(5.48),
            limit_relative: 0.05,
            figures: vec![
                usual(
                    "levels.L1.size_bytes",
                    "L1 effective size",
                    "bytes",
                    48_000.0,
                    0.01,
                ),
                usual("levels.DRAM.latency_ns", "DRAM latency", "ns", 160.0, 0.012),
                usual("clock.core_hz", "core clock", "Hz", 4.06e9, 0.0),
                usual(
                    "mlp.thp.local.rule",
                    "parallel loads by rule, thp",
                    "",
                    24.6,
                    0.1,
                ),
                usual(
                    "tlb.4k.L1.miss_cycles",
                    "L1 TLB miss, 4k",
                    "cycles",
                    7.0,
                    0.05,
                ),
            ],
            odd: vec![slow_host(), lacking_host()],
        },
        FleetGroup {
            cpu: "Intel Xeon (Ice Lake)".into(),
            profiles: 2,
            limit_sigmas: None,
            limit_relative: 0.05,
            figures: vec![FleetFigure {
                count: 2,
                ..usual("levels.DRAM.latency_ns", "DRAM latency", "ns", 92.0, 0.02)
            }],
            odd: Vec::new(),
        },
    ];
    comparison.skipped = vec![SkippedFile {
        file: "fleet/cut.json".into(),
        reason: "ends in the middle of the document, at line 1 column 200".into(),
    }];
    comparison
}

/// A profile against a fleet's median.
pub(crate) fn against_a_median() -> Comparison {
    let mut comparison = two_profiles();
    comparison.profiles[0] = ComparedProfile {
        name: "median of 40".into(),
        file: String::new(),
        host: String::new(),
        date: String::new(),
        kernel: String::new(),
        hypervisor: None,
        labels: BTreeMap::new(),
        median_of: Some(40),
        ..comparison.profiles[0].clone()
    };
    comparison.curves.clear();
    comparison.fleets = fleet().fleets;
    comparison
}

/// More profiles than a reader compares side by side.
pub(crate) fn many_profiles(count: usize) -> Comparison {
    let mut comparison = two_profiles();
    let (summary, later) = (
        comparison.summaries[0].clone(),
        comparison.profiles[1].clone(),
    );
    for number in 2..count {
        let name = format!("cluster-west-{number:03}.example.org");
        comparison.profiles.push(ComparedProfile {
            name: name.clone(),
            ..later.clone()
        });
        comparison.summaries.push(ComparisonSummary {
            profile: name.clone(),
            ..summary.clone()
        });
        for figure in &mut comparison.figures {
            figure.values.push(figure.values[1]);
            figure.differences.push(figure.differences[1]);
        }
        let mut more: Vec<ComparedCurve> = comparison.curves[..2].to_vec();
        for curve in &mut more {
            curve.profile.clone_from(&name);
        }
        comparison.curves.extend(more);
    }
    comparison
}

/// A comparison of nothing.
pub(crate) fn empty() -> Comparison {
    Comparison {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Comparison,
        profiles: Vec::new(),
        method: ComparisonMethod {
            test: "two-sided normal test".into(),
            correction: "Benjamini–Hochberg".into(),
            false_discovery_rate: 0.05,
            curves: "later = slope · first + shift".into(),
            floors: vec![
                NoiseFloor {
                    figures: "latency of memory".into(),
                    relative: 0.03,
                    absolute: 0.0,
                },
                NoiseFloor {
                    figures: "TLB entries".into(),
                    relative: 0.04,
                    absolute: 0.5,
                },
            ],
        },
        summaries: Vec::new(),
        figures: Vec::new(),
        curves: Vec::new(),
        conditions: Vec::new(),
        overlays: Vec::new(),
        fleets: Vec::new(),
        skipped: Vec::new(),
        guard: None,
        notes: Vec::new(),
    }
}

fn profile(name: &str, labels: [(&str, &str); 2]) -> ComparedProfile {
    ComparedProfile {
        name: name.into(),
        file: format!("runs/{}.json", name.to_lowercase()),
        host: "vm-zen5".into(),
        date: "2025-06-01T12:00:00Z".into(),
        cpu: "AMD EPYC 9B45 (Zen 5)".into(),
        kernel: "6.1.0-37-cloud-amd64".into(),
        hypervisor: Some("KVM".into()),
        labels: labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        incomplete: false,
        median_of: None,
    }
}

fn value(value: f64, share: f64) -> Option<ComparedValue> {
    Some(ComparedValue {
        value,
        low: Some(value * (1.0 - share)),
        high: Some(value * (1.0 + share)),
    })
}

fn figure(
    name: &str,
    title: &str,
    unit: &str,
    worse: Worse,
    [first, later]: [f64; 2],
    verdict: FigureVerdict,
) -> ComparedFigure {
    let relative = later / first - 1.0;
    ComparedFigure {
        name: name.into(),
        part: name.split('.').next().unwrap_or_default().into(),
        title: title.into(),
        unit: unit.into(),
        worse,
        values: vec![value(first, 0.01), value(later, 0.01)],
        differences: vec![
            None,
            Some(FigureDifference {
                absolute: later - first,
                relative: Some(relative),
                relative_low: Some(relative - 0.04),
                relative_high: Some(relative + 0.04),
                p_value: (verdict != FigureVerdict::Unknown).then_some(0.01),
                verdict,
                worse: match worse {
                    Worse::Higher => later > first,
                    Worse::Lower => later < first,
                    Worse::Neither => false,
                },
            }),
        ],
    }
}

fn figures() -> Vec<ComparedFigure> {
    let different = FigureVerdict::Different;
    let mut c2c = figure(
        "c2c.max_ns",
        "core to core, farthest pair",
        "ns",
        Worse::Higher,
        [50.0, 50.0],
        different,
    );
    c2c.values[1] = None;
    c2c.differences[1] = None;
    vec![
        figure(
            "levels.L1.size_bytes",
            "L1 effective size",
            "bytes",
            Worse::Lower,
            [49_000.0, 48_900.0],
            FigureVerdict::Same,
        ),
        figure(
            "levels.DRAM.latency_ns",
            "DRAM latency",
            "ns",
            Worse::Higher,
            [160.0, 178.0],
            different,
        ),
        figure(
            "mlp.thp.local.one_load_cycles",
            "one load, thp",
            "cycles",
            Worse::Higher,
            [700.0, 2500.0],
            different,
        ),
        figure(
            "mlp.thp.local.window.mask_entries",
            "mask fillers: mask registers, thp",
            "",
            Worse::Neither,
            [138.0, 150.0],
            different,
        ),
        figure(
            "bandwidth.memory_max_gb_s",
            "main memory, most",
            "GB/s",
            Worse::Lower,
            [40.0, 45.0],
            different,
        ),
        figure(
            "tlb.parallel_walks",
            "page walks at once",
            "",
            Worse::Lower,
            [2.0, 3.0],
            FigureVerdict::Unknown,
        ),
        c2c,
    ]
}

fn curve(
    [part, name, title]: [&str; 3],
    [x_unit, y_unit]: [&str; 2],
    verdict: Option<CurveVerdict>,
    later: impl Fn(f64) -> f64,
) -> ComparedCurve {
    let known = |low, value, high| {
        Outcome::Known(Figure {
            value,
            low,
            high,
            basis: Basis::Estimated,
        })
    };
    let differs = verdict.is_some_and(|it| it != CurveVerdict::Same);
    let places: Vec<f64> = (1..=12)
        .map(|n| {
            if x_unit == "bytes" {
                f64::from(4096_u32 << n)
            } else {
                f64::from(n)
            }
        })
        .collect();
    ComparedCurve {
        name: name.into(),
        part: part.into(),
        title: title.into(),
        x_unit: x_unit.into(),
        y_unit: y_unit.into(),
        profile: "H0G1".into(),
        shift: known(-55.0, -45.5, -36.0),
        slope: known(1.152, 1.205, 1.258),
        verdict,
        differs_from: differs.then_some(places[3]),
        differs_to: differs.then_some(places[9]),
        median_relative: Some(0.034),
        points: places
            .iter()
            .map(|&x| {
                let first = 20.0 * x.ln();
                CurvePair {
                    x,
                    first,
                    later: later(first),
                }
            })
            .collect(),
    }
}

fn curves() -> Vec<ComparedCurve> {
    let (sizes, loads) = (["bytes", "ns"], ["loads", "cycles"]);
    vec![
        curve(
            [
                "latency",
                "latency.random.thp.64",
                "random, thp, stride 64 B",
            ],
            sizes,
            Some(CurveVerdict::Same),
            |y| y,
        ),
        curve(
            [
                "latency",
                "latency.stride.thp.1024",
                "stride, thp, stride 1024 B",
            ],
            sizes,
            Some(CurveVerdict::Other),
            |y| if y > 200.0 { 1.6 * y } else { y },
        ),
        curve(
            ["mlp", "mlp.thp.local.parallel", "T(N), loads at once, thp"],
            loads,
            Some(CurveVerdict::Shift),
            |y| y + 45.0,
        ),
        curve(
            [
                "mlp",
                "mlp.thp.local.sequential",
                "T(n), loads in sequence, thp",
            ],
            loads,
            Some(CurveVerdict::Both),
            |y| 1.2 * y - 45.0,
        ),
        curve(
            ["mlp", "mlp.4k.local.parallel", "T(N), loads at once, 4k"],
            loads,
            Some(CurveVerdict::Slope),
            |y| 1.2 * y,
        ),
        curve(
            [
                "window",
                "window.scalar.thp.1024",
                "scalar windows of 1024 B, thp",
            ],
            sizes,
            Some(CurveVerdict::Undecided),
            |y| 1.1 * y,
        ),
        curve(
            [
                "window",
                "window.scalar.thp.4096",
                "scalar windows of 4096 B, thp",
            ],
            sizes,
            None,
            |y| y,
        ),
    ]
}

/// Rows for which the rule gives a whole number, a fraction, more than was measured, and nothing.
fn conditions() -> Vec<ConditionRow> {
    let cycles = |value: f64, half: f64| {
        Outcome::Known(ComparedValue {
            value,
            low: Some(value - half),
            high: Some(value + half),
        })
    };
    let time = |loads, cycles, spread| {
        Some(LoadsTime {
            loads,
            cycles,
            spread,
        })
    };
    let first = ConditionRow {
        profile: "H0G0".into(),
        condition: "H0G0, thp pages".into(),
        page: PageKind::Thp,
        node: NodePolicy::LOCAL,
        effective_mlp: cycles(10.0, 0.4),
        throughput_mlp: Outcome::Known(11.2),
        throughput_interval: None,
        one_load_cycles: cycles(200.0, 4.0),
        pair_cycles: cycles(420.0, 2.0),
        below: time(10, 340.0, 2.0),
        reached: time(11, 420.0, 2.0),
        placement_noise: Some(0.015),
        overhead_cycles: Outcome::missing("the first row, which others are held against"),
    };
    vec![
        first.clone(),
        ConditionRow {
            profile: "H0G1".into(),
            condition: "H0G1, 4k pages".into(),
            page: PageKind::Base,
            effective_mlp: cycles(4.4, 0.3),
            placement_noise: Some(0.092),
            throughput_mlp: Outcome::missing("no parallel chases were measured"),
            one_load_cycles: cycles(260.0, 4.0),
            pair_cycles: cycles(520.0, 2.0),
            below: time(5, 495.0, 5.0),
            reached: time(6, 565.0, 5.0),
            overhead_cycles: cycles(60.0, 8.0),
            ..first.clone()
        },
        ConditionRow {
            profile: "H0G1".into(),
            condition: "H0G1, 4k pages, node 1".into(),
            effective_mlp: Outcome::missing("64 loads still take less time"),
            placement_noise: None,
            below: time(64, 410.0, 5.0),
            reached: None,
            overhead_cycles: cycles(1.0, 8.0),
            ..first.clone()
        },
        ConditionRow {
            profile: "H0G1".into(),
            condition: "H0G1, thp pages, interleaved over every node".into(),
            effective_mlp: Outcome::missing("nothing was measured"),
            placement_noise: None,
            throughput_mlp: Outcome::missing("nothing was measured"),
            one_load_cycles: Outcome::missing("nothing was measured"),
            pair_cycles: Outcome::missing("nothing was measured"),
            below: None,
            reached: None,
            overhead_cycles: Outcome::missing("nothing was measured"),
            ..first
        },
    ]
}

fn usual(name: &str, title: &str, unit: &str, median: f64, share: f64) -> FleetFigure {
    FleetFigure {
        name: name.into(),
        part: name.split('.').next().unwrap_or_default().into(),
        title: title.into(),
        unit: unit.into(),
        worse: Worse::Neither,
        count: 40,
        median,
        robust_sigma: share * median,
        p5: median * (1.0 - 1.645 * share),
        p95: median * (1.0 + 1.645 * share),
    }
}

fn slow_host() -> OddProfile {
    let outlier = |name: &str, title: &str, unit: &str, value: f64, median: f64| Outlier {
        name: name.into(),
        title: title.into(),
        unit: unit.into(),
        value,
        median,
        sigmas: 100.0 * (value / median).ln(),
        relative: value / median - 1.0,
        worse: true,
        neutral: false,
    };
    let mut outliers = vec![outlier(
        "levels.DRAM.latency_ns",
        "DRAM latency",
        "ns",
        210.0,
        160.0,
    )];
    for threads in 1..=14 {
        outliers.push(outlier(
            &format!("bandwidth.DRAM.read.{}.gb_s", threads + 1),
            &format!("DRAM read, {} threads", threads + 1),
            "GB/s",
            24.0,
            40.0,
        ));
    }
    outliers.push(Outlier {
        worse: false,
        ..outlier("clock.core_hz", "core clock", "Hz", 4.9e9, 4.06e9)
    });
    outliers.push(Outlier {
        worse: false,
        neutral: true,
        ..outlier(
            "mlp.thp.local.rob_entries",
            "reorder buffer, thp",
            "",
            256.0,
            224.0,
        )
    });
    OddProfile {
        file: "fleet/node17.json".into(),
        host: "node17".into(),
        outliers,
        missing: Vec::new(),
        conditions: vec![OddCondition {
            name: "governor".into(),
            value: "powersave".into(),
            usual: "performance".into(),
        }],
        hints: vec![
            "memory latency is up by 31 % and bandwidth down by 40 %, caches are as usual: \
                     a slow or missing DIMM or channel"
                .into(),
        ],
    }
}

fn lacking_host() -> OddProfile {
    OddProfile {
        file: "fleet/node21.json".into(),
        host: "node21".into(),
        outliers: Vec::new(),
        missing: vec!["the part bandwidth".into(), "tlb.parallel_walks".into()],
        conditions: Vec::new(),
        hints: Vec::new(),
    }
}
