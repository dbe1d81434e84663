//! Places labels so that they do not overlap.

/// Upper estimate of a text's width in units of the view box, at the charts' font size: digits and
/// lower-case letters of the usual fonts are narrower.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.6 + 6.0
}

/// Lane (0 is the lowest) for each of `spans`, such that no two spans in a lane overlap. Spans are `(start,
/// end)`; earlier ones get the lower lanes.
pub(super) fn lanes(spans: &[(f64, f64)]) -> Vec<usize> {
    let mut lanes: Vec<Vec<(f64, f64)>> = Vec::new();
    spans
        .iter()
        .map(|span| {
            let free = lanes.iter().position(|lane| {
                lane.iter()
                    .all(|other| span.1 <= other.0 || span.0 >= other.1)
            });
            let lane = free.unwrap_or_else(|| {
                lanes.push(Vec::new());
                lanes.len() - 1
            });
            lanes[lane].push(*span);
            lane
        })
        .collect()
}

/// Labels to keep, given their heights `at` and the distance `apart` that each needs: always the first and
/// the last, and others that have room.
pub(super) fn with_room(at: &[f64], apart: f64) -> Vec<bool> {
    let mut keep = vec![false; at.len()];
    let mut kept: Vec<f64> = Vec::new();
    let ends = at.len().saturating_sub(1);
    let order = std::iter::once(ends).chain(0..ends);
    for index in order.take(at.len()) {
        if kept.iter().all(|other| (other - at[index]).abs() >= apart) {
            keep[index] = true;
            kept.push(at[index]);
        }
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_take_another_lane() {
        assert_eq!(
            lanes(&[(0.0, 50.0), (60.0, 90.0), (40.0, 70.0), (95.0, 99.0)]),
            [0, 0, 1, 0]
        );
    }

    #[test]
    fn labels_without_room_go() {
        assert_eq!(
            with_room(&[0.0, 5.0, 14.0, 22.0, 26.0], 12.0),
            [true, false, true, false, true]
        );
        assert!(with_room(&[], 12.0).is_empty());
    }
}
