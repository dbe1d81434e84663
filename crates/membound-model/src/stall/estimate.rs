//! A value with the interval it lies in.

/// A value and its 95 % interval, in the unit that the field's name says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Known to be this.
    #[must_use]
    pub const fn exactly(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
        }
    }

    /// With all ends in order around the value.
    #[must_use]
    pub const fn new(value: f64, low: f64, high: f64) -> Self {
        Self {
            value,
            low: low.min(value),
            high: high.max(value),
        }
    }

    /// All of it times a positive `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }

    /// Nothing outside of `low` to `high`.
    #[must_use]
    pub const fn clamped(self, low: f64, high: f64) -> Self {
        Self {
            value: self.value.clamp(low, high),
            low: self.low.clamp(low, high),
            high: self.high.clamp(low, high),
        }
    }
}
