//! Dominators: the blocks that control must have passed through to reach a block.
//!
//! The method is from Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001). All blocks
//! that can be entered from outside the function are roots, so the result holds for every entry.

use super::graph::{self, Graph};
use crate::code::{BlockId, Function};

/// The dominator forest of a function.
#[derive(Clone, Debug)]
pub struct Dominators {
    /// For each block, its place in reverse postorder, counted from 1; 0 if it is unreachable.
    place: Vec<u32>,
    /// For each place, the place of the immediate dominator; 0 is the parent of the roots, outside the
    /// function.
    parent: Vec<u32>,
    /// For each place, the block.
    block: Vec<u32>,
}

impl Dominators {
    /// Computes the dominators of `function`.
    #[must_use]
    pub fn of(function: &Function) -> Self {
        Self::of_graph(&Graph::of(function))
    }

    pub(super) fn of_graph(graph: &Graph) -> Self {
        const UNKNOWN: u32 = u32::MAX;
        let order = graph.postorder();
        let mut place = vec![0_u32; graph.len()];
        let mut block = vec![0_u32];
        for (number, &node) in (1..).zip(order.iter().rev()) {
            place[node] = number;
            block.push(graph::block(node).0);
        }
        let mut parent = vec![UNKNOWN; block.len()];
        parent[0] = 0;
        loop {
            let mut changed = false;
            for number in 1..block.len() {
                let node = block[number] as usize;
                let mut found = if graph.is_root(node) { 0 } else { UNKNOWN };
                for before in graph.predecessors(node) {
                    let before = place[before];
                    if before == 0 || parent[before as usize] == UNKNOWN {
                        continue;
                    }
                    found = match found {
                        UNKNOWN => before,
                        found => meet(&parent, found, before),
                    };
                }
                if found != parent[number] {
                    parent[number] = found;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        Self {
            place,
            parent,
            block,
        }
    }

    /// The immediate dominator: the last block other than `block` on every path to `block`. `None` if there
    /// is none or `block` is unreachable.
    #[must_use]
    pub fn immediate(&self, block: BlockId) -> Option<BlockId> {
        match self.place[block.index()] {
            0 => None,
            place => match self.parent[place as usize] {
                0 => None,
                parent => Some(BlockId(self.block[parent as usize])),
            },
        }
    }

    /// True if every path to `block` leads through `first`. A block dominates itself; false if one of the
    /// blocks is unreachable.
    #[must_use]
    pub fn dominates(&self, first: BlockId, block: BlockId) -> bool {
        let first = self.place[first.index()];
        let mut at = self.place[block.index()];
        if first == 0 || at == 0 {
            return false;
        }
        while at > first {
            at = self.parent[at as usize];
        }
        at == first
    }
}

fn meet(parent: &[u32], mut one: u32, mut other: u32) -> u32 {
    while one != other {
        while one > other {
            one = parent[one as usize];
        }
        while other > one {
            other = parent[other as usize];
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::{reachable, samples};
    use super::*;

    #[test]
    fn dominance_agrees_with_reachability_without_the_node() {
        for graph in samples() {
            let dominators = Dominators::of_graph(&graph);
            let reached = reachable(&graph, None);
            for first in 0..graph.len() {
                let without = reachable(&graph, Some(first));
                for node in 0..graph.len() {
                    let expected = reached[first] && reached[node] && !without[node];
                    let dominates = dominators.dominates(graph::block(first), graph::block(node));
                    assert_eq!(dominates, expected, "{first} over {node} in {graph:?}");
                }
            }
        }
    }

    #[test]
    fn the_immediate_dominator_is_the_nearest() {
        for graph in samples() {
            let dominators = Dominators::of_graph(&graph);
            for node in (0..graph.len()).map(graph::block) {
                let mut strict: Vec<BlockId> = (0..graph.len())
                    .map(graph::block)
                    .filter(|other| *other != node && dominators.dominates(*other, node))
                    .collect();
                strict.sort_by(|one, other| {
                    dominators
                        .dominates(*one, *other)
                        .cmp(&dominators.dominates(*other, *one))
                });
                assert_eq!(dominators.immediate(node), strict.first().copied());
            }
        }
    }
}
