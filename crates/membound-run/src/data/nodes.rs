//! NUMA nodes of pages, and memory traffic that hardware counted.

use crate::ProcessId;
use crate::record::record;

record! { "pages", Order, missing "nodes" =>
    /// The NUMA node of a page at one time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PageNode {
        /// Process that has the page mapped.
        pub process: ProcessId,
        /// First address of the page.
        pub address: u64,
        /// Time at which the kernel was asked.
        pub t_ns: u64,
        /// NUMA node that holds the page.
        pub node: u16,
    }
}

record! { "traffic", Order, missing "bandwidth" =>
    /// Bytes that were moved in a domain.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Traffic {
        /// `DRAM 0`, `interconnect 0→1`, …
        pub domain: String,
        /// Start of the counted span.
        pub from_ns: u64,
        /// End of the counted span.
        pub to_ns: u64,
        /// Bytes read from the domain.
        pub read_bytes: u64,
        /// Bytes written to the domain.
        pub write_bytes: u64,
    }
}
