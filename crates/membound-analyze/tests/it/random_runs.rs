//! Tables agree with each other and nothing panics, whatever the run contains.

use membound_analyze::{Extent, Options};
use membound_run::{
    Access, Attribution, Executions, FrameId, ObjectClass, ObjectId, RunData, Sample, SiteId,
    SiteKind, StackId, ThreadId,
};
use proptest::prelude::*;

use crate::synthetic::{Like, Random, Synthetic};
use crate::views;

/// A program's skeleton: 3 threads, 5 sites, 8 objects, some chains.
fn skeleton(machine: bool) -> RunData {
    let mut program = Synthetic::new(1.0, 2);
    for name in ["main", "one", "two"] {
        program.thread(name);
    }
    let kinds = [
        SiteKind::Load,
        SiteKind::Store,
        SiteKind::Both,
        SiteKind::Locked,
        SiteKind::Load,
    ];
    for (line, kind) in (10..).step_by(10).zip(kinds) {
        program.site(("work", "work.c", line), kind, 8);
    }
    for line in 1..5 {
        program.heap(
            &[("make", "make.c", 3), ("main", "main.c", line)],
            64 * u64::from(line),
        );
    }
    for name in ["a", "b", "a", ""] {
        program.global(name, 4096);
    }
    let _ = Like::chase;
    let mut run = program.finish();
    run.meta.nodes = 2;
    run.meta.cpu_nodes = vec![0, 1];
    run.objects[0].kind = ObjectClass::Unknown;
    run.objects[1].freed_ns = Some(500_000_000);
    if !machine {
        run.meta.machine = None;
    }
    run
}

/// Fills a skeleton with events that are inconsistent with each other.
fn nonsense(seed: u64, events: u64, machine: bool) -> RunData {
    let mut run = skeleton(machine);
    let mut random = Random::new(seed);
    let (frames, stacks) = (run.frames.len() as u64, run.stacks.len() as u64);
    let (sites, objects) = (run.sites.len() as u64, run.objects.len() as u64);
    for _ in 0..random.below(8) {
        run.attributions.push(Attribution {
            frame: FrameId(random.below(frames) as u32),
            site: (random.below(3) > 0).then(|| SiteId(random.below(sites) as u32)),
            share: random.unit() * 1.5 - 0.1,
            confidence: random.unit(),
        });
    }
    for _ in 0..random.below(events) {
        let object = ObjectId(random.below(objects) as u32);
        let known = random.below(4) > 0;
        run.samples.push(Sample {
            t_ns: random.below(1_200_000_000),
            thread: ThreadId(random.below(3) as u32),
            cpu: Some(random.below(3) as u16),
            stack: StackId(random.below(stacks) as u32),
            weight_ns: random.below(3_000_000),
            address: (random.below(3) > 0).then(|| run.objects[object.index()].address),
            exact: random.below(2) > 0,
            object: known.then_some(object),
        });
    }
    for _ in 0..random.below(events) {
        let object = ObjectId(random.below(objects) as u32);
        let of_object = &run.objects[object.index()];
        let (address, size) = (of_object.address, of_object.size_bytes);
        run.accesses.push(Access {
            t_ns: random.below(1_200_000_000),
            thread: ThreadId(random.below(3) as u32),
            site: SiteId(random.below(sites) as u32),
            // Some addresses are before the object and some behind it.
            address: (address + random.below(size + 200)).saturating_sub(100),
            ticks: (random.below(5) > 0).then(|| random.below(2000) as u32),
            hit: (random.below(5) > 0).then(|| random.below(200) as u32),
            drain: (random.below(5) > 0).then(|| random.below(2000) as u32),
            store: random.below(2) > 0,
            object: (random.below(4) > 0).then_some(object),
            cpu: Some(random.below(3) as u16),
            node: (random.below(2) > 0).then(|| random.below(3) as u16),
        });
    }
    for _ in 0..random.below(12) {
        let from_ns = random.below(1_000_000_000);
        run.executions.push(Executions {
            site: SiteId(random.below(sites) as u32),
            from_ns,
            to_ns: from_ns + random.below(100_000_000),
            count: random.below(1_000_000_000),
            cpu_ns: random.below(200_000_000),
            least_cpu_ns: None,
            most_cpu_ns: None,
        });
    }
    for thread in &mut run.threads {
        thread.cpu_ns = (random.below(2) > 0).then(|| random.below(2_000_000_000));
    }
    run
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn tables_agree_with_each_other(seed: u64, events in 1_u64..3000, machine: bool) {
        let run = nonsense(seed, events, machine);
        let views = views(&run);
        let profile = &views.profile;
        prop_assert!((0.0..=1.0 + 1e-9).contains(&profile.memory_bound.fraction));
        let whole = profile.memory_bound.fraction;
        for rows in [
            profile.functions.iter().map(|row| row.share.stall_fraction).collect::<Vec<_>>(),
            profile.lines.iter().map(|row| row.share.stall_fraction).collect(),
            profile.instructions.iter().map(|row| row.share.stall_fraction).collect(),
            profile.threads.iter().map(|row| row.share.stall_fraction).collect(),
            profile.objects.iter().map(|row| row.share.stall_fraction).collect(),
            profile.levels.iter().map(|row| row.stall_fraction).collect(),
        ] {
            prop_assert!(rows.iter().all(|share| share.is_finite() && *share >= 0.0));
            prop_assert!((rows.iter().sum::<f64>() - whole).abs() < 1e-6, "{rows:?} {whole}");
        }
        for sample in &views.detail.samples {
            prop_assert!(sample.stall_s <= sample.weight_s);
            prop_assert!((sample.stack as usize) < views.detail.stacks.len());
            prop_assert!(sample.object.is_none_or(|at| (at as usize) < profile.objects.len()));
            let level = sample.level.map(usize::from);
            prop_assert!(level.is_none_or(|at| at < profile.levels.len()));
        }
        for object in &profile.objects {
            let sum: f64 = object.offsets.iter().map(|at| at.stall_fraction).sum();
            prop_assert!(sum <= 1.0 + 1e-6);
        }
        let compared = membound_analyze::compare(&[("a", profile), ("b", profile)]);
        prop_assert!(compared.changes.iter().all(|change| !change.significant));
        prop_assert!(compared.findings.is_empty());
    }

    #[test]
    fn a_summary_says_what_all_views_say(seed: u64, events in 1_u64..1000, machine: bool) {
        let run = nonsense(seed, events, machine);
        let options = Options { extent: Extent::Summary, ..Options::default() };
        let summary = membound_analyze::analyze(&run, &options);
        let mut all = views(&run).profile;
        prop_assert!(summary.profile.instructions.is_empty() && summary.detail.samples.is_empty());
        all.instructions.clear();
        all.function_objects.clear();
        prop_assert_eq!(summary.profile, all);
    }

    #[test]
    fn the_order_of_events_does_not_show(seed: u64, machine: bool) {
        let run = nonsense(seed, 500, machine);
        let mut reversed = run.clone();
        reversed.samples.reverse();
        reversed.accesses.reverse();
        reversed.attributions.reverse();
        let (one, other) = (views(&run), views(&reversed));
        prop_assert_eq!(one.profile, other.profile);
    }
}
