//! Newtypes and small enumerations that several documents share.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A logical CPU as the kernel numbers it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct CpuId(pub u32);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A NUMA node as the kernel numbers it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Size and origin of the pages behind a buffer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum PageKind {
    /// Base pages of 4 KiB (or the machine's base page), huge pages refused.
    #[serde(rename = "4k")]
    Base,
    /// Transparent huge pages, asked for with `MADV_HUGEPAGE`.
    #[serde(rename = "thp")]
    Thp,
    /// Pages of 2 MiB from the hugetlb pool.
    #[serde(rename = "2m")]
    Huge2M,
    /// Pages of 1 GiB from the hugetlb pool.
    #[serde(rename = "1g")]
    Huge1G,
}

impl PageKind {
    /// Every kind, smallest page first.
    pub const ALL: [Self; 4] = [Self::Base, Self::Thp, Self::Huge2M, Self::Huge1G];

    /// The name used on the command line and in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "4k",
            Self::Thp => "thp",
            Self::Huge2M => "2m",
            Self::Huge1G => "1g",
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PageKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("unknown page kind `{text}` (known: 4k, thp, 2m, 1g)"))
    }
}

/// Where the pages of a buffer lie: `"local"`, `"interleave"` or a node's number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(untagged)]
pub enum NodePolicy {
    /// On one node, whoever asks for them.
    Node(NodeId),
    /// On the node of the measuring CPU, or page by page over all nodes.
    Named(NamedPolicy),
}

/// The node policies that have a name instead of a number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NamedPolicy {
    /// On the node of the measuring CPU.
    Local,
    /// Page by page over all nodes with memory.
    Interleave,
}

impl NodePolicy {
    /// On the node of the measuring CPU.
    pub const LOCAL: Self = Self::Named(NamedPolicy::Local);
    /// Page by page over all nodes with memory.
    pub const INTERLEAVE: Self = Self::Named(NamedPolicy::Interleave);
}

impl fmt::Display for NodePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(NamedPolicy::Local) => f.pad("local"),
            Self::Named(NamedPolicy::Interleave) => f.pad("interleave"),
            Self::Node(node) => node.fmt(f),
        }
    }
}

impl FromStr for NodePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::LOCAL),
            "interleave" => Ok(Self::INTERLEAVE),
            number => number
                .parse()
                .map(|node| Self::Node(NodeId(node)))
                .map_err(|_| {
                    format!("unknown node `{text}` (a node's number, `local` or `interleave`)")
                }),
        }
    }
}
