//! Stalls by object: allocating line, figures, and offsets within the object.

use membound_run::{Allocations, Gap, Object, ObjectClass, ObjectId, ProcessId, SiteKind};

use crate::synthetic::{At, From, Like, Synthetic, Target};
use crate::{near, views};

/// Chains through two layers of wrappers, each with its own line in `main`.
fn wrapped(line: u32) -> [At; 5] {
    [
        ("malloc", "malloc.c", 3000),
        ("xmalloc", "wrap.c", 11),
        ("table_new", "table.c", 22),
        ("make_all", "main.c", line),
        ("main", "main.c", 5),
    ]
}

#[test]
fn six_objects_have_their_shares_and_their_callers() {
    let shares = [0.35, 0.25, 0.18, 0.12, 0.07, 0.03];
    let mut program = Synthetic::new(20.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let targets: Vec<(Target, f64)> = (40..)
        .zip(shares)
        .map(|(line, share)| (program.heap(&wrapped(line), 32 << 20), share))
        .collect();
    let like = Like {
        from: vec![(From::Dram, 1.0)],
        exposed: 1.0,
        work_ns: 0.0,
        to: targets,
    };
    program.access(main, 0, walk, 0.0..20.0, &like);
    let profile = views(&program.finish()).profile;
    let whole = profile.memory_bound.fraction;
    for ((row, share), line) in profile.objects.iter().zip(shares).zip(40..) {
        near(row.share.stall_fraction / whole, share, 0.05, &row.name);
        assert_eq!(row.name, format!("wrap.c:11 from main.c:{line} (32 MiB)"));
        assert_eq!(row.kind, ObjectClass::Heap);
        let lines: Vec<_> = row.alloc_stack.iter().map(|frame| frame.line).collect();
        assert_eq!(lines, [Some(11), Some(22), Some(line), Some(5)]);
        assert_eq!(row.code[0].name, "walk.c:40");
        near(row.code[0].fraction, row.share.stall_fraction, 1e-9, "code");
        near(row.share.avg_latency_ns.unwrap(), 150.0, 3.0, "latency");
    }
    assert_eq!(profile.objects.len(), 6);
    let loads: f64 = profile
        .objects
        .iter()
        .filter_map(|row| row.share.loads)
        .sum();
    near(loads / (20e9 / 150.0), 1.0, 0.01, "loads");
    crate::stalls::sums(&profile);
}

#[test]
fn an_object_of_hits_has_executions_and_no_stall() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let hot = program.heap(&[("main", "main.c", 1)], 64 << 20);
    let mut cool = program.heap(&[("main", "main.c", 2)], 4096);
    cool.from = Some(From::L1);
    let like = Like {
        from: vec![(From::Dram, 1.0)],
        exposed: 1.0,
        work_ns: 0.0,
        to: vec![(hot, 1.0), (cool, 9.0)],
    };
    program.access(main, 0, walk, 0.0..10.0, &like);
    let profile = views(&program.finish()).profile;
    let (hot, cool) = (&profile.objects[0], &profile.objects[1]);
    assert!(hot.name.starts_with("main.c:1"));
    near(cool.share.stall_fraction, 0.0, 0.02, "hits");
    let ratio = cool.share.loads.unwrap() / hot.share.loads.unwrap();
    near(ratio, 9.0, 1.0, "executions");
    near(
        cool.share.avg_latency_ns.unwrap(),
        1.0,
        1.0,
        "latency of hits",
    );
    // Each object has its own levels, although one instruction accesses both.
    let levels = &hot.share.levels;
    assert!(levels.dram >= 0.95 * hot.share.stall_fraction, "{levels:?}");
}

#[test]
fn hot_fields_show_over_all_blocks_of_a_group() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let count = program.site(("count", "walk.c", 50), SiteKind::Store, 4);
    let stack = program.stack(&[("node_new", "node.c", 9), ("main", "main.c", 3)]);
    let blocks: Vec<Target> = (0..500).map(|_| program.block(stack, 96)).collect();
    let field = |offset: u64| -> Vec<(Target, f64)> {
        let at = |block: &Target| Target {
            address: block.address + offset,
            bytes: 1,
            ..block.clone()
        };
        blocks.iter().map(|block| (at(block), 1.0)).collect()
    };
    let like = |to| Like {
        from: vec![(From::Dram, 1.0)],
        exposed: 1.0,
        work_ns: 0.0,
        to,
    };
    program.access(main, 0, walk, 0.0..8.0, &like(field(16)));
    program.access(main, 0, count, 8.0..10.0, &like(field(72)));
    program.run.allocations.push(Allocations {
        stack,
        process: ProcessId(0),
        function: "malloc".to_owned(),
        blocks: 100_000,
        blocks_variance: None,
        bytes: 9_600_000,
        freed: 50_000,
        lifetime_ns: 50_000_000_000_000,
        peak_bytes: 9_600_000,
    });
    let profile = views(&program.finish()).profile;
    let [row] = profile.objects.as_slice() else {
        panic!("{:?}", profile.objects);
    };
    assert_eq!(row.name, "node.c:9 (96 B)");
    assert_eq!(
        (row.blocks, row.total_bytes, row.size_bytes),
        (100_000, 9_600_000, 96)
    );
    near(row.lifetime_s.unwrap(), 1.0, 1e-9, "lifetime");
    let offsets: Vec<(u64, u32)> = row.offsets.iter().map(|at| (at.offset, at.bytes)).collect();
    assert_eq!(offsets, [(16, 8), (72, 4)]);
    near(row.offsets[0].stall_fraction, 0.8, 0.05, "the hot field");
    assert!(row.share.stores.unwrap() < row.share.loads.unwrap());
}

#[test]
fn large_objects_have_a_row_without_a_sampled_access() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let array = program.heap(&[("main", "main.c", 3)], 64 << 20);
    program.access(main, 0, walk, 0.0..10.0, &Like::chase(From::Dram, &[array]));
    let mut allocated = |line: u32, blocks: u64| {
        let stack = program.stack(&[("node_new", "node.c", line), ("main", "main.c", 3)]);
        program.run.allocations.push(Allocations {
            stack,
            process: ProcessId(0),
            function: "malloc".to_owned(),
            blocks,
            blocks_variance: Some(blocks as f64 * 1000.0),
            bytes: blocks * 96,
            freed: blocks,
            lifetime_ns: 0,
            peak_bytes: 96,
        });
    };
    allocated(9, 98_500);
    allocated(10, 900);
    allocated(11, 600);
    allocated(11, 500);
    let profile = views(&program.finish()).profile;
    let rows: Vec<(&str, u64)> = profile
        .objects
        .iter()
        .map(|row| (row.name.as_str(), row.blocks))
        .collect();
    // The object with an access comes first; a hundredth of the bytes suffices for a row, 0.9 % do not.
    assert_eq!(
        rows[1..],
        [("node.c:11 (96 B)", 1100), ("node.c:9 (96 B)", 98_500)],
        "{rows:?}"
    );
    let row = &profile.objects[2];
    assert_eq!((row.share.samples, row.share.stall_fraction), (0, 0.0));
    assert!(row.blocks_low.unwrap() < 98_500 && row.blocks_high.unwrap() > 98_500);
    assert_eq!(row.alloc_stack[0].line, Some(9));
}

#[test]
fn lost_events_widen_the_interval_of_blocks() {
    let interval = |variance: Option<f64>, lost: u64| {
        let mut program = Synthetic::new(10.0, 1);
        let main = program.thread("main");
        let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
        let stack = program.stack(&[("node_new", "node.c", 9), ("main", "main.c", 3)]);
        let block = program.block(stack, 96);
        program.access(main, 0, walk, 0.0..10.0, &Like::chase(From::Dram, &[block]));
        program.run.allocations.push(Allocations {
            stack,
            process: ProcessId(0),
            function: "malloc".to_owned(),
            blocks: 10_000,
            blocks_variance: variance,
            bytes: 960_000,
            freed: 0,
            lifetime_ns: 0,
            peak_bytes: 960_000,
        });
        program.run.gaps.push(Gap {
            about: "objects".to_owned(),
            reason: "they came faster than they could be kept".to_owned(),
            remedy: None,
            count: Some(lost).filter(|lost| *lost > 0),
        });
        let row = views(&program.finish()).profile.objects.remove(0);
        row.blocks_low.zip(row.blocks_high)
    };
    assert_eq!(interval(None, 0), None);
    assert_eq!(interval(None, 7), Some((10_000, 10_007)));
    assert_eq!(interval(Some(1e6), 0), Some((8040, 11_960)));
    // Each sampled block represents 101 blocks.
    assert_eq!(interval(Some(1e6), 7), Some((8040, 11_960 + 707)));
}

/// Large blocks are recorded in any case, of small ones few.
#[test]
fn large_recorded_blocks_are_not_taken_for_the_size_of_many_small_ones() {
    let size = |recorded: u64, blocks: u64| {
        let mut program = Synthetic::new(10.0, 1);
        let main = program.thread("main");
        let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
        let stack = program.stack(&[("xmalloc", "x.c", 9), ("main", "main.c", 3)]);
        let block = program.block(stack, recorded);
        program.access(main, 0, walk, 0.0..10.0, &Like::chase(From::Dram, &[block]));
        program.run.allocations.push(Allocations {
            stack,
            process: ProcessId(0),
            function: "malloc".to_owned(),
            blocks,
            blocks_variance: Some(1e6),
            bytes: 100 * blocks,
            freed: 0,
            lifetime_ns: 0,
            peak_bytes: 100 * blocks,
        });
        let row = views(&program.finish()).profile.objects.remove(0);
        (row.size_bytes, row.name)
    };
    let (bytes, name) = size(512 << 10, 3_000_000);
    assert_eq!((bytes, name.as_str()), (100, "x.c:9 (100 B)"));
    assert_eq!(size(160, 3_000_000).0, 160);
}

#[test]
fn arrays_are_reported_by_stretches_and_not_by_element() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let array = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let second_half = Target {
        address: array.address + (32 << 20),
        bytes: 32 << 20,
        ..array
    };
    program.access(
        main,
        0,
        walk,
        0.0..10.0,
        &Like::chase(From::Dram, &[second_half]),
    );
    let profile = views(&program.finish()).profile;
    let offsets = &profile.objects[0].offsets;
    assert!(offsets.len() <= 64);
    assert!(
        offsets
            .iter()
            .all(|at| at.offset >= 32 << 20 && at.bytes == 1 << 20)
    );
}

#[test]
fn unrecorded_blocks_count_for_their_call_chain_and_have_no_offsets() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let node = program.heap(&[("make", "make.c", 12)], 64);
    let recorded = node.object.unwrap();
    program.access(main, 0, walk, 0.0..10.0, &Like::chase(From::Dram, &[node]));
    let mut run = program.finish();
    let recorded = run.objects[recorded.index()].clone();
    let unrecorded = ObjectId(run.objects.len() as u32);
    run.objects.push(Object {
        address: 0,
        size_bytes: 0,
        weight: 0.0,
        ..recorded
    });
    // Nearly all blocks are unrecorded.
    for (index, access) in run.accesses.iter_mut().enumerate() {
        if index % 10 != 0 {
            access.object = Some(unrecorded);
            access.address += 1 << 30;
        }
    }
    let profile = views(&run).profile;
    assert_eq!(profile.objects.len(), 1, "{:#?}", profile.objects);
    let row = &profile.objects[0];
    assert_eq!(
        (row.name.as_str(), row.size_bytes),
        ("make.c:12 (64 B)", 64)
    );
    near(
        row.share.stall_fraction,
        profile.memory_bound.fraction,
        1e-6,
        "all of the stall",
    );
    assert!(
        row.offsets.iter().all(|at| at.offset < 64),
        "{:?}",
        row.offsets
    );
}

#[test]
fn every_kind_of_memory_has_a_name() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("worker");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let global = program.global("histogram", 4096);
    let object = |kind, address, name: &str, thread| Object {
        kind,
        process: ProcessId(0),
        address,
        size_bytes: 8192,
        name: name.to_owned(),
        stack: None,
        thread,
        allocated_ns: None,
        freed_ns: None,
        weight: 1.0,
    };
    let stack = program.object(
        object(ObjectClass::Stack, 0x7ffe_0000_0000, "", Some(main)),
        64,
    );
    let file = program.object(
        object(ObjectClass::File, 0x7fee_0000_0000, "/data/words.txt", None),
        64,
    );
    let unknown = Target {
        object: None,
        address: 0x1000,
        bytes: 4096,
        stride: 64,
        from: None,
    };
    let like = Like::chase(From::L3, &[global, stack, file, unknown]);
    program.access(main, 0, walk, 0.0..10.0, &like);
    let profile = views(&program.finish()).profile;
    let mut names: Vec<_> = profile
        .objects
        .iter()
        .map(|row| (row.name.as_str(), row.kind))
        .collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(
        names,
        [
            ("histogram", ObjectClass::Global),
            ("stack of worker (4000)", ObjectClass::Stack),
            ("unknown memory", ObjectClass::Unknown),
            ("words.txt", ObjectClass::File),
        ]
    );
}

#[test]
fn containers_are_named_by_their_users() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.cpp", 40), SiteKind::Load, 8);
    let vector = program.heap(
        &[
            ("operator new(unsigned long)", "new_op.cc", 50),
            (
                "std::__new_allocator<int>::allocate(unsigned long, void const*)",
                "new_allocator.h",
                137,
            ),
            (
                "std::vector<int, std::allocator<int> >::resize(unsigned long)",
                "stl_vector.h",
                1011,
            ),
            ("sim::Grid::Grid(int)", "grid.cpp", 14),
            ("main", "main.cpp", 8),
        ],
        1 << 20,
    );
    program.access(main, 0, walk, 0.0..10.0, &Like::chase(From::L3, &[vector]));
    let profile = views(&program.finish()).profile;
    let row = &profile.objects[0];
    assert_eq!(row.name, "grid.cpp:14 (1 MiB)");
    // The whole chain is kept except for the allocator itself.
    assert!(
        row.alloc_stack[0]
            .function
            .starts_with("std::__new_allocator")
    );
}

#[test]
fn samples_divide_a_stall_where_nothing_was_timed() {
    let mut program = Synthetic::new(10.0, 1);
    let main = program.thread("main");
    let walk = program.site(("walk", "walk.c", 40), SiteKind::Load, 8);
    let (one, other) = (program.global("one", 4096), program.global("other", 4096));
    let like = Like {
        to: vec![(one, 3.0), (other, 1.0)],
        ..Like::chase(From::Dram, &[])
    };
    program.access(main, 0, walk, 0.0..10.0, &like);
    let mut run = program.finish();
    run.accesses.clear();
    run.executions.clear();
    run.meta.latencies = false;
    let profile = views(&run).profile;
    let share = |name: &str| {
        let row = profile.objects.iter().find(|row| row.name == name).unwrap();
        row.share.stall_fraction / profile.memory_bound.fraction
    };
    near(share("one"), 0.75, 0.03, "one");
    near(share("other"), 0.25, 0.03, "other");
    assert!(!profile.objects[0].offsets.is_empty());
    near(
        profile.memory_bound.unknown,
        profile.memory_bound.fraction,
        1e-9,
        "level",
    );
    assert!(profile.latency.known().is_none());
}
