//! How often sites ran over the whole run, from windows in which they were counted.

use membound_model::stall::Executed;
use membound_run::{Executions, RunData, SiteId};

use crate::info;
use crate::tally::Waits;
use crate::time::Times;

/// Samples of a site inside its windows (and as many outside) from which on the site's own
/// time carries its count over to the rest of the run. A site's time follows its
/// executions through a program's phases, which CPU time as such does not; but below this
/// number chance is worse than phases.
const ENOUGH_SAMPLES: f64 = 30.0;

/// Error of a count that was carried over by CPU time from a single window: nothing tells
/// how far the rate of that one is typical.
const SINGLE_WINDOW_ERROR: f64 = 0.5;

/// Share of the CPU time from which on a window counts as the whole run.
const WHOLE: f64 = 0.98;

/// Time and samples of a site inside its windows.
#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    samples: u64,
    time_ns: u128,
}

impl Inside {
    fn add(&mut self, weight_ns: u64) {
        self.samples += 1;
        self.time_ns += u128::from(weight_ns);
    }
}

/// Windows in which sites were counted.
#[derive(Debug)]
pub(crate) struct Windows {
    /// By site and time.
    windows: Vec<Executions>,
    /// Where each site's begin; one more than there are sites.
    starts: Vec<u32>,
}

impl Windows {
    pub(crate) fn new(run: &RunData) -> Self {
        let mut windows: Vec<Executions> = run.executions.clone();
        windows.sort_by_key(|window| (window.site, window.from_ns, window.to_ns, window.count));
        let mut starts = vec![0_u32; run.sites.len() + 1];
        for window in &windows {
            starts[window.site.index() + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Self { windows, starts }
    }

    /// Those of `site`, by time.
    pub(crate) fn of(&self, site: SiteId) -> &[Executions] {
        let index = site.index();
        &self.windows[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    /// Position among those of `site` of the one that `t_ns` lies in.
    pub(crate) fn at(&self, site: SiteId, t_ns: u64) -> Option<usize> {
        let of_site = self.of(site);
        let behind = of_site.partition_point(|window| window.from_ns <= t_ns);
        let last = behind.checked_sub(1)?;
        (t_ns < of_site[last].to_ns).then_some(last)
    }
}

/// Executions of each site over the whole run, by [`SiteId`]; `None` where it was not counted.
pub(crate) fn executed(
    run: &RunData,
    waits: &Waits,
    times: &Times,
    windows: &Windows,
) -> Vec<Option<Executed>> {
    let mut inside = vec![Inside::default(); run.sites.len()];
    let mut all = vec![Inside::default(); run.sites.len()];
    if !windows.windows.is_empty() {
        for sample in &run.samples {
            let frame = run.stacks[sample.stack.index()].frame;
            if info::is_own(run, frame) {
                continue;
            }
            for wait in waits.of(frame) {
                let index = wait.site.index();
                all[index].add(sample.weight_ns);
                if windows.at(wait.site, sample.t_ns).is_some() {
                    inside[index].add(sample.weight_ns);
                }
            }
        }
    }
    (0..run.sites.len())
        .map(|index| {
            let of_site = windows.of(SiteId(index as u32));
            (!of_site.is_empty())
                .then(|| extend(of_site, inside[index], all[index], times.total_ns))
        })
        .collect()
}

/// Carries the counts of `windows` over to the whole run.
fn extend(windows: &[Executions], inside: Inside, all: Inside, total_ns: f64) -> Executed {
    let counted: f64 = windows.iter().map(|window| window.count as f64).sum();
    let cpu_ns: f64 = windows.iter().map(|window| window.cpu_ns as f64).sum();
    if cpu_ns >= WHOLE * total_ns {
        return Executed {
            count: counted,
            relative_error: 0.0,
        };
    }
    let within = inside.samples as f64;
    let outside = all.samples.saturating_sub(inside.samples) as f64;
    if within >= ENOUGH_SAMPLES && inside.time_ns > 0 {
        let count = counted * all.time_ns as f64 / inside.time_ns as f64;
        let extended = 1.0 - counted / count.max(1.0);
        let error = (1.0 / within + 1.0 / outside.max(1.0)).sqrt();
        return Executed {
            count,
            relative_error: error * extended.max(0.0),
        };
    }
    let rate = if cpu_ns > 0.0 { counted / cpu_ns } else { 0.0 };
    let count = counted + rate * (total_ns - cpu_ns).max(0.0);
    Executed {
        count,
        relative_error: error_of_rate(windows, rate),
    }
}

/// Standard error of the rate of `windows`, as a share of it: from how much they differ.
fn error_of_rate(windows: &[Executions], rate: f64) -> f64 {
    let rates: Vec<f64> = windows
        .iter()
        .filter(|window| window.cpu_ns > 0)
        .map(|window| window.count as f64 / window.cpu_ns as f64)
        .collect();
    let n = rates.len() as f64;
    if rates.len() < 2 || rate <= 0.0 {
        return SINGLE_WINDOW_ERROR;
    }
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates
        .iter()
        .map(|rate| (rate - mean) * (rate - mean))
        .sum::<f64>()
        / (n - 1.0);
    ((variance / n).sqrt() / mean).min(1.0)
}
