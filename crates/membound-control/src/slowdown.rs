//! How much slower a command is with scavengers than without, with a 95 % interval, from the counters at each
//! poll. CPU time is in nanoseconds, a slowdown a share: 0.02 is 2 % slower.

use membound_model::stats::student_95;

use crate::observation::{Counters, Slices};
use crate::tuning::{MAX_SPANS, MIN_SLICES};

/// Time slices in a part of the run, with scavengers and without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    with: Slices,
    without: Slices,
}

/// The run in consecutive spans of equally many polls; spans without time slices are left out.
///
/// There are never more than `MAX_SPANS`: when as many are full, each two are merged. Thus a disturbance
/// that lasts longer than a poll, so that consecutive polls are alike, lies in one span for the most part.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    spans: Vec<Span>,
    /// Binary logarithm of the number of polls in a full span.
    doublings: u32,
    /// Polls in the last span.
    polls: u32,
    /// Counters since the run began, at the last poll.
    last_counts: Span,
}

/// A slowdown and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// How much slower the command is, as a share.
    pub share: f64,
    /// Low end and high end; `None` where there are too few spans for an interval.
    pub interval: Option<(f64, f64)>,
}

impl Span {
    /// The counters of the whole run so far.
    pub(crate) const fn so_far(counters: &Counters) -> Self {
        Self {
            with: counters.with,
            without: counters.without,
        }
    }

    /// The counters since `earlier`; 0 where a counter is lower than it was.
    pub(crate) const fn since(self, earlier: Self) -> Self {
        Self {
            with: difference(self.with, earlier.with),
            without: difference(self.without, earlier.without),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            with: sum(self.with, other.with),
            without: sum(self.without, other.without),
        }
    }

    /// How much more CPU time a time slice takes with scavengers than without, as a share; `None` where there
    /// are too few slices.
    pub(crate) fn slowdown(self) -> Option<f64> {
        let enough = self.with.count.min(self.without.count) >= MIN_SLICES;
        enough
            .then(|| self.ratio())
            .flatten()
            .map(|ratio| ratio - 1.0)
    }

    /// Time slices per second of CPU time without scavengers; 0 if there were none.
    pub(crate) fn slices_per_s_without(self) -> f64 {
        self.without.count as f64 / (self.without.cpu_ns.max(1) as f64 * 1e-9)
    }

    /// CPU time per time slice with scavengers over that without; `None` unless it is finite and positive.
    fn ratio(self) -> Option<f64> {
        let each = |slices: Slices| slices.cpu_ns as f64 / slices.count as f64;
        let ratio = each(self.with) / each(self.without);
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

const fn difference(now: Slices, earlier: Slices) -> Slices {
    Slices {
        count: now.count.saturating_sub(earlier.count),
        cpu_ns: now.cpu_ns.saturating_sub(earlier.cpu_ns),
    }
}

const fn sum(one: Slices, other: Slices) -> Slices {
    Slices {
        count: one.count + other.count,
        cpu_ns: one.cpu_ns + other.cpu_ns,
    }
}

impl Spans {
    /// Takes the counters of a poll.
    pub fn update(&mut self, counters: &Counters) {
        let now = Span::so_far(counters);
        let span = now.since(self.last_counts);
        self.last_counts = now;
        if span == Span::default() {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if self.polls < 1 << self.doublings => *last = last.and(span),
            _ => {
                if self.spans.len() == MAX_SPANS {
                    self.spans = self
                        .spans
                        .chunks(2)
                        .map(|two| two.iter().copied().fold(Span::default(), Span::and))
                        .collect();
                    self.doublings += 1;
                }
                self.spans.push(span);
                self.polls = 0;
            }
        }
        self.polls += 1;
    }

    /// The slowdown over the whole run; `None` if it had too few time slices.
    pub fn slowdown(&self) -> Option<Slowdown> {
        estimate(&self.spans)
    }
}

/// The slowdown over all `spans`, with its interval.
///
/// The share is the ratio of the sums, less 1. The interval is the jackknife's with one span left
/// out at a time (R. G. Miller, "The jackknife – a review", Biometrika 61, 1974, section 3), of the
/// ratio's logarithm, because a ratio is as likely twice as large as half; Student's t has the
/// degrees of freedom of the spans that hold slices with scavengers or of those that hold slices
/// without, whichever are fewer. Both kinds of slice in a span are left out together, so that a
/// phase in which every slice of the command takes longer does not look like noise.
fn estimate(spans: &[Span]) -> Option<Slowdown> {
    let all = spans.iter().copied().fold(Span::default(), Span::and);
    let share = all.slowdown()?;
    let holding = |slices: fn(&Span) -> Slices| {
        let with_slices = spans.iter().filter(|span| slices(span).count > 0);
        with_slices.count()
    };
    let freedom = holding(|span| span.with)
        .min(holding(|span| span.without))
        .saturating_sub(1);
    let left_out: Option<Vec<f64>> = spans
        .iter()
        .map(|span| all.since(*span).ratio().map(f64::ln))
        .collect();
    let interval = left_out.filter(|_| freedom > 0).map(|logs| {
        let spans = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / spans;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let error = ((spans - 1.0) / spans * squares).sqrt();
        let factor = (student_95(freedom) * error).exp();
        let ratio = 1.0 + share;
        (ratio / factor - 1.0, ratio * factor - 1.0)
    });
    Some(Slowdown {
        share,
        // The interval of two very different spans may be unbounded.
        interval: interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span with equally many slices of both kinds, which take these times each.
    fn span(slices: u64, with_ns: u64, without_ns: u64) -> Span {
        let of = |each_ns| Slices {
            count: slices,
            cpu_ns: slices * each_ns,
        };
        Span {
            with: of(with_ns),
            without: of(without_ns),
        }
    }

    fn check(spans: &[Span], share: f64, interval: Option<(f64, f64)>) {
        let found = estimate(spans).expect("there are enough slices");
        assert!((found.share - share).abs() < 1e-9, "{found:?}");
        match (found.interval, interval) {
            (Some((low, high)), Some(wanted)) => {
                assert!((low - wanted.0).abs() < 1e-6, "{found:?}");
                assert!((high - wanted.1).abs() < 1e-6, "{found:?}");
            }
            (found, wanted) => assert_eq!(found, wanted),
        }
    }

    #[test]
    fn slowdown_is_excess_time_per_slice() {
        check(&[span(5000, 120, 100)], 0.2, None);
        assert_eq!(estimate(&[span(999, 120, 100)]), None);
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[span(5000, 120, 0)]), None);
    }

    #[test]
    fn the_interval_is_the_jackknifes() {
        // All slices without scavengers take 100 ns. Left out one at a time, 120 + 130, 110 + 130 and 110 +
        // 120 over 200 remain: 1.25, 1.2, 1.15. The squares of their logarithms around the mean add up to
        // 0.003476750, of which 2/3 are the square of 0.048143879. Student's t for two degrees of freedom is
        // 4.302652730, and exp(4.302652730 x 0.048143879) = 1.230162643.
        const FACTOR: f64 = 1.230_162_643;
        let spans = [
            span(1000, 110, 100),
            span(1000, 120, 100),
            span(1000, 130, 100),
        ];
        check(&spans, 0.2, Some((1.2 / FACTOR - 1.0, 1.2 * FACTOR - 1.0)));
    }

    #[test]
    fn a_change_common_to_both_kinds_of_slice_is_not_noise() {
        let spans = [1, 10, 3, 7].map(|pace| span(1000, 110 * pace, 100 * pace));
        check(&spans, 0.1, Some((0.1, 0.1)));
    }

    #[test]
    fn without_two_spans_of_each_kind_there_is_no_interval() {
        let mut spans = [span(2000, 110, 100), span(2000, 120, 100)];
        spans[1].without = Slices::default();
        check(&spans, 0.15, None);
    }

    #[test]
    fn polls_are_differences_and_long_runs_have_longer_spans() {
        let mut spans = Spans::default();
        let mut so_far = Counters::default();
        for look in 0..1000_u64 {
            let added = span(10, 110 + look % 2 * 20, 100);
            so_far.with = sum(so_far.with, added.with);
            so_far.without = sum(so_far.without, added.without);
            spans.update(&so_far);
            // A poll with unchanged counters is ignored.
            spans.update(&so_far);
        }
        assert_eq!(spans.spans.len(), 125);
        let all = spans.spans.iter().copied().fold(Span::default(), Span::and);
        assert_eq!(all, Span::so_far(&so_far));
        assert!(spans.spans.iter().all(|it| *it == spans.spans[0]));
        let found = spans.slowdown().expect("there are enough slices");
        assert!((found.share - 0.2).abs() < 1e-9, "{found:?}");
        let (low, high) = found.interval.expect("there are spans enough");
        assert!(high - low < 1e-9, "{found:?}");
    }
}
