//! Improves placed yields: removes unneeded yields, raises counters, moves yields to long waits.

use std::collections::BTreeSet;

use super::task::Task;
use super::{YieldPosition, Yields};

/// Maximum k of a counter: a signed half word, so that it can be an immediate.
const MAX_COUNTER_VALUE: u32 = 1 << 15;

/// An instruction that takes this long waits for memory, in nanoseconds: the cost of a yield is negligible
/// beside it.
const WAITS_NS: f64 = 10.0;

/// Maximum number of nodes that removing yields, raising counters and moving yields may each solve for a
/// group; what is not done by then is left as it is.
const EFFORT: usize = 2_000_000;

/// Removes yields that are not needed, the most executed first.
pub(super) fn prune(task: &Task<'_>, yields: &mut Yields, keep: &BTreeSet<YieldPosition>) {
    let limit = task.limit(yields);
    let mut effort = EFFORT;
    for place in by_count(task, yields) {
        if !keep.contains(&place) && effort > 0 {
            yields.remove(&place);
            let graph = task.graph(yields);
            effort = effort.saturating_sub(graph.nodes.len());
            if !limit.permits(&task.solve(&graph)) {
                yields.insert(place, 1);
            }
        }
    }
}

/// Raises the k of yields as far as the bound permits. The remaining time goes to the yield that is taken
/// most, which is determined again after each step.
pub(super) fn raise(task: &Task<'_>, yields: &mut Yields, fixed: &BTreeSet<YieldPosition>) {
    let limit = task.limit(yields);
    let mut effort = EFFORT;
    let mut permits = |place: YieldPosition, every: u32, yields: &mut Yields| {
        let before = yields.insert(place, every);
        let graph = task.graph(yields);
        let counters = yields.values().filter(|every| **every > 1).count();
        effort = effort.saturating_sub((counters + 1) * graph.nodes.len());
        let permits =
            every <= MAX_COUNTER_VALUE && effort > 0 && limit.permits(&task.solve(&graph));
        if !permits {
            yields.extend(before.map(|before| (place, before)));
        }
        permits
    };
    // Each yield with the smallest k that was found to be too large.
    let mut open: Vec<(YieldPosition, Option<u32>)> = by_count(task, yields)
        .into_iter()
        .filter(|place| !fixed.contains(place))
        .map(|place| (place, None))
        .collect();
    let executions =
        |place: YieldPosition, yields: &Yields| task.count(place) / f64::from(yields[&place]);
    while let Some(at) = (0..open.len()).reduce(|a, b| {
        if executions(open[b].0, yields) > executions(open[a].0, yields) {
            b
        } else {
            a
        }
    }) {
        let (place, too_many) = open[at];
        let every = yields[&place];
        let next = too_many.map_or(2 * every, |too_many| every.midpoint(too_many));
        if next == every {
            open.swap_remove(at);
        } else if !permits(place, next, yields) {
            open[at].1 = Some(next);
        }
    }
}

/// Moves yields to the instruction that waits longest in the same stretch of code, as far as the bound
/// permits: a yield there prefetches the line that is read next, which has arrived when the context resumes.
pub(super) fn move_to_waits(task: &Task<'_>, yields: &mut Yields, fixed: &BTreeSet<YieldPosition>) {
    let limit = task.limit(yields);
    let mut effort = EFFORT;
    for place in by_count(task, yields) {
        let Some(wait) = longest_wait(task, place, yields) else {
            continue;
        };
        if fixed.contains(&place) || effort == 0 {
            continue;
        }
        let every = yields[&place];
        yields.remove(&place);
        yields.insert(wait, every);
        let graph = task.graph(yields);
        effort = effort.saturating_sub(graph.nodes.len());
        if !limit.permits(&task.solve(&graph)) {
            yields.remove(&wait);
            yields.insert(place, every);
        }
    }
}

/// The instruction that waits longest in the block of the yield at `place`, between the yields around it, if
/// it waits longer than the instruction at `place`.
fn longest_wait(task: &Task<'_>, place: YieldPosition, yields: &Yields) -> Option<YieldPosition> {
    let steps = &task.program.functions[place.function].blocks[place.block].steps;
    let at = |step: usize| YieldPosition { step, ..place };
    let is_yield = |step: &usize| steps[*step].yields || yields.contains_key(&at(*step));
    let first = (0..place.step).rfind(is_yield).map_or(0, |step| step + 1);
    let behind = (place.step + 1..steps.len()).find(is_yield);
    let longest = (first..behind.unwrap_or(steps.len()))
        .filter(|step| *step == place.step || task.is_free(at(*step), yields))
        .filter(|step| steps[*step].ns >= WAITS_NS)
        .max_by(|a, b| steps[*a].ns.total_cmp(&steps[*b].ns))?;
    (steps[longest].ns > steps[place.step].ns).then_some(at(longest))
}

fn by_count(task: &Task<'_>, yields: &Yields) -> Vec<YieldPosition> {
    let mut places: Vec<YieldPosition> = yields.keys().copied().collect();
    places.sort_by(|&a, &b| (task.count(b).total_cmp(&task.count(a))).then_with(|| a.cmp(&b)));
    places
}
