//! Whether a pattern was prefetched, judged from its time against random loads.

use membound_types::{PrefetchPattern, PrefetchPoint};

use crate::stats::{median, median_error};

/// Least shortening that counts, whatever the batches say: the two chases differ in more
/// than the prefetcher (banks, rows, the loop), and 8 % is what such things amount to.
const LEAST_GAIN: f64 = 0.08;

/// Standard errors that a shortening must exceed.
const SIGMAS: f64 = 4.0;

/// Fills `ratio` and `prefetched` of every point from its own time, the random time and
/// the spread of both.
///
/// The spread of the random loads is that of the point with [`PrefetchPattern::Random`]
/// under the same state of the prefetchers; without one it is taken to be the pattern's
/// own. The random pattern itself is never prefetched, by definition.
pub fn judge(points: &mut [PrefetchPoint]) {
    let references: Vec<_> = points
        .iter()
        .filter(|point| point.pattern == PrefetchPattern::Random)
        .map(|point| (point.prefetch.clone(), relative_error(point)))
        .collect();
    for point in points {
        let own = relative_error(point);
        let reference = references
            .iter()
            .find(|(state, _)| *state == point.prefetch)
            .map_or(own, |(_, error)| *error);
        if !(point.random_ns > 0.0 && point.ns.is_finite()) {
            point.prefetched = false;
            continue;
        }
        point.ratio = point.ns / point.random_ns;
        let noise = SIGMAS * own.hypot(reference) * point.ratio.max(f64::EPSILON);
        point.prefetched =
            point.pattern != PrefetchPattern::Random && point.ratio < 1.0 - LEAST_GAIN.max(noise);
    }
}

/// Standard error of the point's median over its batches, relative to it.
fn relative_error(point: &PrefetchPoint) -> f64 {
    let raw = &point.batches.raw;
    match (median_error(raw), median(raw)) {
        (Some(error), Some(middle)) if middle > 0.0 => error / middle,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{PrefetchState, Samples};

    fn point(pattern: PrefetchPattern, ns: f64, spread: f64) -> PrefetchPoint {
        PrefetchPoint {
            pattern,
            prefetch: PrefetchState::Default,
            ns,
            random_ns: 150.0,
            ratio: 0.0,
            prefetched: false,
            batches: Samples {
                raw: (0..9).map(|k| ns + spread * f64::from(k - 4)).collect(),
                ..Samples::default()
            },
        }
    }

    #[test]
    fn a_stream_is_prefetched_and_noise_is_not() {
        let mut points = vec![
            point(PrefetchPattern::Random, 150.0, 1.0),
            point(PrefetchPattern::Forward { stride_bytes: 64 }, 6.0, 0.1),
            point(PrefetchPattern::Backward { stride_bytes: 64 }, 146.0, 1.0),
            point(PrefetchPattern::AdjacentLine, 80.0, 1.0),
            point(PrefetchPattern::PageRandom, 120.0, 20.0),
        ];
        judge(&mut points);
        let judged: Vec<bool> = points.iter().map(|point| point.prefetched).collect();
        assert_eq!(judged, [false, true, false, true, false]);
        assert!((points[1].ratio - 0.04).abs() < 1e-12);
    }

    #[test]
    fn another_state_of_the_prefetchers_has_its_own_reference() {
        let mut off = point(PrefetchPattern::Random, 150.0, 30.0);
        off.prefetch = PrefetchState::Off;
        let mut stream = point(PrefetchPattern::Forward { stride_bytes: 64 }, 130.0, 0.1);
        stream.prefetch = PrefetchState::Off;
        let quiet = point(PrefetchPattern::Random, 150.0, 0.1);
        let mut points = vec![quiet, off, stream];
        judge(&mut points);
        assert!(
            !points[2].prefetched,
            "the noisy reference of its own state counts"
        );
    }

    #[test]
    fn without_a_reference_time_nothing_is_claimed() {
        let mut points = vec![point(PrefetchPattern::NextPage, 10.0, 0.1)];
        points[0].random_ns = 0.0;
        judge(&mut points);
        assert!(!points[0].prefetched);
    }
}
