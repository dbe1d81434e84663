//! Call chains as trees: from the outermost function inwards, or from the innermost function to its
//! callers.

use std::collections::HashMap;

use membound_types::Detail;

use crate::export::Weight;

/// Functions at which a call chain is cut; a deeper chain is a recursion.
const DEEPEST: usize = 512;

/// Direction of a call tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the outermost function inwards.
    Inwards,
    /// From the innermost function to its callers.
    Outwards,
}

/// A function at one position in a call tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) function: String,
    /// File of the function's code.
    pub(crate) module: String,
    pub(crate) depth: usize,
    /// CPU time in seconds of all call chains through this node.
    pub(crate) time_s: f64,
    /// Stalled part of `time_s`, in seconds.
    pub(crate) stall_s: f64,
}

/// Nodes of a call tree, each before its children and the heaviest first.
pub(crate) struct Calls {
    pub(crate) nodes: Vec<Node>,
    /// CPU time of all samples, in seconds.
    pub(crate) time_s: f64,
}

#[derive(Default)]
struct Branch {
    time_s: f64,
    stall_s: f64,
    /// Child by function and module.
    below: HashMap<(u32, u32), usize>,
}

impl Calls {
    /// Builds the tree of all samples of `detail`, without nodes below the share `least` of the weight.
    pub(crate) fn new(detail: &Detail, direction: Direction, weight: Weight, least: f64) -> Self {
        let mut branches = vec![Branch::default()];
        let mut by_stack: HashMap<u32, (f64, f64)> = HashMap::new();
        for sample in &detail.samples {
            let sum = by_stack.entry(sample.stack).or_default();
            sum.0 += sample.weight_s;
            sum.1 += sample.stall_s;
        }
        let mut by_stack: Vec<(u32, (f64, f64))> = by_stack.into_iter().collect();
        by_stack.sort_unstable_by_key(|(stack, _)| *stack);
        for (stack, (time_s, stall_s)) in by_stack {
            let mut path = path(detail, stack);
            if direction == Direction::Inwards {
                path.reverse();
            }
            let mut at = 0;
            for key in std::iter::once(None).chain(path.into_iter().map(Some)) {
                if let Some(key) = key {
                    let next = branches.len();
                    at = *branches[at].below.entry(key).or_insert(next);
                    if at == next {
                        branches.push(Branch::default());
                    }
                }
                branches[at].time_s += time_s;
                branches[at].stall_s += stall_s;
            }
        }
        let mut calls = Self {
            nodes: Vec::new(),
            time_s: branches[0].time_s,
        };
        let of = |branch: &Branch| match weight {
            Weight::Time => branch.time_s,
            Weight::Stall => branch.stall_s,
        };
        let fewest = least * of(&branches[0]);
        // Chains may be deep: use an explicit stack instead of recursion.
        let mut pending = vec![(0_usize, 0_usize, None)];
        while let Some((at, depth, key)) = pending.pop() {
            let branch = &branches[at];
            if let Some((function, module)) = key {
                let name = |id: u32| detail.names.get(id as usize).map_or("?", String::as_str);
                calls.nodes.push(Node {
                    function: name(function).to_owned(),
                    module: name(module).to_owned(),
                    depth: depth - 1,
                    time_s: branch.time_s,
                    stall_s: branch.stall_s,
                });
            }
            let mut below: Vec<((u32, u32), usize)> = branch
                .below
                .iter()
                .map(|(key, at)| (*key, *at))
                .filter(|(_, at)| of(&branches[*at]) > 0.0 && of(&branches[*at]) >= fewest)
                .collect();
            below.sort_by(|(of_a, a), (of_b, b)| {
                of(&branches[*a])
                    .total_cmp(&of(&branches[*b]))
                    .then(of_b.cmp(of_a))
            });
            pending.extend(
                below
                    .into_iter()
                    .map(|(key, at)| (at, depth + 1, Some(key))),
            );
        }
        calls
    }
}

/// Functions and modules of a call chain, innermost first. Inlined functions are entries of their own.
fn path(detail: &Detail, stack: u32) -> Vec<(u32, u32)> {
    let mut path = Vec::new();
    let mut next = Some(stack);
    while let Some(stack) = next.and_then(|at| detail.stacks.get(at as usize))
        && path.len() < DEEPEST
    {
        if let Some(frame) = detail.frames.get(stack.frame as usize) {
            path.push((frame.function, frame.module));
        }
        next = stack.parent;
    }
    path
}

#[cfg(test)]
mod tests {
    use membound_types::{DetailFrame, DetailSample, DetailStack};

    use super::*;

    /// `main` calls `a` and `b`, which both call `leaf`.
    fn detail() -> Detail {
        let names = ["main", "a", "b", "leaf", "prog"].map(str::to_owned);
        let frame = |function| DetailFrame {
            function,
            module: 4,
            ..DetailFrame::default()
        };
        let stack = |parent, frame| DetailStack { parent, frame };
        let sample = |stack, weight_s, stall_s| DetailSample {
            stack,
            weight_s,
            stall_s,
            ..DetailSample::default()
        };
        Detail {
            names: names.to_vec(),
            frames: (0..4).map(frame).collect(),
            stacks: vec![
                stack(None, 0),
                stack(Some(0), 1),
                stack(Some(0), 2),
                stack(Some(1), 3),
                stack(Some(2), 3),
            ],
            samples: vec![
                sample(3, 3.0, 1.0),
                sample(4, 2.0, 2.0),
                sample(0, 1.0, 0.0),
            ],
            ..Detail::default()
        }
    }

    fn rows_of(calls: &Calls) -> Vec<(usize, &str, f64, f64)> {
        let nodes = calls.nodes.iter();
        nodes
            .map(|node| {
                (
                    node.depth,
                    node.function.as_str(),
                    node.time_s,
                    node.stall_s,
                )
            })
            .collect()
    }

    #[test]
    fn from_the_outside_a_function_has_what_it_calls() {
        let calls = Calls::new(&detail(), Direction::Inwards, Weight::Time, 0.0);
        assert_eq!(
            rows_of(&calls),
            [
                (0, "main", 6.0, 3.0),
                (1, "a", 3.0, 1.0),
                (2, "leaf", 3.0, 1.0),
                (1, "b", 2.0, 2.0),
                (2, "leaf", 2.0, 2.0),
            ]
        );
        assert_eq!(calls.time_s, 6.0);
    }

    #[test]
    fn from_the_inside_a_function_has_its_callers() {
        let calls = Calls::new(&detail(), Direction::Outwards, Weight::Stall, 0.0);
        assert_eq!(
            rows_of(&calls),
            [
                (0, "leaf", 5.0, 3.0),
                (1, "b", 2.0, 2.0),
                (2, "main", 2.0, 2.0),
                (1, "a", 3.0, 1.0),
                (2, "main", 3.0, 1.0),
            ],
            "what was not stalled is left out"
        );
    }

    #[test]
    fn small_branches_are_cut() {
        let calls = Calls::new(&detail(), Direction::Inwards, Weight::Stall, 0.5);
        assert_eq!(
            rows_of(&calls),
            [
                (0, "main", 6.0, 3.0),
                (1, "b", 2.0, 2.0),
                (2, "leaf", 2.0, 2.0)
            ]
        );
    }
}
