//! The loop nest of a function, including irreducible loops.
//!
//! A loop is a strongly connected component: a maximal set of blocks each of which can reach each. Its
//! **entries** are the blocks that control reaches from outside the loop. Without the entries, the components
//! that remain are the inner loops. With one entry (the header) this is the usual nest of natural loops,
//! where loops with the same header are one loop; with several entries the loop is marked as irreducible.

use super::graph::{self, Graph};
use crate::code::{BlockId, Function};

/// Index of a loop in [`Loops::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoopId(pub u32);

impl LoopId {
    /// The index as `usize`.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An edge between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The block that control leaves.
    pub from: BlockId,
    /// The block that control enters.
    pub to: BlockId,
}

/// A loop of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The innermost loop that contains this one.
    pub parent: Option<LoopId>,
    /// Number of loops that contain this one.
    pub depth: u32,
    /// All blocks of the loop with those of inner loops, sorted.
    pub blocks: Vec<BlockId>,
    /// The blocks at which control enters the loop, sorted; exactly one unless the loop is irreducible.
    pub entries: Vec<BlockId>,
    /// The edges that enter the loop from other blocks of the function.
    pub entered_by: Vec<Edge>,
    /// The edges that leave the loop.
    pub left_by: Vec<Edge>,
    /// True if control enters a block of the loop from outside the function.
    pub entered_from_outside: bool,
}

impl Loop {
    /// The only entry of the loop; `None` if it is irreducible.
    #[must_use]
    pub fn header(&self) -> Option<BlockId> {
        match self.entries[..] {
            [header] => Some(header),
            _ => None,
        }
    }

    /// True if the loop has more than one entry.
    #[must_use]
    pub fn is_irreducible(&self) -> bool {
        self.entries.len() > 1
    }

    /// True if `block` is part of the loop or of a loop inside it.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }
}

/// All loops of a function.
#[derive(Clone, Debug)]
pub struct Loops {
    all: Vec<Loop>,
    innermost: Vec<Option<LoopId>>,
}

impl Loops {
    /// Finds the loops of `function`.
    #[must_use]
    pub fn of(function: &Function) -> Self {
        Self::of_graph(&Graph::of(function))
    }

    pub(crate) fn of_graph(graph: &Graph) -> Self {
        let mut loops = Self {
            all: Vec::new(),
            innermost: vec![None; graph.len()],
        };
        let mut region = vec![Some(0); graph.len()];
        let mut pending = vec![(None, (0..graph.len()).collect::<Vec<_>>())];
        let mut regions = 1;
        let mut search = Search::of(graph);
        let mut member_of = vec![None; graph.len()];
        while let Some((parent, nodes)) = pending.pop() {
            let Some(&sample) = nodes.first() else {
                continue;
            };
            let number = region[sample];
            for blocks in search.components(&nodes, &region, number) {
                let id = loops.add(graph, parent, &blocks, &mut member_of);
                let entries = &loops.all[id.index()].entries;
                for &node in &blocks {
                    loops.innermost[node] = Some(id);
                    region[node] = Some(regions);
                }
                for entry in entries {
                    region[entry.index()] = None;
                }
                regions += 1;
                let inside = blocks
                    .into_iter()
                    .filter(|&node| region[node].is_some())
                    .collect();
                pending.push((Some(id), inside));
            }
        }
        loops
    }

    /// Adds the loop that consists of `blocks`; `member_of` has, for each block, the loop that was added
    /// last.
    fn add(
        &mut self,
        graph: &Graph,
        parent: Option<LoopId>,
        blocks: &[usize],
        member_of: &mut [Option<LoopId>],
    ) -> LoopId {
        let id = LoopId(u32::try_from(self.all.len()).expect("fewer loops than blocks"));
        let mut sorted: Vec<BlockId> = blocks.iter().map(|&node| graph::block(node)).collect();
        sorted.sort_unstable();
        for node in blocks {
            member_of[*node] = Some(id);
        }
        let inside = |node: usize| member_of[node] == Some(id);
        let mut entries = Vec::new();
        let mut entered_by = Vec::new();
        let mut left_by = Vec::new();
        let mut entered_from_outside = false;
        for to in &sorted {
            let is_root = graph.is_root(to.index());
            let mut is_entry = is_root;
            entered_from_outside |= is_root;
            for from in graph.predecessors(to.index()) {
                if !inside(from) {
                    is_entry = true;
                    entered_by.push(Edge {
                        from: graph::block(from),
                        to: *to,
                    });
                }
            }
            if is_entry {
                entries.push(*to);
            }
            for next in graph.successors(to.index()) {
                if !inside(next) {
                    left_by.push(Edge {
                        from: *to,
                        to: graph::block(next),
                    });
                }
            }
        }
        if entries.is_empty() {
            // The loop is unreachable. Remove any of its blocks, so that inner loops are found.
            entries.extend(sorted.first());
        }
        let depth = parent.map_or(0, |parent| self.all[parent.index()].depth + 1);
        self.all.push(Loop {
            parent,
            depth,
            blocks: sorted,
            entries,
            entered_by,
            left_by,
            entered_from_outside,
        });
        id
    }

    /// All loops; a loop comes after those that contain it.
    #[must_use]
    pub fn all(&self) -> &[Loop] {
        &self.all
    }

    /// The loop with this id.
    ///
    /// # Panics
    /// If the id belongs to another function and is out of range.
    #[must_use]
    pub fn get(&self, id: LoopId) -> &Loop {
        &self.all[id.index()]
    }

    /// The innermost loop that contains `block`.
    #[must_use]
    pub fn innermost(&self, block: BlockId) -> Option<LoopId> {
        self.innermost[block.index()]
    }

    /// The loops that contain `block`, from the innermost outward.
    pub fn around(&self, block: BlockId) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(self.innermost(block), |id| self.get(*id).parent)
    }
}

/// The search for strongly connected components (Tarjan's algorithm, without recursion).
struct Search<'a> {
    graph: &'a Graph,
    /// For each node, the time at which it was found and the earliest time it is known to lead back to.
    found: Vec<(u32, u32)>,
}

impl<'a> Search<'a> {
    const UNSEEN: u32 = u32::MAX;
    const DONE: u32 = u32::MAX - 1;

    fn of(graph: &'a Graph) -> Self {
        Self {
            graph,
            found: vec![(Self::UNSEEN, Self::UNSEEN); graph.len()],
        }
    }

    /// Finds the components with at least one inner edge among `nodes`, which are all nodes of region
    /// `number`. Follows edges within the region only.
    fn components(
        &mut self,
        nodes: &[usize],
        region: &[Option<u32>],
        number: Option<u32>,
    ) -> Vec<Vec<usize>> {
        let Self { graph, found } = self;
        for &node in nodes {
            found[node] = (Self::UNSEEN, Self::UNSEEN);
        }
        let mut clock = 0;
        let mut open = Vec::new();
        let mut result = Vec::new();
        let mut path = Vec::new();
        for &start in nodes {
            if found[start].0 != Self::UNSEEN {
                continue;
            }
            found[start] = (clock, clock);
            clock += 1;
            open.push(start);
            path.push((start, graph.successors(start)));
            while let Some((node, rest)) = path.last_mut() {
                let node = *node;
                if let Some(next) = rest.next() {
                    if region[next] != number {
                        continue;
                    }
                    match found[next].0 {
                        Self::UNSEEN => {
                            found[next] = (clock, clock);
                            clock += 1;
                            open.push(next);
                            path.push((next, graph.successors(next)));
                        }
                        Self::DONE => {}
                        when => found[node].1 = found[node].1.min(when),
                    }
                    continue;
                }
                path.pop();
                let (when, earliest) = found[node];
                if let Some((above, _)) = path.last() {
                    found[*above].1 = found[*above].1.min(earliest);
                }
                if when != earliest {
                    continue;
                }
                let from = open
                    .iter()
                    .rposition(|&waiting| waiting == node)
                    .expect("a node stays open until its component is closed");
                let component: Vec<usize> = open.split_off(from);
                for &member in &component {
                    found[member] = (Self::DONE, Self::DONE);
                }
                if component.len() > 1 || graph.successors(node).any(|next| next == node) {
                    result.push(component);
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dominators;
    use super::super::graph::tests::{reachable, samples};
    use super::*;

    fn leads_to(graph: &Graph, from: usize, to: usize, allowed: &dyn Fn(usize) -> bool) -> bool {
        let mut seen = vec![false; graph.len()];
        let mut pending: Vec<usize> = graph.successors(from).collect();
        while let Some(node) = pending.pop() {
            if !allowed(node) || std::mem::replace(&mut seen[node], true) {
                continue;
            }
            pending.extend(graph.successors(node));
        }
        seen[to]
    }

    #[test]
    fn a_loop_is_a_maximal_strongly_connected_set() {
        for graph in samples() {
            let loops = Loops::of_graph(&graph);
            for a in 0..graph.len() {
                let around: Vec<LoopId> = loops.around(graph::block(a)).collect();
                for b in 0..graph.len() {
                    let circle =
                        leads_to(&graph, a, b, &|_| true) && leads_to(&graph, b, a, &|_| true);
                    let outermost = around.last().map(|id| loops.get(*id));
                    let together = outermost.is_some_and(|found| found.contains(graph::block(b)));
                    assert_eq!(together, circle, "{a} and {b} in {graph:?}");
                }
            }
        }
    }

    #[test]
    fn inner_loops_are_those_without_the_entries_of_the_outer() {
        for graph in samples() {
            let loops = Loops::of_graph(&graph);
            for (index, inner) in loops.all().iter().enumerate() {
                let Some(parent) = inner.parent else { continue };
                let outer = loops.get(parent);
                assert!(parent.index() < index && inner.depth == outer.depth + 1);
                assert!(inner.blocks.len() < outer.blocks.len());
                let allowed = |node: usize| {
                    let block = graph::block(node);
                    outer.contains(block) && !outer.entries.contains(&block)
                };
                for a in &inner.blocks {
                    for b in &outer.blocks {
                        let circle = leads_to(&graph, a.index(), b.index(), &allowed)
                            && leads_to(&graph, b.index(), a.index(), &allowed)
                            && allowed(a.index());
                        assert_eq!(inner.contains(*b), circle, "{inner:?} in {graph:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_back_edge_makes_a_loop_and_parallel_edges_are_distinct() {
        for graph in samples() {
            let loops = Loops::of_graph(&graph);
            let dominators = Dominators::of_graph(&graph);
            let reached = reachable(&graph, None);
            for from in (0..graph.len()).filter(|&node| reached[node]) {
                for to in graph.successors(from) {
                    let (from, to) = (graph::block(from), graph::block(to));
                    if dominators.dominates(to, from) {
                        let of_header = loops
                            .around(from)
                            .any(|id| loops.get(id).header() == Some(to));
                        let in_tangle = loops
                            .around(from)
                            .any(|id| loops.get(id).is_irreducible() && loops.get(id).contains(to));
                        assert!(of_header || in_tangle, "{from:?} to {to:?} in {graph:?}");
                    }
                    for found in loops.all() {
                        let edge = Edge { from, to };
                        let enters = !found.contains(from) && found.contains(to);
                        let leaves = found.contains(from) && !found.contains(to);
                        assert_eq!(found.entered_by.contains(&edge), enters);
                        assert_eq!(found.left_by.contains(&edge), leaves);
                    }
                }
            }
            for found in loops.all() {
                let is_reached = found.blocks.iter().any(|block| reached[block.index()]);
                if let (Some(header), true) = (found.header(), is_reached) {
                    let all = |block: &BlockId| dominators.dominates(header, *block);
                    assert!(found.blocks.iter().all(all), "{found:?} in {graph:?}");
                }
            }
        }
    }
}
