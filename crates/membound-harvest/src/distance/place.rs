//! Places yields in a group of functions.

use std::collections::BTreeSet;

use super::components::components;
use super::graph::{Effect, Graph, Source, Start, Summary};
use super::improve::{move_to_waits, prune, raise};
use super::task::{SAME_NS, Task, loops};
use super::{Gap, Rule, Unbounded, YieldPosition, Yields, nest};

/// Maximum number of a loop's nodes that are tried as the place of its yield.
const TRIED: usize = 64;

/// Maximum number of blocks of mutually recursive functions that are solved together.
const LARGE: usize = 600;

/// Places yields in a group; returns them and the gaps that remain.
pub(super) fn place(task: &Task<'_>) -> (Yields, Vec<Gap>) {
    let blocks = |function: &usize| task.program.functions[*function].blocks.len();
    let large = task.group.len() > 1 && task.group.iter().map(blocks).sum::<usize>() > LARGE;
    let (yields, mut gaps) = if large {
        let (yields, mut gaps) = place_apart(task);
        // A function that returns later than its summary assumes makes callers exceed the bound, which their
        // own solutions do not show.
        gaps.extend(exceeding(task, &yields));
        (yields, gaps)
    } else {
        place_together(task, Yields::new())
    };
    gaps.sort_unstable();
    gaps.dedup();
    (yields, gaps)
}

/// Places yields in a large group, in each function by itself: with a yield at its entry and behind each call
/// of another one, so that the functions need not know each other's distances.
pub(super) fn place_apart(task: &Task<'_>) -> (Yields, Vec<Gap>) {
    let mut summaries = task.summaries.to_vec();
    let mut entered = Yields::new();
    for &function in task.group {
        let steps = &task.program.functions[function].blocks[0].steps;
        let first = steps.iter().position(|step| step.yields || step.patchable);
        if let Some(step) = first
            && !steps[step].yields
        {
            let place = YieldPosition {
                function,
                block: 0,
                step,
            };
            entered.insert(place, 1);
        }
        let before = &steps[..first.unwrap_or(steps.len())];
        summaries[function] = Some(Summary {
            head: Some(before.iter().map(|step| step.ns).sum()),
            through: None,
            tail: Some(task.stale_ns),
            through_share: 0.0,
        });
    }
    let mut yields = Yields::new();
    let mut gaps = Vec::new();
    for &function in task.group {
        let alone = Task {
            group: &[function],
            summaries: &summaries,
            ..*task
        };
        let own_entry = entered
            .iter()
            .filter(|(place, _)| place.function == function);
        let fixed_yields = own_entry.map(|(place, every)| (*place, *every)).collect();
        let (placed, of_function) = place_together(&alone, fixed_yields);
        yields.extend(placed);
        gaps.extend(of_function);
    }
    (yields, gaps)
}

/// Places yields in addition to `fixed_yields`, which stay.
fn place_together(task: &Task<'_>, fixed_yields: Yields) -> (Yields, Vec<Gap>) {
    let mut gaps = Vec::new();
    // A loop in which no yield can stand is noted as a gap; then a yield is assumed in it, so that the rest
    // can be solved.
    let mut fixed: BTreeSet<YieldPosition> = fixed_yields.keys().copied().collect();
    let mut assumed = BTreeSet::new();
    let mut yields = fixed_yields;
    match task.limits.rule {
        Rule::Max => {
            cut_loops(task, &mut yields, &mut assumed, &mut gaps);
            let loops: BTreeSet<YieldPosition> = yields.keys().copied().collect();
            let found = loop {
                let found = Walk::of(task, &yields);
                if found.places.is_empty() {
                    break found;
                }
                yields.extend(found.places.iter().map(|place| (*place, 1)));
            };
            gaps.extend(found.gaps);
            prune(task, &mut yields, &loops);
        }
        Rule::Expected => {
            while let Some(place) = exceeded(task, &yields) {
                yields.insert(place, 1);
            }
            gaps.extend(exceeding(task, &yields));
            prune(task, &mut yields, &fixed);
        }
    }
    fixed.extend(&assumed);
    raise(task, &mut yields, &fixed);
    if task.limits.rule == Rule::Max {
        nest::relieve(task, &mut yields, &fixed);
    }
    move_to_waits(task, &mut yields, &fixed);
    yields.retain(|place, _| !assumed.contains(place));
    (yields, gaps)
}

/// Puts a yield into every loop that has none.
fn cut_loops(
    task: &Task<'_>,
    yields: &mut Yields,
    assumed: &mut BTreeSet<YieldPosition>,
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

/// The node of a loop at which a yield costs the fewest executions, including those of the inner loops that
/// remain to be cut.
fn cheapest(
    graph: &Graph,
    component: &[usize],
    free: &impl Fn(usize) -> Option<YieldPosition>,
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
        let others: Vec<usize> = component.iter().copied().filter(|&it| it != node).collect();
        let inner_loops = loops(graph, &others);
        let least: f64 = inner_loops
            .iter()
            .map(|component| {
                let counts = component.iter().map(|&node| count(node));
                counts.fold(f64::INFINITY, f64::min)
            })
            .sum();
        (count(node) + least, inner_loops.len())
    };
    candidates
        .into_iter()
        .map(|node| (cost(node), node))
        .min_by(|(a, at), (b, other)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(at.cmp(other)))
        .map(|(_, node)| node)
}

/// One pass along the longest paths of a graph whose loops are all cut; collects yields that mend violations
/// of the bound.
struct Walk<'a> {
    task: &'a Task<'a>,
    graph: Graph,
    yields: &'a Yields,
    /// For each node, the time since the last yield at its start and at its end, and its predecessor on the
    /// longest path.
    pass: Vec<f64>,
    ends: Vec<f64>,
    from: Vec<Option<usize>>,
    /// For each node, whether a yield was placed before it on its longest path: its times are then outdated
    /// until the next pass.
    stale: Vec<bool>,
    places: BTreeSet<YieldPosition>,
    gaps: Vec<Gap>,
}

impl<'a> Walk<'a> {
    fn of(task: &'a Task<'a>, yields: &'a Yields) -> Self {
        let graph = task.graph(yields);
        let size = graph.nodes.len();
        let order = components(&graph.reached, |node| graph.carries(node)).concat();
        let mut walk = Self {
            task,
            graph,
            yields,
            pass: vec![f64::NEG_INFINITY; size],
            ends: vec![f64::NEG_INFINITY; size],
            from: vec![None; size],
            stale: vec![false; size],
            places: BTreeSet::new(),
            gaps: Vec::new(),
        };
        walk.begin();
        for node in order {
            walk.visit(node);
        }
        walk
    }

    /// Sets the times that do not depend on predecessors.
    fn begin(&mut self) {
        let stale_ns = self.task.stale_ns;
        for &node in &self.graph.reached {
            let current = &self.graph.nodes[node];
            let source = match current.source {
                Source::Nowhere => None,
                Source::Calls => Some(self.task.entry_ns),
                Source::Unknown => Some(stale_ns),
            };
            let since = match current.effect {
                Effect::None => None,
                Effect::Unknown => Some(stale_ns),
                Effect::Called(summary) => summary.tail,
            };
            let edges = current.edges.iter().map(|edge| (edge.0, since));
            for (to, ns) in edges.chain([(node, source)]) {
                if let Some(ns) = ns {
                    self.pass[to] = self.pass[to].max(ns);
                }
            }
        }
    }

    fn visit(&mut self, node: usize) {
        if self.graph.nodes[node].start != Start::Plain {
            self.pass[node] = 0.0;
            self.from[node] = None;
        }
        let before = self.from[node];
        self.stale[node] = before.is_some_and(|before| self.stale[before]);
        if self.stale[node] {
            self.ends[node] = self.pass[node] + self.graph.nodes[node].ns;
        } else {
            self.ends[node] = self.check(node);
        }
        let current = &self.graph.nodes[node];
        let exit_ns = match current.effect {
            Effect::None => self.ends[node],
            Effect::Called(Summary {
                through: Some(through),
                ..
            }) => self.ends[node] + through,
            Effect::Called(_) | Effect::Unknown => return,
        };
        for &(to, _) in &current.edges {
            if self.graph.nodes[to].start == Start::Plain && exit_ns > self.pass[to] {
                self.pass[to] = exit_ns;
                self.from[to] = Some(node);
            }
        }
    }

    /// Checks the instructions of a node against the bound; returns the time since the last yield at its end.
    fn check(&mut self, node: usize) -> f64 {
        let most_ns = self.task.limits.bound_ns + SAME_NS;
        let (first, end) = {
            let current = &self.graph.nodes[node];
            (current.place, current.end)
        };
        let mut at_ns = self.pass[node];
        let mut lost = at_ns > most_ns;
        for step in first.step..end {
            let place = YieldPosition { step, ..first };
            let Some(&instruction) = self.task.step(place) else {
                break;
            };
            if lost && at_ns > SAME_NS && self.is_free(place) {
                // The bound is exceeded already: yield as soon as possible.
                self.places.insert(place);
                at_ns = 0.0;
                lost = false;
            }
            let mut behind_ns = at_ns + instruction.ns;
            if behind_ns > most_ns && !lost {
                match self.mend(node, step, behind_ns, behind_ns) {
                    Mended::Here(since_ns) => behind_ns = since_ns,
                    Mended::Before => return behind_ns,
                    Mended::No => {
                        lost = true;
                        let why = if instruction.ns > most_ns {
                            Unbounded::Instruction
                        } else {
                            Unbounded::Stretch
                        };
                        self.gaps.push(Gap { why, place });
                    }
                }
            }
            at_ns = behind_ns;
        }
        let current = &self.graph.nodes[node];
        let behind = match current.effect {
            Effect::Called(summary) => {
                let through = summary.through.unwrap_or(0.0);
                Some(summary.head.unwrap_or(0.0).max(through))
            }
            Effect::None if current.returns => Some(self.task.leave_ns),
            Effect::None | Effect::Unknown => None,
        };
        if let Some(behind) = behind {
            let until_ns = at_ns + behind;
            if until_ns > most_ns && !lost && end > first.step {
                match self.mend(node, end - 1, at_ns, until_ns) {
                    Mended::Here(since_ns) => at_ns = since_ns - behind,
                    Mended::Before => {}
                    Mended::No => {
                        self.gaps.push(Gap {
                            why: Unbounded::Stretch,
                            place: YieldPosition {
                                step: end - 1,
                                ..first
                            },
                        });
                        if let Some(since_ns) = self.come_near(node, at_ns) {
                            at_ns = since_ns;
                        }
                    }
                }
            }
        }
        at_ns
    }

    /// Places a yield as near to the end of a node as possible, where `at_ns` have passed since the last one.
    /// The code behind it still takes too long, but callers bear less of the excess.
    fn come_near(&mut self, node: usize, at_ns: f64) -> Option<f64> {
        let current = &self.graph.nodes[node];
        let mut since_ns = 0.0;
        for step in (current.place.step..current.end).rev() {
            let place = YieldPosition {
                step,
                ..current.place
            };
            since_ns += self.task.step(place)?.ns;
            if at_ns - since_ns <= SAME_NS {
                return None;
            }
            if self.is_free(place) {
                self.places.insert(place);
                return Some(since_ns);
            }
        }
        None
    }

    fn is_free(&self, place: YieldPosition) -> bool {
        !self.places.contains(&place) && self.task.is_free(place, self.yields)
    }

    /// Places a yield on the longest path to the end of a step of `node`, where `behind_ns` have passed. It
    /// must bring the later time `until_ns` under the bound; of such places the least executed is chosen, of
    /// equal ones the last.
    fn mend(&mut self, node: usize, last: usize, behind_ns: f64, until_ns: f64) -> Mended {
        let most_ns = self.task.limits.bound_ns + SAME_NS;
        let mut best: Option<(f64, YieldPosition, usize, f64)> = None;
        let (mut at, mut end, mut at_ns) = (node, last + 1, behind_ns);
        'path: loop {
            let current = &self.graph.nodes[at];
            for step in (current.place.step..end).rev() {
                let place = YieldPosition {
                    step,
                    ..current.place
                };
                at_ns -= self.task.step(place).map_or(0.0, |step| step.ns);
                // The path begins here; a yield at a yield would change nothing.
                if until_ns - at_ns > most_ns || at_ns <= SAME_NS {
                    break 'path;
                }
                if at_ns <= most_ns && self.is_free(place) {
                    let count = self.task.count(place);
                    if best.is_none_or(|(least, ..)| count < least) {
                        best = Some((count, place, at, at_ns));
                    }
                }
            }
            let Some(before) = self.from[at] else { break };
            at = before;
            end = self.graph.nodes[at].end;
            at_ns = self.ends[at];
        }
        let Some((_, place, at, at_ns)) = best else {
            return Mended::No;
        };
        self.places.insert(place);
        if at == node {
            Mended::Here(until_ns - at_ns)
        } else {
            self.stale[node] = true;
            Mended::Before
        }
    }
}

/// How a violation was mended.
enum Mended {
    /// By a yield in the same node; holds the time since that yield.
    Here(f64),
    /// By a yield in an earlier node.
    Before,
    /// Not at all: there is no place for a yield.
    No,
}

/// The place for a yield at the first node where the average time exceeds the bound.
fn exceeded(task: &Task<'_>, yields: &Yields) -> Option<YieldPosition> {
    let graph = task.graph(yields);
    let solved = task.solve(&graph);
    let most_ns = task.limits.bound_ns + SAME_NS;
    if solved.most_ns <= most_ns {
        return None;
    }
    let order = components(&graph.reached, |node| {
        graph.nodes[node].edges.iter().map(|edge| edge.0)
    })
    .concat();
    for node in order {
        let current = &graph.nodes[node];
        let head = match current.effect {
            Effect::Called(summary) => {
                let through = summary.through.unwrap_or(0.0);
                summary.head.unwrap_or(0.0).max(through)
            }
            Effect::None | Effect::Unknown => 0.0,
        };
        if solved.pass[node] + current.ns + head <= most_ns {
            continue;
        }
        let mut at_ns = solved.pass[node];
        let mut best = None;
        for step in current.place.step..current.end {
            let place = YieldPosition {
                step,
                ..current.place
            };
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

/// The gaps where the time exceeds the bound with these yields.
fn exceeding(task: &Task<'_>, yields: &Yields) -> Vec<Gap> {
    let graph = task.graph(yields);
    let solved = task.solve(&graph);
    let nodes = graph.reached.iter().filter(|&&node| {
        let current = &graph.nodes[node];
        current.end > current.place.step
            && solved.pass[node] + current.ns > task.limits.bound_ns + SAME_NS
    });
    nodes
        .map(|&node| Gap {
            why: Unbounded::Stretch,
            place: graph.nodes[node].place,
        })
        .collect()
}
