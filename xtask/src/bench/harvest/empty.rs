//! What yields cost where nobody takes the time: a primary whose scavenger has ended, and one that
//! has nothing to give.

use anyhow::{Context as _, Result};
use membound_types::IdlePolicy;
use serde_json::{Value, json};

use super::super::verdict;
use super::arithmetic::Paired;
use super::bed::{Asked, Bed, Endless, OVERHEAD, Words, alternate};
use super::{failed, say};

/// How much slower a primary with yields and without a scavenger may be.
const EMPTY_TARGET: f64 = 0.02;
/// Where the interval of the change must lie for a primary that only computes.
const COMPUTE_TARGET: f64 = 0.01;
/// Alternations that the interval is of, at least.
const ALTERNATIONS: usize = 20;

/// A primary, and what its own figure is called.
struct Case {
    name: &'static str,
    primary: Words,
    figure: &'static str,
    scavenger: Endless,
    /// What the change must not exceed, and whether its whole interval must lie within.
    target: f64,
    interval: bool,
}

pub(super) fn run(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let hops = bed.amount(20_000_000);
    let rounds = bed.amount(50_000_000);
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
    let found = alternate(repeat, &cases, |case| pair(bed, case));
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
        let met = if case.interval {
            paired.within(case.target)
        } else {
            paired.mean <= case.target
        };
        say(format_args!(
            "{:<25}{:>5}{:>+7.2} %  {:>+7.2} … {:>+6.2} %  {} {:.0} % {}",
            case.name,
            paired.pairs,
            paired.mean * 100.0,
            paired.low * 100.0,
            paired.high * 100.0,
            if case.interval { "within" } else { "<=" },
            case.target * 100.0,
            verdict(met),
        ));
        summary.push(json!({
            "case": case.name, "change": paired, "target": case.target,
            "whole_interval": case.interval, "pairs": pairs,
        }));
    }
    Ok(summary)
}

/// The primary's own figure alone, and with its yields.
fn pair(bed: &Bed<'_>, case: &Case) -> Result<(f64, f64)> {
    let alone = bed.alone(&case.primary)?.get(case.figure)?;
    let with = bed.harvested(&Asked {
        primary: case.primary.clone(),
        profiled: case.primary.clone(),
        scavenger: case.scavenger.clone(),
        copies: 1,
        idle: IdlePolicy::Steal,
        bound_ns: None,
        max_overhead: OVERHEAD,
    })?;
    Ok((alone, with.said.get(case.figure)?))
}
