//! Coordinates as text, for everything that is drawn.

/// Formats a coordinate with one decimal, none if it is zero.
pub(in crate::page) fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}
