//! Draws histograms that could have been observed instead of the given one.

/// A pseudo-random source of histograms, the same in every run.
pub(super) struct Resampler {
    state: u64,
}

impl Resampler {
    pub(super) const fn new() -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Draws each count again from a Poisson distribution. An empty bin gets a small mean, because
    /// it might have had a count.
    pub(super) fn counts(&mut self, counts: &[f64]) -> Vec<f64> {
        let min_count = 0.5 / counts.len() as f64;
        counts
            .iter()
            .map(|&count| self.poisson(count.max(min_count)))
            .collect()
    }

    fn poisson(&mut self, mean: f64) -> f64 {
        const LARGE: f64 = 40.0;
        if mean > LARGE {
            return (mean + mean.sqrt() * self.normal()).max(0.0);
        }
        // Knuth's method: counts events until their waiting times exceed the interval.
        let limit = (-mean).exp();
        let mut product = self.even();
        let mut events = 0.0;
        while product > limit {
            product *= self.even();
            events += 1.0;
        }
        events
    }

    /// The sum of twelve uniform numbers, which is close enough to normal within 95 % intervals.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }

    /// A uniform number from 0 to 1 (splitmix64).
    fn even(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_the_mean_and_variance_of_poisson() {
        let mut resampler = Resampler::new();
        for mean in [0.5, 3.0, 20.0, 400.0] {
            let drawn: Vec<f64> = (0..4000).map(|_| resampler.poisson(mean)).collect();
            let average = drawn.iter().sum::<f64>() / 4000.0;
            let variance = drawn.iter().map(|it| (it - average).powi(2)).sum::<f64>() / 4000.0;
            assert!((average / mean - 1.0).abs() < 0.08, "{mean}: {average}");
            assert!((variance / mean - 1.0).abs() < 0.15, "{mean}: {variance}");
        }
    }
}
