//! Estimates how often each edge between blocks was taken, from the executions of blocks.
//!
//! Executions are conserved: as many enter a block as leave it. An edge that is the only one of its block, or
//! the only one whose count is still unknown, has the rest of the block's count. Edges that remain unknown
//! share the rest in proportion to the executions that their targets still lack.

/// For each block and successor, the share of the block's executions that take the edge, 0 to 1. `counts`
/// holds `None` for blocks that were not counted; blocks that are `open` are also entered from elsewhere.
pub(crate) fn shares(
    counts: &[Option<f64>],
    successors: &[Vec<usize>],
    open: &[bool],
) -> Vec<Vec<f64>> {
    let mut arriving: Vec<Vec<(usize, usize)>> = vec![Vec::new(); counts.len()];
    for (from, targets) in successors.iter().enumerate() {
        for (position, &to) in targets.iter().enumerate() {
            arriving[to].push((from, position));
        }
    }
    let taken = determined(counts, successors, &arriving, open);
    // Executions that the targets still lack.
    let lacks: Vec<Option<f64>> = counts
        .iter()
        .zip(&arriving)
        .map(|(count, edges)| {
            let known: f64 = edges.iter().filter_map(|&(a, b)| taken[a][b]).sum();
            count.map(|count| (count - known).max(0.0))
        })
        .collect();
    taken
        .iter()
        .zip(successors)
        .zip(counts)
        .map(|((taken, targets), count)| of_block(taken, targets, count.unwrap_or(0.0), &lacks))
        .collect()
}

/// Executions of the edges that follow from those of the blocks; `None` for the others. `arriving` holds the
/// edges to each block: where they come from, and their position there.
fn determined(
    counts: &[Option<f64>],
    successors: &[Vec<usize>],
    arriving: &[Vec<(usize, usize)>],
    open: &[bool],
) -> Vec<Vec<Option<f64>>> {
    let mut taken: Vec<Vec<Option<f64>>> = successors
        .iter()
        .map(|targets| vec![None; targets.len()])
        .collect();
    loop {
        let mut changed = false;
        for block in 0..counts.len() {
            let Some(count) = counts[block] else { continue };
            let leaving: Vec<(usize, usize)> =
                (0..taken[block].len()).map(|at| (block, at)).collect();
            // Where control also comes from elsewhere, the last incoming edge is not determined.
            let entering = if open[block] {
                &[][..]
            } else {
                &arriving[block]
            };
            for edges in [&leaving, entering] {
                let known: f64 = edges.iter().filter_map(|&(a, b)| taken[a][b]).sum();
                let mut unknown = edges.iter().filter(|&&(a, b)| taken[a][b].is_none());
                if let (Some(&(a, b)), None) = (unknown.next(), unknown.next()) {
                    taken[a][b] = Some((count - known).max(0.0));
                    changed = true;
                }
            }
        }
        if !changed {
            return taken;
        }
    }
}

/// Shares of the edges of one block that was executed `count` times. Edges whose count is unknown divide the
/// rest of these executions among them, in proportion to the executions of each target that no known edge explains.
fn of_block(
    taken: &[Option<f64>],
    targets: &[usize],
    count: f64,
    lacks: &[Option<f64>],
) -> Vec<f64> {
    let known: f64 = taken.iter().flatten().sum();
    let left = (count - known).max(0.0);
    let weights: Vec<f64> = taken
        .iter()
        .zip(targets)
        .map(|(taken, &to)| match taken {
            Some(_) => 0.0,
            None => lacks[to].unwrap_or(1.0),
        })
        .collect();
    let all: f64 = weights.iter().sum();
    let open = taken.iter().filter(|taken| taken.is_none()).count();
    let flows: Vec<f64> = taken
        .iter()
        .zip(&weights)
        .map(|(taken, weight)| {
            taken.unwrap_or_else(|| {
                if all > 0.0 {
                    left * weight / all
                } else {
                    left / open as f64
                }
            })
        })
        .collect();
    let sum: f64 = flows.iter().sum();
    if sum > 0.0 {
        flows.iter().map(|flow| flow / sum).collect()
    } else {
        vec![1.0 / targets.len().max(1) as f64; targets.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn counts_of_blocks_determine_edges() {
        // 0 → 1 | 2, 1 → 3, 2 → 3.
        let successors = [vec![1, 2], vec![3], vec![3], vec![]];
        let counts = [Some(100.0), Some(90.0), Some(10.0), Some(100.0)];
        let found = shares(&counts, &successors, &[true, false, false, false]);
        assert_eq!(found[0], [0.9, 0.1]);
        assert_eq!(found[1], [1.0]);
    }

    #[test]
    fn an_edge_that_skips_a_block_has_the_remaining_executions() {
        // 0 → 1 | 2, 1 → 2: the edge 0 → 2 is what 1 does not take.
        let successors = [vec![1, 2], vec![2], vec![]];
        let counts = [Some(100.0), Some(25.0), Some(100.0)];
        let found = shares(&counts, &successors, &[true, false, false]);
        assert_eq!(found[0], [0.25, 0.75]);
    }

    #[test]
    fn a_loop_goes_around_as_often_as_its_body_ran() {
        // 0 → 1, 1 → 1 | 2: ten times around for each entry.
        let successors = [vec![1], vec![1, 2], vec![]];
        let counts = [Some(5.0), Some(50.0), Some(5.0)];
        let found = shares(&counts, &successors, &[true, false, false]);
        assert_eq!(found[1], [0.9, 0.1]);
    }

    #[test]
    fn blocks_that_were_not_counted_share_alike() {
        let successors = [vec![1, 2], vec![], vec![]];
        assert_eq!(shares(&[None; 3], &successors, &[true; 3])[0], [0.5, 0.5]);
    }
}
