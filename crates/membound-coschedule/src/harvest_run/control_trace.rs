//! Records what the controller of a harvest observes and does, so that tests of `membound-control` can replay it.
//!
//! A trace has a line of JSON for the controller's settings, and one for each poll, with the counters since the poll
//! before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use membound_control::{Action, Counters, Limits, Observation, Slices, YieldFigures};
use membound_platform::output_file::replace;
use serde_json::{Value, json};

/// Settings of the controller that a trace begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlSettings<'a> {
    pub(super) limits: Limits,
    pub(super) yields: &'a [YieldFigures],
    /// Bound, duration of the hidden load, and maximum span in nanoseconds, and the maximum number of skips; `None`
    /// if time slices have no bound.
    pub(super) slices: Option<([f64; 3], u32)>,
    pub(super) has_siblings: bool,
    pub(super) has_interleaving: bool,
}

/// A trace that is kept in memory until it is written.
#[derive(Debug)]
pub(super) struct ControlTrace {
    path: PathBuf,
    lines: Vec<String>,
    last: Counters,
}

impl ControlTrace {
    /// Begins a trace that is to be written to `path`.
    pub(super) fn begin(path: PathBuf, settings: ControlSettings<'_>) -> Self {
        let yields = settings.yields.iter();
        let yields: Vec<Value> = yields
            .map(|it| json!([it.gain, it.hit_cost, it.rate]))
            .collect();
        let first = json!({
            "max_slowdown": settings.limits.max_slowdown,
            "slo_p95_ns": settings.limits.slo_p95_ns,
            "yields": yields,
            "slices": settings.slices,
            "siblings": settings.has_siblings,
            "interleaving": settings.has_interleaving,
        });
        Self {
            path,
            lines: vec![first.to_string()],
            last: Counters::default(),
        }
    }

    /// Adds a poll and the actions that were decided by it.
    pub(super) fn add(&mut self, observation: &Observation<'_>, actions: &[Action]) {
        let (now, last) = (observation.counters, &self.last);
        let slices = |now: Slices, last: Slices| {
            let count = now.count.saturating_sub(last.count);
            [count, now.cpu_ns.saturating_sub(last.cpu_ns)]
        };
        let of_phase = |phase: usize| {
            let requests = now.requests.as_ref()?;
            let before = last.requests.as_ref().map(|it| it[phase].as_slice());
            Some(grown(&requests[phase], before.unwrap_or_default()))
        };
        let actions: Vec<String> = actions.iter().map(|it| format!("{it:?}")).collect();
        let line = json!({
            "ns": u64::try_from(observation.now.as_nanos()).unwrap_or(u64::MAX),
            "with": slices(now.with, last.with),
            "without": slices(now.without, last.without),
            "slices": grown(&now.slices, &last.slices),
            "requests": of_phase(0).zip(of_phase(1)),
            "settled": observation.is_settled,
            "beside": observation.uses_siblings,
            "progress": observation.progress,
            "processors": observation.processors,
            "actions": actions,
        });
        self.lines.push(line.to_string());
        self.last = now.clone();
    }

    /// Writes the trace; returns a note for the report if it cannot be written.
    pub(super) fn write(self) -> Option<String> {
        let text = self.lines.join("\n") + "\n";
        replace(&self.path, &text)
            .err()
            .map(|error| error.to_string())
    }
}

/// The classes of a histogram whose counts have grown, with the difference.
fn grown(now: &[(u64, u64, u64)], last: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64)> {
    let last: BTreeMap<(u64, u64), u64> = last
        .iter()
        .map(|(from, to, count)| ((*from, *to), *count))
        .collect();
    now.iter()
        .filter_map(|&(from, to, count)| {
            let before = last.get(&(from, to)).copied().unwrap_or(0);
            (count > before).then(|| (from, to, count - before))
        })
        .collect()
}
