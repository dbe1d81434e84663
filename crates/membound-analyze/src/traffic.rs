//! Memory traffic by code and object, and the predicted stall on another machine.
//!
//! Hardware counters are used where they were read. Otherwise traffic is modelled: bursts show which lines
//! a function's accesses touch, the statistical cache model of [`membound_model::traffic`] predicts which of
//! them miss, and samples show how often the function ran at what time. Everything is scaled by function,
//! because a burst records all accesses of one function.

mod burst_traffic;
mod by_node;
mod caches;
mod domain;
mod memory;
mod node_or_link;
mod other_machines;
mod pieces;
mod platform;
mod rates;

use membound_types::{BandwidthDomain, Elsewhere, Missing, Platform};

use crate::context::Context;
use crate::{info, names};
use burst_traffic::BurstTraffic;
use caches::Caches;
use pieces::Bursts;
use rates::Rates;

/// Share of the CPU time that the model must cover; below it the table reports the share.
const MIN_COVERED_CPU_SHARE: f64 = 0.9;

/// Share of the CPU time that the model must cover for figures of the whole program.
const MIN_CPU_SHARE: f64 = 0.5;

/// Share of the traffic to memory on unknown nodes above which the table reports the share.
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
    let caches = context.machine.profile.and_then(Caches::new);
    let modelled = caches
        .as_ref()
        .filter(|_| !run.bursts.is_empty())
        .map(|caches| {
            let pieces = Bursts::new(context, caches.line_bytes);
            let burst_traffic = BurstTraffic::new(context, &pieces, caches);
            let rates = Rates::new(context, &burst_traffic);
            (pieces, burst_traffic, rates)
        });
    if let (Some(caches), Some((pieces, burst_traffic, rates))) = (&caches, &modelled) {
        if bandwidth.is_empty() {
            model(context, caches, burst_traffic, rates, &mut traffic);
        }
        let (predictions, without) =
            other_machines::elsewhere(context, caches, pieces, burst_traffic, rates);
        traffic.elsewhere = predictions;
        let remedy = Some("run `membound measure` on that machine");
        let without = without.into_iter();
        let without = without.map(|reason| info::lacking("elsewhere", reason, remedy));
        traffic.missing.extend(without);
    } else {
        let (reason, remedy) = why_not_modelled(context, caches.is_some());
        if bandwidth.is_empty() {
            traffic.missing.push(missing(reason, Some(remedy)));
        }
        if !context.options.elsewhere.is_empty() {
            let lacking = info::lacking("elsewhere", reason, Some(remedy));
            traffic.missing.push(lacking);
        }
    }
    if !bandwidth.is_empty() {
        if context.selected_threads.is_some() {
            let reason =
                "counters include the traffic of all threads, not only of the selected ones";
            traffic.missing.push(missing(reason, None));
        }
        traffic.bandwidth = bandwidth;
    }
    traffic.platform = platform::platform(context, &traffic.bandwidth);
    traffic
}

/// Adds the modelled traffic of memory and nodes, and what is not in it.
fn model(
    context: &Context<'_>,
    caches: &Caches,
    burst_traffic: &BurstTraffic,
    rates: &Rates,
    traffic: &mut Traffic,
) {
    if rates.covered < MIN_COVERED_CPU_SHARE {
        let share = names::percent(rates.covered);
        let lacking = match rates.covered < MIN_CPU_SHARE {
            true => "known",
            false => "in it",
        };
        traffic.missing.push(missing(
            format!(
                "the code of {share} of CPU time was recorded in bursts: what the rest moves is \
                 not {lacking}"
            ),
            Some("let the program run longer"),
        ));
    }
    if rates.covered < MIN_CPU_SHARE {
        return;
    }
    let burst_traffic = burst_traffic.clone();
    let observed = burst_traffic.agreeing_with_latencies(context, caches.line_bytes);
    traffic.bandwidth = domain::modelled(context, caches, &observed, rates);
    let Some(by_node) = by_node::by_node(context, caches, &observed, rates) else {
        return;
    };
    traffic.bandwidth.extend(by_node.domains);
    if by_node.unknown_node_share > MAX_UNREPORTED_UNKNOWN_NODE_SHARE {
        traffic.missing.push(missing(
            format!(
                "{} of the traffic belongs to memory on unknown nodes and counts for no node",
                names::percent(by_node.unknown_node_share)
            ),
            Some("let the program run longer"),
        ));
    }
}

/// Why no traffic is modelled, and what to do about it.
fn why_not_modelled(context: &Context<'_>, has_caches: bool) -> (&'static str, &'static str) {
    if !has_caches {
        return (
            "no machine profile gives the sizes of caches",
            "run `membound measure` first",
        );
    }
    let remedy = match context.run.meta.latencies {
        true => "let the program run longer",
        false => "start the program with `membound profile -- COMMAND`",
    };
    ("no burst of accesses was recorded", remedy)
}

fn missing(reason: impl Into<String>, remedy: Option<&str>) -> Missing {
    info::lacking("bandwidth", reason, remedy)
}
