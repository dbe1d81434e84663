//! Holds the time until the command runs again to its bound.
//!
//! Plans take the times of blocks from a profile of the scavenger alone, where caches and predictors
//! are its own. In turns it is slower. What turns are measured to last decides how much of the bound
//! they may use before the first yield at which they end.

use membound_launch::Harvested;

use super::times::within;

/// Share of the turns that are to keep to the bound.
const KEPT: f64 = 0.99;
/// Timed turns that a decision is made on.
const LEAST_TURNS: u64 = 200;
/// Below this the span makes no difference: turns end at the first yield.
const LEAST_NS: f64 = 2.0;

/// Finds the span, in nanoseconds, with which turns keep to a bound.
#[derive(Debug)]
pub(super) struct SpanControl {
    bound_ns: f64,
    most_ns: f64,
    span_ns: f64,
    /// Turns that were timed at the last decision, and those of them that kept to the bound.
    last: (u64, f64),
}

impl SpanControl {
    /// The span to begin with: it is easier to give more than to take back what was too much.
    pub(super) fn first(most_ns: f64) -> f64 {
        most_ns / 4.0
    }

    /// Begins with [`Self::first`] of `most_ns`, which is never exceeded.
    pub(super) fn new(bound_ns: f64, most_ns: f64) -> Self {
        Self {
            bound_ns,
            most_ns,
            span_ns: Self::first(most_ns),
            last: (0, 0.0),
        }
    }

    /// A new span, if it is to be another one.
    pub(super) fn decide(&mut self, now: &Harvested) -> Option<f64> {
        let timed: u64 = now.times.iter().map(|(_, _, count)| count).sum();
        let kept = within(&now.times, self.bound_ns);
        let turns = timed.saturating_sub(self.last.0);
        if turns < LEAST_TURNS {
            return None;
        }
        let share = (kept - self.last.1) / turns as f64;
        self.last = (timed, kept);
        let wanted = if share < 0.9 {
            self.span_ns * 0.5
        } else if share < KEPT {
            self.span_ns * 0.8
        } else if share > KEPT + 0.9 * (1.0 - KEPT) {
            (self.span_ns * 1.4).max(LEAST_NS)
        } else if share > KEPT + 0.5 * (1.0 - KEPT) {
            (self.span_ns * 1.1).max(LEAST_NS)
        } else {
            self.span_ns
        };
        let wanted = if wanted < LEAST_NS {
            0.0
        } else {
            wanted.min(self.most_ns)
        };
        if (wanted - self.span_ns).abs() < 1e-9 {
            return None;
        }
        self.span_ns = wanted;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns last 60 ns and 1.5 times the span, one in a thousand much longer.
    fn timed(so_far: &mut Harvested, span_ns: f64) {
        let ns = (60.0 + 1.5 * span_ns) as u64;
        for (from, count) in [(ns, 999), (5000, 1)] {
            match so_far.times.iter_mut().find(|(known, _, _)| *known == from) {
                Some((_, _, known)) => *known += count,
                None => so_far.times.push((from, from + 1, count)),
            }
        }
    }

    #[test]
    fn turns_come_to_keep_to_their_bound_and_use_it() {
        let mut control = SpanControl::new(200.0, 150.0);
        let mut so_far = Harvested::default();
        let mut span = 150.0;
        for _ in 0..60 {
            timed(&mut so_far, span);
            span = control.decide(&so_far).unwrap_or(span);
        }
        let lasts = 60.0 + 1.5 * span;
        assert!((150.0..=215.0).contains(&lasts), "{span} {lasts}");
        // Too few turns say nothing.
        assert_eq!(control.decide(&so_far), None);
    }

    #[test]
    fn where_a_single_segment_is_too_long_turns_end_at_once() {
        let mut control = SpanControl::new(50.0, 25.0);
        let mut so_far = Harvested::default();
        let mut span = 25.0;
        for _ in 0..20 {
            timed(&mut so_far, span);
            span = control.decide(&so_far).unwrap_or(span);
        }
        assert!(span < 1e-9, "{span}");
    }
}
