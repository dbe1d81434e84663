//! Chooses how often threads are sampled where no period was requested.

use std::time::Duration;

/// Shortest period of timer samples that is chosen. It is no round number: a program's own period mostly is
/// one, and a sampler that is synchronous with the program samples only a few instructions.
pub(crate) const MIN_PERIOD: Duration = Duration::from_micros(1270);
/// Longest period that is chosen: a program of a second still gets two hundred samples.
const MAX_PERIOD: Duration = Duration::from_micros(4910);
/// Share of the budget that samples may use by themselves. Lines and translations that a sample evicts from
/// the caches cost the program about as much again.
const SHARE_OF_BUDGET: f64 = 0.1;

/// The period with which samples of `sample_ns` nanoseconds each cost at most their share of `max_overhead`,
/// a share of CPU time. A virtual machine takes some 15 µs for each timer interrupt, other machines a tenth
/// of that.
pub(crate) fn affordable(sample_ns: f64, max_overhead: f64) -> Duration {
    let [shortest, longest] = [MIN_PERIOD, MAX_PERIOD].map(|period| period.as_nanos() as f64);
    // Infinite or NaN where there is no budget; `min` then gives the longest.
    let period_ns = sample_ns / (SHARE_OF_BUDGET * max_overhead);
    Duration::from_nanos(period_ns.min(longest).max(shortest).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_samples_are_taken_less_often() {
        assert_eq!(affordable(0.0, 0.05), MIN_PERIOD);
        assert_eq!(affordable(2_000.0, 0.05), MIN_PERIOD);
        assert_eq!(affordable(16_000.0, 0.05), Duration::from_micros(3200));
        assert_eq!(affordable(16_000.0, 0.10), Duration::from_micros(1600));
        assert_eq!(affordable(90_000.0, 0.05), MAX_PERIOD);
        assert_eq!(affordable(16_000.0, 0.0), MAX_PERIOD);
        assert_eq!(affordable(0.0, 0.0), MAX_PERIOD);
    }
}
