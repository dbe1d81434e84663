//! Placing pages on nodes, and finding out where they are.
//!
//! `mbind` and `move_pages` are called by number, because libc has no wrapper for them
//! and libnuma would be a dependency for two calls.

use membound_types::{NamedPolicy, NodeId, NodePolicy};

use super::Topology;
use crate::{Error, Root, list};

const MPOL_PREFERRED: libc::c_int = 1;
const MPOL_BIND: libc::c_int = 2;
const MPOL_INTERLEAVE: libc::c_int = 3;
/// Mode bits that say how the kernel interprets the nodes; they are not part of the policy.
const MPOL_MODE_FLAGS: libc::c_int = 0xe000;

/// Maximum number of pages that [`placed_share`] examines.
const MAX_SAMPLES: usize = 1024;

/// Sets the nodes from which the pages of `len` bytes at `start` will come when they are first
/// touched. `start` is the beginning of a page; pages that are already present stay.
///
/// The binding is strict: where a node is full, touching fails rather than spilling over.
/// Local placement on a machine with one memory node needs no call, so that it also works
/// where a filter forbids `mbind`.
///
/// # Errors
/// [`Error::NoSuchNode`], [`Error::NodeWithoutMemory`], [`Error::NodeNotPermitted`], and
/// [`Error::Denied`] where the kernel or a filter refuses `mbind`.
pub fn place(
    start: *mut u8,
    len: usize,
    policy: NodePolicy,
    local: NodeId,
    topology: &Topology,
) -> Result<(), Error> {
    let wanted = topology.wanted(policy, local)?;
    let nothing_to_choose = topology.memory_nodes().len() <= 1;
    if nothing_to_choose {
        return Ok(());
    }
    let mode = match policy {
        NodePolicy::Named(NamedPolicy::Interleave) => MPOL_INTERLEAVE,
        _ => MPOL_BIND,
    };
    let mask = NodeMask::of(&wanted);
    // SAFETY: the kernel reads the mask, whose length in bits is given, and changes the
    // policy of the range only; no memory is written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.addr(),
            len,
            mode,
            mask.0.as_ptr(),
            mask.bits(),
            0 as libc::c_ulong,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = Error::last_call("mbind");
    // The nodes exist and have memory, so the remaining causes of EINVAL are the cpuset and a range
    // that does not begin at a page.
    if let Error::Call { source, .. } = &error
        && source.raw_os_error() == Some(libc::EINVAL)
        && let Some(allowed) = mems_allowed(&Root::system())
        && wanted.iter().any(|node| !allowed.contains(node))
    {
        return Err(Error::NodeNotPermitted {
            node: list::show_nodes(&wanted),
            allowed: list::show_nodes(&allowed),
        });
    }
    Err(error)
}

/// Checks whether the kernel and its filters let this process query placement and so, with the
/// filters in use, set it.
///
/// # Errors
/// [`Error::Denied`].
pub fn permitted() -> Result<(), Error> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: without places to write to the call only looks up the thread's policy.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, nothing, nothing, 0, nothing, 0) };
    if result < 0 {
        return Err(Error::last_call("get_mempolicy"));
    }
    Ok(())
}

/// The policy that this thread inherited for all its memory, as `numactl --membind` and
/// `--interleave` leave it. `None` for the kernel's own (local), for one that names several nodes
/// without interleaving them, and where a filter forbids the query.
#[must_use]
pub fn inherited() -> Option<NodePolicy> {
    /// Maximum number of nodes of any kernel.
    const MAX_NODES: usize = 1024;
    let mut mode: libc::c_int = 0;
    let mut mask = [0_u64; MAX_NODES / 64];
    // SAFETY: the kernel writes the mode and at most `MAX_NODES` bits of the mask.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            MAX_NODES,
            std::ptr::null_mut::<libc::c_void>(),
            0,
        )
    };
    (result == 0).then(|| policy_of(mode, &mask)).flatten()
}

/// The node policy of a kernel's mode and node mask.
fn policy_of(mode: libc::c_int, mask: &[u64]) -> Option<NodePolicy> {
    let nodes: Vec<u32> = (0..)
        .zip(mask)
        .flat_map(|(word, bits)| {
            let set = (0..64_u32).filter(move |bit| bits >> bit & 1 == 1);
            set.map(move |bit| word * 64 + bit)
        })
        .collect();
    match (mode & !MPOL_MODE_FLAGS, nodes.as_slice()) {
        (MPOL_BIND | MPOL_PREFERRED | MPOL_INTERLEAVE, [node]) => {
            Some(NodePolicy::Node(NodeId(*node)))
        }
        (MPOL_INTERLEAVE, [_, _, ..]) => Some(NodePolicy::INTERLEAVE),
        _ => None,
    }
}

/// The share of the pages of `len` bytes at `start` that lie on one of `wanted`, 0 to 1, among the
/// pages that are in memory. `page_bytes` is the size of a page there; about a thousand pages are
/// examined, evenly spread.
///
/// # Errors
/// [`Error::NotResident`] where nothing has been touched, [`Error::Denied`] where the
/// kernel or a filter refuses `move_pages`.
pub fn placed_share(
    start: *const u8,
    len: usize,
    page_bytes: usize,
    wanted: &[NodeId],
) -> Result<f64, Error> {
    let pages = sample(start, len, page_bytes);
    let mut status: Vec<libc::c_int> = vec![libc::c_int::MIN; pages.len()];
    // SAFETY: `pages` and `status` have the stated number of entries; without a list of
    // nodes the kernel moves nothing and writes one status per page.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result < 0 {
        return Err(Error::last_call("move_pages"));
    }
    share(&status, wanted).ok_or(Error::NotResident { pages: pages.len() })
}

/// Addresses of up to [`MAX_SAMPLES`] pages, evenly spread, the first among them.
fn sample(start: *const u8, len: usize, page_bytes: usize) -> Vec<*const u8> {
    let page_bytes = page_bytes.max(1);
    let pages = len.div_ceil(page_bytes).max(1);
    let samples = pages.min(MAX_SAMPLES);
    (0..samples)
        .map(|index| start.wrapping_add(index * pages / samples * page_bytes))
        .collect()
}

/// Share of the resident pages on `wanted`; `None` where no page is in memory. A negative status is
/// an error number.
fn share(status: &[libc::c_int], wanted: &[NodeId]) -> Option<f64> {
    let resident: Vec<u32> = status
        .iter()
        .filter_map(|&node| u32::try_from(node).ok())
        .collect();
    if resident.is_empty() {
        return None;
    }
    let right = resident
        .iter()
        .filter(|&&node| wanted.contains(&NodeId(node)))
        .count();
    Some(right as f64 / resident.len() as f64)
}

/// The nodes that the cpuset lets this process take memory from.
pub(crate) fn mems_allowed(root: &Root) -> Option<Vec<NodeId>> {
    let status = root.read("proc/self/status").ok()?;
    let text = status
        .lines()
        .find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    list::nodes(text)
}

/// A set of nodes in the kernel's form.
struct NodeMask(Vec<libc::c_ulong>);

impl NodeMask {
    fn of(nodes: &[NodeId]) -> Self {
        let bits = libc::c_ulong::BITS;
        let highest = nodes.iter().map(|node| node.0).max().unwrap_or(0);
        let mut words = vec![0; (highest / bits) as usize + 1];
        for node in nodes {
            words[(node.0 / bits) as usize] |= 1 << (node.0 % bits);
        }
        Self(words)
    }

    /// The argument `maxnode` of `mbind`, of which the kernel reads one bit fewer.
    fn bits(&self) -> libc::c_ulong {
        self.0.len() as libc::c_ulong * libc::c_ulong::from(libc::c_ulong::BITS) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn policies_of_numactl_are_understood() {
        const STATIC_NODES: libc::c_int = 1 << 15;
        let node = |id| Some(NodePolicy::Node(NodeId(id)));
        for (mode, mask, expected) in [
            (0, [0, 0], None),
            (MPOL_BIND, [0b1000, 0], node(3)),
            (MPOL_BIND | STATIC_NODES, [0, 1], node(64)),
            (MPOL_PREFERRED, [0b10, 0], node(1)),
            (MPOL_INTERLEAVE, [0b11, 0], Some(NodePolicy::INTERLEAVE)),
            (MPOL_INTERLEAVE, [0b1, 0], node(0)),
            // Which of the two nodes it uses is the kernel's choice.
            (MPOL_BIND, [0b11, 0], None),
        ] {
            assert_eq!(policy_of(mode, &mask), expected, "{mode} {mask:?}");
        }
        // Tests run without numactl.
        assert_eq!(inherited(), None);
    }

    /// Runs `f` on a fresh private mapping of `pages` base pages.
    fn with_mapping(pages: usize, f: impl FnOnce(*mut u8, usize)) {
        let len = pages * crate::pages::base_page_bytes();
        // SAFETY: the kernel chooses the address, so that nothing else is replaced.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .unwrap();
        f(mapping.cast(), len);
        // SAFETY: the mapping was made above and nothing refers to it any more.
        unsafe { munmap(mapping, len) }.unwrap();
    }

    fn touch(start: *mut u8, len: usize) {
        for offset in (0..len).step_by(crate::pages::base_page_bytes()) {
            let place = start.wrapping_add(offset);
            // SAFETY: the offset lies inside the writable mapping.
            unsafe { place.write_volatile(1) };
        }
    }

    #[test]
    fn pages_lie_where_they_were_placed() {
        let topology = Topology::read(&Root::system());
        let local = topology.node_of(crate::affinity::current_cpu());
        for node in topology.memory_nodes() {
            with_mapping(64, |start, len| {
                let policy = NodePolicy::Node(node);
                match place(start, len, policy, local, &topology) {
                    Ok(()) => {}
                    Err(error) => {
                        eprintln!("skipped: {error}");
                        return;
                    }
                }
                touch(start, len);
                let page_bytes = crate::pages::base_page_bytes();
                match placed_share(start, len, page_bytes, &[node]) {
                    Ok(share) => assert_eq!(share, 1.0),
                    Err(error) => eprintln!("skipped: {error}"),
                }
            });
        }
    }

    #[test]
    fn untouched_pages_have_no_share() {
        with_mapping(4, |start, len| {
            let page_bytes = crate::pages::base_page_bytes();
            match placed_share(start, len, page_bytes, &[NodeId(0)]) {
                Err(Error::NotResident { pages: 4 }) => {}
                Err(error @ Error::Denied { .. }) => eprintln!("skipped: {error}"),
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn the_share_counts_resident_pages_only() {
        assert_eq!(
            share(&[0, 0, 1, -libc::ENOENT], &[NodeId(0)]),
            Some(2.0 / 3.0)
        );
        assert_eq!(share(&[-libc::ENOENT], &[NodeId(0)]), None);
        assert_eq!(share(&[3, 5], &[NodeId(5), NodeId(3)]), Some(1.0));
    }

    #[test]
    fn samples_are_pages_inside_the_range() {
        let start = 0x10_0000 as *const u8;
        let pages = sample(start, 4096 * 5000, 4096);
        assert_eq!(pages.len(), MAX_SAMPLES);
        assert_eq!(pages[0], start);
        assert!(pages.is_sorted());
        let last = pages[MAX_SAMPLES - 1] as usize - start as usize;
        assert!(last < 4096 * 5000 && last.is_multiple_of(4096), "{last}");
        assert_eq!(sample(start, 100, 4096).len(), 1);
    }

    #[test]
    fn masks_reach_beyond_one_word() {
        let mask = NodeMask::of(&[NodeId(0), NodeId(65)]);
        assert_eq!(mask.0, [1, 2]);
        assert_eq!(mask.bits(), 129);
    }
}
