//! Where yields are placed in a group of functions.

use std::collections::BTreeSet;

use super::components::components;
use super::graph::{Effect, Graph, Node, Solved, Source, Start, Summary};
use super::{Gap, Limits, Place, Program, Rule, Unbounded, Yields, expected, longest};

/// A counter counts to this at most: a signed half word, so that it can be an immediate.
const MOST: u32 = 1 << 15;

/// Nodes of a loop that are tried as the place of its yield.
const TRIED: usize = 64;

/// Times that differ by less are the same, in nanoseconds.
pub(super) const SAME_NS: f64 = 1e-6;

/// Nodes that are looked at in all while yields are taken out of a group, and while counters are
/// raised: what is left then stays as it is.
const EFFORT: usize = 20_000_000;

/// A group of functions for which yields are to be placed.
pub(super) struct Task<'a> {
    pub program: &'a Program,
    pub group: &'a [usize],
    pub summaries: &'a [Option<Summary>],
    pub limits: Limits,
    /// How long ago the last yield is taken to be behind code of which nothing is known.
    pub stale_ns: f64,
    /// How long ago the last yield was when one of its functions is called.
    pub entry_ns: f64,
}

impl Task<'_> {
    pub(super) fn graph(&self, yields: &Yields) -> Graph {
        Graph::new(self.program, self.group, self.summaries, yields)
    }

    pub(super) fn solve(&self, graph: &Graph) -> Solved {
        let Limits { bound_ns, rule } = self.limits;
        match rule {
            Rule::Max => longest::solve(graph, self.stale_ns, self.entry_ns),
            Rule::Expected => expected::solve(graph, bound_ns, (self.stale_ns, self.entry_ns)),
        }
    }

    fn most_ns(&self, yields: &Yields) -> f64 {
        self.solve(&self.graph(yields)).most_ns
    }

    /// The step at a place.
    fn step(&self, place: Place) -> Option<&super::Step> {
        let function = &self.program.functions[place.function];
        function.blocks[place.block].steps.get(place.step)
    }

    fn count(&self, place: Place) -> f64 {
        self.program.functions[place.function].blocks[place.block].count
    }

    /// Whether a yield can be put at a place where there is none.
    fn is_free(&self, place: Place, yields: &Yields) -> bool {
        self.step(place)
            .is_some_and(|step| step.patchable && !step.yields)
            && !yields.contains_key(&place)
    }

    fn first_free(&self, node: &Node, yields: &Yields) -> Option<Place> {
        (node.place.step..node.end)
            .map(|step| Place { step, ..node.place })
            .find(|&place| self.is_free(place, yields))
    }
}

/// Places yields in a group; and what could not be bounded.
pub(super) fn place(task: &Task<'_>) -> (Yields, Vec<Gap>) {
    let mut yields = Yields::new();
    let mut gaps = Vec::new();
    // Loops in which no yield can stand are left out of account after they were noted.
    let mut assumed = BTreeSet::new();
    match task.limits.rule {
        Rule::Max => {
            cut_loops(task, &mut yields, &mut assumed, &mut gaps);
            let loops: BTreeSet<Place> = yields.keys().copied().collect();
            while let Some(place) = violation(task, &yields, None) {
                yields.insert(place, 1);
            }
            violation(task, &yields, Some(&mut gaps));
            prune(task, &mut yields, &loops);
        }
        Rule::Expected => {
            while let Some(place) = exceeded(task, &yields) {
                yields.insert(place, 1);
            }
            gaps.extend(over(task, &yields));
            prune(task, &mut yields, &BTreeSet::new());
        }
    }
    raise(task, &mut yields, &assumed);
    yields.retain(|place, _| !assumed.contains(place));
    gaps.sort_unstable();
    gaps.dedup();
    (yields, gaps)
}

/// Puts a yield into every loop that has none.
fn cut_loops(
    task: &Task<'_>,
    yields: &mut Yields,
    assumed: &mut BTreeSet<Place>,
    gaps: &mut Vec<Gap>,
) {
    let graph = task.graph(yields);
    let mut pending = vec![graph.reached.clone()];
    while let Some(nodes) = pending.pop() {
        for component in loops(&graph, &nodes) {
            let free = |node: usize| task.first_free(&graph.nodes[node], yields);
            let (at, place) = if let Some(at) = cheapest(&graph, &component, &free)
                && let Some(place) = free(at)
            {
                (at, place)
            } else {
                let longest = component
                    .iter()
                    .copied()
                    .max_by(|&a, &b| graph.nodes[a].ns.total_cmp(&graph.nodes[b].ns));
                let at = longest.unwrap_or(component[0]);
                let place = graph.nodes[at].place;
                gaps.push(Gap {
                    why: Unbounded::Loop,
                    place,
                });
                assumed.insert(place);
                (at, place)
            };
            yields.insert(place, 1);
            pending.push(component.into_iter().filter(|&node| node != at).collect());
        }
    }
}

/// The loops among `nodes` that have no yield.
fn loops(graph: &Graph, nodes: &[usize]) -> Vec<Vec<usize>> {
    let mut found = components(graph.nodes.len(), nodes, |node| graph.carries(node));
    found.retain(|component| {
        component.len() > 1 || graph.carries(component[0]).any(|next| next == component[0])
    });
    found
}

/// The node of a loop at which a yield makes the least work, what is then left to be cut
/// included.
fn cheapest(
    graph: &Graph,
    component: &[usize],
    free: &impl Fn(usize) -> Option<Place>,
) -> Option<usize> {
    let mut candidates: Vec<usize> = component
        .iter()
        .copied()
        .filter(|&node| free(node).is_some())
        .collect();
    let count = |node: usize| graph.nodes[node].count;
    candidates.sort_by(|&a, &b| count(a).total_cmp(&count(b)).then(a.cmp(&b)));
    if candidates.len() > TRIED {
        candidates.drain(TRIED / 2..candidates.len() - TRIED / 2);
    }
    let cost = |node: usize| {
        let rest: Vec<usize> = component.iter().copied().filter(|&it| it != node).collect();
        let left = loops(graph, &rest);
        let least: f64 = left
            .iter()
            .map(|component| {
                let counts = component.iter().map(|&node| count(node));
                counts.fold(f64::INFINITY, f64::min)
            })
            .sum();
        (count(node) + least, left.len())
    };
    candidates
        .into_iter()
        .map(|node| (cost(node), node))
        .min_by(|(a, at), (b, other)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(at.cmp(other)))
        .map(|(_, node)| node)
}

/// Times along the longest paths of a graph whose loops are all cut.
struct Paths {
    order: Vec<usize>,
    pass: Vec<f64>,
    from: Vec<Option<usize>>,
}

impl Paths {
    fn new(task: &Task<'_>, graph: &Graph) -> Self {
        let size = graph.nodes.len();
        let stale_ns = task.stale_ns;
        let order = components(size, &graph.reached, |node| graph.carries(node)).concat();
        let mut pass = vec![f64::NEG_INFINITY; size];
        let mut from = vec![None; size];
        for &node in &graph.reached {
            let here = &graph.nodes[node];
            pass[node] = pass[node].max(match here.source {
                Source::Nowhere => f64::NEG_INFINITY,
                Source::Calls => task.entry_ns,
                Source::Unknown => stale_ns,
            });
            // Not in the order of the nodes, like the sources.
            let since = match here.effect {
                Effect::None => None,
                Effect::Unknown => Some(stale_ns),
                Effect::Called(summary) => summary.tail,
            };
            for &(to, _) in &here.ways {
                pass[to] = pass[to].max(since.unwrap_or(f64::NEG_INFINITY));
            }
        }
        for &node in &order {
            let here = &graph.nodes[node];
            if here.start != Start::Plain {
                pass[node] = 0.0;
                from[node] = None;
            }
            let ends = pass[node] + here.ns;
            let leaves = match here.effect {
                Effect::None => ends,
                Effect::Called(Summary {
                    through: Some(through),
                    ..
                }) => ends + through,
                Effect::Called(_) | Effect::Unknown => continue,
            };
            for &(to, _) in &here.ways {
                if graph.nodes[to].start == Start::Plain && leaves > pass[to] {
                    pass[to] = leaves;
                    from[to] = Some(node);
                }
            }
        }
        Self { order, pass, from }
    }
}

/// The place of a yield that mends the first violation of the bound, or, with `gaps`, all
/// violations that nothing mends.
fn violation(task: &Task<'_>, yields: &Yields, mut gaps: Option<&mut Vec<Gap>>) -> Option<Place> {
    let graph = task.graph(yields);
    let paths = Paths::new(task, &graph);
    let most_ns = task.limits.bound_ns + SAME_NS;
    for &node in &paths.order {
        let here = &graph.nodes[node];
        let mut at_ns = paths.pass[node];
        let mut lost = at_ns > most_ns;
        let steps = (here.place.step..here.end).map(|step| Place { step, ..here.place });
        for place in steps {
            let Some(step) = task.step(place) else {
                break;
            };
            if lost && at_ns > SAME_NS && task.is_free(place, yields) {
                // The next yield is late already: it comes as soon as it can.
                return Some(place);
            }
            let behind_ns = at_ns + step.ns;
            if behind_ns > most_ns && !lost {
                if let Some(found) =
                    mend(task, &graph, &paths, node, (place.step, behind_ns), yields)
                {
                    return Some(found);
                }
                lost = true;
                if let Some(gaps) = &mut gaps {
                    let why = if step.ns > most_ns {
                        Unbounded::Instruction
                    } else {
                        Unbounded::Stretch
                    };
                    gaps.push(Gap { why, place });
                }
            }
            at_ns = behind_ns;
        }
        if let Effect::Called(summary) = here.effect {
            let through = summary.through.unwrap_or(0.0);
            let behind_ns = at_ns + summary.head.unwrap_or(0.0).max(through);
            if behind_ns > most_ns && !lost && here.end > here.place.step {
                let last = here.end - 1;
                if let Some(found) = mend(task, &graph, &paths, node, (last, behind_ns), yields) {
                    return Some(found);
                }
                if let Some(gaps) = &mut gaps {
                    gaps.push(Gap {
                        why: Unbounded::Stretch,
                        place: Place {
                            step: last,
                            ..here.place
                        },
                    });
                }
            }
        }
    }
    None
}

/// The place on the longest path to a step of `node`, `until_ns` behind its last yield at the
/// end, where a yield brings that under the bound and is executed least; of equals the latest.
fn mend(
    task: &Task<'_>,
    graph: &Graph,
    paths: &Paths,
    node: usize,
    (last, until_ns): (usize, f64),
    yields: &Yields,
) -> Option<Place> {
    let most_ns = task.limits.bound_ns + SAME_NS;
    let mut best: Option<(f64, Place)> = None;
    let mut node = node;
    let mut end = last + 1;
    loop {
        let here = &graph.nodes[node];
        let mut ends_ns = paths.pass[node] + here.ns;
        for step in (end..here.end).rev() {
            ends_ns -= task.step(Place { step, ..here.place })?.ns;
        }
        for step in (here.place.step..end).rev() {
            let place = Place { step, ..here.place };
            let at_ns = ends_ns - task.step(place)?.ns;
            ends_ns = at_ns;
            if until_ns - at_ns > most_ns {
                return best.map(|(_, place)| place);
            }
            // A yield that changes nothing mends nothing.
            if at_ns > SAME_NS && at_ns <= most_ns && task.is_free(place, yields) {
                let count = task.count(place);
                if best.is_none_or(|(least, _)| count < least) {
                    best = Some((count, place));
                }
            }
        }
        let Some(before) = paths.from[node] else {
            return best.map(|(_, place)| place);
        };
        node = before;
        end = graph.nodes[node].end;
    }
}

/// The place of a yield where the average time exceeds the bound first.
fn exceeded(task: &Task<'_>, yields: &Yields) -> Option<Place> {
    let graph = task.graph(yields);
    let solved = task.solve(&graph);
    let most_ns = task.limits.bound_ns + SAME_NS;
    if solved.most_ns <= most_ns {
        return None;
    }
    let order = components(graph.nodes.len(), &graph.reached, |node| {
        graph.nodes[node].ways.iter().map(|way| way.0)
    })
    .concat();
    for node in order {
        let here = &graph.nodes[node];
        let head = match here.effect {
            Effect::Called(summary) => {
                let through = summary.through.unwrap_or(0.0);
                summary.head.unwrap_or(0.0).max(through)
            }
            Effect::None | Effect::Unknown => 0.0,
        };
        if solved.pass[node] + here.ns + head <= most_ns {
            continue;
        }
        let mut at_ns = solved.pass[node];
        let mut best = None;
        for step in here.place.step..here.end {
            let place = Place { step, ..here.place };
            if task.is_free(place, yields) && (best.is_none() || at_ns <= most_ns) {
                best = Some(place);
            }
            at_ns += task.step(place).map_or(0.0, |step| step.ns);
        }
        if best.is_some() {
            return best;
        }
    }
    None
}

/// Where the average time exceeds the bound whatever yields there are.
fn over(task: &Task<'_>, yields: &Yields) -> Vec<Gap> {
    let graph = task.graph(yields);
    let solved = task.solve(&graph);
    let nodes = graph.reached.iter().filter(|&&node| {
        let here = &graph.nodes[node];
        here.end > here.place.step && solved.pass[node] + here.ns > task.limits.bound_ns + SAME_NS
    });
    nodes
        .map(|&node| Gap {
            why: Unbounded::Stretch,
            place: graph.nodes[node].place,
        })
        .collect()
}

/// Takes out the yields that are not needed, those that are executed most first.
fn prune(task: &Task<'_>, yields: &mut Yields, keep: &BTreeSet<Place>) {
    let limit = task.most_ns(yields).max(task.limits.bound_ns) + SAME_NS;
    let mut effort = EFFORT;
    for place in by_count(task, yields) {
        if !keep.contains(&place) && effort > 0 {
            yields.remove(&place);
            let graph = task.graph(yields);
            effort = effort.saturating_sub(graph.nodes.len());
            if task.solve(&graph).most_ns > limit {
                yields.insert(place, 1);
            }
        }
    }
}

/// Lets yields be taken each k-th time only, as far as the bound permits. What is left of the
/// bound goes to the one that is taken most, each time anew.
fn raise(task: &Task<'_>, yields: &mut Yields, assumed: &BTreeSet<Place>) {
    let limit = task.most_ns(yields).max(task.limits.bound_ns) + SAME_NS;
    let mut effort = EFFORT;
    let mut holds = |place: Place, every: u32, yields: &mut Yields| {
        let before = yields.insert(place, every);
        let graph = task.graph(yields);
        let counters = yields.values().filter(|every| **every > 1).count();
        effort = effort.saturating_sub((counters + 1) * graph.nodes.len());
        let holds = every <= MOST && effort > 0 && task.solve(&graph).most_ns <= limit;
        if !holds {
            yields.extend(before.map(|before| (place, before)));
        }
        holds
    };
    // Each with the smallest number that was found to be too many.
    let mut open: Vec<(Place, Option<u32>)> = by_count(task, yields)
        .into_iter()
        .filter(|place| !assumed.contains(place))
        .map(|place| (place, None))
        .collect();
    let taken = |place: Place, yields: &Yields| task.count(place) / f64::from(yields[&place]);
    while let Some(at) = (0..open.len()).reduce(|a, b| {
        if taken(open[b].0, yields) > taken(open[a].0, yields) {
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
        } else if !holds(place, next, yields) {
            open[at].1 = Some(next);
        }
    }
}

fn by_count(task: &Task<'_>, yields: &Yields) -> Vec<Place> {
    let mut places: Vec<Place> = yields.keys().copied().collect();
    places.sort_by(|&a, &b| (task.count(b).total_cmp(&task.count(a))).then_with(|| a.cmp(&b)));
    places
}
