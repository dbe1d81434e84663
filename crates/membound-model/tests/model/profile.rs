//! A whole profile, interpreted: every part expresses its figures in terms of the levels.

use std::collections::BTreeMap;

use membound_model::interpret::level_curves;
use membound_model::{CurvePoint, interpret, interpret_latency, interpret_mlp};
use membound_types::{
    Access, AreaPoint, Bandwidth, BandwidthKernel, BandwidthPoint, Basis, Cache, CacheKind,
    Conditions, Cpu, CpuId, Fence, Filler, Latency, LatencyPoint, LevelKind, MachineInfo,
    MachineProfile, Mlp, MlpCell, MlpMode, NodePolicy, Outcome, PageKind, Pattern, Prefetch,
    PrefetchPattern, PrefetchPoint, PrefetchState, PrefetchTaint, Samples, ThroughputPoint, Timer,
    Tlb, TlbPoint, VectorWidth,
};

use crate::curves::recorded;
use crate::machines::{Machine, Noise, machines};
use membound_testkit::Random;

const NOISE: Noise = Noise {
    relative: 0.01,
    outliers: 0.01,
    slow: 0.0,
};

fn cache(level: u32, kind: CacheKind, size_bytes: u64, sharers: u32) -> Cache {
    Cache {
        level,
        kind,
        size_bytes,
        line_bytes: Some(64),
        ways: None,
        shared_by: (0..sharers).map(CpuId).collect(),
        source: "sysfs".to_owned(),
    }
}

fn machine_info() -> MachineInfo {
    MachineInfo {
        host: "test".to_owned(),
        date: "2025-01-01T00:00:00Z".to_owned(),
        membound_version: "0".to_owned(),
        cpu: Cpu {
            online: vec![CpuId(0), CpuId(1)],
            ..Cpu::default()
        },
        caches: vec![
            cache(1, CacheKind::Data, 48 << 10, 1),
            cache(1, CacheKind::Instruction, 32 << 10, 1),
            cache(2, CacheKind::Unified, 1 << 20, 1),
            cache(3, CacheKind::Unified, 32 << 20, 2),
        ],
        memory_bytes: 16 << 30,
        timer: Timer {
            core_clock_hz: 4e9,
            ..Timer::default()
        },
        conditions: Conditions {
            hypervisor: Some("kvm".to_owned()),
            labels: BTreeMap::new(),
            ..Conditions::default()
        },
    }
}

fn latency_point(point: CurvePoint, page: PageKind) -> LatencyPoint {
    LatencyPoint {
        size_bytes: point.size_bytes,
        stride_bytes: 64,
        pattern: Pattern::Random,
        access: Access::Clean,
        page,
        cpu: CpuId(0),
        node: NodePolicy::LOCAL,
        prefetch: PrefetchState::Default,
        threads: 1,
        ns: point.ns,
        ns_low: point.ns_low,
        ns_high: point.ns_high,
        cycles: point.ns * 4.0,
        samples: 15,
        batches: Samples::default(),
        page_share: None,
        prefetch_taint: None,
    }
}

fn named(name: &str) -> Machine {
    machines()
        .into_iter()
        .find(|machine| machine.name == name)
        .expect("a machine of the table")
}

/// The outermost level of a recorded curve, on a machine with this third cache declared.
fn outermost(third: Cache) -> (LevelKind, Option<u64>) {
    let mut latency = Latency {
        points: recorded(include_str!("curves/intel-guest-thp-b.csv"))
            .into_iter()
            .map(|point| latency_point(point, PageKind::Thp))
            .collect(),
        ..Latency::default()
    };
    let mut machine = machine_info();
    machine.caches.retain(|cache| cache.level != 3);
    machine.caches.push(third);
    let levels = interpret_latency(&mut latency, &machine).levels;
    let level = levels.last().expect("the curve has levels");
    (level.kind, level.size_bytes)
}

#[test]
fn behind_the_declared_caches_lies_memory_unless_other_cores_lend_theirs() {
    let shared = cache(3, CacheKind::Unified, 480 << 20, 2);
    assert_eq!(outermost(shared), (LevelKind::Memory, None));
    // Two caches of 240 MiB, one per core: the fourth plateau can be the other core's cache.
    let private = cache(3, CacheKind::Unified, 240 << 20, 1);
    let (kind, size) = outermost(private);
    assert_eq!(kind, LevelKind::Cache);
    assert!(size.is_some());
}

/// Random chases on both page kinds, one of them with two copies; a stride ring that a
/// prefetcher can predict; strides around the line size.
fn latency() -> Latency {
    let mut random = Random::new(7);
    let mut points: Vec<LatencyPoint> = Vec::new();
    let huge = named("zen5-guest-huge");
    let small = named("zen5-guest-4k");
    let mut add = |machine: &Machine, page, threads: u32, random: &mut Random| {
        for point in machine.curve(4, NOISE, random) {
            let mut point = latency_point(point, page);
            point.threads = threads;
            points.push(point);
        }
    };
    add(&huge, PageKind::Thp, 1, &mut random);
    add(&small, PageKind::Base, 1, &mut random);
    let mut half = huge.clone();
    half.caches[2].bytes /= 2;
    add(&half, PageKind::Thp, 2, &mut random);
    for (stride_bytes, ns) in [
        (8, 1.53),
        (16, 1.64),
        (32, 1.87),
        (64, 3.13),
        (128, 3.1),
        (256, 3.1),
    ] {
        let mut point = latency_point(
            CurvePoint {
                size_bytes: 65536 + 64,
                ns,
                ns_low: ns,
                ns_high: ns,
            },
            PageKind::Thp,
        );
        point.stride_bytes = stride_bytes;
        points.push(point);
    }
    let reference = points
        .iter()
        .find(|point| point.size_bytes == 256 << 20 && point.page == PageKind::Thp)
        .cloned()
        .expect("256 MiB lie on the grid");
    points.push(LatencyPoint {
        pattern: Pattern::Stride,
        ns: 4.0,
        ns_low: 3.9,
        ns_high: 4.1,
        ..reference
    });
    Latency {
        points,
        ..Latency::default()
    }
}

fn mlp() -> Mlp {
    let cell = |mode, loads: u32, fillers: u32, cycles: f64| MlpCell {
        mode,
        loads,
        fillers,
        filler: Filler::Nop,
        area_bytes: 256 << 20,
        node: NodePolicy::LOCAL,
        page: PageKind::Thp,
        cycles,
        spread: 2.0,
        misses: Outcome::missing("no counters"),
    };
    let mut cells: Vec<MlpCell> = (2..=14)
        .map(|n| cell(MlpMode::Parallel, n, 1, 200.0 + 20.0 * f64::from(n)))
        .collect();
    cells.push(cell(MlpMode::Parallel, 2, 300, 420.0));
    cells.push(cell(MlpMode::Sequential, 2, 300, 420.0));
    Mlp {
        cells,
        rob_size: Outcome::Known(192.0),
        throughput: vec![ThroughputPoint {
            chains: 16,
            cycles_per_load: 20.0,
            parallelism: 9.8,
            batches: Samples::default(),
        }],
        sequential_pair_cycles: Outcome::missing("not computed"),
        areas: vec![AreaPoint {
            area_bytes: 96 << 10,
            loads: 1,
            cycles: 10.0,
            spread: 1.0,
            ratio: Some(1.0),
            expected: vec![],
            hits: Outcome::default(),
            ticks: Vec::new(),
            misses: Outcome::missing("no counters"),
        }],
        page: PageKind::Thp,
        fence: Fence::Lfence,
        elapsed_s: 1.0,
        ..Mlp::default()
    }
}

fn bandwidth() -> Bandwidth {
    let point = |size_bytes: u64, threads: u32| BandwidthPoint {
        kernel: BandwidthKernel::Read,
        vector: VectorWidth::V256,
        size_bytes,
        level: None,
        threads,
        page: PageKind::Thp,
        node: NodePolicy::LOCAL,
        gb_s: 10.0,
        gb_s_low: 9.0,
        gb_s_high: 11.0,
        gb_s_with_allocate: 10.0,
        batches: Samples::default(),
    };
    Bandwidth {
        points: vec![
            point(16 << 10, 1),
            point(512 << 10, 2),
            point(8 << 20, 1),
            point(8 << 20, 2),
            point(256 << 20, 1),
        ],
        ..Bandwidth::default()
    }
}

fn tlb() -> Tlb {
    let points = (8..56)
        .map(|k| {
            let pages = (f64::from(k) / 4.0).exp2().round() as u64;
            let translation_cycles = match pages {
                0..=96 => 0.0,
                97..=4096 => 7.0,
                _ => 40.0,
            };
            TlbPoint {
                page: PageKind::Base,
                pages,
                ns: 1.0 + translation_cycles / 4.0,
                packed_ns: 1.0,
                translation_cycles,
                batches: Samples::default(),
            }
        })
        .collect();
    Tlb {
        points,
        ..Tlb::default()
    }
}

fn prefetch() -> Prefetch {
    let point = |pattern, ns: f64| PrefetchPoint {
        pattern,
        prefetch: PrefetchState::Default,
        ns,
        random_ns: 150.0,
        ratio: ns / 150.0,
        prefetched: false,
        batches: Samples {
            raw: vec![ns; 5],
            ..Samples::default()
        },
    };
    Prefetch {
        points: vec![
            point(PrefetchPattern::Random, 150.0),
            point(PrefetchPattern::Forward { stride_bytes: 64 }, 5.0),
        ],
        ..Prefetch::default()
    }
}

#[test]
fn every_part_of_a_profile_is_interpreted() {
    let mut profile = MachineProfile {
        latency: Outcome::Known(latency()),
        mlp: Outcome::Known(mlp()),
        bandwidth: Outcome::Known(bandwidth()),
        tlb: Outcome::Known(tlb()),
        prefetch: Outcome::Known(prefetch()),
        ..MachineProfile::unmeasured(machine_info())
    };
    interpret(&mut profile);

    let names: Vec<&str> = profile
        .levels
        .iter()
        .map(|level| level.name.as_str())
        .collect();
    assert_eq!(names, ["L1", "L2", "L3", "DRAM"]);
    let near = |index: usize, bytes: u64| {
        let size = profile.levels[index].size_bytes.unwrap();
        (size as f64 / bytes as f64 - 1.0).abs() < 0.12
    };
    assert!(
        near(0, 48 << 10) && near(1, 1 << 20) && near(2, 11 << 20),
        "{:#?}",
        profile.levels
    );
    assert_eq!(profile.levels[0].declared_bytes, Some(48 << 10));
    assert_eq!(profile.levels[0].note, None);
    let note = profile.levels[2].note.as_deref().unwrap();
    assert!(
        note.contains("declared 32 MiB") && note.contains("guest's share"),
        "{note}"
    );
    assert_eq!(profile.levels[3].kind, LevelKind::Memory);
    assert!((profile.levels[0].latency_cycles - 3.84).abs() < 0.1);

    let line = profile.line.known().unwrap();
    assert_eq!((line.bytes, line.basis), (64, Basis::Estimated));
    assert_eq!(profile.levels[1].line_basis, Some(Basis::Estimated));

    let latency = profile.latency.known().unwrap();
    let ring = latency
        .points
        .iter()
        .find(|point| point.pattern == Pattern::Stride)
        .unwrap();
    assert_eq!(
        ring.prefetch_taint.as_ref().map(|taint| taint.against),
        Some(Pattern::Random)
    );
    assert_eq!(
        latency
            .points
            .iter()
            .filter(|point| point.prefetch_taint.is_some())
            .count(),
        1
    );
    assert_eq!(latency.crowding.len(), 1);
    let crowding = &latency.crowding[0];
    assert!(crowding.meaning.starts_with("shared"), "{crowding:?}");
    let share = crowding.alone_bytes as f64 / crowding.crowded_bytes as f64;
    assert!((share - 2.0).abs() < 0.3, "{crowding:?}");

    let mlp = profile.mlp.known().unwrap();
    assert_eq!(mlp.mlp_rule, Outcome::Known(10.0));
    assert_eq!(mlp.mlp_throughput, Outcome::Known(9.8));
    assert_eq!(mlp.sequential_pair_cycles, Outcome::Known(420.0));
    let pair = mlp.sequential_pair_interval.known().unwrap();
    assert_eq!(pair.value, 420.0);
    assert!(pair.low < 420.0 && pair.high > 420.0, "{pair:?}");
    let interval = mlp.mlp_rule_interval.known().unwrap();
    assert!(interval.low < 10.0 && interval.high > 10.0, "{interval:?}");
    let between = mlp.mlp_rule_between.unwrap();
    assert_eq!(
        (between.below.unwrap().loads, between.reached.loads),
        (10, 11)
    );
    let why = mlp.sequential_line.why_missing().unwrap();
    assert!(why.reason.contains("at least three lengths"), "{why:?}");
    let why = mlp.page_walks.why_missing().unwrap();
    assert!(why.reason.contains("no larger pages"), "{why:?}");
    let expected = &mlp.areas[0].expected;
    assert!((expected[0].share - 0.5).abs() < 0.06 && (expected[1].share - 0.5).abs() < 0.06);
    assert!((expected.iter().map(|hit| hit.share).sum::<f64>() - 1.0).abs() < 1e-9);

    let fits: Vec<Option<&str>> = profile
        .bandwidth
        .known()
        .unwrap()
        .points
        .iter()
        .map(|point| point.level.as_deref())
        .collect();
    assert_eq!(
        fits,
        [
            Some("L1"),
            Some("L2"),
            Some("L3"),
            Some("DRAM"),
            Some("DRAM")
        ]
    );

    let tlb = &profile.tlb.known().unwrap().levels;
    assert_eq!(tlb.len(), 2);
    assert!((tlb[0].entries.value / 96.0 - 1.0).abs() < 0.12, "{tlb:?}");
    let reach = &profile.tlb.known().unwrap().reach;
    let caches: Vec<(&str, Option<bool>)> = reach
        .iter()
        .map(|reach| (reach.level.as_str(), reach.covered))
        .collect();
    assert_eq!(
        caches,
        [("L1", Some(true)), ("L2", Some(true)), ("L3", Some(true))]
    );

    // The measuring crate judges prefetchers; the interpretation changes nothing.
    assert_eq!(profile.prefetch.known(), Some(&prefetch()));
}

/// T(N) and T(n) of one condition: a walk of `walk` cycles for each load, one at a time.
fn condition(page: PageKind, walk: f64) -> Mlp {
    let template = mlp();
    let cell = |mode, loads: u32, fillers, cycles| MlpCell {
        mode,
        loads,
        fillers,
        cycles,
        page,
        ..template.cells[0].clone()
    };
    let each = walk.max(20.0);
    let mut cells: Vec<MlpCell> = (1..=14)
        .map(|n| {
            cell(
                MlpMode::Parallel,
                n,
                0,
                200.0 + walk + each * f64::from(n - 1),
            )
        })
        .collect();
    cells.extend((1..=12).map(|n| {
        let cycles = (200.0 + walk) * f64::from(n) + 40.0;
        cell(MlpMode::Sequential, n, 300, cycles)
    }));
    Mlp {
        cells,
        page,
        ..mlp()
    }
}

#[test]
fn page_walks_follow_from_two_page_kinds_in_either_order() {
    let check = |mut part: Mlp, small: fn(&Mlp) -> &Mlp, large: fn(&Mlp) -> &Mlp| {
        interpret_mlp(&mut part, &[]);
        let line = small(&part).sequential_line.known().unwrap();
        assert!((line.load_cycles.value - 260.0).abs() < 1e-6, "{line:?}");
        assert!((line.overhead_cycles.value - 40.0).abs() < 1e-6, "{line:?}");
        let walks = small(&part).page_walks.known().unwrap();
        assert_eq!(walks.against, PageKind::Thp);
        // Thirteen loads on large pages take 440 cycles, as two in sequence: the rule is 12.
        assert_eq!((walks.from_loads, walks.to_loads), (1, 12));
        assert!((walks.miss_cycles.value - 60.0).abs() < 1e-6, "{walks:?}");
        assert!((walks.excess_cycles.value - 40.0).abs() < 1e-6, "{walks:?}");
        assert_eq!(walks.walks.known().unwrap().value, 1.0);
        assert!(large(&part).page_walks.known().is_none());
    };
    let with = |first: Mlp, other: Mlp| Mlp {
        others: vec![other],
        ..first
    };
    let (base, thp) = (
        condition(PageKind::Base, 60.0),
        condition(PageKind::Thp, 0.0),
    );
    check(
        with(thp.clone(), base.clone()),
        |part| &part.others[0],
        |part| part,
    );
    check(with(base, thp), |part| part, |part| &part.others[0]);
}

#[test]
fn another_node_or_a_much_smaller_area_is_no_comparison() {
    let mut remote = condition(PageKind::Thp, 0.0);
    remote.node = NodePolicy::INTERLEAVE;
    for cell in &mut remote.cells {
        cell.node = NodePolicy::INTERLEAVE;
    }
    let mut small = condition(PageKind::Thp, 0.0);
    for cell in &mut small.cells {
        cell.area_bytes = 1 << 20;
    }
    let mut part = Mlp {
        others: vec![remote, small],
        ..condition(PageKind::Base, 60.0)
    };
    interpret_mlp(&mut part, &[]);
    let why = part.page_walks.why_missing().unwrap();
    assert!(why.reason.contains("no larger pages"), "{why:?}");
    assert!(why.remedy.is_some());
}

/// If the fillers of two loads do not fill the window, the loads overlap, and a parallelism
/// computed from their time would have no meaning.
#[test]
fn a_pair_that_was_not_sequential_gives_no_rule() {
    let mut part = mlp();
    let mut single = part.cells[part.cells.len() - 1].clone();
    single.loads = 1;
    single.cycles = 210.0;
    part.cells.push(single);
    interpret_mlp(&mut part, &[]);
    assert_eq!(part.mlp_rule, Outcome::Known(10.0));
    part.sequential_pair_cycles = Outcome::Known(240.0);
    interpret_mlp(&mut part, &[]);
    let missing = part.mlp_rule.why_missing().unwrap();
    assert!(
        missing.reason.contains("did not keep them apart"),
        "{missing:?}"
    );
}

#[test]
fn nothing_measured_is_nothing_claimed() {
    let mut empty = Latency::default();
    let mut bare = machine_info();
    bare.caches.clear();
    let found = interpret_latency(&mut empty, &bare);
    assert!(found.levels.is_empty());
    assert!(found.line.known().is_none());
    assert!(empty.crowding.is_empty());
}

#[test]
fn a_neighbour_that_disturbed_the_harder_pattern_does_not_choose_the_curve() {
    let points = |tainted: usize| {
        let mut points = Vec::new();
        for index in 0..36_u32 {
            let point = CurvePoint {
                size_bytes: (4096.0 * (f64::from(index) / 2.0).exp2()) as u64,
                ns: 1.0,
                ns_low: 1.0,
                ns_high: 1.0,
            };
            let mut random = latency_point(point, PageKind::Thp);
            random.prefetch_taint = (index as usize >= 36 - tainted).then_some(PrefetchTaint {
                against: Pattern::Indexed,
                ratio: 0.5,
            });
            let indexed = LatencyPoint {
                pattern: Pattern::Indexed,
                ns: 2.0,
                prefetch_taint: None,
                ..random.clone()
            };
            points.extend([random, indexed]);
        }
        points
    };
    let chosen = |tainted| level_curves(&points(tainted))[0][0].ns;
    assert!(
        (chosen(5) - 1.0).abs() < 1e-9,
        "a few sizes: the random chase"
    );
    assert!(
        (chosen(16) - 2.0).abs() < 1e-9,
        "most sizes: the harder one"
    );
}
