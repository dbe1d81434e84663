//! What following allocations costs the recorder, told apart from all else that it does in a turn.

/// What keeping account of an allocation or its end costs, in nanoseconds of CPU time.
///
/// Samples and new call chains, which stand among them, cost many times as much. What a turn takes is put down to
/// allocations only where it had hardly anything else.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationCost {
    each_ns: f64,
}

impl Default for AllocationCost {
    /// What it is taken to be before a turn has shown it.
    fn default() -> Self {
        Self { each_ns: 500.0 }
    }
}

impl AllocationCost {
    /// Fewer events in a turn show nothing.
    const LEAST_EVENTS: usize = 1000;
    /// Part of a turn's events that have to be allocations.
    const NEARLY_ALL: f64 = 0.99;

    /// What `allocations` cost, in a turn of so many `events` that took `spent_ns`.
    pub(super) fn of(&mut self, allocations: usize, events: usize, spent_ns: f64) -> f64 {
        let nearly_all = allocations as f64 >= Self::NEARLY_ALL * events as f64;
        if events >= Self::LEAST_EVENTS && nearly_all {
            self.each_ns = spent_ns / events as f64;
        }
        (self.each_ns * allocations as f64).min(spent_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_not_paid_for_as_allocations() {
        let mut cost = AllocationCost::default();
        assert_eq!(cost.of(2000, 2010, 402_000.0), 400_000.0);
        // 100 samples of 20 µs each among them.
        let spent_ns = cost.of(50, 150, 2_010_000.0);
        assert!((spent_ns - 10_000.0).abs() < 1e-6, "{spent_ns}");
        assert_eq!(cost.of(10, 10, 1000.0), 1000.0, "no more than all");
    }
}
