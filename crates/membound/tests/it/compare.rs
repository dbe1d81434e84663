//! `compare` from outside: files, directories, unusable files, and the exit code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Membound, number};

/// A small profile of a host; `memory` scales the latency of memory.
fn profile(host: &str, memory: f64) -> Value {
    let level = |name: &str, kind: &str, size: Option<u64>, ns: f64| {
        json!({
            "name": name, "kind": kind, "size_bytes": size,
            "size_low_bytes": size.map(|it| it - it / 50),
            "size_high_bytes": size.map(|it| it + it / 50),
            "latency_ns": ns, "latency_low_ns": ns * 0.99, "latency_high_ns": ns * 1.01,
            "latency_cycles": ns * 4.0, "line_bytes": 64, "line_basis": "declared",
            "declared_bytes": size,
        })
    };
    let gb_s = 40.0 / memory;
    json!({
        "schema_version": 1, "kind": "machine", "host": host, "date": "2026-01-01T00:00:00Z",
        "cpu": {
            "architecture": "x86_64", "vendor": "GenuineIntel", "model_name": "Test",
            "online": [0], "allowed": [0], "smt_siblings": [],
        },
        "levels": [
            level("L1", "cache", Some(32 << 10), 1.2),
            level("L2", "cache", Some(1 << 20), 4.0),
            level("DRAM", "memory", None, 90.0 * memory),
        ],
        "bandwidth": { "points": [{
            "kernel": "read", "vector": "256", "size_bytes": 1 << 28, "level": "DRAM",
            "threads": 1, "page": "thp", "node": "local", "gb_s": gb_s, "gb_s_low": gb_s * 0.99,
            "gb_s_high": gb_s * 1.01, "gb_s_with_allocate": gb_s,
            "batches": { "raw": [gb_s, gb_s], "stopped": "converged", "disturbed": {} },
        }]},
        "mlp": { "not_measured": { "reason": "not asked for" } },
    })
}

fn write(place: &Path, name: &str, document: &Value) {
    fs::write(place.join(name), document.to_string()).expect("there is room for a file");
}

#[test]
fn two_profiles_are_shown_as_text_json_and_a_page() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &profile("a", 1.0));
    write(home, "b.json", &profile("b", 1.5));
    let found = membound.run("compare a.json b.json --html page.html");
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
    assert!(found.stdout.contains("DRAM latency"), "{}", found.stdout);
    assert!(found.stdout.contains("+50 %"), "{}", found.stdout);
    assert!(found.stdout.lines().all(|line| line.chars().count() <= 80));
    let page = fs::read_to_string(home.join("page.html")).unwrap();
    assert!(page.contains("DRAM latency") && page.ends_with("</html>"));
    let document = membound.run("compare a.json b.json --format json").json();
    assert_eq!(document["kind"], "comparison");
    assert_eq!(document["schema_version"], 1);
    let figures = document["figures"].as_array().unwrap();
    let of = |name: &str| figures.iter().find(|it| it["name"] == name).unwrap();
    let memory = &of("levels.DRAM.latency_ns")["differences"][1];
    assert!((number(&memory["relative"]) - 0.5).abs() < 1e-9);
    assert_eq!(memory["verdict"], "different");
    assert_eq!(
        of("levels.L1.latency_ns")["differences"][1]["verdict"],
        "same"
    );
    let written = membound.run("compare a.json b.json --json -");
    assert_eq!(written.json(), document);
}

#[test]
fn saved_output_of_other_tools_is_compared() {
    let membound = Membound::new();
    let home = membound.home.path();
    let mut own = profile("a", 1.0);
    let point = |mix: [u32; 2], gb_s: f64, ns: f64| {
        json!({
            "mix": { "reads": mix[0], "writes": mix[1] }, "injectors": 1, "delay_steps": 0,
            "gb_s": gb_s, "ns": ns, "ns_low": ns * 0.99, "ns_high": ns * 1.01, "cycles": ns * 4.0,
            "batches": { "raw": [ns, ns], "stopped": "converged", "disturbed": {} },
        })
    };
    own["loaded"] = json!({ "points": [
        point([1, 0], 0.5, 90.0), point([1, 0], 60.0, 200.0), point([0, 1], 30.0, 250.0),
    ]});
    write(home, "own.json", &own);
    // Stores alone move twice the bytes that membound counts.
    let mlc = "mlc --loaded_latency\nInject Latency Bandwidth\nDelay (ns) MB/sec\n=====\n\
               00000 400.0 60000.0\n00100 150.0 40000.0\n00500 100.0 9000.0\n20000 90.0 500.0\n\
               mlc --loaded_latency -W5\nInject Latency Bandwidth\nDelay (ns) MB/sec\n=====\n\
               00000 250.0 60000.0\n20000 91.0 400.0\n";
    fs::write(home.join("mlc.txt"), mlc).unwrap();
    let document = membound
        .run("compare own.json mlc.txt --format json")
        .json();
    let figures = document["figures"].as_array().unwrap();
    let relative = |name: &str| {
        let figure = figures.iter().find(|it| it["name"] == name).unwrap();
        number(&figure["differences"][1]["relative"])
    };
    assert!((relative("loaded.1:0.full_ns") - 1.0).abs() < 1e-9);
    assert!(relative("loaded.1:0.max_gb_s").abs() < 1e-9);
    assert!(relative("loaded.0:1.max_gb_s").abs() < 1e-9);
    let overlays = document["overlays"].as_array().unwrap();
    let loaded = overlays.iter().find(|it| it["name"] == "loaded").unwrap();
    let labels: Vec<&str> = loaded["curves"]
        .as_array()
        .unwrap()
        .iter()
        .map(|curve| curve["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["own: 1:0", "own: 0:1", "mlc: 1:0", "mlc: 0:1"]);
    let alone = membound.run("compare mlc.txt");
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert!(
        alone.stdout.contains("latency beside traffic"),
        "{}",
        alone.stdout
    );
    fs::write(
        home.join("lmbench.txt"),
        "\"stride=64\n0.01562 1.0\n1.00000 3.0\n64.00000 90.0\n",
    )
    .unwrap();
    let sizes = membound
        .run("compare mlc.txt lmbench.txt --format json")
        .json();
    assert_eq!(sizes["figures"].as_array().unwrap().len(), 6);
    fs::write(home.join("cut.txt"), &mlc[..mlc.len() - 6]).unwrap();
    let cut = membound.run("compare own.json cut.txt");
    assert_eq!(cut.code, Some(1));
    assert!(cut.stderr.contains("cut.txt: line 14: "), "{}", cut.stderr);
    let fitted = membound.run("model fit mlc.txt");
    assert!(
        fitted.stderr.contains("no model is fitted to"),
        "{}",
        fitted.stderr
    );
}

#[test]
fn the_exit_code_guards() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &profile("a", 1.0));
    write(home, "b.json", &profile("b", 1.5));
    let failed = membound.run("compare a.json b.json --fail-on 10%");
    assert_eq!(failed.code, Some(1));
    assert_eq!(failed.stderr.lines().count(), 1, "{}", failed.stderr);
    assert!(
        failed.stderr.contains("levels.DRAM.latency_ns +50.0 %"),
        "{}",
        failed.stderr
    );
    for allowed in [
        "compare a.json b.json --fail-on 60",
        "compare b.json a.json --fail-on 10%",
        "compare a.json a.json --fail-on 0",
    ] {
        let passed = membound.run(allowed);
        assert_eq!(
            (passed.code, passed.stderr.as_str()),
            (Some(0), ""),
            "{allowed}"
        );
    }
}

#[test]
fn a_directory_names_the_bad_host_and_skips_what_is_no_profile() {
    let membound = Membound::new();
    let home = membound.home.path();
    let fleet = home.join("fleet");
    fs::create_dir(&fleet).unwrap();
    for number in 0..12 {
        let host = format!("node{number:02}");
        let memory = 1.0 + 0.002 * f64::from(number % 5);
        write(&fleet, &format!("{host}.json"), &profile(&host, memory));
    }
    write(&fleet, "bad.json", &profile("bad", 1.8));
    fs::write(fleet.join("broken.json"), "{\"schema_version\": 1, ").unwrap();
    fs::write(fleet.join("notes.txt"), "not looked at").unwrap();
    let found = membound.run("compare fleet --json fleet-out.json");
    assert_eq!(found.code, Some(0));
    assert_eq!(found.stderr.lines().count(), 1, "{}", found.stderr);
    assert!(found.stderr.contains("broken.json") && found.stderr.contains("line 1"));
    assert!(
        found.stdout.contains("bad.json") && found.stdout.contains("DIMM"),
        "{}",
        found.stdout
    );
    let text = fs::read_to_string(home.join("fleet-out.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let group = &document["fleets"][0];
    assert_eq!(group["profiles"], 13);
    assert_eq!(group["odd"].as_array().unwrap().len(), 1);
    assert_eq!(document["skipped"].as_array().unwrap().len(), 1);
    let failed = membound.run("compare fleet --fail-on 20%");
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("bad.json"), "{}", failed.stderr);
    // A file in addition to the directory is compared with the median.
    write(home, "mine.json", &profile("mine", 1.5));
    let mine = membound.run("compare fleet mine.json --format json").json();
    assert_eq!(mine["profiles"][0]["median_of"], 13);
    assert_eq!(mine["summaries"][0]["worse"], 4);
}

/// Conditions of a run with labels only.
fn conditions(labels: &Value) -> Value {
    let unknown = json!({ "not_measured": { "reason": "not looked at" } });
    json!({
        "thp": unknown, "governor": unknown, "turbo": unknown, "hypervisor": null,
        "prefetchers": unknown, "kernel": "6.1", "labels": labels,
    })
}

/// The same profile with this run's labels and times of a few loads.
fn labelled(host_thp: &str, guest_thp: &str, load: f64) -> Value {
    let mut document = profile("vm", 1.0);
    document["conditions"] = conditions(&json!({ "host-thp": host_thp, "guest-thp": guest_thp }));
    let cell = |mode: &str, loads: u32, cycles: f64| {
        json!({
            "mode": mode, "loads": loads, "fillers": 1, "filler": "nop",
            "area_bytes": 1 << 28, "node": "local", "page": "thp", "cycles": cycles,
            "spread": 2.0, "misses": { "not_measured": { "reason": "no counters" } },
        })
    };
    document["mlp"] = json!({
        "cells": [
            cell("sequential", 1, load),
            cell("sequential", 2, 2.1 * load),
            cell("parallel", 2, 1.1 * load),
            cell("parallel", 10, 1.7 * load),
            cell("parallel", 11, 2.1 * load),
        ],
        "page": "thp", "node": "local",
    });
    document
}

#[test]
fn labels_of_conditions_name_columns_and_rows() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &labelled("on", "on", 200.0));
    write(home, "b.json", &labelled("on", "off", 350.0));
    let found = membound.run("compare a.json b.json --html page.html");
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
    let header = found.stdout.lines().find(|line| line.contains("change"));
    let header = header.expect("one load differs");
    assert!(
        header.contains("H0G0") && header.contains("H0G1"),
        "{header}"
    );
    for row in ["A  H0G0, thp pages   10", "B  H0G1, thp pages   10"] {
        assert!(found.stdout.contains(row), "{}", found.stdout);
    }
    let page = fs::read_to_string(home.join("page.html")).unwrap();
    assert!(page.contains(">H0G0</th>") && page.contains(">H0G1</th>"));
    let document = membound.run("compare a.json b.json --format json").json();
    assert_eq!(document["profiles"][1]["name"], "H0G1");
    assert_eq!(document["profiles"][1]["labels"]["guest-thp"], "off");
    assert_eq!(document["conditions"][1]["condition"], "H0G1, thp pages");
    let overhead = &document["conditions"][1]["overhead_cycles"]["value"];
    assert!((number(overhead) - 150.0).abs() < 1e-9);
    // Labels that the comparison does not know are shown unchanged.
    let mut numa = [profile("vm", 1.0), profile("vm", 1.5)];
    for (document, value) in numa.iter_mut().zip(["on", "off"]) {
        document["conditions"] = conditions(&json!({ "numa": value, "rack": "7" }));
    }
    write(home, "a.json", &numa[0]);
    write(home, "b.json", &numa[1]);
    let found = membound.run("compare a.json b.json");
    assert!(
        found.stdout.contains("numa=off against numa=on"),
        "{}",
        found.stdout
    );
}

#[test]
fn the_same_file_twice_and_other_processors_are_compared_with_a_note() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &profile("a", 1.0));
    let mut other = profile("b", 1.0);
    other["cpu"]["model_name"] = json!("Another");
    write(home, "b.json", &other);
    let twice = membound.run("compare a.json a.json --fail-on 0");
    assert_eq!((twice.code, twice.stderr.as_str()), (Some(0), ""));
    assert!(
        twice.stdout.contains("a (2) against a (1)"),
        "{}",
        twice.stdout
    );
    let processors = membound.run("compare a.json b.json");
    assert_eq!(processors.code, Some(0));
    assert!(
        processors
            .stdout
            .contains("! b is another processor than a"),
        "{}",
        processors.stdout
    );
}

#[test]
fn missing_parts_are_named_and_a_guard_of_nothing_fails() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &profile("a", 1.0));
    let mut partial = profile("b", 1.0);
    partial["incomplete"] = json!(true);
    partial["bandwidth"] = json!({ "not_measured": { "reason": "interrupted" } });
    write(home, "b.json", &partial);
    let found = membound.run("compare a.json b.json --fail-on 5");
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
    for note in ["! b has no bandwidth, which a has", "! b is incomplete"] {
        assert!(found.stdout.contains(note), "{}", found.stdout);
    }
    let mut nothing = partial;
    nothing["levels"] = json!([]);
    write(home, "b.json", &nothing);
    assert_eq!(membound.run("compare a.json b.json").code, Some(0));
    let failed = membound.run("compare a.json b.json --fail-on 5");
    assert_eq!(failed.code, Some(1));
    assert_eq!(failed.stderr.lines().count(), 1, "{}", failed.stderr);
    assert!(
        failed.stderr.contains("no figure in common"),
        "{}",
        failed.stderr
    );
}

#[test]
fn what_cannot_be_compared_is_one_line() {
    let membound = Membound::new();
    let home = membound.home.path();
    write(home, "a.json", &profile("a", 1.0));
    fs::write(home.join("cut.json"), &profile("a", 1.0).to_string()[..200]).unwrap();
    write(
        home,
        "new.json",
        &json!({ "schema_version": 7, "kind": "machine" }),
    );
    write(
        home,
        "doctor.json",
        &json!({ "schema_version": 1, "kind": "doctor" }),
    );
    let mut negative = profile("a", 1.0);
    negative["levels"][1]["latency_ns"] = json!(-4.0);
    write(home, "negative.json", &negative);
    let mut wrong = profile("a", 1.0);
    wrong["mlp"] = json!(5);
    write(home, "wrong.json", &wrong);
    fs::write(home.join("text.json"), "size,ns\n1,2\n").unwrap();
    fs::create_dir(home.join("empty")).unwrap();
    fs::create_dir(home.join("notes")).unwrap();
    fs::write(home.join("notes/a.txt"), "no profile").unwrap();
    fs::create_dir(home.join("broken")).unwrap();
    fs::write(home.join("broken/cut.json"), "{\"schema_version\": 1, ").unwrap();
    // Whether a run is complete is checked only after the other files.
    fs::write(home.join("some.run"), b"SQLite format 3\0").unwrap();
    for (line, code, parts) in [
        ("compare a.json", 2, &["a.json alone"][..]),
        (
            "compare none.run some.run",
            1,
            &["cannot read none.run", "No such file"],
        ),
        ("compare a.json some.run", 1, &["a.json is not a run"]),
        ("compare none", 1, &["none", "cannot be read"]),
        ("compare", 2, &["FILE|DIR"]),
        ("compare a.json a.json --fail-on x", 2, &["`x`", "5%"]),
        ("compare a.json a.json --fail-on -1", 2, &["`-1`"]),
        ("compare a.json a.json --fail-on nan", 2, &["`nan`"]),
        ("compare a.json a.json --fail-on inf", 2, &["`inf`"]),
        ("compare a.json a.json --fail-on 5%%", 2, &["`5%%`"]),
        (
            "compare a.json negative.json",
            1,
            &["negative.json", "levels[1].latency_ns is -4"],
        ),
        (
            "compare wrong.json a.json",
            1,
            &["wrong.json", "expected an object", "line 1 column"],
        ),
        (
            "compare a.json text.json",
            1,
            &["text.json", "unknown column `size`", "line 1"],
        ),
        ("compare notes", 1, &["no profile in notes", ".json"]),
        (
            "compare broken",
            1,
            &["no profile in broken", "broken/cut.json", "line 1"],
        ),
        ("compare a.json a.json --fail-on much", 2, &["`much`"]),
        (
            "compare a.json none.json",
            1,
            &["none.json", "cannot be read"],
        ),
        (
            "compare a.json cut.json",
            1,
            &["cut.json", "ends in the middle", "column"],
        ),
        (
            "compare a.json new.json",
            1,
            &["new.json", "schema version 7"],
        ),
        (
            "compare a.json doctor.json",
            1,
            &["doctor.json", "no figures"],
        ),
        ("compare empty", 1, &["no profile in empty"]),
        (
            "compare a.json a.json --json none/out.json",
            1,
            &["none/out.json"],
        ),
    ] {
        membound.run(line).complains(code, parts);
    }
}
