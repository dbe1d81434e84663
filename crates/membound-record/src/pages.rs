//! On which node the accessed pages lie.

use std::sync::Mutex;

use membound_run::{PageNode, ProcessId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::gaps::Gaps;
use crate::nodes::{Error, Nodes};
use crate::rows::Rows;
use crate::world::World;

/// Bytes of a page as far as its node is concerned.
const PAGE: u64 = 4096;
/// How long an answer is believed: pages move.
const BELIEVED_NS: u64 = 5_000_000_000;
/// Pages that are remembered.
const MOST: usize = 1 << 20;
/// Pages that are asked for at a time.
const AT_ONCE: usize = 4096;

/// Asks for accessed pages in batches.
#[derive(Debug)]
pub(crate) struct Pages {
    nodes: Nodes,
    known: FxHashMap<(ProcessId, u64), (u16, u64)>,
    wanted: FxHashSet<(ProcessId, u64)>,
}

impl Pages {
    /// None asked yet.
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            known: FxHashMap::default(),
            wanted: FxHashSet::default(),
        }
    }

    /// Something at `address` was accessed.
    pub(crate) fn accessed(&mut self, process: ProcessId, address: u64) {
        let page = (process, address & !(PAGE - 1));
        if self.nodes.count() > 1 && self.wanted.len() < AT_ONCE && !self.known.contains_key(&page)
        {
            self.wanted.insert(page);
        }
    }

    /// The node of the page that holds an address, as far as it is known.
    pub(crate) fn node(&self, process: ProcessId, address: u64) -> Option<u16> {
        self.known
            .get(&(process, address & !(PAGE - 1)))
            .map(|(node, _)| *node)
    }

    /// Asks for what was accessed since the last call. On one node there is nothing to ask.
    pub(crate) fn look(
        &mut self,
        world: &Mutex<World>,
        now_ns: u64,
        rows: &mut Rows,
        gaps: &mut Gaps,
    ) {
        self.known
            .retain(|_, (_, asked)| asked.saturating_add(BELIEVED_NS) > now_ns);
        if self.known.len() > MOST {
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
