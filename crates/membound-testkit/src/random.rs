//! Pseudo-random numbers that are the same for the same seed on every machine.

use std::f64::consts::TAU;

/// Steele, Lea and Flood's SplitMix64 (OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, but not including, `limit`, which must not be 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From `least` to `most`, both of them included.
    pub const fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `of` times on average.
    pub const fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// One element of `of`, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// One of `choices`, which must not be empty, by its weight.
    pub fn choose<'a, T>(&mut self, choices: &'a [(T, f64)]) -> &'a T {
        let sum: f64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.unit() * sum;
        for (choice, weight) in choices {
            if left < *weight {
                return choice;
            }
            left -= weight;
        }
        &choices[choices.len() - 1].0
    }

    /// Uniformly distributed between 0 and 1, both excluded.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Between two positive numbers, with a uniformly distributed logarithm.
    pub fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * (self.unit() * (most / least).ln()).exp()
    }

    /// Normally distributed with mean 0 and standard deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // The first ones of seed 1234567, as in the generator's reference program.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_keep_to_their_bounds() {
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..1000).map(|_| random.between(3, 6)).collect();
        assert!(drawn.iter().all(|it| (3..=6).contains(it)));
        assert!((3..=6).all(|it| drawn.contains(&it)));
        assert_eq!(random.pick(&[5]), &5);
        assert_eq!(random.choose(&[(1, 0.0), (2, 3.0)]), &2);
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let mut random = Random::new(11);
        let drawn: Vec<f64> = (0..10_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 1e4;
        let variance = drawn.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }
}
