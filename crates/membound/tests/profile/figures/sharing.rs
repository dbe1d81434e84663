//! Threads that fight over a line, and all that only looks like it.

use std::path::Path;

use membound_types::Profile;

use membound_testkit::in_two_of_three;

use crate::suite::{Profiled, alone, fixture, latency_ns, line_of, membound, profile, text};

/// Rounds over the points; a good two seconds of two threads that fight.
const ROUNDS: &str = "150000";

fn run(mode: &str, rounds: &str) -> Option<Profiled> {
    let program = fixture("sharing.c", "-O1")?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        membound_testkit::skipped("one CPU: threads never run at once");
        return None;
    }
    Some(profile(&[], &program, [mode, rounds]))
}

fn lines(profile: &Profile) -> usize {
    profile.false_sharing.len() + profile.true_sharing.len()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn two_sums_in_one_line_are_false_sharing_with_object_allocation_and_both_sites() {
    let _alone = alone();
    in_two_of_three(|| {
        let Some(run) = run("false", ROUNDS) else {
            return;
        };
        assert!(run.profile.true_sharing.is_empty(), "{}", run.show());
        let [line] = run.profile.false_sharing.as_slice() else {
            panic!("{} lines\n{}", run.profile.false_sharing.len(), run.show());
        };
        assert!(line.object.contains("512"), "{}", line.object);
        let allocated = line.alloc_stack.first().expect("it was allocated");
        let at = [
            line_of("sharing.c", "/* ALLOCATION */"),
            line_of("sharing.c", "/* ALLOCATION AGAIN */"),
        ];
        assert_eq!(allocated.function, "main");
        assert!(
            allocated.line.is_some_and(|line| at.contains(&line)),
            "{allocated:?}"
        );
        assert_eq!(line.threads.len(), 2, "{line:?}");
        let (first, second) = (&line.threads[0], &line.threads[1]);
        assert!(
            first.to <= second.from || second.to <= first.from,
            "the threads' bytes are apart: {line:?}"
        );
        assert!(line.threads.iter().any(|it| it.stores > 0), "{line:?}");
        assert!(line.sites.len() >= 2, "{line:?}");
        assert!(
            line.sites.iter().all(|site| site.function == "sum"),
            "{line:?}"
        );
        // Beside the innermost cache's latency, as document 001 shows it: 44 cycles against 4.
        let (latency, l1) = (line.avg_latency_ns, line.l1_latency_ns);
        assert!((l1.unwrap() / latency_ns("L1") - 1.0).abs() < 0.1);
        assert!(latency.unwrap() > 3.0 * l1.unwrap(), "{line:?}");
        assert!(!line.advice.is_empty());
        let gain = line.predicted_gain.expect("a gain is predicted");
        assert!(gain.low <= gain.value && gain.value <= gain.high);
        let object = run.profile.objects.iter().find(|row| row.false_sharing);
        let object = object.unwrap_or_else(|| panic!("{}", run.show()));
        assert_eq!(object.size_bytes, 512);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn padding_takes_the_finding_away_and_compare_shows_it_gone() {
    let _alone = alone();
    in_two_of_three(|| {
        let Some(before) = run("false", ROUNDS) else {
            return;
        };
        let after = run("padded", ROUNDS).expect("the first could be run");
        assert_eq!(before.output.stdout, after.output.stdout);
        assert_eq!(lines(&after.profile), 0, "{}", after.show());
        let output = membound(before.home.path())
            .arg("compare")
            .args([&before.run, &after.run])
            .output()
            .expect("the command starts");
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(shown.contains("false sharing"), "{shown}");
        assert!(shown.contains("gone"), "{shown}");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn one_counter_is_true_sharing() {
    let _alone = alone();
    in_two_of_three(|| {
        let Some(run) = run("true", "30000") else {
            return;
        };
        assert!(run.profile.false_sharing.is_empty(), "{}", run.show());
        let [line] = run.profile.true_sharing.as_slice() else {
            panic!("{} lines\n{}", run.profile.true_sharing.len(), run.show());
        };
        assert!(line.object.contains("counter"), "{}", line.object);
        assert_eq!(line.threads.len(), 2);
        let at = line_of("sharing.c", "/* COUNT */");
        assert!(
            line.sites
                .iter()
                .any(|site| site.name.ends_with(&format!(":{at}"))),
            "{line:?}"
        );
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn readers_one_thread_and_memory_that_is_handed_over_share_nothing() {
    let _alone = alone();
    in_two_of_three(|| {
        for (mode, rounds) in [("read", "400000"), ("alone", "60000"), ("hand", "60000")] {
            let Some(run) = run(mode, rounds) else {
                return;
            };
            assert_eq!(lines(&run.profile), 0, "{mode}\n{}", run.show());
        }
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn watchpoints_confirm_who_touches_the_line() {
    let Some(program) = fixture("sharing.c", "-O1") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&["--watch"], &program, ["false", ROUNDS]);
        if let Some(missing) = run
            .profile
            .missing
            .iter()
            .find(|it| it.table == "watchpoints")
        {
            membound_testkit::skipped(&missing.why.reason);
            return;
        }
        let line = &run.profile.false_sharing[0];
        let confirmed = line
            .confirmed
            .as_ref()
            .unwrap_or_else(|| panic!("{}", run.show()));
        let mut threads: Vec<u32> = confirmed.iter().map(|it| it.tid).collect();
        threads.sort_unstable();
        threads.dedup();
        assert_eq!(threads.len(), 2, "{confirmed:?}");
        // Hardware saw each thread only where sampling says that it works.
        for hit in confirmed {
            let thread = line.threads.iter().find(|it| it.tid == hit.tid).unwrap();
            assert!(
                hit.offset + hit.bytes > thread.from && hit.offset < thread.to,
                "{line:?}"
            );
        }
        assert!(Path::new(&run.run).exists());
    });
}
