//! Numbers of the data for the page's script, in few digits.

use serde_json::{Value, json};

/// Ends of an interval; `null` if unknown.
pub(super) fn ends(low: Option<f64>, high: Option<f64>) -> Value {
    low.zip(high).map_or(Value::Null, |(low, high)| {
        json!([rounded(low), rounded(high)])
    })
}

/// Rounds to five significant digits; 0 if not finite.
pub(super) fn rounded(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    let scaled = (value * scale).round() / scale;
    if scaled.is_finite() { scaled } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_five_digits() {
        assert_eq!(rounded(0.123_456_7), 0.123_46);
        assert_eq!(rounded(-98_765.4), -98_765.0);
        assert_eq!(rounded(f64::NAN), 0.0);
        assert_eq!(rounded(1e-320), 1e-320);
    }
}
