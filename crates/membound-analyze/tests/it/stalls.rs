//! Stalled shares by code, thread and level.

use membound_analyze::Options;
use membound_run::{
    BlockCount, FrameId, Laps, LoopAround, Process, ProcessId, RunData, SiteId, SiteKind, Thread,
    ThreadId,
};
use membound_types::{InsightKind, Profile};

use crate::synthetic::{From, Like, Synthetic};
use crate::{near, views};

/// A chase through `from` for `share` of four seconds beside loads that hit the innermost
/// cache.
fn chase_beside_hits(share: f64, from: From) -> (RunData, f64) {
    let mut program = Synthetic::new(4.0, 1);
    let main = program.thread("main");
    let table = program.heap(&[("make", "make.c", 5), ("main", "main.c", 3)], 64 << 20);
    let small = program.global("small", 4096);
    let chase = program.site(("chase", "chase.c", 20), SiteKind::Load, 8);
    let hits = program.site(("spin", "spin.c", 30), SiteKind::Load, 8);
    let like = Like::chase(from, &[table]);
    let mut truth = 0.0;
    // Alternate, so that windows and phases do not coincide with the run's halves.
    for round in 0..4 {
        let (start, end) = (f64::from(round), f64::from(round + 1));
        let turn = start + share;
        if share > 0.0 {
            program.access(main, 0, chase, start..turn, &like);
            truth += share * like.stall_ns() / (like.stall_ns() + From::L1.latency_ns());
        }
        if share < 1.0 {
            let hit = Like::chase(From::L1, std::slice::from_ref(&small));
            program.access(main, 0, hits, turn..end, &hit);
        }
    }
    (program.finish(), truth / 4.0)
}

fn check(share: f64, from: From, level: impl Fn(&Profile) -> f64) {
    let (run, truth) = chase_beside_hits(share, from);
    let profile = views(&run).profile;
    let bound = &profile.memory_bound;
    near(bound.fraction, truth, 0.04, "memory bound");
    assert!(
        bound.low <= truth + 0.01 && truth <= bound.high + 0.01,
        "{bound:?} {truth}"
    );
    if truth > 0.05 {
        assert!(level(&profile) >= 0.85 * bound.fraction, "{bound:?}");
        let line = &profile.lines[0];
        assert_eq!((line.name.as_str(), line.line), ("chase.c:20", Some(20)));
        assert_eq!(profile.functions[0].name, "chase");
        assert_eq!(profile.instructions[0].name, "mov rax, [rdi+0]");
    }
}

#[test]
fn built_in_shares_are_found_in_every_level() {
    for share in [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0] {
        check(share, From::Dram, |profile| profile.memory_bound.dram);
        check(share, From::L3, |profile| profile.memory_bound.l3);
        check(share, From::L2, |profile| {
            profile.memory_bound.l1 + profile.memory_bound.l2
        });
    }
}

#[test]
fn a_loop_of_hits_is_reported_as_not_memory_bound() {
    let (run, _) = chase_beside_hits(0.0, From::Dram);
    let profile = views(&run).profile;
    near(profile.memory_bound.fraction, 0.0, 0.04, "memory bound");
    assert_eq!(profile.findings[0].kind, InsightKind::NotMemoryBound);
    assert_eq!(profile.findings.len(), 1, "{:?}", profile.findings);
}

#[test]
fn an_interval_across_the_threshold_gives_no_verdict() {
    let (run, _) = chase_beside_hits(0.25, From::Dram);
    let bound = views(&run).profile.memory_bound;
    let mut options = Options::default();
    let mut first = |not_memory_bound: f64, memory_bound: f64| {
        options.thresholds.not_memory_bound = not_memory_bound;
        options.thresholds.memory_bound = memory_bound;
        let profile = membound_analyze::analyze(&run, &options).profile;
        let mut verdicts = profile.findings.into_iter();
        verdicts
            .find(|it| [InsightKind::MemoryBound, InsightKind::NotMemoryBound].contains(&it.kind))
            .unwrap()
    };
    let (above, inside) = (bound.high + 0.01, f64::midpoint(bound.fraction, bound.high));
    let verdict = first(inside, above);
    assert_eq!(verdict.kind, InsightKind::NotMemoryBound);
    let verdict = first(inside, inside);
    assert_eq!(verdict.kind, InsightKind::MemoryBound);
    assert!(
        verdict.text.contains("does not show whether"),
        "{}",
        verdict.text
    );
}

#[test]
fn a_thread_that_runs_alone_has_no_stall_on_other_cores() {
    // To the timer, the accesses look like another core's cache, but there is no other core in use.
    let (run, _) = chase_beside_hits(0.75, From::Core);
    let profile = views(&run).profile;
    assert!(profile.memory_bound.fraction > 0.5);
    assert_eq!(profile.memory_bound.remote, 0.0);
}

#[test]
fn a_thread_that_hands_over_to_another_has_no_stall_on_other_cores() {
    // Like a process that waits for its child: the two alternate, but never run at once.
    let mut program = Synthetic::new(4.0, 2);
    let threads = [program.thread("parent"), program.thread("child")];
    let table = program.heap(&[("make", "make.c", 5), ("main", "main.c", 3)], 64 << 20);
    let chase = program.site(("chase", "chase.c", 20), SiteKind::Load, 8);
    let like = Like::chase(From::Core, &[table]);
    for turn in 0..40 {
        let start = f64::from(turn) * 0.1;
        // The hand-over lies within a stretch of 20 ms.
        program.access(threads[0], 0, chase, start..start + 0.05, &like);
        program.access(threads[1], 1, chase, start + 0.05..start + 0.1, &like);
    }
    let profile = views(&program.finish()).profile;
    assert!(profile.memory_bound.fraction > 0.5);
    assert_eq!(profile.memory_bound.remote, 0.0);
}

#[test]
fn a_chase_is_called_memory_bound_with_level_line_and_object() {
    let (run, _) = chase_beside_hits(0.75, From::Dram);
    let profile = views(&run).profile;
    let [verdict, object] = profile.findings.as_slice() else {
        panic!("{:?}", profile.findings);
    };
    assert_eq!(verdict.kind, InsightKind::MemoryBound);
    assert!(verdict.text.contains("for DRAM"), "{}", verdict.text);
    assert!(verdict.text.contains("chase.c:20"), "{}", verdict.text);
    assert_eq!(object.kind, InsightKind::HotObject);
    assert!(
        object.text.starts_with("make.c:5 (64 MiB)"),
        "{}",
        object.text
    );
    let latency = profile.latency.known().unwrap();
    assert!(latency.flagged == (latency.ns >= 5.0));
    near(latency.cycles, latency.ns * 4.0, 1e-9, "cycles");
    near(
        profile.functions[0].share.avg_latency_ns.unwrap(),
        150.0,
        5.0,
        "latency",
    );
}

#[test]
fn latencies_that_overlap_count_only_as_far_as_they_are_waited_for() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let table = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let gather = program.site(("gather", "gather.c", 8), SiteKind::Load, 8);
    let like = Like {
        exposed: 0.1,
        work_ns: 30.0,
        ..Like::chase(From::Dram, &[table])
    };
    program.access(main, 0, gather, 0.0..10.0, &like);
    let profile = views(&program.finish()).profile;
    // All of the time is at the access. 31 of every 46 ns are not due to memory, but nothing shows that;
    // the stall is only bounded by the time.
    assert!(profile.memory_bound.fraction <= 1.0);
    assert!(profile.memory_bound.high >= like.stall_ns() / (like.stall_ns() + 31.0));
}

#[test]
fn time_without_samples_is_other_time() {
    let (mut run, _) = chase_beside_hits(1.0, From::Dram);
    let before = views(&run).profile;
    // The thread spends the same time again in the kernel.
    run.threads[0].cpu_ns = run.threads[0].cpu_ns.map(|cpu_ns| 2 * cpu_ns);
    run.threads[0].end_ns = Some(10_000_000_000);
    run.meta.elapsed_ns = 10_000_000_000;
    let after = views(&run).profile;
    near(
        after.memory_bound.fraction,
        before.memory_bound.fraction / 2.0,
        0.02,
        "memory bound",
    );
    near(after.time.cpu_s, 8.0, 0.01, "CPU time");
    near(after.time.idle_s, 2.0, 0.01, "idle time");
    near(
        after.time.memory_stall_s + after.time.other_s,
        after.time.cpu_s,
        1e-9,
        "parts",
    );
}

/// Two threads that follow the same chain in memory for ten seconds, and the site of the load.
fn two_walks() -> (RunData, [ThreadId; 2], SiteId) {
    let mut program = Synthetic::new(10.0, 2);
    let threads = [program.thread("first"), program.thread("second")];
    let table = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let walk = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
    let like = Like::chase(From::Dram, &[table]);
    for (cpu, thread) in (0..).zip(threads) {
        program.access(thread, cpu, walk, 0.0..10.0, &like);
    }
    (program.finish(), threads, walk.site)
}

/// Nothing counts in a process without patches, which executes the same code.
#[test]
fn processes_without_patches_do_not_lower_rates() {
    let (mut run, threads, _) = two_walks();
    let mut unpatched = run.processes[0].clone();
    unpatched.unpatched = Some("it was not drawn".to_owned());
    run.processes.push(unpatched);
    run.threads[threads[1].index()].process = ProcessId(1);
    // Half of the run is counted, and of that the first process.
    let window = &mut run.executions[0];
    let loads = window.count as f64;
    window.to_ns /= 2;
    window.cpu_ns /= 2;
    window.count /= 4;
    let share = &views(&run).profile.functions[0].share;
    near(share.loads.unwrap() / loads, 1.0, 0.05, "loads");
    assert!(share.loads_low.unwrap() < loads && loads < share.loads_high.unwrap());
}

/// A few windows may see mostly one of the threads.
#[test]
fn threads_share_executions_by_their_iterations() {
    let (mut run, threads, walk) = two_walks();
    let mut number = 0;
    run.accesses.retain(|access| {
        number += 1;
        access.thread == threads[0] || number % 10 == 0
    });
    let divided = |run: &RunData| {
        let loads = views(run).profile.threads;
        let loads: Vec<f64> = loads.iter().map(|row| row.share.loads.unwrap()).collect();
        loads[0] / loads[1]
    };
    let by_windows = divided(&run);
    assert!(!(0.2..5.0).contains(&by_windows), "{by_windows}");
    run.laps = threads
        .map(|thread| Laps {
            site: walk,
            thread,
            from_ns: 0,
            to_ns: 1_000_000_000,
            count: 10_000_000,
            more_count: None,
            cpu_ns: 1_000_000_000,
        })
        .to_vec();
    near(
        divided(&run),
        1.0,
        0.1,
        "executions of the first for each of the second",
    );
}

/// `sh -c 'exec program'`: the shell's thread is the program's.
#[test]
fn a_thread_that_starts_another_program_neither_idles_nor_counts_twice() {
    let (mut run, _) = chase_beside_hits(1.0, From::Dram);
    let before = views(&run).profile;
    let program = run.processes[0].clone();
    run.processes.push(Process {
        end_ns: Some(program.start_ns),
        ..program
    });
    run.threads.push(Thread {
        process: ProcessId(1),
        name: "sh".to_owned(),
        cpu_ns: Some(0),
        end_ns: None,
        ..run.threads[0].clone()
    });
    let after = views(&run).profile;
    assert_eq!(
        (after.run.processes, after.run.threads),
        (before.run.processes, before.run.threads)
    );
    near(after.time.idle_s, before.time.idle_s, 1e-9, "idle time");
}

#[test]
fn threads_of_one_loop_have_separate_waits() {
    let mut program = Synthetic::new(10.0, 2);
    let far = program.thread("far");
    let near_by = program.thread("near");
    let large = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let small = program.heap(&[("main", "main.c", 4)], 4096);
    let walk = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
    program.access(far, 0, walk, 0.0..10.0, &Like::chase(From::Dram, &[large]));
    program.access(
        near_by,
        1,
        walk,
        0.0..10.0,
        &Like::chase(From::L1, &[small]),
    );
    let profile = views(&program.finish()).profile;
    assert_eq!(profile.threads[0].name, "far");
    near(profile.memory_bound.fraction, 0.5, 0.05, "memory bound");
    near(profile.threads[0].share.stall_fraction, 0.5, 0.05, "far");
    near(profile.threads[1].share.stall_fraction, 0.0, 0.05, "near");
    let object = |name: &str| {
        let row = profile
            .objects
            .iter()
            .find(|row| row.name.starts_with(name));
        row.unwrap().share.stall_fraction
    };
    near(object("main.c:3"), 0.5, 0.05, "large");
    near(object("main.c:4"), 0.0, 0.02, "small");
}

#[test]
fn parts_sum_to_the_whole_in_every_table() {
    let (run, _) = chase_beside_hits(0.5, From::L3);
    let views = crate::views(&run);
    sums(&views.profile);
    let detail: f64 = views
        .detail
        .samples
        .iter()
        .map(|sample| sample.stall_s)
        .sum();
    near(detail, views.profile.time.memory_stall_s, 0.02, "samples");
    let weights: f64 = views
        .detail
        .samples
        .iter()
        .map(|sample| sample.weight_s)
        .sum();
    near(weights, 4.0, 1e-6, "weights");
}

/// Asserts that the rows of tables sum to the whole.
pub(crate) fn sums(profile: &Profile) {
    let bound = &profile.memory_bound;
    let levels = bound.l1 + bound.l2 + bound.l3 + bound.dram + bound.remote + bound.unknown;
    near(levels, bound.fraction, 1e-9, "levels of the whole");
    let by_level: f64 = profile.levels.iter().map(|row| row.stall_fraction).sum();
    near(by_level, bound.fraction, 1e-9, "levels");
    let rows = [
        (
            "functions",
            profile
                .functions
                .iter()
                .map(|row| &row.share)
                .collect::<Vec<_>>(),
        ),
        (
            "lines",
            profile.lines.iter().map(|row| &row.share).collect(),
        ),
        (
            "instructions",
            profile.instructions.iter().map(|row| &row.share).collect(),
        ),
        (
            "threads",
            profile.threads.iter().map(|row| &row.share).collect(),
        ),
        (
            "objects",
            profile.objects.iter().map(|row| &row.share).collect(),
        ),
    ];
    for (table, rows) in rows {
        let stall: f64 = rows.iter().map(|share| share.stall_fraction).sum();
        near(stall, bound.fraction, 1e-9, table);
        let time: f64 = rows.iter().map(|share| share.time_fraction).sum();
        assert!(time <= 1.0 + 1e-9, "{table}: {time}");
        for share in rows {
            let levels = &share.levels;
            let sum =
                levels.l1 + levels.l2 + levels.l3 + levels.dram + levels.remote + levels.unknown;
            near(sum, share.stall_fraction, 1e-9, table);
            assert!(share.stall_low <= share.stall_fraction + 1e-12, "{table}");
            assert!(share.stall_fraction <= share.stall_high + 1e-12, "{table}");
            assert!(
                share.stall_fraction <= share.time_fraction + 1e-9,
                "{table}"
            );
        }
    }
}

#[test]
fn the_order_of_records_does_not_matter() {
    let (run, _) = chase_beside_hits(0.25, From::Dram);
    let mut shuffled = run.clone();
    let mut random = crate::synthetic::Random::new(3);
    for index in (1..shuffled.samples.len()).rev() {
        let other = random.below(index as u64 + 1) as usize;
        shuffled.samples.swap(index, other);
    }
    shuffled.accesses.reverse();
    shuffled.executions.reverse();
    shuffled.attributions.reverse();
    assert_eq!(views(&run), views(&shuffled));
}

#[test]
fn membounds_own_code_is_no_time_of_the_program() {
    let (mut run, _) = chase_beside_hits(1.0, From::Dram);
    let before = views(&run).profile;
    let module = membound_run::ModuleId(run.modules.len() as u32);
    run.modules.push(membound_run::Module {
        path: "[agent]".to_owned(),
        build_id: None,
        text_hash: None,
        kind: membound_run::ModuleKind::Agent,
    });
    let frame = membound_run::FrameId(run.frames.len() as u32);
    run.frames.push(membound_run::Frame {
        module: Some(module),
        address: 0x100,
    });
    let stack = membound_run::StackId(run.stacks.len() as u32);
    run.stacks.push(membound_run::Stack {
        parent: None,
        frame,
    });
    for index in 0..1000 {
        let mut sample = run.samples[index];
        sample.stack = stack;
        sample.address = None;
        sample.object = None;
        run.samples.push(sample);
    }
    let after = views(&run).profile;
    near(
        after.overhead.inside_fraction,
        1000.0 / 5000.0,
        1e-9,
        "inside",
    );
    assert!(after.functions.iter().all(|row| row.module != "[agent]"));
    // The same in a thread of the agent takes no time from the program's.
    let agents = membound_run::ThreadId(run.threads.len() as u32);
    run.threads.push(membound_run::Thread {
        tid: run.processes[0].pid + 1,
        name: "membound-agent".to_owned(),
        ..run.threads[0].clone()
    });
    let mut beside_ns = 0;
    for sample in run.samples.iter_mut().rev().take(1000) {
        sample.thread = agents;
        beside_ns += sample.weight_ns;
    }
    let beside = views(&run).profile.overhead;
    assert_eq!(beside.inside_fraction, 0.0);
    assert!(beside.cost_fraction < after.overhead.cost_fraction);
    let more_s = beside.own_cpu_s - after.overhead.own_cpu_s;
    near(more_s, beside_ns as f64 / 1e9, 1e-9, "CPU time beside");
    assert!(after.memory_bound.fraction >= before.memory_bound.fraction - 1e-9);
}

#[test]
fn a_separate_machine_profile_replaces_the_run_s_own() {
    let (mut run, truth) = chase_beside_hits(0.5, From::Dram);
    let machine = run.meta.machine.take().unwrap();
    let options = Options {
        machine: Some(&machine),
        ..Options::default()
    };
    let profile = membound_analyze::analyze(&run, &options).profile;
    near(profile.memory_bound.fraction, truth, 0.04, "memory bound");
    assert_eq!(profile.run.cpu, "Imagined 1");
}

#[test]
fn a_densely_sampled_window_has_no_larger_weight() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let (one, other) = (program.global("one", 4096), program.global("other", 4096));
    let walk = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
    program.access(main, 0, walk, 0.0..5.0, &Like::chase(From::L3, &[one]));
    program.access(main, 0, walk, 5.0..10.0, &Like::chase(From::Dram, &[other]));
    let even = program.finish();
    let mut uneven = even.clone();
    let mut random = crate::synthetic::Random::new(5);
    uneven
        .accesses
        .retain(|access| access.t_ns >= 5_000_000_000 || random.unit() < 0.1);
    for run in [&even, &uneven] {
        let profile = views(run).profile;
        // 14 of 15 ns and 149 of 150 ns are stalled, each for half of the time.
        let bound = &profile.memory_bound;
        near(bound.l3, 0.467, 0.04, "L3");
        near(bound.dram, 0.497, 0.04, "DRAM");
        near(
            profile.lines[0].share.loads.unwrap(),
            3.67e8,
            0.1e8,
            "loads",
        );
        let latency = profile.lines[0].share.avg_latency_ns.unwrap();
        near(latency, 27.3, 2.0, "latency");
        for object in &profile.objects {
            near(object.share.stall_fraction, 0.48, 0.05, &object.name);
        }
    }
}

/// Puts all frames into one loop, which begins at `start`. `cached_ns` is the time of an iteration in the first cache, the
/// shortest and the longest.
fn one_loop(run: &mut RunData, start: u64, cached_ns: [Option<f64>; 3]) {
    let [cached_ns, cached_least_ns, cached_most_ns] = cached_ns;
    let around = |frame| LoopAround {
        frame: FrameId(frame),
        level: 0,
        start,
        cached_ns,
        cached_least_ns,
        cached_most_ns,
    };
    run.loops = (0..run.frames.len() as u32).map(around).collect();
}

/// Stores that were counted and not timed wait for what their loop takes beyond its time in the first cache.
#[test]
fn a_loop_that_was_measured_in_the_first_cache_waits_for_the_rest() {
    let mut program = Synthetic::new(10.0, 1);
    let thread = program.thread("main");
    let array = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let fill = program.site(("fill", "fill.c", 8), SiteKind::Store, 8);
    program.access(thread, 0, fill, 0.0..10.0, &Like::chase(From::L1, &[array]));
    let mut run = program.finish();
    run.accesses.clear();
    let executions: u64 = run.executions.iter().map(|window| window.count).sum();
    let cpu_ns: u64 = run.executions.iter().map(|window| window.cpu_ns).sum();
    let before = views(&run).profile.memory_bound.fraction;
    assert!(before < 0.1, "{before}");
    let start = run.frames[run.sites[fill.site.index()].frame.index()].address;
    let mut with = |measured: Option<[f64; 2]>| {
        let ns = |share: f64| share * cpu_ns as f64 / executions as f64;
        one_loop(
            &mut run,
            start,
            [
                Some(ns(0.4)),
                measured.map(|[least, _]| ns(least)),
                measured.map(|[_, most]| ns(most)),
            ],
        );
        views(&run).profile.memory_bound
    };
    let bound = with(None);
    near(bound.fraction, 0.6, 0.02, "memory bound");
    assert!(bound.low > 0.5 && bound.high < 0.7, "{bound:?}");
    // What varied when it was measured is not known better afterwards.
    let varied = with(Some([0.3, 0.5]));
    near(varied.fraction, 0.6, 0.02, "memory bound");
    assert!(varied.low < 0.5 && varied.high > 0.7, "{varied:?}");
}

/// Prefetch instructions are not counted. They are executed as often as an access beside them in the loop.
#[test]
fn prefetches_wait_where_accesses_beside_them_are_counted() {
    let mut program = Synthetic::new(10.0, 1);
    let thread = program.thread("main");
    let array = [program.heap(&[("main", "main.c", 3)], 512 << 20)];
    let load = program.site(("gather", "gather.c", 8), SiteKind::Load, 8);
    let prefetch = program.site(("gather", "gather.c", 7), SiteKind::Prefetch, 1);
    let like = |from| Like::chase(from, &array);
    // One window would leave the number of executions uncertain by a factor of 1.4.
    for window in 0..10 {
        let begin = f64::from(window) / 10.0;
        program.access(thread, 0, load, begin..begin + 0.1, &like(From::L1));
    }
    program.access(thread, 0, prefetch, 1.0..10.0, &like(From::Dram));
    let mut run = program.finish();
    run.executions.retain(|row| row.site != prefetch.site);
    run.accesses.retain(|row| row.site != prefetch.site);
    let unknown = views(&run).profile.memory_bound;
    assert!(unknown.low < 0.1 && unknown.high > 0.85, "{unknown:?}");
    one_loop(&mut run, 0x1000, [None, None, None]);
    // An iteration takes a nanosecond. A prefetch that does not wait takes an eighth of that, and at most a half.
    let bound = views(&run).profile.memory_bound;
    near(bound.fraction, 0.9 - 0.125, 0.02, "memory bound");
    assert!(bound.low > 0.3, "{bound:?}");
}

/// An access that is timed alone may find its data near where many in a row do not, for the translations that they need.
#[test]
fn a_long_loop_waits_for_what_it_takes_beyond_its_time_in_the_first_cache() {
    let mut program = Synthetic::new(10.0, 1);
    let thread = program.thread("main");
    let array = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let load = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
    program.access(thread, 0, load, 0.0..10.0, &Like::chase(From::L1, &[array]));
    let outside = program.frame(&[("walk", "walk.c", 12)]);
    program.code();
    let mut run = program.finish();
    let executions: u64 = run.executions.iter().map(|window| window.count).sum();
    let cpu_ns: u64 = run.executions.iter().map(|window| window.cpu_ns).sum();
    let start = run.frames[run.sites[load.site.index()].frame.index()].address;
    one_loop(
        &mut run,
        start,
        [Some(0.4 * cpu_ns as f64 / executions as f64), None, None],
    );
    let mut with = |iterations: Option<u64>| {
        run.blocks = iterations
            .map(|iterations| BlockCount {
                frame: outside,
                length: 4,
                from_ns: 0,
                to_ns: cpu_ns,
                count: executions / iterations,
                cpu_ns: None,
                least_cpu_ns: None,
            })
            .into_iter()
            .collect();
        views(&run).profile.memory_bound.fraction
    };
    assert!(with(None) < 0.1 && with(Some(8)) < 0.1);
    near(with(Some(1000)), 0.6, 0.02, "memory bound");
}

/// While the store buffer is full, or a branch that depends on a miss was foreseen wrongly, samples lie elsewhere in the loop.
#[test]
fn samples_of_other_instructions_of_a_loop_may_wait_for_its_accesses() {
    let mut program = Synthetic::new(10.0, 1);
    let thread = program.thread("main");
    let array = [program.heap(&[("main", "main.c", 3)], 512 << 20)];
    let load = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
    // Half of the latency shows at the access.
    let half = Like {
        exposed: 0.5,
        ..Like::chase(From::Dram, &array)
    };
    for window in 0..10 {
        let begin = f64::from(window) / 2.0;
        program.access(thread, 0, load, begin..begin + 0.5, &half);
    }
    let branch = program.frame(&[("walk", "walk.c", 9)]);
    let stack = program.push_stack(None, branch);
    program.plain(thread, stack, 5.0..10.0);
    program.code();
    let mut run = program.finish();
    let apart = views(&run).profile.memory_bound;
    assert!(apart.high < 0.6, "{apart:?}");
    let start = run.frames[run.sites[load.site.index()].frame.index()].address;
    one_loop(&mut run, start, [None, None, None]);
    let together = views(&run).profile.memory_bound;
    near(together.fraction, apart.fraction, 0.02, "memory bound");
    assert!(together.high > 0.9, "{together:?}");
}

/// Intel's processors show some waits at the access itself. A wait for the instruction before it looks the same, so the
/// interval leaves that open.
#[test]
fn samples_at_a_slow_access_waited_for_it_where_the_processor_shows_that() {
    let bound = |vendor: &str, at_access_s: f64| {
        let mut program = Synthetic::new(10.0, 1);
        let thread = program.thread("main");
        let array = program.heap(&[("main", "main.c", 3)], 512 << 20);
        let load = program.site(("walk", "walk.c", 8), SiteKind::Load, 8);
        let rest = 10.0 - at_access_s;
        program.access(
            thread,
            0,
            load,
            0.0..rest,
            &Like::chase(From::Dram, &[array]),
        );
        let frame = program.run.sites[load.site.index()].frame;
        let stack = program.push_stack(None, frame);
        program.plain(thread, stack, rest..10.0);
        let mut run = program.finish();
        let machine = run.meta.machine.as_mut().expect("it has one");
        machine.machine.cpu.vendor = vendor.to_owned();
        views(&run).profile.memory_bound
    };
    let (intel, other) = (bound("GenuineIntel", 1.0), bound("AuthenticAMD", 1.0));
    near(intel.fraction, 0.99, 0.02, "on Intel");
    near(other.fraction, 0.89, 0.02, "elsewhere");
    assert!(intel.low < 0.93, "{intel:?}");
    // More of them than such samples can be: the rest is work.
    near(
        bound("GenuineIntel", 5.0).fraction,
        0.62,
        0.03,
        "of much work",
    );
}
