//! Reads on which NUMA nodes pages of a process currently are.

use std::io;

use membound_platform::Root;
use membound_platform::numa::Topology;
use membound_types::CpuId;

/// Pages in one system call.
const BATCH: usize = 4096;

/// Why nodes of pages cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process has ended.
    #[error("process {pid} has ended")]
    Gone {
        /// The process number.
        pid: u32,
    },
    /// The process is another user's, or a filter forbids the system call.
    #[error(
        "move_pages is not permitted for process {pid}: run as its user or as root, and in a \
         container allow that system call"
    )]
    Denied {
        /// The process number.
        pid: u32,
    },
    /// Any other error.
    #[error("move_pages of process {pid} failed: {error}")]
    System {
        /// The process number.
        pid: u32,
        /// The system's error.
        error: io::Error,
    },
}

/// The machine's NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Node of each CPU, by the CPU's number.
    of_cpus: Vec<u16>,
    ids: Vec<u16>,
}

impl Nodes {
    /// Reads the nodes and their CPUs from sysfs.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let topology = Topology::read(root);
        let cpus = topology.nodes.iter().flat_map(|node| &node.cpus);
        let count = cpus.max().map_or(0, |last| last.0 as usize + 1);
        let number = |id: u32| u16::try_from(id).unwrap_or(u16::MAX);
        Self {
            of_cpus: (0..count)
                .map(|cpu| number(topology.node_of(CpuId(cpu as u32)).0))
                .collect(),
            ids: topology.ids().iter().map(|id| number(id.0)).collect(),
        }
    }

    /// Number of nodes.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.ids.len()
    }

    /// Node of each CPU, by the CPU's number.
    #[must_use]
    pub fn of_cpus(&self) -> &[u16] {
        &self.of_cpus
    }

    /// Writes to `nodes` the node of the page that contains each of `addresses` in process `pid`; `None` for
    /// pages that are not in memory. On a machine with one node the kernel is not asked: all pages are on
    /// that node.
    ///
    /// # Errors
    /// When the system call fails. Entries that `nodes` got before are valid.
    pub fn of_pages(
        &self,
        pid: u32,
        addresses: &[u64],
        nodes: &mut Vec<Option<u16>>,
    ) -> Result<(), Error> {
        nodes.clear();
        if let [only] = *self.ids {
            nodes.resize(addresses.len(), Some(only));
            return Ok(());
        }
        for batch in addresses.chunks(BATCH) {
            ask(pid, batch, nodes)?;
        }
        Ok(())
    }
}

/// Asks the kernel for at most [`BATCH`] pages.
fn ask(pid: u32, addresses: &[u64], nodes: &mut Vec<Option<u16>>) -> Result<(), Error> {
    let page = rustix::param::page_size() as u64;
    let pages: Vec<u64> = addresses
        .iter()
        .map(|address| address & !(page - 1))
        .collect();
    let mut status: Vec<libc::c_int> = vec![-libc::ENOENT; pages.len()];
    // SAFETY: both lists have the stated number of entries; without a list of nodes the
    // kernel moves nothing and writes one status for each page.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::c_long::from(pid),
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ESRCH) => Error::Gone { pid },
            Some(libc::EPERM | libc::EACCES) => Error::Denied { pid },
            _ => Error::System { pid, error },
        });
    }
    // A negative status is an error: the page is not in memory or not mapped.
    nodes.extend(status.into_iter().map(|node| u16::try_from(node).ok()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_the_node_of_our_own_page_and_none_of_what_is_not_there() {
        let here = vec![1_u8; 8192];
        let mut nodes = Vec::new();
        let addresses = [here.as_ptr().addr() as u64, 0];
        match ask(std::process::id(), &addresses, &mut nodes) {
            Ok(()) => {
                let known = Nodes::read(&Root::system());
                assert!(known.ids.contains(&nodes[0].unwrap()), "{nodes:?}");
                assert_eq!(nodes[1], None);
            }
            Err(error) => membound_testkit::skipped(error),
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_said_to_have_ended() {
        let error = ask(u32::MAX >> 1, &[0], &mut Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("process {} has ended", u32::MAX >> 1)
        );
    }

    #[test]
    fn one_node_needs_no_kernel() {
        let nodes = Nodes {
            of_cpus: vec![0, 0],
            ids: vec![0],
        };
        let mut found = vec![None; 7];
        nodes.of_pages(u32::MAX >> 1, &[1, 2], &mut found).unwrap();
        assert_eq!(found, [Some(0), Some(0)]);
        assert_eq!(nodes.count(), 1);
    }
}
