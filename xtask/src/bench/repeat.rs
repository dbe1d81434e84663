//! Whether latency curves that are measured one after the other agree, and what a curve costs.
//!
//! A point's deviation is the median of |run ÷ median of the runs − 1| over the runs. The
//! regions are cut from the declared sizes with a margin, because the bench needs a truth
//! that does not come from the tool: L1 up to ¾ of the declared L1d, L2 from 1½ L1d to
//! ¾ L2, memory from four times the declared last level; between them the curve is steep,
//! and in a guest the last level's own share changes by the minute.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use membound_types::{Cache, CacheKind, Document, Latency, LatencyPoint};
use serde_json::json;

use super::common::{document, measure, median, size, verdict};
use crate::results::Kept;
use crate::run::{note, say};

const WALL_TARGET_S: f64 = 12.0;
const POINTS_TARGET: usize = 48;
/// Eight times the half point per second of the usual tools.
const RATE_TARGET: f64 = 4.0;
const CURVE: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 30;

/// Arguments of `bench repeat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Curves to measure.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// Region of the curve in which a point lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Region {
    L1,
    L2,
    Between,
    Dram,
}

impl Region {
    fn of(bytes: u64, caches: &[Cache]) -> Self {
        let declared = |level| {
            caches
                .iter()
                .find(|cache| cache.level == level && cache.kind != CacheKind::Instruction)
                .map_or(0, |cache| cache.size_bytes)
        };
        let last = caches.iter().map(|cache| cache.size_bytes).max();
        if bytes * 4 <= declared(1) * 3 {
            Self::L1
        } else if bytes * 2 >= declared(1) * 3 && bytes * 4 <= declared(2) * 3 {
            Self::L2
        } else if last.is_some_and(|last| bytes >= last * 4) {
            Self::Dram
        } else {
            Self::Between
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::Between => "between",
            Self::Dram => "DRAM",
        }
    }

    /// Maximum relative deviation; `None` without a target.
    const fn target(self) -> Option<f64> {
        match self {
            Self::L1 | Self::L2 => Some(0.02),
            Self::Dram => Some(0.04),
            Self::Between => None,
        }
    }
}

/// One size over all runs.
struct Repeated {
    bytes: u64,
    region: Region,
    ns: f64,
    deviation: f64,
    /// Number of runs that report the point as perturbed.
    disturbed: usize,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    let mut documents: Vec<Document<Latency>> = Vec::new();
    let mut walls_s = Vec::new();
    for run in 0..args.runs {
        note(format_args!("run {run}"));
        let words = ["latency", "--page", "thp"];
        let began = Instant::now();
        documents.push(document(&mut measure(membound, &words))?);
        walls_s.push(began.elapsed().as_secs_f64());
    }
    let machine = documents
        .first()
        .context("no run was asked for")?
        .machine
        .clone();
    let curves: Vec<&[LatencyPoint]> = documents.iter().map(|one| &*one.part.points).collect();
    let points = repeated(&curves, &machine.caches);

    say("region      points  median deviation  largest  target  disturbed");
    let mut rows = Vec::new();
    for region in [Region::L1, Region::L2, Region::Between, Region::Dram] {
        let inside: Vec<&Repeated> = points.iter().filter(|one| one.region == region).collect();
        let deviations: Vec<f64> = inside.iter().map(|one| one.deviation).collect();
        let Some(middle) = median(&deviations) else {
            continue;
        };
        let largest = deviations.iter().copied().fold(0.0, f64::max);
        let disturbed = inside.iter().filter(|one| one.disturbed > 0).count();
        let target = region.target().map_or_else(String::new, |target| {
            format!("{:.0} % {}", target * 100.0, verdict(largest <= target))
        });
        say(format_args!(
            "{:<12}{:>6}{:>16.2} %{:>7.2} %  {target:<12}{disturbed}",
            region.name(),
            inside.len(),
            middle * 100.0,
            largest * 100.0,
        ));
        rows.push(json!({
            "region": region.name(), "points": inside.len(), "median_deviation": middle,
            "largest_deviation": largest, "target": region.target(), "disturbed": disturbed,
        }));
    }
    for one in points.iter().filter(|one| {
        one.region
            .target()
            .is_some_and(|target| one.deviation > target)
    }) {
        say(format_args!(
            "beyond its target: {} ({:.3} ns ± {:.2} %), {}",
            size(one.bytes),
            one.ns,
            one.deviation * 100.0,
            if one.disturbed > 0 {
                "named as disturbed"
            } else {
                "not named as disturbed"
            },
        ));
    }

    let mut costs = Vec::new();
    for (one, wall_s) in documents.iter().zip(&walls_s) {
        let count = on_the_curve(&one.part.points).count();
        #[expect(clippy::cast_precision_loss, reason = "a curve has some dozen points")]
        let rate = count as f64 / wall_s;
        say(format_args!(
            "{count} points in {wall_s:.1} s ({}), {rate:.1} a second ({})",
            verdict(count >= POINTS_TARGET && *wall_s <= WALL_TARGET_S),
            verdict(rate >= RATE_TARGET),
        ));
        costs.push(json!({ "points": count, "wall_s": wall_s, "points_per_s": rate }));
    }
    Ok(Kept {
        bench: "repeat",
        machine,
        summary: json!({ "regions": rows, "runs": costs }),
        raw: documents.iter().map(|one| json!(one.part)).collect(),
    })
}

/// Points of the one curve to which the targets apply: a single copy, random, 4 KiB to 1 GiB.
fn on_the_curve(points: &[LatencyPoint]) -> impl Iterator<Item = &LatencyPoint> {
    points.iter().filter(|point| {
        CURVE.contains(&point.size_bytes)
            && point.threads == 1
            && point.pattern == membound_types::Pattern::Random
    })
}

/// Sizes that every curve has, with their deviation.
fn repeated(curves: &[&[LatencyPoint]], caches: &[Cache]) -> Vec<Repeated> {
    let mut by_size: BTreeMap<u64, (Vec<f64>, usize)> = BTreeMap::new();
    for point in curves.iter().flat_map(|points| on_the_curve(points)) {
        let (values, disturbed) = by_size.entry(point.size_bytes).or_default();
        values.push(point.ns);
        *disturbed += usize::from(point.batches.disturbed.any());
    }
    by_size
        .into_iter()
        .filter(|(_, (values, _))| values.len() == curves.len())
        .filter_map(|(bytes, (values, disturbed))| {
            let ns = median(&values)?;
            let away: Vec<f64> = values
                .iter()
                .map(|value| (value / ns - 1.0).abs())
                .collect();
            Some(Repeated {
                bytes,
                region: Region::of(bytes, caches),
                ns,
                deviation: median(&away)?,
                disturbed,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u32, kind: CacheKind, size_bytes: u64) -> Cache {
        Cache {
            level,
            kind,
            size_bytes,
            line_bytes: Some(64),
            ways: None,
            shared_by: Vec::new(),
            source: "sysfs".to_owned(),
        }
    }

    #[test]
    fn regions_keep_away_from_the_edges() {
        let caches = [
            cache(1, CacheKind::Instruction, 64 << 10),
            cache(1, CacheKind::Data, 48 << 10),
            cache(2, CacheKind::Unified, 1 << 20),
            cache(3, CacheKind::Unified, 32 << 20),
        ];
        let of = |bytes| Region::of(bytes, &caches);
        assert_eq!(of(32 << 10), Region::L1);
        assert_eq!(of(48 << 10), Region::Between);
        assert_eq!(of(72 << 10), Region::L2);
        assert_eq!(of(768 << 10), Region::L2);
        assert_eq!(of(32 << 20), Region::Between);
        assert_eq!(of(128 << 20), Region::Dram);
    }

    #[test]
    fn without_declared_caches_nothing_is_judged() {
        assert_eq!(Region::of(4096, &[]), Region::Between);
    }
}
