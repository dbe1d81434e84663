//! Fleets with one bad host, and without any.

use membound_model::compare::{Fleet, Reading, compare, guard};

use super::machine::{Machine, USUAL};
use membound_testkit::Random;

/// A fleet of `count` usual machines and one odd machine.
fn fleet_with(odd: Machine, count: usize, seed: u64) -> Fleet {
    fleet_of(USUAL, odd, count, seed)
}

fn fleet_of(usual: Machine, odd: Machine, count: usize, seed: u64) -> Fleet {
    let mut random = Random::new(seed);
    let mut fleet = Fleet::default();
    for number in 0..count {
        let host = format!("host{number:03}");
        let view = usual.run(&host, &mut random);
        fleet.add(Reading::of(&format!("{host}.json"), &view));
    }
    let view = odd.run("odd", &mut random);
    fleet.add(Reading::of("odd.json", &view));
    fleet
}

/// Checks that in fleets of `usual` machines only `odd` is an outlier, with the one hint `hint`.
fn check_hint(usual: Machine, odd: Machine, hint: &str) {
    for (count, seed) in [(12, 1), (60, 2), (300, 3)] {
        let groups = fleet_of(usual, odd, count, seed).finish(0.05);
        assert_eq!(groups.len(), 1);
        let names: Vec<&str> = groups[0].odd.iter().map(|it| it.host.as_str()).collect();
        assert_eq!(names, ["odd"], "{hint}, {count}");
        let hints = &groups[0].odd[0].hints;
        assert!(
            hints.len() == 1 && hints[0].contains(hint),
            "{hint}, {count}: {hints:?}"
        );
    }
}

#[test]
fn a_bad_memory_is_recognised_by_latency_and_bandwidth() {
    let slow = Machine {
        memory_ns: 140.0,
        memory_gb_s: 30.0,
        ..USUAL
    };
    check_hint(USUAL, slow, "slow or missing DIMM");
    let narrow = Machine {
        memory_gb_s: 25.0,
        ..USUAL
    };
    check_hint(USUAL, narrow, "channel without DIMM");
    let late = Machine {
        memory_ns: 150.0,
        ..USUAL
    };
    check_hint(USUAL, late, "timings");
}

#[test]
fn a_lower_clock_is_recognised_by_constant_cycles() {
    let throttled = Machine {
        clock: 0.6,
        ..USUAL
    };
    check_hint(USUAL, throttled, "core clock");
}

#[test]
fn expensive_page_walks_are_recognised_by_constant_huge_pages() {
    let walks = Machine {
        small_pages: 1.8,
        ..USUAL
    };
    check_hint(USUAL, walks, "page walks");
}

#[test]
fn huge_pages_that_cost_like_small_ones_are_no_slow_memory() {
    let usual = Machine {
        small_pages: 1.5,
        ..USUAL
    };
    let lost = Machine {
        large_pages: 1.5,
        ..usual
    };
    check_hint(usual, lost, "huge pages take as long as on 4 KiB pages");
    // The levels are found on huge pages if there are any.
    let levels_too = Machine {
        memory_ns: 150.0,
        small_pages: 1.0,
        ..usual
    };
    check_hint(
        usual,
        levels_too,
        "huge pages take as long as on 4 KiB pages",
    );
}

#[test]
fn disabled_prefetchers_are_recognised_by_patterns_like_random_loads() {
    let off = Machine {
        prefetch: 0.97,
        ..USUAL
    };
    check_hint(USUAL, off, "prefetchers are off");
}

#[test]
fn interleaved_nodes_are_recognised_by_equal_remote_and_local_memory() {
    let usual = Machine {
        nodes: Some((100.0, 180.0)),
        ..USUAL
    };
    let interleaved = Machine {
        nodes: Some((142.0, 141.0)),
        memory_ns: 141.0,
        ..USUAL
    };
    check_hint(usual, interleaved, "as near as local");
    let mut random = Random::new(21);
    let mut fleet = fleet_of(usual, usual, 20, 6);
    let mut view = usual.run("merged", &mut random);
    view.numa.nodes.truncate(1);
    view.numa.pairs.truncate(1);
    fleet.add(Reading::of("merged.json", &view));
    let groups = fleet.finish(0.05);
    assert_eq!(groups[0].odd.len(), 1, "{:?}", groups[0].odd);
    let hints = &groups[0].odd[0].hints;
    assert!(
        hints.len() == 1 && hints[0].contains("1 instead of 2 nodes"),
        "{hints:?}"
    );
}

#[test]
fn a_shared_cache_is_recognised_by_its_size_alone() {
    let crowded = Machine {
        l3_bytes: 8 << 20,
        ..USUAL
    };
    check_hint(USUAL, crowded, "neighbours use it");
}

#[test]
fn a_busy_sibling_is_recognised_by_half_a_reorder_buffer() {
    let usual = Machine {
        rob: Some(448.0),
        ..USUAL
    };
    let halved = Machine {
        rob: Some(224.0),
        ..USUAL
    };
    check_hint(usual, halved, "another hardware thread");
}

#[test]
fn a_busy_machine_is_reported_before_any_cause() {
    let busy = Machine { busy: 2.0, ..USUAL };
    check_hint(USUAL, busy, "the machine was busy");
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
fn a_file_is_compared_with_the_median_of_a_fleet() {
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
fn a_missing_part_is_named_once() {
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
