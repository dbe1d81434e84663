//! Document 001's triad on two nodes: its arrays are initialised by one thread and used by two. The program
//! asks the kernel on which nodes its pages lie, and counts its accesses.

use membound_analyze::Thresholds;
use membound_testkit::skipped;
use membound_types::{
    InsightKind, Level, LevelKind, MachineInfo, MachineProfile, NumaRow, NumaView, Outcome, Profile,
};

use super::{Command, Luggage, Machine, Output, build, run_alone};

/// Document 001's third problem.
const PROGRAM: &str = "../../../../bench/problems/two_nodes.c";

/// Path of the machine profile in the guest. It has no measured times, which would be meaningless there.
const UNMEASURED: &str = "/root/unmeasured.json";

/// Commands that only prepare the guest.
const SETTINGS: usize = 2;

/// Counts of the program for one half of the triad's arrays.
#[derive(Clone, Copy, Debug)]
struct HalfCounts {
    node0: f64,
    node1: f64,
    iterations: f64,
}

/// The two halves that the program printed.
fn halves(output: &Output) -> [HalfCounts; 2] {
    let line = |which: usize| -> HalfCounts {
        let prefix = format!("half {which} ");
        let line = output
            .stdout
            .lines()
            .find_map(|it| it.strip_prefix(&prefix));
        let line = line.unwrap_or_else(|| panic!("no half {which} in {output:?}"));
        let words: Vec<&str> = line.split(' ').collect();
        let number = |name: &str| -> f64 {
            let at = words.iter().position(|word| *word == name);
            words[at.expect("the program tells it") + 1]
                .parse()
                .expect("it is a number")
        };
        HalfCounts {
            node0: number("node0"),
            node1: number("node1"),
            iterations: number("iterations"),
        }
    };
    [line(0), line(1)]
}

fn unmeasured() -> Vec<u8> {
    let level = |name: &str, kind, size_bytes, latency_ns| Level {
        name: name.to_owned(),
        kind,
        size_bytes,
        size_low_bytes: size_bytes,
        size_high_bytes: size_bytes,
        latency_ns,
        latency_low_ns: latency_ns,
        latency_high_ns: latency_ns,
        latency_cycles: latency_ns,
        line_bytes: Some(64),
        line_basis: None,
        declared_bytes: size_bytes,
        note: None,
    };
    let profile = MachineProfile {
        // The sizes decide which accesses go to memory: these are far smaller than the arrays.
        levels: vec![
            level("L1", LevelKind::Cache, Some(32 << 10), 1.0),
            level("L2", LevelKind::Cache, Some(1 << 20), 4.0),
            level("DRAM", LevelKind::Memory, None, 100.0),
        ],
        ..MachineProfile::unmeasured(MachineInfo::default())
    };
    serde_json::to_vec(&profile).expect("a profile can be written")
}

fn placement(profile: &Profile) -> &NumaView {
    match &profile.numa {
        Outcome::Known(view) => view,
        Outcome::Missing { .. } => panic!(
            "{:?}\n{:?}\n{:?}",
            profile.numa, profile.run, profile.missing
        ),
    }
}

/// The rows of the three arrays.
fn arrays(view: &NumaView) -> Vec<&NumaRow> {
    view.objects
        .iter()
        .filter(|row| row.name.contains("two_nodes.c"))
        .collect()
}

#[test]
fn a_triad_that_one_thread_initialised_is_remote_to_the_thread_on_the_other_node() {
    let scratch = tempfile::tempdir().expect("the temporary directory is writable");
    let triad = match build(PROGRAM, &["-O2", "-g", "-pthread"], scratch.path()) {
        Ok(triad) => [triad],
        Err(reason) => return skipped(reason),
    };
    let machine = unmeasured();
    let luggage = Luggage {
        programs: &triad,
        files: &[(UNMEASURED, &machine)],
    };
    let profile = |mode: &str, milliseconds: &str, run: &str| {
        let words = [
            "profile",
            "--machine",
            UNMEASURED,
            "--quiet",
            "--sampler",
            "auto",
            // Under the emulator an exchange of patches takes a second, so the default overhead would pay for
            // one window only.
            "--max-overhead",
            "50%",
        ];
        let rest = ["-o", run, "--", "/bin/two_nodes", mode, milliseconds];
        Command::membound(&[&words[..], &rest[..]].concat()).within(120)
    };
    let json = |run: &str| Command::membound(&["report", run, "--format", "json"]).within(90);
    let commands = [
        // The kernel would move pages to the nodes that use them, which would change the expected result.
        Command::write("/proc/sys/kernel/numa_balancing", "0"),
        // A huge page across the middle of an array would lie where one thread was a moment
        // earlier.
        Command::write("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
        profile("before", "25000", "/tmp/before"),
        json("/tmp/before"),
        Command::membound(&["report", "/tmp/before"]),
        // No share is compared here, so fewer windows are enough.
        profile("after", "12000", "/tmp/after"),
        json("/tmp/after"),
        Command::membound(&["report", "/tmp/after"]),
    ];
    match run_alone(Machine::TwoNodes, luggage, &commands) {
        Ok(outputs) => judge_triads(&outputs, &commands),
        Err(reason) => skipped(reason),
    }
}

/// Compares the recordings of both triads by `commands` with what the triads printed.
#[track_caller]
fn judge_triads(outputs: &[Output], commands: &[Command]) {
    for (output, command) in outputs.iter().zip(commands) {
        assert_eq!(output.status, 0, "{:?}: {output:?}", command.words);
    }
    let outputs = &outputs[SETTINGS..];
    let read = |at: usize| -> Profile {
        serde_json::from_str(&outputs[at].stdout).expect("stdout is the document")
    };
    // Timer interrupts fall between emulated blocks, where no register holds an address, so that samples
    // cannot show the access that waited: only timed accesses show pages.
    for report in [1, 4] {
        let profile = read(report);
        assert!(profile.run.timed_accesses > 0, "{:?}", profile.missing);
        assert!(
            profile.missing.iter().any(|it| it.table == "samples"
                && it.why.reason.contains("interrupts are put off")),
            "{:?}",
            profile.missing
        );
    }
    for (ran, report) in [(0, 1)] {
        // The expected result, from the program: all pages on node 0, the second thread on node 1.
        let halves = halves(&outputs[ran]);
        assert!(halves.iter().all(|half| half.node1 == 0.0), "{halves:?}");
        let all = halves[0].iterations + halves[1].iterations;
        let truth = halves[0].iterations / all;
        let profile = read(report);
        let view = placement(&profile);
        let context = format!("{halves:?}\n{view:#?}");
        assert_eq!(view.nodes, 2, "{context}");
        let rows = arrays(view);
        assert!(!rows.is_empty(), "{context}");
        let remote: f64 = rows.iter().map(|row| row.remote_share).sum();
        assert!(remote >= 0.95, "{remote}: {context}");
        for row in &rows {
            assert_eq!(row.node, Some(0), "{context}");
            let [low, high] = row.local_interval.expect("it is a new document");
            // One 95 % interval in twenty misses the true value, but must not be far off.
            assert!(
                (low..=high).contains(&truth) || (row.local_fraction - truth).abs() <= 0.15,
                "{truth:.2}: {context}"
            );
            for part in ["lie on node 0", "on node 0 and 1", "each thread initialise"] {
                assert!(row.advice.contains(part), "`{part}`: {context}");
            }
        }
        // No thread on node 0 uses memory of node 1.
        assert!(view.matrix[0][1] <= 0.02, "{context}");
        let all: f64 = view.matrix.iter().flatten().sum();
        assert!((all - 1.0).abs() < 1e-9, "{context}");
        let line = view.lines.first().expect("there are lines");
        assert!(line.name.contains("two_nodes.c"), "{context}");
        // How much longer than other instructions an emulated access takes is chance, and with it whether
        // placement is worth a finding.
        let stalled = profile
            .objects
            .iter()
            .filter(|it| it.name.contains("two_nodes.c"));
        let most = stalled
            .map(|it| it.share.stall_fraction)
            .fold(0.0, f64::max);
        let findings = &profile.findings;
        let placed = findings.iter().any(|it| it.kind == InsightKind::Placement);
        assert_eq!(
            placed,
            most >= Thresholds::default().placement_stall,
            "{most}: {findings:?}"
        );
        let text = &outputs[2].stdout;
        assert_eq!(text.contains("another node"), placed, "{text}");
    }

    // All memory that is used is node 0's, and half of the threads are on node 1.
    let crossing = |profile: &Profile| -> f64 {
        let domains = profile.bandwidth.iter();
        let crossing = domains.filter(|it| it.domain.starts_with("interconnect"));
        crossing.map(|it| it.average_gb_s).sum()
    };
    let before = read(1);
    let of = |name: &str| {
        let domain = before.bandwidth.iter().find(|it| it.domain == name);
        let domain = domain.unwrap_or_else(|| panic!("{name}: {:?}", before.missing));
        domain.average_gb_s
    };
    let context = format!("{:?}\n{:?}", before.platform, before.missing);
    assert!(of("DRAM 0") > 20.0 * of("DRAM 1"), "{context}");
    // A triad reads three lines for each that it writes.
    let read_share = of("interconnect 0→1") / crossing(&before);
    assert!((0.6..0.9).contains(&read_share), "{read_share}: {context}");
    let after = crossing(&read(4));
    assert!(after < 0.1 * crossing(&before), "{after} GB/s: {context}");

    // Each thread wrote its own half first: everything is local and there is no advice.
    let halves = halves(&outputs[3]);
    assert!(
        halves[0].node1 == 0.0 && halves[1].node1 > 100.0 * halves[1].node0,
        "{halves:?}"
    );
    let profile = read(4);
    let view = placement(&profile);
    let context = format!("{halves:?}\n{view:#?}");
    let rows = arrays(view);
    assert!(!rows.is_empty(), "{context}");
    for row in rows {
        assert!(row.local_fraction >= 0.98, "{context}");
        assert_eq!(row.advice, "", "{context}");
    }
    assert!(
        !outputs[5].stdout.contains("another node"),
        "{}",
        outputs[5].stdout
    );
}
