//! How often a site was executed.

/// Number of executions of a site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// Executions over the whole run.
    pub count: f64,
    /// Lower end of the 95 % interval of `count`, if only part of the run was counted.
    pub low: f64,
    /// Upper end of the 95 % interval of `count`.
    pub high: f64,
}

impl Executed {
    /// The count and its interval times a positive `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            count: self.count * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }

    /// The ends of the interval as multiples of the count.
    #[must_use]
    pub fn ends(self) -> (f64, f64) {
        if self.count > 0.0 {
            (self.low / self.count, self.high / self.count)
        } else {
            (1.0, 1.0)
        }
    }
}
