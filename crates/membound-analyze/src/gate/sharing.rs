//! `false-sharing new`: an object that threads falsely share now and did not before.
//!
//! A run either has a finding of false sharing or not, so runs are counted. A finding is new if no run of
//! the base has it. It fails the gate if more than half of the new runs have it and it costs clearly more
//! than a finding's threshold, so that runs that cross the threshold by chance do not fail it.

use membound_types::{Basis, Figure, GateVerdict, InsightKind, Profile};

use crate::compare::CLEAR_COST_FACTOR;
use crate::compare::matching::Matched;
use crate::{Thresholds, names};

/// Result of the search for new false sharing.
pub(super) struct NewSharing {
    pub verdict: GateVerdict,
    /// Cost of the costliest new object as a share of CPU time, averaged over the new runs.
    pub cost: Figure,
    pub text: String,
}

/// Finds false sharing that none of the first `base` of `runs` has.
pub(super) fn new_sharing(runs: &[&Profile], base: usize, matched: &Matched<'_>) -> NewSharing {
    let least = Thresholds::default().sharing_cost;
    let new_runs = (runs.len() - base).max(1);
    let mut contended: Vec<NewlyContended> = matched
        .findings()
        .into_iter()
        .filter(|(kind, _)| *kind == InsightKind::FalseSharing)
        .map(|(_, subject)| subject)
        .filter(|subject| subject.costs[..base].iter().all(Option::is_none))
        .map(|subject| {
            let costs: Vec<f64> = subject.costs[base..].iter().flatten().copied().collect();
            let cost = costs.iter().sum::<f64>() / new_runs as f64;
            let verdict = if 2 * costs.len() > new_runs && cost >= CLEAR_COST_FACTOR * least {
                GateVerdict::Failed
            } else if cost >= least {
                GateVerdict::Undecided
            } else {
                GateVerdict::Passed
            };
            NewlyContended {
                name: subject.name,
                verdict,
                runs: costs.len(),
                cost,
                low: costs.iter().copied().fold(cost, f64::min),
                high: costs.iter().copied().fold(cost, f64::max),
            }
        })
        .filter(|object| object.verdict != GateVerdict::Passed)
        .collect();
    let severity = |verdict| u8::from(verdict == GateVerdict::Failed);
    contended.sort_by(|a, b| {
        (severity(b.verdict).cmp(&severity(a.verdict))).then(b.cost.total_cmp(&a.cost))
    });
    let Some(first) = contended.first() else {
        return NewSharing {
            verdict: GateVerdict::Passed,
            cost: figure(0.0, 0.0, 0.0),
            text: "no object has false sharing that it did not have before".to_owned(),
        };
    };
    let more_objects = match contended.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    NewSharing {
        verdict: first.verdict,
        cost: figure(first.cost, first.low, first.high),
        text: format!(
            "new false sharing in {} ({} of CPU time, in {} of {new_runs} new {}){more_objects}",
            first.name,
            names::percent(first.cost),
            first.runs,
            if new_runs == 1 { "run" } else { "runs" },
        ),
    }
}

struct NewlyContended {
    name: String,
    verdict: GateVerdict,
    runs: usize,
    cost: f64,
    low: f64,
    high: f64,
}

fn figure(value: f64, low: f64, high: f64) -> Figure {
    Figure {
        value,
        low,
        high,
        basis: Basis::Estimated,
    }
}
