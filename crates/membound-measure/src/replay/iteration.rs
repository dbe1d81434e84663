//! The result of a measurement of a loop.

/// Time of one iteration of a loop in nanoseconds, measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationTime {
    /// Median of the measurements.
    pub ns: f64,
    /// The shortest of them.
    pub least_ns: f64,
    /// The longest of them: another guest of the machine may have used the same core.
    pub most_ns: f64,
}
