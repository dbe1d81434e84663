//! Newtypes and small enumerations that several documents share.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

/// A logical CPU, by the kernel's number.
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

/// A NUMA node, by the kernel's number.
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

named! {
    /// Size and origin of the pages behind a buffer.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum PageKind {
        /// Base pages of 4 KiB (or the machine's base page), huge pages refused.
        #[default]
        Base = "4k",
        /// Transparent huge pages, requested with `MADV_HUGEPAGE`.
        Thp = "thp",
        /// Pages of 2 MiB from the hugetlb pool.
        Huge2M = "2m",
        /// Pages of 1 GiB from the hugetlb pool.
        Huge1G = "1g",
    }
}

/// Node policy of a buffer: `"local"`, `"interleave"` or a node's number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(untagged)]
pub enum NodePolicy {
    /// On one node, independent of the CPU that first touches them.
    Node(NodeId),
    /// On the node of the measuring CPU, or interleaved over all nodes.
    Named(NamedPolicy),
}

named! {
    /// Node policies with a name instead of a number.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum NamedPolicy {
        /// On the node of the measuring CPU.
        Local = "local",
        /// Interleaved page by page over all nodes with memory.
        Interleave = "interleave",
    }
}

impl NodePolicy {
    /// On the node of the measuring CPU.
    pub const LOCAL: Self = Self::Named(NamedPolicy::Local);
    /// Interleaved page by page over all nodes with memory.
    pub const INTERLEAVE: Self = Self::Named(NamedPolicy::Interleave);
}

impl Default for NodePolicy {
    fn default() -> Self {
        Self::LOCAL
    }
}

impl fmt::Display for NodePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(policy) => policy.fmt(f),
            Self::Node(node) => node.fmt(f),
        }
    }
}

impl FromStr for NodePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(policy) = text.parse() {
            return Ok(Self::Named(policy));
        }
        text.parse()
            .map(|node| Self::Node(NodeId(node)))
            .map_err(|_| {
                format!("unknown node `{text}` (a node's number, `local` or `interleave`)")
            })
    }
}
