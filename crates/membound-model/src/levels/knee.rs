//! Where a plateau ends.

use std::ops::RangeInclusive;

use super::clean::Prepared;
use super::segment::Flat;
use super::{Interval, Knee};

/// Effective size of `lower`, given the points of the next plateau where there is one.
pub(crate) fn locate(
    points: &[Prepared],
    lower: Flat,
    upper: Option<RangeInclusive<usize>>,
) -> Option<(Interval, Knee)> {
    let inside = points.get(lower.last)?;
    let outside = points.get(lower.last + 1)?;
    let _ = upper;
    Some((
        Interval {
            value: f64::midpoint(inside.octave, outside.octave).exp2(),
            low: inside.octave.exp2(),
            high: outside.octave.exp2(),
        },
        Knee::Sharp,
    ))
}
