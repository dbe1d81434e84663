//! A load on the primary, as `--loads` takes it.

use std::str::FromStr;

/// A load: a positive number, passed to the command as the user wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The number as the user wrote it.
    pub text: String,
    /// The number.
    pub value: f64,
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.parse() {
            Ok(value) if value > 0.0 && f64::is_finite(value) => Ok(Self {
                text: text.to_owned(),
                value,
            }),
            _ => Err("a load is a number above 0".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_positive_number_and_keeps_its_text() {
        let load: Load = " 2e3".parse().unwrap();
        assert_eq!((load.text.as_str(), load.value), ("2e3", 2000.0));
        for text in ["", "0", "-1", "nan", "inf", "high", "10%"] {
            assert!(text.parse::<Load>().is_err(), "{text}");
        }
    }
}
