//! The memory of one page kind, and a visit to one number of pages on it.

use membound_platform::affinity::Pinned;
use membound_types::{NodePolicy, PageKind};

use super::layout;
use crate::arch::ChainsLoop;
use crate::chain::{Bundle, Follower, Ring, shuffle};
use crate::sampling::{Visit, take_batches};
use crate::{Clock, Error, Region, RegionConfig, Session};

/// Arrangement of the lines of a chase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One line on each page.
    Spread,
    /// The same number of lines, packed together.
    Packed,
}

/// Arrangement of packed lines, which depends on the available pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    /// At the beginning of the huge pages that are measured.
    Contiguous,
    /// In random frames of 4 KiB of a few huge pages.
    Scattered,
    /// Page by page, because there are no huge pages.
    PageLocal,
}

/// The memory of one page kind.
pub(super) struct TlbMemory {
    pub(super) page: PageKind,
    pages: u64,
    page_bytes: u64,
    spread: Region,
    /// `None` where packed lines use the spread region too, at another time.
    packed: Option<Region>,
    packing: Packing,
    follower: Follower,
}

impl TlbMemory {
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Maximum length of a batch in nanoseconds; a shorter batch is one pass.
    const MAX_BATCH_NS: f64 = 1e6;

    /// Allocates memory for `pages` pages of kind `page`.
    pub(super) fn new(
        session: &Session<'_>,
        page: PageKind,
        pages: u64,
        page_bytes: u64,
    ) -> Result<Self, Error> {
        let region = |page, bytes: u64| {
            Region::new(
                session,
                RegionConfig {
                    bytes: bytes as usize,
                    page,
                    node: NodePolicy::LOCAL,
                    cpu: session.cpu,
                },
            )
        };
        let spread = region(page, pages * page_bytes)?;
        let (packed, packing) = if page == PageKind::Base {
            let bytes = layout::scattered_bytes(pages);
            match region(PageKind::Thp, bytes) {
                Ok(packed) if packed.partial_page_share().is_none() => {
                    (Some(packed), Packing::Scattered)
                }
                _ => (Some(region(PageKind::Base, bytes)?), Packing::PageLocal),
            }
        } else {
            (None, Packing::Contiguous)
        };
        Ok(Self {
            page,
            pages,
            page_bytes,
            spread,
            packed,
            packing,
            follower: Follower::new(&*session.backend)?,
        })
    }

    /// Largest number of pages.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    /// What a reader of the figures must know about the memory, if anything.
    pub(super) fn note(&self) -> Option<String> {
        if let Some(share) = self.spread.partial_page_share() {
            return Some(format!(
                "{} pages: only {:.0} % of the buffer are such pages",
                self.page,
                share * 100.0
            ));
        }
        (self.packing == Packing::PageLocal).then(|| {
            format!(
                "{} pages: without huge pages the packed lines are compared page by page, so that 1 load in 64 of those misses the TLB too (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)",
                self.page
            )
        })
    }

    /// Nanoseconds per load of one chain over `pages` lines.
    pub(super) fn visit(
        &mut self,
        session: &Session<'_>,
        pages: u64,
        shape: Shape,
        round: u64,
    ) -> Result<Visit, Error> {
        let _pinned = Pinned::to(session.cpu)?;
        let order = self.order(pages, shape, round);
        let clock = &session.clock;
        let per_iteration = self.follower.loads_per_iteration();
        let region = match (&mut self.packed, shape) {
            (Some(packed), Shape::Packed) => packed,
            _ => &mut self.spread,
        };
        let mut ring = Ring::link(region, &self.follower, &order);
        ring.walk(2 * pages);
        // The minimum of a few, because perturbation of a single one would decide how long batches
        // are.
        let probe = (0..3)
            .map(|_| clock.ns(ring.time(clock, (256 / per_iteration).max(1))))
            .fold(f64::INFINITY, f64::min);
        let iterations = (loads(clock, pages, probe) / per_iteration).max(1);
        Ok(take_batches(session, session.cpu, Self::BATCHES, |_| {
            clock.ns(ring.time(clock, iterations))
        }))
    }

    /// Nanoseconds per load with as many chains at once as `follower` follows.
    pub(super) fn visit_chains(
        &mut self,
        session: &Session<'_>,
        follower: &dyn ChainsLoop,
        pages: u64,
        shape: Shape,
        round: u64,
    ) -> Result<Visit, Error> {
        let _pinned = Pinned::to(session.cpu)?;
        let order = self.order(pages, shape, round);
        let clock = &session.clock;
        let chains = follower.chains() as u64;
        let region = match (&mut self.packed, shape) {
            (Some(packed), Shape::Packed) => packed,
            _ => &mut self.spread,
        };
        let mut bundle = Bundle::link(region, follower, &order);
        bundle.walk(2 * pages / chains);
        let probe = clock.ns(bundle.time(clock, 256));
        let rounds = (loads(clock, pages, probe) / chains).max(1);
        Ok(take_batches(session, session.cpu, Self::BATCHES, |_| {
            clock.ns(bundle.time(clock, rounds))
        }))
    }

    /// The offsets in the order of the visits; the order differs each round.
    fn order(&self, pages: u64, shape: Shape, round: u64) -> Vec<u64> {
        let seed = 0x746c_6200 ^ pages << 8 ^ round;
        let mut order = match (shape, self.packing) {
            (Shape::Spread, _) => layout::spread(pages, self.page_bytes),
            (Shape::Packed, Packing::Contiguous) => layout::contiguous(pages),
            (Shape::Packed, Packing::Scattered) => layout::scattered(pages, seed),
            (Shape::Packed, Packing::PageLocal) => return layout::page_local(pages, seed),
        };
        shuffle(&mut order, seed);
        order
    }
}

/// Loads of a batch over `pages` lines that take `probe` nanoseconds each.
fn loads(clock: &Clock, pages: u64, probe: f64) -> u64 {
    let probe = probe.max(0.05);
    let shortest = clock.ns(clock.min_batch_ticks() as f64);
    let batch_ns = (pages as f64 * probe).clamp(shortest, TlbMemory::MAX_BATCH_NS.max(shortest));
    (batch_ns / probe) as u64
}
