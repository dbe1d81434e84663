//! Predictions for machines with a known difference.

use membound_analyze::{Options, OtherMachine, analyze};
use membound_run::{Burst, RunData, SiteKind, ThreadId};
use membound_types::{BandwidthKernel, Elsewhere, MachineProfile, Outcome, Profile};

use crate::near;
use crate::synthetic::{From, Like, Synthetic, machine, machine_that_moves};

const BYTES: u64 = 512 << 20;

/// Chases pointers through memory for two of four seconds, and computes in the others.
fn chase_and_compute() -> RunData {
    chase(From::Dram, BYTES)
}

/// Chases pointers through `lines_of` bytes of an array for two of four seconds, served from `level`, and
/// computes in the others.
fn chase(level: From, lines_of: u64) -> RunData {
    let mut program = Synthetic::new(4.0, 1);
    let main = program.thread("main");
    let array = program.heap(&[("main", "main.c", 1)], BYTES);
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let compute = program.stack(&[("compute", "compute.c", 7)]);
    let like = Like::chase(level, std::slice::from_ref(&array));
    program.access(main, 0, walk, 0.0..2.0, &like);
    program.plain(main, compute, 2.0..4.0);
    let mut run = program.finish();
    // Visit lines in an irregular order: by a step that shares no factor with their number.
    let line = |at: u64| at * 2_654_435_761 % (lines_of / 64) * 64;
    let accesses = (0..200_000).map(|at| (0, array.address + line(at), false));
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

fn with_size(mut profile: MachineProfile, level: &str, bytes: u64) -> MachineProfile {
    for known in profile.levels.iter_mut().filter(|it| it.name == level) {
        let size = Some(bytes);
        (
            known.size_bytes,
            known.size_low_bytes,
            known.size_high_bytes,
        ) = (size, size, size);
    }
    profile
}

/// Ratio of the stall there to that here.
fn stall_ratio(run: &RunData, other: &MachineProfile) -> f64 {
    let (here, there) = on(run, other);
    there.memory_bound.value * there.time_ratio.value / here.memory_bound.fraction
}

#[test]
fn lines_that_a_smaller_cache_does_not_hold_come_from_memory() {
    let run = chase(From::L3, 4 << 20);
    let beyond = |from: From| from.latency_ns() - From::L1.latency_ns();
    near(stall_ratio(&run, &machine()), 1.0, 1e-6, "the same machine");
    let small = with_size(with_size(machine(), "L3", 256 << 10), "L2", 128 << 10);
    let from_memory = beyond(From::Dram) / beyond(From::L3);
    near(
        stall_ratio(&run, &small),
        from_memory,
        0.05 * from_memory,
        "a small cache",
    );
    let (_, there) = on(&run, &small);
    assert!(
        there.time_ratio.low < 1.01,
        "it was built as large: {:?}",
        there.time_ratio
    );
}

#[test]
fn where_bursts_contradict_timed_accesses_each_level_keeps_its_lines() {
    // Bursts see lines that the second cache holds; the timed accesses come from memory.
    let run = chase(From::Dram, 256 << 10);
    let small = with_size(machine(), "L3", 2 << 20);
    near(stall_ratio(&run, &small), 1.0, 1e-6, "still from memory");
    let slow = with_latency(machine(), "DRAM", 2.0);
    near(
        stall_ratio(&run, &slow),
        2.0,
        0.04,
        "at that memory's latency",
    );
}

#[test]
fn where_bursts_contradict_timed_accesses_their_latencies_give_the_traffic() {
    let moved = |run: &RunData| {
        let profile = analyze(run, &Options::default()).profile;
        profile.bandwidth[0].average_gb_s
    };
    let from_memory = moved(&chase(From::Dram, BYTES));
    let contradicted = moved(&chase(From::Dram, 256 << 10));
    near(contradicted, from_memory, 0.05 * from_memory, "from memory");
    assert!(moved(&chase(From::L3, 4 << 20)) < 0.01 * from_memory);
}

#[test]
fn bursts_of_a_small_part_of_the_time_give_no_traffic() {
    let mut run = chase_and_compute();
    for sample in run.samples.iter_mut().filter(|it| it.t_ns >= 2_000_000_000) {
        sample.weight_ns *= 4;
    }
    let profile = analyze(&run, &Options::default()).profile;
    assert_eq!(profile.bandwidth, []);
    let reasons = profile.missing.iter().filter(|it| it.table == "bandwidth");
    let reasons: Vec<&str> = reasons.map(|it| it.why.reason.as_str()).collect();
    let expected =
        "the code of 20 % of CPU time was recorded in bursts: what the rest moves is not known";
    assert_eq!(reasons, [expected]);
}

#[test]
fn bursts_in_unrecorded_blocks_belong_to_those_of_the_nearest_access() {
    let mut run = chase(From::Dram, BYTES);
    // Accesses keep the block that the recorder took them for; it is too small to hold the burst.
    let object = run.accesses[0].object.expect("it was recorded");
    run.objects[object.index()].size_bytes = 64;
    let profile = analyze(&run, &Options::default()).profile;
    let [object] = profile.bandwidth[0].objects.as_slice() else {
        panic!("{:?}", profile.bandwidth[0].objects);
    };
    assert!(object.name.starts_with("main.c:1"), "{object:?}");
    near(object.fraction, 1.0, 0.01, "nearly all lines");
}

#[test]
fn memory_of_half_the_bandwidth_doubles_the_function_that_used_all_of_it() {
    let mut run = chase_and_compute();
    let (_, used) = on(&run, &machine());
    // All bytes belong to half of the time: then their demand equals the bandwidth of this machine.
    let gb_s = 2.0 * used.per_core_gb_s;
    run.meta.machine = Some(Box::new(with_bandwidth(gb_s)));
    let (_, same) = on(&run, &with_bandwidth(gb_s));
    near(same.time_ratio.value, 1.0, 1e-6, "the same machine");
    let (here, half) = on(&run, &with_bandwidth(gb_s / 2.0));
    near(half.time_ratio.value, 1.5, 1e-6, "half of the bandwidth");
    // Computing takes the same time; the rest waits for memory.
    let computing = (1.0 - half.memory_bound.value) * half.time_ratio.value;
    near(
        computing,
        1.0 - here.memory_bound.fraction,
        1e-9,
        "computing",
    );
    let waits = half.levels.dram * half.time_ratio.value;
    near(waits - here.memory_bound.dram, 0.5, 0.01, "beyond latency");
}

#[test]
fn the_bandwidth_is_that_of_the_program_s_mix_and_threads() {
    let mut run = chase_and_compute();
    let (_, used) = on(&run, &machine());
    let gb_s = 2.0 * used.per_core_gb_s;
    let here = [
        (BandwidthKernel::Read, gb_s),
        (BandwidthKernel::Write, gb_s),
    ];
    run.meta.machine = Some(Box::new(machine_that_moves(&here)));
    // The program reads only, with one thread: neither faster writes nor faster pairs of threads help.
    let there = [
        (BandwidthKernel::Read, gb_s / 2.0),
        (BandwidthKernel::Write, gb_s),
    ];
    let mut other = machine_that_moves(&there);
    let Outcome::Known(bandwidth) = &mut other.bandwidth else {
        panic!("no bandwidth");
    };
    let mut of_two = bandwidth.points[0].clone();
    of_two.threads = 2;
    of_two.gb_s_with_allocate = gb_s;
    bandwidth.points.push(of_two);
    let (_, prediction) = on(&run, &other);
    near(prediction.time_ratio.value, 1.5, 1e-6, "run time");
}

#[test]
fn a_stream_that_waits_keeps_pace_with_memory_below_its_full_bandwidth() {
    let run_with = |is_in_order: bool| {
        let mut run = chase_and_compute();
        if is_in_order {
            go_through_in_order(&mut run);
        }
        let (_, used) = on(&run, &machine());
        // Two thirds of the bandwidth in the half of the time that moves bytes.
        let gb_s = 3.0 * used.per_core_gb_s;
        run.meta.machine = Some(Box::new(with_bandwidth(gb_s)));
        let (here, half) = on(&run, &with_bandwidth(gb_s / 2.0));
        (here.memory_bound.fraction, half.time_ratio.value)
    };
    let (stalled, ratio) = run_with(true);
    assert!(stalled > 0.2, "{stalled}");
    near(ratio, 1.5, 1e-6, "half the bandwidth doubles the stream");
    let (_, ratio) = run_with(false);
    near(ratio, 1.0 + 1.0 / 6.0, 0.02, "a chase fits two thirds");
}

#[test]
fn streams_wait_for_bandwidth_where_they_use_a_part_of_it() {
    let mut run = chase_and_compute();
    go_through_in_order(&mut run);
    let (_, used) = on(&run, &machine());
    // A quarter of the bandwidth in the half of the time that moves bytes.
    let gb_s = 8.0 * used.per_core_gb_s;
    run.meta.machine = Some(Box::new(with_bandwidth(gb_s)));
    let (here, twice) = on(&run, &with_bandwidth(2.0 * gb_s));
    let stalled = here.memory_bound.fraction;
    assert!(stalled > 0.2, "{stalled}");
    near(twice.time_ratio.value, 1.0 - stalled / 2.0, 1e-6, "faster");
    let (_, half) = on(&run, &with_bandwidth(gb_s / 2.0));
    near(half.time_ratio.value, 1.0 + stalled, 1e-6, "slower");
    let slow = with_latency(with_bandwidth(gb_s), "DRAM", 2.0);
    let (_, slow) = on(&run, &slow);
    near(slow.time_ratio.value, 1.0, 1e-6, "prefetchers hide latency");
}

/// Changes the accesses of a run so that they go through their array in order.
fn go_through_in_order(run: &mut RunData) {
    let start = run.objects[0].address;
    let period = u64::from(run.meta.site_period.max(1));
    run.accesses.sort_by_key(|access| access.t_ns);
    for (at, access) in (0..).zip(&mut run.accesses) {
        access.address = start + at * period * 8 % BYTES;
    }
    let burst = &mut run.bursts[0];
    for (at, access) in (0..).zip(&mut burst.accesses) {
        access.1 = start + at * 8;
    }
}

#[test]
fn intervals_of_the_machine_s_figures_are_in_the_prediction() {
    let run = chase_and_compute();
    let mut other = machine();
    for level in other.levels.iter_mut().filter(|it| it.name == "DRAM") {
        level.latency_low_ns = level.latency_ns * 0.8;
        level.latency_high_ns = level.latency_ns * 1.2;
    }
    let (here, there) = on(&run, &other);
    let stalled = here.memory_bound.dram;
    let ratio = there.time_ratio;
    near(ratio.value, 1.0, 1e-6, "the same latency");
    assert!(ratio.low <= 1.0 - 0.19 * stalled, "{ratio:?}");
    assert!(ratio.high >= 1.0 + 0.19 * stalled, "{ratio:?}");
}

#[test]
fn computing_scales_with_the_clock_and_the_interval_includes_the_core_s_design() {
    let run = chase_and_compute();
    // Half of the clock, and a first cache with a latency of two cycles less: 1.4 times as long.
    let other = with_latency(with_clock(machine(), 0.5), "L1", 1.4);
    let (here, there) = on(&run, &other);
    let ratio = there.compute_ratio.known().unwrap();
    near(ratio.value, 2.0, 1e-9, "by the clock");
    near(ratio.low, 1.4, 1e-9, "by the first cache");
    near(ratio.high, 2.6, 1e-9, "by the design");
    let computing = (1.0 - there.memory_bound.value) * there.time_ratio.value;
    let expected = 2.0 * (1.0 - here.memory_bound.fraction);
    near(computing, expected, 1e-9, "computing");
    near(there.time_ratio.value, 1.5, 0.03, "run time");
    assert!(there.time_ratio.low < 1.35, "{:?}", there.time_ratio);
    assert!(there.memory_bound.high > there.memory_bound.value);
}

#[test]
fn cores_of_one_design_differ_by_their_clock_alone() {
    let mut run = chase_and_compute();
    let mut other = machine();
    other.machine.cpu.microarchitecture = Some("Zen 4".to_owned());
    run.meta.machine = Some(Box::new(other.clone()));
    let (_, there) = on(&run, &with_clock(other, 2.0));
    let ratio = there.compute_ratio.known().unwrap();
    near(ratio.value, 0.5, 1e-9, "by the clock");
    near(ratio.low, 0.5, 1e-9, "no other design");
    near(ratio.high, 1.0, 1e-9, "by the first cache");
}

#[test]
fn without_a_clock_computing_is_not_scaled_and_the_reason_is_reported() {
    let run = chase_and_compute();
    let (_, there) = on(&run, &with_clock(machine(), 0.0));
    let why = there.compute_ratio.why_missing().unwrap();
    assert!(why.reason.contains("core clock"), "{}", why.reason);
    near(there.time_ratio.value, 1.0, 1e-6, "run time");
}
