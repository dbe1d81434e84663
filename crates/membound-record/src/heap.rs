//! What one process has allocated: blocks and mappings by address, while they exist.
//!
//! Events are applied in time order. An allocation that overlaps an existing block means that the block's end
//! was missed, and ends it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use membound_launch::{AllocationAction, AllocationEvent, AllocationFunction};
use membound_platform::{Root, memory};
use membound_run::ObjectId;
use rustc_hash::FxHashMap;

use crate::allocation_sums::Totals;
use crate::live::LiveHistory;

/// Blocks of one process that are kept; further allocations are only counted.
const MAX_BLOCKS: usize = 8 << 20;

/// Recorded blocks on each side of an address that are examined for one that represents others.
const MAX_EXAMINED: usize = 64;
/// Maximum distance to a block that is taken for the unrecorded ones around it, in units of the bytes that it
/// represents. Gaps between sampled blocks are exponentially distributed with a mean of one unit, so that
/// longer ones hold no such blocks.
const MAX_GAP: f64 = 8.0;

/// An allocated block or mapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeapBlock {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Number of the call chain in this process.
    pub(crate) chain: u32,
    /// The function that allocated it.
    pub(crate) function: AllocationFunction,
    /// The thread that allocated it, as the kernel numbers it.
    pub(crate) thread: u32,
    /// Time of the allocation.
    pub(crate) t_ns: u64,
    /// Number of allocations that this sampled one represents.
    pub(crate) weight: f32,
    /// True if it only reserves addresses: its bytes do not count as live ones.
    is_reservation: bool,
    /// Number of its object, once an access fell into it.
    pub(crate) object: Option<ObjectId>,
}

/// End of a block that has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) object: ObjectId,
    pub(crate) t_ns: u64,
}

/// A process's allocations.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Blocks of allocators, by first address.
    blocks: BTreeMap<u64, HeapBlock>,
    /// Mappings of the kernel, by first address; blocks lie inside them.
    mappings: BTreeMap<u64, HeapBlock>,
    /// By call chain and function.
    pub(crate) totals: FxHashMap<(u32, AllocationFunction), Totals>,
    /// Live bytes over time, by the same.
    pub(crate) live: LiveHistory,
    /// Blocks that were not kept for lack of room.
    pub(crate) unkept: u64,
}

impl Heap {
    /// Applies an event that happened at `t_ns`. Appends the blocks that ended and have an object.
    pub(crate) fn apply(&mut self, event: &AllocationEvent, t_ns: u64, ended: &mut Vec<Ended>) {
        match (event.action, event.function) {
            (AllocationAction::Allocated, AllocationFunction::Mmap) => {
                self.unmap(event.address, event.size, t_ns, ended);
                self.put(event, t_ns);
            }
            (AllocationAction::Allocated, _) => {
                self.free_overlapped(event.address, event.size, t_ns, ended);
                self.put(event, t_ns);
            }
            (AllocationAction::Freed, AllocationFunction::Munmap | AllocationFunction::Mmap) => {
                self.unmap(event.address, event.size, t_ns, ended);
            }
            (AllocationAction::Freed, _) => {
                if let Some(block) = self.blocks.remove(&event.address) {
                    self.end(&block, block.size, t_ns, ended);
                }
            }
        }
    }

    /// The allocator's block that contains an address, with its first address.
    pub(crate) fn block(&mut self, address: u64) -> Option<(u64, &mut HeapBlock)> {
        at(&mut self.blocks, address)
    }

    /// The mapping that contains an address, with its first address.
    pub(crate) fn mapping(&mut self, address: u64) -> Option<(u64, &mut HeapBlock)> {
        at(&mut self.mappings, address)
    }

    /// The recorded block that an unrecorded one at `address` is taken to be like: the nearest one in `range`
    /// that represents others, in units of the bytes that it represents. Since blocks are sampled by bytes,
    /// that is a block of some call chain with a probability that is the chain's share of the bytes there.
    /// `None` if all blocks there were recorded, or none nearby.
    pub(crate) fn nearest_sampled(&self, address: u64, range: &Range<u64>) -> Option<&HeapBlock> {
        let represents_others = |(_, block): &(&u64, &HeapBlock)| block.weight >= 2.0;
        let below = self.blocks.range(range.start..=address).rev();
        let above = self.blocks.range(address..range.end);
        let nearest = [
            below.take(MAX_EXAMINED).find(represents_others),
            above.take(MAX_EXAMINED).find(represents_others),
        ];
        let distance = |(start, block): (&u64, &HeapBlock)| {
            address.abs_diff(*start) as f64 / (f64::from(block.weight) * block.size as f64)
        };
        let nearest = nearest.into_iter().flatten();
        let nearest = nearest.min_by(|a, b| distance(*a).total_cmp(&distance(*b)))?;
        (distance(nearest) <= MAX_GAP).then_some(nearest.1)
    }

    fn put(&mut self, event: &AllocationEvent, t_ns: u64) {
        let totals = self
            .totals
            .entry((event.chain, event.function))
            .or_default();
        let weight = f64::from(event.weight);
        let bytes = event.size as f64 * weight;
        totals.blocks += weight;
        totals.blocks_variance += weight * (weight - 1.0);
        totals.bytes += bytes;
        let map = match event.function {
            AllocationFunction::Mmap => &mut self.mappings,
            _ => &mut self.blocks,
        };
        if map.len() >= MAX_BLOCKS {
            self.unkept += 1;
            return;
        }
        let is_reservation = is_reservation(event.size, machine_bytes());
        if !is_reservation {
            totals.live_bytes += bytes;
            totals.peak_bytes = totals.peak_bytes.max(totals.live_bytes);
            self.live.note((event.chain, event.function), t_ns, totals);
        }
        let block = HeapBlock {
            size: event.size,
            chain: event.chain,
            function: event.function,
            thread: event.thread,
            t_ns,
            weight: event.weight,
            is_reservation,
            object: None,
        };
        map.insert(event.address, block);
    }

    /// Ends `bytes` of a block: all of it, if it has no more.
    fn end(&mut self, block: &HeapBlock, bytes: u64, t_ns: u64, ended: &mut Vec<Ended>) {
        let whole = bytes >= block.size;
        if let Some(totals) = self.totals.get_mut(&(block.chain, block.function)) {
            let weight = f64::from(block.weight);
            if !block.is_reservation {
                totals.live_bytes -= bytes as f64 * weight;
                self.live.note((block.chain, block.function), t_ns, totals);
            }
            if whole {
                totals.freed += weight;
                totals.lifetime_ns += t_ns.saturating_sub(block.t_ns) as f64 * weight;
            }
        }
        if let (true, Some(object)) = (whole, block.object) {
            ended.push(Ended { object, t_ns });
        }
    }

    fn free_overlapped(&mut self, start: u64, size: u64, t_ns: u64, ended: &mut Vec<Ended>) {
        for start in overlapped(&self.blocks, start, size) {
            if let Some(block) = self.blocks.remove(&start) {
                self.end(&block, block.size, t_ns, ended);
            }
        }
    }

    /// Removes an address range from the mappings there: a mapping may lose its beginning, its end, or a
    /// piece in the middle.
    fn unmap(&mut self, start: u64, size: u64, t_ns: u64, ended: &mut Vec<Ended>) {
        let end = start.saturating_add(size);
        for first in overlapped(&self.mappings, start, size) {
            let Some(block) = self.mappings.remove(&first) else {
                continue;
            };
            let last = first.saturating_add(block.size);
            let cut = end.min(last) - start.max(first);
            self.end(&block, cut, t_ns, ended);
            for rest in [first..start.max(first), end.min(last)..last] {
                if rest.start < rest.end {
                    let size = rest.end - rest.start;
                    self.mappings
                        .insert(rest.start, HeapBlock { size, ..block });
                }
            }
        }
        // Blocks of an allocator whose memory is gone are gone too.
        self.free_overlapped(start, size, t_ns, ended);
    }
}

/// True if a block of `size` bytes is larger than the memory of the machine (0 if not known). Databases and
/// runtimes reserve terabytes of address space and use a small part of it.
const fn is_reservation(size: u64, machine_bytes: u64) -> bool {
    machine_bytes > 0 && size > machine_bytes
}

/// Memory of this machine in bytes; 0 if it cannot be read.
fn machine_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| memory::total_bytes(&Root::system()))
}

fn at(map: &mut BTreeMap<u64, HeapBlock>, address: u64) -> Option<(u64, &mut HeapBlock)> {
    let (start, block) = map.range_mut(..=address).next_back()?;
    // A block of zero bytes still has an address.
    (address - start < block.size.max(1)).then_some((*start, block))
}

/// First addresses of the blocks that overlap `size` bytes at `start`.
fn overlapped(map: &BTreeMap<u64, HeapBlock>, start: u64, size: u64) -> Vec<u64> {
    let end = start.saturating_add(size.max(1));
    let before = map.range(..start).next_back();
    let before = before.filter(|(first, block)| first.saturating_add(block.size) > start);
    let before = before.map(|(first, _)| *first);
    before
        .into_iter()
        .chain(map.range(start..end).map(|(first, _)| *first))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(
        action: AllocationAction,
        function: AllocationFunction,
        address: u64,
        size: u64,
    ) -> AllocationEvent {
        AllocationEvent {
            tsc: 0,
            thread: 1,
            action,
            function,
            address,
            size,
            chain: 3,
            weight: 1.0,
        }
    }

    fn allocated(function: AllocationFunction, address: u64, size: u64) -> AllocationEvent {
        event(AllocationAction::Allocated, function, address, size)
    }

    fn freed(function: AllocationFunction, address: u64, size: u64) -> AllocationEvent {
        event(AllocationAction::Freed, function, address, size)
    }

    fn find(heap: &mut Heap, address: u64) -> Option<(u64, &mut HeapBlock)> {
        match heap.block(address).is_some() {
            true => heap.block(address),
            false => heap.mapping(address),
        }
    }

    fn starts(heap: &mut Heap, addresses: &[u64]) -> Vec<Option<u64>> {
        addresses
            .iter()
            .map(|it| find(heap, *it).map(|(start, _)| start))
            .collect()
    }

    #[test]
    fn an_unrecorded_block_is_like_the_nearest_one_that_represents_others() {
        use AllocationFunction::Malloc;
        let sampled = |address, chain, weight| AllocationEvent {
            chain,
            weight,
            ..allocated(Malloc, address, 64)
        };
        let mut heap = Heap::default();
        let mut ended = Vec::new();
        // Two call chains, each block one of a thousand; between them one whose like were all recorded.
        for event in [
            sampled(0x10_0000, 1, 1000.0),
            sampled(0x10_8000, 2, 1.0),
            sampled(0x12_0000, 3, 1000.0),
        ] {
            heap.apply(&event, 1, &mut ended);
        }
        let chain = |address, range: Range<u64>| {
            let like = heap.nearest_sampled(address, &range);
            like.map(|block| block.chain)
        };
        let all = 0..u64::MAX;
        assert_eq!(chain(0x10_9000, all.clone()), Some(1));
        assert_eq!(chain(0x11_f000, all.clone()), Some(3));
        assert_eq!(chain(0x0f_0000, all.clone()), Some(1));
        // Another mapping begins between the address and the nearest block.
        assert_eq!(chain(0x11_f000, 0x10_0000..0x12_0000), Some(1));
        assert_eq!(chain(0x11_f000, 0x11_0000..0x12_0000), None);
        // Eight times the bytes that a block represents are the limit.
        assert_eq!(chain(0x12_0000 + 7 * 64_000, all.clone()), Some(3));
        assert_eq!(chain(0x12_0000 + 9 * 64_000, all), None);
    }

    #[test]
    fn blocks_are_found_while_they_live() {
        use AllocationFunction::{Free, Malloc};
        let mut heap = Heap::default();
        let mut ended = Vec::new();
        heap.apply(&allocated(Malloc, 100, 50), 1, &mut ended);
        heap.apply(&allocated(Malloc, 200, 0), 2, &mut ended);
        assert_eq!(
            starts(&mut heap, &[99, 100, 149, 150, 200, 201]),
            [None, Some(100), Some(100), None, Some(200), None]
        );
        find(&mut heap, 120).unwrap().1.object = Some(ObjectId(7));
        heap.apply(&freed(Free, 100, 0), 11, &mut ended);
        assert_eq!(
            ended,
            [Ended {
                object: ObjectId(7),
                t_ns: 11
            }]
        );
        assert_eq!(starts(&mut heap, &[120]), [None]);
        heap.apply(&freed(Free, 100, 0), 12, &mut ended);
        assert_eq!(ended.len(), 1, "it was free already");
        let totals = heap.totals[&(3, Malloc)];
        assert_eq!(
            (totals.blocks, totals.freed, totals.lifetime_ns),
            (2.0, 1.0, 10.0)
        );
        assert_eq!(
            (totals.bytes, totals.live_bytes, totals.peak_bytes),
            (50.0, 0.0, 50.0)
        );
    }

    #[test]
    fn what_only_reserves_addresses_is_never_live_memory() {
        use AllocationFunction::Mmap;
        const RESERVED: u64 = 1 << 62;
        assert!(is_reservation(RESERVED, machine_bytes()) || machine_bytes() == 0);
        assert!(!is_reservation(1 << 30, 1 << 30) && !is_reservation(RESERVED, 0));
        let mut heap = Heap::default();
        let mut ended = Vec::new();
        heap.apply(&allocated(Mmap, 1 << 12, RESERVED), 1, &mut ended);
        heap.apply(&allocated(Mmap, 1 << 20, 1 << 16), 2, &mut ended);
        let live = |heap: &Heap| heap.totals[&(3, Mmap)].live_bytes;
        let expected = if machine_bytes() == 0 {
            RESERVED as f64
        } else {
            65_536.0
        };
        assert_eq!(live(&heap), expected);
        assert!(
            heap.mapping(1 << 40).is_some(),
            "accesses there have an object"
        );
        heap.apply(&freed(Mmap, 1 << 12, RESERVED), 3, &mut ended);
        assert_eq!(live(&heap), 0.0);
    }

    #[test]
    fn a_free_that_was_missed_is_made_up_for() {
        use AllocationFunction::Malloc;
        let mut heap = Heap::default();
        let mut ended = Vec::new();
        for address in [100, 200, 300] {
            heap.apply(&allocated(Malloc, address, 64), 1, &mut ended);
            find(&mut heap, address).unwrap().1.object = Some(ObjectId(address as u32));
        }
        heap.apply(&allocated(Malloc, 150, 80), 5, &mut ended);
        let objects: Vec<u32> = ended.iter().map(|it| it.object.0).collect();
        assert_eq!(objects, [100, 200]);
        assert_eq!(
            starts(&mut heap, &[140, 160, 229, 300]),
            [None, Some(150), Some(150), Some(300)]
        );
    }

    #[test]
    fn mappings_can_be_unmapped_in_part() {
        use AllocationFunction::{Malloc, Mmap, Munmap};
        let mut heap = Heap::default();
        let mut ended = Vec::new();
        heap.apply(&allocated(Mmap, 0x1000, 0x9000), 1, &mut ended);
        find(&mut heap, 0x1000).unwrap().1.object = Some(ObjectId(1));
        heap.apply(&allocated(Malloc, 0x4800, 0x100), 2, &mut ended);
        assert_eq!(
            starts(&mut heap, &[0x4800, 0x4900]),
            [Some(0x4800), Some(0x1000)]
        );
        heap.apply(&freed(Munmap, 0x4000, 0x2000), 3, &mut ended);
        assert!(ended.is_empty(), "a part of it is still there");
        assert_eq!(
            starts(&mut heap, &[0x3fff, 0x4800, 0x5fff, 0x6000, 0x9fff]),
            [Some(0x1000), None, None, Some(0x6000), Some(0x6000)]
        );
        assert_eq!(find(&mut heap, 0x6000).unwrap().1.object, Some(ObjectId(1)));
        heap.apply(&allocated(Mmap, 0x2000, 0x1000), 4, &mut ended);
        assert_eq!(
            starts(&mut heap, &[0x1fff, 0x2000, 0x3000]),
            [Some(0x1000), Some(0x2000), Some(0x3000)]
        );
        heap.apply(&freed(Munmap, 0, u64::MAX), 5, &mut ended);
        assert_eq!(
            starts(&mut heap, &[0x1000, 0x2000, 0x3000, 0x6000]),
            [None; 4]
        );
        assert_eq!(heap.totals[&(3, Mmap)].live_bytes, 0.0);
    }
}
