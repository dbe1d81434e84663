//! Strongly connected components, in the order in which control comes through them.

/// The components of the graph of `nodes` (out of 0 to `size`) and of those edges that `ways`
/// gives, each before those that it leads to. Tarjan's algorithm, without recursion. An edge
/// to a node that is not among `nodes` is none.
pub(super) fn components<I>(
    size: usize,
    nodes: &[usize],
    ways: impl Fn(usize) -> I,
) -> Vec<Vec<usize>>
where
    I: Iterator<Item = usize>,
{
    const OUTSIDE: usize = usize::MAX;
    const UNSEEN: usize = usize::MAX - 1;
    const DONE: usize = usize::MAX - 2;
    let mut found = vec![OUTSIDE; size];
    let mut earliest = vec![0; size];
    for &node in nodes {
        found[node] = UNSEEN;
    }
    let mut clock = 0;
    let mut open = Vec::new();
    let mut path: Vec<(usize, I)> = Vec::new();
    let mut result = Vec::new();
    for &start in nodes {
        if found[start] != UNSEEN {
            continue;
        }
        let mut enter = Some(start);
        loop {
            if let Some(node) = enter.take() {
                found[node] = clock;
                earliest[node] = clock;
                clock += 1;
                open.push(node);
                path.push((node, ways(node)));
            }
            let Some((node, rest)) = path.last_mut() else {
                break;
            };
            let node = *node;
            if let Some(next) = rest.next() {
                match found[next] {
                    OUTSIDE | DONE => {}
                    UNSEEN => enter = Some(next),
                    when => earliest[node] = earliest[node].min(when),
                }
                continue;
            }
            path.pop();
            if let Some((above, _)) = path.last() {
                earliest[*above] = earliest[*above].min(earliest[node]);
            }
            if found[node] == earliest[node] {
                let from = open
                    .iter()
                    .rposition(|&waiting| waiting == node)
                    .expect("a node stays open until its component is closed");
                let component = open.split_off(from);
                for &member in &component {
                    found[member] = DONE;
                }
                result.push(component);
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
        let mut found = components(size, &nodes, |node| {
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
    fn a_component_stands_before_those_that_it_leads_to() {
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
