//! Random hierarchies with known levels, and the curves that they would show.
//!
//! The sizes of neighbouring levels differ by a factor of 4 to 64 and their latencies by
//! 1.5 to 10, both uniform in the logarithm. The time for a buffer larger than a level
//! depends on how accesses leave the level ([`MissShape`]); a level's size is where they
//! begin to leave it, or with a symmetric blur its centre.

use membound_model::CurvePoint;

use membound_testkit::Random;

/// Points per octave.
const PER_OCTAVE: f64 = 6.0;

/// How the share of accesses that miss a level grows beyond its size S, with x = area ÷ S.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MissShape {
    /// Random windows (document 002, equation 5): 1 − 1/x.
    Windows,
    /// All accesses miss from x = 1 on.
    Step,
    /// Proportional to the size, until all miss at 1.1 to 2 times S, drawn for every level:
    /// LRU in a cyclic walk, whose sets overflow one after the other.
    Cyclic,
    /// Random replacement in a cyclic walk: hits are h = exp(−(1 − h)·x).
    Replaced,
    /// 1 − x^−γ with γ from 1 to 4, drawn for every level.
    Power,
    /// Logistic in ln x, from 10 to 90 % within 0.3 to 1.5 octaves, drawn for every curve.
    Blurred,
    /// Like `Blurred`, but for the logarithm of the latency.
    LogBlurred,
    /// Each level has another of these ways.
    Mixed,
}

/// Noise and outliers that are added to the truth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    /// Standard deviation of ln(ns).
    pub(crate) noise: f64,
    /// Share of points that are outliers.
    pub(crate) outliers: f64,
    /// True if outliers can also be too low.
    pub(crate) both_ways: bool,
}

/// The disturbance at which the required scores must be reached.
pub(crate) const ASKED: Disturbance = Disturbance {
    noise: 0.03,
    outliers: 0.02,
    both_ways: false,
};

/// Levels, innermost first, and how accesses leave each but the last.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchy {
    /// Bytes at which each level but the last ends.
    pub(crate) sizes: Vec<f64>,
    /// Latency of each level in nanoseconds.
    pub(crate) latencies: Vec<f64>,
    /// One way per size.
    shapes: Vec<DrawnShape>,
}

/// A [`MissShape`] with its parameter drawn.
#[derive(Clone, Copy, Debug)]
enum DrawnShape {
    Power(f64),
    Linear(f64),
    Replaced,
    Logistic(f64),
    LogLogistic(f64),
}

impl DrawnShape {
    fn draw(shape: MissShape, curve_width: f64, random: &mut Random) -> Self {
        match shape {
            MissShape::Windows => Self::Power(1.0),
            MissShape::Step => Self::Linear(1.0 + 1e-9),
            MissShape::Cyclic => Self::Linear(random.log_uniform(1.1, 2.0)),
            MissShape::Replaced => Self::Replaced,
            MissShape::Power => Self::Power(random.log_uniform(1.0, 4.0)),
            MissShape::Blurred => Self::Logistic(curve_width),
            MissShape::LogBlurred => Self::LogLogistic(curve_width),
            MissShape::Mixed => {
                const SHAPES: [MissShape; 6] = [
                    MissShape::Windows,
                    MissShape::Step,
                    MissShape::Cyclic,
                    MissShape::Replaced,
                    MissShape::Power,
                    MissShape::Blurred,
                ];
                let shape = SHAPES[(random.next() % 6) as usize];
                Self::draw(shape, curve_width, random)
            }
        }
    }

    /// Share of misses at x.
    fn misses(self, x: f64) -> f64 {
        match self {
            Self::Power(gamma) => 1.0 - x.max(1.0).powf(-gamma),
            Self::Linear(until) => ((x - 1.0) / (until - 1.0)).clamp(0.0, 1.0),
            Self::Replaced => replaced(x),
            Self::Logistic(octaves) | Self::LogLogistic(octaves) => {
                let steepness = 2.0 * 9.0_f64.ln() / (octaves * std::f64::consts::LN_2);
                1.0 / (1.0 + x.powf(-steepness))
            }
        }
    }
}

fn replaced(x: f64) -> f64 {
    if x <= 1.0 {
        return 0.0;
    }
    let mut hits = 0.0_f64;
    for _ in 0..300 {
        hits = (-(1.0 - hits) * x).exp();
    }
    1.0 - hits
}

impl Hierarchy {
    /// Given levels: bytes and nanoseconds of each but the last, and the last's nanoseconds.
    pub(crate) fn given(levels: &[(f64, f64)], last_ns: f64, shape: MissShape) -> Self {
        let mut random = Random::new(0);
        Self {
            sizes: levels.iter().map(|level| level.0).collect(),
            latencies: levels
                .iter()
                .map(|level| level.1)
                .chain([last_ns])
                .collect(),
            shapes: levels
                .iter()
                .map(|_| DrawnShape::draw(shape, 0.5, &mut random))
                .collect(),
        }
    }

    /// A hierarchy of 2 to 7 levels, the last of which is memory.
    pub(crate) fn random(shape: MissShape, random: &mut Random) -> Self {
        let count = 2 + (random.next() % 6) as usize;
        let width = random.log_uniform(0.3, 1.5);
        let mut hierarchy = Self {
            sizes: vec![random.log_uniform(4096.0, 65536.0)],
            latencies: vec![random.log_uniform(0.5, 2.0)],
            shapes: Vec::new(),
        };
        for index in 1..count {
            let latency = hierarchy.latencies[index - 1] * random.log_uniform(1.5, 10.0);
            hierarchy.latencies.push(latency);
            if index + 1 < count {
                let size = hierarchy.sizes[index - 1] * random.log_uniform(4.0, 64.0);
                hierarchy.sizes.push(size);
            }
            hierarchy
                .shapes
                .push(DrawnShape::draw(shape, width, random));
        }
        hierarchy
    }

    /// Nanoseconds per access over `area` bytes.
    pub(crate) fn ns(&self, area: f64) -> f64 {
        let (mut sum, mut product) = (self.latencies[0], 1.0);
        for (index, size) in self.sizes.iter().enumerate() {
            let (from, to) = (self.latencies[index], self.latencies[index + 1]);
            let misses = self.shapes[index].misses(area / size);
            match self.shapes[index] {
                DrawnShape::LogLogistic(_) => product *= (to / from).powf(misses),
                _ => sum += (to - from) * misses,
            }
        }
        sum * product
    }

    /// The curve at six points per octave, from three or four octaves below the first size
    /// to four to six beyond the last.
    pub(crate) fn curve(&self, disturbance: Disturbance, random: &mut Random) -> Vec<CurvePoint> {
        let from = self.sizes[0] / random.log_uniform(8.0, 16.0);
        let to = self.sizes[self.sizes.len() - 1] * random.log_uniform(16.0, 64.0);
        self.curve_between(from, to, PER_OCTAVE, disturbance, random)
    }

    /// The curve between two sizes.
    pub(crate) fn curve_between(
        &self,
        from: f64,
        to: f64,
        per_octave: f64,
        disturbance: Disturbance,
        random: &mut Random,
    ) -> Vec<CurvePoint> {
        let steps = ((to / from).log2() * per_octave).floor() as u32;
        (0..=steps)
            .map(|step| {
                let area = (from * (f64::from(step) / per_octave).exp2()).round();
                point(area, self.ns(area), disturbance, random)
            })
            .collect()
    }
}

/// A point with the true time `ns`, disturbed. Its interval is empty, as in a file with two
/// columns.
pub(crate) fn point(
    area: f64,
    ns: f64,
    disturbance: Disturbance,
    random: &mut Random,
) -> CurvePoint {
    let mut ns = ns * (disturbance.noise * random.normal()).exp();
    if random.unit() < disturbance.outliers {
        let factor = random.log_uniform(1.3, 5.0);
        let shorter = disturbance.both_ways && random.unit() < 0.5;
        ns *= if shorter { factor.recip() } else { factor };
    }
    CurvePoint {
        size_bytes: area as u64,
        ns,
        ns_low: ns,
        ns_high: ns,
    }
}
