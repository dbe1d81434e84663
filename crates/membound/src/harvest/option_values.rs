//! Parsers of option values that several subcommands of `harvest` have.

use membound_launch::RequestsBy;

/// A share such as `5%` or `5`, as 0 to 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share of 0% to 100%")),
    }
}

/// A positive time in nanoseconds.
pub(super) fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(ns),
        _ => Err(format!("`{text}` is no number of nanoseconds")),
    }
}

/// How requests are recognised: `sockets`, `FUNCTION` or `BEGIN..END`.
pub(super) fn requests(text: &str) -> Result<RequestsBy, String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.contains("..")
            && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    };
    match text.split_once("..") {
        _ if text == "sockets" => Ok(RequestsBy::Sockets),
        None if is_name(text) => Ok(RequestsBy::Calls(text.to_owned())),
        Some((begin, end)) if begin == end => {
            Err(format!("`{text}`: a request cannot end where it begins"))
        }
        Some((begin, end)) if is_name(begin) && is_name(end) => Ok(RequestsBy::Between {
            begin: begin.to_owned(),
            end: end.to_owned(),
        }),
        _ => Err(format!(
            "`{text}` is neither `sockets`, nor a function, nor two as in BEGIN..END"
        )),
    }
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
    fn requests_are_given_as_sockets_or_functions() {
        assert_eq!(requests("sockets"), Ok(RequestsBy::Sockets));
        assert_eq!(
            requests("_ZN5serveEv"),
            Ok(RequestsBy::Calls("_ZN5serveEv".to_owned()))
        );
        let between = RequestsBy::Between {
            begin: "begin".to_owned(),
            end: "end".to_owned(),
        };
        assert_eq!(requests("begin..end"), Ok(between));
        for text in ["", "..", "a..", "..b", "a..b..c", "a b", "a..a"] {
            assert!(requests(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bound_is_a_positive_time() {
        assert_eq!(bound("200"), Ok(200.0));
        for text in ["", "0", "-3", "inf", "nan", "200ns"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
