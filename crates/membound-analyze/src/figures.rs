//! What is known of each access over the whole run, for decisions about single instructions.

use membound_model::stall::{Estimate, Executed, Mixture, Served};
use membound_run::{RunData, SiteId};

use crate::Options;
use crate::context::Context;
use crate::selection::Span;

/// What is known of an access.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessFigures {
    /// The access.
    pub site: SiteId,
    /// The function that it stands in, inlining undone; empty if it is not known.
    pub function: String,
    /// CPU time that samples attribute to it, in nanoseconds.
    pub time_ns: f64,
    /// The part of it that was stalled.
    pub stall_ns: Estimate,
    /// The part of the stall that was served from beyond the second cache.
    pub stall_beyond_l2_ns: f64,
    /// Executions; `None` where they were not counted.
    pub executed: Option<Executed>,
    /// Where its executions were served from; `None` where none were timed, or where nothing
    /// tells levels from times.
    pub served: Option<ServedFigures>,
}

/// Where an access's executions were served from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedFigures {
    /// Share of the executions that missed the last cache, or took longer than any level.
    pub memory: Estimate,
    /// Share that was served from the third cache or from beyond.
    pub beyond_l2: Estimate,
    /// Average latency, in nanoseconds.
    pub mean_ns: Estimate,
    /// Timed executions.
    pub timed: u64,
}

/// What is known of all accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// CPU time of the program, in nanoseconds.
    pub cpu_ns: f64,
    /// Its stalled part.
    pub stall_ns: f64,
    /// As many samples of equal weight would say as much.
    pub samples: f64,
    /// Why no access has [`AccessFigures::served`]; `None` where they may.
    pub no_levels: Option<String>,
    /// By [`SiteId`].
    pub accesses: Vec<AccessFigures>,
}

/// What `run` says of each access.
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

/// Share of the accesses of `mixture` that the levels `wanted` served, or that took longer than any level.
pub(crate) fn served_share(mixture: &Mixture, wanted: &[Served]) -> Estimate {
    let shares = mixture
        .levels
        .iter()
        .filter(|level| wanted.contains(&level.served))
        .map(|level| level.share)
        .chain([mixture.beyond]);
    sum(shares).clamped(0.0, 1.0)
}

/// The sum of shares of one whole: where one is overestimated another is not, so that deviations
/// add up by their squares.
fn sum(shares: impl Iterator<Item = Estimate>) -> Estimate {
    let (mut value, mut below, mut above) = (0.0, 0.0, 0.0);
    for share in shares {
        value += share.value;
        below += (share.value - share.low).powi(2);
        above += (share.high - share.value).powi(2);
    }
    Estimate::new(value, value - f64::sqrt(below), value + f64::sqrt(above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_of_shares_add_up_by_their_squares() {
        let shares = [
            Estimate::new(0.3, 0.27, 0.34),
            Estimate::new(0.4, 0.36, 0.43),
        ];
        let all = sum(shares.into_iter());
        assert!((all.value - 0.7).abs() < 1e-12);
        assert!((all.low - 0.65).abs() < 1e-12, "{all:?}");
        assert!((all.high - 0.75).abs() < 1e-12, "{all:?}");
        assert_eq!(sum(std::iter::empty()), Estimate::exactly(0.0));
    }
}
