//! membound against a plain C pointer chase, run in turn, so that a slow phase of the machine
//! affects both.

use std::path::Path;

use anyhow::{Context as _, Result};
use membound_types::{Document, Latency};
use serde_json::json;

use super::common::{document, measure, median, size, verdict};
use crate::results::Kept;
use crate::run::{note, program, root, say, stdout_of, succeed};

/// Maximum relative difference of the medians.
const TARGET: f64 = 0.03;

/// Arguments of `bench latency`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Times that each of the two runs at each size.
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// Sizes in KiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16,256,65536,262144,1048576"
    )]
    sizes_kib: Vec<u64>,
    /// The CPU that both run on.
    #[arg(long, default_value_t = 1)]
    cpu: u32,
}

/// Both programs at one size, in nanoseconds per load.
struct Pair {
    bytes: u64,
    c: Vec<f64>,
    membound: Vec<f64>,
    /// Smallest share of the C buffer on huge pages.
    huge_share: f64,
}

impl Pair {
    /// Medians of C and membound, and the difference relative to C.
    fn compared(&self) -> Option<(f64, f64, f64)> {
        let (c, membound) = (median(&self.c)?, median(&self.membound)?);
        Some((c, membound, membound / c - 1.0))
    }
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    let chase = root().join("target/bench/chase");
    std::fs::create_dir_all(root().join("target/bench")).context("cannot create target/bench")?;
    succeed(
        program("cc")
            .args(["-O2", "-Wall", "-o"])
            .arg(&chase)
            .arg(root().join("bench/chase.c")),
    )?;

    let cpu = args.cpu.to_string();
    let mut machine = None;
    let mut documents = Vec::new();
    let mut pairs: Vec<Pair> = args
        .sizes_kib
        .iter()
        .map(|kib| Pair {
            bytes: kib << 10,
            c: Vec::new(),
            membound: Vec::new(),
            huge_share: 1.0,
        })
        .collect();
    for alternation in 0..args.alternations {
        for pair in &mut pairs {
            note(format_args!(
                "alternation {alternation}, {}",
                size(pair.bytes)
            ));
            let bytes = pair.bytes.to_string();
            let said = stdout_of(program(&chase).args([&bytes, &cpu]))?;
            let (ns, share) = parse(&said).with_context(|| format!("chase wrote `{said}`"))?;
            pair.c.push(ns);
            pair.huge_share = pair.huge_share.min(share);

            let kib = format!("{}K", pair.bytes >> 10);
            let words = ["latency", "--sizes", &kib, "--strides", "64", "--cpu", &cpu];
            let one: Document<Latency> =
                document(measure(membound, &words).args(["--pattern", "random", "--page", "thp"]))?;
            let point = one.part.points.first();
            let point = point.with_context(|| {
                format!(
                    "no point at {}: {}",
                    size(pair.bytes),
                    one.part.skipped.join("; ")
                )
            })?;
            pair.membound.push(point.ns);
            machine.get_or_insert_with(|| one.machine.clone());
            documents.push(json!({ "alternation": alternation, "points": one.part.points }));
        }
    }

    say("size         C chase ns  membound ns  difference  target 3 %");
    let mut rows = Vec::new();
    for pair in &pairs {
        let (c, ours, difference) = pair.compared().context("no alternation was asked for")?;
        say(format_args!(
            "{:<12}{c:>11.3}{ours:>13.3}{:>+10.2} %  {}{}",
            size(pair.bytes),
            difference * 100.0,
            verdict(difference.abs() <= TARGET),
            if pair.huge_share < 1.0 {
                "  (C buffer not all on huge pages)"
            } else {
                ""
            },
        ));
        rows.push(json!({
            "size_bytes": pair.bytes, "c_ns": c, "membound_ns": ours,
            "difference": difference, "target": TARGET, "c_huge_share": pair.huge_share,
        }));
    }
    let c: Vec<_> = pairs
        .iter()
        .map(|pair| json!({ "size_bytes": pair.bytes, "ns": pair.c }))
        .collect();
    Ok(Kept {
        bench: "latency",
        machine: machine.context("no size was asked for")?,
        summary: rows.into(),
        raw: json!({ "c": c, "membound": documents }),
    })
}

/// Nanoseconds per load and the share on huge pages, as `chase.c` prints them.
fn parse(said: &str) -> Option<(f64, f64)> {
    let mut words = said.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_that_of_the_medians() {
        let pair = Pair {
            bytes: 16384,
            c: vec![1.0, 1.0, 9.0],
            membound: vec![1.02, 5.0, 1.02],
            huge_share: 1.0,
        };
        let (c, ours, difference) = pair.compared().unwrap();
        assert_eq!((c, ours), (1.0, 1.02));
        assert!((difference - 0.02).abs() < 1e-12);
        assert_eq!(parse("0.9356 1.000\n"), Some((0.9356, 1.0)));
        assert_eq!(parse(""), None);
    }
}
