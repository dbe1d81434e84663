//! CPU time in code whose samples could not be attributed to an access.
//!
//! The recorder writes an attribution for every sampled instruction that it could decode, even if the
//! instruction waited for no memory. Without one, the code could not be read: its time counts neither as
//! stalled nor as computing, and widens intervals by all of it.

use std::collections::BTreeMap;

use membound_run::{FrameId, Gap, ModuleKind, RunData};
use membound_types::UnseenCode;

use crate::context::Context;
use crate::names;

/// Reason why samples at `frame` could not be attributed.
fn reason(run: &RunData, frame: FrameId) -> String {
    let Some(module) = run.frames[frame.index()].module else {
        return "code outside of all known mappings".to_owned();
    };
    let module = &run.modules[module.index()];
    if module.kind == ModuleKind::Jit {
        return "code made at run time (JIT)".to_owned();
    }
    let name = names::file_name(&module.path);
    let recorded_reason = run
        .gaps
        .iter()
        .filter(|gap| gap.about == Gap::UNSEEN_CODE)
        .find_map(|gap| gap.reason.strip_prefix(&module.path)?.strip_prefix(": "));
    match recorded_reason {
        Some(why) => format!("{name}: {why}"),
        None => format!("{name}: no decoded function holds the instruction"),
    }
}

/// Reason of time in threads that ended before their first sample.
pub(crate) const SHORT_THREADS: &str = "threads too short for a sample";

/// Unattributed time by reason, most first.
pub(crate) fn unattributed_code(context: &Context<'_>) -> Vec<UnseenCode> {
    let mut by_reason: BTreeMap<String, f64> = BTreeMap::new();
    for plain in context.plain.iter().filter(|plain| plain.unseen) {
        *by_reason
            .entry(reason(context.run, plain.frame))
            .or_default() += plain.time_ns;
    }
    if context.times.short_ns > 0.0 {
        by_reason.insert(SHORT_THREADS.to_owned(), context.times.short_ns);
    }
    let mut all: Vec<UnseenCode> = by_reason
        .into_iter()
        .map(|(reason, time_ns)| UnseenCode {
            reason,
            fraction: context.times.share(time_ns),
        })
        .collect();
    all.sort_by(|a, b| b.fraction.total_cmp(&a.fraction));
    all
}

/// Reason why no access of a run with latencies was timed, as far as the run shows it.
pub(crate) fn why_not_timed(context: &Context<'_>) -> String {
    let run = context.run;
    let recorded_reason = run
        .gaps
        .iter()
        .find(|gap| matches!(gap.about.as_str(), "latencies" | "latency"))
        .map(|gap| gap.reason.clone());
    let unpatched = || {
        let mut processes = run.processes.iter();
        processes.find_map(|process| process.unpatched.clone())
    };
    let refused = || {
        let hottest = context
            .costs
            .iter()
            .enumerate()
            .max_by(|(_, a), (_, b)| a.time_ns.total_cmp(&b.time_ns))?;
        run.sites[hottest.0].refused.clone()
    };
    let unattributed = || {
        let first = unattributed_code(context).into_iter().next()?;
        (first.fraction >= 0.5).then_some(first.reason)
    };
    let why = recorded_reason
        .or_else(unpatched)
        .or_else(unattributed)
        .or_else(refused);
    match why {
        Some(why) => format!("no access was timed: {why}"),
        None if context.costs.iter().all(|cost| cost.time_ns <= 0.0) => {
            "no access was timed: no sample waited at an access".to_owned()
        }
        None => "no access was timed: no patch saw one executed".to_owned(),
    }
}
