//! `compare` from outside: files, directories, what cannot be used, and the exit code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Membound, number};

/// A small profile of a host; `memory` scales what memory costs.
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
    // A file beside the directory is held against the median.
    write(home, "mine.json", &profile("mine", 1.5));
    let mine = membound.run("compare fleet mine.json --format json").json();
    assert_eq!(mine["profiles"][0]["median_of"], 13);
    assert_eq!(mine["summaries"][0]["worse"], 4);
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
    fs::create_dir(home.join("empty")).unwrap();
    for (line, code, parts) in [
        ("compare a.json", 2, &["a.json alone"][..]),
        ("compare", 2, &["FILE|DIR"]),
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
