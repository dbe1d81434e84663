//! Parses the expressions of `--fail-on`: a subject, its name if it has one, and a limit.
//!
//! ```text
//! memory-bound +3pt        line x.c:40 +10%        false-sharing new
//! object NAME +5%          function NAME +2pt
//! ```

use std::str::FromStr;

use membound_types::{GateLimit, GateSubject};

use super::error::GateError;

/// All forms of an expression, for error messages.
pub(super) const KNOWN: &str = "use 'memory-bound +3pt', 'line FILE:LINE +10%', 'object NAME +5%', \
                                'function NAME +5%' or 'false-sharing new'";

/// One condition under which a comparison of runs fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// The expression as given.
    pub text: String,
    /// Kind of the subject.
    pub subject: GateSubject,
    /// Name of the line, object or function; empty for other subjects.
    pub name: String,
    /// Quantity that `limit` applies to.
    pub limit_of: GateLimit,
    /// The limit as a share: 0.03 for `+3pt`, 0.1 for `+10%`; 0 for `new`.
    pub limit: f64,
}

impl FromStr for Expression {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let wrong = |reason: String| GateError::Expression {
            expression: text.to_owned(),
            reason,
        };
        let trimmed = text.trim();
        let (first, rest) = split_first(trimmed);
        let subject: GateSubject = first
            .parse()
            .map_err(|_| wrong(format!("`{first}` is nothing that is guarded: {KNOWN}")))?;
        let (name, limit) = split_limit(rest);
        match (subject, name) {
            (GateSubject::Line | GateSubject::Object | GateSubject::Function, "") => {
                return Err(wrong(format!("which {subject}? {KNOWN}")));
            }
            (GateSubject::Line, name) if !is_line(name) => {
                return Err(wrong(format!(
                    "`{name}` is no line: use FILE:LINE, as in x.c:40"
                )));
            }
            (GateSubject::MemoryBound | GateSubject::FalseSharing, name) if !name.is_empty() => {
                return Err(wrong(format!("{subject} takes no name (`{name}`)")));
            }
            _ => {}
        }
        let (limit_of, limit) = match subject {
            GateSubject::FalseSharing if limit == "new" => (GateLimit::New, 0.0),
            GateSubject::FalseSharing => {
                return Err(wrong("use 'false-sharing new'".to_owned()));
            }
            _ => growth(limit).map_err(wrong)?,
        };
        Ok(Self {
            text: trimmed.to_owned(),
            subject,
            name: name.to_owned(),
            limit_of,
            limit,
        })
    }
}

fn split_first(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace)
        .map_or((text, ""), |(first, rest)| (first, rest.trim()))
}

/// Splits off the last word, which is the limit. A unit separated by a space belongs to it.
fn split_limit(text: &str) -> (&str, &str) {
    let bare = text
        .strip_suffix('%')
        .or_else(|| text.strip_suffix("pt"))
        .unwrap_or(text)
        .trim_end();
    match bare.rfind(char::is_whitespace) {
        Some(at) => (text[..at].trim_end(), text[at..].trim_start()),
        None => ("", text),
    }
}

fn is_line(name: &str) -> bool {
    name.rsplit_once(':').is_some_and(|(file, line)| {
        !file.is_empty() && !line.is_empty() && line.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// Parses a limit: `+3pt` or `+10%`.
fn growth(limit: &str) -> Result<(GateLimit, f64), String> {
    let wrong = || {
        let what = if limit.is_empty() {
            "there is no limit".to_owned()
        } else {
            format!("`{limit}` is no limit")
        };
        format!("{what}: use +3pt (points of CPU time) or +10% (growth of the stalled seconds)")
    };
    let (number, limit_of) = match (limit.strip_suffix("pt"), limit.strip_suffix('%')) {
        (Some(number), _) => (number, GateLimit::Share),
        (None, Some(number)) => (number, GateLimit::Growth),
        (None, None) => return Err(wrong()),
    };
    let number = number.trim_end().strip_prefix('+').ok_or_else(wrong)?;
    // Digits only: no second sign, no `inf`, no exponent.
    let plain = |it: char| it.is_ascii_digit() || it == '.';
    let percent: f64 = Some(number)
        .filter(|number| number.chars().all(plain))
        .and_then(|number| number.parse().ok())
        .ok_or_else(wrong)?;
    if limit_of == GateLimit::Share && percent >= 100.0 {
        return Err(format!(
            "`{limit}` can never be passed: a program has 100 points of CPU time"
        ));
    }
    Ok((limit_of, percent / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, subject: GateSubject, name: &str, limit_of: GateLimit, limit: f64) {
        let found: Expression = text.parse().unwrap();
        assert_eq!(
            (found.subject, found.name.as_str(), found.limit_of),
            (subject, name, limit_of),
            "{text}"
        );
        assert!((found.limit - limit).abs() < 1e-12, "{text}: {found:?}");
        assert_eq!(found.text, text.trim());
    }

    #[test]
    fn subjects_names_and_limits_are_parsed() {
        use GateLimit::{Growth, New, Share};
        use GateSubject::{FalseSharing, Function, Line, MemoryBound, Object};
        check("memory-bound +3pt", MemoryBound, "", Share, 0.03);
        check("  memory-bound   +0.5 pt ", MemoryBound, "", Share, 0.005);
        check("memory-bound +0%", MemoryBound, "", Growth, 0.0);
        check("line x.c:40 +10%", Line, "x.c:40", Growth, 0.1);
        check("line a b/x.c:40 +10 %", Line, "a b/x.c:40", Growth, 0.1);
        check("object table +5%", Object, "table", Growth, 0.05);
        check(
            "object stats.cpp:19 (512 B) +5%",
            Object,
            "stats.cpp:19 (512 B)",
            Growth,
            0.05,
        );
        check(
            "function f(int, char) +120%",
            Function,
            "f(int, char)",
            Growth,
            1.2,
        );
        check("function pt +2pt", Function, "pt", Share, 0.02);
        check("false-sharing new", FalseSharing, "", New, 0.0);
    }

    #[test]
    fn what_is_wrong_is_named_in_one_line() {
        for (text, cause) in [
            ("", "use 'memory-bound +3pt'"),
            ("5%", "`5%` is nothing that is guarded"),
            ("memory +3pt", "`memory` is nothing that is guarded"),
            ("memory-bound", "there is no limit"),
            ("memory-bound 3pt", "`3pt` is no limit"),
            ("memory-bound -3pt", "`-3pt` is no limit"),
            ("memory-bound +3", "`+3` is no limit"),
            ("memory-bound ++3pt", "`++3pt` is no limit"),
            ("memory-bound +pt", "`+pt` is no limit"),
            ("memory-bound +infpt", "`+infpt` is no limit"),
            ("memory-bound +1e3%", "`+1e3%` is no limit"),
            ("memory-bound +100pt", "can never be passed"),
            ("memory-bound x +3pt", "takes no name (`x`)"),
            ("memory-bound new", "`new` is no limit"),
            ("line +10%", "which line?"),
            ("line x.c +10%", "`x.c` is no line"),
            ("line x.c: +10%", "`x.c:` is no line"),
            ("object +5%", "which object?"),
            ("function", "which function?"),
            ("false-sharing", "use 'false-sharing new'"),
            ("false-sharing +3pt", "use 'false-sharing new'"),
            ("false-sharing table new", "takes no name (`table`)"),
        ] {
            let error = Expression::from_str(text).unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
            assert!(error.starts_with(&format!("`{text}`: ")), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
