//! Writes the tables of `docs/book/accuracy.md` from the kept results of this bench.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use membound_types::MachineInfo;
use serde::Deserialize;

use super::session::Row;
use super::statistics::{Tolerance, Verdict};
use crate::results;
use crate::run::read;

/// Comments on the page that enclose the tables.
const MARKS: [&str; 2] = [
    "<!-- bench accuracy: begin -->\n",
    "<!-- bench accuracy: end -->",
];

/// A result of the bench.
#[derive(Deserialize)]
struct Kept {
    machine: MachineInfo,
    summary: Vec<Row>,
}

/// Figures of the same name in one group of cases, on one machine.
#[derive(Default)]
struct Line<'a> {
    tolerance: String,
    rows: Vec<&'a Row>,
    /// Files of the results that the rows are from.
    files: BTreeSet<&'a str>,
}

/// Writes the tables in `page` again, from every result of the bench in `directory`.
///
/// # Errors
/// When a file cannot be read or written, or the page lacks the marks.
pub(super) fn write(directory: &Path, page: &Path) -> Result<()> {
    let runs: Vec<(String, Kept)> = results::all_of(directory, "accuracy")?;
    let text = replaced(&read(page)?, &tables(&runs)).with_context(|| {
        let [begin, end] = MARKS.map(str::trim);
        format!(
            "{} has no place between `{begin}` and `{end}`",
            page.display()
        )
    })?;
    std::fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))
}

/// `page` with `tables` between the marks.
fn replaced(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{tables}{}{after}", MARKS[0], MARKS[1]))
}

/// A table for each machine: the newest row of each figure, by group.
fn tables(runs: &[(String, Kept)]) -> String {
    let mut newest: BTreeMap<(String, &str, &str), (&Row, &str)> = BTreeMap::new();
    for (file, run) in runs {
        for row in &run.summary {
            let key = (
                machine(&run.machine),
                row.case.as_str(),
                row.figure.as_str(),
            );
            newest.insert(key, (row, file));
        }
    }
    let mut lines: BTreeMap<&str, BTreeMap<(String, &str), Line<'_>>> = BTreeMap::new();
    for ((machine, case, figure), (row, file)) in &newest {
        let of_machine = lines.entry(machine).or_default();
        let line = of_machine.entry((group(case), figure)).or_default();
        line.tolerance = row.tolerance.told();
        line.rows.push(row);
        line.files.insert(file);
    }
    let mut out = String::new();
    for (machine, of_machine) in lines {
        let _ = write!(
            out,
            "\n{machine}:\n\n| programs | figure | tolerance | cases | met | open | missed | inconclusive | worst mean error | runs |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|---|\n"
        );
        for ((group, figure), line) in of_machine {
            let count = |verdict| {
                line.rows
                    .iter()
                    .filter(|row| row.verdict == verdict)
                    .count()
            };
            let missed = match count(Verdict::Missed) {
                0 => "0".to_owned(),
                missed => format!("**{missed}**"),
            };
            let files = line.files.iter().map(|file| {
                let day = file.get(..10).unwrap_or(file);
                format!("[{day}](../../bench/results/{file})")
            });
            let files: Vec<String> = files.collect();
            let _ = writeln!(
                out,
                "| {group} | {figure} | {} | {} | {} | {} | {missed} | {} | {} | {} |",
                line.tolerance,
                line.rows.len(),
                count(Verdict::Met),
                count(Verdict::Open),
                count(Verdict::Inconclusive),
                worst(&line.rows),
                files.join(", "),
            );
        }
    }
    if out.is_empty() {
        out.push_str("\nNo result is kept yet.\n");
    }
    out.push('\n');
    out
}

/// `shares/L2` of `shares/L2/50`; other cases are groups of their own.
fn group(case: &str) -> String {
    let parts: Vec<&str> = case.split('/').take(2).collect();
    parts.join("/")
}

/// Short name of the machine.
fn machine(info: &MachineInfo) -> String {
    let cpu = &info.cpu;
    format!(
        "{}, family {} model {}",
        cpu.model_name,
        cpu.family.unwrap_or(0),
        cpu.model.unwrap_or(0)
    )
}

/// The mean error that is farthest from zero.
fn worst(rows: &[&Row]) -> String {
    let known = rows.iter().filter_map(|row| Some((*row, row.error?)));
    let distance = |row: &Row, value: f64| match row.tolerance {
        Tolerance::Finding => 1.0 - value,
        _ => value.abs(),
    };
    let worst = known
        .max_by(|(one, a), (other, b)| distance(one, a.value).total_cmp(&distance(other, b.value)));
    worst.map_or_else(
        || "–".to_owned(),
        |(row, mean)| row.tolerance.told_mean(&mean, row.count),
    )
}

#[cfg(test)]
mod tests {
    use super::super::statistics::Mean;
    use super::*;

    fn row(case: &str, value: f64, verdict: Verdict) -> Row {
        Row {
            case: case.to_owned(),
            figure: "stall".to_owned(),
            tolerance: Tolerance::Points(4.0),
            count: 5,
            inconclusive: 0,
            truth: Some(0.5),
            found: Some(0.5),
            error: Some(Mean {
                value,
                low: value - 1.0,
                high: value + 1.0,
            }),
            verdict,
        }
    }

    fn run(day: &str, rows: Vec<Row>) -> (String, Kept) {
        let kept = Kept {
            machine: MachineInfo::default(),
            summary: rows,
        };
        (format!("{day}t00-00-00z-x-accuracy.json.gz"), kept)
    }

    #[test]
    fn the_newest_row_of_each_case_counts_and_groups_are_lines() {
        let runs = [
            run(
                "2026-11-25",
                vec![
                    row("shares/L2/10", 9.0, Verdict::Missed),
                    row("shares/L2/50", 1.0, Verdict::Met),
                ],
            ),
            run("2026-11-26", vec![row("shares/L2/10", -2.0, Verdict::Met)]),
        ];
        let text = tables(&runs);
        let line = text.lines().last().unwrap_or_default();
        assert!(
            text.contains(
                "| shares/L2 | stall | ±4 points | 2 | 2 | 0 | 0 | 0 | -2.0 [-3.0, -1.0] points |"
            ),
            "{text}"
        );
        assert!(
            text.contains("2026-11-25") && text.contains("2026-11-26"),
            "{line}"
        );
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let page = format!("a\n{}old\n{}\nb\n", MARKS[0], MARKS[1]);
        let text = replaced(&page, "new\n").unwrap();
        assert_eq!(text, page.replace("old", "new"));
        assert_eq!(replaced("no marks", "new"), None);
    }
}
