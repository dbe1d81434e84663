//! A group of mutually recursive functions (mostly a single one) as one graph. Its nodes are stretches of
//! instructions with at most one yield, before the first.

use std::collections::{BTreeMap, BTreeSet};

use super::{Call, Program, YieldPosition, Yields};

/// The effect of a call on its caller's times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    /// From the entry to the first yield; `None` if there is none.
    pub head: Option<f64>,
    /// From the entry to the return without a yield; `None` if it certainly yields.
    pub through: Option<f64>,
    /// From the last yield to the return; `None` if there is none.
    pub tail: Option<f64>,
    /// Share of the calls that return without a yield.
    pub through_share: f64,
}

/// What happens between a node's last instruction and its successors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Effect {
    /// Nothing: control continues directly.
    None,
    /// A call of a function with this summary.
    Called(Summary),
    /// A call of code outside the program.
    Unknown,
}

/// The yield before a node's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Plain,
    Yield,
    /// A yield at each k-th execution, k ≥ 2.
    Counter(u32),
}

/// From where control comes to a node, other than from nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Nowhere,
    /// From calls of the function from outside the group.
    Calls,
    /// From unknown code.
    Unknown,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its first instruction.
    pub place: YieldPosition,
    /// One past its last.
    pub end: usize,
    pub ns: f64,
    pub start: Start,
    pub effect: Effect,
    /// Successors, each with how often the edge is taken.
    pub edges: Vec<(usize, f64)>,
    /// Whether its function returns at its end.
    pub returns: bool,
    pub source: Source,
    pub count: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    /// Nodes that control can reach, ascending.
    pub reached: Vec<usize>,
    /// Each function of the group with the node at which it begins.
    pub entries: Vec<(usize, usize)>,
    /// For each function of the group, the functions whose returns are also its own, because it ends with
    /// tail calls of them; includes the function itself.
    returned_by: BTreeMap<usize, BTreeSet<usize>>,
}

/// A call from one function of the group to another.
struct InnerCall {
    /// The node that ends with the call.
    from: usize,
    callee: usize,
    /// The node behind the call.
    returned: usize,
    count: f64,
}

/// Times in a graph, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// For each node, the time since the last yield, behind the node's own yield.
    pub pass: Vec<f64>,
    /// The longest time between two yields, or from a yield to an end.
    pub most_ns: f64,
    /// Sum over all nodes of the time by which they exceed the bound.
    pub excess_ns: f64,
    /// `most_ns` for each function of the group: the longest time that ends in it or in a callee outside the
    /// group.
    pub most_by_function: Vec<f64>,
    /// One for each function of the group.
    pub summaries: Vec<Summary>,
}

impl Graph {
    /// Derives the results from `most`, the longest time between two yields, or from a yield to an end, for
    /// each node.
    pub(super) fn solved(
        &self,
        pass: Vec<f64>,
        most: &[f64],
        bound_ns: f64,
        summaries: Vec<Summary>,
    ) -> Solved {
        Solved {
            pass,
            most_ns: most.iter().copied().fold(0.0, f64::max),
            excess_ns: most.iter().map(|ns| (ns - bound_ns).max(0.0)).sum(),
            most_by_function: self.most_by_function(|node| most[node]),
            summaries,
        }
    }

    /// The graph of `group`, functions of `program`, with `yields` in addition to the program's own.
    /// `summaries` must hold those of all callees outside the group.
    pub(super) fn new(
        program: &Program,
        group: &[usize],
        summaries: &[Option<Summary>],
        yields: &Yields,
    ) -> Self {
        let mut graph = Self {
            nodes: Vec::new(),
            reached: Vec::new(),
            entries: Vec::new(),
            returned_by: group.iter().map(|&it| (it, BTreeSet::from([it]))).collect(),
        };
        // For each function of the group and each block, its first and last node.
        let mut blocks: Vec<Vec<(usize, usize)>> = Vec::new();
        for &function in group {
            let of_function = (0..program.functions[function].blocks.len())
                .map(|block| graph.split(program, function, block, yields))
                .collect();
            blocks.push(of_function);
        }
        let positions: BTreeMap<usize, usize> = group.iter().copied().zip(0..).collect();
        let mut calls: Vec<InnerCall> = Vec::new();
        for (position, &function) in group.iter().enumerate() {
            graph.entries.push((function, blocks[position][0].0));
            for (index, block) in program.functions[function].blocks.iter().enumerate() {
                let last = blocks[position][index].1;
                let edges: Vec<(usize, f64)> = block
                    .edges
                    .iter()
                    .map(|edge| (blocks[position][edge.to].0, edge.share * block.count))
                    .collect();
                let callee = block.call.map(|call| match call {
                    Call::Function(callee) => (positions.get(&callee).copied(), summaries[callee]),
                    Call::Unknown => (None, None),
                });
                match callee {
                    Some((Some(callee), _)) => {
                        let returned = graph.add_return(last, block.steps.len(), edges);
                        if block.returns {
                            let of_caller = graph.returned_by.entry(function).or_default();
                            of_caller.insert(group[callee]);
                        }
                        calls.push(InnerCall {
                            from: last,
                            callee: group[callee],
                            returned,
                            count: block.count,
                        });
                        graph.nodes[last].edges = vec![(blocks[callee][0].0, block.count)];
                    }
                    Some((None, summary)) => {
                        let node = &mut graph.nodes[last];
                        node.effect = summary.map_or(Effect::Unknown, Effect::Called);
                        node.edges = edges;
                        node.returns = block.returns;
                    }
                    None => {
                        graph.nodes[last].edges = edges;
                        graph.nodes[last].returns = block.returns;
                    }
                }
            }
        }
        graph.close_returns();
        let reached = graph.reach(&calls);
        calls.retain(|call| reached[call.from]);
        graph.link_returns(&calls);
        graph.reached = (0..reached.len()).filter(|&node| reached[node]).collect();
        graph
    }

    /// Adds the node behind the call at the end of node `last`; returns it.
    fn add_return(&mut self, last: usize, step: usize, edges: Vec<(usize, f64)>) -> usize {
        let mut node = self.nodes[last].clone();
        node.place.step = step;
        node.end = step;
        node.ns = 0.0;
        node.start = Start::Plain;
        node.source = Source::Nowhere;
        node.edges = edges;
        node.returns = false;
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds the nodes of a block; returns the first and the last of them.
    fn split(
        &mut self,
        program: &Program,
        function: usize,
        block: usize,
        yields: &Yields,
    ) -> (usize, usize) {
        let content = &program.functions[function].blocks[block];
        let first = self.nodes.len();
        let place = |step| YieldPosition {
            function,
            block,
            step,
        };
        let start = |step: usize| {
            let planned = yields.get(&place(step));
            match planned {
                _ if content.steps.get(step).is_some_and(|step| step.yields) => Start::Yield,
                Some(&every) if every > 1 => Start::Counter(every),
                Some(_) => Start::Yield,
                None => Start::Plain,
            }
        };
        let mut from = 0;
        loop {
            let end = (from + 1..content.steps.len())
                .find(|&step| start(step) != Start::Plain)
                .unwrap_or(content.steps.len());
            let source = match (from, block) {
                (0, 0) => Source::Calls,
                (0, _) if content.entered => Source::Unknown,
                _ => Source::Nowhere,
            };
            if from > 0 {
                let next = self.nodes.len();
                self.nodes[next - 1].edges = vec![(next, content.count)];
            }
            self.nodes.push(Node {
                place: place(from),
                end,
                ns: content.steps[from..end].iter().map(|step| step.ns).sum(),
                start: start(from),
                effect: Effect::None,
                edges: Vec::new(),
                returns: false,
                source,
                count: content.count,
            });
            if end >= content.steps.len() {
                return (first, self.nodes.len() - 1);
            }
            from = end;
        }
    }

    /// Makes `returned_by` transitive over tail calls.
    fn close_returns(&mut self) {
        loop {
            let before = self.returned_by.clone();
            for all in self.returned_by.values_mut() {
                let more: Vec<usize> = all.iter().flat_map(|it| &before[it]).copied().collect();
                all.extend(more);
            }
            if self.returned_by == before {
                return;
            }
        }
    }

    /// Nodes at whose end `function` returns.
    pub(super) fn returns(&self, function: usize) -> impl Iterator<Item = usize> + '_ {
        let by = &self.returned_by[&function];
        self.reached.iter().copied().filter(|&node| {
            let current = &self.nodes[node];
            current.returns && by.contains(&current.place.function)
        })
    }

    /// Adds edges from the returns of the group's functions to the nodes behind the calls of them.
    fn link_returns(&mut self, calls: &[InnerCall]) {
        let mut edges: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
        for call in calls {
            for &function in &self.returned_by[&call.callee] {
                let of_function = edges.entry(function).or_default();
                of_function.push((call.returned, call.count));
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.returns) {
            let returns = edges.get(&node.place.function);
            node.edges.extend(returns.into_iter().flatten());
        }
    }

    /// The maximum of `ns` over the nodes of each function of the group, at least 0.
    fn most_by_function(&self, ns: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut most: BTreeMap<usize, f64> =
            self.entries.iter().map(|entry| (entry.0, 0.0)).collect();
        for &node in &self.reached {
            if let Some(most) = most.get_mut(&self.nodes[node].place.function) {
                *most = most.max(ns(node));
            }
        }
        self.entries.iter().map(|entry| most[&entry.0]).collect()
    }

    /// Which nodes control can reach, if every call returns.
    fn reach(&self, calls: &[InnerCall]) -> Vec<bool> {
        let behind: BTreeMap<usize, usize> = calls
            .iter()
            .map(|call| (call.from, call.returned))
            .collect();
        let mut reached = vec![false; self.nodes.len()];
        let mut pending: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].source != Source::Nowhere)
            .collect();
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                pending.extend(self.nodes[node].edges.iter().map(|edge| edge.0));
                pending.extend(behind.get(&node));
            }
        }
        reached
    }

    /// Nodes whose time depends on the time before `node`: successors without a yield at their start, unless
    /// a call in between certainly yields.
    pub(super) fn carries(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let passes = match self.nodes[node].effect {
            Effect::None => true,
            Effect::Called(summary) => summary.through.is_some(),
            Effect::Unknown => false,
        };
        let edges = self.nodes[node].edges.iter();
        edges
            .map(|edge| edge.0)
            .filter(move |&to| passes && self.nodes[to].start != Start::Yield)
    }
}
