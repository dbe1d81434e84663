//! Chooses the loads that yield.
//!
//! A load yields if it has a significant share of the stall, if it is likely to miss the last-level cache,
//! and if the expected stall of an execution exceeds the cost of a yield. Of these loads as many are chosen,
//! in the order of gain per cost, as keep the total cost on hits under its limit.
//!
//! Figures have intervals. Where an interval contains the threshold, the decision of an earlier plan holds,
//! otherwise the value decides. Such a decision is marked as undecided: a longer profile may change it, while
//! a higher sampling rate alone changes no other decision.

use membound_model::stall::{Estimate, Executed};
use membound_types::YieldReason;

use crate::Options;
use crate::earlier_plan::EarlierDecision;
use crate::options::passes_recent;

/// A figure this near to a threshold, as a share of the threshold, is undecided even if its interval does not
/// contain the threshold: intervals do not cover systematic errors.
const MARGIN: f64 = 0.1;

/// What is known of a load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Candidate {
    /// Why a yield is impossible, whatever the figures are.
    pub impossible: Option<YieldReason>,
    /// Stall time over the run, in nanoseconds.
    pub stall_ns: Estimate,
    /// The part of the stall time beyond the second-level cache, in nanoseconds.
    pub beyond_ns: f64,
    pub executed: Option<Executed>,
    /// Share of the executions that miss the last-level cache.
    pub likelihood: Option<Estimate>,
    /// The decision of an earlier plan.
    pub earlier: Option<EarlierDecision>,
}

/// The decision about a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decision {
    pub chosen: bool,
    pub reason: YieldReason,
    pub undecided: bool,
    /// Stall of an execution beyond the second-level cache, in nanoseconds.
    pub stall_each_ns: Option<Estimate>,
    /// Time that is gained for other work, in nanoseconds of the run.
    pub gain_ns: f64,
    /// Cost of the yield on hits, in nanoseconds of the run.
    pub hit_cost_ns: f64,
}

/// On which side of a threshold a figure lies, and whether that is sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    above: bool,
    sure: bool,
}

fn side(figure: Estimate, threshold: f64, earlier: Option<EarlierDecision>) -> Side {
    let margin = MARGIN * threshold;
    let sure = figure.low >= threshold + margin || figure.high < threshold - margin;
    let above = match earlier {
        Some(earlier) if !sure => earlier.pays,
        _ => figure.value >= threshold,
    };
    Side { above, sure }
}

/// Decides about all loads of a program that took `cpu_ns` of CPU time, `stall_ns` of it stalled.
pub(crate) fn choose(
    candidates: &[Candidate],
    cpu_ns: f64,
    stall_ns: f64,
    options: &Options,
) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = candidates
        .iter()
        .map(|candidate| decide(candidate, stall_ns, options))
        .collect();
    let mut order: Vec<usize> = (0..decisions.len())
        .filter(|&index| decisions[index].chosen)
        .collect();
    let gain_per_cost = |index: usize| {
        let Decision {
            gain_ns,
            hit_cost_ns,
            ..
        } = decisions[index];
        let gain_per_cost = gain_ns / hit_cost_ns.max(f64::MIN_POSITIVE);
        // Loads that were chosen before stay ahead of the others, as far as their intervals permit.
        match (candidates[index].earlier, decisions[index].stall_each_ns) {
            (Some(earlier), Some(each)) if each.value > 0.0 && earlier.pays => {
                let end = if earlier.chosen { each.high } else { each.low };
                gain_per_cost * end / each.value
            }
            _ => gain_per_cost,
        }
    };
    order.sort_by(|&a, &b| {
        gain_per_cost(b)
            .total_cmp(&gain_per_cost(a))
            .then(a.cmp(&b))
    });
    let budget_ns = options.max_overhead * cpu_ns;
    let mut spent_ns = 0.0;
    for index in order {
        let decision = &mut decisions[index];
        let together = spent_ns + decision.hit_cost_ns;
        if together <= budget_ns {
            spent_ns = together;
        } else {
            decision.chosen = false;
            decision.reason = YieldReason::Overhead;
        }
        if (together - budget_ns).abs() <= MARGIN * budget_ns && decision.hit_cost_ns > 0.0 {
            decision.undecided = true;
        }
    }
    decisions
}

fn decide(candidate: &Candidate, all_stall_ns: f64, options: &Options) -> Decision {
    let yield_ns = options.costs.yield_ns();
    // Mean cost of a yield per execution: the part on hits and the part on misses.
    let costs_ns = |likelihood: Estimate| {
        let hit_ns = if passes_recent(options.role, likelihood.value) {
            options.costs.hit_ns()
        } else {
            yield_ns
        };
        let missing = likelihood.value;
        ((1.0 - missing) * hit_ns, missing * yield_ns)
    };
    let executed = candidate.executed.filter(|executed| executed.count > 0.0);
    let stall_each_ns = executed.map(|executed| each(candidate, executed));
    let (gain_ns, hit_cost_ns) = match (executed, candidate.likelihood) {
        (Some(executed), Some(likelihood)) => {
            let (hits_ns, misses_ns) = costs_ns(likelihood);
            let all_ns = executed.count * (hits_ns + misses_ns);
            (candidate.beyond_ns - all_ns, executed.count * hits_ns)
        }
        _ => (0.0, 0.0),
    };
    let decided = |reason, sides: &[Side]| Decision {
        chosen: reason == YieldReason::Pays,
        reason,
        undecided: sides.iter().any(|side| !side.sure),
        stall_each_ns,
        gain_ns,
        hit_cost_ns,
    };
    if let Some(reason) = candidate.impossible {
        return decided(reason, &[]);
    }
    let significant = if all_stall_ns > 0.0 {
        let share = candidate.stall_ns.times(1.0 / all_stall_ns);
        side(share, options.min_stall_share, candidate.earlier)
    } else {
        Side {
            above: false,
            sure: true,
        }
    };
    if !significant.above {
        return decided(YieldReason::LittleStall, &[significant]);
    }
    let Some(each_ns) = stall_each_ns else {
        return decided(YieldReason::NotCounted, &[]);
    };
    let Some(likelihood) = candidate.likelihood else {
        return decided(YieldReason::NotTimed, &[]);
    };
    let misses = side(likelihood, options.min_likelihood, candidate.earlier);
    if !misses.above {
        return decided(YieldReason::Hits, &[misses]);
    }
    let (hits_ns, misses_ns) = costs_ns(likelihood);
    let long = side(each_ns, hits_ns + misses_ns, candidate.earlier);
    if !long.above {
        return decided(YieldReason::ShortStall, &[long]);
    }
    decided(YieldReason::Pays, &[significant, misses, long])
}

/// Stall of an execution beyond the second-level cache. The deviations of stall and count are independent
/// factors.
fn each(candidate: &Candidate, executed: Executed) -> Estimate {
    let stall_ns = candidate.stall_ns;
    if stall_ns.value <= 0.0 || candidate.beyond_ns <= 0.0 {
        return Estimate::exactly(0.0);
    }
    let value = candidate.beyond_ns / executed.count;
    // More executions mean a shorter stall of each.
    let fewer = (executed.count / executed.low.max(f64::MIN_POSITIVE)).ln();
    let more = (executed.high / executed.count).ln();
    let below = (stall_ns.value / stall_ns.low.max(f64::MIN_POSITIVE)).ln();
    let above = (stall_ns.high / stall_ns.value).ln();
    Estimate::new(
        value,
        value * (-below.hypot(more)).exp(),
        value * above.hypot(fewer).exp(),
    )
}

#[cfg(test)]
mod tests {
    use membound_types::HarvestRole;

    use super::*;

    /// A load of a program that ran for a second, half of it stalled, with milliseconds of stall, millions of
    /// executions, and the likelihood of a miss.
    fn load(stall_ms: f64, millions: f64, likelihood: f64) -> Candidate {
        let near = |value: f64| Estimate::new(value, 0.95 * value, 1.05 * value);
        Candidate {
            impossible: None,
            stall_ns: near(stall_ms * 1e6),
            beyond_ns: stall_ms * 1e6,
            executed: Some(Executed {
                count: millions * 1e6,
                low: millions * 0.98e6,
                high: millions * 1.02e6,
            }),
            likelihood: Some(near(likelihood)),
            earlier: None,
        }
    }

    fn decide_all(candidates: &[Candidate], max_overhead: f64) -> Vec<Decision> {
        let options = Options {
            max_overhead,
            ..Options::new(HarvestRole::Primary)
        };
        choose(candidates, 1e9, 5e8, &options)
    }

    fn reasons(candidates: &[Candidate], max_overhead: f64) -> Vec<YieldReason> {
        let decisions = decide_all(candidates, max_overhead);
        decisions.iter().map(|it| it.reason).collect()
    }

    #[test]
    fn each_reason_has_its_load() {
        let uncounted = Candidate {
            executed: None,
            ..load(100.0, 1.0, 0.9)
        };
        let untimed = Candidate {
            likelihood: None,
            ..load(100.0, 1.0, 0.9)
        };
        let store = Candidate {
            impossible: Some(YieldReason::NotALoad),
            ..load(100.0, 1.0, 0.9)
        };
        let all = [
            load(160.0, 1.0, 0.9),
            load(1.0, 1.0, 0.9),
            load(100.0, 50.0, 0.05),
            load(100.0, 20.0, 0.9),
            uncounted,
            untimed,
            store,
        ];
        assert_eq!(
            reasons(&all, 1.0),
            [
                YieldReason::Pays,
                YieldReason::LittleStall,
                YieldReason::Hits,
                YieldReason::ShortStall,
                YieldReason::NotCounted,
                YieldReason::NotTimed,
                YieldReason::NotALoad,
            ]
        );
    }

    #[test]
    fn gain_is_the_stall_minus_yields_and_cost_is_the_yields_on_hits() {
        // A yield takes 12 ns, and a hit 3 ns with the recent-miss filter.
        let cases = [
            (HarvestRole::Scavenger, 0.75, 148.0, 3.0),
            (HarvestRole::Primary, 0.75, 150.25, 0.75),
            (HarvestRole::Primary, 0.95, 148.0, 0.6),
        ];
        for (role, likelihood, gain_ms, hit_cost_ms) in cases {
            let all = [load(160.0, 1.0, likelihood)];
            let decision = choose(&all, 1e9, 5e8, &Options::new(role))[0];
            let off = |is: f64, ms: f64| (is - ms * 1e6).abs();
            assert!(off(decision.gain_ns, gain_ms) < 1.0, "{decision:?}");
            assert!(off(decision.hit_cost_ns, hit_cost_ms) < 1.0, "{decision:?}");
        }
        let decision = decide_all(&[load(160.0, 1.0, 0.75)], 1.0)[0];
        let each = decision.stall_each_ns.unwrap();
        assert!((each.value - 160.0).abs() < 1e-9);
        assert!(each.low > 150.0 && each.high < 170.0, "{each:?}");
        assert!(decision.chosen && !decision.undecided);
    }

    #[test]
    fn the_load_with_the_largest_gain_per_cost_is_chosen_first() {
        // Costs on hits: 0.15 %, 0.3 %, 0.12 % of the time; gains per cost 95, 52, 115.
        let all = [
            load(150.0, 1.0, 0.5),
            load(170.0, 2.0, 0.5),
            load(150.0, 1.0, 0.9),
        ];
        let pays = YieldReason::Pays;
        let over = YieldReason::Overhead;
        assert_eq!(reasons(&all, 0.05), [pays, pays, pays]);
        assert_eq!(reasons(&all, 0.0028), [pays, over, pays]);
        assert_eq!(reasons(&all, 0.0013), [over, over, pays]);
        assert_eq!(reasons(&all, 0.0), [over, over, over]);
    }

    #[test]
    fn a_threshold_inside_the_interval_is_undecided() {
        let mut wide = load(160.0, 1.0, 0.12);
        wide.likelihood = Some(Estimate::new(0.12, 0.05, 0.3));
        let decision = decide_all(&[wide.clone()], 1.0)[0];
        assert!(decision.chosen && decision.undecided);
        wide.likelihood = Some(Estimate::new(0.08, 0.05, 0.3));
        let decision = decide_all(&[wide], 1.0)[0];
        assert_eq!(decision.reason, YieldReason::Hits);
        assert!(decision.undecided);
    }

    #[test]
    fn a_decision_that_the_figures_permit_is_kept() {
        let earlier = |pays, chosen| Some(EarlierDecision { pays, chosen });
        let decided = |value: f64, low: f64, high: f64, earlier| {
            let mut load = load(160.0, 1.0, value);
            load.likelihood = Some(Estimate::new(value, low, high));
            load.earlier = earlier;
            let decision = decide_all(&[load], 1.0)[0];
            (decision.reason, decision.undecided)
        };
        let (pays, hits) = (YieldReason::Pays, YieldReason::Hits);
        // The threshold is 10 %.
        assert_eq!(decided(0.09, 0.05, 0.3, None), (hits, true));
        assert_eq!(decided(0.09, 0.05, 0.3, earlier(true, true)), (pays, true));
        assert_eq!(decided(0.09, 0.05, 0.3, earlier(true, false)), (pays, true));
        assert_eq!(
            decided(0.12, 0.05, 0.3, earlier(false, false)),
            (hits, true)
        );
        // An earlier decision that the figures rule out is not kept.
        assert_eq!(decided(0.5, 0.4, 0.6, earlier(false, false)), (pays, false));
        assert_eq!(
            decided(0.03, 0.01, 0.06, earlier(true, true)),
            (hits, false)
        );
    }

    #[test]
    fn chosen_loads_stay_before_loads_with_hardly_more_gain() {
        let with = |mut load: Candidate, chosen| {
            load.earlier = Some(EarlierDecision { pays: true, chosen });
            load
        };
        let (first, second) = (load(150.0, 1.0, 0.5), load(152.0, 1.0, 0.5));
        let (pays, over) = (YieldReason::Pays, YieldReason::Overhead);
        // There is room for one of the two, whose intervals overlap.
        let plain = [first.clone(), second.clone()];
        assert_eq!(reasons(&plain, 0.002), [over, pays]);
        let decisions = [with(first.clone(), true), with(second, false)];
        assert_eq!(reasons(&decisions, 0.002), [pays, over]);
        let better = [with(first, true), with(load(250.0, 1.0, 0.5), false)];
        assert_eq!(reasons(&better, 0.002), [over, pays]);
    }

    #[test]
    fn more_samples_narrow_the_intervals_and_change_no_decision() {
        let values = [
            (160.0, 1.0, 0.9),
            (40.0, 2.0, 0.5),
            (90.0, 20.0, 0.04),
            (3.0, 0.1, 0.9),
            (60.0, 4.0, 0.45),
        ];
        let at = |precision: f64| {
            let near = |value: f64| {
                let off = (value * precision).min(value);
                Estimate::new(value, value - off, value + off)
            };
            let all: Vec<Candidate> = values
                .iter()
                .map(|&(stall, millions, likelihood)| Candidate {
                    stall_ns: near(stall * 1e6),
                    likelihood: Some(near(likelihood)),
                    executed: Some(Executed {
                        count: millions * 1e6,
                        low: millions * 1e6 / (1.0 + precision),
                        high: millions * 1e6 * (1.0 + precision),
                    }),
                    ..load(stall, millions, likelihood)
                })
                .collect();
            decide_all(&all, 0.05)
        };
        let (few, many) = (at(0.8), at(0.08));
        let chosen = |all: &[Decision]| all.iter().map(|it| it.reason).collect::<Vec<_>>();
        assert_eq!(chosen(&few), chosen(&many));
        let open = |all: &[Decision]| all.iter().filter(|it| it.undecided).count();
        assert!(open(&many) < open(&few));
    }
}
