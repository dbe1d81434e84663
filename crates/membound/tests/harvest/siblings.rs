//! Scavengers on SMT siblings of the command's hardware threads, and off them. CPUs 0 and 1 are declared to
//! be one core, since a scavenger cannot see which CPUs are siblings.

use membound_platform::{Root, affinity, cpu};
use membound_testkit::skipped;
use membound_types::{CpuId, HarvestRun, IdlePolicy, SlotMode, SmtPolicy};

use crate::suite::{Harvest, Harvested, fixture, scavenger};

/// Runs the fixture, called with `words`, with a scavenger in `mode`; `None` where the machine cannot.
fn run_with_sibling(words: &str, mode: &str, options: &str) -> Option<Harvested> {
    let allowed = affinity::allowed().expect("the kernel tells");
    if ![CpuId(0), CpuId(1)].iter().all(|cpu| allowed.contains(cpu)) {
        skipped("CPUs 0 and 1 are not both to be used");
        return None;
    }
    let (program, scavenger) = (fixture("beside.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, words)
        .with(&scavenger, mode)
        .options(options);
    let harvested = harvest.run();
    let context = format!("{harvested:#?}");
    assert_eq!(harvested.left.stdout, "beside\n", "{context}");
    assert_eq!(harvested.left.end, Ok(0), "{context}");
    Some(harvested)
}

/// The mode, the number of changes and the CPUs in the document's `slots`.
fn slots(document: &HarvestRun) -> (SlotMode, u64, &[CpuId]) {
    let slots = &document.slots;
    assert!(!slots.why.is_empty(), "{slots:?}");
    assert_eq!(slots.smt_s > 0.0, !slots.cpus.is_empty(), "{slots:?}");
    (slots.mode, slots.changes, &slots.cpus)
}

#[test]
fn a_scavenger_moves_from_slices_to_the_sibling() {
    // It makes no call with which it would leave the command's thread.
    let Some(harvested) = run_with_sibling("", "on 1 5000", "--siblings 0,1 --smt on") else {
        return;
    };
    assert!(harvested.outputs[0].starts_with("on 1\n"), "{harvested:#?}");
    let document = &harvested.document;
    let (mode, changes, cpus) = slots(document);
    assert_eq!((mode, changes), (SlotMode::Smt, 0), "{document:#?}");
    assert!(cpus.contains(&CpuId(1)), "{cpus:?}");
    assert!(document.slots.beside_s > 0.0, "{document:#?}");
    let siblings = vec![vec![CpuId(0), CpuId(1)]];
    assert_eq!(document.options.siblings, siblings);
}

#[test]
fn it_leaves_the_sibling_while_requests_are_slow_and_returns() {
    let options = "--siblings 0,1 --requests serve --slo-p95 1e6";
    // The fixture reports on which CPUs its scavenger was, in order.
    let Some(harvested) = run_with_sibling("back", "forever", options) else {
        return;
    };
    let (mode, changes, _) = slots(&harvested.document);
    assert_eq!(mode, SlotMode::Smt, "{harvested:#?}");
    assert!(changes >= 2, "{harvested:#?}");
}

#[test]
fn it_is_given_up_before_scavengers_are_let_in_less() {
    // Quick requests keep to the bound: the sibling is not given up before the command has observed the
    // scavenger there.
    let options = "--siblings 0,1 --requests serve --slo-p95 1e6";
    let Some(harvested) = run_with_sibling("off", "forever", options) else {
        return;
    };
    let document = &harvested.document;
    let (mode, changes, _) = slots(document);
    assert_eq!((mode, changes), (SlotMode::Kernel, 1), "{document:#?}");
    assert!(document.slots.why.contains("--slo-p95"), "{document:#?}");
    let guard = document.guard.as_ref().expect("a bound was asked for");
    assert_eq!(guard.steps_out, 0, "{document:#?}");
}

#[test]
fn it_is_kept_off_where_none_is_to_be_used() {
    let Some(harvested) = run_with_sibling("", "bound 0", "--siblings 0,1 --smt off") else {
        return;
    };
    assert!(
        harvested.outputs[0].starts_with("bound to 0\n"),
        "{harvested:#?}"
    );
    let document = &harvested.document;
    assert_eq!(slots(document), (SlotMode::Kernel, 0, &[][..]));
    assert_eq!(document.options.smt, SmtPolicy::Off);
    assert!(document.slots.why.contains("--smt off"), "{document:#?}");
}

#[test]
fn the_scavenger_that_measures_the_slowdown_stays_in_stalls() {
    let options = "--siblings 0,1 --smt on --max-slowdown 50%";
    let Some(harvested) = run_with_sibling("", "work", options) else {
        return;
    };
    let document = &harvested.document;
    assert_eq!(slots(document), (SlotMode::Kernel, 0, &[][..]));
    assert!(document.slots.why.contains("only one"), "{document:#?}");
}

#[test]
fn without_a_latency_to_hold_the_kernel_decides() {
    let Some(harvested) = run_with_sibling("", "work", "--siblings 0,1") else {
        return;
    };
    let document = &harvested.document;
    assert_eq!(slots(document), (SlotMode::Stalls, 0, &[][..]));
    assert!(document.slots.why.contains("--smt on"), "{document:#?}");
}

#[test]
fn scavengers_that_wait_for_stalls_have_no_other_hardware_thread() {
    for idle in [IdlePolicy::Steal, IdlePolicy::Stop] {
        let options = format!("--siblings 0,1 --idle {idle}");
        let Some(harvested) = run_with_sibling("", "work", &options) else {
            return;
        };
        let document = &harvested.document;
        assert_eq!(slots(document), (SlotMode::Stalls, 0, &[][..]));
        assert!(document.slots.why.contains("--idle"), "{document:#?}");
    }
}

#[test]
fn a_machine_without_siblings_says_so() {
    let root = Root::system();
    if !cpu::smt_siblings(&root, &affinity::online(&root)).is_empty() {
        skipped("cores of this machine have several hardware threads");
        return;
    }
    let Some(harvested) = run_with_sibling("", "work", "") else {
        return;
    };
    let document = &harvested.document;
    assert_eq!(slots(document), (SlotMode::Stalls, 0, &[][..]));
    let why = &document.slots.why;
    assert!(why.starts_with("no core has a second"), "{why}");
}
