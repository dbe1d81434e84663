//! Texts about gates that terminal, page, Markdown and JUnit share.

use membound_types::{ComparedValue, Figure, Gate, GateLimit, GateVerdict, RunComparison};

use crate::facts::run::NONE;
use crate::units;

/// Figure of a side: a share of CPU time, or stalled seconds if growth is limited.
pub(crate) fn figure(gate: &Gate, figure: Figure) -> String {
    match gate.limit_of {
        GateLimit::Growth => units::seconds(figure.value),
        GateLimit::Share | GateLimit::New => units::percent(figure.value),
    }
}

/// Subject of a gate: `memory-bound`, `function work`.
pub(crate) fn subject(gate: &Gate) -> String {
    match gate.name.as_str() {
        "" => gate.subject.name().to_owned(),
        name => format!("{} {name}", gate.subject),
    }
}

/// Limit of a gate: `+3 pt`, `+10 %`, `new`.
pub(crate) fn limit(gate: &Gate) -> String {
    match gate.limit_of {
        GateLimit::New => GateLimit::New.name().to_owned(),
        GateLimit::Share | GateLimit::Growth => {
            format!("+{} {}", units::compact(gate.limit * 100.0), unit(gate))
        }
    }
}

/// Change without its interval: `+11.1 pt`.
pub(crate) fn change(gate: &Gate) -> String {
    gate.change.map_or_else(
        || NONE.to_owned(),
        |change| format!("{} {}", signed(change.value), unit(gate)),
    )
}

/// Interval of the change: `[+8.9, +13.3]`.
pub(crate) fn interval(gate: &Gate) -> String {
    let end = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), signed);
    gate.change
        .map_or_else(String::new, |ComparedValue { low, high, .. }| {
            format!("[{}, {}]", end(low), end(high))
        })
}

/// Formats a share in hundredths with its sign.
fn signed(share: f64) -> String {
    let tenths = (share * 1000.0).round();
    // Avoid a negative zero.
    format!("{:+.1}", (tenths + 0.0) / 10.0).replace('-', "−")
}

fn unit(gate: &Gate) -> &'static str {
    match gate.limit_of {
        GateLimit::Growth => "%",
        GateLimit::Share | GateLimit::New => "pt",
    }
}

/// Number of gates with this verdict.
pub(crate) fn count(comparison: &RunComparison, verdict: GateVerdict) -> usize {
    let gates = comparison.gates.iter();
    gates.filter(|gate| gate.verdict == verdict).count()
}

/// Explains the runs and the brackets.
pub(crate) fn remark(comparison: &RunComparison) -> String {
    let sides: Vec<String> = comparison
        .sides
        .iter()
        .map(|side| format!("{}: {}", side.name, units::plural(side.runs.len(), "run")))
        .collect();
    let brackets = "brackets hold the 98 % interval of the change";
    if sides.is_empty() {
        brackets.to_owned()
    } else {
        format!("{}; {brackets}", sides.join(", "))
    }
}
