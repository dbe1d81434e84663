//! `membound lat_mem_rd`, called and read as by scripts for lmbench's program.

use crate::command::Membound;

/// Blocks of the output: strides, each with its (MiB, ns).
fn blocks(stdout: &str) -> Vec<(u64, Vec<(f64, f64)>)> {
    let mut blocks: Vec<(u64, Vec<(f64, f64)>)> = Vec::new();
    for line in stdout.lines().filter(|line| !line.is_empty()) {
        if let Some(stride) = line.strip_prefix("\"stride=") {
            blocks.push((stride.parse().expect("a stride is a number"), Vec::new()));
            continue;
        }
        let (size, ns) = line.split_once(' ').expect("a line has two columns");
        // Five decimals for the size, and three for the time.
        let digits = |number: &str| number.split_once('.').map(|(_, digits)| digits.len());
        assert_eq!((digits(size), digits(ns)), (Some(5), Some(3)), "{line}");
        let number = |text: &str| text.parse().expect("a column is a number");
        let (_, points) = blocks.last_mut().expect("a stride stands first");
        points.push((number(size), number(ns)));
    }
    blocks
}

#[test]
fn strides_come_in_the_order_that_was_asked_for_with_the_originals_sizes() {
    let finished = Membound::new().run("lat_mem_rd -W 1000 -N 2 1 256 64");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // Scripts say `> file 2>&1`.
    assert_eq!(finished.stderr, "");
    assert!(finished.stdout.ends_with("\n\n"), "{}", finished.stdout);
    let blocks = blocks(&finished.stdout);
    let strides: Vec<u64> = blocks.iter().map(|block| block.0).collect();
    assert_eq!(strides, [256, 64]);
    for (_, points) in &blocks {
        // 512 bytes, 1 to 3 KiB, and four an octave from 4 KiB to 1 MiB.
        assert_eq!(points.len(), 1 + 3 + 4 * 8 + 1, "{points:?}");
        assert_eq!(points[0].0, 0.00049);
        assert_eq!(points.last().unwrap().0, 1.0);
        assert!(points.iter().all(|point| point.1 >= 0.0));
    }
}

#[test]
fn copies_and_random_order_are_understood() {
    let allowed = membound_platform::affinity::allowed().unwrap();
    if allowed.len() < 2 {
        membound_testkit::skipped("there is one CPU: no second copy can be pinned");
        return;
    }
    let finished = Membound::new().run("lat_mem_rd -P 2 -N 2 -t 1");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // Without strides there is one block of 64, and no empty line behind it.
    assert!(!finished.stdout.ends_with("\n\n"), "{}", finished.stdout);
    let blocks = blocks(&finished.stdout);
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].0, 64);
}

#[test]
fn membound_reads_its_own_output() {
    let membound = Membound::new();
    let finished = membound.run("lat_mem_rd -N 2 16 128");
    std::fs::write(membound.home.path().join("saved.txt"), &finished.stdout).unwrap();
    let json = membound.run("model fit saved.txt --json -").json();
    assert_eq!(json["method"]["data"], "latency");
}

#[test]
fn what_makes_no_sense_is_one_line() {
    let membound = Membound::new();
    for (code, line, part) in [
        (2, "lat_mem_rd", "SIZE_MB"),
        (2, "lat_mem_rd 0 64", "0"),
        (2, "lat_mem_rd many 64", "many"),
        (2, "lat_mem_rd 1 4", "4 bytes"),
        (2, "lat_mem_rd 1 64 x", "x"),
        (2, "lat_mem_rd -P 0 1", "0"),
        (2, "lat_mem_rd -N 0 1", "0"),
        (1, "lat_mem_rd -P 100000 1", "100000 copies"),
        (1, "lat_mem_rd --cpu 100000 1", "cpu 100000 does not exist"),
        (1, "lat_mem_rd 16000000 64", "are available"),
    ] {
        membound.run(line).complains(code, &[part]);
    }
}
