//! Finds the levels of the memory hierarchy from a latency curve alone.
//!
//! The curve gives the latency for each size of a buffer, either of a cyclic random walk over all
//! its lines in steady state, or of random windows. Each step is a module:
//!
//! 1. `clean` sorts the points, estimates an error in ln(ns) of each from its interval and its
//!    neighbours, and removes points above their successors (a latency curve never falls, and
//!    disturbances only lengthen times).
//! 2. `steps` describes the curve as a sum of steps, one per level, with the shapes of `leaving`.
//!    If such a sum describes the curve within its scatter, and better than a smooth ramp does
//!    (`smooth`), its steps are the levels (`estimate`).
//! 3. `segment` otherwise finds the plateaus (which a TLB may tilt, or a shrinking share of a
//!    cache) by an exact penalised segmentation in log-log space.
//! 4. `knee` finds where the lower of two plateaus ends, by the family of climbs in
//!    `family`.
//!
//! [`suggest_refinement`] supports the sweep: it returns the sizes at which another point would
//! add most.

mod clean;
mod estimate;
mod family;
mod input;
mod knee;
mod leaving;
mod plateaus;
mod refine;
mod segment;
mod smooth;
mod steps;
mod sum;

pub use input::{CurvePoint, LevelOptions};
pub use plateaus::{CurveEnd, Interval, Knee, Levels, Plateau, Selection};
pub use refine::suggest_refinement;

use crate::stats::quantile;
use clean::Prepared;

/// Bytes that replace [`LevelOptions::cache_bound_bytes`] if that is `None`.
const UNKNOWN_CACHE_BOUND: u64 = 512 << 20;

/// Errors of ln(ns) that neighbouring points may have in common.
const SHARED_SIGMAS: [f64; 1] = [0.01];

/// Finds the levels of `curve`, whose points may come in any order.
///
/// Points without a positive finite time or size are ignored; several points of one size
/// count as their median.
#[must_use]
pub fn find_levels(curve: &[CurvePoint], options: &LevelOptions) -> Levels {
    let prepared = clean::prepare(curve);
    let points = &prepared.points;
    match read_as_steps(points, prepared.scatter, options) {
        steps::CurveReading::Levels(found) => {
            if let Some(levels) = of_steps(&prepared, &found, options) {
                return levels;
            }
        }
        steps::CurveReading::Ramp => {
            return Levels {
                plateaus: Vec::new(),
                end: None,
                outliers: prepared.outliers,
                selection: Selection::Ramp,
            };
        }
        steps::CurveReading::Neither => {}
    }
    let flats = segment::plateaus(points, options);
    let climbs = flats
        .last()
        .is_some_and(|flat| tail_climbs(points, flat.last));
    let plateaus: Vec<Plateau> = flats
        .iter()
        .enumerate()
        .map(|(index, flat)| {
            let inside = &points[flat.first..=flat.last];
            // The points of the next plateau, or the rest of the curve if it goes on climbing.
            let beyond = flats.get(index + 1).map(|next| next.first..=next.last);
            let size = match beyond {
                Some(next) => knee::locate(points, flat, Some(next), options.page_bytes),
                None if climbs => knee::locate(points, flat, None, options.page_bytes),
                None => None,
            };
            Plateau {
                from_bytes: inside[0].size_bytes,
                to_bytes: inside[inside.len() - 1].size_bytes,
                latency_ns: latency(inside),
                size,
            }
        })
        .collect();
    let end = curve_end(&plateaus, climbs, points, options);
    Levels {
        plateaus,
        end,
        outliers: prepared.outliers,
        selection: Selection::Segments,
    }
}

/// Reads the curve as a sum of steps, first with its own scatter. Errors that neighbouring points
/// have in common (placement of pages, a table that is nearly right) do not show in the scatter,
/// so smooth curves are tried again with a larger one.
fn read_as_steps(points: &[Prepared], scatter: f64, options: &LevelOptions) -> steps::CurveReading {
    let mut answer = steps::fit(points, scatter, options);
    for sigma in SHARED_SIGMAS {
        if scatter < sigma && matches!(answer, steps::CurveReading::Neither) {
            answer = steps::fit(points, sigma, options);
        }
    }
    answer
}

/// Levels from a sum of steps; `None` if a level contains no point.
fn of_steps(
    prepared: &clean::Curve,
    found: &[estimate::Found],
    options: &LevelOptions,
) -> Option<Levels> {
    let points = &prepared.points;
    let flats = segment::plateaus(points, options);
    let mut from = 0;
    let mut plateaus = Vec::with_capacity(found.len());
    for (index, level) in found.iter().enumerate() {
        let to = match level.size {
            Some((size, _)) => {
                points.partition_point(|point| point.size_bytes as f64 <= size.value)
            }
            None => points.len(),
        };
        let inside = points.get(from..to)?;
        // On a climb with refined points `knee` determines the size better than the step does.
        let closely = match (level.size, flats.get(index), flats.get(index + 1)) {
            (Some((size, _)), Some(flat), Some(next))
                if flats.len() == found.len() && refined(points, size.value.log2()) =>
            {
                knee::locate(
                    points,
                    flat,
                    Some(next.first..=next.last),
                    options.page_bytes,
                )
            }
            _ => None,
        };
        plateaus.push(Plateau {
            from_bytes: inside.first()?.size_bytes,
            to_bytes: inside.last()?.size_bytes,
            latency_ns: level.latency,
            size: closely.or(level.size),
        });
        from = to;
    }
    let climbs = plateaus.last()?.size.is_some();
    let end = curve_end(&plateaus, climbs, points, options);
    Some(Levels {
        plateaus,
        end,
        outliers: prepared.outliers.clone(),
        selection: Selection::Steps,
    })
}

/// What follows the last plateau. `climbs` is true if the curve climbs behind it; otherwise the
/// stray points there belong to that plateau.
fn curve_end(
    plateaus: &[Plateau],
    climbs: bool,
    points: &[Prepared],
    options: &LevelOptions,
) -> Option<CurveEnd> {
    let last = plateaus.last()?;
    let largest_bytes = points.last()?.size_bytes;
    let bound = options.cache_bound_bytes.unwrap_or(UNKNOWN_CACHE_BOUND);
    let behind_caches = options.caches.is_some_and(|count| plateaus.len() > count);
    let goes_to = if climbs && !behind_caches {
        last.to_bytes
    } else {
        largest_bytes
    };
    Some(if goes_to >= bound {
        CurveEnd::Memory
    } else if climbs {
        CurveEnd::Climbing { largest_bytes }
    } else {
        CurveEnd::MaybeCache { largest_bytes }
    })
}

/// True if points lie as densely around a size as a refined sweep places them.
fn refined(points: &[Prepared], octave: f64) -> bool {
    points
        .windows(2)
        .filter(|pair| (pair[0].octave - octave).abs() <= 0.5)
        .filter(|pair| pair[1].octave - pair[0].octave < 0.1)
        .count()
        >= 3
}

/// True if a climb follows point `last`, and not just a stray point or two.
fn tail_climbs(points: &[Prepared], last: usize) -> bool {
    let tail = &points[last + 1..];
    let plateau = points[last].log_ns;
    tail.len() >= 2 && tail[1..].iter().all(|point| point.log_ns > plateau + 0.15)
}

/// The median latency of a plateau in nanoseconds, with its interval.
fn latency(inside: &[Prepared]) -> Interval {
    let of = |share: f64| {
        let values: Vec<f64> = inside.iter().map(|point| point.log_ns).collect();
        quantile(&values, share).map_or(f64::NAN, f64::exp)
    };
    let error = inside
        .iter()
        .map(|point| point.sigma * point.sigma)
        .sum::<f64>()
        .sqrt()
        / inside.len() as f64;
    let value = of(0.5);
    Interval {
        value,
        low: of(0.05).min(value * (-1.96 * error).exp()),
        high: of(0.95).max(value * (1.96 * error).exp()),
    }
}
