//! Outcome of a run, and which parts of it may differ from run to run.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code.
    Exited(i32),
    /// By a signal.
    Killed(i32),
    /// Not at all; it was killed after the timeout.
    Hung,
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Hung,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => f.pad(&code.to_string()),
            Self::Killed(signal) => f.pad(&format!("sig {signal}")),
            Self::Hung => f.pad("hung"),
        }
    }
}

/// Everything that a run produced.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Contents of the files that it makes, in the order of the task's list.
    pub(crate) files: Vec<Option<Vec<u8>>>,
    pub(crate) elapsed_s: f64,
}

/// Which parts of an output are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Every byte.
    Bytes,
    /// The result lines of a Python test run.
    TestResults,
}

impl Comparison {
    /// The part of `text` that has to be the same in every run.
    pub(crate) fn kept(self, text: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(text);
        match self {
            Self::Bytes => text.lines().map(str::to_owned).collect(),
            Self::TestResults => {
                // Threads and children write in any order.
                let mut lines: Vec<String> = text.lines().filter_map(result_line).collect();
                lines.sort_unstable();
                lines
            }
        }
    }
}

/// A line of a Python test run without the parts that differ from run to run; `None` if it is no
/// result.
fn result_line(line: &str) -> Option<String> {
    const VERDICTS: [&str; 5] = ["ok", "FAIL", "ERROR", "expected failure", "skipped"];
    if let Some(rest) = line.strip_prefix("Ran ") {
        return Some(format!("Ran {}", rest.split(" in ").next()?));
    }
    if ["OK", "FAILED ("].iter().any(|word| line.starts_with(word)) || line.starts_with("FAIL:") {
        return Some(line.to_owned());
    }
    let (test, verdict) = line.rsplit_once(" ... ")?;
    VERDICTS
        .iter()
        .any(|word| verdict.starts_with(word))
        .then(|| without_addresses(&format!("{test} ... {verdict}")))
}

/// `text` with every hexadecimal number replaced by the same word.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("0x?");
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    out
}

/// The first line in which two texts differ, described for people.
pub(crate) fn first_difference(left: &[String], right: &[String]) -> Option<String> {
    let longest = left.len().max(right.len());
    (0..longest).find_map(|index| {
        let (a, b) = (left.get(index), right.get(index));
        (a != b).then(|| {
            format!(
                "line {}: unpatched {}, patched {}",
                index + 1,
                shown(a),
                shown(b)
            )
        })
    })
}

/// A line in quotes, cut when it is long.
fn shown(line: Option<&String>) -> String {
    match line {
        None => "has none".to_owned(),
        Some(line) if line.chars().count() > 200 => {
            format!("`{}…`", line.chars().take(200).collect::<String>())
        }
        Some(line) => format!("`{line}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_lose_their_times_and_addresses() {
        let text = b"test_a (test.t.T.test_a) ... ok\nnoise\nRan 12 tests in 0.123s\n\
                     test <f at 0x7f00aa12> ... skipped 'no'\nOK (skipped=1)\nprints ... things\n";
        assert_eq!(
            Comparison::TestResults.kept(text),
            [
                "OK (skipped=1)",
                "Ran 12 tests",
                "test <f at 0x?> ... skipped 'no'",
                "test_a (test.t.T.test_a) ... ok",
            ]
        );
    }

    #[test]
    fn the_first_difference_is_named() {
        let lines = |text: &str| Comparison::Bytes.kept(text.as_bytes());
        assert_eq!(first_difference(&lines("a\nb\n"), &lines("a\nb\n")), None);
        assert_eq!(
            first_difference(&lines("a\nb\n"), &lines("a\nc\n")).unwrap(),
            "line 2: unpatched `b`, patched `c`"
        );
        assert_eq!(
            first_difference(&lines("a\n"), &lines("a\nc\n")).unwrap(),
            "line 2: unpatched has none, patched `c`"
        );
    }
}
