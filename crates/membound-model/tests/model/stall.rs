//! Stalls of programs with known truth.

use membound_model::stall::{
    AccessKind, ByLevel, CachedLoop, Contended, Costs, Estimate, Evidence, Executed, Mixer,
    NoMixture, Served, Stall, Stream, Work, combine,
};
use membound_testkit::Random;
use membound_types::{CalibratedLevel, Calibration, TickCount};

const PATCH: &str = "patch";
const TICK_HZ: f64 = 2.6e9;
const COSTS: Costs = Costs {
    l1_ns: 1.0,
    locked_ns: 5.0,
    core_hz: 4e9,
    last_cache_ns: 16.0,
};

/// Name, latency in nanoseconds and its spread; timing itself adds a constant cost in [`ticks`].
const LEVELS: [(&str, f64, f64); 5] = [
    ("L1", 1.0, 0.0),
    ("L2", 3.5, 0.0),
    ("L3", 16.0, 6.0),
    ("DRAM", 160.0, 60.0),
    ("core", 60.0, 25.0),
];

/// Ticks of a timed load on a timer that advances in steps of 26.
fn ticks(level: usize, random: &mut Random) -> u32 {
    let (_, latency, spread) = LEVELS[level];
    let mut ns = latency + spread * (random.unit() + random.unit() - 1.0);
    if random.unit() < 2e-4 {
        ns += 3000.0 * random.unit();
    }
    let exact = 47.0 + ns * TICK_HZ / 1e9;
    let phase = random.unit();
    ((exact / 26.0 + phase).floor() * 26.0) as u32
}

fn histogram(shares: &[(usize, f64)], count: usize, seed: u64) -> Vec<TickCount> {
    let mut random = Random::new(seed);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..count {
        let mut left = random.unit();
        let level = shares
            .iter()
            .find(|(_, share)| {
                left -= share;
                left < 0.0
            })
            .map_or(shares[0].0, |(level, _)| *level);
        *counts.entry(ticks(level, &mut random)).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|(ticks, count)| TickCount { ticks, count })
        .collect()
}

fn calibration() -> Calibration {
    let levels = (0..LEVELS.len())
        .map(|level| CalibratedLevel {
            name: LEVELS[level].0.to_owned(),
            area_bytes: 0,
            latency_ns: LEVELS[level].1,
            count: 5000,
            ticks: histogram(&[(level, 1.0)], 5000, 77 + level as u64),
            ..CalibratedLevel::default()
        })
        .collect();
    Calibration {
        levels,
        tick_hz: TICK_HZ,
        patch: PATCH.to_owned(),
        ..Calibration::default()
    }
}

fn mixer() -> Mixer {
    Mixer::new(&calibration(), PATCH).expect("the calibration is of this patch")
}

#[test]
fn each_level_is_found_and_its_latency_too() {
    let mixer = mixer();
    assert!(mixer.l1_and_l2_together());
    for (level, (name, latency, _)) in LEVELS.iter().enumerate() {
        let mixture = mixer.fit(&histogram(&[(level, 1.0)], 2000, 5)).unwrap();
        assert_eq!(mixture.timed, 2000);
        let share = if level < 2 {
            mixture.indistinguishable[0].1
        } else {
            mixture.levels[level].share
        };
        assert!(share.value > 0.9, "{name}: {mixture:#?}");
        assert!(share.low < share.value && share.value <= share.high);
        let error = (mixture.mean_ns.value - latency).abs();
        assert!(error < 0.6_f64.max(0.04 * latency), "{name}: {mixture:#?}");
        assert!(mixture.mean_ns.low <= latency + 0.6 && latency - 0.6 <= mixture.mean_ns.high);
        assert!(mixture.misfit < 0.03, "{name}: {}", mixture.misfit);
        let sum: f64 = mixture.levels.iter().map(|level| level.share.value).sum();
        assert!((sum + mixture.beyond.value - 1.0).abs() < 1e-6);
    }
}

#[test]
fn mixtures_lie_in_their_intervals_as_a_rule() {
    let mixer = mixer();
    let shares = [(0, 0.7), (2, 0.1), (3, 0.2)];
    let mut inside = 0;
    let runs = 60;
    for seed in 0..runs {
        let mixture = mixer.fit(&histogram(&shares, 600, 1000 + seed)).unwrap();
        let dram = mixture.levels[3].share;
        assert!((dram.value - 0.2).abs() < 0.08, "{mixture:#?}");
        inside += u32::from(dram.low <= 0.2 && 0.2 <= dram.high);
        assert!(dram.high - dram.low < 0.2);
    }
    assert!(inside >= 53, "{inside} of {runs}");
}

#[test]
fn few_samples_give_wide_intervals() {
    let mixer = mixer();
    let few = mixer.fit(&histogram(&[(3, 1.0)], 5, 3)).unwrap();
    assert!(few.levels[3].share.low < 0.65, "{few:#?}");
    assert_eq!(mixer.fit(&[]), None);
    let one = TickCount {
        ticks: 78,
        count: 1,
    };
    let one = mixer.fit(&[one]).unwrap();
    assert!(one.indistinguishable[0].1.low < 0.3, "{one:#?}");
}

#[test]
fn loads_slower_than_every_level_are_separated() {
    let mixer = mixer();
    let slow = [TickCount {
        ticks: 2600,
        count: 500,
    }];
    let mixture = mixer.fit(&slow).unwrap();
    assert!(mixture.beyond.value > 0.9, "{mixture:#?}");
    assert!(mixture.beyond_ns > 300.0);
    assert!(mixture.excess_ns.low > 300.0);
}

#[test]
fn latencies_between_levels_do_not_fit() {
    let mixer = mixer();
    let between = [TickCount {
        ticks: 130,
        count: 1000,
    }];
    assert!(mixer.fit(&between).unwrap().misfit > 0.2);
}

#[test]
fn another_cores_cache_with_the_latency_of_memory_counts_as_memory() {
    let mut calibration = calibration();
    // Lines seem to come from there, slightly faster than from memory.
    let mut random = Random::new(99);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..5000 {
        let exact = 47.0 + (135.0 + 30.0 * random.unit()) * TICK_HZ / 1e9;
        *counts.entry((exact / 26.0) as u32 * 26).or_insert(0) += 1;
    }
    calibration.levels[4].ticks = counts
        .into_iter()
        .map(|(ticks, count)| TickCount { ticks, count })
        .collect();
    calibration.levels[4].latency_ns = 150.0;
    let mixer = Mixer::new(&calibration, PATCH).unwrap();
    let histogram = calibration.levels[4].ticks.clone();
    let mixture = mixer.fit(&histogram).unwrap();
    assert_eq!(mixture.indistinguishable.last().unwrap().0, [3, 4]);
    let stall = Stall::of(&site(5.0, 5e9 / 150.0, &mixture), &COSTS);
    assert!(
        stall.levels.get(Served::Dram) > 0.95 * stall.stall_ns.value,
        "{stall:#?}"
    );
    assert_eq!(stall.levels.get(Served::Remote), 0.0);
}

#[test]
fn caches_with_similar_latencies_are_separated_as_far_as_the_average_allows() {
    // While the second cache was calibrated, another program used half of it.
    let mut calibration = calibration();
    calibration.levels[1].ticks = histogram(&[(1, 0.5), (2, 0.5)], 5000, 31);
    let mixer = Mixer::new(&calibration, PATCH).unwrap();
    let at = |shares: &[(usize, f64)], latency_ns: f64| {
        let mixture = mixer.fit(&histogram(shares, 4000, 9)).unwrap();
        assert_eq!(mixture.indistinguishable[0].0, [0, 1, 2]);
        let stall = Stall::of(&site(5.0, 5e9 / latency_ns, &mixture), &COSTS);
        let of = |served| stall.levels.get(served) / stall.stall_ns.value;
        (of(Served::L1), of(Served::L3))
    };
    let (near, far) = at(&[(2, 1.0)], 16.0);
    assert!(far > 0.9 && near < 0.1, "{near} {far}");
    let (near, far) = at(&[(1, 1.0)], 3.5);
    assert!(near > 0.9 && far < 0.1, "{near} {far}");
    // Half of the loads are hits: at least some of the others came from the third cache.
    let (near, far) = at(&[(0, 0.5), (2, 0.5)], 8.5);
    assert!(far > 0.6 && near + far > 0.9, "{near} {far}");
}

#[test]
fn calibrations_that_cannot_be_used() {
    let good = calibration();
    assert_eq!(
        Mixer::new(&good, "other").unwrap_err(),
        NoMixture::OtherPatch
    );
    let mut without = good.clone();
    without.levels.remove(0);
    assert_eq!(
        Mixer::new(&without, PATCH).unwrap_err(),
        NoMixture::NoInnermost
    );
    let empty = Calibration {
        patch: PATCH.to_owned(),
        ..Calibration::default()
    };
    assert_eq!(
        Mixer::new(&empty, PATCH).unwrap_err(),
        NoMixture::NotCalibrated
    );
    let mut broken = good;
    broken.levels[1].ticks.clear();
    assert!(Mixer::new(&broken, PATCH).is_ok(), "one level less");
}

/// A site of a run of 10 seconds with 10 000 samples.
fn site<'a>(
    seconds: f64,
    executions: f64,
    mixture: &'a membound_model::stall::Mixture,
) -> Evidence<'a> {
    Evidence {
        access_kind: AccessKind::Reads,
        time_ns: seconds * 1e9,
        early_ns: 0.0,
        total_ns: 10e9,
        samples: 1e4,
        confidence: 1.0,
        executed: Some(Executed {
            count: executions,
            low: 0.96 * executions,
            high: 1.04 * executions,
        }),
        mixture: Some(mixture),
        stream: None,
        contended: None,
        work: None,
        cached_loop: None,
    }
}

#[test]
fn prefetches_wait_for_what_they_take_beyond_their_work() {
    let mixture = mixer().fit(&histogram(&[(0, 1.0)], 2000, 31)).unwrap();
    let with = |seconds: f64, executions: f64| {
        let evidence = Evidence {
            access_kind: AccessKind::Prefetches,
            mixture: None,
            ..site(seconds, executions, &mixture)
        };
        Stall::of(&evidence, &COSTS)
    };
    // 40 ns each: ten lines on their way take 400 ns each. Its own work is a cycle or two.
    let far = with(8.0, 2e8);
    assert!(far.stall_ns.value > 7.8e9, "{far:?}");
    assert!(far.stall_ns.low > 7.2e9, "{far:?}");
    assert!(far.levels.get(Served::Dram) > 0.99 * far.stall_ns.value);
    // 0.1 ns each: no time to wait, and where the lines come from cannot be told.
    let near = with(0.2, 2e9);
    assert!(near.stall_ns.value < 0.05e9, "{near:?}");
    assert_eq!(near.levels.get(Served::Dram), 0.0);
    // Without counts anything is possible.
    let evidence = Evidence {
        access_kind: AccessKind::Prefetches,
        mixture: None,
        executed: None,
        ..site(8.0, 1.0, &mixture)
    };
    let unknown = Stall::of(&evidence, &COSTS).stall_ns;
    assert!(unknown.low < 0.1e9 && unknown.high > 7.9e9, "{unknown:?}");
}

#[test]
fn an_uncertain_count_does_not_spoil_the_latencies() {
    let mixer = mixer();
    for (level, (name, latency, _)) in LEVELS.iter().enumerate() {
        let mixture = mixer.fit(&histogram(&[(level, 1.0)], 3000, 8)).unwrap();
        let executions = 5e9 / latency;
        let truth = 5e9 - executions * COSTS.l1_ns;
        for factor in [0.7, 1.0, 1.5] {
            let mut evidence = site(5.0, executions * factor, &mixture);
            evidence.executed = Some(Executed {
                count: executions * factor,
                low: 0.41 * executions * factor,
                high: 1.59 * executions * factor,
            });
            let stall = Stall::of(&evidence, &COSTS);
            let error = (stall.stall_ns.value - truth).abs() / 5e9;
            // For hits the count determines the estimate.
            let bound = if level == 0 { 0.35 } else { 0.15 };
            assert!(error < bound, "{name} {factor}: {error} {stall:#?}");
        }
    }
}

#[test]
fn contended_lines_cost_the_time_that_hits_leave() {
    let mixture = mixer().fit(&histogram(&[(0, 1.0)], 2000, 31)).unwrap();
    // Four nanoseconds per execution, at loads that look like hits.
    let mut evidence = site(4.0, 1e9, &mixture);
    assert!(Stall::of(&evidence, &COSTS).stall_ns.value < 0.5e9);
    let contention = |share, excess_ns| {
        Some(Contended {
            share,
            excess_ns,
            hit_share: 1.0,
        })
    };
    evidence.contended = contention(1.0, 20.0);
    let stall = Stall::of(&evidence, &COSTS);
    assert!((stall.stall_ns.value - 3e9).abs() < 0.05e9, "{stall:#?}");
    assert!(stall.levels.get(Served::Remote) > 0.99 * stall.stall_ns.value);
    // One of ten accesses that wait together.
    let mut together = contention(1.0, 20.0);
    together.as_mut().unwrap().hit_share = 0.1;
    evidence.contended = together;
    let stall = Stall::of(&evidence, &COSTS);
    assert!((stall.stall_ns.value - 3.9e9).abs() < 0.05e9, "{stall:#?}");
    assert!(stall.stall_ns.low < 3.1e9, "{stall:#?}");
    // Little contention: the stall is no more than its cost.
    evidence.contended = contention(1.0, 0.5);
    let seldom = Stall::of(&evidence, &COSTS).stall_ns.value;
    assert!((seldom - 0.5e9).abs() < 0.05e9, "{seldom}");
    // A locked operation takes longer even without contention.
    evidence.access_kind = AccessKind::Locked;
    evidence.time_ns = 8e9;
    evidence.contended = contention(1.0, 20.0);
    let locked = Stall::of(&evidence, &COSTS).stall_ns.value;
    assert!((locked - 3e9).abs() < 0.05e9, "{locked}");
}

#[test]
fn a_chase_stalls_by_all_but_the_hits_cost() {
    let mixer = mixer();
    for (level, (name, latency, _)) in LEVELS.iter().enumerate() {
        let mixture = mixer.fit(&histogram(&[(level, 1.0)], 3000, 8)).unwrap();
        let executions = 5e9 / latency;
        let stall = Stall::of(&site(5.0, executions, &mixture), &COSTS);
        let truth = 5e9 - executions * COSTS.l1_ns;
        let found = stall.stall_ns;
        assert!(
            (found.value - truth).abs() < 0.05 * 5e9,
            "{name}: {stall:#?}"
        );
        assert!(
            found.low <= truth + 1e8 && truth - 1e8 <= found.high,
            "{name}: {stall:#?}"
        );
        let total = stall.levels.total();
        assert!((total - found.value).abs() < 1.0, "{name}");
        if level > 0 {
            let level = match Served::of(name) {
                Served::L2 => Served::L1,
                served => served,
            };
            assert!(stall.levels.get(level) > 0.85 * total, "{name}: {stall:#?}");
        }
    }
}

#[test]
fn hits_do_not_stall_however_many_samples_fall_there() {
    let mixture = mixer().fit(&histogram(&[(0, 1.0)], 2000, 21)).unwrap();
    // A loop of independent hits: less than a hit's latency each.
    let loads = Stall::of(&site(9.0, 9e9 / 0.4, &mixture), &COSTS);
    assert_eq!(loads.stall_ns.value, 0.0);
    assert!(loads.stall_ns.high < 0.4 * 10e9, "{loads:#?}");
    // A chain of additions with operands from memory: the program waits for the arithmetic.
    let chain = Stall::of(&site(9.0, 9e9 / 3.0, &mixture), &COSTS);
    assert!(chain.stall_ns.value < 0.1 * 9e9, "{chain:#?}");
}

#[test]
fn overlapping_misses_cost_their_exposed_time() {
    let mixture = mixer().fit(&histogram(&[(3, 1.0)], 2000, 22)).unwrap();
    // Eight nanoseconds per load, with twenty loads in flight.
    let gather = Stall::of(&site(8.0, 1e9, &mixture), &COSTS);
    assert!(gather.stall_ns.value > 0.93 * 8e9, "{gather:#?}");
    assert!(gather.stall_ns.value <= 8e9);
    // Rare misses in a loop with other work.
    let rare = [(0, 0.99), (3, 0.01)];
    let mixture = mixer().fit(&histogram(&rare, 4000, 23)).unwrap();
    let mixed = Stall::of(&site(6.0, 1e9, &mixture), &COSTS);
    let truth = 1e9 * 0.01 * 160.0;
    assert!(
        (mixed.stall_ns.value / truth - 1.0).abs() < 0.35,
        "{mixed:#?}"
    );
    assert!(mixed.stall_ns.low <= truth && truth <= mixed.stall_ns.high);
}

#[test]
fn a_stream_stalls_although_its_loads_are_fast() {
    let mixture = mixer()
        .fit(&histogram(&[(0, 0.95), (1, 0.05)], 2000, 24))
        .unwrap();
    let mut evidence = site(4.0, 1e9, &mixture);
    let without = Stall::of(&evidence, &COSTS);
    assert!(without.stall_ns.value < 0.5e9, "{without:#?}");
    // Eight bytes per execution: an eighth of a line, at 20 ns per line.
    evidence.stream = Some(Stream {
        lines_per_execution: 0.125,
        line_ns: 20.0,
        other_streams_ns: 0.0,
        other_streams: 0,
        function_ns: 4.0e9,
        served: Served::Dram,
    });
    let with = Stall::of(&evidence, &COSTS);
    assert!((with.stall_ns.value - 2.5e9).abs() < 0.3e9, "{with:#?}");
    assert!(with.levels.get(Served::Dram) > 0.8 * with.stall_ns.value);
    assert!(with.stall_ns.high > 2.8e9);
    // Hits alone would take longer than the measured time. At half of the bandwidth most of the wait
    // is hidden, at the full bandwidth none is.
    for (seconds, low, high) in [(2.5, 2.2e9, 2.5e9), (5.0, 1.0e9, 4.1e9)] {
        let mut evidence = site(seconds, 8e9, &mixture);
        evidence.stream = Some(Stream {
            lines_per_execution: 0.125,
            line_ns: 2.5,
            other_streams_ns: 0.0,
            other_streams: 0,
            function_ns: seconds * 1e9,
            served: Served::Dram,
        });
        let found = Stall::of(&evidence, &COSTS).stall_ns;
        assert!((low..=high).contains(&found.value), "{seconds} {found:?}");
    }
}

#[test]
fn a_triad_that_uses_all_bandwidth_stalls_for_all_but_its_work() {
    let mixture = mixer()
        .fit(&histogram(&[(0, 0.95), (1, 0.05)], 2000, 24))
        .unwrap();
    // 10⁹ iterations of 8 bytes from each of three arrays, one of which is written: four lines in
    // eight iterations, at 2.5 ns per line. From the innermost cache the loop takes 0.45 s.
    let (iterations, seconds, from_l1) = (1e9, 1.25, 0.45e9);
    let truth = seconds * 1e9 - from_l1;
    let mut evidence = site(seconds, iterations, &mixture);
    evidence.stream = Some(Stream {
        lines_per_execution: 0.125,
        line_ns: 2.5,
        other_streams_ns: 3.0 * 0.125 * 2.5,
        other_streams: 3,
        function_ns: seconds * 1e9,
        served: Served::Dram,
    });
    let stall = Stall::of(&evidence, &COSTS);
    let error = (stall.stall_ns.value - truth).abs() / (seconds * 1e9);
    assert!(error < 0.15, "{truth} {stall:#?}");
    assert!(stall.stall_ns.low <= truth && truth <= stall.stall_ns.high);
    assert!(stall.levels.get(Served::Dram) > 0.8 * stall.stall_ns.value);
}

#[test]
fn stores_wait_for_room() {
    let evidence = Evidence {
        access_kind: AccessKind::Writes,
        mixture: None,
        ..site(
            4.0,
            1e9,
            &mixer().fit(&histogram(&[(0, 1.0)], 10, 1)).unwrap(),
        )
    };
    let stall = Stall::of(&evidence, &COSTS);
    assert!((stall.stall_ns.value - 3e9).abs() < 1.0, "{stall:#?}");
    assert_eq!(stall.levels.get(Served::Unknown), stall.stall_ns.value);
    assert_eq!(stall.latency_ns, None);
}

#[test]
fn work_that_is_done_while_an_access_waits_is_not_gained_with_the_data_near() {
    let mixture = mixer().fit(&histogram(&[(3, 1.0)], 1000, 2)).unwrap();
    // Many accesses are in flight, so latencies are no limit.
    let mut evidence = site(4.0, 2e8, &mixture);
    let alone = Stall::of(&evidence, &COSTS).stall_ns;
    let with = |evidence: &mut Evidence<'_>, instructions: f64, visible_ns: f64| {
        evidence.work = Some(Work {
            instructions,
            visible_ns,
            waiting_ns: 4e9,
        });
        Stall::of(evidence, &COSTS).stall_ns
    };
    let hits_ns = 4e9 - alone.value;
    let hidden = |executions: f64, cycles: f64| {
        (executions * 20.0 * cycles * 1e9 / COSTS.core_hz - hits_ns).max(0.0)
    };
    let left = with(&mut evidence, 20.0, 0.0);
    assert!((alone.value - left.value - hidden(2e8, 0.5)).abs() < 1e3);
    assert!(left.value < alone.value, "{left:?} of {alone:?}");
    let lower = alone.low - left.low - hidden(2.08e8, 1.0);
    assert!(lower.abs() < 0.15e9, "{left:?} of {alone:?}");
    // Work that samples show elsewhere in the loop is not hidden, and a loop without more work hides none.
    assert_eq!(with(&mut evidence, 20.0, 20e9), alone);
    assert_eq!(with(&mut evidence, 0.0, 0.0), alone);
}

#[test]
fn accesses_that_take_long_have_waited_though_they_were_not_timed() {
    let mixture = mixer().fit(&histogram(&[(3, 1.0)], 1000, 2)).unwrap();
    let untimed = |seconds: f64, executions: f64| {
        let evidence = Evidence {
            mixture: None,
            ..site(seconds, executions, &mixture)
        };
        Stall::of(&evidence, &COSTS)
    };
    // 200 ns each: no division and no mispredicted branch takes that long, nor does any cache.
    let stall = untimed(4.0, 2e7);
    assert!(stall.stall_ns.low > 0.85 * 4e9, "{stall:#?}");
    assert!(stall.stall_ns.value > 0.9 * 4e9);
    assert!(stall.levels.get(Served::Dram) > 0.75 * stall.stall_ns.value);
    // 8 ns each may be anything.
    let stall = untimed(4.0, 5e8);
    assert_eq!(stall.stall_ns.low, 0.0);
    assert_eq!(stall.levels.get(Served::Dram), 0.0);
}

#[test]
fn without_counts_or_latencies_the_interval_is_everything() {
    let mixture = mixer().fit(&histogram(&[(3, 1.0)], 1000, 2)).unwrap();
    let mut evidence = site(4.0, 1.0, &mixture);
    evidence.executed = None;
    let timed = Stall::of(&evidence, &COSTS);
    assert!(timed.stall_ns.low < 1e8 && timed.stall_ns.high >= 4e9);
    assert!(timed.levels.get(Served::Dram) > 0.9 * timed.stall_ns.value);
    evidence.mixture = None;
    let nothing = Stall::of(&evidence, &COSTS);
    assert!(nothing.stall_ns.low < 1e8 && nothing.stall_ns.high >= 4e9);
    assert_eq!(nothing.levels.get(Served::Unknown), nothing.levels.total());
    let none = Evidence {
        time_ns: 0.0,
        ..evidence
    };
    assert_eq!(Stall::of(&none, &COSTS).stall_ns.value, 0.0);
}

/// A stall with this ratio at a site with `seconds` of a run of ten seconds.
fn known(seconds: f64, ratio: Estimate) -> Stall {
    let mut levels = ByLevel::default();
    levels.add(Served::Dram, ratio.value * seconds * 1e9);
    Stall {
        stall_ns: ratio.times(seconds * 1e9),
        levels,
        contention_share: None,
        latency_ns: None,
        latency_cycles: None,
        ratio,
        time_ns: seconds * 1e9,
    }
}

#[test]
fn a_program_is_known_better_than_its_sites() {
    let error = Estimate::new(0.5, 0.3, 0.7);
    let sites: Vec<Stall> = (0..100).map(|_| known(0.1, error)).collect();
    let bound = combine(&sites, 10e9, 1e4);
    assert!((bound.fraction - 0.5).abs() < 1e-9);
    assert!((bound.dram - 0.5).abs() < 1e-9);
    let width = bound.high - bound.low;
    assert!(width < 0.3, "{bound:?}");
    assert!(width > 0.15, "some of it they share: {bound:?}");
}

#[test]
fn uncertainties_of_a_loops_accesses_add_up() {
    let unknown = Estimate::new(0.0, 0.0, 1.0);
    let few: Vec<Stall> = (0..4).map(|_| known(2.5, unknown)).collect();
    assert!(combine(&few, 10e9, 1e4).high > 0.99);
    let many: Vec<Stall> = (0..400).map(|_| known(0.025, unknown)).collect();
    assert!(combine(&many, 10e9, 1e4).high < 0.6);
}

#[test]
fn a_program_with_one_site_is_known_no_better_than_it() {
    for (low, high) in [(0.45, 0.55), (0.2, 0.8), (0.0, 1.0)] {
        for latency_ns in [None, Some(Estimate::exactly(50.0))] {
            let site = Stall {
                latency_ns,
                ..known(10.0, Estimate::new(0.5, low, high))
            };
            let bound = combine(&[site], 10e9, 1e9);
            assert!((bound.low - low).abs() < 1e-3, "{bound:?}");
            assert!((bound.high - high).abs() < 1e-3, "{bound:?}");
        }
    }
}

#[test]
fn errors_of_accesses_that_were_not_timed_add_up() {
    let error = Estimate::new(0.5, 0.3, 0.7);
    let width = |latency_ns: Option<Estimate>| {
        let site = Stall {
            latency_ns,
            ..known(2.5, error)
        };
        let bound = combine(&[site.clone(), site.clone(), site.clone(), site], 10e9, 1e6);
        bound.high - bound.low
    };
    let (timed, untimed) = (width(Some(Estimate::exactly(50.0))), width(None));
    assert!(timed < 0.3 && untimed > 0.39, "{timed} {untimed}");
}

#[test]
fn chance_is_that_of_the_samples() {
    let half = known(5.0, Estimate::exactly(1.0));
    for samples in [100.0, 1e4] {
        let bound = combine(std::slice::from_ref(&half), 10e9, samples);
        let expected = 1.96 * (0.25_f64 / samples).sqrt();
        let found = (bound.high - bound.low) / 2.0;
        assert!((found / expected - 1.0).abs() < 0.15, "{bound:?}");
    }
    // All of the time is stalled, so there is no sampling error.
    let all = combine(&[known(10.0, Estimate::exactly(1.0))], 10e9, 1e4);
    assert!(all.low > 0.999 && all.high == 1.0);
    let none = combine(&[], 10e9, 1e3);
    assert_eq!((none.fraction, none.low), (0.0, 0.0));
    assert!(none.high > 0.0);
    assert_eq!(combine(&[], 0.0, 0.0).fraction, 0.0);
}

#[test]
fn a_loop_waits_for_what_it_takes_beyond_its_time_in_the_first_cache() {
    // The loop takes 8 seconds of CPU time. Half of its samples are attributed to this site, and every timed access of
    // the site is a hit in the first cache.
    let mixture = mixer().fit(&histogram(&[(0, 1.0)], 2000, 31)).unwrap();
    type Loop = (f64, Option<f64>);
    let of = |(iteration_ns, iterations): Loop, served: Option<Served>, contended| {
        let evidence = Evidence {
            // Of one line in eight executions, which takes half of the loop's time.
            stream: served.map(|served| Stream {
                lines_per_execution: 0.125,
                line_ns: 3.2,
                other_streams_ns: 0.0,
                other_streams: 0,
                function_ns: 8e9,
                served,
            }),
            contended,
            cached_loop: Some(CachedLoop {
                iteration_ns: Estimate::new(iteration_ns, iteration_ns, iteration_ns),
                loop_ns: 8e9,
                waiting_ns: 8e9,
                iterations,
            }),
            ..site(4.0, 1e10, &mixture)
        };
        Stall::of(&evidence, &COSTS).stall_ns
    };
    let with = |iteration_ns, served, contended| of((iteration_ns, None), served, contended);
    let stream = with(0.3, Some(Served::Dram), None);
    assert!((stream.value - 2.5e9).abs() < 1e6, "{stream:?}");
    // The executions and the time in the first cache are known within some percent each.
    assert!((2.0e9..2.4e9).contains(&stream.low), "{stream:?}");
    assert!((2.6e9..3.0e9).contains(&stream.high), "{stream:?}");
    // A loop that takes as long as in the first cache does not wait.
    let none = with(0.8, Some(Served::Dram), None);
    assert!(none.value < 1e6 && none.high < 0.8e9, "{none:?}");
    // One that takes less is another loop.
    let evidence = site(4.0, 1e10, &mixture);
    let without = Stall::of(&evidence, &COSTS).stall_ns;
    assert_eq!(with(1.2, None, None), without);
    // One with its data near begins anew too often, unless it is known to have many iterations.
    assert_eq!(with(0.3, None, None), without);
    assert_eq!(of((0.3, Some(8.0)), None, None), without);
    let long = of((0.3, Some(1000.0)), None, None);
    assert!((long.value - 2.5e9).abs() < 1e6, "{long:?}");
    // Also where its time in the first cache is known so badly that it may not wait at all.
    let evidence = Evidence {
        cached_loop: Some(CachedLoop {
            iteration_ns: Estimate::new(0.3, 0.25, 0.9),
            loop_ns: 8e9,
            waiting_ns: 8e9,
            iterations: Some(1000.0),
        }),
        ..evidence
    };
    let badly_known = Stall::of(&evidence, &COSTS).stall_ns;
    assert!((badly_known.value - 2.5e9).abs() < 1e6, "{badly_known:?}");
    assert!(badly_known.high > badly_known.value, "{badly_known:?}");
    assert!(badly_known.low <= without.low, "{badly_known:?}");
    // The same holds of lines that are near whenever they are timed, because they were fetched in advance.
    let near = Some(Served::L1);
    let short = of((0.3, Some(8.0)), near, None);
    assert!(short.low < 1e6, "{short:?}");
    let fetched = of((0.3, Some(1000.0)), near, None);
    assert!((fetched.value - 2.5e9).abs() < 1e6, "{fetched:?}");
    assert!(of((0.8, Some(1000.0)), near, None).value < 1e6);
    // Contention is estimated apart.
    let contended = Some(Contended {
        share: 1.0,
        excess_ns: 20.0,
        hit_share: 1.0,
    });
    assert_eq!(
        with(0.3, None, contended),
        Stall::of(
            &Evidence {
                contended,
                ..evidence
            },
            &COSTS
        )
        .stall_ns
    );
}

/// A line is fetched, and then searched byte by byte: few of the accesses miss, and the others overlap.
#[test]
fn hits_among_few_misses_cost_what_the_loop_takes_in_the_first_cache() {
    let last = LEVELS.len() - 1;
    let mixture = mixer()
        .fit(&histogram(&[(0, 0.95), (last, 0.05)], 4000, 31))
        .unwrap();
    let executions = 5e8;
    let time_s = executions * mixture.mean_ns.value * 1e-9;
    let hits_ns = executions * COSTS.l1_ns;
    let evidence = site(time_s, executions, &mixture);
    let alone = Stall::of(&evidence, &COSTS).stall_ns;
    // Each hit may have cost its whole latency, or nearly nothing.
    let beyond_hits = |part: f64| evidence.time_ns - part * hits_ns;
    assert!(
        (alone.value - beyond_hits(1.0)).abs() < 0.2 * hits_ns,
        "{alone:?}"
    );
    assert!(alone.high > beyond_hits(0.4), "{alone:?}");
    let cached_loop = CachedLoop {
        iteration_ns: Estimate::new(0.2, 0.2, 0.2).times(COSTS.l1_ns),
        loop_ns: evidence.time_ns,
        waiting_ns: evidence.time_ns,
        iterations: Some(40.0),
    };
    let measured = Evidence {
        cached_loop: Some(cached_loop),
        ..site(1.05 * time_s, executions, &mixture)
    };
    let cached = Stall::of(&measured, &COSTS).stall_ns;
    let without = Evidence {
        cached_loop: None,
        ..measured
    };
    let without = Stall::of(&without, &COSTS).stall_ns;
    assert!(
        cached.value > without.value + 0.5 * hits_ns,
        "{cached:?} {without:?}"
    );
}
