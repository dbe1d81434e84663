//! Places yields in outer loops beside those in inner ones.
//!
//! One yield that every iteration of a nest of loops passes cuts all the loops, but each execution of it
//! counts as much as the longest iteration takes, which is one of the outer loop. Where the inner loop makes
//! many iterations for each of the outer one, such a yield is taken far too often. With a second yield that
//! only the outer loop passes, each counts approximately what the iterations of its own loop take.

use std::collections::BTreeSet;

use super::graph::Graph;
use super::improve::raise;
use super::task::{Task, loops};
use super::{YieldPosition, Yields};

/// Cost of a counter as a share of the cost of a yield.
const COUNT_COST_SHARE: f64 = 0.05;
/// Maximum executions of an outer yield that is tried, as a share of those of the inner one.
const MAX_OUTER_EXECUTION_SHARE: f64 = 0.25;
/// Maximum cost with an additional yield, as a share of the cost without it, for it to be added.
const MAX_REMAINING_COST_SHARE: f64 = 0.9;
/// Powers of two below this are tried as the k of an outer yield.
const MAX_ITERATIONS_COUNTED_TOGETHER: u32 = 64;
/// Maximum number of sets of yields that are tried for a group.
const TRIES: usize = 64;
/// Maximum number of nodes that are solved for these tries in all.
const EFFORT: usize = 20_000;

/// Adds yields to outer loops where the total cost becomes lower, and raises the counters again. Yields in
/// `fixed` stay as they are.
pub(super) fn relieve(task: &Task<'_>, yields: &mut Yields, fixed: &BTreeSet<YieldPosition>) {
    let nodes = task.graph(yields).nodes.len();
    let mut tries = TRIES.min(EFFORT / nodes.max(1));
    let mut open: Vec<YieldPosition> = executed_yields(task, yields, fixed);
    while let Some(place) = open.pop() {
        if let Some(best) = relieved(task, yields, fixed, place, &mut tries) {
            *yields = best;
            // There may be loops between the two.
            open.push(place);
        }
    }
}

/// The best set with one more yield in the loops around the yield at `inner`, within the remaining `tries`;
/// `None` if no set is cheaper.
fn relieved(
    task: &Task<'_>,
    yields: &Yields,
    fixed: &BTreeSet<YieldPosition>,
    inner: YieldPosition,
    tries: &mut usize,
) -> Option<Yields> {
    if *tries == 0 {
        return None;
    }
    let mut best = None;
    let mut least = MAX_REMAINING_COST_SHARE * cost(task, yields);
    for outer in outer_places(task, yields, inner) {
        let mut before = f64::INFINITY;
        // The rest of the bound goes to the inner yield.
        for every in (0..MAX_ITERATIONS_COUNTED_TOGETHER.ilog2()).map(|shift| 1 << shift) {
            let Some(tries_left) = tries.checked_sub(1) else {
                return best;
            };
            *tries = tries_left;
            let tried = with_yield(task, yields, fixed, (outer, every));
            let now = cost(task, &tried);
            if now < least {
                best = Some(tried);
                least = now;
            }
            if now >= before {
                break;
            }
            before = now;
        }
    }
    best
}

/// The yields with an additional one at `place`, with k = `every`, after the others are raised again.
fn with_yield(
    task: &Task<'_>,
    yields: &Yields,
    fixed: &BTreeSet<YieldPosition>,
    (place, every): (YieldPosition, u32),
) -> Yields {
    let mut all = yields.clone();
    for (_, every) in all.iter_mut().filter(|(place, _)| !fixed.contains(place)) {
        *every = 1;
    }
    all.insert(place, every);
    let mut fixed = fixed.clone();
    fixed.insert(place);
    raise(task, &mut all, &fixed);
    all
}

/// The yields that are executed, in ascending order of cost.
fn executed_yields(
    task: &Task<'_>,
    yields: &Yields,
    fixed: &BTreeSet<YieldPosition>,
) -> Vec<YieldPosition> {
    let each = |place: &YieldPosition| task.count(*place) * cost_share(yields[place]);
    let mut places: Vec<YieldPosition> = yields.keys().copied().collect();
    places.retain(|place| !fixed.contains(place) && task.count(*place) > 0.0);
    places.sort_by(|a, b| each(a).total_cmp(&each(b)));
    places
}

/// The least executed place in each loop that only the yield at `inner` cuts, the outermost loop first,
/// except places that are executed nearly as often as that yield.
fn outer_places(task: &Task<'_>, yields: &Yields, inner: YieldPosition) -> Vec<YieldPosition> {
    let mut without = yields.clone();
    without.remove(&inner);
    let graph = task.graph(&without);
    let mut places = Vec::new();
    let mut nodes = graph.reached.clone();
    while let Some(component) = containing(&graph, &nodes, inner) {
        let count = |node: usize| graph.nodes[node].count;
        let least = component
            .iter()
            .filter_map(|&node| {
                let place = task.first_free(&graph.nodes[node], yields)?;
                (count(node) <= MAX_OUTER_EXECUTION_SHARE * task.count(inner))
                    .then_some((node, place))
            })
            .min_by(|a, b| count(a.0).total_cmp(&count(b.0)).then(a.0.cmp(&b.0)));
        let Some((at, place)) = least else { break };
        places.push(place);
        nodes = component;
        nodes.retain(|&node| node != at);
    }
    places
}

/// The loop among `nodes` that contains the instruction at `place`.
fn containing(graph: &Graph, nodes: &[usize], place: YieldPosition) -> Option<Vec<usize>> {
    let contains_place = |node: &usize| {
        let current = &graph.nodes[*node];
        let block = (current.place.function, current.place.block);
        block == (place.function, place.block)
            && (current.place.step..current.end).contains(&place.step)
    };
    let all = loops(graph, nodes);
    all.into_iter()
        .find(|component| component.iter().any(contains_place))
}

fn cost_share(every: u32) -> f64 {
    1.0 / f64::from(every) + if every > 1 { COUNT_COST_SHARE } else { 0.0 }
}

/// Total cost of the yields, in units of a taken yield.
fn cost(task: &Task<'_>, yields: &Yields) -> f64 {
    yields
        .iter()
        .map(|(place, every)| task.count(*place) * cost_share(*every))
        .sum()
}
