//! Lines that threads contend for, and lines for which they do not.

use std::ops::Range;

use membound_run::{FrameId, Hold, RunData, Sample, SiteKind, StackId, ThreadId, Watched};
use membound_types::{Basis, InsightKind, Profile, SharedLine};

use crate::synthetic::{AccessSite, From, Like, Synthetic, Target};
use crate::{near, views};

/// Two workers on two CPUs.
struct Two {
    program: Synthetic,
    threads: [ThreadId; 2],
}

impl Two {
    fn new() -> Self {
        let mut program = Synthetic::new(10.0, 2);
        let threads = [program.thread("one"), program.thread("two")];
        Self { program, threads }
    }

    /// Thread `which` works on `bytes` of `object` only.
    fn work(
        &mut self,
        which: usize,
        place: AccessSite,
        span: Range<f64>,
        from: From,
        object: &Target,
        bytes: Range<u64>,
    ) {
        let to = Target {
            address: object.address + bytes.start,
            bytes: bytes.end - bytes.start,
            stride: 8,
            ..object.clone()
        };
        let like = Like::chase(from, &[to]);
        self.program
            .access(self.threads[which], which as u16, place, span, &like);
    }

    fn site(&mut self, line: u32, kind: SiteKind) -> AccessSite {
        self.program.site(("sum", "sum.c", line), kind, 8)
    }

    /// Document 001's small per-thread array.
    fn array(&mut self, bytes: u64) -> Target {
        self.program.heap(
            &[("CALLOC", "stddefines.h", 52), ("main", "linear.c", 133)],
            bytes,
        )
    }

    fn profile(self) -> Profile {
        views(&self.program.finish()).profile
    }
}

/// Two threads that sum into elements of `element` bytes. The last stack is that of their caller, without samples.
fn summing(element: u64, from: From) -> RunData {
    let mut two = Two::new();
    let array = two.array(512);
    let (load, add) = (two.site(10, SiteKind::Load), two.site(12, SiteKind::Both));
    for which in 0..2 {
        let bytes = which as u64 * element..which as u64 * element + 40;
        two.work(which, load, 0.0..5.0, from, &array, bytes.clone());
        two.work(which, add, 5.0..10.0, from, &array, bytes);
    }
    two.program.stack(&[("steps", "sum.c", 20)]);
    two.program.finish()
}

fn only(lines: &[SharedLine]) -> &SharedLine {
    let [line] = lines else {
        panic!("{lines:?}");
    };
    line
}

/// Checks that one line is shared, without sharing data.
#[track_caller]
fn only_false_sharing(profile: &Profile) {
    only(&profile.false_sharing);
    assert!(
        profile.true_sharing.is_empty(),
        "{:?}",
        profile.true_sharing
    );
}

#[test]
fn a_verdict_of_little_stall_follows_the_remedies() {
    let mut options = membound_analyze::Options::default();
    options.thresholds.not_memory_bound = 1.0;
    let profile = membound_analyze::analyze(&summing(40, From::Core), &options).profile;
    let kinds: Vec<InsightKind> = profile.findings.iter().map(|it| it.kind).collect();
    assert_eq!(kinds.first(), Some(&InsightKind::FalseSharing));
    assert_eq!(kinds.last(), Some(&InsightKind::NotMemoryBound));
}

#[test]
fn sums_of_two_threads_in_one_line_are_false_sharing() {
    let profile = views(&summing(40, From::Core)).profile;
    let line = only(&profile.false_sharing);
    assert!(profile.true_sharing.is_empty());
    assert_eq!(line.object, "stddefines.h:52 (512 B)");
    assert_eq!(line.alloc_stack[0].line, Some(52));
    assert_eq!(line.object_offset, Some(0));
    assert_eq!(line.lines, [line.line_address]);
    let parts: Vec<(u32, u32, u32)> = line
        .threads
        .iter()
        .map(|thread| (thread.tid, thread.from, thread.to))
        .collect();
    assert_eq!(parts, [(4000, 0, 40), (4001, 40, 64)]);
    assert!(line.threads.iter().all(|thread| thread.stores > 0));
    let mut names: Vec<&str> = line.sites.iter().map(|site| site.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["sum.c:10", "sum.c:12"]);
    near(line.avg_latency_ns.unwrap(), 60.0, 3.0, "latency");
    near(line.l1_latency_ns.unwrap(), 1.0, 0.2, "latency of a hit");
    // All accesses of one thread and three of five of the other go to this line.
    let expected = 59.0 / 60.0 * 0.8;
    near(line.stall_fraction, expected, 0.05, "cost");
    let gain = line.predicted_gain.unwrap();
    assert!(gain.low <= gain.value && gain.value <= gain.high);
    near(gain.value, expected, 0.15, "gain");
    assert!(line.advice.contains("alignas(64)"), "{}", line.advice);
    assert!(line.advice.contains("stddefines.h:52"), "{}", line.advice);
    assert!(profile.objects[0].false_sharing);
    // Advice about the line replaces the advice that the level alone would give; on one node there is no
    // advice about nodes.
    let [insight, verdict] = profile.findings.as_slice() else {
        panic!("{:?}", profile.findings);
    };
    assert_eq!(insight.kind, InsightKind::FalseSharing);
    assert!(insight.predicted_gain.is_some());
    assert_eq!(verdict.kind, InsightKind::MemoryBound);
    assert!(verdict.advice.contains("sharing first"), "{verdict:?}");
    assert!(verdict.text.contains("other cores' caches"), "{verdict:?}");
    assert!(!verdict.text.contains("node"), "{verdict:?}");
    // The object is reported once, as false sharing.
    assert!(
        profile
            .findings
            .iter()
            .all(|insight| insight.kind != InsightKind::HotObject)
    );
    assert_eq!(line.confirmed, None);
    assert!(line.confidence > 0.8, "{}", line.confidence);
}

#[test]
fn the_padded_twin_has_nothing() {
    let profile = views(&summing(64, From::L1)).profile;
    assert!(profile.false_sharing.is_empty());
    assert!(profile.true_sharing.is_empty());
    assert!(!profile.objects[0].false_sharing);
}

#[test]
fn padding_that_leaves_other_misses_has_nothing_either() {
    let profile = views(&summing(64, From::Dram)).profile;
    assert!(profile.false_sharing.is_empty());
}

#[test]
fn one_counter_of_two_threads_is_true_sharing() {
    let mut two = Two::new();
    let counter = two.program.global("counter", 64);
    let add = two.site(20, SiteKind::Locked);
    for which in 0..2 {
        two.work(which, add, 0.0..10.0, From::Core, &counter, 8..16);
    }
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty());
    let line = only(&profile.true_sharing);
    assert_eq!(line.object, "counter");
    assert_eq!(line.offsets, [8]);
    assert_eq!(line.predicted_gain, None);
    assert_eq!(profile.findings[0].kind, InsightKind::TrueSharing);
}

#[test]
fn an_end_of_a_queue_that_only_its_reader_uses_may_be_moved() {
    // The reader's own bytes: its end of the queue, or again the writer's.
    let shared_line = |own: Range<u64>| {
        let mut two = Two::new();
        let queue = two.program.global("queue", 64);
        let (look, put) = (two.site(20, SiteKind::Load), two.site(30, SiteKind::Store));
        two.work(0, put, 0.0..10.0, From::Core, &queue, 0..8);
        let then = if own.start == 0 { look } else { put };
        for start in (0..1000).map(|part| f64::from(part) / 100.0) {
            let (looks, goes_on) = (start..start + 0.005, start + 0.005..start + 0.01);
            two.work(1, look, looks, From::Core, &queue, 0..8);
            two.work(1, then, goes_on, From::Core, &queue, own.clone());
        }
        let profile = two.profile();
        assert!(profile.false_sharing.is_empty());
        only(&profile.true_sharing).clone()
    };
    let line = shared_line(8..16);
    assert!(
        line.advice.contains("alone uses bytes 8–15"),
        "{}",
        line.advice
    );
    // How much of the cost remains is not known.
    let gain = line.predicted_gain.expect("something may be saved");
    assert!(gain.low == 0.0 && gain.value > 0.1 && gain.high >= 2.0 * gain.value);

    let line = shared_line(0..8);
    assert_eq!(line.predicted_gain, None);
    assert!(line.advice.starts_with("One thread writes"));
}

/// The finding for a queue whose reader looks at the writer's end and stores to bytes of its own each time, and whose
/// writer looks at the first eight of these so often for each time that it stores its own end.
fn queue_with(looks: f64, of_reader: Range<u64>) -> SharedLine {
    let mut two = Two::new();
    let queue = two.program.global("queue", 64);
    let sites = [
        (20, SiteKind::Load),
        (30, SiteKind::Store),
        (40, SiteKind::Load),
        (50, SiteKind::Store),
    ];
    let sites = sites.map(|(line, kind)| two.site(line, kind));
    let [reader_looks, reader_puts, writer_looks, writer_puts] = sites;
    for start in (0..1000).map(|part| f64::from(part) / 100.0) {
        let (early, late) = (start..start + 0.005, start + 0.005..start + 0.01);
        two.work(0, reader_looks, early.clone(), From::Core, &queue, 0..8);
        two.work(
            0,
            reader_puts,
            late.clone(),
            From::Core,
            &queue,
            of_reader.clone(),
        );
        two.work(1, writer_puts, early, From::Core, &queue, 0..8);
        two.work(
            1,
            writer_looks,
            late.start..late.start + 0.005 * looks,
            From::Core,
            &queue,
            8..16,
        );
    }
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty());
    only(&profile.true_sharing).clone()
}

#[test]
fn both_ends_of_a_queue_may_be_moved_unless_threads_take_turns() {
    let line = queue_with(0.2, 8..16);
    assert!(
        line.advice.contains("bytes 8–15 and thread")
            || line.advice.contains("bytes 0–7 and thread"),
        "{}",
        line.advice
    );
    let gain = line.predicted_gain.expect("something may be saved");
    assert!(gain.low == 0.0 && gain.value > 0.1 && gain.high >= 2.0 * gain.value);

    let line = queue_with(1.0, 8..16);
    assert_eq!(line.predicted_gain, None, "{}", line.advice);

    // What the reader alone uses need not be beside its end.
    let line = queue_with(1.0, 8..24);
    assert!(line.predicted_gain.is_some());
    assert!(
        line.advice.contains("alone uses bytes 16–23"),
        "{}",
        line.advice
    );
}

#[test]
fn both_kinds_on_one_line_are_reported() {
    let mut two = Two::new();
    let state = two.program.global("state", 64);
    let (lock, own) = (two.site(20, SiteKind::Locked), two.site(30, SiteKind::Both));
    for which in 0..2 {
        let mine = 16 + 16 * which as u64;
        two.work(which, lock, 0.0..5.0, From::Core, &state, 0..8);
        two.work(which, own, 5.0..10.0, From::Core, &state, mine..mine + 8);
    }
    let profile = two.profile();
    assert_eq!(only(&profile.false_sharing).offsets, [16, 32]);
    assert_eq!(only(&profile.true_sharing).offsets, [0]);
}

#[test]
fn one_writer_and_a_reader_of_other_bytes_are_false_sharing() {
    let mut two = Two::new();
    let state = two.program.global("state", 64);
    let (read, write) = (two.site(20, SiteKind::Load), two.site(30, SiteKind::Store));
    two.work(0, read, 0.0..10.0, From::Core, &state, 0..8);
    two.work(1, write, 0.0..10.0, From::Core, &state, 32..40);
    let profile = two.profile();
    assert_eq!(only(&profile.false_sharing).offsets, [0, 32]);
}

#[test]
fn work_that_moves_between_threads_takes_its_bytes_along() {
    let mut two = Two::new();
    let counters = two.array(64);
    let add = two.site(20, SiteKind::Both);
    for round in 0..10 {
        let span = f64::from(round)..f64::from(round + 1);
        for which in 0..2 {
            let bytes = 32 * ((which + round as usize) % 2) as u64;
            two.work(
                which,
                add,
                span.clone(),
                From::Core,
                &counters,
                bytes..bytes + 8,
            );
        }
    }
    only_false_sharing(&two.profile());
}

#[test]
fn reading_the_same_line_is_not_reported() {
    let mut two = Two::new();
    let table = two.program.global("table", 64);
    let read = two.site(20, SiteKind::Load);
    let fill = two.site(30, SiteKind::Store);
    // One thread fills the table, then both read it.
    two.work(0, fill, 0.0..1.0, From::L1, &table, 0..64);
    for which in 0..2 {
        two.work(which, read, 1.0..10.0, From::L3, &table, 0..64);
    }
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty() && profile.true_sharing.is_empty());
}

#[test]
fn memory_of_one_thread_is_no_sharing() {
    let mut two = Two::new();
    let (mine, yours) = (
        two.program.global("mine", 64),
        two.program.global("yours", 64),
    );
    let add = two.site(20, SiteKind::Both);
    two.work(0, add, 0.0..10.0, From::L3, &mine, 0..64);
    two.work(1, add, 0.0..10.0, From::L3, &yours, 0..64);
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty() && profile.true_sharing.is_empty());
}

#[test]
fn a_buffer_that_is_handed_over_is_no_sharing() {
    let mut two = Two::new();
    let buffer = two.array(64);
    let add = two.site(20, SiteKind::Both);
    two.work(0, add, 0.0..4.0, From::L3, &buffer, 0..32);
    two.work(1, add, 4.0..7.0, From::L3, &buffer, 32..64);
    two.work(0, add, 7.0..10.0, From::L3, &buffer, 0..32);
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty() && profile.true_sharing.is_empty());
}

#[test]
fn memory_that_is_freed_and_given_to_another_thread_is_no_sharing() {
    let mut two = Two::new();
    let add = two.site(20, SiteKind::Both);
    let stack = two
        .program
        .stack(&[("make", "make.c", 3), ("main", "main.c", 9)]);
    let first = two.program.block(stack, 64);
    for round in 0..40 {
        let span = 0.25 * f64::from(round)..0.25 * f64::from(round + 1);
        let mut block = two.program.block(stack, 64);
        let object = &mut two.program.run.objects[block.object.unwrap().index()];
        object.address = first.address;
        object.allocated_ns = Some((span.start * 1e9) as u64);
        object.freed_ns = Some((span.end * 1e9) as u64);
        block.address = first.address;
        two.work(round as usize % 2, add, span, From::L3, &block, 0..8);
    }
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty() && profile.true_sharing.is_empty());
}

#[test]
fn an_array_that_one_thread_fills_and_others_use_apart_stays_false_sharing() {
    let mut two = Two::new();
    let array = two.array(64);
    let (fill, add) = (two.site(5, SiteKind::Store), two.site(20, SiteKind::Both));
    two.work(0, fill, 0.0..4.0, From::L2, &array, 0..64);
    two.work(0, add, 4.0..10.0, From::Core, &array, 0..32);
    two.work(1, add, 4.0..10.0, From::Core, &array, 32..64);
    only_false_sharing(&two.profile());
}

#[test]
fn many_lines_of_one_array_are_one_finding() {
    let mut program = Synthetic::new(10.0, 4);
    let threads: Vec<ThreadId> = (0..4).map(|_| program.thread("worker")).collect();
    let array = program.heap(&[("main", "main.c", 3)], 160);
    let add = program.site(("sum", "sum.c", 4), SiteKind::Both, 8);
    // Elements of 40 bytes: two lines with several threads, and one that only the last thread uses.
    for (which, thread) in threads.iter().enumerate() {
        let to = Target {
            address: array.address + 40 * which as u64,
            bytes: 40,
            stride: 8,
            ..array.clone()
        };
        let like = Like::chase(From::Core, &[to]);
        program.access(*thread, which as u16, add, 0.0..10.0, &like);
    }
    let profile = views(&program.finish()).profile;
    let line = only(&profile.false_sharing);
    assert_eq!(line.lines, [array.address, array.address + 64]);
    assert!(line.lines.contains(&line.line_address));
    assert!(line.advice.contains("2 lines"), "{}", line.advice);
    near(
        line.stall_fraction,
        59.0 / 60.0 * 0.8,
        0.05,
        "cost of both lines",
    );
}

#[test]
fn sharing_without_cost_is_not_reported() {
    let mut two = Two::new();
    let state = two.program.global("state", 64);
    let other = two.program.heap(&[("main", "main.c", 3)], 64 << 20);
    let (add, walk) = (two.site(20, SiteKind::Both), two.site(30, SiteKind::Load));
    for which in 0..2 {
        let mine = 8 * which as u64;
        two.work(which, add, 0.0..0.04, From::Core, &state, mine..mine + 8);
        two.work(which, walk, 0.04..10.0, From::Dram, &other, 0..64 << 20);
    }
    let profile = two.profile();
    assert!(profile.false_sharing.is_empty());
}

#[test]
fn a_few_accesses_are_no_evidence() {
    let mut run = summing(40, From::Core);
    run.samples
        .iter_mut()
        .for_each(|sample| sample.exact = false);
    let line = run.accesses[0].address & !63;
    let mut kept = 0;
    run.accesses.retain(|access| {
        kept += usize::from(access.address & !63 == line);
        access.address & !63 != line || kept < 12
    });
    assert!(views(&run).profile.false_sharing.is_empty());
}

#[test]
fn samples_alone_find_it_where_no_access_was_timed() {
    let mut run = summing(40, From::Core);
    run.accesses.clear();
    run.executions.clear();
    run.meta.latencies = false;
    let profile = views(&run).profile;
    let line = only(&profile.false_sharing);
    assert_eq!(line.avg_latency_ns, None);
    assert!(line.stall_fraction > 0.2);
}

#[test]
fn watchpoints_confirm_the_threads_of_a_line() {
    let mut run = summing(40, From::Core);
    let line = run.accesses[0].address & !63;
    for (thread, offset) in [(0, 0), (0, 0), (1, 40)] {
        run.watched.push(Watched {
            t_ns: 5,
            thread: ThreadId(thread),
            address: line + offset,
            bytes: 8,
            frame: FrameId(0),
        });
    }
    let profile = views(&run).profile;
    let line = only(&profile.false_sharing);
    let hits: Vec<(u32, u32, u64)> = line
        .confirmed
        .as_ref()
        .unwrap()
        .iter()
        .map(|hit| (hit.tid, hit.offset, hit.hits))
        .collect();
    assert_eq!(hits, [(4000, 0, 2), (4001, 40, 1)]);
    assert_eq!(line.confidence, 1.0);
}

/// A thread that waits for a flag, and a thread that counts in the bytes `counter` of the same 272.
fn flag_beside_counter(counter: Range<u64>) -> Profile {
    let mut two = Two::new();
    let object = two.array(272);
    let flag = two.site(10, SiteKind::Load);
    let count = two.site(20, SiteKind::Both);
    two.work(0, flag, 0.0..10.0, From::Dram, &object, 0..8);
    two.work(1, count, 0.0..10.0, From::Dram, &object, counter);
    two.profile()
}

#[test]
fn a_small_object_that_threads_write_is_not_served_by_memory() {
    for counter in [8..16, 128..136] {
        let profile = flag_beside_counter(counter.clone());
        assert_eq!(profile.memory_bound.dram, 0.0, "{counter:?}");
        assert!(profile.memory_bound.remote > 0.5, "{counter:?}");
        for finding in &profile.findings {
            assert!(!finding.text.contains("DRAM"), "{}", finding.text);
            assert!(!finding.advice.contains("smaller"), "{}", finding.advice);
        }
    }
    let profile = flag_beside_counter(8..16);
    assert_eq!(profile.findings[0].kind, InsightKind::FalseSharing);
}

#[test]
fn a_small_object_of_one_thread_may_come_from_memory() {
    let mut two = Two::new();
    let object = two.array(272);
    let load = two.site(10, SiteKind::Load);
    two.work(0, load, 0.0..10.0, From::Dram, &object, 0..64);
    assert!(two.profile().memory_bound.dram > 0.5);
}

/// Adds trials of both threads on the first contended line to a run: a step takes `alone_ns` nanoseconds
/// alone, and `both_ns` together with the other thread.
fn tried(mut run: RunData, alone_ns: f64, both_ns: f64) -> RunData {
    let line = only(&views(&run).profile.false_sharing).line_address;
    for trial in 0..3_u32 {
        for number in 0..6_u64 {
            for (tid, alone) in [(4000, true), (4000, false), (4001, true), (4001, false)] {
                let thread = run.threads.iter().position(|it| it.tid == tid);
                let cpu_ns = 690_000 + 500 * number;
                let step_ns = if alone { alone_ns } else { both_ns };
                run.holds.push(Hold {
                    t_ns: 1_000_000_000 * trial as u64 + 1_000_000 * number,
                    trial,
                    thread: ThreadId(thread.expect("a thread has the number") as u32),
                    line,
                    alone,
                    wall_ns: 700_000,
                    cpu_ns,
                    progress: (cpu_ns as f64 / step_ns * (trial + 1) as f64) as u64,
                });
            }
        }
    }
    run
}

#[test]
fn results_of_trials_replace_estimates_from_latencies() {
    let profile = views(&tried(summing(40, From::Core), 2.0, 5.0)).profile;
    let line = only(&profile.false_sharing);
    assert_eq!(line.held.len(), 2, "{line:?}");
    for cost in &line.held {
        assert!((cost.share.value - 0.6).abs() < 0.01, "{cost:?}");
        assert!(cost.share.low < 0.6 && cost.share.high > 0.6, "{cost:?}");
        assert_eq!(cost.share.basis, Basis::Measured);
    }
    let gain = line.predicted_gain.unwrap();
    assert_eq!(gain.basis, Basis::Measured);
    assert!((gain.value - 0.6).abs() < 0.05, "{gain:?}");
    assert!(gain.low < 0.6 && gain.high > 0.6, "{gain:?}");
    assert!((line.stall_fraction - 0.6).abs() < 0.05, "{line:?}");
    assert!(profile.memory_bound.fraction >= line.stall_fraction);
    assert_eq!(profile.findings[0].kind, InsightKind::FalseSharing);
}

#[test]
fn delayed_stores_delay_the_function_around_them_too() {
    let mut run = tried(summing(40, From::Core), 2.0, 5.0);
    let caller = StackId(run.stacks.len() as u32 - 1);
    for sample in run.samples.iter_mut().step_by(3) {
        *sample = Sample {
            stack: caller,
            address: None,
            exact: false,
            object: None,
            ..*sample
        };
    }
    let profile = views(&run).profile;
    let line = only(&profile.false_sharing);
    let gain = line.predicted_gain.unwrap();
    assert!((gain.value - 0.6).abs() < 0.05, "{gain:?}");
    assert!((line.stall_fraction - 0.6).abs() < 0.05, "{line:?}");
}

#[test]
fn no_saving_is_promised_where_threads_cost_each_other_nothing() {
    let profile = views(&tried(summing(40, From::Core), 2.0, 2.0)).profile;
    assert!(
        profile.false_sharing.is_empty(),
        "{:?}",
        profile.false_sharing
    );
}
