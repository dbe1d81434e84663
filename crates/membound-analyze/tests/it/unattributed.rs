//! Code that could not be decoded does not count as computing.

use membound_run::{Gap, Module, ModuleId, ModuleKind, RunData, SiteKind};
use membound_types::InsightKind;

use crate::synthetic::{From, Like, Synthetic};
use crate::views;

/// A run of 2 s that spent `unseen` of its seconds in code of a module of `kind`, and waited for
/// memory in `waited` of them.
fn run_with(kind: ModuleKind, path: &str, unseen: f64, waited: f64) -> RunData {
    let mut program = Synthetic::new(2.0, 1);
    let main = program.thread("main");
    let table = program.heap(&[("main", "main.c", 3)], 64 << 20);
    let walk = program.site(("walk", "/src/walk.c", 5), SiteKind::Load, 8);
    let rest = program.stack(&[("rest", "/src/rest.c", 2)]);
    let hidden = program.stack(&[("hidden", "", 0)]);
    let frame = program.run.stacks[hidden.index()].frame;
    program.run.modules.push(Module {
        path: path.to_owned(),
        build_id: None,
        text_hash: None,
        kind,
    });
    program.run.frames[frame.index()].module = Some(ModuleId(1));
    program.unseen(main, hidden, 0.0..unseen);
    if waited > 0.0 {
        let like = Like::chase(From::Dram, &[table]);
        program.access(main, 0, walk, unseen..unseen + waited, &like);
    }
    program.plain(main, rest, unseen + waited..2.0);
    program.finish()
}

#[test]
fn a_program_of_jit_code_is_not_reported_as_computing() {
    let profile = views(&run_with(ModuleKind::Jit, "[jit]", 1.9, 0.0)).profile;
    let bound = profile.memory_bound;
    assert_eq!(bound.fraction, 0.0);
    assert!(bound.low < 0.001 && bound.high > 0.949, "{bound:?}");
    assert!((bound.unseen - 0.95).abs() < 0.01, "{bound:?}");
    assert_eq!(profile.unseen.len(), 1);
    assert_eq!(profile.unseen[0].reason, "code made at run time (JIT)");
    let first = &profile.findings[0];
    assert_ne!(first.kind, InsightKind::NotMemoryBound);
    assert!(first.text.contains("(JIT)"), "{}", first.text);
    for finding in &profile.findings {
        assert!(!finding.advice.contains("algorithms"), "{}", finding.advice);
    }
    let latency = profile.latency.why_missing().unwrap();
    assert!(latency.reason.contains("(JIT)"), "{}", latency.reason);
    assert!(!latency.reason.contains("hot enough"));
    // The function's own row has the interval too.
    let row = profile.functions.iter().find(|row| row.name == "hidden");
    assert!(row.unwrap().share.stall_high > 0.94);
    let row = profile.functions.iter().find(|row| row.name == "rest");
    assert!(row.unwrap().share.stall_high < 0.1);
}

#[test]
fn a_32_bit_program_is_not_reported_as_computing() {
    let mut run = run_with(ModuleKind::File, "/opt/old", 1.9, 0.0);
    run.gaps.push(Gap {
        about: Gap::UNSEEN_CODE.to_owned(),
        reason: "/opt/old: 32-bit code".to_owned(),
        remedy: None,
        count: None,
    });
    let profile = views(&run).profile;
    assert!(profile.memory_bound.high > 0.949);
    assert_eq!(profile.unseen[0].reason, "old: 32-bit code");
    let first = &profile.findings[0];
    assert!(first.text.contains("old: 32-bit code"), "{}", first.text);
    assert!(
        profile
            .missing
            .iter()
            .all(|missing| missing.table != "code")
    );
}

#[test]
fn unseen_code_beside_known_stalls_widens_the_interval_upwards_only() {
    let only_jit = views(&run_with(ModuleKind::Jit, "[jit]", 0.0, 1.0)).profile;
    let both = views(&run_with(ModuleKind::Jit, "[jit]", 0.5, 1.0)).profile;
    let (only_jit, bound) = (only_jit.memory_bound, both.memory_bound);
    assert!((bound.fraction - only_jit.fraction).abs() < 0.02);
    assert!((bound.low - only_jit.low).abs() < 0.02);
    assert!(bound.high > bound.fraction + 0.24, "{bound:?}");
    let first = &both.findings[0];
    assert_eq!(first.kind, InsightKind::MemoryBound);
    assert!(first.text.contains("Another 25 %"), "{}", first.text);
}

#[test]
fn the_kernel_s_code_is_not_unseen() {
    let profile = views(&run_with(ModuleKind::Kernel, "[kernel]", 1.9, 0.0)).profile;
    assert_eq!(profile.memory_bound.unseen, 0.0);
    assert!(profile.unseen.is_empty());
    assert_eq!(profile.findings[0].kind, InsightKind::NotMemoryBound);
}
