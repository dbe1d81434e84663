//! The share of loads that miss a cache, for every kind of cache that the fit tries.
//!
//! ```text
//! m(x)  = m₀(x)   or   E[m₀((1 + n)/W)],  n ~ Poisson(W·x)
//! m₀(x) = 1 − exp(−k·(x − 1)₊ᵖ)
//! ```
//!
//! x is the size of a cyclic random walk ÷ capacity. A large k is LRU (everything misses
//! just above the capacity); p = ½ describes policies that keep a part of a set. The family also
//! has random replacement (hits h = exp(−(1 − h)·x), which fall with slope 2 at x = 1) and ramps
//! m₀ = ln(x)/ln(r). The expectation is over pages of random colour in a physically indexed cache
//! of W ways: some colours overflow before the whole cache is full, so misses begin at x = 0.6
//! or so.

use std::sync::LazyLock;

use super::plateaus::Knee;

/// Costs of a soft climb and of a ramp relative to a sharp climb, in −2·ln(likelihood).
const SOFT_COST: f64 = 3.0;
const RAMP_COST: f64 = 10.0;

/// Policies as (k, p): from random replacement to LRU, and policies that keep a part of a set.
/// None is slower than random replacement: even the best policy misses at least 1 − C/S of a
/// cyclic walk.
const POLICIES: [(f64, f64); 8] = [
    (3.5, 1.0),
    (7.0, 1.0),
    (15.0, 1.0),
    (40.0, 1.0),
    (1.2, 0.5),
    (2.0, 0.5),
    (3.5, 0.5),
    (7.0, 0.5),
];

/// Lengths of ramps, as the ratio of sizes over which the hits fall to zero.
const RAMPS: [f64; 3] = [5.0, 8.0, 16.0];

/// Numbers of ways of a cache whose pages have random colours.
const WAYS: [u32; 4] = [24, 16, 12, 8];

/// Range of log₂(S/C) over which the share of misses is tabulated, and steps per octave.
const TABLE_FROM: f64 = -2.5;
const TABLE_TO: f64 = 5.0;
const TABLE_STEPS: f64 = 64.0;

/// How the hits fall beyond the capacity.
#[derive(Clone, Copy)]
enum Fading {
    /// Random replacement: the hits are h = exp(−(1 − h)·x).
    Random,
    /// 1 − exp(−rate·(x − 1)^power) of the loads miss.
    Policy { rate: f64, power: f64 },
    /// ln(x)/ln(until) of the loads miss.
    Ramp { until: f64 },
}

/// One member of the family of climbs.
pub(crate) struct Shape {
    fading: Fading,
    /// Ways of the cache if pages have random colours; `None` if colours have no effect.
    ways: Option<u32>,
    /// Cost of using this shape, in −2·ln(likelihood).
    pub(crate) cost: f64,
    /// The meaning of a size found with this shape.
    pub(crate) knee: Knee,
    /// Share of misses at S/C = 2^(`TABLE_FROM` + i/`TABLE_STEPS`).
    misses: Vec<f64>,
}

impl Fading {
    /// Share of loads that miss if the data are `filled` times the cache, or the colour.
    fn misses(self, filled: f64) -> f64 {
        if filled <= 1.0 {
            return 0.0;
        }
        match self {
            Self::Random => random_replacement(filled),
            Self::Policy { rate, power } => {
                let over = filled - 1.0;
                let over = if power == 1.0 { over } else { over.powf(power) };
                1.0 - (-rate * over).exp()
            }
            Self::Ramp { until } => (filled.ln() / until.ln()).min(1.0),
        }
    }

    /// Variance of the share of misses over draws of page colours, relative to that of an
    /// empirical distribution over as many colours.
    ///
    /// It is smaller because the number of pages is given, so an overfull colour makes another one less
    /// full, and because a policy that misses little in an overfull colour spreads little. The formula
    /// was found by simulation.
    fn draw_variance(self) -> f64 {
        let rate = match self {
            Self::Random => 2.0,
            Self::Policy { rate, .. } => rate,
            Self::Ramp { .. } => return 0.0,
        };
        0.4 * rate / (rate + 2.0)
    }
}

impl Shape {
    fn new(fading: Fading, ways: Option<u32>) -> Self {
        let (cost, knee) = match (fading, ways) {
            (Fading::Ramp { .. }, _) => (RAMP_COST, Knee::Gradual),
            (_, Some(_)) => (SOFT_COST, Knee::Blurred),
            (_, None) => (0.0, Knee::Sharp),
        };
        let steps = ((TABLE_TO - TABLE_FROM) * TABLE_STEPS) as usize;
        let misses = (0..=steps)
            .map(|step| {
                let filled = (TABLE_FROM + step as f64 / TABLE_STEPS).exp2();
                match ways {
                    Some(ways) => coloured(fading, ways, filled),
                    None => fading.misses(filled),
                }
            })
            .collect();
        Self {
            fading,
            ways,
            cost,
            knee,
            misses,
        }
    }

    /// The family, computed once.
    pub(crate) fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Shape>> = LazyLock::new(|| {
            let policies: Vec<Fading> = std::iter::once(Fading::Random)
                .chain(POLICIES.map(|(rate, power)| Fading::Policy { rate, power }))
                .collect();
            let soft = [
                Fading::Random,
                Fading::Policy {
                    rate: 40.0,
                    power: 1.0,
                },
                Fading::Policy {
                    rate: 1.2,
                    power: 0.5,
                },
            ];
            policies
                .into_iter()
                .map(|fading| Shape::new(fading, None))
                .chain(
                    WAYS.into_iter()
                        .flat_map(|ways| soft.map(|fading| Shape::new(fading, Some(ways)))),
                )
                .chain(RAMPS.map(|until| Shape::new(Fading::Ramp { until }, None)))
                .collect()
        });
        &ALL
    }

    /// Share of loads that miss at log₂(S/C) = `octaves`.
    pub(crate) fn misses(&self, octaves: f64) -> f64 {
        let place = (octaves - TABLE_FROM) * TABLE_STEPS;
        if place <= 0.0 {
            return 0.0;
        }
        let below = place as usize;
        match (self.misses.get(below), self.misses.get(below + 1)) {
            (Some(low), Some(high)) => low + (place - below as f64) * (high - low),
            _ => 1.0,
        }
    }

    /// Factor v such that draws of page colours give the share of misses m the variance v·m·(1 − m).
    ///
    /// `capacity` and `page` are in bytes; the number of colours is the number of pages in one way.
    pub(crate) fn draw_variance(&self, capacity: f64, page: f64) -> f64 {
        self.ways.map_or(0.0, |ways| {
            let colours = (capacity / f64::from(ways) / page).max(2.0);
            self.fading.draw_variance() / colours
        })
    }
}

/// Share of loads that miss if the pages of `filled` times the capacity fall at random into
/// colours of `ways` pages. A load's own page is in its colour with certainty, the number of
/// others there is Poisson distributed.
fn coloured(fading: Fading, ways: u32, filled: f64) -> f64 {
    let ways = f64::from(ways);
    let mean = filled * ways;
    let most = (mean + 8.0 * mean.sqrt() + 8.0) as u32;
    let mut log_weight = -mean;
    let mut misses = 0.0;
    for others in 0..=most {
        if others > 0 {
            log_weight += (mean / f64::from(others)).ln();
        }
        misses += log_weight.exp() * fading.misses((1.0 + f64::from(others)) / ways);
    }
    misses.min(1.0)
}

/// Share of loads that miss a cache with random replacement in a cyclic walk over `filled`
/// times its capacity.
fn random_replacement(filled: f64) -> f64 {
    /// Steps of the table per unit of `filled`, and the largest `filled` in it.
    const STEPS: f64 = 64.0;
    const MAX_TABULATED_FILLED: f64 = 8.0;
    static TABLE: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let mut misses = 0.0_f64;
        (0..=((MAX_TABULATED_FILLED - 1.0) * STEPS) as usize)
            .map(|step| {
                let filled = 1.0 + step as f64 / STEPS;
                // Newton's method on m = 1 − exp(−m·x), started above the root, where it converges.
                misses = (2.0 * (filled - 1.0)).min(1.0).max(misses);
                for _ in 0..40 {
                    let left = (-misses * filled).exp();
                    let slope = 1.0 - filled * left;
                    if slope.abs() < 1e-12 {
                        break;
                    }
                    misses = (misses - (misses - 1.0 + left) / slope).clamp(0.0, 1.0);
                }
                misses
            })
            .collect()
    });
    let place = (filled - 1.0) * STEPS;
    let below = place.floor() as usize;
    match (TABLE.get(below), TABLE.get(below + 1)) {
        (Some(low), Some(high)) => low + (place - below as f64) * (high - low),
        _ => 1.0 - (-filled).exp(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_replacement_satisfies_its_equation() {
        for filled in [1.0, 1.05, 1.386_294, 2.0, 3.3, 7.9, 20.0] {
            let misses = random_replacement(filled);
            let hits = 1.0 - misses;
            assert!(
                (hits - (-misses * filled).exp()).abs() < 2e-3,
                "{filled} {misses}"
            );
        }
        assert!((random_replacement(1.386_294) - 0.5).abs() < 1e-3);
        assert!(random_replacement(1.0) < 1e-6);
    }

    #[test]
    fn every_shape_rises_from_none_to_all_and_colours_begin_early() {
        for shape in Shape::all() {
            let curve: Vec<f64> = (-20..=40)
                .map(|k| shape.misses(f64::from(k) / 8.0))
                .collect();
            assert!(curve.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
            assert!(curve[0] < 1e-3 && curve[60] > 0.95);
            let at_three_quarters = shape.misses(0.75_f64.log2());
            assert_eq!(at_three_quarters > 1e-4, shape.ways.is_some());
        }
    }

    #[test]
    fn lru_in_colours_misses_half_at_its_capacity() {
        let lru = Fading::Policy {
            rate: 40.0,
            power: 1.0,
        };
        for ways in WAYS {
            let misses = coloured(lru, ways, 1.0);
            assert!((misses - 0.5).abs() < 0.08, "{ways} ways: {misses}");
        }
    }
}
