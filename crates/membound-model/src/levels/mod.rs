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
mod knee;
mod leaving;
mod refine;
mod segment;
mod smooth;
mod steps;

pub use refine::suggest_refinement;

use membound_types::{Level, LevelKind};

use crate::stats::quantile;
use clean::Prepared;

/// Bytes that replace [`LevelOptions::cache_bound_bytes`] if that is `None`.
const UNKNOWN_CACHE_BOUND: u64 = 512 << 20;

/// Errors of ln(ns) that neighbouring points may have in common.
const SHARED_SIGMAS: [f64; 1] = [0.01];

/// One point of a latency curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Size of the buffer in bytes.
    pub size_bytes: u64,
    /// Time per load in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
}

/// Limits for plateaus and for steps between them. They are properties of caches in general, not
/// of one CPU; the defaults hold for every machine measured so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelOptions {
    /// Least extent of a plateau, in octaves of size.
    pub least_span_octaves: f64,
    /// Steepest plateau, as change of ln(ns) per octave. A TLB and a shared cache tilt
    /// plateaus.
    pub steepest_plateau: f64,
    /// Least ratio between the latencies of neighbouring levels. A miss that the next TLB level
    /// serves stays below it.
    pub least_ratio: f64,
    /// Least ratio between neighbouring latencies if the whole curve is a sum of steps: there a step
    /// can only be a level.
    pub least_step: f64,
    /// Least steepness that a climb between levels must have over half an octave, as
    /// change of ln(ns) per octave. The reach of a TLB gives a slower climb.
    pub least_climb: f64,
    /// Least distance between the ends of neighbouring caches, in octaves of size. In a
    /// physically indexed cache with pages of random colour, colours that overflow early
    /// give short flat parts of the climb.
    pub least_separation_octaves: f64,
    /// Size in bytes of the pages that the machine places at random; the number of colours of a
    /// physically indexed cache is the number of pages in one way.
    pub page_bytes: u64,
    /// Size beyond which no cache of this machine can hold a buffer: a plateau that extends
    /// beyond it is memory. 512 MiB if `None`.
    pub cache_bound_bytes: Option<u64>,
    /// Number of caches on the way to memory, if known.
    ///
    /// The plateau after the last of them is memory if the curve extends beyond the cache bound, even
    /// if the curve climbs there: page walks whose tables lie in memory look like a cache that ends.
    pub caches: Option<usize>,
}

impl Default for LevelOptions {
    fn default() -> Self {
        Self {
            least_span_octaves: 0.7,
            steepest_plateau: 0.2,
            least_ratio: 1.4,
            least_step: 1.1,
            least_climb: 0.42,
            least_separation_octaves: 1.3,
            page_bytes: 4096,
            cache_bound_bytes: None,
            caches: None,
        }
    }
}

/// A value with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// How a plateau ends, which decides what its size means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knee {
    /// Within a few per cent of size: the size is where the climb begins.
    Sharp,
    /// The climb begins before the capacity because some sets fill earlier than others
    /// (pages of random colour in a physically indexed cache): the size is the capacity
    /// at which such a climb is centred.
    Blurred,
    /// A long climb: the size is where it begins.
    Gradual,
}

/// A run of sizes with one latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// Smallest size on it.
    pub from_bytes: u64,
    /// Largest size on it.
    pub to_bytes: u64,
    /// Latency: the median over its points, with the range that holds nine tenths of them
    /// (a plateau may be tilted) or, if that is wider, their intervals.
    pub latency_ns: Interval,
    /// Effective size in bytes and how the plateau ends; `None` for the outermost.
    pub size: Option<(Interval, Knee)>,
}

/// What follows the last plateau of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CurveEnd {
    /// Memory: the plateau extends beyond the size of every cache.
    Memory,
    /// A plateau that a cache could still hold: the curve is too short to decide.
    MaybeCache {
        /// Largest size measured, in bytes.
        largest_bytes: u64,
    },
    /// A climb: the next level lies beyond the curve.
    Climbing {
        /// Largest size measured, in bytes.
        largest_bytes: u64,
    },
}

/// How the number of levels was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By Schwarz's criterion among sums of steps; the best sum describes the curve within its
    /// scatter.
    Steps,
    /// By the cheapest division into plateaus and climbs; no sum of steps describes the
    /// curve within its scatter.
    Segments,
    /// A smooth ramp describes the curve better than any sum of steps: no levels.
    Ramp,
}

impl Selection {
    /// A sentence for a report.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Steps => {
                "sums of steps that describe the curve to within its scatter, their number by \
                 Schwarz's criterion (BIC) and against smooth ramps"
            }
            Self::Segments => {
                "penalised division into plateaus and climbs, as no sum of steps describes the \
                 curve to within its scatter; steps that differ too little or climb too gently \
                 are merged"
            }
            Self::Ramp => {
                "a smooth ramp describes the curve better than any sum of steps by Schwarz's \
                 criterion (BIC): no levels"
            }
        }
    }
}

/// The levels found in a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    /// Plateaus, innermost first; empty if the curve has none.
    pub plateaus: Vec<Plateau>,
    /// What follows the last plateau; `None` without plateaus.
    pub end: Option<CurveEnd>,
    /// Sizes in bytes of the points that were excluded as disturbed.
    pub outliers: Vec<u64>,
    /// How the number of plateaus was chosen.
    pub selection: Selection,
}

impl Levels {
    /// The plateaus as levels of a machine profile: `L1`, `L2`, …, and `DRAM` for the last one if the
    /// curve ends in memory. Declared sizes and lines are left empty.
    ///
    /// `core_clock_hz` converts nanoseconds to cycles.
    #[must_use]
    pub fn to_levels(&self, core_clock_hz: f64) -> Vec<Level> {
        let last = self.plateaus.len().saturating_sub(1);
        self.plateaus
            .iter()
            .enumerate()
            .map(|(index, plateau)| {
                let memory = index == last && self.end == Some(CurveEnd::Memory);
                let bytes = |value: f64| value.round() as u64;
                // Memory ends where the machine's memory does, which the curve does not show.
                let size = plateau.size.filter(|_| !memory).map(|(size, _)| size);
                let open_end = match self.end {
                    Some(CurveEnd::MaybeCache { largest_bytes }) if index == last => {
                        Some(largest_bytes)
                    }
                    _ => None,
                };
                Level {
                    name: if memory {
                        "DRAM".to_owned()
                    } else {
                        format!("L{}", index + 1)
                    },
                    kind: if memory {
                        LevelKind::Memory
                    } else {
                        LevelKind::Cache
                    },
                    size_bytes: size.map(|size| bytes(size.value)),
                    size_low_bytes: size.map(|size| bytes(size.low)).or(open_end),
                    size_high_bytes: size.map(|size| bytes(size.high)),
                    latency_ns: plateau.latency_ns.value,
                    latency_low_ns: plateau.latency_ns.low,
                    latency_high_ns: plateau.latency_ns.high,
                    latency_cycles: plateau.latency_ns.value * core_clock_hz / 1e9,
                    line_bytes: None,
                    line_basis: None,
                    declared_bytes: None,
                    note: open_end.map(|_| {
                        "the curve ends on this plateau: a cache or memory, its size is not known"
                            .to_owned()
                    }),
                }
            })
            .collect()
    }

    /// Averages the sizes of inner caches with those of other curves of the same machine.
    ///
    /// Buffers on other pages lie elsewhere in a physically indexed cache, so each curve is
    /// another draw of the same capacity: sizes are averaged in ln(C), weighted by their
    /// intervals. Curves with another number of plateaus are not used, and the outermost cache is not
    /// averaged, because its share may differ from run to run.
    pub fn join_sizes(&mut self, others: &[Self]) {
        let count = self.plateaus.len();
        let alike: Vec<&Self> = others
            .iter()
            .filter(|other| other.plateaus.len() == count && other.end == self.end)
            .collect();
        for index in 0..count.saturating_sub(2) {
            let Some((own, knee)) = self.plateaus[index].size else {
                continue;
            };
            let (mut weights, mut sum) = (0.0, 0.0);
            for size in std::iter::once(own).chain(
                alike
                    .iter()
                    .filter_map(|other| other.plateaus[index].size.map(|(size, _)| size)),
            ) {
                let half = ((size.high / size.low).ln() / 2.0).max(1e-3);
                weights += half.powi(-2);
                sum += half.powi(-2) * size.value.ln();
            }
            let (mean, half) = (sum / weights, weights.sqrt().recip());
            self.plateaus[index].size = Some((
                Interval {
                    value: mean.exp(),
                    low: (mean - half).exp(),
                    high: (mean + half).exp(),
                },
                knee,
            ));
        }
    }

    /// Merges all plateaus beyond the largest possible cache size into one level of memory, for a
    /// machine with uniform memory, whose latency other programs or page walks changed during the
    /// curve. The latency is that of the longest plateau, between the bounds of all.
    pub fn join_memory(&mut self, cache_bound_bytes: u64) {
        let beyond = |plateau: &Plateau| {
            plateau
                .size
                .is_some_and(|(size, _)| size.low > cache_bound_bytes as f64)
        };
        let Some(first) = self.plateaus.iter().position(beyond) else {
            return;
        };
        let memory = self.plateaus.split_off(first);
        let octaves =
            |plateau: &Plateau| (plateau.to_bytes as f64 / plateau.from_bytes as f64).ln();
        let longest = memory
            .iter()
            .max_by(|a, b| octaves(a).total_cmp(&octaves(b)))
            .expect("one was found");
        let bound = |pick: fn(f64, f64) -> f64, of: fn(&Interval) -> f64| {
            let all = memory.iter().map(|plateau| of(&plateau.latency_ns));
            all.reduce(pick).expect("one was found")
        };
        self.plateaus.push(Plateau {
            from_bytes: memory[0].from_bytes,
            to_bytes: memory[memory.len() - 1].to_bytes,
            latency_ns: Interval {
                value: longest.latency_ns.value,
                low: bound(f64::min, |it| it.low),
                high: bound(f64::max, |it| it.high),
            },
            size: None,
        });
        self.end = Some(CurveEnd::Memory);
    }

    /// True if the curve ends in memory.
    #[must_use]
    pub fn reaches_memory(&self) -> bool {
        self.end == Some(CurveEnd::Memory)
    }
}

/// Finds the levels of `curve`, whose points may come in any order.
///
/// Points without a positive finite time or size are ignored; several points of one size
/// count as their median.
#[must_use]
pub fn find_levels(curve: &[CurvePoint], options: &LevelOptions) -> Levels {
    let prepared = clean::prepare(curve);
    let points = &prepared.points;
    match read_as_steps(points, prepared.scatter, options) {
        steps::Answer::Levels(found) => {
            if let Some(levels) = of_steps(&prepared, &found, options) {
                return levels;
            }
        }
        steps::Answer::Ramp => {
            return Levels {
                plateaus: Vec::new(),
                end: None,
                outliers: prepared.outliers,
                selection: Selection::Ramp,
            };
        }
        steps::Answer::Neither => {}
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
fn read_as_steps(points: &[Prepared], scatter: f64, options: &LevelOptions) -> steps::Answer {
    let mut answer = steps::fit(points, scatter, options);
    for sigma in SHARED_SIGMAS {
        if scatter < sigma && matches!(answer, steps::Answer::Neither) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_no_size_even_where_the_curve_still_climbs_behind_it() {
        let interval = |value: f64| Interval {
            value,
            low: value * 0.9,
            high: value * 1.1,
        };
        let plateau = |ns: f64, size: f64| Plateau {
            from_bytes: 1024,
            to_bytes: 2048,
            latency_ns: interval(ns),
            size: Some((interval(size), Knee::Gradual)),
        };
        let levels = Levels {
            plateaus: vec![plateau(1.0, 49_152.0), plateau(150.0, 6.5e8)],
            end: Some(CurveEnd::Memory),
            outliers: Vec::new(),
            selection: Selection::Segments,
        };
        let found = levels.to_levels(4e9);
        assert_eq!(found[0].size_bytes, Some(49_152));
        assert_eq!(
            (found[1].name.as_str(), found[1].size_bytes),
            ("DRAM", None)
        );
        assert_eq!(
            (found[1].size_low_bytes, found[1].size_high_bytes),
            (None, None)
        );
    }
}
