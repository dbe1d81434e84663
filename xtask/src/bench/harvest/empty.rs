//! Cost of yields that no scavenger uses: a primary whose scavenger has ended, and a primary
//! without stalls.

use std::cell::Cell;

use anyhow::{Context as _, Result};
use membound_types::IdlePolicy;
use serde_json::{Value, json};

use super::super::common::verdict;
use super::arithmetic::Paired;
use super::bed::{Asked, Bed, Endless, OVERHEAD, Words, alternate};
use super::failure::failed;
use crate::run::say;

/// Maximum slowdown of a primary with yields and without a scavenger.
const EMPTY_TARGET: f64 = 0.02;
/// Bound within which the interval of the change must lie for a primary that only computes.
const COMPUTE_TARGET: f64 = 0.01;
/// Minimum number of alternations for the interval.
const ALTERNATIONS: usize = 20;

/// A primary, and the name of its own figure.
struct Case {
    name: &'static str,
    primary: Words,
    figure: &'static str,
    scavenger: Endless,
    /// Maximum change, and whether the whole interval must lie within it.
    target: f64,
    interval: bool,
}

pub(super) fn run(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let hops = bed.amount(20_000_000);
    // Patching the running program takes 2 ms of its time, which is negligible in a second and
    // more.
    let rounds = bed.amount(300_000_000);
    let other = bed.words("other", [&*rounds]);
    let cases = [
        Case {
            name: "chase, scavenger ended",
            primary: bed.words("chase", ["1", &bed.args.area, "own", &hops]),
            figure: "ns_per_hop",
            scavenger: bed.empty(),
            target: EMPTY_TARGET,
            interval: false,
        },
        Case {
            name: "other, scavenger ended",
            primary: other.clone(),
            figure: "ns_per_round",
            scavenger: bed.empty(),
            target: COMPUTE_TARGET,
            interval: true,
        },
        Case {
            name: "other, scavenger there",
            primary: other,
            figure: "ns_per_round",
            scavenger: bed.scavenger("scan", ""),
            target: COMPUTE_TARGET,
            interval: true,
        },
    ];
    let repeat = bed.args.repeat.max(ALTERNATIONS);
    let alone_first = Cell::new(false);
    let found = alternate(repeat, &cases, |case| {
        // The second run finds another machine, for example memory that was just freed, so the
        // order alternates.
        alone_first.set(!alone_first.get());
        pair(bed, case, alone_first.get())
    });
    say("primary                  pairs  change       95 % interval  target");
    let mut summary = Vec::new();
    for (case, pairs) in cases.iter().zip(found) {
        let paired = pairs.and_then(|pairs| {
            let paired = Paired::of(&pairs).context("fewer than two pairs")?;
            Ok((paired, pairs))
        });
        let (paired, pairs) = match paired {
            Ok(found) => found,
            Err(error) => {
                say(case.name);
                summary.push(json!({ "case": case.name, "failed": failed(&error) }));
                continue;
            }
        };
        let judged = judged(&paired, case.target, case.interval);
        say(format_args!(
            "{:<25}{:>5}{:>+7.2} %  {:>+7.2} … {:>+6.2} %  {} {:.0} % {}",
            case.name,
            paired.pairs,
            paired.mean * 100.0,
            paired.low * 100.0,
            paired.high * 100.0,
            if case.interval { "within" } else { "<=" },
            case.target * 100.0,
            judged,
        ));
        summary.push(json!({
            "case": case.name, "change": paired, "target": case.target,
            "whole_interval": case.interval, "pairs": pairs,
        }));
    }
    Ok(summary)
}

/// `met` or `missed`; or that a primary was faster with yields by more than chance explains: yields
/// cannot do that, so something else differed.
fn judged(paired: &Paired, target: f64, interval: bool) -> &'static str {
    if !interval && paired.high < -target {
        return "no comparison";
    }
    verdict(if interval {
        paired.within(target)
    } else {
        paired.mean <= target
    })
}

/// The primary's own figure alone, and with its yields.
fn pair(bed: &Bed<'_>, case: &Case, alone_first: bool) -> Result<(f64, f64)> {
    let alone = || bed.alone(&case.primary)?.get(case.figure);
    let with = || {
        let asked = Asked {
            primary: case.primary.clone(),
            profiled: case.primary.clone(),
            scavenger: case.scavenger.clone(),
            copies: 1,
            idle: IdlePolicy::Steal,
            bound_ns: None,
            max_overhead: OVERHEAD,
            without: &[],
        };
        bed.harvested(&asked)?.said.get(case.figure)
    };
    if alone_first {
        let alone = alone()?;
        Ok((alone, with()?))
    } else {
        let with = with()?;
        Ok((alone()?, with))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yields_cannot_do_is_no_success() {
        let paired = |mean, half| Paired {
            mean,
            low: mean - half,
            high: mean + half,
            pairs: 20,
        };
        assert_eq!(judged(&paired(-0.16, 0.1), 0.02, false), "no comparison");
        assert_eq!(judged(&paired(0.01, 0.02), 0.02, false), verdict(true));
        assert_eq!(judged(&paired(0.03, 0.02), 0.02, false), verdict(false));
        assert_eq!(judged(&paired(0.005, 0.006), 0.01, true), verdict(false));
        assert_eq!(judged(&paired(0.005, 0.004), 0.01, true), verdict(true));
    }
}
