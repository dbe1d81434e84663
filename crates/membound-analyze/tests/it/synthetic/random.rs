//! Random numbers that are the same in every run.

/// Steele, Lea and Flood's SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((self.share() * end as f64) as u64).min(end.saturating_sub(1))
    }

    /// One of `choices`, by its weight.
    pub(crate) fn choose<'a, T>(&mut self, choices: &'a [(T, f64)]) -> &'a T {
        let sum: f64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.share() * sum;
        for (choice, weight) in choices {
            if left < *weight {
                return choice;
            }
            left -= weight;
        }
        &choices[choices.len() - 1].0
    }
}
