//! `measure mlp` as other programs read it.
#![cfg(target_arch = "x86_64")]

use crate::command::{Membound, number};

#[test]
fn the_document_has_the_fields_of_the_contract() {
    let json = Membound::new()
        .run_alone("measure mlp --quick --loads 1,2,4 --areas 256M --page 4k --json -")
        .json();
    assert_eq!(json["kind"], "mlp");
    assert_eq!(json["fence"], "lfence");
    assert_eq!(json["page"], "4k");
    let cells = json["cells"].as_array().unwrap();
    for mode in ["parallel", "sequential"] {
        assert!(
            cells.iter().any(|cell| cell["mode"] == mode),
            "no {mode} cell"
        );
    }
    for cell in cells {
        assert!(number(&cell["cycles"]) > 0.0, "{cell}");
        assert!(number(&cell["spread"]) >= 0.0);
        assert_eq!(cell["area_bytes"], 256 << 20);
    }
    assert!(number(&json["sequential_pair_cycles"]) > 0.0);
    assert!(number(&json["mlp_throughput"]) >= 1.0);
    // `cargo xtask bench windows` checks whether it is the published value.
    let entries = &json["rob_size"];
    let reason = entries["not_measured"]["reason"].as_str();
    assert!(
        entries.as_f64().is_some_and(|entries| entries > 0.0) || reason.is_some(),
        "{entries}"
    );
    for window in json["windows"].as_array().unwrap() {
        assert_ne!(window["limited_by"], "", "{window}");
        assert!(number(&window["entries"]["value"]) > 0.0, "{window}");
    }
    assert!(json["reorder_evidence"]["agreeing"].is_array(), "{json}");
}

#[test]
fn every_area_has_hits_that_sum_to_its_loads_or_a_reason() {
    let json = Membound::new()
        .run("measure mlp --quick --loads 1,2 --fillers 0 --areas 256M --page 4k --json -")
        .json();
    for point in json["areas"].as_array().unwrap() {
        let Some(hits) = point["hits"].as_array() else {
            let reason = point["hits"]["not_measured"]["reason"].as_str();
            assert!(reason.is_some_and(|it| !it.is_empty()), "{point}");
            continue;
        };
        let sum: f64 = hits
            .iter()
            .map(|level| number(&level["hits"]["value"]))
            .sum();
        assert!((sum - number(&point["loads"])).abs() < 0.01, "{point}");
    }
}

#[test]
fn a_filler_that_does_not_exist_is_refused_in_one_line() {
    let finished = Membound::new().run("measure mlp --filler nops");
    assert_eq!(finished.code, Some(2));
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
}

#[test]
fn t_seq_grows_by_about_one_load_a_step() {
    let json = Membound::new()
        .run("measure mlp --quick --loads 1,2 --fillers 0 --areas 256M --page 4k --json -")
        .json();
    let sequential: Vec<f64> = json["cells"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cell| cell["mode"] == "sequential")
        .map(|cell| number(&cell["cycles"]))
        .collect();
    assert_eq!(sequential.len(), 12);
    let per_load = (sequential[11] - sequential[1]) / 10.0;
    let ratio = sequential[11] / per_load;
    assert!(
        (9.0..16.0).contains(&ratio),
        "12 loads take as long as {ratio:.1} steps"
    );
}
