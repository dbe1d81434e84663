//! The control-flow graph of a function: its blocks, their edges in both directions with those to landing
//! pads, and the roots, at which control may enter from outside.

use crate::code::{BlockId, Function};

/// A function's blocks and the edges between them.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    forward: Edges,
    backward: Edges,
    roots: Vec<usize>,
    is_root: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Edges {
    /// Index of each node's first target; one entry more than there are nodes.
    first: Vec<u32>,
    targets: Vec<u32>,
}

impl Edges {
    fn new(nodes: usize, pairs: impl Iterator<Item = (usize, usize)> + Clone) -> Self {
        let mut first = vec![0_u32; nodes + 1];
        for (from, _) in pairs.clone() {
            first[from + 1] += 1;
        }
        for node in 0..nodes {
            first[node + 1] += first[node];
        }
        let mut next = first.clone();
        let mut targets = vec![0; first[nodes] as usize];
        for (from, to) in pairs {
            let place = &mut next[from];
            targets[*place as usize] = u32::try_from(to).expect("blocks are numbered by u32");
            *place += 1;
        }
        Self { first, targets }
    }

    fn of(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        let range = self.first[node] as usize..self.first[node + 1] as usize;
        self.targets[range].iter().map(|&target| target as usize)
    }
}

impl Graph {
    pub(crate) fn of(function: &Function) -> Self {
        let blocks = &function.blocks;
        let start = function.bounds.range.start;
        let roots = blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| {
                let begins = function
                    .block_instructions(block)
                    .first()
                    .is_some_and(|first| first.ip() == start);
                block.entered_from_outside || begins
            })
            .map(|(index, _)| index)
            .collect();
        let pairs = blocks.iter().enumerate().flat_map(|(from, block)| {
            block
                .successors
                .iter()
                .chain(&block.landing_pad)
                .map(move |to| (from, to.index()))
        });
        Self::new(blocks.len(), pairs, roots)
    }

    /// A graph of `nodes` nodes with the given edges and roots.
    pub(super) fn new(
        nodes: usize,
        pairs: impl Iterator<Item = (usize, usize)> + Clone,
        roots: Vec<usize>,
    ) -> Self {
        let mut is_root = vec![false; nodes];
        for &root in &roots {
            is_root[root] = true;
        }
        Self {
            forward: Edges::new(nodes, pairs.clone()),
            backward: Edges::new(nodes, pairs.map(|(from, to)| (to, from))),
            roots,
            is_root,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.forward.first.len() - 1
    }

    /// True if control may enter `node` from outside the function.
    pub(super) fn is_root(&self, node: usize) -> bool {
        self.is_root[node]
    }

    pub(super) fn successors(
        &self,
        node: usize,
    ) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        self.forward.of(node)
    }

    pub(crate) fn predecessors(
        &self,
        node: usize,
    ) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        self.backward.of(node)
    }

    /// The nodes reachable from the roots in postorder: each node after its successors, except along back
    /// edges.
    pub(super) fn postorder(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.len());
        let mut visited = vec![Visited::No; self.len()];
        let mut path = Vec::new();
        for &root in &self.roots {
            if visited[root] == Visited::Yes {
                continue;
            }
            visited[root] = Visited::Yes;
            path.push((root, self.successors(root)));
            while let Some((node, rest)) = path.last_mut() {
                match rest.next() {
                    Some(next) if visited[next] == Visited::No => {
                        visited[next] = Visited::Yes;
                        path.push((next, self.successors(next)));
                    }
                    Some(_) => {}
                    None => {
                        order.push(*node);
                        path.pop();
                    }
                }
            }
        }
        order
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visited {
    No,
    Yes,
}

/// The id of the block with this number.
pub(super) fn block(number: usize) -> BlockId {
    BlockId(u32::try_from(number).expect("blocks are numbered by u32"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Small graphs with all kinds of edges, the same in every run.
    pub(in crate::flow) fn samples() -> impl Iterator<Item = Graph> {
        (1..3000_u64).map(|seed| {
            let mut state = seed;
            let mut below = move |bound: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(seed | 1);
                (state >> 33) as usize % bound
            };
            let nodes = 1 + below(12);
            let edges: Vec<(usize, usize)> = (0..below(3 * nodes))
                .map(|_| (below(nodes), below(nodes)))
                .collect();
            let mut roots = vec![0];
            if below(4) == 0 {
                roots.push(below(nodes));
            }
            roots.dedup();
            Graph::new(nodes, edges.iter().copied(), roots)
        })
    }

    /// For each node, true if it can be reached from the roots without passing through `without`.
    pub(in crate::flow) fn reachable(graph: &Graph, without: Option<usize>) -> Vec<bool> {
        let mut reached = vec![false; graph.len()];
        let mut pending: Vec<usize> = graph.roots.clone();
        while let Some(node) = pending.pop() {
            if Some(node) != without && !std::mem::replace(&mut reached[node], true) {
                pending.extend(graph.successors(node));
            }
        }
        reached
    }

    #[test]
    fn postorder_holds_what_can_be_reached_once() {
        for graph in samples() {
            let mut order = graph.postorder();
            order.sort_unstable();
            let reached = reachable(&graph, None);
            let expected: Vec<usize> = (0..graph.len()).filter(|&node| reached[node]).collect();
            assert_eq!(order, expected);
        }
    }
}
