//! `model fit`, `show` and `predict` from outside, on data with known parameters.

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::command::{Finished, Membound, busy, number};

/// Level sizes of the synthetic Origin2000: the two caches, then nodes of 256 MiB in the
/// proportions of a machine of 16 nodes.
const SIZES: [u64; 7] = [
    32 << 10,
    4 << 20,
    256 << 20,
    256 << 20,
    1536 << 20,
    1536 << 20,
    4096 << 20,
];

/// Component times of Table 1 per line and the time that each level of equation 3 adds, in nanoseconds for a
/// window of `w` bytes. Written out here again, so that the command is not compared with itself.
fn level_times(w: f64) -> [f64; 7] {
    let (program, cache) = (40.0 + 6.5 * w / 8.0, 53.0 * w / 32.0);
    let lines = w / 128.0;
    let (home, remote, router, memory) = (110.0, 358.0, 68.0, 468.0);
    let beyond = |hops: f64| program + cache + (remote + hops * router + memory) * lines;
    [
        program,
        program + cache,
        program + cache + (home + memory) * lines,
        beyond(1.0),
        beyond(2.0),
        beyond(3.0),
        beyond(4.0),
    ]
}

/// Expected seconds per window: equations 5 to 7, integrated level by level.
fn seconds(w: u64, a: u64) -> f64 {
    let area = a as f64;
    let mut begin = 0.0;
    let mut sum = 0.0;
    for (time, size) in level_times(w as f64).into_iter().zip(SIZES) {
        let end = (begin + size as f64).min(area);
        sum += time * (end - begin).max(0.0);
        begin += size as f64;
    }
    let tlb = (1005.0 * (1.0 - 64.0 * 16384.0 / area)).max(0.0);
    let table = if area >= 2_f64.powi(28) {
        8356.0 * (area.log2() - 26.0) / 26.0
    } else {
        0.0
    };
    (sum / area + tlb + table) / 1e9
}

/// The areas of the paper's loop: half octaves from 16 KiB to nearly 8 GiB.
fn areas() -> impl Iterator<Item = u64> {
    (4..42).map(|i| (4096.0 * 2_f64.powf(f64::from(i) / 2.0)) as u64)
}

fn origin2000(windows: &[u64]) -> String {
    let mut csv = "window_bytes,area_bytes,seconds_per_window\n".to_owned();
    for &w in windows {
        for a in areas() {
            let a = a - a % w;
            writeln!(csv, "{w},{a},{:e}", seconds(w, a)).expect("a string takes everything");
        }
    }
    csv
}

fn list(sizes: &[u64]) -> String {
    let texts: Vec<String> = sizes.iter().map(u64::to_string).collect();
    texts.join(",")
}

fn fit(membound: &Membound, csv: &str, more: &str) -> Finished {
    fs::write(membound.home.path().join("w.csv"), csv).expect("there is room for a file");
    membound.run(&format!("model fit w.csv {more} --json -"))
}

fn parameter<'a>(model: &'a Value, symbol: &str) -> &'a Value {
    let parameters = model["parameters"].as_array();
    parameters
        .into_iter()
        .flatten()
        .find(|parameter| parameter["symbol"] == symbol)
        .unwrap_or_else(|| panic!("no {symbol}"))
}

fn near(found: f64, truth: f64, what: &str) {
    assert!(
        (found - truth).abs() <= 1e-6 * truth.abs().max(1.0),
        "{what}: {found} is not {truth}"
    );
}

#[test]
fn the_origin2000_is_recovered_and_unidentifiable_parameters_are_reported() {
    let membound = Membound::new();
    let sizes = list(&SIZES[2..]);
    let options = format!("--topology origin2000 --sizes {sizes}");
    let model = fit(&membound, &origin2000(&[1024, 2048, 4096]), &options).json();
    assert_eq!(model["kind"], "model");
    for (symbol, truth) in [
        ("t_o0", 40.0),
        ("t_o", 6.5),
        ("t_s0", 0.0),
        ("t_s", 53.0),
        ("t_r0", 0.0),
        ("t_r", 68.0),
        ("t_tlb", 1005.0),
        ("t_pt", 8356.0),
    ] {
        let parameter = parameter(&model, symbol);
        near(number(&parameter["value"]), truth, symbol);
        assert_eq!(parameter["identifiable"], true, "{symbol}");
    }
    // Table 1's own values are the minimum-norm answer among those that fit equally well.
    for (symbol, least) in [("t_hh", 110.0), ("t_hr", 358.0), ("t_m", 468.0)] {
        let parameter = parameter(&model, symbol);
        near(number(&parameter["value"]), least, symbol);
        assert_eq!(parameter["identifiable"], false, "{symbol}");
        assert_eq!(parameter["std_error"], Value::Null, "{symbol}");
    }
    for (symbols, truth) in [
        (["t_hh", "t_m"], 578.0),
        (["t_hr", "t_m"], 826.0),
        (["t_hh0", "t_m0"], 0.0),
        (["t_hr0", "t_m0"], 0.0),
    ] {
        let combinations = model["combinations"].as_array().unwrap();
        let found = combinations
            .iter()
            .find(|combination| combination["symbols"] == serde_json::json!(symbols))
            .unwrap_or_else(|| panic!("no {symbols:?}"));
        near(number(&found["value"]), truth, &symbols.concat());
    }
    assert!(number(&model["residual"]["max_relative"]) < 1e-6);
    assert_eq!(model["levels"].as_array().unwrap().len(), 7);
    assert_eq!(model["vanishing"]["vanish"], true);
}

#[test]
fn one_given_value_makes_the_others_known() {
    let membound = Membound::new();
    let sizes = list(&SIZES[2..]);
    let csv = origin2000(&[1024, 2048, 4096]);
    for symbol in ["t_m", "t_m,1"] {
        let options =
            format!("--topology origin2000 --sizes {sizes} --fix {symbol}=400 --fix t_m0=0");
        let model = fit(&membound, &csv, &options).json();
        for (symbol, truth) in [("t_hh", 178.0), ("t_hr", 426.0), ("t_m", 400.0)] {
            let parameter = parameter(&model, symbol);
            near(number(&parameter["value"]), truth, symbol);
            assert_eq!(parameter["identifiable"], true, "{symbol}");
        }
        assert_eq!(parameter(&model, "t_m")["fixed"], true);
        assert_eq!(model["combinations"], serde_json::json!([]));
    }
}

#[test]
fn the_papers_tables_are_printed() {
    let membound = Membound::new();
    let shown = membound.run("model show origin2000");
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    for figure in [
        "53.0", "110", "358", "68.0", "468", "1005", "8356", "75.5", "20.3", "14.5", "13.6",
        "12.9", "12.2",
    ] {
        assert!(
            shown.stdout.split_whitespace().any(|word| word == figure),
            "{figure} is not in:\n{}",
            shown.stdout
        );
    }
    assert!(shown.stdout.lines().all(|line| line.chars().count() <= 80));
    let document = membound.run("model show origin2000 --json").json();
    let rates: Vec<f64> = document["levels"].as_array().unwrap()[1..]
        .iter()
        .map(|level| (number(&level["rate_mops"]["value"]) * 10.0).round() / 10.0)
        .collect();
    assert_eq!(rates, [75.5, 20.3, 14.5, 13.6, 12.9, 12.2]);
    assert_eq!(membound.run("model show generic").code, Some(0));
}

#[test]
fn windows_and_areas_that_were_not_measured_are_predicted() {
    let membound = Membound::new();
    let sizes = list(&SIZES[2..]);
    let options = format!("--topology origin2000 --sizes {sizes}");
    let finished = fit(&membound, &origin2000(&[1024, 4096]), &options);
    fs::write(membound.home.path().join("model.json"), &finished.stdout).unwrap();
    finished.json();
    let prediction = membound
        .run("model predict model.json --windows 512,2048 --areas 100K,3M,700M --json -")
        .json();
    assert_eq!(prediction["kind"], "prediction");
    let points = prediction["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    for point in points {
        let whole = |name: &str| point[name].as_u64().unwrap();
        let (w, a) = (whole("window_bytes"), whole("area_bytes"));
        let found = number(&point["ns"]["value"]);
        near(found / (seconds(w, a) * 1e9), 1.0, &format!("{w} in {a}"));
        assert!(number(&point["ns"]["low"]) <= found && found <= number(&point["ns"]["high"]));
    }
    let text = membound.run("model predict model.json --windows 512 --areas 1M");
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    let csv = membound.run("model predict model.json --windows 512 --areas 1M --format csv");
    assert_eq!(csv.stdout.lines().count(), 2, "{}", csv.stdout);
    membound
        .run("model predict model.json --sizes 1M")
        .complains(1, &["model.json", "window"]);
}

/// A curve with plateaus of 1, 4 and 90 ns that ends at 32 KiB and 1 MiB.
fn latency_curve() -> Vec<(u64, f64)> {
    (0..=100)
        .map(|i| {
            let size = (4096.0 * 2_f64.powf(f64::from(i) / 6.0)) as u64;
            let beyond = |end: f64| (1.0 - (end / size as f64).powi(3)).max(0.0);
            let ns = 1.0 + 3.0 * beyond(32768.0) + 86.0 * beyond(1_048_576.0);
            (size, ns)
        })
        .collect()
}

#[test]
fn a_latency_curve_gives_levels_and_loads_that_were_not_measured() {
    let membound = Membound::new();
    let mut csv = "size_bytes,ns\n".to_owned();
    for (size, ns) in latency_curve() {
        writeln!(csv, "{size},{ns}").unwrap();
    }
    fs::write(membound.home.path().join("l.csv"), csv).unwrap();
    let model = membound.run("model fit l.csv --json -").json();
    let levels = model["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 3, "{levels:?}");
    for (level, (size, ns)) in levels
        .iter()
        .zip([(32768.0, 1.0), (1_048_576.0, 4.0), (0.0, 90.0)])
    {
        if size > 0.0 {
            let found = number(&level["size_bytes"]);
            assert!((found / size - 1.0).abs() < 0.1, "{level}");
        }
        let found = number(&level["ns_per_line"]["value"]);
        assert!((found / ns - 1.0).abs() < 0.02, "{level}");
    }
    assert!(number(&model["residual"]["median_relative"]) < 0.01);
    let prediction = membound
        .run("model predict l.csv --sizes 10000,3M,700M --strides 64,256 --json -")
        .json();
    let points = prediction["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    let truth = |size: f64| {
        let beyond = |end: f64| (1.0 - (end / size).powi(3)).max(0.0);
        1.0 + 3.0 * beyond(32768.0) + 86.0 * beyond(1_048_576.0)
    };
    for point in points.iter().filter(|point| point["stride_bytes"] == 64) {
        let expected = truth(number(&point["area_bytes"]));
        let found = number(&point["ns"]["value"]);
        assert!((found / expected - 1.0).abs() < 0.05, "{point}");
    }
}

#[test]
fn other_tools_output_and_stdin_are_read() {
    let membound = Membound::new();
    let mut text = "\"stride=64\n".to_owned();
    for (size, ns) in latency_curve() {
        let mib = (size / 512 * 512) as f64 / 1_048_576.0;
        writeln!(text, "{mib:.5} {ns:.3}").unwrap();
    }
    let _busy = busy();
    let mut child = membound
        .command(["model", "fit", "-", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let model = Finished::of(&child.wait_with_output().unwrap()).json();
    assert_eq!(model["levels"].as_array().unwrap().len(), 3);
    assert_eq!(model["method"]["data"], "latency");
}

#[test]
fn bad_data_is_a_one_line_error_with_place_and_reason() {
    let membound = Membound::new();
    let header = "window_bytes,area_bytes,seconds_per_window\n";
    let good = "1024,16384,1e-6\n1024,32768,2e-6\n";
    for (content, parts) in [
        ("", &["empty"][..]),
        (header, &["no points"]),
        (&format!("{header}1024,16384,1e-6\n"), &["one point"]),
        (
            &format!("{header}{good}1024,65536,-1e-6\n"),
            &["line 4", "negative"],
        ),
        (
            &format!("{header}{good}1024,65536,NaN\n"),
            &["line 4", "NaN"],
        ),
        (
            &format!("{header}{good}1024,65536,inf\n"),
            &["line 4", "inf"],
        ),
        (&format!("{header}{good}1024,65536,x\n"), &["line 4", "x"]),
        (
            &format!("{header}{good}4096,1024,1e-6\n"),
            &["line 4", "4096"],
        ),
        ("window_bytes,area_bytes,bananas\n1,2,3\n", &["bananas"]),
        ("size_kib,ns\n16,1\n32,1\n", &["size_kib", "size_bytes"]),
        (
            &format!("{header}1024,16384,1500\n1024,32768,1800\n"),
            &["line 2", "1500"],
        ),
        (
            "{\"schema_version\":1,\"kind\":\"window\",\"points\":[",
            &["line 1"],
        ),
        (
            "{\"schema_version\":99,\"kind\":\"window\",\"points\":[]}",
            &["99"],
        ),
        ("{\"schema_version\":1,\"kind\":\"doctor\"}", &["doctor"]),
        ("hello\n", &["bad.txt"]),
    ] {
        fs::write(membound.home.path().join("bad.txt"), content).unwrap();
        let finished =
            membound.run("model fit bad.txt --topology origin2000 --sizes 1G,1G,1G,1G,1G");
        let parts: Vec<&str> = parts.iter().copied().chain(["bad.txt"]).collect();
        finished.complains(1, &parts);
    }
    membound
        .run("model fit missing.csv")
        .complains(1, &["missing.csv"]);
}

#[test]
fn bad_topologies_are_a_one_line_error_with_place_and_reason() {
    let membound = Membound::new();
    let csv = origin2000(&[1024, 2048]);
    let component = "[[component]]\nsymbol = \"t_o\"\nname = \"program\"\nline = 8\n";
    let level = |name: &str, size: &str, path: &str| {
        format!(
            "[[level]]\nname = \"{name}\"\nkind = \"cache\"\nsize = \"{size}\"\npath = [{path}]\n"
        )
    };
    for (content, parts) in [
        (String::new(), &["t.toml"][..]),
        ("name = ".to_owned(), &["t.toml:1:"]),
        (
            format!(
                "name = \"x\"\n{component}{}",
                level("L1", "32K", "\"t_o\", \"t_q\"")
            ),
            &["t_q"],
        ),
        (
            format!(
                "name = \"x\"\n{component}{}{}",
                level("L1", "4M", "\"t_o\""),
                level("L2", "32K", "\"t_o\"")
            ),
            &["L2", "smaller"],
        ),
        (
            format!(
                "name = \"x\"\ncolour = 3\n{component}{}",
                level("L1", "32K", "\"t_o\"")
            ),
            &["colour"],
        ),
    ] {
        fs::write(membound.home.path().join("t.toml"), content).unwrap();
        let finished = fit(&membound, &csv, "--topology t.toml");
        let parts: Vec<&str> = parts.iter().copied().chain(["t.toml"]).collect();
        finished.complains(1, &parts);
    }
    fit(&membound, &csv, "--topology nowhere").complains(1, &["nowhere", "origin2000"]);
    fit(&membound, &csv, "--topology origin2000").complains(1, &["--sizes", "home memory"]);
    fit(&membound, &csv, "--topology origin2000 --sizes 1G").complains(1, &["1 "]);
    fit(
        &membound,
        &csv,
        "--topology origin2000 --sizes 1G,1G,1G,1G,1G --fix t_x=3",
    )
    .complains(1, &["t_x", "t_hh"]);
    fit(&membound, &csv, "--topology origin2000 --fix t_m").complains(2, &["`t_m`"]);
    fit(&membound, &csv, "--weights heavy").complains(2, &["heavy"]);
}

#[test]
fn files_without_a_model_are_refused_by_kind() {
    let membound = Membound::new();
    let table = membound.home.path().join("plain.csv");
    fs::write(&table, "size_bytes,ns\n4096,1\n8192,1\n16384,2\n").unwrap();
    let table = table.to_str().unwrap();
    let shown = membound.run(&format!("model show {table}"));
    assert_eq!(shown.code, Some(1));
    let message = format!("values, but no model: `membound model fit {table}` makes one");
    assert!(shown.stderr.contains(&message), "{}", shown.stderr);
    let fitted = membound.run(&format!("model fit {table} --series nonsense"));
    assert_eq!(fitted.code, Some(1));
    let message = "no series with `nonsense`; the file holds one series, which has no name";
    assert!(fitted.stderr.contains(message), "{}", fitted.stderr);
}
