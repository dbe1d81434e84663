//! How accesses leave a level: the shapes that the sum of steps tries.
//!
//! Each shape is the share of accesses that miss a level of S bytes in a buffer of a bytes, as a
//! function of log₂(a/S). Powers 1 − (S/a)^γ are one-sided: γ = 1 is the expected value
//! over random windows (document 002, equation 5), a large γ a step. Linear shapes belong to
//! LRU in a cyclic walk, whose sets overflow one after the other, h = exp(−(1 − h)·a/S) to
//! random replacement there. Logistic shapes, in log a, are symmetric: they describe any effect
//! that blurs a capacity from both sides.

use std::sync::LazyLock;

use super::plateaus::Knee;

/// Octaves below and above S that are tabulated, and steps per octave.
const OCTAVES_BELOW: f64 = 6.0;
const OCTAVES_ABOVE: f64 = 15.0;
const STEPS_PER_OCTAVE: f64 = 32.0;

/// Shares of misses nearer than this to 0 or 1 count as 0 or 1.
const NEGLIGIBLE: f64 = 1e-4;

/// One shape, tabulated.
pub(crate) struct MissShape {
    /// The meaning of a size found with this shape.
    pub(crate) knee: Knee,
    /// True if the misses rise slowly, as over random windows or beyond the reach of a TLB.
    pub(crate) gentle: bool,
    /// True if smooth enough in S for a standard error of the size from derivatives.
    pub(crate) smooth: bool,
    /// True if tried for a whole curve; other shapes are tried only for single steps.
    pub(crate) common: bool,
    /// Index of the most similar shape; the difference gives the error of the shape.
    pub(crate) neighbour: usize,
    /// log₂(a/S) up to which nothing misses and from which everything does.
    pub(crate) from: f64,
    pub(crate) to: f64,
    misses: Vec<f64>,
}

/// The tabulated functions; x is a/S.
#[derive(Clone, Copy)]
enum Form {
    /// 1 − x^−γ.
    Power(f64),
    /// Linear from x = 1 to this x.
    Linear(f64),
    /// Random replacement in a cyclic walk.
    Replaced,
    /// 1/(1 + x^−k).
    Logistic(f64),
    /// Linear in ln x up to this x: a share of a cache that shrinks.
    Ramp(f64),
    /// Logistic in the logarithm of the latency: steepness, and ratio of the latencies of the step.
    LogLogistic(f64, f64),
}

/// All shapes, and whether each is tried for whole curves.
const FORMS: [(Form, bool); 30] = [
    (Form::Power(1.0), true),
    (Form::Power(1.25), false),
    (Form::Power(1.6), false),
    (Form::Power(2.0), true),
    (Form::Power(2.6), false),
    (Form::Power(3.5), false),
    (Form::Power(5.0), true),
    (Form::Linear(1.02), true),
    (Form::Linear(1.3), false),
    (Form::Linear(1.6), true),
    (Form::Linear(2.0), false),
    (Form::Replaced, true),
    (Form::Logistic(3.4), false),
    (Form::Logistic(4.2), true),
    (Form::Logistic(5.4), false),
    (Form::Logistic(7.2), true),
    (Form::Logistic(11.0), true),
    (Form::Logistic(18.0), false),
    (Form::LogLogistic(4.2, 3.0), true),
    (Form::LogLogistic(5.4, 3.0), false),
    (Form::LogLogistic(7.2, 3.0), false),
    (Form::LogLogistic(11.0, 3.0), false),
    (Form::LogLogistic(4.2, 7.0), false),
    (Form::LogLogistic(5.4, 7.0), true),
    (Form::LogLogistic(7.2, 7.0), false),
    (Form::LogLogistic(11.0, 7.0), false),
    (Form::Ramp(3.0), false),
    (Form::Ramp(5.0), false),
    (Form::Ramp(8.0), false),
    (Form::Ramp(16.0), false),
];

impl Form {
    fn misses(self, x: f64) -> f64 {
        match self {
            Self::Power(gamma) => 1.0 - x.max(1.0).powf(-gamma),
            Self::Linear(until) => ((x - 1.0) / (until - 1.0)).clamp(0.0, 1.0),
            Self::Replaced => replaced(x),
            Self::Ramp(until) => (x.ln() / until.ln()).clamp(0.0, 1.0),
            Self::Logistic(steepness) => 1.0 / (1.0 + x.powf(-steepness)),
            Self::LogLogistic(steepness, ratio) => {
                (ratio.powf(1.0 / (1.0 + x.powf(-steepness))) - 1.0) / (ratio - 1.0)
            }
        }
    }

    fn knee(self) -> Knee {
        match self {
            Self::Power(gamma) if gamma <= 2.0 => Knee::Gradual,
            Self::Ramp(_) => Knee::Gradual,
            Self::Logistic(_) | Self::LogLogistic(..) => Knee::Blurred,
            _ => Knee::Sharp,
        }
    }

    fn smooth(self) -> bool {
        match self {
            Self::Power(_) | Self::Ramp(_) => true,
            Self::Linear(_) | Self::Replaced => false,
            Self::Logistic(steepness) | Self::LogLogistic(steepness, _) => steepness < 10.0,
        }
    }
}

impl MissShape {
    fn new(index: usize, form: Form, common: bool) -> Self {
        let steps = ((OCTAVES_BELOW + OCTAVES_ABOVE) * STEPS_PER_OCTAVE) as usize;
        let at = |step: usize| step as f64 / STEPS_PER_OCTAVE - OCTAVES_BELOW;
        let misses: Vec<f64> = (0..=steps)
            .map(|step| form.misses(at(step).exp2()))
            .collect();
        let from = misses.partition_point(|misses| *misses < NEGLIGIBLE);
        let to = misses.partition_point(|misses| *misses < 1.0 - NEGLIGIBLE);
        Self {
            knee: form.knee(),
            gentle: matches!(form, Form::Power(gamma) if gamma < 1.5),
            smooth: form.smooth(),
            common,
            neighbour: match index {
                6 | 10 | 17 | 21 | 25 | 29 => index - 1,
                11 => 9,
                _ => index + 1,
            },
            from: at(from.saturating_sub(1)),
            to: at(to.min(steps)),
            misses,
        }
    }

    /// All shapes, computed once.
    pub(crate) fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<MissShape>> = LazyLock::new(|| {
            FORMS
                .into_iter()
                .enumerate()
                .map(|(index, (form, common))| MissShape::new(index, form, common))
                .collect()
        });
        &ALL
    }

    /// Share of misses at log₂(a/S) = `octaves`.
    pub(crate) fn misses(&self, octaves: f64) -> f64 {
        let place = (octaves + OCTAVES_BELOW) * STEPS_PER_OCTAVE;
        if place <= 0.0 {
            return 0.0;
        }
        let below = place as usize;
        match (self.misses.get(below), self.misses.get(below + 1)) {
            (Some(low), Some(high)) => low + (place - below as f64) * (high - low),
            _ => 1.0,
        }
    }
}

/// Share of misses with random replacement in a cyclic walk over x times the capacity.
fn replaced(x: f64) -> f64 {
    if x <= 1.0 {
        return 0.0;
    }
    // Started at zero hits the iteration converges; near x = 1 the hits fall with slope 2.
    let mut hits = 0.0_f64;
    for _ in 0..400 {
        hits = (-(1.0 - hits) * x).exp();
    }
    1.0 - hits
}
