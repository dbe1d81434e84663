//! Closed chains through a buffer that grow and shrink in place.
//!
//! A random single cycle over n elements can be built one element at a time: element n is inserted
//! behind a random one of the n before it. Every cycle is equally likely that way (Sattolo's
//! cycles, grown instead of shuffled), no list of the order is needed, and because the random
//! element is a hash of n, the last element can be removed again. So one buffer serves a whole
//! sweep, upwards and downwards, at the cost of building the largest cycle once per direction.

use membound_types::{Access, Pattern};

use crate::arch::{Backend, ChaseLoop, Link};
use crate::random::hashed_below;
use crate::{Clock, Error};

/// Layout of a chase in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChaseConfig {
    /// Order of the visits.
    pub pattern: Pattern,
    /// Whether visited lines are written.
    pub access: Access,
    /// Distance between elements in bytes; a multiple of 8, at least 8, or 16 for dirty
    /// access.
    pub stride_bytes: u64,
    /// Seed of the order.
    pub seed: u64,
}

impl ChaseConfig {
    /// Bytes that [`Pattern::PageRandom`] keeps together.
    pub const PAGE_BYTES: u64 = 4096;

    /// Checks that an element fits the stride and, for [`Pattern::PageRandom`], that strides fit
    /// pages.
    ///
    /// # Errors
    /// [`Error::Invalid`] when an element does not fit the stride.
    pub fn check(&self) -> Result<(), Error> {
        let element: u64 = match self.access {
            Access::Clean => 8,
            Access::Dirty => 16,
        };
        if self.stride_bytes < element || !self.stride_bytes.is_multiple_of(8) {
            return Err(Error::Invalid(format!(
                "a stride of {} bytes cannot hold an element: use a multiple of 8 from {element} on",
                self.stride_bytes
            )));
        }
        let whole = Self::PAGE_BYTES.is_multiple_of(self.stride_bytes)
            || self.stride_bytes.is_multiple_of(Self::PAGE_BYTES);
        if self.pattern == Pattern::PageRandom && !whole {
            return Err(Error::Invalid(format!(
                "a page of {} bytes does not divide into strides of {}: use a power of two for page-random",
                Self::PAGE_BYTES,
                self.stride_bytes
            )));
        }
        Ok(())
    }

    const fn link(&self) -> Link {
        match self.pattern {
            Pattern::Indexed => Link::ScrambledOffset,
            Pattern::Random | Pattern::Stride | Pattern::PageRandom => Link::Pointer,
        }
    }
}

/// A chain and the loop that follows it.
pub struct Chase {
    config: ChaseConfig,
    base: *mut u8,
    capacity_bytes: usize,
    elements: u64,
    position: *mut u8,
    walker: Box<dyn ChaseLoop>,
}

// SAFETY: the chase is the only user of its buffer, as `new` requires, on whichever thread it runs.
unsafe impl Send for Chase {}

impl Chase {
    /// Key that scrambles offsets, so that they do not look like addresses.
    const KEY: u64 = 0x5bd1_e995_9d1b_58d3 & !7;
    /// Prefetch distance for the random elements, in insertions or removals.
    const PREFETCH_DISTANCE: u64 = 24;

    /// A chain of one element at `base`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stride too small, else when the loop cannot be emitted.
    ///
    /// # Safety
    /// `base` must point to `capacity_bytes` writable bytes, aligned to 64, that outlive the chase
    /// and that no other code uses meanwhile.
    pub unsafe fn new(
        backend: &dyn Backend,
        config: ChaseConfig,
        base: *mut u8,
        capacity_bytes: usize,
    ) -> Result<Self, Error> {
        config.check()?;
        let walker = backend.chase(config.link(), config.access)?;
        let mut chase = Self {
            config,
            base,
            capacity_bytes,
            elements: 0,
            position: base,
            walker,
        };
        chase.restart();
        Ok(chase)
    }

    /// Moves the chase to another buffer, where it begins again with one element.
    ///
    /// # Safety
    /// As for [`Chase::new`].
    pub unsafe fn rebase(&mut self, base: *mut u8, capacity_bytes: usize) {
        self.base = base;
        self.capacity_bytes = capacity_bytes;
        self.restart();
    }

    /// Elements in the chain.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    /// Makes the chain cover `size_bytes`: every element that lies in the first
    /// `size_bytes` bytes of the buffer, at least one.
    ///
    /// # Errors
    /// [`Error::Invalid`] when that is more than the buffer.
    pub fn resize(&mut self, size_bytes: u64) -> Result<(), Error> {
        self.resize_while(size_bytes, &|| true)
    }

    /// Like [`Chase::resize`], but calls `go_on` regularly, because linking many GiB takes many
    /// seconds. When it returns false, the chain is closed at the size that it has reached.
    ///
    /// # Errors
    /// As [`Chase::resize`].
    pub fn resize_while(&mut self, size_bytes: u64, go_on: &dyn Fn() -> bool) -> Result<(), Error> {
        if size_bytes > self.capacity_bytes as u64 {
            return Err(Error::Invalid(format!(
                "a chase over {size_bytes} bytes does not fit its buffer of {}",
                self.capacity_bytes
            )));
        }
        let elements = (size_bytes / self.config.stride_bytes).max(1);
        match self.config.pattern {
            Pattern::Random | Pattern::Indexed => self.resize_cycle(elements, go_on),
            Pattern::Stride => self.resize_ring(elements, go_on),
            Pattern::PageRandom => self.resize_pages(elements, go_on),
        }
        self.position = self.base;
        Ok(())
    }

    /// Loads that one iteration of [`Chase::walk`] makes.
    #[must_use]
    pub fn loads_per_iteration(&self) -> u64 {
        self.walker.loads_per_iteration()
    }

    /// Core cycles per load that the chase itself adds.
    #[must_use]
    pub fn arithmetic_cycles_per_load(&self) -> f64 {
        self.walker.arithmetic_cycles_per_load()
    }

    /// Follows the chain for at least `loads` loads from the current element.
    pub fn walk(&mut self, loads: u64) {
        let iterations = loads.div_ceil(self.loads_per_iteration());
        self.walk_iterations(iterations);
    }

    /// Ticks per load, timed over `iterations` iterations.
    pub fn time(&mut self, clock: &Clock, iterations: u64) -> f64 {
        let start = clock.now();
        self.walk_iterations(iterations);
        let ticks = (clock.now() - start) as f64 - clock.overhead_ticks();
        ticks.max(0.0) / (iterations * self.loads_per_iteration()) as f64
    }

    /// Rough nanoseconds per load: the minimum of a few short walks, because perturbation of a
    /// single walk would decide how long batches are.
    pub(crate) fn probe_ns(&mut self, clock: &Clock) -> f64 {
        const LOADS: u64 = 256;
        let iterations = (LOADS / self.loads_per_iteration()).max(1);
        (0..3)
            .map(|_| clock.ns(self.time(clock, iterations)))
            .fold(f64::INFINITY, f64::min)
            .max(0.05)
    }

    /// Lets another loop follow the chain from the current element; `walk` returns the element that
    /// it reached, which must belong to the chain.
    pub(crate) fn hand_over(&mut self, walk: impl FnOnce(*const u8) -> *const u8) {
        self.position = walk(self.position).cast_mut();
    }

    fn walk_iterations(&mut self, iterations: u64) {
        // SAFETY: the chain is closed over elements inside the buffer, which is alive and used only
        // here, as `new` requires.
        self.position = unsafe {
            self.walker
                .walk(self.position, iterations, self.base, Self::KEY)
        };
    }

    /// Address of element `index`.
    fn element(&self, index: u64) -> *mut u8 {
        self.base
            .wrapping_add((index * self.config.stride_bytes) as usize)
    }

    /// Value that an element holds if element `index` follows it.
    fn link_to(&self, index: u64) -> u64 {
        match self.config.link() {
            Link::Pointer => self.element(index) as u64,
            Link::ScrambledOffset => (index * self.config.stride_bytes) ^ Self::KEY,
        }
    }

    fn read(&self, index: u64) -> u64 {
        // SAFETY: callers pass elements that `resize` has checked to lie in the buffer.
        unsafe { self.element(index).cast::<u64>().read() }
    }

    fn write(&mut self, index: u64, link: u64) {
        // SAFETY: as in `read`.
        unsafe { self.element(index).cast::<u64>().write(link) };
    }

    fn restart(&mut self) {
        self.elements = 1;
        self.position = self.base;
        self.write(0, self.link_to(0));
    }

    /// The element behind which element `index` was inserted.
    const fn predecessor(&self, index: u64) -> u64 {
        hashed_below(self.config.seed, index, index)
    }

    fn resize_cycle(&mut self, elements: u64, go_on: &dyn Fn() -> bool) {
        while self.elements < elements && Self::may_go_on(self.elements, go_on) {
            let new = self.elements;
            prefetch(self.element(self.predecessor(new + Self::PREFETCH_DISTANCE)));
            let before = self.predecessor(new);
            self.write(new, self.read(before));
            self.write(before, self.link_to(new));
            self.elements += 1;
        }
        while self.elements > elements && Self::may_go_on(self.elements, go_on) {
            let last = self.elements - 1;
            if last > Self::PREFETCH_DISTANCE {
                prefetch(self.element(self.predecessor(last - Self::PREFETCH_DISTANCE)));
            }
            let before = self.predecessor(last);
            self.write(before, self.read(last));
            self.elements -= 1;
        }
    }

    fn resize_ring(&mut self, elements: u64, go_on: &dyn Fn() -> bool) {
        let mut last = self.elements.min(elements) - 1;
        while last + 1 < elements && Self::may_go_on(last, go_on) {
            self.write(last, self.link_to(last + 1));
            last += 1;
        }
        self.elements = last + 1;
        self.write(last, self.link_to(0));
    }

    /// Calls `go_on` for one in 2¹⁸ elements.
    fn may_go_on(index: u64, go_on: &dyn Fn() -> bool) -> bool {
        !index.is_multiple_of(1 << 18) || go_on()
    }

    fn elements_per_page(&self) -> u64 {
        (ChaseConfig::PAGE_BYTES / self.config.stride_bytes).max(1)
    }

    /// Links the elements `first..first + count` in a random order and returns the first
    /// and the last of that order.
    fn link_within(&mut self, first: u64, count: u64) -> (u64, u64) {
        let order = page_order(self.config.seed, first, count);
        for pair in order.windows(2) {
            self.write(first + pair[0], self.link_to(first + pair[1]));
        }
        (first + order[0], first + order[order.len() - 1])
    }

    /// Grows by whole pages. Shrinking, and areas below a page, start again with the first page.
    fn resize_pages(&mut self, elements: u64, go_on: &dyn Fn() -> bool) {
        let per_page = self.elements_per_page();
        let pages = elements.div_ceil(per_page);
        if !self.elements.is_multiple_of(per_page) || elements < self.elements || self.elements == 1
        {
            let count = elements.min(per_page);
            let (entry, exit) = self.link_within(0, count);
            self.write(exit, self.link_to(entry));
            self.elements = count;
        }
        for page in self.elements.div_ceil(per_page)..pages {
            if !Self::may_go_on(page << 8, go_on) {
                return;
            }
            let count = (elements - page * per_page).min(per_page);
            let before = hashed_below(self.config.seed, page, page);
            let order = page_order(self.config.seed, before * per_page, per_page);
            let exit_before = before * per_page + order[order.len() - 1];
            let (entry, exit) = self.link_within(page * per_page, count);
            self.write(exit, self.read(exit_before));
            self.write(exit_before, self.link_to(entry));
            self.elements = page * per_page + count;
        }
    }
}

/// Order of the elements in the page that begins with element `first`. The shuffle is Fisher and
/// Yates's instead of Sattolo's, because the order within a page need not be a cycle.
fn page_order(seed: u64, first: u64, count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..count).rev() {
        let other = hashed_below(seed ^ first.wrapping_mul(0x1000_0001), last, last + 1);
        order.swap(last as usize, other as usize);
    }
    order
}

/// Prefetches the line at `address`; an invalid address does no harm.
fn prefetch(address: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, and every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "powerpc64")]
    // SAFETY: a touch never faults.
    unsafe {
        std::arch::asm!("dcbt 0, {}", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(any(
        target_arch = "aarch64",
        target_arch = "powerpc64",
        target_arch = "x86_64"
    )))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::arch::Portable;

    #[repr(align(64))]
    #[derive(Clone, Copy)]
    struct Line([u8; 64]);

    struct Fixture {
        lines: Vec<Line>,
        chase: Chase,
    }

    fn fixture(pattern: Pattern, access: Access, stride_bytes: u64, bytes: usize) -> Fixture {
        let mut lines = vec![Line([0; 64]); bytes / 64];
        let config = ChaseConfig {
            pattern,
            access,
            stride_bytes,
            seed: 11,
        };
        // SAFETY: the buffer lives in the fixture beside the chase and is not used otherwise.
        let chase =
            unsafe { Chase::new(&Portable, config, lines.as_mut_ptr().cast(), bytes) }.unwrap();
        Fixture { lines, chase }
    }

    /// Element indices in the order in which the chain visits them, until it closes.
    fn visits(fixture: &mut Fixture) -> Vec<u64> {
        let base = fixture.lines.as_ptr() as u64;
        let stride = fixture.chase.config.stride_bytes;
        let mut order = Vec::new();
        loop {
            order.push((fixture.chase.position as u64 - base) / stride);
            fixture.chase.walk(1);
            if fixture.chase.position as u64 == base {
                return order;
            }
            assert!(
                order.len() <= fixture.chase.elements as usize,
                "the chain does not close"
            );
        }
    }

    #[test]
    fn every_pattern_visits_every_element_once_at_every_size_up_and_down() {
        for pattern in [
            Pattern::Random,
            Pattern::Stride,
            Pattern::PageRandom,
            Pattern::Indexed,
        ] {
            for stride in [8, 64, 192, 4096, 8192] {
                if pattern == Pattern::PageRandom && stride == 192 {
                    continue;
                }
                let mut fixture = fixture(pattern, Access::Clean, stride, 1 << 18);
                for size in [
                    1 << 10,
                    5 << 10,
                    64 << 10,
                    200 << 10,
                    1 << 18,
                    48 << 10,
                    3 << 10,
                ] {
                    fixture.chase.resize(size).unwrap();
                    let order = visits(&mut fixture);
                    let distinct: HashSet<u64> = order.iter().copied().collect();
                    let expected = (size / stride).max(1);
                    assert_eq!(order.len() as u64, expected, "{pattern:?} {stride} {size}");
                    assert_eq!(distinct.len(), order.len());
                    assert!(order.iter().all(|index| *index < expected));
                }
            }
        }
    }

    #[test]
    fn a_cancelled_chain_is_closed_at_its_end() {
        for pattern in [
            Pattern::Random,
            Pattern::Stride,
            Pattern::PageRandom,
            Pattern::Indexed,
        ] {
            let mut fixture = fixture(pattern, Access::Clean, 8, 8 << 20);
            fixture.chase.resize_while(8 << 20, &|| false).unwrap();
            let built = fixture.chase.elements();
            assert!(built < 1 << 20, "{pattern:?} went on to {built}");
            assert_eq!(visits(&mut fixture).len() as u64, built, "{pattern:?}");
            fixture.chase.resize(1 << 16).unwrap();
            assert_eq!(visits(&mut fixture).len(), 1 << 13, "{pattern:?}");
        }
    }

    #[test]
    fn growing_again_after_shrinking_gives_the_same_cycle() {
        let mut fixture = fixture(Pattern::Random, Access::Clean, 64, 1 << 16);
        fixture.chase.resize(1 << 16).unwrap();
        let before = visits(&mut fixture);
        fixture.chase.resize(1 << 12).unwrap();
        fixture.chase.resize(1 << 16).unwrap();
        assert_eq!(visits(&mut fixture), before);
    }

    #[test]
    fn a_random_cycle_has_no_order_to_speak_of() {
        let mut fixture = fixture(Pattern::Random, Access::Clean, 64, 1 << 18);
        fixture.chase.resize(1 << 18).unwrap();
        let order = visits(&mut fixture);
        let neighbours = order
            .windows(2)
            .filter(|pair| pair[1] == pair[0] + 1)
            .count();
        assert!(
            neighbours < 10,
            "{neighbours} of {} steps go one forward",
            order.len()
        );
    }

    #[test]
    fn page_random_leaves_a_page_only_when_it_is_done_with_it() {
        let mut fixture = fixture(Pattern::PageRandom, Access::Clean, 64, 1 << 18);
        fixture.chase.resize(1 << 18).unwrap();
        let pages: Vec<u64> = visits(&mut fixture)
            .iter()
            .map(|index| index / 64)
            .collect();
        let changes = pages.windows(2).filter(|pair| pair[0] != pair[1]).count();
        // The walk begins inside a page, so that page is seen at both ends.
        assert!(changes <= 64, "{changes} changes over 64 pages");
    }

    #[test]
    fn a_ring_goes_forward_by_one_stride() {
        let mut fixture = fixture(Pattern::Stride, Access::Clean, 128, 1 << 14);
        fixture.chase.resize(1 << 14).unwrap();
        assert_eq!(visits(&mut fixture), (0..128).collect::<Vec<u64>>());
    }

    #[test]
    fn dirty_chases_write_next_to_the_links_only() {
        let mut fixture = fixture(Pattern::Random, Access::Dirty, 64, 1 << 14);
        fixture.chase.resize(1 << 14).unwrap();
        assert_eq!(visits(&mut fixture).len(), 256);
        assert_eq!(visits(&mut fixture).len(), 256);
        let written = fixture
            .lines
            .iter()
            .filter(|line| line.0[8..16] != [0; 8])
            .count();
        assert_eq!(written, 256);
    }

    #[test]
    fn strides_below_an_element_and_sizes_beyond_the_buffer_are_refused() {
        let config = |access, stride_bytes| ChaseConfig {
            pattern: Pattern::Random,
            access,
            stride_bytes,
            seed: 1,
        };
        assert!(
            config(Access::Clean, 4)
                .check()
                .unwrap_err()
                .to_string()
                .contains("4 bytes")
        );
        assert!(config(Access::Clean, 12).check().is_err());
        assert!(config(Access::Dirty, 8).check().is_err());
        assert!(config(Access::Dirty, 16).check().is_ok());
        let in_pages = |stride_bytes| ChaseConfig {
            pattern: Pattern::PageRandom,
            ..config(Access::Clean, stride_bytes)
        };
        assert!(
            in_pages(96)
                .check()
                .unwrap_err()
                .to_string()
                .contains("strides of 96")
        );
        assert!(in_pages(64).check().is_ok() && in_pages(8192).check().is_ok());
        let mut fixture = fixture(Pattern::Random, Access::Clean, 64, 1 << 12);
        assert!(fixture.chase.resize(1 << 13).is_err());
    }
}
