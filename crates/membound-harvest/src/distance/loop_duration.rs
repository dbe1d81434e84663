//! How long a loop runs per entry.

use super::Function;

/// Time from an entry to the next exit of the innermost loop around `block`, in nanoseconds, computed from
/// the executions of its blocks; if no entry was counted, one is assumed. Only loops of consecutive blocks
/// without calls and without entries from elsewhere are considered. `None` if there is no such loop, or it
/// never ran.
pub(crate) fn lasts_ns(function: &Function, block: usize) -> Option<f64> {
    let blocks = &function.blocks;
    let backs = (block..blocks.len()).flat_map(|last| {
        let edges = blocks[last].edges.iter();
        edges
            .filter(|edge| edge.to <= block)
            .map(move |edge| (edge.to, last, blocks[last].count * edge.share))
    });
    let backs: Vec<(usize, usize, f64)> = backs.collect();
    let head = backs.iter().map(|back| back.0).max()?;
    let of_loop = backs.iter().filter(|back| back.0 == head);
    let last = of_loop.clone().map(|back| back.1).max()?;
    let inside = &blocks[head..=last];
    let runs = blocks[head].count > 0.0;
    if !runs || inside.iter().any(|it| it.entered || it.call.is_some()) {
        return None;
    }
    let all_ns: f64 = inside
        .iter()
        .map(|it| it.count * it.steps.iter().map(|step| step.ns).sum::<f64>())
        .sum();
    let iterations: f64 = of_loop.map(|back| back.2).sum();
    let entries = (blocks[head].count - iterations).max(1.0);
    Some(all_ns / entries)
}

#[cfg(test)]
mod tests {
    use super::super::{BasicBlock, Call, Edge, Step};
    use super::*;

    /// A block that takes `ns` and ran `count` times, with the edges `edges`.
    fn block(ns: f64, count: f64, edges: &[(usize, f64)]) -> BasicBlock {
        BasicBlock {
            steps: vec![Step {
                address: 0,
                ns,
                patchable: true,
                yields: false,
            }],
            edges: edges
                .iter()
                .map(|&(to, share)| Edge { to, share })
                .collect(),
            count,
            ..BasicBlock::default()
        }
    }

    /// 0 → 1 → 1 | 2, 2 → 0 | 3: an inner loop of `iterations` iterations of 2 ns in an outer loop of ten
    /// iterations.
    fn nested(iterations: f64) -> Function {
        let entries = 10.0;
        Function {
            blocks: vec![
                block(5.0, entries, &[(1, 1.0)]),
                block(
                    2.0,
                    entries * iterations,
                    &[(1, 1.0 - 1.0 / iterations), (2, 1.0 / iterations)],
                ),
                block(1.0, entries, &[(0, 0.9), (3, 0.1)]),
                block(1.0, 1.0, &[]),
            ],
        }
    }

    #[test]
    fn the_innermost_loop_lasts_as_long_as_its_iterations() {
        let near = |found: Option<f64>, expected: f64| {
            let found = found.unwrap();
            assert!(
                (found - expected).abs() < 1e-6 * expected,
                "{found} {expected}"
            );
        };
        near(lasts_ns(&nested(8.0), 1), 16.0);
        near(lasts_ns(&nested(1000.0), 1), 2000.0);
        // The outer loop: ten iterations.
        near(lasts_ns(&nested(8.0), 0), 10.0 * (5.0 + 16.0 + 1.0));
        near(lasts_ns(&nested(8.0), 2), 10.0 * (5.0 + 16.0 + 1.0));
        assert_eq!(lasts_ns(&nested(8.0), 3), None);
    }

    #[test]
    fn a_loop_without_counted_entry_was_entered_once() {
        let function = Function {
            blocks: vec![block(1.0, 0.0, &[(1, 1.0)]), block(2.0, 500.0, &[(1, 1.0)])],
        };
        assert_eq!(lasts_ns(&function, 1), Some(1000.0));
    }

    #[test]
    fn loops_with_calls_or_other_entries_have_no_duration() {
        let mut calls = nested(8.0);
        calls.blocks[1].call = Some(Call::Unknown);
        assert_eq!(lasts_ns(&calls, 1), None);
        let mut entered = nested(8.0);
        entered.blocks[1].entered = true;
        assert_eq!(lasts_ns(&entered, 1), None);
    }

    #[test]
    fn a_loop_that_never_ran_has_no_duration() {
        let function = Function {
            blocks: vec![block(2.0, 0.0, &[(0, 1.0)])],
        };
        assert_eq!(lasts_ns(&function, 0), None);
    }
}
