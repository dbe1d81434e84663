//! The average time since the last yield, weighted by how often each edge is taken: document 003's rule.
//!
//! The time at a node is the average over its incoming edges, each weighted by how often it was taken; 90 %
//! from 10 ns and 10 % from 20 ns are 11 ns. A counter of k yields at each k-th execution. With loops this is
//! a system of linear equations, which is iterated upwards from 0; times are capped at a few times the bound.

use super::components::components;
use super::graph::{Effect, Graph, Solved, Source, Start, Summary};

/// Cap of times, as a multiple of the bound: beyond the bound, only the fact that it is exceeded matters.
const FAR: f64 = 4.0;

/// Change of a time in a round, as a share of the bound, below which it has converged.
const SETTLED: f64 = 1e-7;

/// Maximum number of rounds.
const ROUNDS: usize = 20_000;

/// Smaller shares count as 0.
const NO_SHARE: f64 = 1e-9;

/// State of control at a point, averaged over the edges that lead to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    /// Average time since the last yield or since the entry of the group, in nanoseconds.
    all_ns: f64,
    /// Share of executions without a yield since the entry.
    free: f64,
    /// That share times its average time since the entry, in nanoseconds.
    free_ns: f64,
}

impl State {
    fn add_time(mut self, ns: f64) -> Self {
        self.all_ns += ns;
        self.free_ns += self.free * ns;
        self
    }

    /// The share `keeps` does not yield; the rest is `ns` behind a yield.
    fn yields(self, keeps: f64, ns: f64) -> Self {
        Self {
            all_ns: keeps * self.all_ns + (1.0 - keeps) * ns,
            free: keeps * self.free,
            free_ns: keeps * self.free_ns,
        }
    }
}

/// The average times in `graph`. `ago` holds the assumed time since the last yield where unknown code
/// returns, and where a function is called.
pub(super) fn solve(graph: &Graph, bound_ns: f64, ago: (f64, f64)) -> Solved {
    let size = graph.nodes.len();
    let order: Vec<usize> = components(&graph.reached, |node| {
        graph.nodes[node].edges.iter().map(|edge| edge.0)
    })
    .concat();
    let arriving = arriving(graph);
    let mut states = vec![State::default(); size];
    for _ in 0..ROUNDS {
        let mut change = 0.0_f64;
        for &node in &order {
            let mut state = average(graph, &arriving[node], node, &states, ago);
            state.all_ns = state.all_ns.min(FAR * bound_ns);
            state.free_ns = state.free_ns.min(FAR * bound_ns);
            let before = std::mem::replace(&mut states[node], state);
            change = change.max((state.all_ns - before.all_ns).abs());
            change = change.max((state.free_ns - before.free_ns).abs());
            change = change.max((state.free - before.free).abs() * bound_ns);
        }
        if change <= SETTLED * bound_ns {
            break;
        }
    }
    solved(graph, &states, bound_ns, ago.0)
}

/// For each node, its predecessors, each with a weight.
fn arriving(graph: &Graph) -> Vec<Vec<(usize, f64)>> {
    let mut arriving = vec![Vec::new(); graph.nodes.len()];
    for &node in &graph.reached {
        for &(to, count) in &graph.nodes[node].edges {
            arriving[to].push((node, count));
        }
    }
    arriving
}

fn average(
    graph: &Graph,
    arriving: &[(usize, f64)],
    node: usize,
    states: &[State],
    (stale_ns, entry_ns): (f64, f64),
) -> State {
    let current = &graph.nodes[node];
    let inside: f64 = arriving.iter().map(|edge| edge.1).sum();
    let outside = match current.source {
        Source::Nowhere => 0.0,
        Source::Calls | Source::Unknown => (current.count - inside).max(0.0),
    };
    let equal = inside + outside <= 0.0;
    let mut sum = State::default();
    let mut weights = 0.0;
    let mut add = |state: State, weight: f64| {
        let weight = if equal { 1.0 } else { weight };
        sum.all_ns += weight * state.all_ns;
        sum.free += weight * state.free;
        sum.free_ns += weight * state.free_ns;
        weights += weight;
    };
    match current.source {
        Source::Nowhere => {}
        Source::Calls => add(
            State {
                all_ns: entry_ns,
                free: 1.0,
                free_ns: 0.0,
            },
            outside,
        ),
        Source::Unknown => add(
            State {
                all_ns: stale_ns,
                ..State::default()
            },
            outside,
        ),
    }
    for &(from, weight) in arriving {
        add(state_at_exit(graph, from, &states[from], stale_ns), weight);
    }
    if weights > 0.0 {
        sum.all_ns /= weights;
        sum.free /= weights;
        sum.free_ns /= weights;
    }
    sum
}

/// The state behind the yield at a node's start.
fn state_behind_start(graph: &Graph, node: usize, state: &State) -> State {
    match graph.nodes[node].start {
        Start::Plain => *state,
        Start::Yield => State::default(),
        Start::Counter(every) => state.yields(1.0 - 1.0 / f64::from(every), 0.0),
    }
}

fn state_at_exit(graph: &Graph, node: usize, state: &State, stale_ns: f64) -> State {
    let current = &graph.nodes[node];
    let ends = state_behind_start(graph, node, state).add_time(current.ns);
    match current.effect {
        Effect::None => ends,
        Effect::Unknown => ends.yields(0.0, stale_ns),
        Effect::Called(summary) => {
            let through = ends.add_time(summary.through.unwrap_or(0.0));
            let keeps = summary.through.map_or(0.0, |_| summary.through_share);
            through.yields(keeps, summary.tail.unwrap_or(0.0))
        }
    }
}

fn solved(graph: &Graph, states: &[State], bound_ns: f64, stale_ns: f64) -> Solved {
    let mut pass = vec![f64::NEG_INFINITY; graph.nodes.len()];
    let mut most = vec![0.0_f64; graph.nodes.len()];
    let mut head = (0.0, 0.0);
    for &node in &graph.reached {
        let current = &graph.nodes[node];
        let state = &states[node];
        let behind = state_behind_start(graph, node, state);
        pass[node] = behind.all_ns;
        let ends = behind.add_time(current.ns);
        most[node] = state.all_ns.max(ends.all_ns);
        let count = current.count.max(NO_SHARE);
        let mut first = |free: f64, free_ns: f64| {
            head.0 += count * free_ns;
            head.1 += count * free;
        };
        first(state.free - behind.free, state.free_ns - behind.free_ns);
        if let Effect::Called(summary) = current.effect {
            if let Some(in_callee) = summary.head {
                most[node] = most[node].max(ends.all_ns + in_callee);
                let share = summary.through.map_or(1.0, |_| 1.0 - summary.through_share);
                first(
                    share * ends.free,
                    share * (ends.free_ns + ends.free * in_callee),
                );
            }
            let through = summary.through.unwrap_or(0.0);
            most[node] = most[node].max(ends.all_ns + through);
        }
    }
    let head = (head.1 > NO_SHARE).then(|| head.0 / head.1);
    let summaries = graph
        .entries
        .iter()
        .map(|&(function, _)| {
            let mut summary = summary(graph, states, function, head, stale_ns);
            summary.tail = summary.tail.map(|ns| ns.clamp(0.0, FAR * bound_ns));
            summary
        })
        .collect();
    graph.solved(pass, &most, bound_ns, summaries)
}

fn summary(
    graph: &Graph,
    states: &[State],
    function: usize,
    head: Option<f64>,
    stale_ns: f64,
) -> Summary {
    let mut sum = State::default();
    let mut weights = 0.0;
    for node in graph.returns(function) {
        let state = state_at_exit(graph, node, &states[node], stale_ns);
        let weight = graph.nodes[node].count.max(NO_SHARE);
        sum.all_ns += weight * state.all_ns;
        sum.free += weight * state.free;
        sum.free_ns += weight * state.free_ns;
        weights += weight;
    }
    if weights <= 0.0 {
        return Summary {
            head,
            through: None,
            tail: None,
            through_share: 0.0,
        };
    }
    let free = (sum.free / weights).clamp(0.0, 1.0);
    let yielded = 1.0 - free;
    // Paths without a yield since the entry are left out: their time since the last yield depends on the
    // caller.
    let tail = (sum.all_ns - sum.free_ns) / weights / yielded.max(NO_SHARE);
    Summary {
        head,
        through: (free > NO_SHARE).then(|| sum.free_ns / weights / free),
        tail: (yielded > NO_SHARE).then_some(tail),
        through_share: free,
    }
}
