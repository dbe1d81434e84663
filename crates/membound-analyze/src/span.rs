//! Which part of a run is selected, and its span of time, for all files that use only that part.

use membound_run::{Executions, RunData, ThreadId};

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
