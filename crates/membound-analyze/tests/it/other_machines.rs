//! Predictions for machines with a known difference.

use membound_analyze::{Options, OtherMachine, analyze};
use membound_run::{Burst, RunData, SiteKind, ThreadId};
use membound_types::{BandwidthKernel, Elsewhere, MachineProfile, Profile};

use crate::near;
use crate::synthetic::{From, Like, Synthetic, machine, machine_that_moves};

const BYTES: u64 = 512 << 20;

/// Chases pointers through memory for two of four seconds, and computes in the others.
fn chase_and_compute() -> RunData {
    let mut program = Synthetic::new(4.0, 1);
    let main = program.thread("main");
    let array = program.heap(&[("main", "main.c", 1)], BYTES);
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let compute = program.stack(&[("compute", "compute.c", 7)]);
    let like = Like::chase(From::Dram, std::slice::from_ref(&array));
    program.access(main, 0, walk, 0.0..2.0, &like);
    program.plain(main, compute, 2.0..4.0);
    let mut run = program.finish();
    // Visit lines in an irregular order: by a step that shares no factor with their number.
    let line = |at: u64| at * 2_654_435_761 % (BYTES / 64) * 64;
    let accesses = (0..20_000).map(|at| (0, array.address + line(at), false));
    run.bursts.push(Burst {
        from_ns: 1_000_000_000,
        to_ns: 1_010_000_000,
        thread: ThreadId(0),
        sites: vec![walk.site],
        accesses: accesses.collect(),
    });
    run
}

fn with_latency(mut profile: MachineProfile, level: &str, factor: f64) -> MachineProfile {
    for known in profile.levels.iter_mut().filter(|it| it.name == level) {
        known.latency_ns *= factor;
        known.latency_low_ns *= factor;
        known.latency_high_ns *= factor;
    }
    profile
}

fn with_clock(mut profile: MachineProfile, factor: f64) -> MachineProfile {
    profile.machine.timer.core_clock_hz *= factor;
    profile
}

fn with_bandwidth(gb_s: f64) -> MachineProfile {
    machine_that_moves(&[(BandwidthKernel::Read, gb_s)])
}

fn on(run: &RunData, other: &MachineProfile) -> (Profile, Elsewhere) {
    let others = [OtherMachine {
        name: "other",
        profile: other,
    }];
    let options = Options {
        elsewhere: &others,
        ..Options::default()
    };
    let mut profile = analyze(run, &options).profile;
    let prediction = profile.elsewhere.pop();
    let prediction = prediction.unwrap_or_else(|| panic!("{:?}", profile.missing));
    (profile, prediction)
}

#[test]
fn a_run_without_bursts_says_why_it_predicts_nothing() {
    let mut run = chase_and_compute();
    run.bursts.clear();
    let others = [OtherMachine {
        name: "other",
        profile: &machine(),
    }];
    let options = Options {
        elsewhere: &others,
        ..Options::default()
    };
    let profile = analyze(&run, &options).profile;
    assert!(profile.elsewhere.is_empty());
    let why = profile.missing.iter().find(|it| it.table == "elsewhere");
    let why = &why.expect("a reason").why.reason;
    assert!(why.contains("no burst"), "{why}");
    let unasked = analyze(&run, &Options::default()).profile;
    assert!(unasked.missing.iter().all(|it| it.table != "elsewhere"));
}

#[test]
fn memory_of_twice_the_latency_gives_twice_its_stall_and_the_same_computing() {
    let run = chase_and_compute();
    let (here, there) = on(&run, &with_latency(machine(), "DRAM", 2.0));
    let stalled = here.memory_bound.fraction;
    near(stalled, 0.5, 0.02, "stalled here");
    let stalled_there = there.levels.dram * there.time_ratio.value;
    near(stalled_there / here.memory_bound.dram, 2.0, 0.04, "stall");
    let computing = (1.0 - there.memory_bound.value) * there.time_ratio.value;
    near(computing, 1.0 - stalled, 1e-9, "computing");
    let (low, high) = (there.time_ratio.low, there.time_ratio.high);
    assert!(low <= 1.5 && 1.5 <= high, "{:?}", there.time_ratio);
    assert_eq!(there.compute_ratio.known().unwrap().value, 1.0);
}

#[test]
fn memory_of_half_the_bandwidth_doubles_a_run_that_used_all_of_it() {
    let mut run = chase_and_compute();
    let (_, used) = on(&run, &machine());
    // The program's average demand equals the bandwidth of this machine.
    let gb_s = used.per_core_gb_s;
    run.meta.machine = Some(Box::new(with_bandwidth(gb_s)));
    let (_, same) = on(&run, &with_bandwidth(gb_s));
    near(same.time_ratio.value, 1.0, 1e-6, "the same machine");
    let (here, half) = on(&run, &with_bandwidth(gb_s / 2.0));
    near(half.time_ratio.value, 2.0, 1e-6, "half of the bandwidth");
    // Computing takes the same time; the rest waits for memory.
    let computing = (1.0 - half.memory_bound.value) * half.time_ratio.value;
    near(
        computing,
        1.0 - here.memory_bound.fraction,
        1e-9,
        "computing",
    );
    let waits = half.levels.dram * half.time_ratio.value;
    near(waits - here.memory_bound.dram, 1.0, 0.01, "beyond latency");
}

#[test]
fn computing_scales_with_the_clock_and_the_interval_includes_the_first_cache() {
    let run = chase_and_compute();
    // Half of the clock, and a first cache with a latency of one cycle less: 1.6 times as long.
    let other = with_latency(with_clock(machine(), 0.5), "L1", 1.6);
    let (here, there) = on(&run, &other);
    let ratio = there.compute_ratio.known().unwrap();
    near(ratio.value, 2.0, 1e-9, "by the clock");
    near(ratio.low, 1.6, 1e-9, "by the first cache");
    near(ratio.high, 2.0, 1e-9, "by the clock");
    let computing = (1.0 - there.memory_bound.value) * there.time_ratio.value;
    let expected = 2.0 * (1.0 - here.memory_bound.fraction);
    near(computing, expected, 1e-9, "computing");
    near(there.time_ratio.value, 1.5, 0.03, "run time");
    assert!(there.time_ratio.low < 1.35, "{:?}", there.time_ratio);
    assert!(there.memory_bound.high > there.memory_bound.value);
}

#[test]
fn without_a_clock_computing_is_not_scaled_and_the_reason_is_reported() {
    let run = chase_and_compute();
    let (_, there) = on(&run, &with_clock(machine(), 0.0));
    let why = there.compute_ratio.why_missing().unwrap();
    assert!(why.reason.contains("core clock"), "{}", why.reason);
    near(there.time_ratio.value, 1.0, 1e-6, "run time");
}
