//! The buffer on one node: a part to chase through and a part that empties the caches.

use membound_platform::affinity::Pinned;
use membound_platform::{numa, pages};
use membound_types::{
    Access, BandwidthKernel, CpuId, NodeId, NodePolicy, Outcome, PageKind, Pattern,
};

use super::config::NumaConfig;
use crate::arch::StreamLoop;
use crate::sampling::{Visit, take_batches};
use crate::{Chase, ChaseConfig, Error, Region, RegionConfig, Session, hint, room};

/// Memory of one node with a chain through it.
pub(super) struct Buffer {
    // Before the region, to be dropped first: the chase uses its memory.
    chase: Chase,
    stream: Box<dyn StreamLoop>,
    region: Region,
    page: PageKind,
    node: NodeId,
    chain_bytes: usize,
    /// Declared last-level cache, in bytes.
    cache_bytes: u64,
    /// Offset at which the next streaming batch begins.
    stream_at: usize,
}

impl Buffer {
    /// Minimum bytes of a buffer that can be chased through.
    pub(super) const MIN_BYTES: u64 = 1 << 20;
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Length of a batch in nanoseconds.
    const BATCH_NS: f64 = 1.5e6;
    /// Bytes of one streaming batch.
    const STREAM_BYTES: usize = 16 << 20;

    /// A buffer on `node`. Its chain is shortened to what the node has free.
    pub(super) fn on(
        session: &Session<'_>,
        config: &NumaConfig,
        node: NodeId,
        cpu: CpuId,
    ) -> Result<Self, Error> {
        let cache_bytes = hint::largest_cache_bytes(session);
        // A quarter stays for other programs: on a node that is used up, a strict binding makes the
        // kernel's OOM killer end the process.
        let place = (config.page, NodePolicy::Node(node), cpu);
        let room = room::share_bytes(session, place, 1);
        let scratch = (2 * cache_bytes).min(config.bytes).min(room / 2);
        let bytes = config
            .bytes
            .min(room - scratch)
            .max(Self::MIN_BYTES)
            .next_multiple_of(4096);
        let chain_bytes = bytes as usize;
        let region = Region::new(
            session,
            RegionConfig {
                bytes: chain_bytes + scratch as usize,
                page: config.page,
                node: NodePolicy::Node(node),
                cpu,
            },
        )?;
        let chase = ChaseConfig {
            pattern: Pattern::Random,
            access: Access::Clean,
            stride_bytes: 64,
            seed: 0x6e6f_6465 + u64::from(node.0),
        };
        // SAFETY: the region lives as long as the chase beside it, and no other code writes its
        // first `chain_bytes` bytes.
        let mut chase =
            unsafe { Chase::new(&*session.backend, chase, region.start(), chain_bytes)? };
        // The CPU from which the chain will mostly be walked also builds it.
        let _pinned = Pinned::to(cpu)?;
        chase.resize_while(chain_bytes as u64, &|| !session.cancelled())?;
        let stream = session
            .backend
            .stream(BandwidthKernel::Read, session.backend.widest_vector())?;
        Ok(Self {
            chase,
            stream,
            region,
            page: config.page,
            node,
            chain_bytes,
            cache_bytes,
            stream_at: 0,
        })
    }

    /// What a reader of the figures must know about the buffer, if anything.
    pub(super) fn note(&self) -> Option<String> {
        if (self.chain_bytes as u64) < 2 * self.cache_bytes {
            return Some(format!(
                "memory of node {}: the chase has {} MiB, less than twice the declared cache of {} MiB, so part of it may lie in caches",
                self.node,
                self.chain_bytes >> 20,
                self.cache_bytes >> 20
            ));
        }
        let share = self.region.partial_page_share()?;
        Some(format!(
            "memory of node {}: {:.0} % of the buffer are {} pages",
            self.node,
            share * 100.0,
            self.page
        ))
    }

    /// Share of the pages that lie on the node.
    pub(super) fn placed_share(&self, session: &Session<'_>) -> Outcome<f64> {
        let page_bytes = match self.page {
            PageKind::Base => pages::base_page_bytes(),
            PageKind::Thp | PageKind::Huge2M => 2 << 20,
            PageKind::Huge1G => 1 << 30,
        };
        let share = numa::placed_share(
            self.region.start(),
            self.region.len(),
            page_bytes,
            &[self.node],
        );
        match share {
            Ok(share) => Outcome::Known(share),
            // With one node, all pages lie on it.
            Err(_) if session.topology.nodes.len() == 1 => Outcome::Known(1.0),
            Err(error) => Outcome::Missing {
                not_measured: error.not_measured(),
            },
        }
    }

    /// Nanoseconds per load of the chase from `cpu`.
    pub(super) fn latency(&mut self, session: &Session<'_>, cpu: CpuId) -> Result<Visit, Error> {
        let _pinned = Pinned::to(cpu)?;
        let clock = &session.clock;
        let scratch = self.region.len() - self.chain_bytes;
        hint::read_through(&self.region, self.chain_bytes, scratch);
        let chase = &mut self.chase;
        let per_iteration = chase.loads_per_iteration();
        chase.walk(256);
        let loads = Self::BATCH_NS / chase.probe_ns(clock);
        let iterations = (loads as u64 / per_iteration).max(1);
        Ok(take_batches(session, cpu, Self::BATCHES, |_| {
            clock.ns(chase.time(clock, iterations))
        }))
    }

    /// Rate at which one thread on `cpu` reads, in 10⁹ bytes per second.
    pub(super) fn read(&mut self, session: &Session<'_>, cpu: CpuId) -> Result<Visit, Error> {
        let _pinned = Pinned::to(cpu)?;
        let clock = &session.clock;
        let step = self.stream.bytes_per_iteration();
        let bytes = Self::STREAM_BYTES.min(self.region.len()) / step * step;
        let Self {
            stream,
            region,
            stream_at,
            ..
        } = self;
        let mut batch = || {
            if *stream_at + bytes > region.len() {
                *stream_at = 0;
            }
            let start = region.start().wrapping_add(*stream_at);
            *stream_at += bytes;
            let started = clock.now();
            // SAFETY: `bytes` bytes from `start` lie inside the region, at a multiple of 64
            // from its beginning; reading disturbs no chain.
            unsafe { stream.run(start, start, start, bytes, 1) };
            let ticks = (clock.now() - started) as f64 - clock.overhead_ticks();
            bytes as f64 / clock.ns(ticks.max(1.0))
        };
        batch();
        Ok(take_batches(session, cpu, Self::BATCHES, |_| batch()))
    }
}
