//! The kernel's list format, `0-3,8,10-11`, and how lists are shown to a person.

use membound_types::{CpuId, NodeId};

/// Maximum number of entries of a list, so that a damaged file cannot fill memory. The kernel's own
/// limits for CPUs and nodes are far below.
const MAX_LIST_ENTRIES: usize = 1 << 20;

/// The numbers of a list; `None` where it is malformed. An empty list is valid: it is how the
/// kernel writes the CPUs of a node that has none.
pub(crate) fn numbers(text: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
            None => {
                let only: u32 = part.trim().parse().ok()?;
                (only, only)
            }
        };
        if last < first || found.len() + (last - first) as usize >= MAX_LIST_ENTRIES {
            return None;
        }
        found.extend(first..=last);
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// The CPUs of a list.
pub(crate) fn cpus(text: &str) -> Option<Vec<CpuId>> {
    Some(numbers(text)?.into_iter().map(CpuId).collect())
}

/// The nodes of a list.
pub(crate) fn nodes(text: &str) -> Option<Vec<NodeId>> {
    Some(numbers(text)?.into_iter().map(NodeId).collect())
}

/// Writes a sorted list as the kernel does; `none` when it is empty.
pub(crate) fn show(sorted: impl IntoIterator<Item = u32>) -> String {
    let mut text = String::new();
    let mut run: Option<(u32, u32)> = None;
    let mut close = |run: Option<(u32, u32)>| {
        if let Some((first, last)) = run {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&first.to_string());
            if last > first {
                text.push(if last == first + 1 { ',' } else { '-' });
                text.push_str(&last.to_string());
            }
        }
    };
    for number in sorted {
        run = match run {
            Some((first, last)) if number == last.wrapping_add(1) => Some((first, number)),
            other => {
                close(other);
                Some((number, number))
            }
        };
    }
    close(run);
    if text.is_empty() {
        text.push_str("none");
    }
    text
}

/// A list of CPUs as the kernel writes it.
pub(crate) fn show_cpus(cpus: &[CpuId]) -> String {
    show(cpus.iter().map(|cpu| cpu.0))
}

/// A list of nodes as the kernel writes it.
pub(crate) fn show_nodes(nodes: &[NodeId]) -> String {
    show(nodes.iter().map(|node| node.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(numbers("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers("5"), Some(vec![5]));
        assert_eq!(numbers("\n"), Some(vec![]));
    }

    #[test]
    fn invalid_lists_are_refused() {
        for text in ["x", "3-1", "0-", "-2", "0-4294967295", "1 2"] {
            assert_eq!(numbers(text), None, "{text}");
        }
    }

    #[test]
    fn shows_runs_and_emptiness() {
        assert_eq!(show([0, 1, 2, 3, 8, 10, 11]), "0-3,8,10,11");
        assert_eq!(show([]), "none");
    }

    proptest! {
        #[test]
        fn displayed_lists_parse_to_the_same_set(set in proptest::collection::btree_set(0u32..5000, 1..50)) {
            let sorted: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(numbers(&show(sorted.iter().copied())), Some(sorted));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = numbers(&text);
        }
    }
}
