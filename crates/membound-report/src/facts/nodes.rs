//! Text about accesses to pages on the thread's own node.

use crate::units;

/// Formats a local share with its interval: `48 % [41, 55]`.
pub(crate) fn local(fraction: f64, interval: Option<[f64; 2]>) -> String {
    let percent = units::percent(fraction);
    match interval {
        Some([low, high]) => format!("{percent} {}", units::percent_interval(low, high)),
        None => percent,
    }
}
