//! What a profile is grouped by.

use std::fmt;
use std::str::FromStr;

/// A grouping of a profile, by the name that the command line knows it under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum By {
    /// No grouping: how much, where, on what, and what to do.
    #[default]
    Summary,
    /// Functions.
    Function,
    /// Objects, or all blocks of one allocating call chain.
    Object,
    /// Source lines.
    Line,
    /// Instructions.
    Instruction,
    /// Threads.
    Thread,
    /// Levels of the memory hierarchy.
    Level,
    /// Nodes of pages against nodes of threads.
    Node,
    /// Memories and interconnects with their traffic.
    BandwidthDomain,
}

impl By {
    /// Every grouping, in the order in which they are offered.
    pub const ALL: [Self; 9] = [
        Self::Summary,
        Self::Function,
        Self::Object,
        Self::Line,
        Self::Instruction,
        Self::Thread,
        Self::Level,
        Self::Node,
        Self::BandwidthDomain,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Function => "function",
            Self::Object => "object",
            Self::Line => "line",
            Self::Instruction => "instruction",
            Self::Thread => "thread",
            Self::Level => "level",
            Self::Node => "node",
            Self::BandwidthDomain => "bandwidth-domain",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|by| by.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("`{text}` is not one of {names}")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for by in By::ALL {
            assert_eq!(by.name().parse(), Ok(by));
            assert_eq!(by.to_string(), by.name());
        }
        assert!("nodes".parse::<By>().is_err());
    }
}
