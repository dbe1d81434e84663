//! `measure latency` as other programs read it.

use crate::command::{Membound, number};

#[test]
fn the_document_has_the_fields_of_the_contract() {
    let json = Membound::new()
        .run(
            "measure latency --quick --sizes 8K,16M --strides 64 --page 4k --cond a=b \
             --pattern random,stride,page-random,indexed --access clean,dirty --json -",
        )
        .json();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["kind"], "latency");
    assert_eq!(json["incomplete"], false);
    assert_eq!(json["machine"]["conditions"]["labels"]["a"], "b");
    let points = json["points"].as_array().unwrap();
    assert_eq!(points.len(), 2 * 4 * 2);
    for point in points {
        let (low, ns, high) = (
            number(&point["ns_low"]),
            number(&point["ns"]),
            number(&point["ns_high"]),
        );
        assert!(0.0 < low && low <= ns && ns <= high, "{point}");
        assert!(number(&point["samples"]) >= 5.0);
        assert_eq!(
            point["batches"]["raw"].as_array().unwrap().len() as f64,
            number(&point["samples"])
        );
        assert!(number(&point["cycles"]) > 0.0);
        assert_eq!(point["stride_bytes"], 64);
        assert_eq!(point["page"], "4k");
        assert_eq!(point["node"], "local");
        assert_eq!(point["threads"], 1);
        assert_eq!(point["prefetch"], "default");
        assert!(point["cpu"].is_u64());
    }
}

#[test]
fn more_memory_is_never_much_faster() {
    let json = Membound::new()
        .run("measure latency --quick --sizes 8K,64M --page 4k --json -")
        .json();
    let ns: Vec<f64> = json["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| number(&point["ns"]))
        .collect();
    // A first-level hit takes a handful of cycles; 64 MiB in a random order do not fit one.
    assert!(ns[1] > 2.0 * ns[0], "{ns:?}");
}

#[test]
fn lat_mem_rd_scripts_can_read_its_format() {
    let finished = Membound::new().run(
        "measure latency --quick --sizes 1K,8K,64K,1M --strides 64,128 --page 4k \
         --format lat_mem_rd",
    );
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("cycle"),
        "the convention is said: {}",
        finished.stderr
    );
    let blocks: Vec<&str> = finished.stdout.trim_end().split("\n\n").collect();
    assert_eq!(blocks.len(), 2, "{}", finished.stdout);
    for (block, stride) in blocks.iter().zip(["64", "128"]) {
        let mut lines = block.lines();
        assert_eq!(lines.next(), Some(format!("\"stride={stride}").as_str()));
        let sizes: Vec<f64> = lines
            .map(|line| {
                let columns: Vec<f64> = line
                    .split_whitespace()
                    .map(|column| column.parse().unwrap())
                    .collect();
                assert_eq!(columns.len(), 2, "{line}");
                assert!(columns[1] >= 0.0);
                columns[0]
            })
            .collect();
        assert_eq!(sizes, [0.00098, 0.00781, 0.0625, 1.0]);
    }
}

#[test]
fn several_copies_run_at_once_where_there_are_cpus() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        membound_testkit::skipped("one CPU");
        return;
    }
    let json = Membound::new()
        .run("measure latency --quick --sizes 16K --page 4k --threads 1,2 --json -")
        .json();
    let points = json["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(points[1]["threads"], 2);
    // Batches of both copies are there.
    assert!(number(&points[1]["samples"]) >= 10.0);
}

#[test]
fn csv_has_a_row_a_point() {
    let finished =
        Membound::new().run("measure latency --quick --sizes 8K,16K --page 4k --format csv");
    assert_eq!(finished.code, Some(0));
    let mut lines = finished.stdout.lines();
    assert!(lines.next().unwrap().starts_with("size_bytes,ns"));
    assert_eq!(lines.count(), 2);
}
