//! A known share of time in a chase through each level, beside a loop full of loads that
//! hit the innermost cache.

use std::path::Path;
use std::process::Command;

use membound_types::{LevelShares, Profile};

use membound_testkit::in_two_of_three;

use crate::suite::{
    Profiled, alone, fixture, is_calibrated, latency_ns, machine, profile, reaches_memory,
    size_bytes, text, told,
};

/// Milliseconds of CPU time: at one sample a millisecond well above 1000.
const MILLISECONDS: &str = "1600";
/// Beyond this many points a report is wrong.
const POINTS: f64 = 0.04;

/// CPU time and stall of the two loops alone: what the program does before is not built in.
fn of_loops(profile: &Profile) -> (f64, f64, LevelShares) {
    let rows = profile
        .functions
        .iter()
        .filter(|row| row.name == "chase" || row.name == "work");
    let mut time = 0.0;
    let mut stall = 0.0;
    let mut levels = LevelShares::default();
    for row in rows {
        time += row.share.time_fraction;
        stall += row.share.stall_fraction;
        levels.l1 += row.share.levels.l1;
        levels.l2 += row.share.levels.l2;
        levels.l3 += row.share.levels.l3;
        levels.dram += row.share.levels.dram;
        levels.remote += row.share.levels.remote;
        levels.unknown += row.share.levels.unknown;
    }
    (time, stall, levels)
}

/// A hop that takes so many times what it takes undisturbed was mostly not in its level.
const ELSEWHERE: f64 = 1.5;

/// How much of the stall of a chase that takes `here_ns` when it is left alone is due to what lies
/// farther away, when a hop takes longer: what neighbours took of a cache that this machine
/// shares with them came from memory.
fn from_beyond(here_ns: f64, hop_ns: f64) -> f64 {
    let (hit, memory) = (latency_ns("L1"), latency_ns("DRAM"));
    let missed = ((hop_ns - here_ns) / (memory - here_ns)).clamp(0.0, 1.0);
    missed * (memory - hit) / (hop_ns - hit)
}

/// What one of these takes in the program alone, unprofiled, with this share of a chase through an area: the
/// shortest of some tries.
fn shortest_ns(
    program: &Path,
    (area_bytes, percent): (u64, &str),
    (all, one): (&str, &str),
) -> f64 {
    let area = area_bytes.to_string();
    let tries = (0..8).map(|_| {
        let output = Command::new(program).args([&area, percent, "50"]).output();
        let output = text(&output.expect("the fixture starts").stdout);
        told(&output, all) / told(&output, one).max(1.0)
    });
    tries.fold(f64::INFINITY, f64::min)
}

/// A hop of the chase while neighbours leave it its cache.
fn undisturbed_ns(program: &Path, area_bytes: u64) -> f64 {
    shortest_ns(program, (area_bytes, "100"), ("chase_ns", "hops"))
}

/// What the loop beside the chase, which waits for itself alone, took in this run over what it takes, where
/// somebody else had part of the core: then its hits took longer as well.
fn shared_core(program: &Path, run: &Profiled) -> Option<String> {
    const APART: f64 = 1.1;
    let (took, rounds) = (run.told("alu_ns"), run.told("rounds"));
    if rounds == 0.0 {
        return None;
    }
    let alone = shortest_ns(program, (4096, "0"), ("alu_ns", "rounds"));
    let slower = took * (1.0 - recorded(run)) / rounds / alone;
    (slower > APART).then(|| format!("arithmetic took {slower:.2} times what it takes alone"))
}

/// What a hit takes now over what it took when the machine was measured, where that is another
/// clock's: then a profile reckons with hits that are not these.
fn other_clock(program: &Path) -> Option<String> {
    const APART: f64 = 0.05;
    let area = size_bytes("L1").map_or(16 << 10, |size| size / 2);
    let slower = undisturbed_ns(program, area) / latency_ns("L1");
    ((slower - 1.0).abs() > APART).then(|| {
        format!("hits take {slower:.2} times what they took when the machine was measured")
    })
}

/// What kept this run from what the machine was measured at.
fn disturbed(program: &Path, run: &Profiled) -> Option<String> {
    other_clock(program).or_else(|| shared_core(program, run))
}

/// Share of the program's time that recording took.
fn recorded(run: &Profiled) -> f64 {
    run.profile.overhead.inside_fraction.clamp(0.0, 1.0)
}

/// Where the report leaves open that so much is due to this level, its row.
/// A timer of coarse steps tells neighbouring caches apart by few of its readings, and it says so.
fn left_open(profile: &Profile, level: &str, fraction: f64) -> Option<String> {
    let mut rows = profile.levels.iter();
    let row = rows.find(|row| row.name.split('+').any(|name| name == level))?;
    let (name, stall) = (&row.name, row.stall_fraction);
    let (low, high) = (row.stall_low, row.stall_high);
    (high >= fraction).then(|| {
        format!(
            "the report does not tell its caches apart, {name} {stall:.3} [{low:.3}, {high:.3}]"
        )
    })
}

/// Profiles the program once and holds the report to what the program's own clock says.
fn check(program: &Path, level: &str, area_bytes: u64, percent: u32) {
    let words = [
        area_bytes.to_string(),
        percent.to_string(),
        MILLISECONDS.to_owned(),
    ];
    let run = profile(&[], program, &words);
    let (chase, alu) = (run.told("chase_ns"), run.told("alu_ns"));
    // What a chase costs beyond hits is its stall; its own latency is that of this very run.
    let hop_ns = chase / run.told("hops").max(1.0);
    let beyond = match level {
        "L1" => 0.0,
        _ => (1.0 - latency_ns("L1") / hop_ns).max(0.0),
    };
    let truth = if chase > 0.0 {
        chase / (chase + alu) * beyond
    } else {
        0.0
    };
    // Whoever shares a cache takes some of it: the core's own are its other thread's too. Then a hop takes now
    // this and now that, and windows do not stand for the rest.
    let beyond = if matches!(level, "L2" | "L3") && truth > 0.0 {
        let here_ns = undisturbed_ns(program, area_bytes);
        if hop_ns > ELSEWHERE * here_ns {
            membound_testkit::skipped(format_args!(
                "{level} {percent} %: a hop took {hop_ns:.1} ns, neighbours have that cache"
            ));
            return;
        }
        from_beyond(here_ns, hop_ns)
    } else {
        0.0
    };
    let (time, stall, levels) = of_loops(&run.profile);
    let reported = stall / time;
    let shown = format!(
        "{level} {percent} %: {reported:.3} of the loops' time, by the program's clock {truth:.3}\n{}",
        run.show()
    );
    assert!(run.profile.run.effective_samples >= 1000.0, "{shown}");
    // To the program's clock what recording took of its time is its own, and to the report no stall.
    let within = truth * (1.0 - recorded(&run)) - POINTS..=truth + POINTS;
    if !within.contains(&reported)
        && let Some(why) = disturbed(program, &run)
    {
        membound_testkit::skipped(format_args!("{level} {percent} %: {why}"));
        return;
    }
    assert!(within.contains(&reported), "{shown}");
    if truth <= 0.1 {
        return;
    }
    let right = match level {
        "L1" | "L2" => levels.l1 + levels.l2,
        "L3" => levels.l3,
        _ => levels.dram,
    };
    let least = (0.85 - beyond) * stall;
    if right < least
        && let Some(why) =
            left_open(&run.profile, level, least).or_else(|| disturbed(program, &run))
    {
        membound_testkit::skipped(format_args!("{level} {percent} %: {why}"));
        return;
    }
    assert!(
        right >= least,
        "{levels:?} {beyond:.2} beyond {:?} {shown}",
        run.profile.levels
    );
}

/// All shares in one level.
fn check_all(level: &str, area_bytes: u64) {
    let Some(program) = fixture("share.c", "-O2") else {
        return;
    };
    let _alone = alone();
    if !reaches_memory() {
        return;
    }
    for percent in [0, 10, 25, 50, 75, 90, 100] {
        in_two_of_three(|| check(&program, level, area_bytes, percent));
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_chase_in_the_innermost_cache_is_no_stall() {
    check_all("L1", size_bytes("L1").map_or(16 << 10, |size| size / 2));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_chase_in_the_second_cache_is_found_in_it() {
    let (l1, l2) = (size_bytes("L1"), size_bytes("L2"));
    let area = l1
        .zip(l2)
        .map_or(256 << 10, |(l1, l2)| (l1 * 4).min(l2 / 2));
    check_all("L2", area);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_chase_in_the_third_cache_is_found_in_it() {
    let Some((l2, l3)) = size_bytes("L2").zip(size_bytes("L3")) else {
        membound_testkit::skipped("this machine shows no third cache");
        return;
    };
    if !is_calibrated(&machine().1, "L3") {
        membound_testkit::skipped("neighbours had the third cache whenever it was calibrated");
        return;
    }
    check_all("L3", (l2 * 3).min(l3 * 2 / 3));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_chase_in_memory_is_found_in_it() {
    check_all("DRAM", 256 << 20);
}
