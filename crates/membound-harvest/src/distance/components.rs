//! Strongly connected components in topological order.

use rustc_hash::FxHashMap;

/// The components of the graph of `nodes` and of the edges between them that `edges` returns, each before its
/// successors. Tarjan's algorithm, without recursion.
pub(super) fn components<I>(nodes: &[usize], edges: impl Fn(usize) -> I) -> Vec<Vec<usize>>
where
    I: Iterator<Item = usize>,
{
    const UNSEEN: usize = usize::MAX;
    const DONE: usize = usize::MAX - 1;
    // For each position in `nodes`, its index in order of discovery, and the smallest index that it leads
    // back to.
    let position: FxHashMap<usize, usize> = nodes.iter().copied().zip(0..).collect();
    let mut found = vec![UNSEEN; nodes.len()];
    let mut earliest = vec![0; nodes.len()];
    let mut clock = 0;
    let mut open = Vec::new();
    let mut path: Vec<(usize, I)> = Vec::new();
    let mut result = Vec::new();
    for start in 0..nodes.len() {
        if found[start] != UNSEEN {
            continue;
        }
        let mut enter = Some(start);
        loop {
            if let Some(at) = enter.take() {
                found[at] = clock;
                earliest[at] = clock;
                clock += 1;
                open.push(at);
                path.push((at, edges(nodes[at])));
            }
            let Some((at, rest)) = path.last_mut() else {
                break;
            };
            let at = *at;
            if let Some(next) = rest.next() {
                if let Some(&next) = position.get(&next) {
                    match found[next] {
                        UNSEEN => enter = Some(next),
                        DONE => {}
                        when => earliest[at] = earliest[at].min(when),
                    }
                }
                continue;
            }
            path.pop();
            if let Some((above, _)) = path.last() {
                earliest[*above] = earliest[*above].min(earliest[at]);
            }
            if found[at] == earliest[at] {
                let from = open
                    .iter()
                    .rposition(|&waiting| waiting == at)
                    .expect("a node stays open until its component is closed");
                let component = open.split_off(from);
                for &member in &component {
                    found[member] = DONE;
                }
                result.push(component.into_iter().map(|at| nodes[at]).collect());
            }
        }
    }
    result.reverse();
    result
}

#[cfg(test)]
mod tests {
    use super::components;

    fn of(size: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
        let nodes: Vec<usize> = (0..size).collect();
        let mut found = components(&nodes, |node| {
            edges
                .iter()
                .filter(move |edge| edge.0 == node)
                .map(|edge| edge.1)
        });
        for component in &mut found {
            component.sort_unstable();
        }
        found
    }

    #[test]
    fn a_component_precedes_its_successors() {
        let found = of(
            6,
            &[
                (0, 1),
                (1, 2),
                (2, 1),
                (2, 3),
                (3, 4),
                (4, 4),
                (0, 5),
                (5, 3),
            ],
        );
        let at = |node: usize| {
            found
                .iter()
                .position(|component| component.contains(&node))
                .unwrap()
        };
        assert!(found.contains(&vec![1, 2]));
        assert!(at(0) < at(1) && at(1) < at(3) && at(5) < at(3) && at(3) < at(4));
        assert_eq!(found.len(), 5);
    }
}
