//! A value with its interval.

/// A value and its 95 % interval, in the unit that the field's name gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The estimated value.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// A value that is known exactly.
    #[must_use]
    pub const fn exactly(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
        }
    }

    /// Width of the interval.
    #[must_use]
    pub const fn width(self) -> f64 {
        self.high - self.low
    }

    /// A value with an interval, which is extended if it does not contain the value.
    #[must_use]
    pub const fn new(value: f64, low: f64, high: f64) -> Self {
        Self {
            value,
            low: low.min(value),
            high: high.max(value),
        }
    }

    /// The value and its interval times a positive `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }

    /// The value and its interval limited to `low` to `high`.
    #[must_use]
    pub const fn clamped(self, low: f64, high: f64) -> Self {
        Self {
            value: self.value.clamp(low, high),
            low: self.low.clamp(low, high),
            high: self.high.clamp(low, high),
        }
    }
}
