//! Finds the NUMA nodes of accessed pages.

use std::sync::Mutex;

use membound_run::{PageNode, ProcessId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::gaps::Gaps;
use crate::nodes::{Error, Nodes};
use crate::rows::Rows;
use crate::world::World;

/// Bytes for which a node is stored.
const PAGE: u64 = 4096;
/// How long an answer is reused: pages may move.
const BELIEVED_NS: u64 = 5_000_000_000;
/// Pages remembered at most.
const MAX_PAGES: usize = 1 << 20;
/// Pages collected at most for the next request.
const AT_ONCE: usize = 4096;

/// Collects accessed pages, and asks the kernel for their nodes in batches.
#[derive(Debug)]
pub(crate) struct Pages {
    nodes: Nodes,
    known: FxHashMap<(ProcessId, u64), (u16, u64)>,
    wanted: FxHashSet<(ProcessId, u64)>,
}

impl Pages {
    /// No page yet.
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            known: FxHashMap::default(),
            wanted: FxHashSet::default(),
        }
    }

    /// Notes an access, so that the node of its page is asked for.
    pub(crate) fn accessed(&mut self, process: ProcessId, address: u64) {
        let page = (process, address & !(PAGE - 1));
        if self.nodes.count() > 1 && self.wanted.len() < AT_ONCE && !self.known.contains_key(&page)
        {
            self.wanted.insert(page);
        }
    }

    /// The node of the page that contains an address, if known.
    pub(crate) fn node(&self, process: ProcessId, address: u64) -> Option<u16> {
        self.known
            .get(&(process, address & !(PAGE - 1)))
            .map(|(node, _)| *node)
    }

    /// Asks for the nodes of the pages since the last call, and adds rows. On one node there are no such
    /// pages.
    pub(crate) fn look(
        &mut self,
        world: &Mutex<World>,
        now_ns: u64,
        rows: &mut Rows,
        gaps: &mut Gaps,
    ) {
        self.known
            .retain(|_, (_, asked)| asked.saturating_add(BELIEVED_NS) > now_ns);
        if self.known.len() > MAX_PAGES {
            self.known.clear();
        }
        let mut of_process: FxHashMap<ProcessId, Vec<u64>> = FxHashMap::default();
        for (process, page) in self.wanted.drain() {
            of_process.entry(process).or_default().push(page);
        }
        let mut nodes = Vec::new();
        for (process, pages) in of_process {
            let pid = crate::lock(world).row(process).pid;
            match self.nodes.of_pages(pid, &pages, &mut nodes) {
                Ok(()) | Err(Error::Gone { .. }) => {}
                Err(error) => gaps.note("nodes", error.to_string(), None),
            }
            for (page, node) in pages.iter().zip(&nodes) {
                let Some(node) = *node else { continue };
                self.known.insert((process, *page), (node, now_ns));
                rows.pages.push(PageNode {
                    process,
                    address: *page,
                    t_ns: now_ns,
                    node,
                });
            }
        }
    }
}
