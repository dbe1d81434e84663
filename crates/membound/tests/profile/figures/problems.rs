//! Document 001's problems on one machine, before and after: found, named, gone. The third, which needs two
//! nodes, is profiled in the guest of two nodes (`tests/guest/profile.rs`).

use std::path::PathBuf;
use std::sync::LazyLock;

use membound_testkit::{Compiler, Fixtures, in_two_of_three};
use membound_types::InsightKind;

use crate::suite::{Profiled, alone, membound, profile, reaches_memory, text};

static PROBLEMS: LazyLock<Fixtures> = LazyLock::new(|| {
    Fixtures::new(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/problems"),
        concat!(env!("CARGO_TARGET_TMPDIR"), "/problems"),
    )
});

/// The program before and after its remedy.
fn both(source: &str, words: &str) -> Option<[PathBuf; 2]> {
    let build = |words: &str| PROBLEMS.build(Compiler::Gcc, source, words);
    Some([build(words)?, build(&format!("{words} -DAFTER"))?])
}

/// The line of `source` that holds `mark`, from 1.
fn line_of(source: &str, mark: &str) -> usize {
    let path = PROBLEMS.sources().join(source);
    let text = std::fs::read_to_string(path).expect("the program is there");
    let at = text.lines().position(|line| line.contains(mark));
    at.expect("the mark is there") + 1
}

fn two_cpus() -> bool {
    let two = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !two {
        membound_testkit::skipped("one CPU: threads never run at once");
    }
    two
}

/// What `compare` says of both.
fn compared(before: &Profiled, after: &Profiled) -> String {
    let output = membound(before.home.path())
        .arg("compare")
        .args([&before.run, &after.run])
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn the_regression_s_false_sharing_is_found_named_and_gone() {
    let Some([before, after]) = both("regression.c", "-O1 -pthread") else {
        return;
    };
    if !two_cpus() {
        return;
    }
    let _alone = alone();
    in_two_of_three(|| {
        let before = profile(&[], &before, ["2", "150000"]);
        let after = profile(&[], &after, ["2", "150000"]);
        assert_eq!(before.output.stdout, after.output.stdout);
        let [line] = before.profile.false_sharing.as_slice() else {
            panic!("{}", before.show());
        };
        let allocation = line_of("regression.c", "/* ALLOCATION */");
        assert!(
            line.object.contains(&format!("regression.c:{allocation}")),
            "{line:?}"
        );
        assert!(line.object.contains("512 B"), "{line:?}");
        let sum = "linear_regression_pthread";
        assert!(
            line.sites.iter().all(|site| site.function == sum),
            "{line:?}"
        );
        assert_eq!(line.threads.len(), 2);
        let shown = before.report(["--by", "object"]);
        assert!(text(&shown.stdout).contains("sharing"), "{}", before.show());
        assert!(after.profile.false_sharing.is_empty(), "{}", after.show());
        let shown = compared(&before, &after);
        assert!(shown.contains("gone"), "{shown}");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn the_triad_s_bound_by_bandwidth_is_found_named_and_gone() {
    let Some([before, after]) = both("triad.c", "-O2 -pthread") else {
        return;
    };
    let _alone = alone();
    if !reaches_memory() {
        return;
    }
    in_two_of_three(|| {
        let before = profile(&[], &before, ["1", "700"]);
        let after = profile(&[], &after, ["1", "3000"]);
        let bandwidth = |run: &Profiled| {
            let findings = run.profile.findings.iter();
            findings
                .filter(|it| it.kind == InsightKind::Bandwidth)
                .count()
        };
        assert_eq!(bandwidth(&before), 1, "{}", before.show());
        let memory = &before.profile.bandwidth[0];
        let line = line_of("triad.c", "/* TRIAD */");
        assert!(
            memory.lines[0].name.ends_with(&format!("triad.c:{line}")),
            "{:?}",
            memory.lines
        );
        let stored = line_of("triad.c", "/* A */");
        assert!(
            memory.objects[0]
                .name
                .contains(&format!("triad.c:{stored}")),
            "half of the bytes are of the array that is stored to: {:?}",
            memory.objects
        );
        assert_eq!(bandwidth(&after), 0, "{}", after.show());
        let moved = |run: &Profiled| run.profile.bandwidth.first().map(|it| it.average_gb_s);
        let (before, after) = (moved(&before).unwrap(), moved(&after).unwrap_or(0.0));
        assert!(after < 0.5 * before, "{before} GB/s and {after} GB/s");
    });
}
