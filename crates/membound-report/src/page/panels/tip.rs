//! The tooltip of a point, for the charts of panels.

use membound_types::Disturbance;

use crate::{facts, units};

/// Tooltip of a point: `48 KiB: 1.2 ns [1.1, 1.3]`, and the cause of a perturbation.
pub(super) fn tip(
    place: &str,
    value: &str,
    interval: Option<(f64, f64)>,
    disturbance: &Disturbance,
    with_unit: fn(f64) -> String,
) -> String {
    let mut text = format!("{place}: {value}");
    if let Some((low, high)) = interval {
        text.push(' ');
        text.push_str(&units::interval(low, high));
    }
    if let Some(reason) = facts::reason(disturbance, with_unit) {
        text.push_str("; disturbed: ");
        text.push_str(&reason);
    }
    text
}
