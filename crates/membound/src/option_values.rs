//! Parsers of option values that several subcommands have.

use std::time::Duration;

/// A share such as `5%` or `5`, as 0 to 1.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share of 0% to 100%")),
    }
}

/// A positive time in nanoseconds.
pub(crate) fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(ns),
        _ => Err(format!("`{text}` is no number of nanoseconds")),
    }
}

/// A positive time in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0.0)
        .and_then(|number| Duration::try_from_secs_f64(number).ok())
        .ok_or_else(|| format!("`{text}` is no number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_with_a_sign_or_without() {
        for (text, share) in [("5%", 0.05), ("0.5", 0.005), ("100 %", 1.0), ("0%", 0.0)] {
            assert!((percent(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["", "%", "-1%", "101", "nan", "a few"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bound_is_a_positive_time() {
        assert_eq!(bound("200"), Ok(200.0));
        for text in ["", "0", "-3", "inf", "nan", "200ns"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "1e300", "", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
