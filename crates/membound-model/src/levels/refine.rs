//! Suggests the sizes that are worth measuring next.

use super::input::CurvePoint;

/// Ratio of sizes up to which neighbours are near enough.
const MAX_NEIGHBOUR_RATIO: f64 = 1.04;

/// Least difference between neighbours for another point between them, in ln(ns).
const MIN_RISE: f64 = 0.03;

/// Suggested sizes are multiples of this number of bytes: no known line is smaller, and part of a
/// line measures nothing new.
const SIZE_STEP_BYTES: u64 = 64;

/// A gap between neighbouring points that rises by more than noise.
struct Gap {
    low_bytes: u64,
    high_bytes: u64,
    score: f64,
    /// Number of the climb that it belongs to: adjacent gaps are one climb.
    climb: usize,
}

/// At most `max_new` sizes in bytes at which another point would add most about the bends of `curve`.
///
/// The sizes lie in gaps whose ends differ by more than noise and by a ratio of sizes above 1.04.
/// The most useful size is first; the result is empty if nothing is left to refine. Climbs
/// alternate, so that one long ramp does not get all points of a round, and within a climb the
/// largest rise over the widest gap is first.
#[must_use]
pub fn suggest_refinement(curve: &[CurvePoint], max_new: usize) -> Vec<u64> {
    let mut sorted: Vec<&CurvePoint> = curve
        .iter()
        .filter(|point| point.size_bytes > 0 && point.ns.is_finite() && point.ns > 0.0)
        .collect();
    sorted.sort_by_key(|point| point.size_bytes);
    sorted.dedup_by_key(|point| point.size_bytes);
    let mut gaps: Vec<Gap> = Vec::new();
    let mut climb = 0;
    for pair in sorted.windows(2) {
        let (low, high) = (pair[0], pair[1]);
        let rise = (high.ns / low.ns).ln();
        let noise = relative_width(low).hypot(relative_width(high));
        if rise <= MIN_RISE.max(noise) {
            climb += 1;
            continue;
        }
        let ratio = high.size_bytes as f64 / low.size_bytes as f64;
        if ratio <= MAX_NEIGHBOUR_RATIO {
            continue;
        }
        gaps.push(Gap {
            low_bytes: low.size_bytes,
            high_bytes: high.size_bytes,
            score: rise * ratio.ln().sqrt(),
            climb,
        });
    }
    // By score within a climb; then the n-th gaps of all climbs before the (n + 1)-th of any.
    gaps.sort_by(|a, b| a.climb.cmp(&b.climb).then(b.score.total_cmp(&a.score)));
    let mut ranked: Vec<(usize, &Gap)> = Vec::with_capacity(gaps.len());
    for of_climb in gaps.chunk_by(|a, b| a.climb == b.climb) {
        ranked.extend(of_climb.iter().enumerate());
    }
    ranked.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.score.total_cmp(&a.1.score)));
    ranked
        .into_iter()
        .filter_map(|(_, gap)| between(gap.low_bytes, gap.high_bytes))
        .take(max_new)
        .collect()
}

/// The geometric mean of two sizes as a multiple of [`SIZE_STEP_BYTES`], if that lies strictly
/// between them.
fn between(low: u64, high: u64) -> Option<u64> {
    let middle = (low as f64 * high as f64).sqrt();
    let grains = (middle / SIZE_STEP_BYTES as f64).round() as u64;
    let size = grains * SIZE_STEP_BYTES;
    (size > low && size < high).then_some(size)
}

/// Full width of a point's interval relative to its value; 0 if it has none.
fn relative_width(point: &CurvePoint) -> f64 {
    let width = (point.ns_high - point.ns_low) / point.ns;
    if width.is_finite() {
        width.max(0.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(size_bytes: u64, ns: f64) -> CurvePoint {
        CurvePoint {
            size_bytes,
            ns,
            ns_low: ns * 0.99,
            ns_high: ns * 1.01,
        }
    }

    #[test]
    fn rounds_close_in_on_a_step() {
        let truth = |size: u64| if size <= 48 << 10 { 1.0 } else { 3.4 };
        let mut curve: Vec<CurvePoint> = (10..20).map(|k| point(1 << k, truth(1 << k))).collect();
        let mut rounds = 0;
        loop {
            let new = suggest_refinement(&curve, 4);
            if new.is_empty() {
                break;
            }
            assert!(new.len() <= 4);
            curve.extend(new.iter().map(|&size| point(size, truth(size))));
            rounds += 1;
            assert!(rounds < 10, "refinement must end");
        }
        let inside = curve
            .iter()
            .filter(|p| p.ns < 2.0)
            .map(|p| p.size_bytes)
            .max()
            .unwrap();
        let outside = curve
            .iter()
            .filter(|p| p.ns > 2.0)
            .map(|p| p.size_bytes)
            .min()
            .unwrap();
        assert!(inside <= 48 << 10 && outside > 48 << 10);
        assert!(
            (outside as f64 / inside as f64) <= 1.04,
            "{inside} {outside}"
        );
    }

    #[test]
    fn flat_and_noisy_curves_want_nothing() {
        let flat: Vec<CurvePoint> = (10..30).map(|k| point(1 << k, 5.0)).collect();
        assert!(suggest_refinement(&flat, 8).is_empty());
        let mut noisy = flat;
        for (index, p) in noisy.iter_mut().enumerate() {
            p.ns *= if index % 2 == 0 { 1.05 } else { 0.97 };
            p.ns_low = p.ns * 0.9;
            p.ns_high = p.ns * 1.1;
        }
        assert!(suggest_refinement(&noisy, 8).is_empty());
        assert!(suggest_refinement(&[], 8).is_empty());
    }

    #[test]
    fn climbs_alternate() {
        // A small step at 32 KiB and a long steep ramp from 8 MiB on.
        let curve: Vec<CurvePoint> = (10..30)
            .map(|k| {
                let ns = match k {
                    0..=15 => 1.0,
                    16..=22 => 3.0,
                    _ => 3.0 * f64::from(1 << (k - 22)),
                };
                point(1 << k, ns)
            })
            .collect();
        let new = suggest_refinement(&curve, 2);
        assert_eq!(new.len(), 2);
        assert!(
            new.iter().any(|&size| size > 32 << 10 && size < 64 << 10),
            "{new:?}"
        );
    }
}
