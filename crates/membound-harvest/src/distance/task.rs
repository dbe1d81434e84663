//! The group of functions in which yields are placed, with its distances and loops.

use super::components::components;
use super::graph::{Graph, Node, Solved, Summary};
use super::{Limits, Program, Rule, Step, YieldPosition, Yields, expected, longest};

/// Times that differ by less are equal, in nanoseconds.
pub(super) const SAME_NS: f64 = 1e-6;

/// A group of functions in which yields are placed.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub program: &'a Program,
    pub group: &'a [usize],
    pub summaries: &'a [Option<Summary>],
    pub limits: Limits,
    /// Assumed time since the last yield where unknown code returns.
    pub stale_ns: f64,
    /// Assumed time since the last yield where a function of the group is called.
    pub entry_ns: f64,
    /// Time to allow behind the return of a call until a yield can stand.
    pub leave_ns: f64,
}

impl Task<'_> {
    pub(super) fn graph(&self, yields: &Yields) -> Graph {
        Graph::new(self.program, self.group, self.summaries, yields)
    }

    pub(super) fn solve(&self, graph: &Graph) -> Solved {
        let Limits { bound_ns, rule } = self.limits;
        let ago = (self.stale_ns, self.entry_ns);
        match rule {
            Rule::Max => longest::solve(graph, bound_ns, ago),
            Rule::Expected => expected::solve(graph, bound_ns, ago),
        }
    }

    /// The distances with `yields`, or the bound if that is larger: they must not become worse.
    pub(super) fn limit(&self, yields: &Yields) -> Limit {
        let solved = self.solve(&self.graph(yields));
        Limit {
            most_ns: solved.most_ns.max(self.limits.bound_ns) + SAME_NS,
            excess_ns: solved.excess_ns + SAME_NS,
        }
    }

    /// The step at a place.
    pub(super) fn step(&self, place: YieldPosition) -> Option<&Step> {
        let function = &self.program.functions[place.function];
        function.blocks[place.block].steps.get(place.step)
    }

    pub(super) fn count(&self, place: YieldPosition) -> f64 {
        self.program.functions[place.function].blocks[place.block].count
    }

    /// Whether a yield can be placed there and none stands there yet.
    pub(super) fn is_free(&self, place: YieldPosition, yields: &Yields) -> bool {
        self.step(place)
            .is_some_and(|step| step.patchable && !step.yields)
            && !yields.contains_key(&place)
    }

    pub(super) fn first_free(&self, node: &Node, yields: &Yields) -> Option<YieldPosition> {
        (node.place.step..node.end)
            .map(|step| YieldPosition { step, ..node.place })
            .find(|&place| self.is_free(place, yields))
    }
}

/// Limits of the longest distance and of the sum by which nodes exceed the bound.
pub(super) struct Limit {
    most_ns: f64,
    excess_ns: f64,
}

impl Limit {
    pub(super) fn permits(&self, solved: &Solved) -> bool {
        solved.most_ns <= self.most_ns && solved.excess_ns <= self.excess_ns
    }
}

/// The loops among `nodes` that have no yield.
pub(super) fn loops(graph: &Graph, nodes: &[usize]) -> Vec<Vec<usize>> {
    let mut found = components(nodes, |node| graph.carries(node));
    found.retain(|component| {
        component.len() > 1 || graph.carries(component[0]).any(|next| next == component[0])
    });
    found
}
