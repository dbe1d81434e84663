//! The longest time since the last yield, over all paths.
//!
//! Times at the nodes of an acyclic graph are maxima over the predecessors. A loop must contain a counter (a
//! plain yield cuts its loop already). Let L be the longest path from a counter of k around the loop to
//! itself, and A the latest time at which control arrives there from outside the loop. The counter lets
//! control pass at most k − 1 times in a row, so that behind it the last yield is at most max(A + (k − 2)·L,
//! (k − 1)·L) ago, and L more when it yields. The loop without that counter is acyclic, or contains loops
//! with counters of their own. Those counters keep counting from one iteration of the outer loop to the next,
//! so all their iterations together add to a path only once: L passes through each inner loop once, and the
//! time that its further iterations may take is added at the end.

use super::components::components;
use super::graph::{Effect, Graph, Solved, Source, Start, Summary};

/// Time of a node to which no path leads.
const NONE: f64 = f64::NEG_INFINITY;

/// Maximum number of functions in a group for each to be summarised by itself.
const SEPARATE: usize = 16;

/// Times at every node, in nanoseconds; [`f64::NEG_INFINITY`] where no path leads.
#[derive(Clone, Debug)]
struct Times {
    /// Before the node's yield or counter.
    arrival: Vec<f64>,
    /// Behind the node's yield or counter.
    pass: Vec<f64>,
}

/// Which paths are followed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Paths {
    /// Paths from the given sources, up to the first yield.
    Given,
    /// Paths from yields, and from points where the time since the last yield is unknown and assumed to be
    /// `stale_ns`.
    FromYields { stale_ns: f64 },
}

/// The longest times in `graph`. `ago` holds the assumed time since the last yield where unknown code
/// returns, and its maximum where a function is called.
pub(super) fn solve(graph: &Graph, bound_ns: f64, ago: (f64, f64)) -> Solved {
    let (stale_ns, entry_ns) = ago;
    let mut solver = Solver::new(graph);
    let from_yields = Paths::FromYields { stale_ns };
    let emitted = solver.run(&[], from_yields);
    let mut pass = emitted.pass.clone();
    let mut most = vec![NONE; graph.nodes.len()];
    for &node in &graph.reached {
        most[node] = solver.most(&emitted, node);
    }
    let mut summaries = Vec::new();
    // The functions of a large group share one summary: starting from the entries of all functions can only
    // make the times longer.
    let apart = if graph.entries.len() > SEPARATE {
        graph.entries.len()
    } else {
        1
    };
    for entries in graph.entries.chunks(apart) {
        let sources: Vec<(usize, f64)> = entries.iter().map(|entry| (entry.1, 0.0)).collect();
        let entered = solver.run(&sources, Paths::Given);
        for &node in &graph.reached {
            pass[node] = pass[node].max(entered.pass[node] + entry_ns);
            most[node] = most[node].max(solver.most(&entered, node) + entry_ns);
        }
        let head = finite(solver.first_yield(&entered));
        summaries.extend(entries.iter().map(|&(function, _)| Summary {
            head,
            through: finite(solver.returns(&entered, function, Paths::Given)),
            tail: finite(solver.returns(&emitted, function, from_yields)),
            through_share: 1.0,
        }));
    }
    graph.solved(pass, &most, bound_ns, summaries)
}

/// Time of `iterations` iterations; 0 for none, even if an iteration is unbounded, and 0 if no path leads
/// around.
fn iterations_ns(iterations: u32, around_ns: f64) -> f64 {
    if iterations > 0 && around_ns > NONE {
        f64::from(iterations) * around_ns
    } else {
        0.0
    }
}

fn finite(ns: f64) -> Option<f64> {
    (ns > NONE).then_some(ns)
}

/// Times of a counter's loop.
struct Around {
    /// The longest path around.
    around_ns: f64,
    /// The other nodes of the loop with their arrival and pass times, if the counter is passed at time 0.
    behind: Vec<(usize, f64, f64)>,
}

struct Solver<'a> {
    graph: &'a Graph,
    around: Vec<Option<Around>>,
    /// Whether the nodes being solved lie in a loop whose counter is left out.
    inside: bool,
    /// Buffers in which no path leads anywhere.
    spare: Vec<Times>,
}

impl<'a> Solver<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            around: graph.nodes.iter().map(|_| None).collect(),
            inside: false,
            spare: Vec::new(),
        }
    }

    fn run(&mut self, sources: &[(usize, f64)], paths: Paths) -> Times {
        let mut times = self.empty();
        for &(node, ns) in sources {
            times.arrival[node] = ns;
        }
        if let Paths::FromYields { stale_ns } = paths {
            for &node in &self.graph.reached {
                if self.graph.nodes[node].source == Source::Unknown {
                    times.arrival[node] = stale_ns;
                }
                // Set beforehand for all nodes, since the order of nodes ignores edges behind a call that
                // certainly yields.
                let ns = self.emitted(node, paths);
                for &(to, _) in &self.graph.nodes[node].edges {
                    times.arrival[to] = times.arrival[to].max(ns);
                }
            }
        }
        let nodes = self.graph.reached.clone();
        self.solve(&nodes, &mut times, paths);
        times
    }

    fn empty(&self) -> Times {
        let size = self.graph.nodes.len();
        Times {
            arrival: vec![NONE; size],
            pass: vec![NONE; size],
        }
    }

    fn solve(&mut self, nodes: &[usize], times: &mut Times, paths: Paths) {
        let graph = self.graph;
        for component in components(nodes, |node| graph.carries(node)) {
            let alone = component.len() == 1
                && graph.carries(component[0]).all(|next| next != component[0]);
            if alone {
                let node = component[0];
                times.pass[node] = match (graph.nodes[node].start, paths) {
                    (Start::Yield, Paths::Given) => NONE,
                    (Start::Yield, Paths::FromYields { .. }) => 0.0,
                    (Start::Plain | Start::Counter(_), _) => times.arrival[node],
                };
                self.propagate(node, times, paths, &[]);
            } else {
                self.solve_loop(component, times, paths);
            }
        }
    }

    /// Solves a loop: cuts it at one of its counters, and solves the rest.
    fn solve_loop(&mut self, mut component: Vec<usize>, times: &mut Times, paths: Paths) {
        component.sort_unstable();
        let Some((at, every)) = self.counter(&component) else {
            self.mark_unbounded(&component, times, paths);
            return;
        };
        let others: Vec<usize> = component
            .iter()
            .copied()
            .filter(|&node| node != at)
            .collect();
        let outermost = !std::mem::replace(&mut self.inside, true);
        if self.around[at].is_none() {
            let mut behind = self.spare.pop().unwrap_or_else(|| self.empty());
            behind.pass[at] = 0.0;
            self.propagate(at, &mut behind, Paths::Given, &[]);
            self.solve(&others, &mut behind, Paths::Given);
            self.around[at] = Some(Around {
                around_ns: behind.arrival[at],
                behind: others
                    .iter()
                    .map(|&node| (node, behind.arrival[node], behind.pass[node]))
                    .collect(),
            });
            for &node in &component {
                let edges = self.graph.nodes[node].edges.iter().map(|edge| edge.0);
                for touched in edges.chain([node]) {
                    behind.arrival[touched] = NONE;
                    behind.pass[touched] = NONE;
                }
            }
            self.spare.push(behind);
        }
        self.solve(&others, times, paths);
        self.inside = !outermost;
        let Some(around) = &self.around[at] else {
            return;
        };
        let from_yields = matches!(paths, Paths::FromYields { .. });
        let mut pass = times.arrival[at];
        if outermost {
            pass += iterations_ns(every - 2, around.around_ns);
        }
        if from_yields {
            let iterations = if outermost { every - 1 } else { 0 };
            pass = pass.max(iterations_ns(iterations, around.around_ns));
        }
        times.pass[at] = pass;
        if pass > NONE {
            for &(node, arrival, passed) in &around.behind {
                times.pass[node] = times.pass[node].max(pass + passed);
                times.arrival[node] = times.arrival[node].max(pass + arrival);
            }
        }
        if outermost {
            let less = if from_yields { 1 } else { 2 };
            let inner = others.iter().filter_map(|&node| {
                let Start::Counter(every) = self.graph.nodes[node].start else {
                    return None;
                };
                let around = self.around[node].as_ref()?;
                Some(iterations_ns(every - less, around.around_ns))
            });
            let more_ns: f64 = inner.sum();
            for &node in &component {
                times.arrival[node] += more_ns;
                times.pass[node] += more_ns;
            }
        }
        for &node in &component {
            self.propagate(node, times, paths, &component);
        }
    }

    /// The counter at which a loop is cut first, with its k. Any choice gives a valid bound; the counter that
    /// is passed least cuts outer loops first, which gives a tight one.
    fn counter(&self, component: &[usize]) -> Option<(usize, u32)> {
        let counters = component
            .iter()
            .filter_map(|&node| match self.graph.nodes[node].start {
                Start::Counter(every) => Some((node, every)),
                Start::Plain | Start::Yield => None,
            });
        counters.min_by(|a, b| {
            let count = |node: usize| self.graph.nodes[node].count;
            count(a.0).total_cmp(&count(b.0)).then(a.0.cmp(&b.0))
        })
    }

    /// Handles a loop without a yield: the time in it is unbounded.
    fn mark_unbounded(&self, component: &[usize], times: &mut Times, paths: Paths) {
        if component.iter().any(|&node| times.arrival[node] > NONE) {
            for &node in component {
                times.arrival[node] = f64::INFINITY;
                times.pass[node] = f64::INFINITY;
            }
            for &node in component {
                self.propagate(node, times, paths, component);
            }
        }
    }

    /// Carries the time behind `node` to its successors, except those in `inside`, which is sorted.
    fn propagate(&self, node: usize, times: &mut Times, paths: Paths, inside: &[usize]) {
        let ns = self.exit_time(node, times, paths);
        if ns > NONE {
            for &(to, _) in &self.graph.nodes[node].edges {
                if inside.binary_search(&to).is_err() {
                    times.arrival[to] = times.arrival[to].max(ns);
                }
            }
        }
    }

    /// The time when control leaves `node`, including its call.
    fn exit_time(&self, node: usize, times: &Times, paths: Paths) -> f64 {
        let ends = times.pass[node] + self.graph.nodes[node].ns;
        let passes = match self.graph.nodes[node].effect {
            Effect::None => ends,
            Effect::Called(summary) => summary.through.map_or(NONE, |through| ends + through),
            Effect::Unknown => NONE,
        };
        passes.max(self.emitted(node, paths))
    }

    /// The time since a yield inside the callee of `node`, when the call has returned.
    fn emitted(&self, node: usize, paths: Paths) -> f64 {
        match (self.graph.nodes[node].effect, paths) {
            (Effect::Called(summary), Paths::FromYields { .. }) => summary.tail.unwrap_or(NONE),
            (Effect::Unknown, Paths::FromYields { stale_ns }) => stale_ns,
            _ => NONE,
        }
    }

    /// The longest time from the start of a path to its first yield.
    fn first_yield(&self, times: &Times) -> f64 {
        let reached = self.graph.reached.iter();
        reached
            .map(|&node| self.yields(times, node))
            .fold(NONE, f64::max)
    }

    /// The longest time at which a yield happens at the start of `node` or in its callee.
    fn yields(&self, times: &Times, node: usize) -> f64 {
        let current = &self.graph.nodes[node];
        let at_start = match current.start {
            Start::Plain => NONE,
            Start::Yield => times.arrival[node],
            Start::Counter(_) => match &self.around[node] {
                Some(around) if around.around_ns > NONE => times.pass[node] + around.around_ns,
                _ => times.arrival[node],
            },
        };
        let in_callee = match current.effect {
            Effect::Called(Summary {
                head: Some(head), ..
            }) => times.pass[node] + current.ns + head,
            _ => NONE,
        };
        at_start.max(in_callee)
    }

    /// The longest time at a yield of `node`, at its end, or behind its call.
    fn most(&self, times: &Times, node: usize) -> f64 {
        let current = &self.graph.nodes[node];
        let through = match current.effect {
            Effect::Called(summary) => summary.through.unwrap_or(0.0),
            _ => 0.0,
        };
        let ends = times.pass[node] + current.ns + through;
        ends.max(self.yields(times, node))
    }

    /// The longest time at which `function` returns.
    fn returns(&self, times: &Times, function: usize, paths: Paths) -> f64 {
        let nodes = self.graph.returns(function);
        nodes
            .map(|node| self.exit_time(node, times, paths))
            .fold(NONE, f64::max)
    }
}
