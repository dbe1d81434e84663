//! The levels found in a curve: their plateaus, and what follows the last one.

use membound_types::{Level, LevelKind};

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
