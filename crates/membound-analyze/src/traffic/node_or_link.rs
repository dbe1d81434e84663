//! A node's memory or a link between two nodes, with the name of its domain.

use std::fmt;

/// Memory of a node, or a link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NodeOrLink {
    /// Memory of a node.
    Dram(u16),
    /// Link from one node to another.
    Link { from: u16, to: u16 },
}

impl NodeOrLink {
    /// Parses the name of a domain; `None` for all of memory, or an unknown name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if let Some(node) = name.strip_prefix("DRAM ") {
            return node.parse().ok().map(Self::Dram);
        }
        let (from, to) = name.strip_prefix("interconnect ")?.split_once('→')?;
        Some(Self::Link {
            from: from.parse().ok()?,
            to: to.parse().ok()?,
        })
    }
}

impl fmt::Display for NodeOrLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dram(node) => write!(f, "DRAM {node}"),
            Self::Link { from, to } => write!(f, "interconnect {from}→{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_names_that_are_read_back() {
        for place in [NodeOrLink::Dram(3), NodeOrLink::Link { from: 0, to: 12 }] {
            assert_eq!(NodeOrLink::of(&place.to_string()), Some(place));
        }
        for other in ["DRAM", "DRAM x", "interconnect 0-1", "cxl"] {
            assert_eq!(NodeOrLink::of(other), None, "{other}");
        }
    }
}
