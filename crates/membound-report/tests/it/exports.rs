//! Formats for other programs: lat_mem_rd's output and CSV.

use membound_report::{csv, lat_mem_rd};
use membound_types::{Access, Latency, PageKind, Pattern, Timer};

use crate::fixture::{self, CLOCK_HZ, Extent};

fn timer() -> Timer {
    fixture::machine().timer
}

/// The part with only the points for which `keep` is true.
fn narrowed(keep: impl Fn(&membound_types::LatencyPoint) -> bool) -> Latency {
    let profile = fixture::profile(Extent::Quick);
    let mut latency = profile.latency.known().expect("it is there").clone();
    latency.points.retain(keep);
    latency
}

fn strided() -> Latency {
    narrowed(|p| p.pattern == Pattern::Stride && p.page == PageKind::Thp && p.threads == 1)
}

/// Reads the output like scripts written for lat_mem_rd.
fn read_back(output: &str) -> Vec<(u64, Vec<(f64, f64)>)> {
    let mut blocks = Vec::new();
    for block in output.split_terminator("\n\n") {
        let mut lines = block.lines();
        let head = lines.next().expect("a block has a head");
        let stride = head
            .strip_prefix("\"stride=")
            .expect("the head names the stride");
        let rows = lines
            .map(|line| {
                let (size, ns) = line.split_once(' ').expect("two columns");
                assert_eq!(
                    size.split_once('.').map(|(_, d)| d.len()),
                    Some(5),
                    "{line}"
                );
                assert_eq!(ns.split_once('.').map(|(_, d)| d.len()), Some(3), "{line}");
                (
                    size.parse().expect("a size"),
                    ns.parse().expect("a latency"),
                )
            })
            .collect();
        blocks.push((stride.parse().expect("a number"), rows));
    }
    blocks
}

#[test]
fn lat_mem_rd_output_reads_back_with_one_cycle_less() {
    let latency = strided();
    let output = lat_mem_rd::render(&latency, &timer()).expect("one combination");
    assert!(output.ends_with("\n\n"), "an empty line after each stride");
    let blocks = read_back(&output);
    let strides: Vec<u64> = blocks.iter().map(|block| block.0).collect();
    assert_eq!(strides, [16, 32, 64, 128, 256, 1024]);
    let rows: usize = blocks.iter().map(|block| block.1.len()).sum();
    assert_eq!(rows, latency.points.len());
    let cycle_ns = 1e9 / CLOCK_HZ;
    for (stride, rows) in blocks {
        assert!(
            rows.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "sizes rise"
        );
        for (size_mib, ns) in rows {
            let point = latency
                .points
                .iter()
                .filter(|p| p.stride_bytes == stride)
                .min_by(|a, b| {
                    let far = |p: &membound_types::LatencyPoint| {
                        (p.size_bytes as f64 / 1_048_576.0 - size_mib).abs()
                    };
                    far(a).total_cmp(&far(b))
                })
                .expect("there are points");
            assert!(
                (point.ns - cycle_ns - ns).abs() < 0.0006,
                "{size_mib}: {ns}"
            );
        }
    }
}

#[test]
fn latency_never_goes_below_zero() {
    let mut latency = strided();
    latency.points.truncate(1);
    latency.points[0].ns = 0.1;
    latency.points[0].size_bytes = 512;
    let output = lat_mem_rd::render(&latency, &timer()).expect("one combination");
    assert_eq!(
        output,
        format!(
            "\"stride={}\n0.00049 0.000\n\n",
            latency.points[0].stride_bytes
        )
    );
}

#[test]
fn more_than_one_combination_names_what_to_narrow() {
    let several = |keep: &dyn Fn(&membound_types::LatencyPoint) -> bool| {
        let error = lat_mem_rd::render(&narrowed(keep), &timer()).expect_err("several");
        error.to_string()
    };
    assert_eq!(
        several(&|p| p.page == PageKind::Thp && p.threads == 1),
        "lat_mem_rd output holds one pattern, but these points have indexed, page-random, \
         random, stride; narrow with --pattern"
    );
    assert!(several(&|p| p.pattern == Pattern::Random && p.threads == 1).ends_with("--page"));
    assert!(
        several(&|p| p.pattern == Pattern::Random && p.page == PageKind::Thp)
            .ends_with("--threads")
    );
    let mut dirty = strided();
    dirty.points[0].access = Access::Dirty;
    let error = lat_mem_rd::render(&dirty, &timer()).expect_err("several");
    assert!(error.to_string().ends_with("--access"));
}

#[test]
fn no_points_and_no_clock_are_errors() {
    let none = lat_mem_rd::render(&Latency::default(), &timer()).expect_err("no points");
    assert!(matches!(none, lat_mem_rd::Error::NoPoints));
    let no_clock = lat_mem_rd::render(&strided(), &Timer::default()).expect_err("no clock");
    assert!(matches!(no_clock, lat_mem_rd::Error::NoCoreClock { .. }));
}

#[test]
fn csv_has_a_row_for_each_point_and_the_columns_that_fit_reads() {
    let profile = fixture::profile(Extent::Quick);
    let latency = profile.latency.known().expect("it is there");
    let text = csv::latency(latency);
    assert!(text.starts_with("size_bytes,ns,"));
    assert_eq!(text.lines().count(), latency.points.len() + 1);
    let columns = text
        .lines()
        .next()
        .map_or(0, |head| head.split(',').count());
    for (line, point) in text.lines().skip(1).zip(&latency.points) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), columns);
        assert_eq!(cells[0].parse(), Ok(point.size_bytes));
        assert_eq!(cells[1].parse(), Ok(point.ns), "full precision");
    }
    let window = profile.window.known().expect("it is there");
    let text = csv::window(window);
    assert!(text.starts_with("window_bytes,area_bytes,seconds_per_window,"));
    assert_eq!(text.lines().count(), window.points.len() + 1);
    let cells: Vec<&str> = text.lines().nth(1).expect("a row").split(',').collect();
    assert_eq!(cells[2].parse(), Ok(window.points[0].seconds_per_window));
}
