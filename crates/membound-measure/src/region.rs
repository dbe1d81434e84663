//! Buffers of a chosen page kind on a chosen node, verified.

use std::ptr::NonNull;

use membound_platform::numa::{self, Topology};
use membound_platform::pages;
use membound_types::{CpuId, NodeId, NodePolicy, PageKind};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, Session, room};

/// Size, page kind and placement of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Usable bytes; [`Region::new`] rounds them up to whole pages.
    pub bytes: usize,
    /// Kind of the pages behind the buffer.
    pub page: PageKind,
    /// NUMA policy of the pages.
    pub node: NodePolicy,
    /// CPU whose node the policy `local` means.
    pub cpu: CpuId,
}

/// Touched, zero-filled memory of one page kind on one node.
#[derive(Debug)]
pub struct Region {
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    config: RegionConfig,
    page_share: f64,
}

// SAFETY: the region owns its mapping; nothing about it is tied to a thread.
unsafe impl Send for Region {}
// SAFETY: a shared region only hands out its address; code that dereferences it is responsible.
unsafe impl Sync for Region {}

const MIB: usize = 1 << 20;

impl Region {
    /// Minimum share of pages of the requested kind; below it, the kernel counts as having refused.
    const MIN_PAGE_SHARE: f64 = 0.5;
    /// Minimum share of pages on the requested nodes.
    const MIN_PLACED_SHARE: f64 = 0.99;
    /// Bytes touched between two checks for cancellation.
    const PIECE_BYTES: usize = 64 * MIB;

    /// Maps, places, touches and verifies a buffer.
    ///
    /// # Errors
    /// [`Error::Memory`] before anything is mapped when the machine, limits or the node have less
    /// memory available; [`Error::Map`] and [`Error::Pages`] when the page kind is not available;
    /// [`Error::Placement`] or [`Error::Platform`] when the node is not; [`Error::Interrupted`]
    /// when the session is cancelled meanwhile.
    pub fn new(session: &Session<'_>, config: RegionConfig) -> Result<Self, Error> {
        let topology = &session.topology;
        Self::check_room(session, config)?;
        let region = Self::map(config)?;
        let local = topology.node_of(config.cpu);
        numa::place(
            region.start.as_ptr(),
            region.len(),
            config.node,
            local,
            topology,
        )?;
        region.touch(session)?;
        region.verified(topology, local)
    }

    /// Refuses sizes that would run the machine or the node out of memory: the kernel's OOM killer,
    /// or SIGBUS, would end the process there instead of an error.
    fn check_room(session: &Session<'_>, config: RegionConfig) -> Result<(), Error> {
        let RegionConfig {
            page, node, cpu, ..
        } = config;
        let available_bytes =
            room::obtainable_bytes(session.root, &session.topology, (page, node, cpu));
        let needed_bytes = config.bytes as u64;
        if needed_bytes <= available_bytes {
            return Ok(());
        }
        if room::is_pool(page) {
            return Err(Error::Map {
                bytes: config.bytes,
                page,
                errno: rustix::io::Errno::NOMEM,
                remedy: remedy_of(page),
            });
        }
        Err(Error::Memory {
            needed_bytes,
            available_bytes,
        })
    }

    fn map(config: RegionConfig) -> Result<Self, Error> {
        let (page_bytes, flags) = match config.page {
            PageKind::Base => (pages::base_page_bytes(), MapFlags::PRIVATE),
            PageKind::Thp => (2 * MIB, MapFlags::PRIVATE),
            PageKind::Huge2M => (
                2 * MIB,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            ),
            PageKind::Huge1G => (
                1024 * MIB,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_1GB,
            ),
        };
        let bytes = config.bytes.max(1).checked_next_multiple_of(page_bytes);
        let bytes = bytes.ok_or_else(|| {
            Error::Invalid(format!("{} bytes exceed the address space", config.bytes))
        })?;
        // Room to begin at a huge page's boundary; pages of the pool are aligned anyway.
        let slack = if config.page == PageKind::Thp {
            page_bytes
        } else {
            0
        };
        let mapped_bytes = bytes + slack;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let mapped = mapped.map_err(|errno| Error::Map {
            bytes,
            page: config.page,
            errno,
            remedy: remedy_of(config.page),
        })?;
        let mapping = NonNull::new(mapped.cast::<u8>()).expect("mmap is never at zero");
        let aligned = (mapping.as_ptr() as usize).next_multiple_of(page_bytes);
        let offset = if slack == 0 {
            0
        } else {
            aligned - mapping.as_ptr() as usize
        };
        // SAFETY: `offset` is at most `slack`, so the result lies inside the mapping.
        let start = unsafe { mapping.add(offset) };
        let region = Self {
            mapping,
            mapped_bytes,
            start,
            config: RegionConfig { bytes, ..config },
            page_share: 1.0,
        };
        let advice = match config.page {
            PageKind::Base => Some(Advice::LinuxNoHugepage),
            PageKind::Thp => Some(Advice::LinuxHugepage),
            PageKind::Huge2M | PageKind::Huge1G => None,
        };
        if let Some(advice) = advice {
            // SAFETY: the range is this region's own. A kernel without huge pages returns an error
            // and leaves base pages, which `verified` reports.
            let _ = unsafe { madvise(region.start.as_ptr().cast(), bytes, advice) };
        }
        Ok(region)
    }

    /// Writes to every page in the order of addresses, and stops between two pieces when the
    /// session is cancelled: many GiB take many seconds.
    fn touch(&self, session: &Session<'_>) -> Result<(), Error> {
        let piece = Self::PIECE_BYTES.max(room::page_bytes(self.config.page) as usize);
        for from in (0..self.len()).step_by(piece) {
            if session.cancelled() {
                return Err(Error::Interrupted);
            }
            self.touch_piece(from, piece.min(self.len() - from))?;
        }
        Ok(())
    }

    fn touch_piece(&self, from: usize, bytes: usize) -> Result<(), Error> {
        let start = self.start.as_ptr().wrapping_add(from);
        // SAFETY: the range is this region's own.
        let populated = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) => Ok(()),
            Err(errno @ (rustix::io::Errno::NOMEM | rustix::io::Errno::FAULT)) => Err(Error::Map {
                bytes: self.len(),
                page: self.config.page,
                errno,
                remedy: " (the node or the pool has not that much free)",
            }),
            // Kernels before 5.14 do not know the advice.
            Err(_) => {
                for offset in (0..bytes).step_by(pages::base_page_bytes()) {
                    let byte = start.wrapping_add(offset);
                    // SAFETY: the byte lies inside the region, which is writable; volatile,
                    // so that it is not optimised away.
                    unsafe { byte.write_volatile(0) };
                }
                Ok(())
            }
        }
    }

    /// Compares the pages' kind and placement with the request.
    fn verified(mut self, topology: &Topology, local: NodeId) -> Result<Self, Error> {
        let page = self.config.page;
        let backing = pages::backing(self.start.as_ptr(), self.len())?;
        let huge_share = backing.huge_share();
        self.page_share = if page == PageKind::Base {
            1.0 - huge_share
        } else {
            huge_share
        };
        if self.page_share < Self::MIN_PAGE_SHARE {
            return Err(Error::Pages {
                page,
                remedy: match page {
                    PageKind::Thp => {
                        " (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; memory may also be too fragmented)"
                    }
                    PageKind::Base => {
                        " (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)"
                    }
                    PageKind::Huge2M | PageKind::Huge1G => "",
                },
            });
        }
        if topology.nodes.len() > 1 {
            let wanted = topology.wanted(self.config.node, local)?;
            let page_bytes = match page {
                PageKind::Base => pages::base_page_bytes(),
                PageKind::Thp | PageKind::Huge2M => 2 * MIB,
                PageKind::Huge1G => 1024 * MIB,
            };
            let share = numa::placed_share(self.start.as_ptr(), self.len(), page_bytes, &wanted)?;
            if share < Self::MIN_PLACED_SHARE {
                return Err(Error::Placement {
                    node: self.config.node,
                    percent: share * 100.0,
                });
            }
        }
        Ok(self)
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Usable bytes: the requested bytes, rounded up to whole pages.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.config.bytes
    }

    /// True if the region has no bytes, which is never the case.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.config.bytes == 0
    }

    /// Share of the region that has the requested page kind, 0 to 1; `None` from 0.999 on.
    #[must_use]
    pub fn partial_page_share(&self) -> Option<f64> {
        (self.page_share < 0.999).then_some(self.page_share)
    }
}

/// Remedy when no memory of `page` pages is available, in brackets, for the end of a message.
#[must_use]
pub const fn remedy_of(page: PageKind) -> &'static str {
    match page {
        PageKind::Huge2M => {
            " (reserve some in /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages)"
        }
        PageKind::Huge1G => " (reserve some with hugepagesz=1G hugepages=N at boot)",
        PageKind::Base | PageKind::Thp => " (is the limit on address space too low? see ulimit -v)",
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own, and its users borrow the region.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own pages succeeds");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use membound_platform::Root;

    use super::*;
    use crate::{Effort, Silent};

    fn config(bytes: usize, page: PageKind, node: NodePolicy) -> RegionConfig {
        RegionConfig {
            bytes,
            page,
            node,
            cpu: CpuId(0),
        }
    }

    fn make(config: RegionConfig) -> Result<Region, Error> {
        make_unless(config, false)
    }

    fn make_unless(config: RegionConfig, cancelled: bool) -> Result<Region, Error> {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        cancel.store(cancelled, Ordering::Relaxed);
        Region::new(&session, config)
    }

    #[test]
    fn base_pages_are_base_pages_even_where_huge_ones_are_the_default() {
        let region = make(config(8 * MIB, PageKind::Base, NodePolicy::LOCAL)).unwrap();
        let backing = pages::backing(region.start(), region.len()).unwrap();
        assert_eq!(backing.huge_bytes, 0);
        assert_eq!(region.partial_page_share(), None);
    }

    #[test]
    fn huge_pages_are_verified_or_refused() {
        match make(config(8 * MIB, PageKind::Thp, NodePolicy::LOCAL)) {
            Ok(region) => {
                assert_eq!(region.start() as usize % (2 * MIB), 0);
                let backing = pages::backing(region.start(), region.len()).unwrap();
                assert!(backing.huge_bytes * 2 >= region.len() as u64);
            }
            Err(Error::Pages { .. }) => println!("skipped: this kernel gives no huge pages"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn more_than_the_memory_is_refused_before_it_is_mapped() {
        let error = make(config(1 << 46, PageKind::Base, NodePolicy::LOCAL)).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }

    #[test]
    fn a_cancelled_session_is_not_kept_waiting_for_memory() {
        let config = config(256 * MIB, PageKind::Base, NodePolicy::LOCAL);
        let error = make_unless(config, true).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
    }

    #[test]
    fn the_last_of_the_memory_is_never_allocated() {
        let available = membound_platform::memory::available_bytes(&Root::system());
        let most = usize::try_from(available - available / 64).unwrap();
        let error = make(config(most, PageKind::Base, NodePolicy::LOCAL)).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }

    #[test]
    fn a_pool_that_is_too_small_is_refused_with_its_remedy() {
        for page in [PageKind::Huge2M, PageKind::Huge1G] {
            let error = make(config(1 << 46, page, NodePolicy::LOCAL)).unwrap_err();
            assert!(matches!(error, Error::Map { .. }), "{error}");
            assert!(error.to_string().contains("reserve some"), "{error}");
            // An error shown with its causes must not repeat the reason.
            assert!(std::error::Error::source(&error).is_none());
        }
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        let node = NodePolicy::Node(NodeId(63));
        let error = make(config(MIB, PageKind::Base, node)).unwrap_err();
        assert!(error.to_string().contains("63"), "{error}");
    }
}
