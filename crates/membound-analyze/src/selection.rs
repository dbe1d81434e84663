//! A part of a run: a span of time, some of its threads, or both.
//!
//! A span is cut out of the run before anything is computed, so that samples, timed accesses and counted
//! executions are those of the span. Threads are removed after stalls are computed, because contention
//! between threads shows only when all of them are considered.

use membound_run::{RunData, ThreadId};
use membound_types::{Missing, SelectedPart};

use crate::context::Context;
use crate::span::{Selection, Span};
use crate::{info, names};

/// Records of `run` that happened in `span`. Times stay relative to the start of the run. Records about
/// code rather than time (bursts, counts of blocks, names) are kept whole.
pub(crate) fn within(run: &RunData, span: Span) -> RunData {
    let mut part = run.clone();
    part.samples.retain(|sample| span.has(sample.t_ns));
    part.accesses.retain(|access| span.has(access.t_ns));
    part.watched.retain(|hit| span.has(hit.t_ns));
    part.holds.retain(|hold| span.has(hold.t_ns));
    part.hardware_accesses
        .retain(|access| span.has(access.t_ns));
    let windows = part.executions.iter();
    part.executions = windows
        .filter_map(|window| span.cut_window(window))
        .collect();
    part.laps
        .retain(|laps| span.cut(laps.from_ns, laps.to_ns).is_some());
    // The kernel counts CPU time over a thread's whole life: divide it in proportion to samples.
    let mut sampled = vec![(0_u64, 0_u64); run.threads.len()];
    for sample in &run.samples {
        let (all, inside) = &mut sampled[sample.thread.index()];
        *all += sample.weight_ns;
        if span.has(sample.t_ns) {
            *inside += sample.weight_ns;
        }
    }
    for (thread, (all, inside)) in part.threads.iter_mut().zip(sampled) {
        let end_ns = thread.end_ns.unwrap_or(run.meta.elapsed_ns);
        thread.start_ns = thread.start_ns.clamp(span.from_ns, span.to_ns);
        thread.end_ns = Some(end_ns.clamp(thread.start_ns, span.to_ns));
        let share = inside as f64 / all.max(1) as f64;
        thread.cpu_ns = thread.cpu_ns.map(|cpu_ns| (cpu_ns as f64 * share) as u64);
    }
    part.meta.elapsed_ns = span.to_ns - span.from_ns;
    part
}

/// Reduces `context` to the selected threads.
pub(crate) fn select_threads(context: &mut Context<'_>, threads: &[ThreadId]) {
    let mut selected = vec![false; context.run.threads.len()];
    for thread in threads {
        if let Some(selected) = selected.get_mut(thread.index()) {
            *selected = true;
        }
    }
    let is_selected = |thread: ThreadId| selected[thread.index()];
    context.parts.keep(is_selected, &mut context.costs);
    context.plain.retain(|plain| is_selected(plain.thread));
    context.times.keep(context.run, is_selected);
    // Positions of parts have changed.
    context.part_of = context.parts_of_accesses();
    context.selected_threads = Some(selected);
}

/// Describes the selection for the report; `None` if the whole run is selected.
pub(crate) fn selected_part(
    run: &RunData,
    span: Span,
    selection: Option<&Selection>,
) -> Option<SelectedPart> {
    let selection = selection.filter(|it| it.span_ns.is_some() || it.threads.is_some())?;
    let end_ns = run.meta.elapsed_ns;
    let threads = selection.threads.iter().flatten();
    Some(SelectedPart {
        from_s: info::seconds(span.from_ns),
        to_s: info::seconds(span.to_ns.min(end_ns)),
        tids: threads
            .filter_map(|id| run.threads.get(id.index()))
            .map(|thread| thread.tid)
            .collect(),
    })
}

/// Share of the time at untimed accesses in a selected span above which the report mentions it.
const MAX_UNREPORTED_UNTIMED_SHARE: f64 = 0.1;

/// Reports that accesses with much of the selected span's time were timed only at other times.
pub(crate) fn untimed(context: &Context<'_>) -> Option<Missing> {
    if context.span.is_all() {
        return None;
    }
    let time = |untimed_only: bool| -> f64 {
        let costs = context.costs.iter();
        let costs = costs.filter(|cost| cost.mixture.is_none() || !untimed_only);
        costs.map(|cost| cost.time_ns).sum()
    };
    let (untimed_ns, all_ns) = (time(true), time(false));
    (untimed_ns > MAX_UNREPORTED_UNTIMED_SHARE * all_ns).then(|| {
        let reason = format!(
            "{} of the span's time at loads and stores is at some that were not timed in it",
            names::percent(untimed_ns / all_ns)
        );
        info::lacking("latency", reason, Some("select a longer span"))
    })
}
