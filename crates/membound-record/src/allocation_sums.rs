//! Sums over the blocks that one call chain allocated with one function.

/// Sums over the blocks of one call chain and function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) blocks: f64,
    /// Variance of `blocks` (Horvitz and Thompson); 0 where all blocks were reported.
    pub(crate) blocks_variance: f64,
    pub(crate) bytes: f64,
    pub(crate) freed: f64,
    pub(crate) lifetime_ns: f64,
    pub(crate) live_bytes: f64,
    pub(crate) peak_bytes: f64,
}

impl Totals {
    /// Number of events behind `blocks`: the variance is the sum of weight · (weight − 1) over them.
    pub(crate) fn events(&self) -> f64 {
        match self.blocks > 0.0 {
            true => self.blocks / (1.0 + self.blocks_variance / self.blocks),
            false => 0.0,
        }
    }
}
