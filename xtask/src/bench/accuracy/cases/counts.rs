//! Counted executions against programs that count their own, and traffic against a triad that
//! counts its own bytes.

use anyhow::{Context as _, Result, ensure};
use membound_types::{Basis, Share};

use super::super::case::{Case, Figure, Observed, Program, started};
use super::super::statistics::{Reading, Tolerance};

const COUNTS: Program = Program::of("bench/accuracy/counts.c", "-O2");

const RECURSION: Program = Program::of(
    "bench/accuracy/counts.c",
    "-O2 -fno-optimize-sibling-calls -fno-inline",
);

const KERNELS: Program = Program::of("bench/accuracy/kernels.c", "-O2");

/// Tolerance of counted executions, in percent.
const EXECUTIONS: f64 = 10.0;
/// Tolerance of traffic, in percent.
const TRAFFIC: f64 = 15.0;

/// Modes of the program, the functions counted in each mode, and whether the first function may end
/// before anything could be counted.
const LOOPS: [(&str, &[&str], bool); 6] = [
    ("tight", &["loads"], false),
    ("stores", &["stores"], false),
    ("adds", &["adds"], false),
    ("phase", &["loads", "gather"], false),
    ("turns", &["loads", "gather"], false),
    ("first", &["fill", "gather"], true),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (mode, functions, may_miss_first) in LOOPS {
        let mut case = started(&format!("counts/{mode}"), COUNTS, &[mode]);
        for (at, &function) in functions.iter().enumerate() {
            let may_miss = may_miss_first && at == 0;
            // The figure needs a count; for an instruction that was hardly counted, the interval is
            // checked.
            if !may_miss {
                let figure = Figure::new(
                    format!("executions of {function}"),
                    Tolerance::Percent(EXECUTIONS),
                    move |observed| closest(observed, function).map(Some),
                );
                case.figures.push(figure);
            }
            let figure = Figure::finding(format!("interval of {function}"), move |observed| {
                let truth = observed.told(function)?;
                let all = counted(observed, function);
                Ok((may_miss || !all.is_empty())
                    && all.iter().all(|[value, low, high]| {
                        let is_close = (value / truth - 1.0).abs() <= EXECUTIONS / 100.0;
                        low <= value && value <= high && (is_close || holds(*low, *high, truth))
                    }))
            });
            case.figures.push(figure);
        }
        cases.push(case);
    }
    let mut calls = started("counts/calls", RECURSION, &["calls"]);
    // The counter's own access; other accesses of the function run in a part of the calls, or
    // twice.
    calls
        .figures
        .push(Figure::finding("interval of calls", |observed| {
            let truth = observed.told("calls")?;
            let all = counted(observed, "calls");
            Ok(all.iter().any(|[_, low, high]| holds(*low, *high, truth)))
        }));
    cases.push(calls);
    cases.push(triad());
    cases
}

fn holds(low: f64, high: f64, truth: f64) -> bool {
    low <= truth && truth <= high
}

/// The executions in a report: the figure and the ends of its interval.
fn ends(share: &Share) -> Option<[f64; 3]> {
    let loads = share.loads.zip(share.loads_low).zip(share.loads_high);
    let stores = share.stores.zip(share.stores_low).zip(share.stores_high);
    let ((value, low), high) = loads.or(stores)?;
    Some([value, low, high])
}

/// Executions of each instruction of `function` that was counted.
fn counted(observed: &Observed, function: &str) -> Vec<[f64; 3]> {
    let rows = observed.profile.instructions.iter();
    rows.filter(|row| row.function == function)
        .filter_map(|row| ends(&row.share))
        .collect()
}

/// The instruction of `function` whose count is closest to the program's.
fn closest(observed: &Observed, function: &str) -> Result<Reading> {
    let truth = observed.told(function)?;
    let values = counted(observed, function).into_iter().map(|it| it[0]);
    let found = values.min_by(|one, other| (one - truth).abs().total_cmp(&(other - truth).abs()));
    Ok(Reading {
        truth,
        found: found.unwrap_or(0.0),
    })
}

fn triad() -> Case {
    let mut case = started("kernels/triad", KERNELS, &["triad", "3000"]);
    case.figures = vec![
        Figure::new("traffic", Tolerance::Percent(TRAFFIC), |observed| {
            let domain = memory(observed)?;
            // The second half of the run is the loop alone: the arrays are filled before.
            let moments = &domain.timeline;
            let last = &moments[moments.len() / 2..moments.len() - moments.len() / 10];
            ensure!(!last.is_empty(), "the timeline is empty");
            let sum: f64 = last.iter().map(|it| it.read_gb_s + it.write_gb_s).sum();
            Ok(Some(Reading {
                truth: observed.told("bytes")? / observed.told("wall_ns")?,
                found: sum / last.len() as f64,
            }))
        }),
        Figure::finding("basis and most of the machine", |observed| {
            let counted = observed.told("bytes")? / observed.told("wall_ns")?;
            let domain = memory(observed)?;
            let most = domain.machine_max_gb_s.known();
            Ok(matches!(domain.basis, Basis::Modelled | Basis::Measured)
                && most.is_some_and(|most| *most > counted * 0.7))
        }),
        Figure::finding("line that moves most", |observed| {
            let line = KERNELS.line_of("/* TRIAD */")?;
            let first = memory(observed)?.lines.first();
            Ok(first.is_some_and(|it| it.name.ends_with(&format!("kernels.c:{line}"))))
        }),
    ];
    case
}

/// The traffic of memory.
fn memory(observed: &Observed) -> Result<&membound_types::BandwidthDomain> {
    let domains = &observed.profile.bandwidth;
    let found = domains.iter().find(|it| it.domain.starts_with("DRAM"));
    found.context("the report has no traffic of memory")
}
