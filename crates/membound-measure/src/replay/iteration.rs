//! The result of a measurement of a loop.

/// Time of one iteration of a loop in nanoseconds, measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationTime {
    /// Median of the measurements.
    pub ns: f64,
    /// The shortest that an iteration may take: each measurement without what another hardware thread took from the
    /// core meanwhile.
    pub least_ns: f64,
    /// The longest measurement.
    pub most_ns: f64,
}

impl IterationTime {
    /// From measurements, each in nanoseconds with the [`Slowdown`] of the core meanwhile; `None` if they cannot be right.
    pub(super) fn of(measurements: &[(f64, Slowdown)]) -> Option<Self> {
        let mut times: Vec<f64> = measurements.iter().map(|(ns, _)| *ns).collect();
        times.sort_unstable_by(f64::total_cmp);
        let ns = *times.get(times.len() / 2)?;
        let undisturbed = measurements.iter().map(|(ns, slowdown)| ns / slowdown.0);
        let (least_ns, most_ns) = (undisturbed.fold(ns, f64::min), *times.last()?);
        (ns > 0.0 && most_ns.is_finite()).then_some(Self {
            ns,
            least_ns: least_ns.max(0.0),
            most_ns,
        })
    }
}

/// Factor by which instructions that do not wait for each other take longer than on a core that is free, at least 1.
///
/// A core executes as many independent additions as it can, and every core here at least four in the time of one that
/// waits for the one before. Another hardware thread takes turns with them, and hardly delays the dependent ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slowdown(f64);

impl Slowdown {
    /// From the times of four additions that are independent and of one that depends on the one before.
    pub(super) fn of(four_independent_ns: f64, dependent_ns: f64) -> Self {
        let ratio = four_independent_ns / dependent_ns;
        Self(if ratio.is_finite() {
            ratio.max(1.0)
        } else {
            1.0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_hardware_thread_takes_widens_the_lower_end_alone() {
        let free = Slowdown::of(1.0, 1.2);
        let shared = Slowdown::of(2.0, 1.0);
        let of = |slowdowns: [Slowdown; 3]| {
            let times = [0.9, 1.1, 1.0].into_iter().zip(slowdowns);
            IterationTime::of(&times.collect::<Vec<_>>()).expect("the times are positive")
        };
        let undisturbed = of([free; 3]);
        assert_eq!(
            (undisturbed.least_ns, undisturbed.ns, undisturbed.most_ns),
            (0.9, 1.0, 1.1)
        );
        let disturbed = of([free, free, shared]);
        assert_eq!(
            (disturbed.least_ns, disturbed.ns, disturbed.most_ns),
            (0.5, 1.0, 1.1)
        );
        assert_eq!(IterationTime::of(&[(-1.0, free); 3]), None);
        assert_eq!(Slowdown::of(1.0, 0.0), free);
    }
}
