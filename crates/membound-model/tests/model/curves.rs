//! Levels of machines with known truth, over many draws of noise and page colours.

use membound_model::levels::{CurveEnd, Knee};
use membound_model::{CurvePoint, LevelOptions, Levels, find_levels};
use membound_types::LevelKind;

use crate::machines::{Machine, Noise, Policy, machines};
use membound_testkit::Random;

const QUIET: Noise = Noise {
    relative: 0.005,
    outliers: 0.0,
    slow: 0.0,
};
const NOISY: Noise = Noise {
    relative: 0.02,
    outliers: 0.02,
    slow: 0.0,
};
const WILD: Noise = Noise {
    relative: 0.05,
    outliers: 0.03,
    slow: 0.05,
};

fn levels(machine: &Machine, noise: Noise, seed: u64) -> Levels {
    let curve = machine.curve(4, noise, &mut Random::new(seed));
    find_levels(&curve, &LevelOptions::default())
}

fn coloured(machine: &Machine) -> bool {
    machine
        .caches
        .iter()
        .any(|cache| matches!(cache.policy, Policy::LruColoured | Policy::RandomColoured))
}

/// Found size of cache `index` ÷ its true size.
fn ratio(machine: &Machine, found: &Levels, index: usize) -> f64 {
    let (size, _) = found.plateaus[index]
        .size
        .expect("an inner plateau has a size");
    assert!(size.low <= size.value && size.value <= size.high);
    size.value / machine.caches[index].bytes as f64
}

fn check(machine: &Machine, noise: Noise, seeds: u64, tolerance: f64) {
    for seed in 0..seeds {
        let found = levels(machine, noise, seed);
        let what = format!("{} seed {seed}: {found:#?}", machine.name);
        assert_eq!(found.plateaus.len(), machine.caches.len() + 1, "{what}");
        assert!(found.reaches_memory(), "{what}");
        for (index, cache) in machine.caches.iter().enumerate() {
            // L1 and L2 have a size; the share of an outermost cache is a ramp.
            let tolerance = match cache.policy {
                Policy::Ramp(_) => 0.5,
                _ => tolerance,
            };
            let ratio = ratio(machine, &found, index);
            assert!(
                (ratio - 1.0).abs() <= tolerance,
                "size {index} × {ratio:.2}, {what}"
            );
            // A TLB tilts the plateau, so it lies above the cache's own latency.
            let tilt: f64 = machine.tlbs.iter().map(|(_, cost)| cost).sum();
            let latency = found.plateaus[index].latency_ns;
            assert!(
                latency.value > 0.93 * cache.ns && latency.value < 1.12 * cache.ns + tilt,
                "latency {index}, {what}"
            );
            assert!(latency.low <= latency.value && latency.value <= latency.high);
        }
    }
}

#[test]
fn sizes_of_quiet_curves_are_within_three_per_cent_and_of_noisy_ones_within_twelve() {
    for machine in machines().iter().filter(|machine| !coloured(machine)) {
        check(machine, QUIET, 2, 0.03);
        check(machine, NOISY, 6, 0.12);
    }
}

/// Five per cent of noise, three of a hundred points at twice the latency, five in a slow
/// phase: single sizes may be wrong, but the number of levels rarely is.
#[test]
fn wild_curves_keep_their_levels() {
    let (mut right, mut near, mut all) = (0, 0, 0);
    for machine in machines().iter().filter(|machine| !coloured(machine)) {
        for seed in 0..6 {
            all += 1;
            let found = levels(machine, WILD, seed);
            if found.plateaus.len() == machine.caches.len() + 1 {
                right += 1;
                near += i32::from(
                    (0..2).all(|index| (ratio(machine, &found, index) - 1.0).abs() <= 0.12),
                );
            }
        }
    }
    assert!(
        right * 100 >= all * 94,
        "{right} of {all} have the right levels"
    );
    assert!(
        near * 100 >= all * 90,
        "{near} of {all} have L1 and L2 within 12 %"
    );
}

/// Base pages of random colour: every draw of pages gives another curve, and the capacity
/// is only visible as the middle of a soft climb.
#[test]
fn page_colours_blur_the_size_but_add_no_level() {
    for machine in machines().iter().filter(|machine| coloured(machine)) {
        let (mut right, mut covered) = (0, 0);
        let mut ratios = Vec::new();
        const SEEDS: u64 = 9;
        for seed in 0..SEEDS {
            let found = levels(machine, NOISY, seed);
            if found.plateaus.len() != machine.caches.len() + 1 {
                continue;
            }
            right += 1;
            assert!(
                (ratio(machine, &found, 0) - 1.0).abs() < 0.12,
                "{}",
                machine.name
            );
            ratios.push(ratio(machine, &found, 1));
            let (size, _) = found.plateaus[1].size.unwrap();
            let truth = machine.caches[1].bytes as f64;
            covered += i32::from(size.low <= truth && truth <= size.high);
        }
        ratios.sort_by(f64::total_cmp);
        let middle = ratios[ratios.len() / 2];
        assert!(right >= SEEDS - 1, "{}: {right} right", machine.name);
        assert!(
            (middle - 1.0).abs() < 0.25,
            "{}: median {middle}",
            machine.name
        );
        assert!(
            ratios[0] > 0.45 && ratios[ratios.len() - 1] < 1.45,
            "{ratios:?}"
        );
        assert!(
            covered * 3 >= right as i32,
            "{}: {covered} of {right}",
            machine.name
        );
    }
}

#[test]
fn a_gradual_ramp_is_named_and_begins_where_the_cache_ends() {
    let all = machines();
    let power = all
        .iter()
        .find(|machine| machine.name == "power7+")
        .unwrap();
    for seed in 0..3 {
        let found = levels(power, NOISY, seed);
        let (size, knee) = found.plateaus[2].size.unwrap();
        assert_eq!(knee, Knee::Gradual);
        assert!(
            (size.value / (10 << 20) as f64 - 1.0).abs() < 0.05,
            "{size:?}"
        );
    }
}

#[test]
fn a_curve_that_stops_early_claims_no_memory() {
    let all = machines();
    let haswell = all
        .iter()
        .find(|machine| machine.name == "haswell")
        .unwrap();
    let curve = haswell.curve(4, QUIET, &mut Random::new(1));
    let upto = |most: u64| -> Vec<CurvePoint> {
        curve
            .iter()
            .filter(|point| point.size_bytes <= most)
            .copied()
            .collect()
    };
    let options = LevelOptions::default();

    let on_l3 = find_levels(&upto(8 << 20), &options);
    assert_eq!(on_l3.plateaus.len(), 3);
    assert!(matches!(on_l3.end, Some(CurveEnd::MaybeCache { .. })));
    let named = on_l3.to_levels(2.6e9);
    assert_eq!(named[2].name, "L3");
    assert_eq!(named[2].kind, LevelKind::Cache);
    assert_eq!(named[2].size_bytes, None);
    assert!(named[2].note.is_some());
    assert!((named[0].latency_cycles - 4.0).abs() < 0.1);

    // With a known bound on caches below it, the same plateau is memory.
    let bounded = LevelOptions {
        cache_bound_bytes: Some(4 << 20),
        ..options
    };
    assert!(find_levels(&upto(8 << 20), &bounded).reaches_memory());

    let climbing = find_levels(&upto(30 << 20), &options);
    assert!(
        matches!(climbing.end, Some(CurveEnd::Climbing { .. })),
        "{climbing:#?}"
    );
    let l3 = climbing.to_levels(2.6e9).pop().unwrap();
    assert!(
        (l3.size_bytes.unwrap() as f64 / (20 << 20) as f64 - 1.0).abs() < 0.2,
        "{l3:?}"
    );
}

#[test]
fn too_little_to_read_gives_no_levels() {
    let options = LevelOptions::default();
    assert_eq!(find_levels(&[], &options).plateaus, []);
    let point = CurvePoint {
        size_bytes: 4096,
        ns: 1.0,
        ns_low: 1.0,
        ns_high: 1.0,
    };
    assert!(find_levels(&[point; 3], &options).plateaus.is_empty());
    let broken = CurvePoint {
        ns: f64::NAN,
        ..point
    };
    assert_eq!(find_levels(&[broken; 30], &options).end, None);
}

/// A curve written by `membound measure latency`: bytes, ns and the 95 % interval.
pub(crate) fn recorded(text: &str) -> Vec<CurvePoint> {
    let points = text.lines().skip(1).map(|line| {
        let mut fields = line
            .split(',')
            .map(|field| field.parse().expect("a number"));
        let mut next = || -> f64 { fields.next().expect("four columns") };
        CurvePoint {
            size_bytes: next() as u64,
            ns: next(),
            ns_low: next(),
            ns_high: next(),
        }
    });
    points.collect()
}

/// Two runs on an Intel guest that sees all 480 MiB of its host's third cache, has about 15 of
/// them, and whose page walks become slower the more memory is touched: memory is the level after
/// the three caches, whether the climb beyond 600 MiB is found as a level of its own (b) or not (a).
#[test]
fn memory_that_climbs_by_its_page_walks_is_no_cache() {
    let declared = LevelOptions {
        cache_bound_bytes: Some(960 << 20),
        ..LevelOptions::default()
    };
    let behind_three = LevelOptions {
        caches: Some(3),
        ..declared
    };
    for (text, climbs) in [
        (include_str!("curves/intel-guest-thp-a.csv"), false),
        (include_str!("curves/intel-guest-thp-b.csv"), true),
    ] {
        let curve = recorded(text);
        let found = find_levels(&curve, &behind_three);
        assert_eq!(found.plateaus.len(), 4, "{found:#?}");
        assert!(found.reaches_memory(), "{found:#?}");
        let levels = found.to_levels(4e9);
        assert_eq!(
            (levels[3].name.as_str(), levels[3].size_bytes),
            ("DRAM", None)
        );
        assert!(
            (160.0..175.0).contains(&levels[3].latency_ns),
            "{levels:#?}"
        );
        // With one more cache the plateau could be that cache, if the curve climbs after it.
        let behind_four = LevelOptions {
            caches: Some(4),
            ..declared
        };
        assert_eq!(find_levels(&curve, &behind_four).reaches_memory(), !climbs);
        // A curve that ends at a size that a cache can have must not claim memory.
        let short: Vec<CurvePoint> = curve
            .iter()
            .filter(|point| point.size_bytes <= 400 << 20)
            .copied()
            .collect();
        assert!(!find_levels(&short, &behind_three).reaches_memory());
    }
}

/// Four runs on one machine: a Zen 5 guest with 48 KiB of L1, 1 MiB of L2 and a share of
/// 32 MiB of L3 that differs from run to run, on base pages and on transparent huge ones
/// (some of which the host backs with small pages).
#[test]
fn curves_of_a_real_guest() {
    let curves = [
        ("4k-a", include_str!("curves/zen5-guest-4k-a.csv")),
        ("4k-b", include_str!("curves/zen5-guest-4k-b.csv")),
        ("thp-a", include_str!("curves/zen5-guest-thp-a.csv")),
        ("thp-b", include_str!("curves/zen5-guest-thp-b.csv")),
    ];
    let mut all: Vec<Levels> = Vec::new();
    for (name, text) in curves {
        let found = find_levels(&recorded(text), &LevelOptions::default());
        assert_eq!(found.plateaus.len(), 4, "{name}: {found:#?}");
        assert!(found.reaches_memory(), "{name}");
        let size = |index: usize| found.plateaus[index].size.unwrap().0.value / 1024.0;
        assert!((size(0) / 48.0 - 1.0).abs() < 0.05, "{name}: {found:#?}");
        assert!((size(1) / 1024.0 - 1.0).abs() < 0.15, "{name}: {found:#?}");
        assert!((4096.0..=32768.0).contains(&size(2)), "{name}: {found:#?}");
        let latency = |index: usize| found.plateaus[index].latency_ns.value;
        assert!(
            (0.9..1.1).contains(&latency(0)) && (3.2..3.8).contains(&latency(1)),
            "{name}"
        );
        assert!(
            (10.0..16.0).contains(&latency(2)) && (130.0..190.0).contains(&latency(3)),
            "{name}"
        );
        all.push(found);
    }
    // Each curve is another draw of pages: their average is closer to the capacity.
    let (mut joined, others) = (
        all[2].clone(),
        [all[0].clone(), all[1].clone(), all[3].clone()],
    );
    let before = joined.plateaus.clone();
    joined.join_sizes(&others);
    let size = joined.plateaus[1].size.unwrap().0;
    assert!(
        (size.value / f64::from(1 << 20) - 1.0).abs() < 0.10,
        "{size:?}"
    );
    let alone = before[1].size.unwrap().0;
    assert!(size.high / size.low < alone.high / alone.low);
    assert_eq!(
        joined.plateaus[2].size, before[2].size,
        "the share of L3 differs by run"
    );
}

/// Three runs on an Intel guest when other guests left it a changing part of the third cache: that is a slope of 35 to 65 ns
/// between 2.5 and 7 MiB. Without it the second cache would be 45 times as fast as the next level, and memory the third.
#[test]
fn a_cache_that_others_use_is_a_flat_part_of_a_climb() {
    let options = LevelOptions {
        cache_bound_bytes: Some(960 << 20),
        caches: Some(3),
        ..LevelOptions::default()
    };
    for text in [
        include_str!("curves/intel-guest-thp-c.csv"),
        include_str!("curves/intel-guest-thp-d.csv"),
        include_str!("curves/intel-guest-4k-d.csv"),
    ] {
        let found = find_levels(&recorded(text), &options);
        assert_eq!(found.plateaus.len(), 4, "{found:#?}");
        assert!(found.reaches_memory(), "{found:#?}");
        let third = found.plateaus[2];
        assert!((40.0..60.0).contains(&third.latency_ns.value), "{third:?}");
        let size = third.size.expect("it ends").0;
        assert!((7.0..10.0).contains(&(size.value / 1048576.0)), "{size:?}");
    }
}
