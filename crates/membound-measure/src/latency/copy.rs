//! One pinned copy of a chase: its buffer, and a visit to one size.

use membound_platform::affinity::Pinned;
use membound_types::{Access, CpuId, NodePolicy, PageKind, Pattern};

use crate::gate::Ticket;
use crate::random::hashed_below;
use crate::sampling::{Visit, take_batches};
use crate::{Chase, ChaseConfig, Error, Region, RegionConfig, Session, hint};

const MIB: u64 = 1 << 20;

/// The memory of one copy: a main part for large chains that grow and shrink in place, and scratch,
/// in which small chains lie at another address each round (so that the luck of one placement does
/// not become a figure) and which is read to empty the caches.
pub(super) struct Arena {
    pub(super) cpu: CpuId,
    region: Region,
    scratch_bytes: u64,
    main_bytes: u64,
    full_pass_bytes: u64,
}

impl Arena {
    /// Largest chain, in bytes, that lies in the scratch part.
    const SMALL_BYTES: u64 = 8 * MIB;

    /// Bytes that bound the work of warming and emptying caches: twice the largest declared cache.
    fn cache_hint(session: &Session<'_>) -> u64 {
        2 * hint::largest_cache_bytes(session)
    }

    pub(super) fn scratch_bytes(session: &Session<'_>) -> u64 {
        Self::cache_hint(session).max(4 * Self::SMALL_BYTES)
    }

    /// Bytes that an arena for sizes up to `main_bytes` occupies.
    pub(super) fn bytes_for(session: &Session<'_>, main_bytes: u64) -> u64 {
        if main_bytes <= Self::SMALL_BYTES {
            2 * Self::SMALL_BYTES
        } else {
            Self::scratch_bytes(session).saturating_add(main_bytes)
        }
    }

    pub(super) fn new(
        session: &Session<'_>,
        cpu: CpuId,
        page: PageKind,
        node: NodePolicy,
        main_bytes: u64,
    ) -> Result<Self, Error> {
        // A buffer only for small sizes needs no part for emptying large caches.
        let small = main_bytes <= Self::SMALL_BYTES;
        let scratch_bytes = if small {
            2 * Self::SMALL_BYTES
        } else {
            Self::scratch_bytes(session)
        };
        let main_bytes = if small {
            0
        } else {
            main_bytes.next_multiple_of(4096)
        };
        let bytes = usize::try_from(scratch_bytes + main_bytes)
            .map_err(|_| Error::Invalid(format!("{main_bytes} bytes exceed the address space")))?;
        let region = Region::new(
            session,
            RegionConfig {
                bytes,
                page,
                node,
                cpu,
            },
        )?;
        Ok(Self {
            cpu,
            region,
            scratch_bytes,
            main_bytes,
            full_pass_bytes: Self::cache_hint(session),
        })
    }

    /// Size of the largest chain that fits here, in bytes.
    pub(super) const fn largest(&self) -> u64 {
        if self.main_bytes == 0 {
            Self::SMALL_BYTES
        } else {
            self.main_bytes
        }
    }

    pub(super) fn partial_page_share(&self) -> Option<f64> {
        self.region.partial_page_share()
    }
}

/// The chains of one copy for one series.
pub(super) struct Copy<'arena> {
    arena: &'arena Arena,
    small: Chase,
    large: Option<Chase>,
    pattern: Pattern,
    access: Access,
    seed: u64,
}

impl<'arena> Copy<'arena> {
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Maximum length of a batch in nanoseconds; a shorter batch is one full pass over the chain.
    const MAX_BATCH_NS: f64 = 1.5e6;
    /// Largest chain, in bytes, that is warmed by following it as a whole, which takes seconds for chains in main
    /// memory. A guest may see hundreds of megabytes declared as its cache and get a few of them.
    const MAX_FOLLOWED_BYTES: u64 = 64 * MIB;
    /// Loads along a chain whose lines were read in order: they leave the inner caches as the chase does.
    const SETTLING_LOADS: u64 = 1 << 18;

    pub(super) fn new(
        session: &Session<'_>,
        arena: &'arena Arena,
        pattern: Pattern,
        access: Access,
        stride_bytes: u64,
        seed: u64,
    ) -> Result<Self, Error> {
        let config = ChaseConfig {
            pattern,
            access,
            stride_bytes,
            seed,
        };
        let start = arena.region.start();
        let scratch = arena.scratch_bytes as usize;
        // SAFETY: the region outlives the copy, and its two parts are used by one chase each.
        let small = unsafe { Chase::new(&*session.backend, config, start, scratch)? };
        let large = if arena.main_bytes == 0 {
            None
        } else {
            let base = start.wrapping_add(scratch);
            let bytes = arena.main_bytes as usize;
            // SAFETY: as above.
            Some(unsafe { Chase::new(&*session.backend, config, base, bytes)? })
        };
        Ok(Self {
            arena,
            small,
            large,
            pattern,
            access,
            seed,
        })
    }

    /// Warms a chain of `size` bytes and times it, pinned, together with the other copies: all
    /// begin at the same time, and copies that finish early keep loading until the last is done.
    pub(super) fn visit(
        &mut self,
        session: &Session<'_>,
        size: u64,
        round: u64,
        mut ticket: Ticket<'_>,
    ) -> Result<Visit, Error> {
        // If an error returns from here, the ticket is dropped, and the others do not wait for it.
        let _pinned = Pinned::to(self.arena.cpu)?;
        let Some(iterations) = self.prepare(session, size, round)? else {
            return Ok(Visit::default());
        };
        ticket.pass();
        let visit = self.batches(session, size, iterations);
        ticket.finish();
        while !ticket.all_finished() {
            self.chase_for(size).walk(1000);
        }
        Ok(visit)
    }

    fn chase_for(&mut self, size: u64) -> &mut Chase {
        match &mut self.large {
            Some(large) if size > Arena::SMALL_BYTES => large,
            _ => &mut self.small,
        }
    }

    pub(super) const fn cpu(&self) -> CpuId {
        self.arena.cpu
    }

    /// Builds and warms the chain; returns the iterations of a batch, or `None` when the
    /// session was cancelled meanwhile.
    fn prepare(
        &mut self,
        session: &Session<'_>,
        size: u64,
        round: u64,
    ) -> Result<Option<u64>, Error> {
        let clock = &session.clock;
        let is_small = self.large.is_none() || size <= Arena::SMALL_BYTES;
        if is_small {
            let pages = (self.arena.scratch_bytes - size.min(self.arena.scratch_bytes)) / 4096;
            let offset = hashed_below(self.seed ^ round, size, pages + 1) as usize * 4096;
            let base = self.arena.region.start().wrapping_add(offset);
            let capacity = self.arena.scratch_bytes as usize - offset;
            // SAFETY: the new place lies inside the scratch part, which only this chase uses.
            unsafe { self.small.rebase(base, capacity) };
        }
        let full_pass_bytes = self.arena.full_pass_bytes;
        let arena = self.arena;
        // Lines that were only read are evicted faster than a dirty chase's.
        let is_clean = self.access == Access::Clean;
        let chase = self.chase_for(size);
        chase.resize_while(size, &|| !session.cancelled())?;
        let elements = chase.elements();
        if size > full_pass_bytes {
            // Produces the state that a full pass would leave, in less time: caches full of other
            // lines, and the lines of the page tables.
            let scratch = arena.scratch_bytes as usize;
            hint::read_through(&arena.region, 0, scratch);
            hint::read_translations(&arena.region, scratch, size as usize);
            // Each of those lines of the page tables is then used a few times, so that data and
            // translations settle into their shares of the caches.
            walk(
                session,
                chase,
                8 * size / hint::BYTES_PER_PAGE_TABLE_LINE as u64,
            );
        } else if size > Self::MAX_FOLLOWED_BYTES && is_clean {
            // Reading in order brings as many lines into the caches as a pass along the chain, a few times faster.
            hint::read_through(&arena.region, arena.scratch_bytes as usize, size as usize);
            walk(session, chase, Self::SETTLING_LOADS);
        } else {
            walk(session, chase, elements);
        }
        let per_iteration = chase.loads_per_iteration();
        if session.cancelled() {
            return Ok(None);
        }
        // A short probe determines how long a batch is.
        let probe = chase.probe_ns(clock);
        let shortest = clock.ns(clock.min_batch_ticks() as f64);
        let one_pass = elements as f64 * probe;
        let batch_ns = one_pass.clamp(shortest, Self::MAX_BATCH_NS.max(shortest));
        if size <= full_pass_bytes && one_pass < batch_ns {
            chase.walk((shortest / probe) as u64);
        }
        Ok(Some(((batch_ns / probe) as u64 / per_iteration).max(1)))
    }

    fn batches(&mut self, session: &Session<'_>, size: u64, iterations: u64) -> Visit {
        let cpu = self.arena.cpu;
        let pattern = self.pattern;
        let chase = self.chase_for(size);
        // Rings are walked in whole lines, so that a stride of a fraction of a line weights all
        // parts of a line equally.
        let iterations = if pattern == Pattern::Stride {
            let a_line = (64 / chase.loads_per_iteration()).max(1);
            iterations.next_multiple_of(a_line)
        } else {
            iterations
        };
        take_batches(session, cpu, Self::BATCHES, |core_hz| {
            let arithmetic_ns = chase.arithmetic_cycles_per_load() / core_hz * 1e9;
            let ticks = chase.time(&session.clock, iterations);
            (session.clock.ns(ticks) - arithmetic_ns).max(0.0)
        })
    }
}

/// Follows the chain for `loads` loads, or until the session is cancelled.
fn walk(session: &Session<'_>, chase: &mut Chase, loads: u64) {
    const PIECE: u64 = 1 << 20;
    let mut left = loads;
    while left > 0 && !session.cancelled() {
        chase.walk(left.min(PIECE));
        left = left.saturating_sub(PIECE);
    }
}
