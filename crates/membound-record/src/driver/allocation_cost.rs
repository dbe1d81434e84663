//! Estimates what following allocations costs the recorder, apart from its other work in an iteration.

/// CPU time to process one allocation or its end, in nanoseconds.
///
/// Samples and new call chains, which come among allocations, cost many times as much. So the cost is updated
/// only from iterations in which nearly all events were allocations.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationCost {
    each_ns: f64,
}

impl Default for AllocationCost {
    /// An assumed 500 ns, until an iteration allows an estimate.
    fn default() -> Self {
        Self { each_ns: 500.0 }
    }
}

impl AllocationCost {
    /// Events below which an iteration gives no estimate.
    const MIN_EVENTS: usize = 1000;
    /// Share of an iteration's events that must be allocations.
    const NEARLY_ALL: f64 = 0.99;

    /// Nanoseconds that `allocations` cost, in an iteration with `events` events in all that took `spent_ns`.
    pub(super) fn of(&mut self, allocations: usize, events: usize, spent_ns: f64) -> f64 {
        let nearly_all = allocations as f64 >= Self::NEARLY_ALL * events as f64;
        if events >= Self::MIN_EVENTS && nearly_all {
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
