//! Finds room for an area: near its module, and away from mappings that will grow.

use std::ops::Range;

use crate::maps::Mapping;

/// Lowest address used: below it an ordinary process may map nothing, and a null pointer with an offset
/// must fault.
const LOWEST: u64 = 0x1_0000;
/// End of the addresses that a process may map without five-level paging.
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Longest planned jump: shorter than its reach, so that range ends need not be exact to the byte.
const REACH: u64 = (1 << 31) - (1 << 20);
/// Bytes kept free above the start of the heap.
const HEAP_ROOM: u64 = 1 << 30;
/// Bytes kept free below the stack.
const STACK_ROOM: u64 = 1 << 30;

/// A free range of `length` bytes (a multiple of a page) as near to `near` as possible, so that every byte
/// of it and every byte of `near` can reach each other by a jump.
///
/// Ranges into which the heap or the stack would grow are used only if there is no other; `reserved` ones
/// never.
pub(crate) fn find(
    maps: &[Mapping],
    heap_start: u64,
    reserved: &[Range<u64>],
    near: &Range<u64>,
    length: u64,
) -> Option<u64> {
    // Farthest start downwards and farthest end upwards.
    let low = near.end.saturating_sub(REACH).max(LOWEST);
    let high = near.start.saturating_add(REACH).min(HIGHEST);
    let mut avoided = growing(maps, heap_start);
    avoided.extend_from_slice(reserved);
    best(maps, &avoided, low..high, near, length)
        .or_else(|| best(maps, reserved, low..high, near, length))
}

fn best(
    maps: &[Mapping],
    avoided: &[Range<u64>],
    within: Range<u64>,
    near: &Range<u64>,
    length: u64,
) -> Option<u64> {
    let mut taken: Vec<Range<u64>> = maps
        .iter()
        .map(|map| map.range.clone())
        .chain(avoided.iter().cloned())
        .collect();
    taken.sort_unstable_by_key(|range| range.start);
    let mut best: Option<(u64, u64)> = None;
    let mut free = within.start;
    let ends = std::iter::once(within.end..within.end);
    for range in taken.into_iter().chain(ends) {
        let gap = free..range.start.min(within.end);
        if gap.end > gap.start && gap.end - gap.start >= length {
            let start = if gap.start >= near.end {
                gap.start
            } else {
                gap.end - length
            };
            let distance = start.abs_diff(near.start);
            if best.is_none_or(|(least, _)| distance < least) {
                best = Some((distance, start));
            }
        }
        free = free.max(range.end);
    }
    best.map(|(_, start)| start)
}

/// The ranges into which heap and stack would grow.
fn growing(maps: &[Mapping], heap_start: u64) -> Vec<Range<u64>> {
    let mut growing = Vec::new();
    if heap_start != 0 {
        growing.push(heap_start..heap_start.saturating_add(HEAP_ROOM));
    }
    for map in maps {
        if map.name == "[stack]" {
            growing.push(map.range.start.saturating_sub(STACK_ROOM)..map.range.start);
        } else if map.name == "[heap]" {
            growing.push(map.range.start..map.range.start.saturating_add(HEAP_ROOM));
        }
    }
    growing
}

/// True if nothing is mapped in `range`.
pub(crate) fn is_free(maps: &[Mapping], range: &Range<u64>) -> bool {
    let at = maps.partition_point(|map| map.range.end <= range.start);
    maps.get(at).is_none_or(|map| map.range.start >= range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(range: Range<u64>, name: &str) -> Mapping {
        Mapping {
            range,
            readable: true,
            writable: false,
            executable: false,
            shared: false,
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: name.into(),
        }
    }

    #[test]
    fn an_executable_gets_room_below_itself_and_not_in_its_heap() {
        let module = 0x5555_5555_4000..0x5555_5556_0000;
        let maps = [map(module.clone(), "/bin/a")];
        let found = find(&maps, 0x5555_5556_8000, &[], &module, 0x1_0000).unwrap();
        assert_eq!(found, module.start - 0x1_0000);
    }

    #[test]
    fn a_low_executable_goes_around_its_heap() {
        // No room below it, and the heap would grow right above it.
        let module = 0x40_0000..0x100_0000;
        let maps = [map(module.clone(), "/bin/a")];
        let found = find(&maps, 0x110_0000, &[], &module, 0x80_0000).unwrap();
        assert_eq!(found, 0x110_0000 + HEAP_ROOM);
        // If nothing else is left, the heap gets less room.
        let length = 0x4000_0000;
        let found = find(&maps, 0x110_0000, &[], &module, length).unwrap();
        assert!(found >= 0x100_0000 && found + length <= module.start + REACH);
        assert_eq!(find(&maps, 0, &[], &module, REACH), None);
    }

    #[test]
    fn the_room_below_the_stack_is_left_alone() {
        let stack = 0x7ffc_0000_0000..0x7ffc_0002_1000;
        let module = 0x7ffb_f000_0000..0x7ffb_f001_0000;
        let maps = [map(module.clone(), "/lib/a"), map(stack, "[stack]")];
        let found = find(&maps, 0, &[], &module, 0x1000).unwrap();
        assert!(!(0x7ffb_c000_0000..0x7ffc_0000_0000).contains(&found));
    }

    proptest! {
        #[test]
        fn what_is_found_is_free_and_within_reach(
            starts in proptest::collection::vec((1_u64..0x8_0000, 1_u64..0x800), 1..40),
            pick in any::<prop::sample::Index>(),
            pages in 1_u64..0x4_0000,
        ) {
            let mut maps = Vec::new();
            let mut at = LOWEST;
            for (gap, length) in starts {
                let start = at + gap * 0x1000;
                maps.push(map(start..start + length * 0x1000, ""));
                at = start + length * 0x1000;
            }
            let near = maps[pick.index(maps.len())].range.clone();
            if let Some(found) = find(&maps, 0, &[], &near, pages * 0x1000) {
                let area = found..found + pages * 0x1000;
                prop_assert!(is_free(&maps, &area));
                prop_assert!(area.start.abs_diff(near.end) < 1 << 31);
                prop_assert!(area.end.abs_diff(near.start) < 1 << 31);
            }
        }
    }
}
