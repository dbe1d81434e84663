//! Gates: conditions under which a comparison of runs fails.
//!
//! An [`Expression`] names the guarded quantity; [`judge`] compares two sides of runs with it.
//! [`crate::spread`] gives the figure of a side with its error; [`decide()`] tests it against a limit.

mod decide;
mod error;
mod expression;
mod rows;
mod sharing;

use membound_types::{
    Basis, ComparedValue, Figure, Gate, GateLimit, GateSubject, GateVerdict, Profile,
};

use crate::compare::MIN_CHANGE;
use crate::compare::matching::Matched;
use crate::names;
use crate::spread::{Estimate, Observation, mean};
use decide::decide;
pub use error::GateError;
pub use expression::Expression;

/// Judges each of `expressions` for the runs `new` in comparison with the runs `base`. Each run comes with
/// the name of its file, and each side has at least one run.
///
/// # Errors
/// If an expression names something that no run has, or that one of the runs did not record.
pub fn judge(
    base: &[(&str, &Profile)],
    new: &[(&str, &Profile)],
    expressions: &[Expression],
) -> Result<Vec<Gate>, GateError> {
    let named: Vec<(&str, &Profile)> = base.iter().chain(new).copied().collect();
    let runs: Vec<&Profile> = named.iter().map(|(_, profile)| *profile).collect();
    let matched = Matched::new(&runs);
    expressions
        .iter()
        .map(|expression| {
            check_recorded(expression, &named)?;
            let gate = match expression.limit_of {
                GateLimit::New => Some(sharing_gate(expression, &runs, base.len(), &matched)),
                GateLimit::Share | GateLimit::Growth => {
                    growth_gate(expression, &runs, base.len(), &matched)
                }
            };
            gate.ok_or_else(|| unknown(expression, &runs))
        })
        .collect()
}

/// Refuses an expression that needs data which a run did not record: without objects, none can be found
/// missing.
fn check_recorded(expression: &Expression, runs: &[(&str, &Profile)]) -> Result<(), GateError> {
    let (what, table) = match expression.subject {
        GateSubject::Object => ("objects", "objects"),
        GateSubject::FalseSharing => ("latencies", "latency"),
        GateSubject::MemoryBound | GateSubject::Line | GateSubject::Function => return Ok(()),
    };
    let lacks = runs.iter().find(|(_, run)| match expression.subject {
        GateSubject::Object => !run.run.objects_recorded,
        _ => !run.run.latencies_recorded,
    });
    lacks.map_or(Ok(()), |(file, run)| {
        let recorded = run.missing.iter().find(|missing| missing.table == table);
        Err(GateError::NotRecorded {
            expression: expression.text.clone(),
            file: (*file).to_owned(),
            what,
            reason: recorded.map_or_else(
                || "no process could be patched".to_owned(),
                |missing| missing.why.reason.clone(),
            ),
        })
    })
}

fn unknown(expression: &Expression, runs: &[&Profile]) -> GateError {
    let near: Vec<String> = rows::near_names(expression, runs)
        .into_iter()
        .map(|name| format!("`{name}`"))
        .collect();
    GateError::Unknown {
        expression: expression.text.clone(),
        subject: expression.subject,
        name: expression.name.clone(),
        near: match near.as_slice() {
            [] => String::new(),
            near => format!("; there is {}", near.join(", ")),
        },
    }
}

fn sharing_gate(
    expression: &Expression,
    runs: &[&Profile],
    base: usize,
    matched: &Matched<'_>,
) -> Gate {
    let found = sharing::new_sharing(runs, base, matched);
    let none = Figure {
        value: 0.0,
        low: 0.0,
        high: 0.0,
        basis: Basis::Estimated,
    };
    Gate {
        expression: expression.text.clone(),
        subject: expression.subject,
        name: String::new(),
        limit_of: expression.limit_of,
        limit: 0.0,
        base: none,
        new: found.cost,
        change: None,
        verdict: found.verdict,
        runs_needed: None,
        text: found.text,
    }
}

/// Judges a limit of a figure; `None` if no run has the named subject.
fn growth_gate(
    expression: &Expression,
    runs: &[&Profile],
    base_runs: usize,
    matched: &Matched<'_>,
) -> Option<Gate> {
    let mut observations = rows::observations(expression, runs, matched)?;
    if expression.limit_of == GateLimit::Growth {
        for (one, run) in observations.iter_mut().zip(runs) {
            *one = in_seconds(*one, run);
        }
    }
    let base = Estimate::of(&observations[..base_runs])?;
    let new = Estimate::of(&observations[base_runs..])?;
    let cpu_s = mean(runs[..base_runs].iter().map(|run| run.time.cpu_s));
    let decision = decide(
        &base,
        &new,
        expression.limit_of,
        expression.limit,
        MIN_CHANGE * cpu_s,
    );
    let mut gate = Gate {
        expression: expression.text.clone(),
        subject: expression.subject,
        name: expression.name.clone(),
        limit_of: expression.limit_of,
        limit: expression.limit,
        base: base.figure(),
        new: new.figure(),
        change: decision.change,
        verdict: decision.verdict,
        runs_needed: decision.runs_needed,
        text: String::new(),
    };
    gate.text = sentence(&gate);
    Some(gate)
}

fn in_seconds(share: Observation, run: &Profile) -> Observation {
    share.scaled(run.time.cpu_s)
}

fn sentence(gate: &Gate) -> String {
    let subject = match gate.name.as_str() {
        "" => "the program".to_owned(),
        name => format!("{} {name}", gate.subject),
    };
    let figures = if gate.limit_of == GateLimit::Growth {
        format!(
            "{subject} stalls for {:.3} s, {:.3} s before",
            gate.new.value, gate.base.value
        )
    } else {
        format!(
            "{subject} waits for memory in {} of CPU time, {} before",
            names::percent(gate.new.value),
            names::percent(gate.base.value)
        )
    };
    let (unit, by) = match gate.limit_of {
        GateLimit::Growth => ("%", 100.0),
        GateLimit::Share | GateLimit::New => ("pt", 100.0),
    };
    let change = match gate.change {
        Some(change) => format!(": {}", interval(change, by, unit)),
        None => ": there was nothing to grow from".to_owned(),
    };
    let end = match (gate.verdict, gate.runs_needed) {
        (GateVerdict::Undecided, Some(runs)) => {
            format!(": may be above or below the limit; {runs} runs a side would decide")
        }
        (GateVerdict::Undecided, None) => {
            ": close to the limit, or too unsteady for any number of runs".to_owned()
        }
        _ => String::new(),
    };
    format!("{figures}{change}{end}")
}

/// Formats a change with its interval: `+11.1 pt [+8.9, +13.3]`.
fn interval(change: ComparedValue, by: f64, unit: &str) -> String {
    let end = |value: Option<f64>| {
        value.map_or_else(|| "?".to_owned(), |value| format!("{:+.1}", value * by))
    };
    format!(
        "{:+.1} {unit} [{}, {}]",
        change.value * by,
        end(change.low),
        end(change.high)
    )
}
