//! The command on machines with several nodes: what it detects, where it places its buffers, and how it
//! reports failures. Tests check placement, never time, with the kernel's own counters where there are any.

use membound_testkit::skipped;
use membound_types::{
    CpuId, Doctor, Document, Latency, Mlp, NodeId, NodePolicy, Numa, Outcome, Window,
};
use serde::de::DeserializeOwned;

use super::{Command, Machine, Output, run};

/// The document that a command wrote to stdout.
fn document<T: DeserializeOwned>(output: &Output) -> T {
    assert_eq!(output.status, 0, "{}", output.stderr);
    serde_json::from_str(&output.stdout).expect("stdout is the document")
}

/// One line on stderr that names all of `words`, nothing on stdout, exit code 1.
fn assert_one_line_error(output: &Output, words: &[&str]) {
    assert_eq!(output.status, 1, "{output:?}");
    assert_eq!(output.stdout, "");
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
}

/// `measure latency` of a chase over 16 MiB of base pages, on CPU 0.
fn chase_on(node: &str) -> Command {
    let words = ["measure", "latency", "--sizes", "16M", "--strides", "64"];
    let rest = [
        "--pattern",
        "random",
        "--page",
        "4k",
        "--cpu",
        "0",
        "--json",
        "-",
    ];
    Command::membound(&[&words[..], &rest[..], &["--node", node]].concat())
}

fn counters_of(node: u32) -> Command {
    Command::read(&format!("/sys/devices/system/node/node{node}/numastat"))
}

/// A counter of a node's `numastat`, in pages.
fn counter(output: &Output, name: &str) -> u64 {
    output
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .expect("numastat has the counter")
}

/// Pages of a buffer of 16 MiB, less the lag of the kernel's counters.
const MOST_OF_16_MIB: u64 = 4096 - 256;

#[test]
fn numa_places_and_verifies_on_every_node() {
    let commands = [
        Command::membound(&["doctor", "--json", "-"]),
        Command::membound(&["measure", "numa", "--quick", "--json", "-"]).within(240),
    ];
    let outputs = match run(Machine::TwoNodes, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let doctor: Doctor = document(&outputs[0]);
    let findings = doctor
        .findings
        .iter()
        .filter(|finding| finding.group.contains("node") || finding.key.contains("node"))
        .map(|finding| format!("{finding:?}"))
        .collect::<Vec<_>>()
        .join("\n");
    assert!(findings.contains("21"), "no distances in {findings}");

    let numa: Document<Numa> = document(&outputs[1]);
    assert!(!numa.incomplete);
    assert_eq!(numa.part.nodes, [NodeId(0), NodeId(1)]);
    let pairs: Vec<_> = numa
        .part
        .pairs
        .iter()
        .map(|pair| (pair.cpu_node.0, pair.memory_node.0, pair.distance))
        .collect();
    assert_eq!(
        pairs,
        [
            (0, 0, Some(10)),
            (0, 1, Some(21)),
            (1, 0, Some(21)),
            (1, 1, Some(10))
        ]
    );
    for pair in &numa.part.pairs {
        assert_eq!(pair.placed_share, Outcome::Known(1.0), "{pair:?}");
        assert!(
            pair.latency_ns.known().is_some_and(|ns| *ns > 0.0),
            "{pair:?}"
        );
        assert!(
            pair.read_gb_s.known().is_some_and(|rate| *rate > 0.0),
            "{pair:?}"
        );
    }
}

#[test]
fn latency_lies_on_the_node_that_was_asked_for() {
    let commands = [
        counters_of(1),
        chase_on("1"),
        counters_of(1),
        counters_of(0),
        chase_on("interleave"),
        counters_of(0),
        counters_of(1),
        chase_on("7"),
    ];
    let outputs = match run(Machine::TwoNodes, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let far: Document<Latency> = document(&outputs[1]);
    assert_eq!(far.part.points.len(), 1);
    assert_eq!(far.part.points[0].node, NodePolicy::Node(NodeId(1)));
    // Pages that node 1 gave to a process on a CPU of another node.
    let given = counter(&outputs[2], "other_node") - counter(&outputs[0], "other_node");
    assert!(given >= MOST_OF_16_MIB, "{given} pages from node 1");

    let spread: Document<Latency> = document(&outputs[4]);
    assert_eq!(spread.part.points[0].node, NodePolicy::INTERLEAVE);
    for (before, after) in [(3, 5), (2, 6)] {
        let (before, after) = (&outputs[before], &outputs[after]);
        let given = counter(after, "interleave_hit") - counter(before, "interleave_hit");
        assert!(given >= MOST_OF_16_MIB / 2, "{given} pages interleaved");
    }

    assert_one_line_error(&outputs[7], &["7"]);
}

#[test]
fn a_node_without_memory_and_a_cpu_that_is_off_are_named() {
    let commands = [
        Command::membound(&["measure", "numa", "--quick", "--json", "-"]).within(240),
        chase_on("2"),
        Command::write("/sys/devices/system/cpu/cpu1/online", "0"),
        Command::membound(&["measure", "latency", "--sizes", "16K", "--cpu", "1"]),
        Command::membound(&["doctor", "--json", "-"]),
    ];
    let outputs = match run(Machine::MemorylessThird, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let numa: Document<Numa> = document(&outputs[0]);
    for pair in &numa.part.pairs {
        let known = pair.placed_share.known().copied();
        if pair.memory_node == NodeId(2) {
            assert_eq!(known, None, "{pair:?}");
            let why = &pair.placed_share.why_missing().unwrap().reason;
            assert!(why.contains("no memory"), "{why}");
        } else {
            assert_eq!(known, Some(1.0), "{pair:?}");
        }
    }
    // The CPUs of the third node are measured against the memory of the others.
    assert!(
        numa.part
            .pairs
            .iter()
            .any(|pair| pair.cpu_node == NodeId(2))
    );

    assert_one_line_error(&outputs[1], &["2", "memory"]);
    assert_eq!(outputs[2].status, 0, "{}", outputs[2].stderr);
    assert_one_line_error(&outputs[3], &["1", "offline"]);
    let doctor: Doctor = document(&outputs[4]);
    let online: Vec<u32> = doctor.machine.cpu.online.iter().map(|cpu| cpu.0).collect();
    assert_eq!(online, [0, 2, 3]);
}

#[test]
fn windows_are_initialised_on_one_node_and_accessed_from_another() {
    let line = "measure window --quick --windows 1K --areas 16M --window-kernel scalar --page 4k \
                --cpu 0 --init-node 1 --json -";
    let words: Vec<&str> = line.split_whitespace().collect();
    let commands = [
        counters_of(1),
        Command::membound(&words).within(240),
        counters_of(1),
    ];
    let outputs = match run(Machine::TwoNodes, &commands) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let windows: Document<Window> = document(&outputs[1]);
    assert_eq!(windows.part.points.len(), 1);
    let point = &windows.part.points[0];
    assert_eq!((point.cpu, point.init_cpu), (CpuId(0), Some(CpuId(2))));
    // First touch: the pages come from the node of the CPU that initialised.
    let given = counter(&outputs[2], "local_node") - counter(&outputs[0], "local_node");
    assert!(given >= MOST_OF_16_MIB, "{given} pages from node 1");
}

#[test]
fn loads_in_flight_are_counted_under_every_node_policy() {
    let line = "measure mlp --quick --loads 1,2 --fillers 0 --areas 16M --page 4k --cpu 0 \
                --node local,1,interleave --json -";
    let words: Vec<&str> = line.split_whitespace().collect();
    let outputs = match run(Machine::TwoNodes, &[Command::membound(&words).within(600)]) {
        Ok(outputs) => outputs,
        Err(reason) => return skipped(reason),
    };
    let mlp: Document<Mlp> = document(&outputs[0]);
    let nodes: Vec<NodePolicy> = std::iter::once(&mlp.part)
        .chain(&mlp.part.others)
        .map(|part| part.node)
        .collect();
    assert_eq!(
        nodes,
        [
            NodePolicy::LOCAL,
            NodePolicy::Node(NodeId(1)),
            NodePolicy::INTERLEAVE
        ]
    );
    let why = mlp
        .part
        .rob_size
        .why_missing()
        .expect("nothing is reordered");
    assert!(why.reason.contains("emulated"), "{why:?}");
    let refused = |note: &String| note.contains("pages on node");
    assert!(
        !mlp.part.skipped.iter().any(refused),
        "{:?}",
        mlp.part.skipped
    );
}
