//! Selected parts of runs: spans of time and threads.

use membound_analyze::{Options, Selection, Views, analyze};
use membound_run::{LiveBytes, ProcessId, RunData, SiteKind, ThreadId};

use crate::near;
use crate::synthetic::{From, Like, Synthetic};

fn select(run: &RunData, span_s: Option<(f64, f64)>, threads: Option<&[u32]>) -> Views {
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let selection = Selection {
        span_ns: span_s.map(|(from, to)| (ns(from), ns(to))),
        threads: threads.map(|ids| ids.iter().map(|id| ThreadId(*id)).collect()),
    };
    let options = Options {
        selection: Some(&selection),
        ..Options::default()
    };
    analyze(run, &options)
}

/// One loop that waits for memory for ten seconds and for the third cache for ten more.
fn phases() -> RunData {
    let mut program = Synthetic::new(20.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let large = program.heap(&[("main", "main.c", 1)], 256 << 20);
    let small = program.heap(&[("main", "main.c", 2)], 4 << 20);
    let chase = |from, target| Like::chase(from, std::slice::from_ref(target));
    program.access(main, 0, walk, 0.0..10.0, &chase(From::Dram, &large));
    program.access(main, 0, walk, 10.0..20.0, &chase(From::L3, &small));
    program.finish()
}

#[test]
fn executions_latencies_and_misses_belong_to_the_span() {
    let run = phases();
    for (span, from) in [((0.0, 10.0), From::Dram), ((10.0, 20.0), From::L3)] {
        let profile = select(&run, Some(span), None).profile;
        near(profile.elapsed_s, 10.0, 1e-9, "elapsed");
        near(profile.time.cpu_s, 10.0, 0.05, "CPU time");
        let [function] = profile.functions.as_slice() else {
            panic!("{:?}", profile.functions);
        };
        let share = &function.share;
        let loads = 1e10 / from.latency_ns();
        near(share.loads.unwrap() / loads, 1.0, 0.02, "loads");
        let latency_ns = share.avg_latency_ns.unwrap();
        near(latency_ns / from.latency_ns(), 1.0, 0.05, "latency");
        let missed = share.llc_misses.unwrap() / share.loads.unwrap();
        let expected = if from == From::Dram { 1.0 } else { 0.0 };
        near(missed, expected, 0.05, "misses of the last cache");
        assert_eq!(profile.objects.len(), 1, "{:?}", profile.objects);
        let part = profile.selection.unwrap();
        assert_eq!((part.from_s, part.to_s), span);
    }
}

#[test]
fn when_timing_began_is_said_of_whole_runs_only() {
    let mut run = phases();
    run.accesses.retain(|access| access.t_ns > 8_000_000_000);
    let says = |span| {
        let missing = select(&run, span, None).profile.missing;
        missing
            .iter()
            .any(|it| it.why.reason.starts_with("accesses were timed from"))
    };
    assert!(says(None));
    assert!(!says(Some((4.0, 10.0))));
}

#[test]
fn a_span_that_cuts_a_window_has_its_part_of_the_executions() {
    let profile = select(&phases(), Some((7.0, 12.0)), None).profile;
    let loads: Vec<f64> = profile
        .objects
        .iter()
        .map(|row| row.share.loads.unwrap())
        .collect();
    let all = 3e9 / From::Dram.latency_ns() + 2e9 / From::L3.latency_ns();
    near(loads.iter().sum::<f64>() / all, 1.0, 0.05, "loads");
}

#[test]
fn a_span_without_counts_uses_the_rate_of_the_whole_run() {
    let mut program = Synthetic::new(20.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let large = program.heap(&[("main", "main.c", 1)], 256 << 20);
    let like = Like::chase(From::Dram, &[large]);
    program.access(main, 0, walk, 0.0..20.0, &like);
    let mut run = program.finish();
    // Count and time only in the first two seconds.
    run.executions[0].count /= 10;
    run.executions[0].cpu_ns /= 10;
    run.executions[0].to_ns = 2_000_000_000;
    run.accesses.retain(|access| access.t_ns < 2_000_000_000);
    let profile = select(&run, Some((10.0, 15.0)), None).profile;
    let share = &profile.functions[0].share;
    let loads = 5e9 / From::Dram.latency_ns();
    near(share.loads.unwrap() / loads, 1.0, 0.05, "loads");
    assert!(share.loads_low.unwrap() < loads && loads < share.loads_high.unwrap());
    assert_eq!(share.avg_latency_ns, None, "nothing was timed in the span");
    let missing = profile.missing.iter().find(|it| it.table == "latency");
    assert!(missing.unwrap().why.reason.contains("100 %"), "{missing:?}");
}

/// Two threads, each with a loop of its own: one waits for memory, one computes.
fn two_threads() -> RunData {
    let mut program = Synthetic::new(10.0, 2);
    let waits = program.thread("waits");
    let computes = program.thread("computes");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let large = program.heap(&[("main", "main.c", 1)], 256 << 20);
    let like = Like::chase(From::Dram, &[large]);
    program.access(waits, 0, walk, 0.0..10.0, &like);
    let stack = program.stack(&[("compute", "compute.c", 7), ("main", "main.c", 9)]);
    program.plain(computes, stack, 0.0..10.0);
    program.finish()
}

#[test]
fn a_thread_is_analyzed_alone() {
    let run = two_threads();
    let whole = select(&run, None, Some(&[0, 1])).profile;
    near(whole.time.cpu_s, 20.0, 0.1, "CPU time of both");
    let (waits, detail) = {
        let views = select(&run, None, Some(&[0]));
        (views.profile, views.detail)
    };
    near(waits.time.cpu_s, 10.0, 0.1, "CPU time of one");
    near(
        waits.memory_bound.fraction,
        2.0 * whole.memory_bound.fraction,
        0.02,
        "all of the stall in half of the time",
    );
    assert_eq!(waits.functions.len(), 1);
    assert_eq!(waits.functions[0].name, "walk");
    assert_eq!(waits.threads.len(), 1);
    assert_eq!(waits.selection.unwrap().tids, [4000]);
    assert_eq!(detail.samples.len() as u64, waits.run.samples);
    let computes = select(&run, Some((2.0, 4.0)), Some(&[1])).profile;
    near(
        computes.time.cpu_s,
        2.0,
        0.05,
        "CPU time of a thread in a span",
    );
    assert_eq!(computes.memory_bound.fraction, 0.0);
    assert!(computes.objects.is_empty(), "{:?}", computes.objects);
}

#[test]
fn functions_have_their_objects() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let fill = program.site(("fill", "fill.c", 7), SiteKind::Store, 8);
    let large = program.heap(&[("main", "main.c", 1)], 256 << 20);
    let other = program.heap(&[("main", "main.c", 2)], 256 << 20);
    let like = |to| Like {
        from: vec![(From::Dram, 1.0)],
        exposed: 1.0,
        work_ns: 0.0,
        to,
    };
    let both = like(vec![(large.clone(), 3.0), (other, 1.0)]);
    program.access(main, 0, walk, 0.0..8.0, &both);
    program.access(main, 0, fill, 8.0..10.0, &like(vec![(large, 1.0)]));
    let profile = crate::views(&program.finish()).profile;
    let pairs: Vec<(&str, &str)> = profile
        .function_objects
        .iter()
        .map(|row| (row.function.as_str(), row.object.as_str()))
        .collect();
    assert_eq!(
        pairs,
        [
            ("walk", "main.c:1 (256 MiB)"),
            ("walk", "main.c:2 (256 MiB)"),
            ("fill", "main.c:1 (256 MiB)"),
        ]
    );
    for object in &profile.objects {
        let of_object = profile.function_objects.iter();
        let of_object = of_object.filter(|row| row.object == object.name);
        let sum: f64 = of_object.map(|row| row.share.stall_fraction).sum();
        near(sum, object.share.stall_fraction, 1e-9, &object.name);
    }
}

#[test]
fn live_bytes_are_reported_by_object_and_in_total() {
    const STEP: u64 = 1 << 20;
    let mut program = Synthetic::new(1.0, 1);
    program.thread("main");
    let kept = program.stack(&[("make", "a.c", 3), ("main", "main.c", 3)]);
    let freed = program.stack(&[("scratch", "b.c", 5), ("main", "main.c", 4)]);
    let live = |stack, step: u64, bytes, peak_bytes| LiveBytes {
        stack,
        process: ProcessId(0),
        function: "malloc".to_owned(),
        from_ns: step * STEP,
        to_ns: (step + 1) * STEP,
        bytes,
        peak_bytes,
    };
    program.run.live = vec![
        live(kept, 0, 1000, 1000),
        live(kept, 9, 3000, 3000),
        live(freed, 2, 500, 8000),
        live(freed, 5, 0, 500),
    ];
    let run = program.finish();
    let profile = crate::views(&run).profile;
    let memory = profile.memory.known().expect("allocations were followed");
    let t_s = |step: u64| (step * STEP) as f64 * 1e-9;
    let moments = |timeline: &[membound_types::MemoryMoment]| -> Vec<(f64, u64)> {
        timeline.iter().map(|it| (it.t_s, it.bytes)).collect()
    };
    assert_eq!(
        moments(&memory.timeline),
        [
            (t_s(0), 1000),
            (t_s(2), 1500),
            (t_s(5), 1000),
            (t_s(9), 3000)
        ]
    );
    assert_eq!((memory.peak_bytes, memory.peak_s), (8000, t_s(2)));
    let names: Vec<&str> = memory.objects.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["b.c:5 (0 B)", "a.c:3 (0 B)"]);
    let scratch = &memory.objects[0];
    assert_eq!((scratch.peak_bytes, scratch.end_bytes), (8000, 0));
    assert_eq!(
        moments(&scratch.timeline),
        [(t_s(2), 8000), (t_s(3), 500), (t_s(6), 0)]
    );
    // Memory that is live when a span begins counts in the span.
    let part = select(&run, Some((t_s(4), t_s(9))), None).profile;
    let memory = part.memory.known().unwrap();
    assert_eq!(moments(&memory.timeline), [(t_s(4), 1500), (t_s(5), 1000)]);
    assert_eq!(memory.objects[0].peak_bytes, 1000);
}

#[test]
fn periods_agree_with_selected_spans() {
    let run = phases();
    let whole = analyze(&run, &Options::default()).profile;
    let periods = membound_analyze::periods(&run, &Options::default(), &whole);
    assert_eq!(periods.len(), 24);
    let mut loads = 0.0;
    for (index, period) in periods.iter().enumerate() {
        let from = if index < 12 { From::Dram } else { From::L3 };
        let [row] = period.functions.as_slice() else {
            panic!("{:?}", period.functions);
        };
        assert_eq!(row.row, 0);
        let expected = (period.to_s - period.from_s) * 1e9 / from.latency_ns();
        near(row.share.loads.unwrap() / expected, 1.0, 0.02, "loads");
        let latency_ns = row.share.avg_latency_ns.unwrap();
        near(latency_ns / from.latency_ns(), 1.0, 0.05, "latency");
        loads += row.share.loads.unwrap();
        // Each half of the run has its own object, and finds its row in the whole run's table.
        let [object] = period.objects.as_slice() else {
            panic!("{:?}", period.objects);
        };
        let name = &whole.objects[object.row as usize].name;
        let line = if index < 12 { "main.c:1 " } else { "main.c:2 " };
        assert!(name.starts_with(line), "{name}");
    }
    let all = whole.functions[0].share.loads.unwrap();
    near(loads / all, 1.0, 0.01, "the periods together");

    let span = (periods[3].from_s, periods[3].to_s);
    let selected = select(&run, Some(span), None).profile;
    let share = &selected.functions[0].share;
    let period = &periods[3].functions[0].share;
    near(
        period.loads.unwrap() / share.loads.unwrap(),
        1.0,
        1e-6,
        "loads of report --span",
    );
    near(
        period.avg_latency_ns.unwrap() / share.avg_latency_ns.unwrap(),
        1.0,
        1e-6,
        "latency of report --span",
    );
}

#[test]
fn a_run_of_few_samples_has_no_periods() {
    let mut run = phases();
    run.samples.truncate(150);
    let whole = analyze(&run, &Options::default()).profile;
    assert_eq!(
        membound_analyze::periods(&run, &Options::default(), &whole),
        []
    );
}
