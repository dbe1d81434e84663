//! `cargo xtask bench accuracy`: figures of profiles against what programs measure of themselves.
//!
//! A case is repeated until the 95 % interval of its mean error is narrow enough. Probes of the
//! machine run before, beside and after each repetition; a repetition in which they find the
//! machine perturbed is inconclusive, whatever it found. The exit code is 1 if the whole interval
//! of a figure lies outside its tolerance, or if more cases than the quota are inconclusive.

mod case;
mod cases;
mod page;
mod probe;
mod session;
mod statistics;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde_json::json;

use self::session::{Bed, Plan, Row};
use self::statistics::Verdict;
use crate::results::Kept;
use crate::run::{root, say};

/// Arguments of `bench accuracy`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Cases whose names begin so, such as `shares/L2` or `sharing`; all of them without.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Fewest conclusive repetitions of a case.
    #[arg(long, default_value_t = 5)]
    least: usize,
    /// Most repetitions of a case, inconclusive ones among them.
    #[arg(long, default_value_t = 15)]
    most: usize,
    /// Half the width of the interval that is wanted, in points or percent.
    #[arg(long, default_value_t = 2.0)]
    half_width: f64,
    /// Percent of the cases that may be inconclusive.
    #[arg(long, default_value_t = 20.0)]
    quota: f64,
    /// Write the tables of docs/book/accuracy.md again from the kept results and run nothing.
    #[arg(long)]
    pub(super) page: bool,
}

/// Writes the page's tables from the kept results.
pub(super) fn write_page() -> Result<()> {
    page::write(
        &root().join("bench/results"),
        &root().join("docs/book/accuracy.md"),
    )
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<(Kept, ExitCode)> {
    ensure!(
        args.least >= 2 && args.most >= args.least,
        "a case needs at least two repetitions, and no fewer at most than at least"
    );
    let bed = Bed::new(membound)?;
    let (every, absent) = cases::all(&bed.machine);
    let is_chosen = |name: &str| {
        args.only.is_empty() || args.only.iter().any(|only| name.starts_with(only.as_str()))
    };
    for (name, reason) in absent.iter().filter(|(name, _)| is_chosen(name)) {
        say(format_args!("{name:<22}skipped: {reason}"));
    }
    let chosen: Vec<_> = every.iter().filter(|case| is_chosen(&case.name)).collect();
    ensure!(!chosen.is_empty(), "no case of this machine is called so");
    let plan = Plan {
        least: args.least,
        most: args.most,
        half_width: args.half_width,
    };
    session::head();
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    for case in &chosen {
        let (of_case, repetitions) = bed.run(case, plan)?;
        of_case.iter().for_each(session::show);
        rows.extend(of_case);
        raw.push(repetitions);
    }
    let code = judge(&rows, args.quota);
    let kept = Kept {
        bench: "accuracy",
        machine: bed.machine.machine.clone(),
        summary: json!(rows),
        raw: json!({ "machine": bed.machine, "cases": raw, "skipped": absent }),
    };
    Ok((kept, code))
}

/// Prints the totals of all rows and returns the exit code.
fn judge(rows: &[Row], quota: f64) -> ExitCode {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let missed = count(Verdict::Missed);
    let cases = |of: &dyn Fn(&Row) -> bool| {
        let mut names: Vec<&str> = (rows.iter().filter(|row| of(row)))
            .map(|row| row.case.as_str())
            .collect();
        names.dedup();
        names.len()
    };
    let inconclusive = cases(&|row| row.verdict == Verdict::Inconclusive);
    let all = cases(&|_| true);
    say(format_args!(
        "{} figures met, {missed} missed, {} open; {inconclusive} of {all} cases inconclusive",
        count(Verdict::Met),
        count(Verdict::Open),
    ));
    let over = inconclusive as f64 > quota / 100.0 * all as f64;
    if over {
        say(format_args!(
            "more than {quota} % of the cases are inconclusive: run them on a quieter machine"
        ));
    }
    if missed > 0 || over {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::statistics::Tolerance;
    use super::*;

    fn row(case: &str, verdict: Verdict) -> Row {
        Row {
            case: case.to_owned(),
            figure: "stall".to_owned(),
            tolerance: Tolerance::Points(4.0),
            count: 5,
            inconclusive: 0,
            truth: None,
            found: None,
            error: None,
            verdict,
        }
    }

    #[test]
    fn a_missed_figure_is_red_and_an_open_one_is_not() {
        let rows = [row("a", Verdict::Met), row("b", Verdict::Open)];
        assert_eq!(judge(&rows, 20.0), ExitCode::SUCCESS);
        let rows = [row("a", Verdict::Met), row("b", Verdict::Missed)];
        assert_eq!(judge(&rows, 20.0), ExitCode::FAILURE);
    }

    #[test]
    fn inconclusive_cases_are_red_above_the_quota() {
        let mut rows: Vec<Row> = ["a", "b", "c", "d"].map(|it| row(it, Verdict::Met)).into();
        rows.push(row("e", Verdict::Inconclusive));
        rows.push(row("e", Verdict::Inconclusive));
        assert_eq!(judge(&rows, 20.0), ExitCode::SUCCESS);
        assert_eq!(judge(&rows, 19.0), ExitCode::FAILURE);
    }
}
