//! Memory traffic by code and object, and the predicted stall on another machine.
//!
//! Hardware counters are used where they were read. Otherwise traffic is modelled: bursts tell which lines
//! a function's accesses touch, the statistical cache model of [`membound_model::traffic`] tells which of
//! them miss, and samples tell how often the function ran at what time. Everything is scaled by function,
//! because a burst records all accesses of one function.

mod by_node;
mod caches;
mod domain;
mod elsewhere;
mod memory;
mod moves;
mod node_or_link;
mod pieces;
mod platform;
mod rates;

use membound_types::{BandwidthDomain, Elsewhere, Missing, NotMeasured, Platform};

use crate::context::Context;
use crate::names;
use caches::Caches;
use moves::BurstTraffic;
use pieces::Bursts;
use rates::Rates;

/// Share of the CPU time that the model must cover; below it the table says so.
const MIN_COVERED_CPU_SHARE: f64 = 0.9;

/// Share of the traffic to memory on unknown nodes above which the table says so.
const MAX_UNREPORTED_UNKNOWN_NODE_SHARE: f64 = 0.05;

/// All results about traffic.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub bandwidth: Vec<BandwidthDomain>,
    pub elsewhere: Vec<Elsewhere>,
    pub platform: Platform,
    pub missing: Vec<Missing>,
}

/// Computes memory traffic, and the predictions for other machines.
pub(crate) fn traffic(context: &Context<'_>) -> Traffic {
    let mut traffic = Traffic::default();
    let run = context.run;
    if run.samples.is_empty() {
        return traffic;
    }
    let bandwidth = domain::counted(context);
    let here = context.machine.profile.and_then(Caches::new);
    let modelled = here
        .as_ref()
        .filter(|_| !run.bursts.is_empty())
        .map(|here| {
            let pieces = Bursts::new(context, here.line_bytes);
            let moves = BurstTraffic::new(context, &pieces, here);
            let rates = Rates::new(context, &moves);
            (pieces, moves, rates)
        });
    if let (Some(here), Some((pieces, moves, rates))) = (&here, &modelled) {
        if bandwidth.is_empty() {
            traffic.bandwidth = domain::modelled(context, here, moves, rates);
            if let Some(by_node) = by_node::by_node(context, here, moves, rates) {
                traffic.bandwidth.extend(by_node.domains);
                if by_node.unknown_node_share > MAX_UNREPORTED_UNKNOWN_NODE_SHARE {
                    traffic.missing.push(missing(
                        format!(
                            "{} of the traffic is of memory whose node is not known: it is in no \
                             node's",
                            names::percent(by_node.unknown_node_share)
                        ),
                        Some("let the program run longer"),
                    ));
                }
            }
            if rates.covered < MIN_COVERED_CPU_SHARE {
                traffic.missing.push(missing(
                    format!(
                        "the code of {} of CPU time was recorded in bursts: what the rest moves \
                         is not in it",
                        names::percent(rates.covered)
                    ),
                    Some("let the program run longer"),
                ));
            }
        }
        let (predictions, without) = elsewhere::elsewhere(context, here, pieces, moves, rates);
        traffic.elsewhere = predictions;
        let without = without.into_iter().map(|reason| Missing {
            table: "elsewhere".to_owned(),
            why: NotMeasured {
                reason,
                remedy: Some("run `membound measure` on that machine".to_owned()),
            },
        });
        traffic.missing.extend(without);
    } else if bandwidth.is_empty() {
        traffic.missing.push(match here {
            None => missing(
                "no machine profile tells the sizes of caches".to_owned(),
                Some("run `membound measure` first"),
            ),
            Some(_) => missing(
                "no burst of accesses was recorded".to_owned(),
                run.meta
                    .latencies
                    .then_some("let the program run longer")
                    .or(Some("start the program with `membound profile -- COMMAND`")),
            ),
        });
    }
    if !bandwidth.is_empty() {
        if context.selected_threads.is_some() {
            let reason = "counters tell what all threads moved, not only those that are selected";
            traffic.missing.push(missing(reason.to_owned(), None));
        }
        traffic.bandwidth = bandwidth;
    }
    traffic.platform = platform::platform(context, &traffic.bandwidth);
    traffic
}

fn missing(reason: String, remedy: Option<&str>) -> Missing {
    Missing {
        table: "bandwidth".to_owned(),
        why: NotMeasured {
            reason,
            remedy: remedy.map(str::to_owned),
        },
    }
}
