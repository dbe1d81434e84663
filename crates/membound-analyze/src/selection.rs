//! A part of a run: a span of time, some of its threads, or both.
//!
//! A span is cut out of the run before anything is computed, so that samples, timed accesses and counted
//! executions are those of the span. Threads are removed after stalls are computed, because contention
//! between threads shows only when all of them are considered.

use membound_run::{Executions, RunData, ThreadId};
use membound_types::SelectedPart;

use crate::context::Context;
use crate::info;

/// A part of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Start and end in nanoseconds since the run began.
    pub span_ns: Option<(u64, u64)>,
    /// Selected threads; `None` for all.
    pub threads: Option<Vec<ThreadId>>,
}

/// A span of time, in nanoseconds since the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub from_ns: u64,
    pub to_ns: u64,
}

impl Span {
    /// Selected span of `run`, or all of it.
    pub(crate) fn of(run: &RunData, selection: Option<&Selection>) -> Self {
        let all = Self {
            from_ns: 0,
            to_ns: u64::MAX,
        };
        let span = selection.and_then(|selection| selection.span_ns);
        span.map_or(all, |(from_ns, to_ns)| {
            let end_ns = run.meta.elapsed_ns;
            Self {
                from_ns: from_ns.min(end_ns),
                to_ns: to_ns.min(end_ns),
            }
        })
    }

    /// True for the whole run.
    pub(crate) const fn is_all(self) -> bool {
        self.from_ns == 0 && self.to_ns == u64::MAX
    }

    pub(crate) fn has(self, t_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&t_ns)
    }

    /// Intersection of a stretch of time with the span; `None` if it is empty.
    pub(crate) fn cut(self, from_ns: u64, to_ns: u64) -> Option<(u64, u64)> {
        let (from_ns, to_ns) = (from_ns.max(self.from_ns), to_ns.min(self.to_ns));
        (from_ns < to_ns).then_some((from_ns, to_ns))
    }

    /// Part of a window that lies in the span, with counts scaled in proportion to time.
    pub(crate) fn cut_window(self, window: &Executions) -> Option<Executions> {
        if self.from_ns <= window.from_ns && window.to_ns <= self.to_ns {
            return Some(*window);
        }
        let (from_ns, to_ns) = self.cut(window.from_ns, window.to_ns)?;
        let share = (to_ns - from_ns) as f64 / (window.to_ns - window.from_ns) as f64;
        let part = |whole: u64| (whole as f64 * share).round() as u64;
        Some(Executions {
            from_ns,
            to_ns,
            count: part(window.count),
            cpu_ns: part(window.cpu_ns),
            least_cpu_ns: window.least_cpu_ns.map(part),
            most_cpu_ns: window.most_cpu_ns.map(part),
            ..*window
        })
    }
}

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

#[cfg(test)]
mod tests {
    use membound_run::SiteId;

    use super::*;

    #[test]
    fn windows_are_cut_in_proportion_to_time() {
        let span = Span {
            from_ns: 100,
            to_ns: 200,
        };
        let window = |from_ns, to_ns| Executions {
            site: SiteId(0),
            from_ns,
            to_ns,
            count: 1000,
            cpu_ns: 80,
            least_cpu_ns: Some(60),
            most_cpu_ns: None,
        };
        assert_eq!(
            span.cut_window(&window(100, 200)),
            Some(window(100, 200)),
            "all of it"
        );
        let half = span.cut_window(&window(50, 150)).unwrap();
        assert_eq!((half.from_ns, half.to_ns), (100, 150));
        assert_eq!((half.count, half.cpu_ns), (500, 40));
        assert_eq!((half.least_cpu_ns, half.most_cpu_ns), (Some(30), None));
        assert_eq!(span.cut_window(&window(200, 300)), None);
    }
}
