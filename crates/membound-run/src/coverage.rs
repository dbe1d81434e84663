//! How much of the CPU time samples stand for.

/// Standard deviations of the samples' sum that chance explains.
const DEVIATIONS: f64 = 3.0;
/// Share of CPU time that may be missing in any case.
const MIN_SHARE: f64 = 0.05;

/// Whether samples lack more CPU time than chance explains: they stand for `sampled_ns` of `counted_ns` nanoseconds
/// that the kernel counted, and the standard deviation of their sum is `deviation_ns` (the root of the sum of the
/// squares of their weights).
#[must_use]
pub fn is_time_missing(counted_ns: f64, sampled_ns: f64, deviation_ns: f64) -> bool {
    counted_ns - sampled_ns > (DEVIATIONS * deviation_ns).max(MIN_SHARE * counted_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_and_small_shares_explain_missing_time() {
        assert!(is_time_missing(5000.0, 1000.0, 1000.0));
        assert!(is_time_missing(4000.0, 0.0, 0.0));
        assert!(!is_time_missing(3000.0, 1000.0, 1000.0), "two deviations");
        assert!(!is_time_missing(1.04e6, 1e6, 0.0), "too little to matter");
        assert!(!is_time_missing(0.0, 0.0, 0.0));
        assert!(!is_time_missing(1000.0, 2000.0, 0.0));
    }
}
