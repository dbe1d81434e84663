//! Which scavengers have time slices and which run as ordinary processes, decided by their plans.

use membound_types::{HarvestPlan, YieldKind};

/// Minimum share of its time that a scavenger must leave to others for time slices without a bound to pay.
const MIN_GAIN_SHARE: f64 = 0.1;
/// Maximum mean time between two miss yields of a scavenger, in nanoseconds, alongside a command where no bound
/// was requested: the command waits that long.
const MAX_INTER_YIELD_NS: f64 = 1000.0;

/// Why a scavenger with this plan runs as an ordinary process; `None` if it has time slices. A plan with a
/// bound always has them: its yields end slices in time, as requested.
pub(super) fn why_without_slices(plan: &HarvestPlan, beside_command: bool) -> Option<String> {
    if plan.options.bound_ns.is_some() {
        return None;
    }
    let gain = plan.totals.gain_fraction;
    if gain < MIN_GAIN_SHARE {
        return Some(format!(
            "according to its plan others could run in {:.0} % of its time, and time slices pay from {:.0} % on",
            gain.max(0.0).abs() * 100.0,
            MIN_GAIN_SHARE * 100.0
        ));
    }
    let each_ns = plan.totals.cpu_s * 1e9 / yields(plan).max(1.0);
    (beside_command && each_ns > MAX_INTER_YIELD_NS).then(|| {
        format!(
            "according to its plan a time slice of it takes {each_ns:.0} ns, which the command would wait for (--bound-ns \
             ends turns sooner)"
        )
    })
}

/// Number of miss yields in the profiled run, summed over the chosen sites.
fn yields(plan: &HarvestPlan) -> f64 {
    let loads = plan
        .sites
        .iter()
        .filter(|site| site.chosen && site.kind == YieldKind::Primary);
    loads.filter_map(|site| site.executions).sum()
}

/// How scavengers without a command are distributed over processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunQueueLayout {
    /// Host threads whose run queues hold scavengers; 0: each scavenger runs on its own.
    pub(super) threads: u32,
    /// Maximum number of scavengers in one run queue.
    pub(super) per_thread: u32,
}

/// Distributes `harvested` scavengers with time slices and `ordinary` others. Where each can have a processor of
/// its own, the kernel's scheduler does better; a run queue holds at least two.
pub(super) fn run_queue_layout(harvested: u32, ordinary: u32, processors: u32) -> RunQueueLayout {
    let processors = processors.max(1);
    if harvested < 2 || harvested + ordinary <= processors {
        return RunQueueLayout {
            threads: 0,
            per_thread: 0,
        };
    }
    let threads = processors.min(harvested / 2).max(1);
    // A processor with neither a run queue nor an ordinary process runs one scavenger on its own.
    let shared = if ordinary == 0 { processors } else { threads };
    RunQueueLayout {
        threads,
        per_thread: harvested.div_ceil(shared).max(2),
    }
}

#[cfg(test)]
mod tests {
    use membound_types::{HarvestRole, HarvestSite};

    use super::*;

    fn plan(gain: f64, executions: f64, bound_ns: Option<f64>) -> HarvestPlan {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let path = path.display().to_string();
        let mut plan =
            membound_harvest::by_hand(&path, &bytes, HarvestRole::Scavenger, &[]).unwrap();
        plan.options.bound_ns = bound_ns;
        plan.totals.gain_fraction = gain;
        plan.totals.cpu_s = 1.0;
        let mut site = HarvestSite::chosen(path, 0, YieldKind::Primary, 1);
        site.executions = Some(executions);
        plan.sites.push(site);
        plan
    }

    #[test]
    fn slices_go_to_programs_that_yield_often() {
        assert_eq!(why_without_slices(&plan(0.5, 5e6, None), true), None);
        let computes = why_without_slices(&plan(0.02, 5e6, None), false).unwrap();
        assert!(computes.contains("2 % of its time"), "{computes}");
        // A miss every 10 us: other scavengers still gain from interleaving with it, but a command would wait
        // too long.
        assert_eq!(why_without_slices(&plan(0.5, 1e5, None), false), None);
        let long = why_without_slices(&plan(0.5, 1e5, None), true).unwrap();
        assert!(long.contains("10000 ns"), "{long}");
        assert_eq!(why_without_slices(&plan(0.0, 1.0, Some(200.0)), true), None);
    }

    #[test]
    fn interleaving_is_for_scavengers_that_would_share_a_processor() {
        let of = |harvested, ordinary, processors| {
            let layout = run_queue_layout(harvested, ordinary, processors);
            (layout.threads, layout.per_thread)
        };
        assert_eq!(of(8, 0, 1), (1, 8));
        assert_eq!(of(2, 0, 1), (1, 2));
        assert_eq!(of(8, 0, 2), (2, 4));
        assert_eq!(of(3, 0, 2), (1, 2));
        assert_eq!(of(2, 0, 2), (0, 0));
        assert_eq!(of(2, 2, 2), (1, 2));
        assert_eq!(of(1, 7, 2), (0, 0));
        assert_eq!(of(5, 0, 2), (2, 3));
        assert_eq!(of(0, 0, 0), (0, 0));
    }
}
