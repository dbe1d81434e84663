//! Comparisons of runs.

use membound_analyze::compare;
use membound_run::{RunData, SiteKind};
use membound_types::{InsightKind, Profile, RunComparison};

use crate::synthetic::{From, Like, Synthetic, Target};
use crate::{near, views};

/// Document 001's program: two threads that sum into elements of `element` bytes.
fn linear_regression(element: u64, from: From, seconds: f64) -> RunData {
    let mut program = Synthetic::new(seconds, 2);
    let threads = [program.thread("one"), program.thread("two")];
    let array = program.heap(
        &[("CALLOC", "stddefines.h", 52), ("main", "linear.c", 133)],
        8 * element,
    );
    let add = program.site(
        ("linear_regression_pthread", "linear.c", 77),
        SiteKind::Both,
        8,
    );
    for (which, thread) in threads.into_iter().enumerate() {
        let to = Target {
            address: array.address + element * which as u64,
            bytes: 8,
            stride: 8,
            ..array.clone()
        };
        let like = Like::chase(from, &[to]);
        program.access(thread, which as u16, add, 0.0..seconds, &like);
    }
    program.finish()
}

fn compared(runs: &[&RunData]) -> (Vec<Profile>, RunComparison) {
    let profiles: Vec<Profile> = runs.iter().map(|run| views(run).profile).collect();
    let named: Vec<(&str, &Profile)> = ["before.run", "after.run", "third.run"]
        .into_iter()
        .zip(&profiles)
        .collect();
    let comparison = compare(&named);
    (profiles, comparison)
}

#[test]
fn padding_shows_as_faster_and_false_sharing_as_gone() {
    let before = linear_regression(8, From::Core, 10.0);
    let after = linear_regression(64, From::L1, 2.5);
    let (_, comparison) = compared(&[&before, &after]);
    assert_eq!(comparison.runs.len(), 2);
    let summary = comparison.summary.join("\n");
    assert!(summary.contains("4.0 times as fast"), "{summary}");
    assert!(
        summary.contains("False sharing in stddefines.h:52 (64 B): gone"),
        "{summary}"
    );
    assert!(summary.contains("Less of the CPU time waits"), "{summary}");
    let removed = comparison
        .findings
        .iter()
        .find(|finding| finding.kind == InsightKind::FalseSharing)
        .unwrap();
    assert_eq!(removed.present, [true, false]);
    // The padded array counts as the same object although its size changed.
    let object = comparison
        .changes
        .iter()
        .find(|change| change.group == "object")
        .unwrap();
    assert_eq!(object.name, "stddefines.h:52 (64 B)");
    assert!(object.significant && object.stall_s.iter().all(Option::is_some));
    near(object.change_s, -20.0 * 59.0 / 60.0, 1.0, "change");
}

#[test]
fn two_runs_of_one_program_are_the_same() {
    // Two runs of one program: different samples and accesses.
    let run = |seed: u64| {
        let mut program = Synthetic::new(4.0, 2);
        let main = program.thread("main");
        let tables: Vec<Target> = (1..7)
            .map(|line| program.heap(&[("main", "main.c", line)], 16 << 20))
            .collect();
        let mut random = crate::synthetic::Random::new(seed);
        for line in 20..32 {
            let site = program.site(("work", "work.c", line), SiteKind::Load, 8);
            let start = 4.0 / 12.0 * f64::from(line - 20);
            let length = 4.0 / 12.0 * (1.0 - 0.02 * random.unit());
            let like = Like {
                from: vec![(From::Dram, 0.2), (From::L3, 0.3), (From::L1, 0.5)],
                ..Like::chase(From::L1, &tables)
            };
            program.access(main, 0, site, start..start + length, &like);
        }
        let mut run = program.finish();
        // Each run loses another tenth of the samples.
        let mut drop = random.clone();
        run.samples.retain(|_| drop.unit() > 0.1);
        for sample in &mut run.samples {
            sample.weight_ns = sample.weight_ns * 10 / 9;
        }
        run.threads[0].cpu_ns = None;
        run
    };
    for seed in 0..8 {
        let (_, comparison) = compared(&[&run(2 * seed), &run(2 * seed + 1)]);
        let changed: Vec<_> = comparison
            .changes
            .iter()
            .filter(|it| it.significant)
            .collect();
        assert!(changed.is_empty(), "{changed:?}");
        assert!(comparison.findings.is_empty(), "{:?}", comparison.findings);
        let summary = comparison.summary.join("\n");
        assert_eq!(summary.matches("same within noise").count(), 2, "{summary}");
    }
}

#[test]
fn shares_that_may_differ_are_not_called_the_same() {
    let run = linear_regression(64, From::L1, 2.5);
    let (mut profiles, _) = compared(&[&run, &run]);
    for (profile, stalled) in profiles.iter_mut().zip([0.7, 0.5]) {
        let bound = &mut profile.memory_bound;
        (bound.fraction, bound.low, bound.high) = (stalled, stalled - 0.3, stalled + 0.3);
    }
    let comparison = membound_analyze::compare(&[("a", &profiles[0]), ("b", &profiles[1])]);
    let summary = comparison.summary.join("\n");
    assert!(
        summary.contains("is not certain: 70 % before, 50 % now"),
        "{summary}"
    );
    assert!(!summary.contains("As much"), "{summary}");
}

#[test]
fn cpu_time_is_reported_where_elapsed_time_changes_otherwise() {
    let run = linear_regression(64, From::L1, 2.5);
    let (profiles, comparison) = compared(&[&run, &run]);
    assert!(!comparison.summary.join(" ").contains("CPU time: "));
    // In the second run the program had to wait for a CPU.
    let mut waited = profiles[1].clone();
    waited.elapsed_s *= 2.0;
    let comparison = membound_analyze::compare(&[("a", &profiles[0]), ("b", &waited)]);
    let summary = comparison.summary.join(" ");
    assert!(summary.contains("100 % more time"), "{summary}");
    assert!(summary.contains("CPU time: "), "{summary}");
}

#[test]
fn three_runs_keep_their_columns() {
    let runs = [
        linear_regression(8, From::Core, 10.0),
        linear_regression(8, From::Core, 10.0),
        linear_regression(64, From::L1, 2.5),
    ];
    let (_, comparison) = compared(&[&runs[0], &runs[1], &runs[2]]);
    let removed = &comparison.findings[0];
    assert_eq!(removed.present.len(), 3);
    assert!(
        comparison
            .changes
            .iter()
            .all(|change| change.stall_s.len() == 3)
    );
}

#[test]
fn fewer_than_two_runs_compare_without_sentences() {
    assert!(compare(&[]).summary.is_empty());
    let run = linear_regression(8, From::Core, 1.0);
    let (_, comparison) = compared(&[&run]);
    assert!(comparison.summary.is_empty() && comparison.findings.is_empty());
}

#[test]
fn a_run_that_was_cut_short_is_reported() {
    let before = linear_regression(8, From::Core, 10.0);
    let mut after = before.clone();
    after.meta.complete = false;
    let (_, comparison) = compared(&[&before, &after]);
    assert!(comparison.runs[1].incomplete);
    let summary = comparison.summary.join("\n");
    assert!(summary.contains("after.run is incomplete"), "{summary}");
}
