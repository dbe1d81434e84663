//! Yields of outer loops beside those of inner ones.
//!
//! One yield that every lap of a nest of loops comes by cuts all of them, and is counted at each lap as the
//! longest one takes: that of the outer loop. Where the inner one makes many laps for each of those, it is
//! passed far too often. With a second yield that only the outer loop comes by, each counts what its own laps
//! take, nearly.

use std::collections::BTreeSet;

use super::graph::Graph;
use super::place::{Task, loops, raise};
use super::{Place, Yields};

/// What a count costs, as a part of what a yield does.
const COUNT: f64 = 0.05;
/// Part of the executions of the inner one that the outer one may have to be tried.
const SELDOM: f64 = 0.25;
/// Part of what yields cost that has to be left where there is one more.
const WORTH: f64 = 0.9;
/// Laps of an outer loop that are counted at once at most.
const MOST_LAPS: u32 = 64;
/// Sets of yields that are tried for a group.
const TRIES: usize = 64;
/// Nodes that these are tried on in all.
const EFFORT: usize = 20_000;

/// Adds yields to outer loops where that has fewer be taken, and counts anew. `fixed` stay as they are.
pub(super) fn relieve(task: &Task<'_>, yields: &mut Yields, fixed: &BTreeSet<Place>) {
    let nodes = task.graph(yields).nodes.len();
    let mut tries = TRIES.min(EFFORT / nodes.max(1));
    let mut open: Vec<Place> = inner(task, yields, fixed);
    while let Some(place) = open.pop() {
        if let Some(best) = relieved(task, yields, fixed, place, &mut tries) {
            *yields = best;
            // There may be loops between the two.
            open.push(place);
        }
    }
}

/// The best of so many `tries` with one more yield in the loops around the one at `inner`; `None` where none
/// is worth it.
fn relieved(
    task: &Task<'_>,
    yields: &Yields,
    fixed: &BTreeSet<Place>,
    inner: Place,
    tries: &mut usize,
) -> Option<Yields> {
    if *tries == 0 {
        return None;
    }
    let mut best = None;
    let mut least = WORTH * cost(task, yields);
    for outer in around(task, yields, inner) {
        let mut before = f64::INFINITY;
        // What is left of the bound goes to the inner one.
        for every in (0..MOST_LAPS.ilog2()).map(|shift| 1 << shift) {
            let Some(left) = tries.checked_sub(1) else {
                return best;
            };
            *tries = left;
            let tried = with(task, yields, fixed, (outer, every));
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

/// What comes of a yield more, which is taken each k-th time.
fn with(
    task: &Task<'_>,
    yields: &Yields,
    fixed: &BTreeSet<Place>,
    (place, every): (Place, u32),
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

/// What is counted, that which costs most last.
fn inner(task: &Task<'_>, yields: &Yields, fixed: &BTreeSet<Place>) -> Vec<Place> {
    let each = |place: &Place| task.count(*place) * of_one(yields[place]);
    let mut places: Vec<Place> = yields.keys().copied().collect();
    places.retain(|place| !fixed.contains(place) && task.count(*place) > 0.0);
    places.sort_by(|a, b| each(a).total_cmp(&each(b)));
    places
}

/// The place that is executed least in each loop that only the yield at `inner` cuts, the outermost loop
/// first, without those that are executed nearly as often as that.
fn around(task: &Task<'_>, yields: &Yields, inner: Place) -> Vec<Place> {
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
                (count(node) <= SELDOM * task.count(inner)).then_some((node, place))
            })
            .min_by(|a, b| count(a.0).total_cmp(&count(b.0)).then(a.0.cmp(&b.0)));
        let Some((at, place)) = least else { break };
        places.push(place);
        nodes = component;
        nodes.retain(|&node| node != at);
    }
    places
}

/// The loop among `nodes` in which the instruction at `place` is.
fn containing(graph: &Graph, nodes: &[usize], place: Place) -> Option<Vec<usize>> {
    let holds = |node: &usize| {
        let here = &graph.nodes[*node];
        let block = (here.place.function, here.place.block);
        block == (place.function, place.block) && (here.place.step..here.end).contains(&place.step)
    };
    let all = loops(graph, nodes);
    all.into_iter()
        .find(|component| component.iter().any(holds))
}

fn of_one(every: u32) -> f64 {
    1.0 / f64::from(every) + if every > 1 { COUNT } else { 0.0 }
}

/// What all of them cost, in yields that are taken.
fn cost(task: &Task<'_>, yields: &Yields) -> f64 {
    yields
        .iter()
        .map(|(place, every)| task.count(*place) * of_one(*every))
        .sum()
}
