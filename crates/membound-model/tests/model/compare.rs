//! Comparisons with built-in truth: curves that are shifted, scaled or bent, profiles that
//! are another run of the same machine, document 000's table, and fleets with one bad host.

use membound_model::compare::noise::Z95;
use membound_model::compare::relation::{Common, Pair, relate};
use membound_model::compare::{
    BandwidthPointView, BandwidthView, Fleet, LatencyPointView, LatencyView, MlpView, NamedProfile,
    PrefetchPointView, PrefetchView, ProfileView, RawView, Reading, compare, guard, table,
};
use membound_types::{
    Access, BandwidthKernel, Basis, CurveVerdict, Figure, FigureVerdict, Filler, Level, LevelKind,
    MlpCell, MlpMode, NodePolicy, Outcome, PageKind, Pattern, PrefetchPattern, PrefetchState,
};

use crate::random::Random;

/// Trials of a verdict, and how many must be right.
const TRIALS: usize = 400;
const RIGHT: f64 = 0.95;
/// What `compare` grants to tables of loads.
const COMMON: Common = Common {
    slope: 0.06,
    shift: 0.04,
};

/// T(N) of two runs: N cycles each, `M` for every load after the first.
fn table_of(random: &mut Random, noise: f64, later: impl Fn(f64, f64) -> f64) -> Vec<Pair> {
    (1..=20)
        .map(|n| {
            let n = f64::from(n);
            let truth = 200.0 + 22.0 * n;
            let target = later(n, truth);
            Pair {
                x: n,
                first: truth * (1.0 + noise * random.normal()),
                first_sigma: truth * noise,
                later: target * (1.0 + noise * random.normal()),
                later_sigma: target * noise,
            }
        })
        .collect()
}

/// Counts how often noisy curves of a known relation get their verdict.
fn check_verdict(what: &str, right: CurveVerdict, later: impl Fn(f64, f64) -> f64 + Copy) {
    let mut random = Random::new(17);
    for noise in [0.005, 0.02] {
        let mut hits = 0;
        let mut others = Vec::new();
        for trial in 0..TRIALS {
            let mut pairs = table_of(&mut random, noise, later);
            if trial % 2 == 0 {
                // A disturbed cell has no say.
                pairs[7].later *= 1.6;
            }
            let found = relate(&pairs, COMMON).unwrap().verdict;
            if found == right {
                hits += 1;
            } else {
                others.push(found);
            }
        }
        let share = hits as f64 / TRIALS as f64;
        assert!(
            share >= RIGHT,
            "{what} at {noise}: {share}, else {others:?}"
        );
    }
}

#[test]
fn curves_that_follow_from_each_other_get_their_verdict() {
    check_verdict("the same", CurveVerdict::Same, |_, t| t);
    check_verdict("a shift", CurveVerdict::Shift, |_, t| t + 60.0);
    check_verdict("a factor", CurveVerdict::Slope, |_, t| 1.25 * t);
    check_verdict("both", CurveVerdict::Both, |_, t| 1.6 * t - 150.0);
    check_verdict("another shape", CurveVerdict::Other, |n, t| {
        if n > 10.0 { 1.5 * t } else { t }
    });
}

#[test]
fn the_stated_intervals_of_shift_and_slope_hold_the_truth() {
    let mut random = Random::new(5);
    let (mut shifts, mut slopes) = (0, 0);
    for _ in 0..TRIALS {
        let pairs = table_of(&mut random, 0.01, |_, t| 1.3 * t + 40.0);
        let found = relate(&pairs, COMMON).unwrap();
        shifts += usize::from((found.shift.value - 40.0).abs() < Z95 * found.shift.error);
        slopes += usize::from((found.slope.value - 1.3).abs() < Z95 * found.slope.error);
    }
    let share = |hits: usize| hits as f64 / TRIALS as f64;
    assert!(share(shifts) > 0.94, "{}", share(shifts));
    assert!(share(slopes) > 0.94, "{}", share(slopes));
}

#[test]
fn few_or_broken_pairs_have_no_verdict() {
    let mut random = Random::new(1);
    let pairs = table_of(&mut random, 0.01, |_, t| t);
    assert_eq!(relate(&pairs[..3], COMMON), None);
    assert_eq!(relate(&[], COMMON), None);
    let mut broken = pairs.clone();
    for pair in &mut broken[3..] {
        pair.later = f64::NAN;
    }
    assert_eq!(relate(&broken, COMMON), None);
    // All at one place: a shift and a factor explain it as well.
    let flat: Vec<Pair> = (0..6)
        .map(|n| Pair {
            x: f64::from(n),
            first: 100.0,
            first_sigma: 1.0,
            later: 150.0,
            later_sigma: 1.0,
        })
        .collect();
    if let Some(found) = relate(&flat, COMMON) {
        assert_eq!(found.verdict, CurveVerdict::Undecided);
    }
}

/// A machine's truth; a run of it is drawn with the scatter between runs.
#[derive(Clone, Copy)]
struct Machine {
    cpu: &'static str,
    memory_ns: f64,
    memory_gb_s: f64,
    small_pages: f64,
    clock: f64,
    prefetch: f64,
}

const USUAL: Machine = Machine {
    cpu: "usual",
    memory_ns: 100.0,
    memory_gb_s: 50.0,
    small_pages: 1.15,
    clock: 1.0,
    prefetch: 0.1,
};

impl Machine {
    fn run(self, host: &str, random: &mut Random) -> ProfileView {
        let mut noisy = |value: f64, sigma: f64| value * (sigma * random.normal()).exp();
        let level = |name: &str, size: Option<u64>, ns: f64, clock: f64| Level {
            name: name.to_owned(),
            kind: if size.is_some() {
                LevelKind::Cache
            } else {
                LevelKind::Memory
            },
            size_bytes: size,
            size_low_bytes: size.map(|size| size - size / 20),
            size_high_bytes: size.map(|size| size + size / 20),
            latency_ns: ns,
            latency_low_ns: ns * 0.99,
            latency_high_ns: ns * 1.01,
            latency_cycles: ns * 4.0 * clock,
            line_bytes: Some(64),
            line_basis: None,
            declared_bytes: size,
            note: None,
        };
        let clock = self.clock;
        let levels = vec![
            level("L1", Some(48 << 10), noisy(1.0 / clock, 0.004), clock),
            level("L2", Some(1 << 20), noisy(3.5 / clock, 0.008), clock),
            level("L3", Some(32 << 20), noisy(14.0 / clock, 0.02), clock),
            level("DRAM", None, noisy(self.memory_ns, 0.012), clock),
        ];
        let mut points = Vec::new();
        for (page, factor) in [(PageKind::Thp, 1.0), (PageKind::Base, self.small_pages)] {
            for step in 0..60 {
                let size_bytes = (f64::from(step) * 0.3).exp2() as u64 * 16_384;
                let truth = match size_bytes {
                    0..=49_152 => 1.0 / clock,
                    49_153..=1_048_576 => 3.5 / clock,
                    1_048_577..=33_554_432 => 14.0 / clock,
                    _ => self.memory_ns * factor,
                };
                let ns = noisy(truth, 0.012);
                points.push(LatencyPointView {
                    size_bytes,
                    stride_bytes: 64,
                    pattern: Pattern::Random,
                    access: Access::Clean,
                    page,
                    node: NodePolicy::LOCAL,
                    prefetch: PrefetchState::Default,
                    threads: 1,
                    ns,
                    ns_low: ns * 0.995,
                    ns_high: ns * 1.005,
                });
            }
        }
        let bandwidth = [
            ("L1", 500.0 * clock),
            ("L2", 200.0 * clock),
            ("L3", 100.0 * clock),
            ("DRAM", self.memory_gb_s),
        ]
        .into_iter()
        .map(|(name, truth)| {
            let gb_s = noisy(truth, 0.01);
            BandwidthPointView {
                kernel: BandwidthKernel::Read,
                size_bytes: 1 << 20,
                level: Some(name.to_owned()),
                threads: 1,
                gb_s,
                gb_s_low: gb_s * 0.99,
                gb_s_high: gb_s * 1.01,
            }
        })
        .collect();
        let prefetch = [64, 128, 256, 512]
            .into_iter()
            .map(|stride_bytes| {
                let ratio = noisy(self.prefetch, 0.05);
                PrefetchPointView {
                    pattern: PrefetchPattern::Forward { stride_bytes },
                    prefetch: PrefetchState::Default,
                    ns: ratio * self.memory_ns,
                    random_ns: self.memory_ns,
                    ratio,
                    batches: RawView {
                        raw: vec![1.0, 1.01, 0.99, 1.0, 1.02, 0.98],
                    },
                }
            })
            .collect();
        let mut view = ProfileView {
            host: host.to_owned(),
            levels,
            latency: LatencyView {
                points,
                ..LatencyView::default()
            },
            bandwidth: BandwidthView {
                points: bandwidth,
                ..BandwidthView::default()
            },
            prefetch: PrefetchView {
                points: prefetch,
                ..PrefetchView::default()
            },
            core_clock_hz: Some(Figure {
                value: 4e9 * clock,
                low: 3.99e9 * clock,
                high: 4.01e9 * clock,
                basis: Basis::Measured,
            }),
            ..ProfileView::default()
        };
        view.cpu.model_name = self.cpu.to_owned();
        view
    }

    fn profile(self, host: &str, random: &mut Random) -> NamedProfile {
        NamedProfile {
            file: format!("{host}.json"),
            view: self.run(host, random),
        }
    }
}

#[test]
fn runs_of_the_same_machine_differ_by_noise_only() {
    let mut random = Random::new(3);
    let (mut figures, mut curves, mut alarms) = (0, 0, 0);
    let trials = 100;
    for _ in 0..trials {
        let pair = [
            USUAL.profile("a", &mut random),
            USUAL.profile("b", &mut random),
        ];
        let found = compare(&pair, None);
        let different = found.figures.iter().any(|figure| {
            figure.differences[1].is_some_and(|it| it.verdict == FigureVerdict::Different)
        });
        figures += usize::from(different);
        let same = |verdict| verdict == Some(CurveVerdict::Same);
        curves += usize::from(found.curves.iter().any(|curve| !same(curve.verdict)));
        alarms += usize::from(guard::judge(&found, 0.0).exceeded);
    }
    // The false discovery rate of figures of one machine is the chance of any.
    assert!(figures <= trials / 20, "{figures}");
    assert!(curves <= trials / 20, "{curves}");
    assert_eq!(alarms, figures.min(alarms));
}

#[test]
fn a_slower_memory_is_found_and_guarded_against() {
    let mut random = Random::new(9);
    let slow = Machine {
        memory_ns: 130.0,
        memory_gb_s: 38.0,
        ..USUAL
    };
    for _ in 0..20 {
        let pair = [
            USUAL.profile("a", &mut random),
            slow.profile("b", &mut random),
        ];
        let found = compare(&pair, None);
        let verdict = |name: &str| {
            let figure = found.figures.iter().find(|it| it.name == name).unwrap();
            let difference = figure.differences[1].unwrap();
            (difference.verdict, difference.worse)
        };
        let worse = (FigureVerdict::Different, true);
        assert_eq!(verdict("levels.DRAM.latency_ns"), worse);
        assert_eq!(verdict("latency.thp.256MiB_ns"), worse);
        assert_eq!(verdict("bandwidth.DRAM.read.1.gb_s"), worse);
        assert_eq!(verdict("levels.L1.latency_ns").0, FigureVerdict::Same);
        let judged = guard::judge(&found, 5.0);
        assert!(judged.exceeded);
        let worst = &judged.worst[0];
        assert!(worst.relative.abs() > 0.15, "{worst:?}");
        assert!(!guard::judge(&found, 60.0).exceeded);
        // A memory that got faster is no reason to fail.
        let better = [pair[1].clone(), pair[0].clone()];
        assert!(!guard::judge(&compare(&better, None), 5.0).exceeded);
        // The change is in memory alone, so the curve has another shape.
        let curve = found
            .curves
            .iter()
            .find(|curve| curve.name.starts_with("latency.random.thp"))
            .unwrap();
        assert_eq!(curve.verdict, Some(CurveVerdict::Other));
        assert!(
            curve.differs_from.unwrap() > 33e6,
            "{:?}",
            curve.differs_from
        );
    }
}

#[test]
fn figures_that_one_profile_lacks_are_missing_and_not_zero() {
    let mut random = Random::new(2);
    let first = USUAL.profile("a", &mut random);
    let mut later = first.clone();
    later.view.bandwidth.points.clear();
    later.view.cpu.model_name = "another".to_owned();
    let found = compare(&[first, later], None);
    let figure = found
        .figures
        .iter()
        .find(|it| it.name == "bandwidth.DRAM.read.1.gb_s")
        .unwrap();
    assert!(figure.values[0].is_some() && figure.values[1].is_none());
    assert_eq!(figure.differences[1], None);
    assert_eq!(found.summaries[0].missing, 5);
    assert_eq!(found.summaries[0].same, found.summaries[0].compared);
    assert!(
        found.notes[0].contains("another processor"),
        "{:?}",
        found.notes
    );
}

/// A condition of document 000, as its chapters print it.
fn condition(
    labels: &[(&str, &str)],
    page: PageKind,
    times: &[(u32, f64, f64)],
    one: (f64, f64),
    pair: (f64, f64),
) -> ProfileView {
    let cell = |mode, loads, (cycles, spread): (f64, f64)| MlpCell {
        mode,
        loads,
        fillers: 1,
        filler: Filler::Nop,
        area_bytes: 1 << 28,
        node: NodePolicy::LOCAL,
        page,
        cycles,
        spread,
        misses: Outcome::missing("no counters"),
    };
    let mut cells = vec![
        cell(MlpMode::Sequential, 1, one),
        cell(MlpMode::Sequential, 2, pair),
    ];
    for (loads, cycles, spread) in times {
        cells.push(cell(MlpMode::Parallel, *loads, (*cycles, *spread)));
    }
    let mut view = ProfileView {
        mlp: MlpView {
            cells,
            page,
            ..MlpView::default()
        },
        ..ProfileView::default()
    };
    view.conditions.labels = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    view
}

#[test]
fn the_documents_table_comes_out_of_the_documents_figures() {
    let guest = |host, guest| vec![("host-thp", host), ("guest-thp", guest)];
    let rows = [
        condition(
            &[],
            PageKind::Thp,
            &[(2, 220.0, 2.0), (10, 340.0, 2.0), (11, 420.0, 2.0)],
            (200.0, 4.0),
            (420.0, 2.0),
        ),
        condition(
            &[],
            PageKind::Base,
            &[(5, 495.0, 5.0), (6, 565.0, 5.0)],
            (260.0, 4.0),
            (520.0, 2.0),
        ),
        condition(
            &guest("on", "off"),
            PageKind::Base,
            &[(4, 630.0, 2.0), (5, 690.0, 2.0)],
            (350.0, 10.0),
            (650.0, 2.0),
        ),
        condition(
            &guest("off", "off"),
            PageKind::Base,
            &[(4, 725.0, 15.0), (5, 825.0, 25.0)],
            (435.0, 15.0),
            (800.0, 10.0),
        ),
        condition(
            &guest("off", "on"),
            PageKind::Thp,
            &[(3, 540.0, 5.0), (4, 600.0, 5.0)],
            (330.0, 5.0),
            (600.0, 5.0),
        ),
    ];
    let profiles: Vec<NamedProfile> = rows
        .into_iter()
        .enumerate()
        .map(|(index, view)| NamedProfile {
            file: format!("{index}.json"),
            view,
        })
        .collect();
    let found = compare(&profiles, None);
    let table = &found.conditions;
    let conditions: Vec<&str> = table.iter().map(|row| row.condition.as_str()).collect();
    assert_eq!(
        conditions,
        [
            "thp pages",
            "4k pages",
            "H0G1, 4k pages",
            "H1G1, 4k pages",
            "H1G0, thp pages"
        ]
    );
    let known = |row: usize| table[row].effective_mlp.known().unwrap().value;
    for (row, low, high) in [
        (0, 10.0, 10.0),
        (1, 4.0, 5.0),
        (2, 3.0, 4.0),
        (3, 3.0, 4.0),
        (4, 3.0, 3.0),
    ] {
        let mlp = known(row);
        assert!(mlp >= low - 1e-9 && mlp <= high + 1e-9, "row {row}: {mlp}");
    }
    let between = (table[1].below.unwrap(), table[1].reached.unwrap());
    assert_eq!((between.0.loads, between.1.loads), (5, 6));
    assert_eq!((between.0.cycles, between.1.cycles), (495.0, 565.0));
    assert!(table[0].overhead_cycles.known().is_none());
    for (row, low, high) in [(1, 52.0, 68.0), (2, 136.0, 164.0), (4, 121.0, 139.0)] {
        let overhead = table[row].overhead_cycles.known().unwrap();
        assert!((overhead.low.unwrap() - low).abs() < 1e-9, "{overhead:?}");
        assert!((overhead.high.unwrap() - high).abs() < 1e-9, "{overhead:?}");
    }
    assert!(table::rows("empty", &ProfileView::default()).is_empty());
}

/// A fleet of `count` usual machines and one other.
fn fleet_with(odd: Machine, count: usize, seed: u64) -> Fleet {
    let mut random = Random::new(seed);
    let mut fleet = Fleet::default();
    for number in 0..count {
        let host = format!("host{number:03}");
        let view = USUAL.run(&host, &mut random);
        fleet.add(Reading::of(&format!("{host}.json"), &view));
    }
    let view = odd.run("odd", &mut random);
    fleet.add(Reading::of("odd.json", &view));
    fleet
}

#[test]
fn one_bad_host_is_named_with_a_cause_and_nobody_else() {
    let check = |odd: Machine, hint: &str| {
        for (count, seed) in [(12, 1), (60, 2), (300, 3)] {
            let groups = fleet_with(odd, count, seed).finish(0.05);
            assert_eq!(groups.len(), 1);
            let names: Vec<&str> = groups[0].odd.iter().map(|it| it.host.as_str()).collect();
            assert_eq!(names, ["odd"], "{hint}, {count}");
            let hints = &groups[0].odd[0].hints;
            assert!(
                hints.iter().any(|it| it.contains(hint)),
                "{hint}: {hints:?}"
            );
            assert!(groups[0].odd[0].outliers[0].worse);
        }
    };
    let slow = Machine {
        memory_ns: 140.0,
        memory_gb_s: 30.0,
        ..USUAL
    };
    check(slow, "DIMM");
    check(
        Machine {
            memory_gb_s: 25.0,
            ..USUAL
        },
        "channel without DIMM",
    );
    check(
        Machine {
            clock: 0.6,
            ..USUAL
        },
        "core clock",
    );
    check(
        Machine {
            small_pages: 1.8,
            ..USUAL
        },
        "page walks",
    );
    check(
        Machine {
            prefetch: 0.97,
            ..USUAL
        },
        "prefetchers are off",
    );
}

#[test]
fn a_fleet_without_a_bad_host_names_none() {
    for seed in 0..6 {
        let groups = fleet_with(USUAL, 80, seed).finish(0.05);
        assert_eq!(groups[0].odd, [], "seed {seed}");
        assert_eq!(groups[0].profiles, 81);
    }
}

#[test]
fn processors_are_never_mixed_and_few_profiles_name_no_outlier() {
    let other = Machine {
        cpu: "other",
        memory_ns: 300.0,
        ..USUAL
    };
    let fleet = fleet_with(other, 20, 4);
    let groups = fleet.finish(0.05);
    assert_eq!(groups.len(), 2);
    assert_eq!((groups[0].profiles, groups[1].profiles), (20, 1));
    assert!(groups[0].odd.is_empty() && groups[1].odd.is_empty());
    assert_eq!(groups[1].limit_sigmas, None);
    let (head, figures) = fleet.reference("usual").unwrap();
    assert_eq!(head.median_of, Some(20));
    let memory = figures
        .iter()
        .find(|it| it.name == "levels.DRAM.latency_ns")
        .unwrap();
    assert!((memory.uncertain.value - 100.0).abs() < 3.0);
    assert!(fleet.reference("none").is_none());
}

#[test]
fn a_file_beside_a_fleet_is_held_against_its_median() {
    let mut random = Random::new(8);
    let fleet = fleet_with(USUAL, 40, 5);
    let slow = Machine {
        memory_ns: 150.0,
        ..USUAL
    };
    let found = compare(
        &[slow.profile("mine", &mut random)],
        fleet.reference("usual"),
    );
    assert_eq!(found.profiles.len(), 2);
    assert_eq!(found.profiles[0].median_of, Some(41));
    assert!(found.curves.is_empty());
    assert!(guard::judge(&found, 10.0).exceeded);
    let usual = compare(
        &[USUAL.profile("mine", &mut random)],
        fleet.reference("usual"),
    );
    assert!(!guard::judge(&usual, 10.0).exceeded);
}

#[test]
fn a_part_that_is_missing_as_a_whole_is_named_once() {
    let mut random = Random::new(6);
    let mut fleet = fleet_with(USUAL, 20, 7);
    let mut view = USUAL.run("partial", &mut random);
    view.bandwidth.points.clear();
    fleet.add(Reading::of("partial.json", &view));
    let groups = fleet.finish(0.05);
    assert_eq!(groups[0].odd.len(), 1);
    assert_eq!(groups[0].odd[0].missing, ["the part bandwidth"]);
    let empty = Fleet::default();
    assert!(empty.is_empty() && empty.finish(0.05).is_empty());
}
