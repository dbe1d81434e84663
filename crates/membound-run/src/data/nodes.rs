//! NUMA nodes of pages, and memory traffic that hardware counted.

use crate::ProcessId;

/// The node of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageNode {
    /// Whose page.
    pub process: ProcessId,
    /// Its first address.
    pub address: u64,
    /// When it was asked.
    pub t_ns: u64,
    /// The node.
    pub node: u16,
}

/// Bytes that a domain moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// `DRAM 0`, `interconnect 0-1`, …
    pub domain: String,
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}
