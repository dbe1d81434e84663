//! Which scavengers take turns, and which run as ordinary processes: by what their plans promise.

use membound_types::{HarvestPlan, YieldKind};

/// Share of its time that others can run in which a scavenger is to give for turns without a bound to pay.
const LEAST_GAIN: f64 = 0.1;
/// Longest time from one load of a scavenger that yields to the next, on average and in nanoseconds, where a
/// command waits for it and no bound was asked for.
const LONGEST_NS: f64 = 1000.0;

/// Why a scavenger of this plan is to run as an ordinary process, beside a command or without one; `None`:
/// it takes turns. A plan with a bound has yields that end turns in time, which somebody has asked for.
pub(super) fn takes_no_turns(plan: &HarvestPlan, beside_command: bool) -> Option<String> {
    if plan.options.bound_ns.is_some() {
        return None;
    }
    let gain = plan.totals.gain_fraction;
    if gain < LEAST_GAIN {
        return Some(format!(
            "by its plan others could run in {:.0} % of its time, and turns pay from {:.0} % on",
            (gain * 100.0).max(0.0),
            LEAST_GAIN * 100.0
        ));
    }
    let each_ns = plan.totals.cpu_s * 1e9 / yields(plan).max(1.0);
    (beside_command && each_ns > LONGEST_NS).then(|| {
        format!(
            "by its plan a turn of it takes {each_ns:.0} ns, which the command would wait for (--bound-ns \
             ends turns sooner)"
        )
    })
}

/// How often loads yield, by the executions that were profiled.
fn yields(plan: &HarvestPlan) -> f64 {
    let loads = plan
        .sites
        .iter()
        .filter(|site| site.chosen && site.kind == YieldKind::Primary);
    loads.filter_map(|site| site.executions).sum()
}

/// How scavengers without a command are put on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// Threads that yield to them; 0: each runs on its own.
    pub(super) threads: u32,
    /// Most scavengers that one such thread has.
    pub(super) per_thread: u32,
}

/// For `turns` scavengers that take turns, and as many others as `ordinary` says, on so many processors. Where
/// each can have one of its own the kernel does better; a ring has two at least.
pub(super) fn rings(turns: u32, ordinary: u32, processors: u32) -> Rings {
    let processors = processors.max(1);
    if turns < 2 || turns + ordinary <= processors {
        return Rings {
            threads: 0,
            per_thread: 0,
        };
    }
    let threads = processors.min(turns / 2).max(1);
    // Where a processor would have nobody else, one runs there on its own.
    let shared = if ordinary == 0 { processors } else { threads };
    Rings {
        threads,
        per_thread: turns.div_ceil(shared).max(2),
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
    fn turns_are_for_those_who_wait_often() {
        assert_eq!(takes_no_turns(&plan(0.5, 5e6, None), true), None);
        let computes = takes_no_turns(&plan(0.02, 5e6, None), false).unwrap();
        assert!(computes.contains("2 % of its time"), "{computes}");
        // Once in 10 us: others who wait for memory take turns with it, a command does not wait for it.
        assert_eq!(takes_no_turns(&plan(0.5, 1e5, None), false), None);
        let long = takes_no_turns(&plan(0.5, 1e5, None), true).unwrap();
        assert!(long.contains("10000 ns"), "{long}");
        assert_eq!(takes_no_turns(&plan(0.0, 1.0, Some(200.0)), true), None);
    }

    #[test]
    fn rings_are_for_those_who_would_share_a_processor() {
        let of = |turns, ordinary, processors| {
            let rings = rings(turns, ordinary, processors);
            (rings.threads, rings.per_thread)
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
