//! Converts recorded histograms of durations to bins that can be shown: round rows for a terminal, equal
//! ratios for a page.

use membound_types::DurationBin;

/// Most rows of a histogram on a terminal.
const ROWS: usize = 12;
/// Number of bins of a histogram on a page.
const CELLS: f64 = 56.0;
/// Smallest ratio between the edges of a bin on a page: finer bins show noise.
const NARROWEST: f64 = 1.03;
/// Ratio to a limit below which an edge is replaced by the limit.
const NEAR: f64 = 1.15;

/// A range of durations with the number that lie in it; fractional if recorded bins were divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) from_ns: f64,
    pub(crate) to_ns: f64,
    pub(crate) count: f64,
}

/// Shortest and longest duration in `histograms`; `None` if they are empty.
pub(crate) fn range<'a>(
    histograms: impl IntoIterator<Item = &'a [DurationBin]>,
) -> Option<(f64, f64)> {
    histograms
        .into_iter()
        .flatten()
        .filter_map(log_range)
        .fold(None, |range, (from, to)| {
            Some(range.map_or((from, to), |(low, high): (f64, f64)| {
                (low.min(from), high.max(to))
            }))
        })
}

/// Ends of a bin that is not empty and has a logarithm. A bin from 0 on is represented by its upper half.
fn log_range(bin: &DurationBin) -> Option<(f64, f64)> {
    let (from, to) = (bin.from_ns, bin.to_ns);
    let from = if from.abs() < f64::MIN_POSITIVE {
        0.5 * to
    } else {
        from
    };
    let fits = from.is_finite() && to.is_finite() && from > 0.0 && to > from;
    (fits && bin.count > 0).then_some((from, to))
}

/// Edges at round values from `low` to `high`, few enough for a terminal, including `limit` if it lies
/// between.
pub(crate) fn round_edges(low: f64, high: f64, limit: Option<f64>) -> Vec<f64> {
    const STEPS: [&[f64]; 4] = [
        &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 3.0],
        &[1.0],
    ];
    let limit = limit.filter(|limit| (low..high).contains(limit));
    let mut edges = Vec::new();
    for steps in STEPS {
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let all: Vec<f64> = (first - 1..=last)
            .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
            .collect();
        let begin = all.partition_point(|edge| *edge <= low).saturating_sub(1);
        let end = all.partition_point(|edge| *edge < high);
        edges = all[begin..=end.min(all.len() - 1)].to_vec();
        if let Some(limit) = limit {
            edges.retain(|edge| (edge / limit).max(limit / edge) > NEAR);
            edges.push(limit);
            edges.sort_by(f64::total_cmp);
        }
        if edges.len() <= ROWS + 1 {
            break;
        }
    }
    edges
}

/// Edges at equal ratios from `low` to `high`, including `limit` if it lies between.
pub(crate) fn even_edges(low: f64, high: f64, limit: Option<f64>) -> Vec<f64> {
    let ratio = (high / low).powf(1.0 / CELLS).max(NARROWEST);
    let limit = limit.filter(|limit| (low..high).contains(limit));
    let anchor = limit.unwrap_or(low);
    // Subtract a little, so that an end that is already an edge does not add another.
    let steps = |span: f64| (span.ln() / ratio.ln() - 1e-9).ceil().max(0.0) as i32;
    (-steps(anchor / low)..=steps(high / anchor))
        .map(|step| anchor * ratio.powi(step))
        .collect()
}

/// Distributes `bins` over the ranges between `edges`. A bin that spans several is divided evenly on a
/// logarithmic scale; what lies beyond the edges goes to the nearest range.
pub(crate) fn spread(bins: &[DurationBin], edges: &[f64]) -> Vec<Span> {
    let mut spans: Vec<Span> = edges
        .windows(2)
        .map(|pair| Span {
            from_ns: pair[0],
            to_ns: pair[1],
            count: 0.0,
        })
        .collect();
    let last = spans.len().saturating_sub(1);
    for bin in bins {
        let Some((from, to)) = log_range(bin) else {
            continue;
        };
        for (index, span) in spans.iter_mut().enumerate() {
            let low = if index == 0 { 0.0 } else { span.from_ns };
            let high = if index == last {
                f64::INFINITY
            } else {
                span.to_ns
            };
            let (low, high) = (low.max(from), high.min(to));
            if high > low {
                span.count += bin.count as f64 * (high / low).ln() / (to / from).ln();
            }
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(from_ns: f64, to_ns: f64, count: u64) -> DurationBin {
        DurationBin {
            from_ns,
            to_ns,
            count,
        }
    }

    fn counts(bins: &[DurationBin], edges: &[f64]) -> Vec<f64> {
        let spans = spread(bins, edges);
        spans.iter().map(|it| it.count.round()).collect()
    }

    #[test]
    fn a_bin_is_divided_by_ratio_and_nothing_is_lost() {
        let edges = [10.0, 100.0, 1000.0];
        assert_eq!(counts(&[bin(1.0, 10_000.0, 400)], &edges), [200.0, 200.0]);
        assert_eq!(counts(&[bin(20.0, 30.0, 7)], &edges), [7.0, 0.0]);
        assert_eq!(counts(&[bin(2000.0, 3000.0, 7)], &edges), [0.0, 7.0]);
        assert_eq!(counts(&[bin(100.0, 101.0, 7)], &edges), [0.0, 7.0]);
        let odd = [
            bin(f64::NAN, 20.0, 5),
            bin(20.0, 20.0, 5),
            bin(30.0, f64::INFINITY, 5),
            bin(40.0, 50.0, 0),
        ];
        assert_eq!(counts(&odd, &edges), [0.0, 0.0]);
        assert_eq!(range([odd.as_slice()]), None);
        assert_eq!(counts(&[bin(0.0, 40.0, 3)], &edges), [3.0, 0.0]);
        assert_eq!(
            range([[bin(0.0, 40.0, 3)].as_slice(), &[bin(90.0, 95.0, 1)]]),
            Some((20.0, 95.0))
        );
    }

    #[test]
    fn round_edges_are_few_and_hold_the_limit() {
        assert_eq!(
            round_edges(90.0, 4000.0, Some(300.0)),
            [50.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0, 5000.0]
        );
        // The edge next to the limit is replaced.
        assert_eq!(
            round_edges(90.0, 900.0, Some(210.0))[..5],
            [80.0, 100.0, 120.0, 150.0, 210.0]
        );
        assert_eq!(
            round_edges(100.0, 200.0, None),
            [100.0, 120.0, 150.0, 200.0]
        );
        let many = round_edges(1.0, 1e9, None);
        assert!(many.len() <= ROWS + 1, "{many:?}");
        assert!(many.is_sorted() && many[0] <= 1.0 && many[many.len() - 1] >= 1e9);
    }

    #[test]
    fn even_edges_cover_the_range_and_hold_the_limit() {
        let edges = even_edges(50.0, 5000.0, Some(300.0));
        assert!(edges.iter().any(|edge| (edge - 300.0).abs() < 1e-9));
        assert!(edges[0] <= 50.0 && edges[edges.len() - 1] >= 5000.0 * (1.0 - 1e-9));
        assert!(edges.len() < 60, "{}", edges.len());
        let narrow = even_edges(100.0, 101.0, None);
        assert_eq!(narrow.len(), 2);
    }
}
