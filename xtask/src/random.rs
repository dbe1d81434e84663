//! Pseudo-random numbers that are the same for the same seed.

/// Steele, Lea and Flood's SplitMix64 (OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 up to, but not including, `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From `least` to `most`, both of them included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `of` times on average.
    pub(crate) fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// One element of `of`, which must not be empty.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let count = u64::try_from(of.len()).expect("a length is a number");
        let at = usize::try_from(self.below(count)).expect("it is below a length");
        &of[at]
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
    }
}
