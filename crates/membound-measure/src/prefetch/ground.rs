//! The memory under the patterns, and one cold walk over it.

use membound_platform::affinity::Pinned;
use membound_types::{NodePolicy, PageKind};

use super::config::PrefetchConfig;
use super::order::{Field, GROUP_BYTES, Walk};
use crate::chain::{Follower, Ring};
use crate::sampling::{Visit, take_batches};
use crate::{Error, Region, RegionConfig, Session, hint, room};

/// The memory under the patterns.
pub(super) struct PatternMemory {
    field: Field,
    region: Region,
    /// Read to empty the caches.
    scratch: Region,
    page: PageKind,
    follower: Follower,
}

impl PatternMemory {
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Number of batches for which an order is long enough: perturbed ones are repeated further on,
    /// never by a second pass.
    const BATCHES_PER_ORDER: u64 = 2 * Self::BATCHES as u64;
    /// Loads before the first batch, from which a prefetcher may learn the pattern.
    const LEAD_IN: u64 = 64;
    /// Minimum bytes under the patterns; with fewer, the orders are too short to be timed.
    pub(super) const MIN_BYTES: u64 = 16 * GROUP_BYTES;

    /// Allocates four times the largest declared cache, at least 128 MiB, as far as config and
    /// memory allow.
    pub(super) fn new(session: &Session<'_>, config: &PrefetchConfig) -> Result<Self, Error> {
        let cache = hint::largest_cache_bytes(session);
        let scratch = 2 * cache;
        let array = GROUP_BYTES;
        // A quarter of the memory stays for other programs.
        let available =
            room::share_bytes(session, (config.page, NodePolicy::LOCAL, session.cpu), 1);
        let area = (4 * cache)
            .max(128 << 20)
            .min(config.max_bytes)
            .min(available.saturating_sub(scratch + array))
            / GROUP_BYTES
            * GROUP_BYTES;
        if area < Self::MIN_BYTES {
            return Err(Error::Memory {
                needed_bytes: Self::MIN_BYTES + array + scratch,
                available_bytes: available.min(config.max_bytes),
            });
        }
        let region = |bytes: u64| {
            Region::new(
                session,
                RegionConfig {
                    bytes: bytes as usize,
                    page: config.page,
                    node: NodePolicy::LOCAL,
                    cpu: session.cpu,
                },
            )
        };
        Ok(Self {
            field: Field {
                area,
                array,
                loads: config.loads,
            },
            region: region(area + array)?,
            scratch: region(scratch)?,
            page: config.page,
            follower: Follower::new(&*session.backend)?,
        })
    }

    /// Bytes under the patterns, without the array of pointers.
    pub(super) const fn area_bytes(&self) -> u64 {
        self.field.area
    }

    /// What a reader of the figures must know about the memory, if anything.
    pub(super) fn note(&self) -> Option<String> {
        if self.page == PageKind::Base {
            return Some(
                "the reference misses the TLB at every load on 4k pages, so that patterns which stay in a page look prefetched sooner (use thp or 2m pages)"
                    .to_owned(),
            );
        }
        let share = self.region.partial_page_share()?;
        Some(format!(
            "only {:.0} % of the buffer are {} pages",
            share * 100.0,
            self.page
        ))
    }

    /// Nanoseconds per load of one walk, with every line cold.
    pub(super) fn visit(
        &mut self,
        session: &Session<'_>,
        walk: Walk,
        round: u64,
    ) -> Result<Visit, Error> {
        let _pinned = Pinned::to(session.cpu)?;
        let order = self.field.order(walk, 0x7072_6566 ^ round << 32);
        let per_iteration = self.follower.loads_per_iteration();
        let room = (order.len() as u64).saturating_sub(Self::LEAD_IN);
        let iterations = (room / Self::BATCHES_PER_ORDER / per_iteration).max(1);
        let mut ring = Ring::link(&mut self.region, &self.follower, &order);
        // Linking wrote every line of the order, so the caches are emptied after it.
        hint::read_through(&self.scratch, 0, self.scratch.len());
        ring.walk(Self::LEAD_IN);
        let clock = &session.clock;
        Ok(take_batches(session, session.cpu, Self::BATCHES, |_| {
            clock.ns(ring.time(clock, iterations))
        }))
    }
}
