//! Compares curves of two profiles at their common sizes or numbers of loads.

use std::collections::BTreeMap;

use membound_types::{
    Basis, ComparedCurve, CurvePair, CurveVerdict, Figure, LoadsTime, NodePolicy, Outcome, Pattern,
};

use super::relation::{Common, MIN_PLACES, Pair, relate};
use super::table::{Cells, conditional_title};
use super::view::ProfileView;
use crate::stats::Z95;
use crate::stats::median;

/// Relative standard deviation of a point between runs, besides its own interval.
const BETWEEN_RUNS: f64 = 0.02;
/// The same for a few cold loads between fences.
const BETWEEN_RUNS_OF_LOADS: f64 = 0.03;
/// The same for a ring that prefetchers run ahead of: their distance varies from run to run.
const BETWEEN_RUNS_OF_STREAMS: f64 = 0.08;
/// Standard deviation between runs that all points of a curve have in common.
const COMMON: Common = Common {
    slope: 0.04,
    shift: 0.04,
};
/// The same for a few cold loads.
const COMMON_OF_LOADS: Common = Common {
    slope: 0.06,
    shift: 0.04,
};
/// Relative standard deviation between runs of the size at which a cache ends. It makes a steep
/// point uncertain by the rise of the curve over that share of its size.
const SIZE_BETWEEN_RUNS: f64 = 0.06;
/// Largest ratio of neighbouring sizes between which a curve is interpolated.
const LARGEST_STEP: f64 = 1.6;
/// Standard deviations beyond which a single point counts as different.
const PLACE_DIFFERS: f64 = 4.0;

/// A point of a curve, with its scatter between runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Size in bytes, or number of loads.
    pub x: f64,
    /// Time in the curve's unit.
    pub y: f64,
    /// Standard deviation of a repetition, in the unit of `y`.
    pub sigma: f64,
}

/// A named curve of one profile.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedCurve {
    /// Stable name, with all conditions.
    pub name: String,
    /// Part of the profile that the curve is from.
    pub part: &'static str,
    /// Name for readers.
    pub title: String,
    /// Unit of `x`.
    pub x_unit: &'static str,
    /// Unit of `y`.
    pub y_unit: &'static str,
    /// Points in order of `x`.
    pub points: Vec<CurvePoint>,
}

/// A measured point before its scatter between runs is added.
struct Raw {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

/// All curves of a profile: latency over size, time of a window over area, time of parallel and
/// sequential loads over their number.
#[must_use]
pub fn curves(profile: &ProfileView) -> Vec<NamedCurve> {
    let mut out = Vec::new();
    latency(profile, &mut out);
    loads(profile, &mut out);
    windows(profile, &mut out);
    out
}

fn latency(profile: &ProfileView, out: &mut Vec<NamedCurve>) {
    let mut found: Vec<(String, String, f64, Vec<Raw>)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for point in &profile.latency.points {
        let (pattern, page, stride) = (point.pattern, point.page, point.stride_bytes);
        let (access, threads, node) = (point.access, point.threads, point.node);
        let state = &point.prefetch;
        let name = format!("latency.{pattern}.{page}.{stride}.{access}.{threads}.{node}.{state}");
        let index = *places.entry(name.clone()).or_insert_with(|| {
            let mut title = format!("{pattern}, {page}, stride {stride} B");
            for (said, text) in [
                (access.name() != "clean", access.to_string()),
                (threads != 1, format!("{threads} copies")),
                (node != NodePolicy::LOCAL, format!("node {node}")),
                (
                    state.to_string() != "default",
                    format!("prefetchers {state}"),
                ),
            ] {
                if said {
                    title = format!("{title}, {text}");
                }
            }
            let between_runs = if pattern == Pattern::Stride {
                BETWEEN_RUNS_OF_STREAMS
            } else {
                BETWEEN_RUNS
            };
            found.push((name, title, between_runs, Vec::new()));
            found.len() - 1
        });
        found[index].3.push(Raw {
            x: point.size_bytes as f64,
            y: point.ns,
            low: point.ns_low,
            high: point.ns_high,
        });
    }
    for (name, title, between_runs, raw) in found {
        out.push(NamedCurve {
            name,
            part: "latency",
            title,
            x_unit: "bytes",
            y_unit: "ns",
            points: over_sizes(raw, between_runs),
        });
    }
}

fn windows(profile: &ProfileView, out: &mut Vec<NamedCurve>) {
    let mut found: BTreeMap<(String, String), Vec<Raw>> = BTreeMap::new();
    for point in &profile.window.points {
        let (kernel, page, window) = (point.kernel, point.page, point.window_bytes);
        let node = point.node;
        let key = (
            format!("window.{kernel}.{page}.{window}.{node}"),
            format!("{kernel} windows of {window} B, {page}"),
        );
        found.entry(key).or_default().push(Raw {
            x: point.area_bytes as f64,
            y: point.seconds_per_window * 1e9,
            low: point.seconds_low * 1e9,
            high: point.seconds_high * 1e9,
        });
    }
    for ((name, title), raw) in found {
        out.push(NamedCurve {
            name,
            part: "window",
            title,
            x_unit: "bytes",
            y_unit: "ns",
            points: over_sizes(raw, BETWEEN_RUNS),
        });
    }
}

fn loads(profile: &ProfileView, out: &mut Vec<NamedCurve>) {
    for part in profile.mlp.conditions() {
        let cells = Cells::of(part);
        let (page, node) = (part.page, part.node);
        for (what, title, times) in [
            ("parallel", "T(N), loads at once", &cells.parallel),
            ("sequential", "T(n), loads in sequence", &cells.sequential),
        ] {
            let points = times.iter().filter_map(point_of_loads).collect();
            out.push(NamedCurve {
                name: format!("mlp.{page}.{node}.{what}"),
                part: "mlp",
                title: conditional_title(title, page, node),
                x_unit: "loads",
                y_unit: "cycles",
                points,
            });
        }
    }
}

/// A point of a curve over numbers of loads. The interquartile half-width of the batches is close
/// to the 95 % interval of their median for the usual number of batches.
fn point_of_loads(time: &LoadsTime) -> Option<CurvePoint> {
    (time.cycles > 0.0).then(|| CurvePoint {
        x: f64::from(time.loads),
        y: time.cycles,
        sigma: (time.spread / Z95).hypot(BETWEEN_RUNS_OF_LOADS * time.cycles),
    })
}

/// Valid points of a curve over sizes, with their scatter between runs.
fn over_sizes(mut raw: Vec<Raw>, between_runs: f64) -> Vec<CurvePoint> {
    raw.retain(|point| {
        [point.x, point.y, point.low, point.high]
            .into_iter()
            .all(|value| value > 0.0 && value.is_finite())
    });
    raw.sort_by(|a, b| a.x.total_cmp(&b.x));
    raw.dedup_by(|later, first| later.x == first.x);
    let rise = |from: usize, to: usize| {
        let (low, high) = (&raw[from], &raw[to]);
        // The minimum keeps noise between two sizes that almost coincide from looking like a cliff.
        ((high.y / low.y).ln() / (high.x / low.x).ln().max(0.05)).abs()
    };
    (0..raw.len())
        .map(|index| {
            let point = &raw[index];
            let before = index
                .checked_sub(1)
                .map_or(0.0, |before| rise(before, index));
            let after = if index + 1 < raw.len() {
                rise(index, index + 1)
            } else {
                0.0
            };
            let own = (point.high / point.low).ln() / (2.0 * Z95);
            let relative = own
                .hypot(between_runs)
                .hypot(before.max(after) * SIZE_BETWEEN_RUNS);
            CurvePoint {
                x: point.x,
                y: point.y,
                sigma: relative * point.y,
            }
        })
        .collect()
}

/// Pairs at the x values of `first` that `later` has too or encloses closely.
///
/// Grids that follow a curve's bends differ from run to run. Between two points of `later` the
/// logarithm of y is interpolated linearly over the logarithm of x.
#[must_use]
pub fn common(first: &[CurvePoint], later: &[CurvePoint]) -> Vec<Pair> {
    let mut out = Vec::new();
    for point in first {
        let above = later.partition_point(|other| other.x < point.x);
        let exact = later.get(above).filter(|other| other.x == point.x).copied();
        let read = exact.or_else(|| {
            let high = later.get(above)?;
            let low = later.get(above.checked_sub(1)?)?;
            let usable = low.x > 0.0 && low.y > 0.0 && high.y > 0.0;
            if !usable || high.x / low.x > LARGEST_STEP {
                return None;
            }
            let share = (point.x / low.x).ln() / (high.x / low.x).ln();
            let y = low.y * (high.y / low.y).powf(share);
            let relative = (low.sigma / low.y).max(high.sigma / high.y);
            Some(CurvePoint {
                x: point.x,
                y,
                // The curve may have a bend between the two points.
                sigma: y * relative.hypot(0.25 * (high.y / low.y).ln()),
            })
        });
        if let Some(read) = read {
            out.push(Pair {
                x: point.x,
                first: point.y,
                first_sigma: point.sigma,
                later: read.y,
                later_sigma: read.sigma,
            });
        }
    }
    out
}

/// Compares each curve of a later profile with the first profile's curve of the same name.
#[must_use]
pub fn compare(first: &[NamedCurve], later: &[NamedCurve], profile: &str) -> Vec<ComparedCurve> {
    first
        .iter()
        .filter_map(|curve| {
            let other = later.iter().find(|other| other.name == curve.name)?;
            let pairs = common(&curve.points, &other.points);
            Some(against(curve, &pairs, profile))
        })
        .collect()
}

fn against(curve: &NamedCurve, pairs: &[Pair], profile: &str) -> ComparedCurve {
    let common = if curve.part == "mlp" {
        COMMON_OF_LOADS
    } else {
        COMMON
    };
    let relation = relate(pairs, common);
    let figure = |value: f64, (low, high): (f64, f64)| {
        Outcome::Known(Figure {
            value,
            low,
            high,
            basis: Basis::Estimated,
        })
    };
    let missing = || {
        Outcome::missing_with(
            format!(
                "{} places are common, a line with errors needs {MIN_PLACES}",
                pairs.len()
            ),
            "measure the same sizes in both",
        )
    };
    let differ: Vec<f64> = pairs
        .iter()
        .filter(|pair| pair.distance().abs() > PLACE_DIFFERS)
        .map(|pair| pair.x)
        .collect();
    let is_reported = relation.is_none_or(|found| found.verdict != CurveVerdict::Same);
    let relative: Vec<f64> = pairs
        .iter()
        .filter(|pair| pair.first > 0.0)
        .map(|pair| (pair.later / pair.first - 1.0).abs())
        .collect();
    ComparedCurve {
        name: curve.name.clone(),
        part: curve.part.to_owned(),
        title: curve.title.clone(),
        x_unit: curve.x_unit.to_owned(),
        y_unit: curve.y_unit.to_owned(),
        profile: profile.to_owned(),
        shift: relation.map_or_else(missing, |found| {
            figure(found.shift.value, found.shift.interval())
        }),
        slope: relation.map_or_else(missing, |found| {
            figure(found.slope.value, found.slope.interval())
        }),
        verdict: relation.map(|found| found.verdict),
        differs_from: differ.first().copied().filter(|_| is_reported),
        differs_to: differ.last().copied().filter(|_| is_reported),
        median_relative: median(&relative),
        points: pairs
            .iter()
            .map(|pair| CurvePair {
                x: pair.x,
                first: pair.first,
                later: pair.later,
            })
            .collect(),
    }
}
