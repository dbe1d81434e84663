//! Figures of each access over the whole run, for decisions about single instructions.

use membound_model::stall::{Estimate, Executed, Served};
use membound_run::{RunData, SiteId};

use crate::Options;
use crate::context::Context;
use crate::served_share::served_share;
use crate::span::Span;

/// Figures of one access.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessFigures {
    /// Identifier of the access.
    pub site: SiteId,
    /// Function that contains the access, not an inlined one; empty if unknown.
    pub function: String,
    /// CPU time that samples attribute to the access, in nanoseconds.
    pub time_ns: f64,
    /// Stalled part of that time, in nanoseconds.
    pub stall_ns: Estimate,
    /// Part of the stall served from beyond the second cache, in nanoseconds.
    pub stall_beyond_l2_ns: f64,
    /// Executions over the whole run; `None` if they were not counted.
    pub executed: Option<Executed>,
    /// Which levels served its executions; `None` if none were timed, or if latencies cannot be assigned to
    /// levels.
    pub served: Option<ServedFigures>,
}

/// Which levels served an access's executions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedFigures {
    /// Share of the executions that missed the last cache, or took longer than any level.
    pub memory: Estimate,
    /// Share served from the third cache or beyond.
    pub beyond_l2: Estimate,
    /// Average latency, in nanoseconds.
    pub mean_ns: Estimate,
    /// Number of timed executions.
    pub timed: u64,
}

/// Figures of all accesses of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// CPU time of the program, in nanoseconds.
    pub cpu_ns: f64,
    /// Stalled part of `cpu_ns`, in nanoseconds.
    pub stall_ns: f64,
    /// Effective number of samples: as many samples of equal weight have the same variance.
    pub samples: f64,
    /// Why no access has [`AccessFigures::served`]; `None` if they may have it.
    pub no_levels: Option<String>,
    /// Figures of each access, by [`SiteId`].
    pub accesses: Vec<AccessFigures>,
}

/// Computes the figures of each access of `run`.
#[must_use]
pub fn figures(run: &RunData, options: &Options<'_>) -> Figures {
    let context = Context::new(run, run, Span::of(run, None), options);
    let accesses: Vec<AccessFigures> = (0..run.sites.len())
        .map(|index| access(&context, SiteId(index as u32)))
        .collect();
    Figures {
        cpu_ns: context.times.total_ns,
        stall_ns: context
            .costs
            .iter()
            .map(|cost| cost.stall.stall_ns.value)
            .sum(),
        samples: context.times.effective_samples,
        no_levels: context.machine.mixer.as_ref().err().cloned(),
        accesses,
    }
}

fn access(context: &Context<'_>, site: SiteId) -> AccessFigures {
    let cost = &context.costs[site.index()];
    let places = &context.places;
    let frame = context.run.sites[site.index()].frame;
    let levels = &cost.stall.levels;
    let beyond_l2 = [Served::L3, Served::Dram, Served::Remote, Served::Unknown];
    AccessFigures {
        site,
        function: places.function(places.function_of(frame)).name.clone(),
        time_ns: cost.time_ns,
        stall_ns: cost.stall.stall_ns,
        stall_beyond_l2_ns: beyond_l2.iter().map(|&served| levels.get(served)).sum(),
        executed: cost.executed,
        served: cost.mixture.as_ref().map(|mixture| {
            let share = |wanted: &[Served]| served_share(mixture, wanted);
            ServedFigures {
                memory: share(&[Served::Dram, Served::Remote]),
                beyond_l2: share(&beyond_l2),
                mean_ns: mixture.mean_ns,
                timed: mixture.timed,
            }
        }),
    }
}
