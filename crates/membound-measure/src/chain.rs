//! Closed chains over any list of offsets, in the order of the list.
//!
//! [`crate::Chase`] knows a few patterns that grow and shrink in place; here the caller
//! says where every element lies and which comes next. Offsets are bytes from the
//! beginning of a [`Region`]; elements are plain pointers of 8 bytes.

use std::marker::PhantomData;

use membound_types::Access;

use crate::arch::{Backend, ChainsLoop, ChaseLoop, Link};
use crate::random::Random;
use crate::{Clock, Error, Region};

/// Bytes of an element.
const ELEMENT_BYTES: u64 = 8;

/// The loop that follows one chain of plain pointers.
pub(crate) struct Follower(Box<dyn ChaseLoop>);

impl Follower {
    /// # Errors
    /// When the loop cannot be emitted.
    pub(crate) fn new(backend: &dyn Backend) -> Result<Self, Error> {
        Ok(Self(backend.chase(Link::Pointer, Access::Clean)?))
    }

    /// Loads that one iteration makes.
    pub(crate) fn loads_per_iteration(&self) -> u64 {
        self.0.loads_per_iteration()
    }
}

/// One closed chain, which borrows its region exclusively.
pub(crate) struct Ring<'r> {
    at: *mut u8,
    follower: &'r Follower,
    region: PhantomData<&'r mut Region>,
}

impl<'r> Ring<'r> {
    /// Links the elements at the byte offsets `order` into a ring that begins with the first.
    ///
    /// # Panics
    /// When `order` is empty or leaves the region.
    pub(crate) fn link(region: &'r mut Region, follower: &'r Follower, order: &[u64]) -> Self {
        Self {
            at: link(region, order),
            follower,
            region: PhantomData,
        }
    }

    /// Follows the chain for at least `loads` loads.
    pub(crate) fn walk(&mut self, loads: u64) {
        self.walk_iterations(loads.div_ceil(self.follower.loads_per_iteration()));
    }

    /// Ticks per load, timed over `iterations` iterations of the follower.
    pub(crate) fn time(&mut self, clock: &Clock, iterations: u64) -> f64 {
        let start = clock.now();
        self.walk_iterations(iterations);
        let ticks = (clock.now() - start) as f64 - clock.overhead_ticks();
        ticks.max(0.0) / (iterations * self.follower.loads_per_iteration()) as f64
    }

    fn walk_iterations(&mut self, iterations: u64) {
        let base = self.at;
        // SAFETY: the chain is closed over elements of the region that this ring borrows
        // exclusively; `link` made every element a plain pointer to another.
        self.at = unsafe { self.follower.0.walk(self.at, iterations, base, 0) };
    }
}

/// Several closed chains that are followed at once.
pub(crate) struct Bundle<'r> {
    heads: Vec<*mut u8>,
    follower: &'r dyn ChainsLoop,
    region: PhantomData<&'r mut Region>,
}

impl<'r> Bundle<'r> {
    /// Splits `order` into one ring per chain of `follower`. All rings have the same length; the
    /// last few elements that do not fill a ring are left out.
    ///
    /// # Panics
    /// When there are fewer elements than chains, or one leaves the region.
    pub(crate) fn link(
        region: &'r mut Region,
        follower: &'r dyn ChainsLoop,
        order: &[u64],
    ) -> Self {
        let chains = follower.chains();
        let each = order.len() / chains;
        let heads = (0..chains)
            .map(|chain| link(region, &order[chain * each..(chain + 1) * each]))
            .collect();
        Self {
            heads,
            follower,
            region: PhantomData,
        }
    }

    /// Follows every chain for `rounds` loads.
    pub(crate) fn walk(&mut self, rounds: u64) {
        // SAFETY: as in `Ring::walk_iterations`; there is one head a chain.
        unsafe { self.follower.walk(&mut self.heads, rounds) };
    }

    /// Ticks per load, timed over `rounds` rounds and counting the loads of all chains.
    pub(crate) fn time(&mut self, clock: &Clock, rounds: u64) -> f64 {
        let start = clock.now();
        self.walk(rounds);
        let ticks = (clock.now() - start) as f64 - clock.overhead_ticks();
        ticks.max(0.0) / (rounds * self.heads.len() as u64) as f64
    }
}

/// Writes the pointers and returns the address of the first element.
fn link(region: &mut Region, order: &[u64]) -> *mut u8 {
    let last = region.len() as u64 - ELEMENT_BYTES;
    assert!(
        order
            .iter()
            .all(|offset| *offset <= last && offset % ELEMENT_BYTES == 0),
        "every element lies inside the region"
    );
    let place = |offset: u64| region.start().wrapping_add(offset as usize);
    let first = *order.first().expect("a chain has an element");
    let following = order.iter().skip(1).copied().chain([first]);
    for (offset, next) in order.iter().zip(following) {
        // SAFETY: the offset was checked above, and the region is borrowed exclusively.
        unsafe { place(*offset).cast::<*mut u8>().write(place(next)) };
    }
    place(first)
}

/// Brings `items` into a random order (Fisher and Yates).
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..items.len()).rev() {
        let other = random.below(last as u64 + 1) as usize;
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use membound_platform::Root;
    use membound_types::{CpuId, NodePolicy, PageKind};

    use super::*;
    use crate::arch::{self, Portable};
    use crate::{Effort, RegionConfig, Session, Silent};

    fn region() -> Region {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        let config = RegionConfig {
            bytes: 1 << 20,
            page: PageKind::Base,
            node: NodePolicy::LOCAL,
            cpu: CpuId(0),
        };
        Region::new(&session, config).unwrap()
    }

    #[test]
    fn a_ring_visits_exactly_its_offsets_in_their_order_and_closes() {
        let mut region = region();
        let base = region.start() as u64;
        let follower = Follower::new(&Portable).unwrap();
        let mut order: Vec<u64> = (0..1000).map(|i| i * 1040).collect();
        shuffle(&mut order, 3);
        let mut ring = Ring::link(&mut region, &follower, &order);
        for _ in 0..2 {
            for offset in &order {
                assert_eq!(ring.at as u64 - base, *offset);
                ring.walk(1);
            }
        }
    }

    #[test]
    fn the_emitted_follower_goes_the_same_way() {
        let mut region = region();
        let base = region.start() as u64;
        let follower = Follower::new(&*arch::native()).unwrap();
        let order: Vec<u64> = (0..37).map(|i| i * 24).collect();
        let mut ring = Ring::link(&mut region, &follower, &order);
        ring.walk(1);
        let hops = follower.loads_per_iteration();
        assert_eq!(ring.at as u64 - base, hops % 37 * 24);
    }

    #[test]
    fn a_bundle_is_disjoint_rings_of_equal_length() {
        let mut region = region();
        let base = region.start() as u64;
        let follower = Portable.chains(4).unwrap();
        let order: Vec<u64> = (0..403).map(|i| i * 64).collect();
        let mut bundle = Bundle::link(&mut region, &*follower, &order);
        let first_heads = bundle.heads.clone();
        let mut visited = HashSet::new();
        for _ in 0..100 {
            for head in &bundle.heads {
                assert!(visited.insert(*head as u64 - base));
            }
            bundle.walk(1);
        }
        assert_eq!(bundle.heads, first_heads);
        assert_eq!(visited.len(), 400);
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn an_element_outside_is_refused() {
        let mut region = region();
        let follower = Follower::new(&Portable).unwrap();
        let end = region.len() as u64;
        let _ring = Ring::link(&mut region, &follower, &[0, end]);
    }

    #[test]
    fn shuffling_keeps_everything() {
        let mut items: Vec<u32> = (0..500).collect();
        shuffle(&mut items, 9);
        assert!(
            items
                .iter()
                .enumerate()
                .filter(|(at, item)| *at as u32 == **item)
                .count()
                < 10
        );
        items.sort_unstable();
        assert_eq!(items, (0..500).collect::<Vec<u32>>());
    }
}
