//! A small generator for orders and seeds.
//!
//! Emitted kernels carry the same generator in their loops, so its step is spelled out
//! here once: a 64-bit linear congruential step whose high bits are used.

/// Multiplier of the step (Knuth's MMIX).
pub(crate) const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
/// Increment of the step (Knuth's MMIX).
pub(crate) const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// Generator state.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn state(&self) -> u64 {
        self.0
    }

    /// A number below `bound`, uniform up to 2⁻⁶⁴·bound.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        high_product(self.0, bound)
    }
}

/// A hash of `index` under `seed`: a number below `bound` that can be computed without the
/// numbers before it. Source: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) const fn hashed_below(seed: u64, index: u64, bound: u64) -> u64 {
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    high_product(x ^ (x >> 31), bound)
}

const fn high_product(x: u64, bound: u64) -> u64 {
    ((x as u128 * bound as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_over_their_range() {
        let mut random = Random::new(7);
        let mut drawn = [0_u32; 16];
        let mut hashed = [0_u32; 16];
        for index in 0..16_000 {
            drawn[random.below(16) as usize] += 1;
            hashed[hashed_below(7, index, 16) as usize] += 1;
        }
        for count in drawn.into_iter().chain(hashed) {
            assert!((850..1150).contains(&count), "{count} of about 1000");
        }
    }
}
