//! The distribution of reuse times, some of which are censored: only a lower bound is known.

/// A reuse time: number of touches from one touch of a line to the next of the same line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The reuse time was this.
    After(u32),
    /// The reuse time was more than this: the record began there.
    Beyond(u32),
}

/// Fewest observations at risk for a step of the estimate, or a quarter of all if that is fewer.
const MIN_OBSERVATIONS_AT_RISK: usize = 16;

/// The probability that a reuse time exceeds a number of touches.
///
/// Kaplan and Meier's product-limit estimate (1958): the position of a touch in the record is
/// independent of its reuse time, so censoring is random.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survival {
    /// Times at which the probability falls, ascending.
    times: Vec<u32>,
    /// The probabilities from those times on.
    values: Vec<f64>,
    /// Number of observations, including censored ones.
    pub observed: usize,
}

impl Survival {
    /// The estimate from all observations, in any order.
    #[must_use]
    pub fn of(mut observed: Vec<Observed>) -> Self {
        // At one time, observations that end are before censored ones, which are still at risk.
        observed.sort_unstable_by_key(|it| match it {
            Observed::After(time) => (*time, 0),
            Observed::Beyond(time) => (*time, 1),
        });
        let count = observed.len();
        let fewest = MIN_OBSERVATIONS_AT_RISK.min(count.div_ceil(4)).max(1);
        let mut survival = Self {
            observed: count,
            ..Self::default()
        };
        let mut value = 1.0;
        let mut at = 0;
        while at < count && count - at >= fewest {
            let Observed::After(time) = observed[at] else {
                at += 1;
                continue;
            };
            let same = observed[at..].partition_point(|it| *it == Observed::After(time));
            value *= 1.0 - same as f64 / (count - at) as f64;
            survival.times.push(time);
            survival.values.push(value);
            at += same;
        }
        survival
    }

    /// The probability that a reuse time exceeds `touches`.
    #[must_use]
    pub fn probability_beyond(&self, touches: u32) -> f64 {
        let behind = self.times.partition_point(|time| *time <= touches);
        behind.checked_sub(1).map_or(1.0, |at| self.values[at])
    }

    /// The probability that a reuse time exceeds every observed one.
    #[must_use]
    pub fn tail(&self) -> f64 {
        self.values.last().copied().unwrap_or(1.0)
    }

    /// Times at which the probability falls, and the probability from each on.
    pub fn steps(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.times.iter().copied().zip(self.values.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cuts_it_is_the_share_that_is_left() {
        let observed = (1..=100).map(Observed::After).collect();
        let survival = Survival::of(observed);
        for (touches, share) in [(0, 1.0), (1, 0.99), (50, 0.5), (75, 0.25)] {
            assert!(
                (survival.probability_beyond(touches) - share).abs() < 1e-9,
                "{touches}"
            );
        }
    }

    #[test]
    fn cuts_do_not_pass_for_short_times() {
        // Half of the reuse times are 10; the others exceed any record, wherever it was
        // censored.
        let observed = (0..1000_u32)
            .flat_map(|at| match at % 2 {
                0 if at >= 10 => Some(Observed::After(10)),
                _ => Some(Observed::Beyond(at)),
            })
            .collect();
        let survival = Survival::of(observed);
        assert_eq!(survival.probability_beyond(9), 1.0);
        assert!((survival.probability_beyond(10) - 0.5).abs() < 0.01);
        assert_eq!(survival.tail(), survival.probability_beyond(u32::MAX));
        assert_eq!(Survival::of(Vec::new()).tail(), 1.0);
    }
}
