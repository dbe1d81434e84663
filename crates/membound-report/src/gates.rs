//! Gates for other programs: Markdown for a pull request or a job summary, JUnit for a CI system.

use std::fmt::Write as _;

use membound_types::{GateVerdict, RunChange, RunComparison};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::facts::comparison::letter;
use crate::facts::{gate, run};
use crate::units;

/// Most changes in the Markdown; the JSON has all of them.
const MAX_ROWS: usize = 10;

/// Effect of an undecided gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Undecided {
    /// It passes, and a line says so.
    #[default]
    Passes,
    /// It fails, like a gate whose limit is exceeded.
    Fails,
}

impl Undecided {
    /// True if a gate with this verdict fails.
    #[must_use]
    pub fn fails(self, verdict: GateVerdict) -> bool {
        match verdict {
            GateVerdict::Failed => true,
            GateVerdict::Passed => false,
            GateVerdict::Undecided => self == Self::Fails,
        }
    }
}

/// Formats the gates, why some did not pass, and the largest changes as GitHub Markdown.
#[must_use]
pub fn markdown(comparison: &RunComparison, undecided: Undecided) -> String {
    let mut text = format!("### membound: {}\n\n", outcome(comparison, undecided));
    if !comparison.gates.is_empty() {
        text.push_str("| verdict | gate | base | new | change |\n|---|---|--:|--:|--:|\n");
        for it in &comparison.gates {
            let verdict = match it.verdict {
                GateVerdict::Passed => it.verdict.name().to_owned(),
                other => format!("**{}**", other.name()),
            };
            row(
                &mut text,
                &[
                    verdict,
                    code(&it.expression),
                    gate::figure(it, it.base),
                    gate::figure(it, it.new),
                    format!("{} {}", gate::change(it), gate::interval(it)),
                ],
            );
        }
        text.push('\n');
        for it in &comparison.gates {
            if it.verdict != GateVerdict::Passed {
                let _ = writeln!(
                    text,
                    "- {} {}: {}",
                    code(&it.expression),
                    it.verdict,
                    escaped(&it.text)
                );
            }
        }
        let _ = writeln!(text, "\n{}\n", escaped(&gate::remark(comparison)));
    }
    for sentence in &comparison.summary {
        let _ = writeln!(text, "- {}", escaped(sentence));
    }
    changes(&mut text, comparison);
    text
}

/// Verdict over all gates, in a few words.
fn outcome(comparison: &RunComparison, undecided: Undecided) -> String {
    if comparison.gates.is_empty() {
        return "runs side by side".to_owned();
    }
    let open = gate::count(comparison, GateVerdict::Undecided);
    let failed = (comparison.gates.iter()).any(|gate| undecided.fails(gate.verdict));
    match (failed, open) {
        (true, _) => "failed".to_owned(),
        (false, 0) => "passed".to_owned(),
        (false, open) => format!("passed, {open} undecided"),
    }
}

fn changes(text: &mut String, comparison: &RunComparison) {
    let real: Vec<&RunChange> = comparison
        .changes
        .iter()
        .filter(|change| change.significant)
        .take(MAX_ROWS)
        .collect();
    if real.is_empty() {
        return;
    }
    let columns = columns(comparison);
    text.push_str("\n<details><summary>What changed, in stalled seconds</summary>\n\n");
    let _ = writeln!(text, "| change | {} | what |", columns.join(" | "));
    let _ = writeln!(text, "|--:|{}---|", "--:|".repeat(columns.len()));
    for change in real {
        let mut cells = vec![run::signed_seconds(change.change_s)];
        cells.extend((0..columns.len()).map(|column| {
            let stall = change.stall_s.get(column).copied().flatten();
            stall.map_or_else(|| "–".to_owned(), |stall| units::seconds(stall.value))
        }));
        cells.push(format!("{} {}", change.group, code(&change.name)));
        row(text, &cells);
    }
    text.push_str("\n</details>\n");
}

/// Titles of the columns: sides, or runs if there are no sides.
pub(crate) fn columns(comparison: &RunComparison) -> Vec<String> {
    if comparison.sides.is_empty() {
        (0..comparison.runs.len()).map(letter).collect()
    } else {
        let sides = comparison.sides.iter();
        sides.map(|side| side.name.clone()).collect()
    }
}

fn row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// Formats a name as inline code, with any characters in it.
fn code(name: &str) -> String {
    // In a table, a bar ends the cell even within code, and within code only a longer fence can escape a
    // backtick.
    let name = plain_text(name).replace('|', "\\|");
    let fence = if name.contains('`') { "``" } else { "`" };
    let room = if name.contains('`') { " " } else { "" };
    let name = name.replace("``", "` `");
    format!("{fence}{room}{name}{room}{fence}")
}

/// Escapes all markup in `text`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in plain_text(text).chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '@' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Replaces control characters, so that the text is one line.
fn plain_text(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// Formats each gate as a JUnit test case. Failing gates are failures; undecided gates that do not fail are
/// skipped tests.
///
/// # Errors
/// The message of the XML writer, if it fails.
pub fn junit(comparison: &RunComparison, undecided: Undecided) -> Result<String, String> {
    let mut suite = TestSuite::new("membound compare");
    for it in &comparison.gates {
        let mut status = if undecided.fails(it.verdict) {
            TestCaseStatus::non_success(NonSuccessKind::Failure)
        } else if it.verdict == GateVerdict::Undecided {
            TestCaseStatus::skipped()
        } else {
            TestCaseStatus::success()
        };
        if it.verdict != GateVerdict::Passed {
            status.set_type(it.verdict.name()).set_message(&it.text);
        }
        let mut case = TestCase::new(&it.expression, status);
        case.set_classname("membound.gate");
        case.set_system_out(&it.text);
        suite.add_test_case(case);
    }
    let mut report = Report::new("membound");
    report.add_test_suite(suite);
    report.to_string().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_names() {
        assert_eq!(code("a|b"), "`a\\|b`");
        assert_eq!(code("a`b"), "`` a`b ``");
        assert_eq!(code("a\nb"), "`a b`");
        assert_eq!(
            escaped("<img src=x> *a* @me"),
            "&lt;img src=x&gt; \\*a\\* \\@me"
        );
    }

    #[test]
    fn undecided_fails_where_that_is_asked_for() {
        use GateVerdict::{Failed, Passed, Undecided as Open};
        for (undecided, expected) in [
            (Undecided::Passes, [true, false, false]),
            (Undecided::Fails, [true, false, true]),
        ] {
            assert_eq!(
                [Failed, Passed, Open].map(|it| undecided.fails(it)),
                expected
            );
        }
    }
}
