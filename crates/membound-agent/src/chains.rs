//! Call chains, each stored once: see [`membound_wire::Allocations`].

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::Allocations;

use crate::allocation_rings::Shared;
use crate::words;

const WORD: usize = 8;
/// Places of the index that are searched.
const REACH: u64 = 64;
const LENGTH_MASK: u64 = 0xffff;

/// Number of a chain, which is stored if it is new; 0 if there is no room for it.
pub(crate) fn number(shared: Shared, addresses: &[u64]) -> u32 {
    let hash = hash(addresses);
    let index = shared.place(offset_of!(Allocations, index_offset));
    let chains = shared.place(offset_of!(Allocations, chains_offset));
    let mask = shared
        .word(offset_of!(Allocations, index_words))
        .load(Ordering::Relaxed)
        .wrapping_sub(1);
    let mut new = None;
    let mut at = hash;
    for _ in 0..REACH {
        let place = index + (at & mask) as usize * WORD;
        let mut found = words::load(place);
        if found == 0 {
            let number = match new {
                Some(number) => number,
                None => match write(shared, chains, addresses, hash) {
                    Some(number) => *new.insert(number),
                    None => break,
                },
            };
            let word = hash & !0xffff_ffff | u64::from(number);
            let put =
                words::word64(place).compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
            match put {
                Ok(_) => return number,
                // Another thread was faster; if it stored the same chain, the copy written here is lost.
                Err(other) => found = other,
            }
        }
        let number = found as u32;
        if found >> 32 == hash >> 32 && same(chains, number, addresses, hash) {
            return number;
        }
        at = at.wrapping_add(1);
    }
    shared
        .word(offset_of!(Allocations, unkept))
        .fetch_add(1, Ordering::Relaxed);
    0
}

fn hash(addresses: &[u64]) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = addresses.len() as u64;
    for address in addresses {
        hash = (hash.rotate_left(5) ^ address).wrapping_mul(SPREAD);
    }
    hash ^ hash >> 29
}

fn first_word(addresses: &[u64], hash: u64) -> u64 {
    hash & !0xffff_ffff | addresses.len() as u64 & LENGTH_MASK
}

/// Writes a new chain into reserved words; `None` if there is no room.
fn write(shared: Shared, chains: usize, addresses: &[u64], hash: u64) -> Option<u32> {
    let needed = addresses.len() as u64 + 1;
    let limit = shared
        .word(offset_of!(Allocations, chains_words))
        .load(Ordering::Relaxed);
    let used = shared.word(offset_of!(Allocations, chains_used));
    let in_bounds = |start: u64| start.checked_add(needed).is_some_and(|end| end <= limit);
    if !in_bounds(used.load(Ordering::Relaxed)) {
        return None;
    }
    let start = used.fetch_add(needed, Ordering::Relaxed);
    if !in_bounds(start) {
        return None;
    }
    let at = chains + start as usize * WORD;
    words::store(at, first_word(addresses, hash));
    for (index, address) in (1..).zip(addresses) {
        words::store(at + index * WORD, *address);
    }
    u32::try_from(start).ok()
}

fn same(chains: usize, number: u32, addresses: &[u64], hash: u64) -> bool {
    let at = chains + number as usize * WORD;
    words::load(at) == first_word(addresses, hash)
        && (1..)
            .zip(addresses)
            .all(|(index, address)| words::load(at + index * WORD) == *address)
}
