//! Runs with missing data, and listings.

use membound_analyze::{Options, Sources, analyze};
use membound_run::{Gap, Module, ModuleId, RunData, SiteKind};
use membound_types::Outcome;

use crate::synthetic::{From, Like, Synthetic};
use crate::views;

fn small_run() -> RunData {
    let mut program = Synthetic::new(2.0, 1);
    let main = program.thread("main");
    let table = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let walk = program.site(("walk", "/src/walk.c", 5), SiteKind::Load, 8);
    let rest = program.stack(&[("rest", "/src/rest.c", 2), ("main", "main.c", 9)]);
    program.access(main, 0, walk, 0.0..1.0, &Like::chase(From::Dram, &[table]));
    program.plain(main, rest, 1.0..2.0);
    program.code();
    program.finish()
}

#[test]
fn an_empty_run_has_empty_tables_and_reasons() {
    let views = views(&RunData::default());
    let profile = &views.profile;
    assert!(profile.incomplete);
    assert_eq!(profile.memory_bound.fraction, 0.0);
    assert!(profile.functions.is_empty() && profile.findings.is_empty());
    assert!(profile.latency.known().is_none());
    assert!(views.detail.samples.is_empty());
    for table in ["samples", "latency", "objects", "levels"] {
        assert!(
            profile.missing.iter().any(|one| one.table == table),
            "{table}"
        );
    }
}

#[test]
fn time_before_the_first_timed_access_is_reported() {
    let latency_gap = |run: &RunData| {
        let missing = views(run).profile.missing;
        missing.into_iter().find(|it| it.table == "latency")
    };
    let mut run = small_run();
    assert_eq!(latency_gap(&run), None);
    run.accesses.retain(|access| access.t_ns > 600_000_000);
    let reason = latency_gap(&run).unwrap().why.reason;
    assert!(reason.contains("timed from 0.6 s on, of 2.0 s"), "{reason}");
}

#[test]
fn a_run_without_a_machine_profile_has_times_and_no_levels() {
    let mut run = small_run();
    run.meta.machine = None;
    let profile = views(&run).profile;
    assert_eq!(profile.functions.len(), 2);
    assert!(
        profile
            .latency
            .why_missing()
            .unwrap()
            .reason
            .contains("no machine profile")
    );
    let bound = &profile.memory_bound;
    assert!((bound.unknown - bound.fraction).abs() < 1e-9, "{bound:?}");
    assert!(bound.low <= 0.49 && bound.high >= 0.49, "{bound:?}");
    crate::stalls::sums(&profile);
}

#[test]
fn code_without_names_is_named_by_its_address() {
    let mut run = small_run();
    run.locations.clear();
    let views = views(&run);
    assert_eq!(views.profile.functions.len(), 1);
    assert_eq!(views.profile.functions[0].name, "unknown in imagined");
    assert_eq!(views.profile.objects[0].name, "imagined+0x401000 (64 MiB)");
    assert!(!views.detail.frames.is_empty());
    crate::stalls::sums(&views.profile);
}

#[test]
fn a_run_that_was_cut_short_is_marked() {
    let mut run = small_run();
    run.meta.complete = false;
    run.threads[0].end_ns = None;
    run.threads[0].cpu_ns = None;
    let profile = views(&run).profile;
    assert!(profile.incomplete);
    assert!(profile.memory_bound.fraction > 0.4);
}

#[test]
fn gaps_stand_with_the_table_that_misses_them() {
    let mut run = small_run();
    run.meta.attached = Some(4000);
    run.meta.latencies = false;
    run.meta.objects_from_bytes = None;
    run.accesses.clear();
    run.gaps.push(Gap {
        about: "latencies".to_owned(),
        reason: "the process was attached to".to_owned(),
        remedy: None,
        count: Some(3),
    });
    let profile = views(&run).profile;
    let of = |table: &str| {
        profile
            .missing
            .iter()
            .filter(|one| one.table == table)
            .collect::<Vec<_>>()
    };
    let [latency] = of("latency")[..] else {
        panic!("{:?}", profile.missing);
    };
    assert_eq!(latency.why.reason, "the process was attached to (3)");
    let [objects] = of("objects")[..] else {
        panic!("{:?}", profile.missing);
    };
    assert!(
        objects
            .why
            .remedy
            .as_ref()
            .unwrap()
            .contains("membound profile")
    );
    assert_eq!(profile.overhead.lost_accesses, 3);
    assert!(matches!(profile.numa, Outcome::Missing { .. }));
}

#[test]
fn a_loss_is_no_missing_table() {
    let mut run = small_run();
    run.gaps.push(Gap {
        about: "latencies".to_owned(),
        reason: "the rings were full".to_owned(),
        remedy: None,
        count: Some(3),
    });
    let profile = views(&run).profile;
    assert!(profile.missing.iter().all(|one| one.table != "latency"));
    assert_eq!(profile.overhead.lost_accesses, 3);
}

#[test]
fn samples_carry_chains_that_begin_at_the_access() {
    let run = small_run();
    let views = views(&run);
    let detail = &views.detail;
    assert_eq!(detail.samples.len(), run.samples.len());
    assert!(detail.samples.is_sorted_by(|a, b| a.t_s <= b.t_s));
    let name = |index: u32| detail.names[index as usize].as_str();
    let first = &detail.samples[0];
    let stack = detail.stacks[first.stack as usize];
    let frame = detail.frames[stack.frame as usize];
    assert_eq!((name(frame.function), frame.line), ("walk", Some(5)));
    let caller = detail.stacks[stack.parent.unwrap() as usize];
    assert_eq!(name(detail.frames[caller.frame as usize].function), "main");
    assert_eq!(first.object, Some(0));
    let level = &views.profile.levels[usize::from(first.level.unwrap())];
    assert_eq!(level.name, "DRAM");
    assert!(first.stall_s > 0.9 * first.weight_s);
    let last = detail.samples.last().unwrap();
    assert_eq!((last.object, last.level, last.stall_s), (None, None, 0.0));
    for (index, stack) in detail.stacks.iter().enumerate() {
        assert!(stack.parent.is_none_or(|parent| (parent as usize) < index));
    }
}

#[test]
fn a_line_of_several_functions_names_the_one_that_has_most_of_its_time() {
    let mut program = Synthetic::new(1.0, 1);
    let main = program.thread("main");
    let spans = [
        ("walk<Visit>", 0.0..0.3),
        ("walk<Order>", 0.3..0.8),
        ("walk<Shop>", 0.8..1.0),
    ];
    for (function, span) in spans {
        let frame = program.frame(&[(function, "lists.cc", 45)]);
        let stack = program.push_stack(None, frame);
        program.plain(main, stack, span);
    }
    let views = views(&program.finish());
    let [line] = views.profile.lines.as_slice() else {
        panic!("{:?}", views.profile.lines);
    };
    assert_eq!(
        (line.name.as_str(), line.function.as_str()),
        ("lists.cc:45", "walk<Order>")
    );
}

#[test]
fn a_line_of_several_modules_names_the_one_that_has_most_of_its_time() {
    let mut program = Synthetic::new(1.0, 1);
    let main = program.thread("main");
    let mut frames = Vec::new();
    for span in [0.0..0.3, 0.3..0.8, 0.8..1.0] {
        let frame = program.frame(&[("hash", "hash.h", 12)]);
        let stack = program.push_stack(None, frame);
        program.plain(main, stack, span);
        frames.push(frame);
    }
    let mut run = program.finish();
    for (frame, path) in frames
        .into_iter()
        .zip(["/lib/a.so", "/lib/b.so", "/lib/c.so"])
    {
        let module = ModuleId(u32::try_from(run.modules.len()).unwrap());
        run.modules.push(Module {
            path: path.to_owned(),
            ..run.modules[0].clone()
        });
        run.frames[frame.index()].module = Some(module);
    }
    let views = views(&run);
    let [line] = views.profile.lines.as_slice() else {
        panic!("{:?}", views.profile.lines);
    };
    assert_eq!(
        (line.name.as_str(), line.module.as_str()),
        ("hash.h:12", "/lib/b.so")
    );
}

#[test]
fn a_line_of_a_library_names_the_program_s_line_that_it_runs_for() {
    const HEADER: &str = "/usr/include/c++/14/bits/stl_tree.h";
    let mut program = Synthetic::new(1.0, 1);
    let main = program.thread("main");
    let caller = program.frame(&[("search", "tree.cc", 20)]);
    let caller = program.push_stack(None, caller);
    let inlined = program.frame(&[
        ("less", HEADER, 7),
        ("find", HEADER, 9),
        ("walk", "tree.cc", 31),
    ]);
    let inlined = program.push_stack(None, inlined);
    let called = program.frame(&[("lower_bound", HEADER, 8)]);
    let called = program.push_stack(Some(caller), called);
    let alone = program.frame(&[("rebalance", HEADER, 50)]);
    let alone = program.push_stack(None, alone);
    for (stack, span) in [
        (inlined, 0.0..0.5),
        (called, 0.5..0.8),
        (alone, 0.8..0.9),
        (caller, 0.9..1.0),
    ] {
        program.plain(main, stack, span);
    }
    let views = views(&program.finish());
    let of = |line: u32| {
        let row = views
            .profile
            .lines
            .iter()
            .find(|row| row.line == Some(line));
        let own = row.unwrap().called_from.as_ref();
        own.map(|own| (own.name.as_str(), own.function.as_str()))
    };
    assert_eq!(of(7), Some(("tree.cc:31", "walk")));
    assert_eq!(of(8), Some(("tree.cc:20", "search")));
    assert_eq!((of(50), of(20)), (None, None));
}

#[test]
fn a_line_of_a_library_with_many_callers_names_none_of_them() {
    let mut program = Synthetic::new(1.0, 1);
    let main = program.thread("main");
    let header = program.frame(&[("lower_bound", "/usr/include/c++/14/map", 8)]);
    for (line, span) in [(1, 0.0..0.3), (2, 0.3..0.6), (3, 0.6..1.0)] {
        let caller = program.frame(&[("search", "tree.cc", line)]);
        let caller = program.push_stack(None, caller);
        let stack = program.push_stack(Some(caller), header);
        program.plain(main, stack, span);
    }
    let views = views(&program.finish());
    assert_eq!(views.profile.lines[0].called_from, None);
}

#[test]
fn inlined_functions_are_frames_of_their_own() {
    let mut program = Synthetic::new(1.0, 1);
    let main = program.thread("main");
    let frame = program.frame(&[
        ("at", "vector.h", 7),
        ("sum_row", "grid.cpp", 20),
        ("sum", "grid.cpp", 31),
    ]);
    let stack = program.push_stack(None, frame);
    program.plain(main, stack, 0.0..1.0);
    let views = views(&program.finish());
    assert_eq!(views.profile.functions[0].name, "sum");
    assert_eq!(views.profile.lines[0].name, "vector.h:7");
    assert_eq!(views.profile.lines[0].function, "at");
    let detail = &views.detail;
    let mut chain = Vec::new();
    let mut next = Some(detail.samples[0].stack);
    while let Some(stack) = next.map(|at| detail.stacks[at as usize]) {
        let frame = detail.frames[stack.frame as usize];
        chain.push((
            detail.names[frame.function as usize].as_str(),
            frame.inlined,
        ));
        next = stack.parent;
    }
    assert_eq!(chain, [("at", true), ("sum_row", true), ("sum", false)]);
}

struct Walk;

impl Sources for Walk {
    fn text(&self, path: &str) -> Option<String> {
        (path == "/src/walk.c").then(|| "one\ntwo\nthree\nfour\nfive\nsix\nseven\n".to_owned())
    }
}

#[test]
fn listings_have_figures_by_line_and_instruction() {
    let run = small_run();
    let options = Options {
        sources: &Walk,
        ..Options::default()
    };
    let views = analyze(&run, &options);
    let listing = &views.detail.listings[0];
    assert_eq!(
        (listing.function.as_str(), listing.file.as_deref()),
        ("walk", Some("/src/walk.c"))
    );
    let hot = listing.source.iter().find(|line| line.line == 5).unwrap();
    assert_eq!(hot.text, "five");
    let row = &views.profile.lines[0].share;
    assert!((hot.stall_fraction - row.stall_fraction).abs() < 1e-9);
    let access = views.profile.instructions[0].address.unwrap();
    let instruction = listing
        .assembly
        .iter()
        .find(|at| at.address == access)
        .unwrap();
    assert!((instruction.stall_fraction - row.stall_fraction).abs() < 1e-9);
    assert!(instruction.executions.unwrap() > 1e6);
    assert_eq!(instruction.text, "nop [rax]");
    // A function without source text has its assembly.
    let rest = views
        .detail
        .listings
        .iter()
        .find(|listing| listing.function == "rest")
        .unwrap();
    assert!(rest.file.is_none() && !rest.assembly.is_empty());
}

#[test]
fn an_instruction_that_waits_for_two_accesses_divides_between_them() {
    let mut run = small_run();
    let other = run.frames.len() as u32;
    run.frames.push(membound_run::Frame {
        module: Some(membound_run::ModuleId(0)),
        address: 0x50_0000,
    });
    run.sites.push(membound_run::Site {
        frame: membound_run::FrameId(other),
        kind: SiteKind::Load,
        bytes: 8,
        text: "mov rbx, [rsi]".to_owned(),
        refused: None,
    });
    let mut second = run.attributions[0];
    run.attributions[0].share = 0.75;
    second.site = Some(membound_run::SiteId(1));
    second.share = 0.25;
    run.attributions.push(second);
    let views = views(&run);
    let first = run.frames[run.sites[0].frame.index()].address;
    let time = |address: u64| {
        let mut rows = views.profile.instructions.iter();
        let row = rows.find(|row| row.address == Some(address));
        row.unwrap().share.time_fraction
    };
    let (one, other) = (time(first), time(0x50_0000));
    assert!((one / (one + other) - 0.75).abs() < 1e-9);
    crate::stalls::sums(&views.profile);
}
