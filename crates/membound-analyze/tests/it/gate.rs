//! Gates: rate of false alarms, detection of changes, and refused expressions.

use std::slice::from_ref;

use membound_analyze::{Expression, GateError, compare_sides, judge, pool_runs};
use membound_run::SiteKind;
use membound_types::{Gate, GateVerdict, Profile};

use crate::synthetic::{From, Like, Random, Synthetic};
use crate::{near, views};

/// One thread that chases through a table for `share` of a second and computes for the rest.
fn profile(share: f64) -> Profile {
    let mut program = Synthetic::new(1.0, 2);
    let main = program.thread("main");
    let table = program.heap(&[("main", "main.c", 7)], 64 << 20);
    let site = program.site(("work", "src/work.c", 20), SiteKind::Load, 8);
    program.access(
        main,
        0,
        site,
        0.0..share,
        &Like::chase(From::Dram, &[table]),
    );
    let rest = program.stack(&[("rest", "src/rest.c", 5), ("main", "main.c", 9)]);
    program.plain(main, rest, share..1.0);
    views(&program.finish()).profile
}

/// Another run of the same program, with the share `bound` of its time stalled; its own interval is far too
/// narrow.
fn again(of: &Profile, bound: f64) -> Profile {
    let mut run = of.clone();
    let bound = bound.clamp(0.0, 1.0);
    run.memory_bound.fraction = bound;
    run.memory_bound.low = (bound - 1e-4).max(0.0);
    run.memory_bound.high = (bound + 1e-4).min(1.0);
    run.run.effective_samples = 1e6;
    run
}

/// A program without rows, which is fast to copy.
fn bare() -> Profile {
    let mut bare = profile(0.4);
    bare.functions.clear();
    bare.lines.clear();
    bare.instructions.clear();
    bare.objects.clear();
    bare.function_objects.clear();
    bare
}

/// Normally distributed number.
fn normal(random: &mut Random, mean: f64, deviation: f64) -> f64 {
    mean + deviation * random.normal()
}

/// The runs of a side, with the name of a file.
fn named<'a>(file: &'a str, runs: &'a [Profile]) -> Vec<(&'a str, &'a Profile)> {
    runs.iter().map(|run| (file, run)).collect()
}

fn judged(base: &[Profile], new: &[Profile], expression: &str) -> Result<Gate, GateError> {
    let expression: Expression = expression.parse()?;
    let (base, new) = (named("a.run", base), named("b.run", new));
    let mut gates = judge(&base, &new, &[expression])?;
    assert_eq!(gates.len(), 1);
    Ok(gates.remove(0))
}

fn verdict(base: &[Profile], new: &[Profile], expression: &str) -> GateVerdict {
    let gate = judged(base, new, expression).expect("it names what there is");
    assert_eq!(gate.text.lines().count(), 1, "{gate:?}");
    gate.verdict
}

/// Numbers of failed and passed among `times` comparisons of sides with `runs` runs each that differ by
/// `change`.
fn simulated(
    times: usize,
    runs: usize,
    change: f64,
    deviation: f64,
    expression: &str,
) -> (usize, usize) {
    let bare = bare();
    let mut random = Random::new(20_261_125);
    let mut side = |mean: f64| -> Vec<Profile> {
        (0..runs)
            .map(|_| again(&bare, normal(&mut random, mean, deviation)))
            .collect()
    };
    let (mut failed, mut passed) = (0, 0);
    for _ in 0..times {
        let (base, new) = (side(0.40), side(0.40 + change));
        match verdict(&base, &new, expression) {
            GateVerdict::Failed => failed += 1,
            GateVerdict::Passed => passed += 1,
            GateVerdict::Undecided => {}
        }
    }
    (failed, passed)
}

#[test]
fn equal_programs_raise_a_false_alarm_in_one_of_fifty_at_most() {
    // With a limit of 0, which is the hardest case: few runs and many, quiet and noisy.
    for runs in [2, 3, 5, 10] {
        for deviation in [0.005, 0.02, 0.06] {
            let (failed, _) = simulated(2000, runs, 0.0, deviation, "memory-bound +0pt");
            assert!(failed <= 40, "{failed} of 2000, {runs} runs, {deviation}");
            let (failed, _) = simulated(500, runs, 0.0, deviation, "memory-bound +3pt");
            assert!(failed <= 5, "{failed} of 500, {runs} runs, {deviation}");
        }
    }
}

#[test]
fn a_change_of_ten_points_is_detected() {
    for (runs, deviation) in [(3, 0.01), (5, 0.02), (10, 0.03)] {
        let (failed, _) = simulated(1000, runs, 0.10, deviation, "memory-bound +3pt");
        assert!(failed >= 950, "{failed} of 1000, {runs} runs, {deviation}");
    }
}

#[test]
fn runs_that_are_far_off_hide_no_change() {
    let bare = bare();
    let mut random = Random::new(3);
    let mut side = |mean: f64| -> Vec<Profile> {
        (0..10)
            .map(|_| {
                let off = if random.unit() < 1.0 / 30.0 {
                    -0.2
                } else {
                    0.0
                };
                again(&bare, normal(&mut random, mean + off, 0.025))
            })
            .collect()
    };
    let mut failed = 0;
    let mut alarms = 0;
    for _ in 0..500 {
        let (base, new) = (side(0.40), side(0.50));
        failed += usize::from(verdict(&base, &new, "memory-bound +3pt") == GateVerdict::Failed);
        let again = side(0.40);
        alarms += usize::from(verdict(&base, &again, "memory-bound +0pt") == GateVerdict::Failed);
    }
    assert!(failed >= 475 && alarms <= 10, "{failed} {alarms} of 500");
}

#[test]
fn a_change_of_what_is_allowed_fails_rarely_and_equal_programs_pass() {
    let (failed, _) = simulated(2000, 5, 0.03, 0.015, "memory-bound +3pt");
    assert!(failed <= 40, "{failed} of 2000");
    let (failed, passed) = simulated(1000, 5, 0.0, 0.008, "memory-bound +3pt");
    assert!(failed == 0 && passed >= 950, "{failed} {passed} of 1000");
}

#[test]
fn the_requested_number_of_runs_suffices() {
    let bare = bare();
    let mut random = Random::new(7);
    let mut side = |runs: usize| -> Vec<Profile> {
        (0..runs)
            .map(|_| again(&bare, normal(&mut random, 0.4, 0.04)))
            .collect()
    };
    let open = (0..)
        .map(|_| judged(&side(3), &side(3), "memory-bound +3pt").unwrap())
        .find(|gate| gate.verdict == GateVerdict::Undecided)
        .unwrap();
    assert!(
        open.text.contains("runs a side would decide"),
        "{}",
        open.text
    );
    assert!(open.runs_needed.is_some(), "{open:?}");
    // 57 for the true spread, and some more for the runs left out at the ends; three runs give only a rough
    // value.
    let (_, passed) = simulated(300, 70, 0.0, 0.04, "memory-bound +3pt");
    assert!(passed >= 275, "{passed} of 300");
}

#[test]
fn lines_functions_and_objects_have_limits_of_points_and_growth() {
    let base = [profile(0.40), profile(0.41), profile(0.39)];
    let more = [profile(0.60), profile(0.61), profile(0.59)];
    for name in [
        "line work.c:20",
        "line src/work.c:20",
        "function work",
        "object main.c:7",
        "object main.c:7 (64 MiB)",
        "memory-bound",
    ] {
        for (limit, expected) in [
            ("+10%", GateVerdict::Failed),
            ("+10pt", GateVerdict::Failed),
            ("+80%", GateVerdict::Passed),
            ("+30pt", GateVerdict::Passed),
        ] {
            let expression = format!("{name} {limit}");
            assert_eq!(verdict(&base, &more, &expression), expected, "{expression}");
            let back = verdict(&more, &base, &expression);
            assert_eq!(back, GateVerdict::Passed, "{expression}");
        }
        assert_ne!(
            verdict(&base, &base, &format!("{name} +10%")),
            GateVerdict::Failed
        );
    }
    let gate = judged(&base, &more, "object main.c:7 +10%").unwrap();
    // 149 of 150 ns of a load are stalled.
    near(gate.base.value, 0.4 * 149.0 / 150.0, 0.02, "base");
    near(gate.change.unwrap().value, 0.5, 0.08, "growth");
    // With one run per side, the run's own interval counts.
    assert_eq!(
        verdict(&base[..1], &more[..1], "line work.c:20 +10%"),
        GateVerdict::Failed
    );
}

#[test]
fn a_row_of_one_side_is_zero_in_the_other() {
    let without = {
        let mut program = Synthetic::new(1.0, 2);
        let main = program.thread("main");
        let rest = program.stack(&[("rest", "src/rest.c", 5)]);
        program.plain(main, rest, 0.0..1.0);
        views(&program.finish()).profile
    };
    let with = profile(0.4);
    let gate = judged(from_ref(&without), from_ref(&with), "line work.c:20 +10%").unwrap();
    assert_eq!((gate.verdict, gate.change), (GateVerdict::Failed, None));
    assert_eq!(
        verdict(&[with], &[without], "line work.c:20 +10%"),
        GateVerdict::Passed
    );
}

#[test]
fn names_in_no_run_and_unrecorded_figures_are_refused() {
    let run = profile(0.4);
    let check = |base: &Profile, new: &Profile, expression: &str, expected: &str| {
        let error = judged(from_ref(base), from_ref(new), expression).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        &run,
        &run,
        "function wrok +5%",
        "`function wrok +5%`: no function `wrok` in any run; there is `work`",
    );
    check(
        &run,
        &run,
        "line work.c:21 +5%",
        "`line work.c:21 +5%`: no line `work.c:21` in any run; there is `work.c:20`",
    );
    check(
        &run,
        &run,
        "object tree +5%",
        "`object tree +5%`: no object `tree` in any run; there is `main.c:7 (64 MiB)`",
    );
    let mut without = run.clone();
    without.run.objects_recorded = false;
    without.run.latencies_recorded = false;
    check(
        &run,
        &without,
        "object main.c:7 +5%",
        "`object main.c:7 +5%`: b.run has no objects: no process could be patched",
    );
    check(
        &without,
        &run,
        "false-sharing new",
        "`false-sharing new`: a.run has no latencies: no process could be patched",
    );
    // The other expressions need neither.
    assert!(judged(from_ref(&run), &[without], "function work +5%").is_ok());
}

/// Two threads that add to words of one line, or each to a line of its own.
fn fight(apart: bool) -> Profile {
    let from = if apart { From::L1 } else { From::Core };
    let element = if apart { 64 } else { 8 };
    let mut program = Synthetic::new(2.0, 2);
    let threads = [program.thread("one"), program.thread("two")];
    let array = program.heap(&[("calloc", "sums.h", 52)], 8 * element);
    let add = program.site(("add", "sums.c", 77), SiteKind::Both, 8);
    for (which, thread) in threads.into_iter().enumerate() {
        let to = crate::synthetic::Target {
            address: array.address + element * which as u64,
            bytes: 8,
            stride: 8,
            ..array.clone()
        };
        program.access(
            thread,
            which as u16,
            add,
            0.0..2.0,
            &Like::chase(from, &[to]),
        );
    }
    views(&program.finish()).profile
}

#[test]
fn new_false_sharing_fails_and_old_does_not() {
    let (apart, fought) = (fight(true), fight(false));
    assert!(apart.false_sharing.is_empty() && !fought.false_sharing.is_empty());
    let gate = judged(from_ref(&apart), from_ref(&fought), "false-sharing new").unwrap();
    assert_eq!(gate.verdict, GateVerdict::Failed);
    assert!(gate.text.contains("sums.h:52"), "{}", gate.text);
    assert!(gate.new.value > 0.5, "{gate:?}");
    for (base, new) in [(&fought, &fought), (&fought, &apart), (&apart, &apart)] {
        assert_eq!(
            verdict(from_ref(base), from_ref(new), "false-sharing new"),
            GateVerdict::Passed
        );
    }
    // One of three new runs has the finding, which may be chance. If one run of the base has it, it is not
    // new.
    let one_of_three = [fought.clone(), apart.clone(), apart.clone()];
    let none = [apart.clone(), apart.clone()];
    assert_eq!(
        verdict(&none, &one_of_three, "false-sharing new"),
        GateVerdict::Undecided
    );
    assert_eq!(
        verdict(
            &one_of_three,
            &[fought.clone(), fought],
            "false-sharing new"
        ),
        GateVerdict::Passed
    );
}

#[test]
fn sides_are_means_with_an_interval() {
    let runs: Vec<Profile> = [0.30, 0.32, 0.34, 0.36, 0.38]
        .map(|bound| again(&bare(), bound))
        .to_vec();
    let side = pool_runs(&named("x.run", &runs)).unwrap();
    near(side.memory_bound.value, 0.34, 1e-9, "mean");
    near(side.memory_bound.high, 0.34 + 0.039_26, 1e-3, "high");
    near(
        side.memory_bound_deviation.unwrap(),
        0.031_62,
        1e-4,
        "deviation",
    );
    let more: Vec<Profile> = runs
        .iter()
        .map(|run| again(run, run.memory_bound.fraction + 0.3))
        .collect();
    let comparison = compare_sides(&named("a.run", &runs), &named("b.run", &more));
    assert_eq!(comparison.runs.len(), 10);
    let sides: Vec<(&str, &[usize])> = comparison
        .sides
        .iter()
        .map(|side| (side.name.as_str(), side.runs.as_slice()))
        .collect();
    assert_eq!(
        sides,
        [
            ("base", [0, 1, 2, 3, 4].as_slice()),
            ("new", [5, 6, 7, 8, 9].as_slice())
        ]
    );
    let summary = comparison.summary.join(" ");
    assert!(
        summary.contains("More of the CPU time waits for memory: 34 % before, 64 % now"),
        "{summary}"
    );
    assert!(pool_runs(&[]).is_none());
}

#[test]
fn the_changes_of_sides_have_a_column_a_side() {
    let base = [profile(0.40), profile(0.41), profile(0.39)];
    let new = [profile(0.60), profile(0.61), profile(0.59)];
    let comparison = compare_sides(&named("a.run", &base), &named("b.run", &new));
    let object = comparison
        .changes
        .iter()
        .find(|change| change.group == "object")
        .unwrap();
    assert!(
        object.significant && object.stall_s.len() == 2,
        "{object:?}"
    );
    near(object.change_s, 0.2, 0.03, "change");
    let same = compare_sides(&named("a.run", &base), &named("b.run", &base));
    assert!(same.changes.iter().all(|change| !change.significant));
}
