//! Addresses of blocks that were reported and are not freed yet: only their frees are reported.
//!
//! The tables belong to the process; forked children inherit them as they inherit the blocks. The stub
//! looks into a **filter**, which has one byte for each range of addresses (modulo its size) with the
//! number of blocks there; where that is 0, the call passes. Before that it looks into the filter's
//! **summary**, which has one bit for each eight neighbouring bytes of it and stays in the caches: most
//! blocks were not reported, and a program that frees millions of them a second would otherwise have one
//! more cache miss for each. The **set** has the addresses themselves: the blocks of [`STRETCH_BITS`]
//! address bits share a line, so that neighbours in memory are neighbours here.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::sys::{Errno, Protection, Scratch};
use crate::words::word32;

/// Bytes of the filter.
pub(crate) const FILTER_BYTES: usize = 1 << 22;
/// Low bits of addresses that do not select a byte of the filter.
pub(crate) const FILTER_SHIFT: u32 = 4;
/// Bytes of the filter that share a bit of the summary.
const SUMMARIZED: usize = 8;
/// Low bits of addresses that do not select a bit of the summary.
pub(crate) const SUMMARY_SHIFT: u32 = FILTER_SHIFT + SUMMARIZED.ilog2();
/// Words of the summary.
pub(crate) const SUMMARY_WORDS: usize = FILTER_BYTES / SUMMARIZED / u32::BITS as usize;
/// Saturated byte of the filter: its count is unknown from now on, so it stays.
const FULL: u8 = u8::MAX;

/// Lines of the set.
const LINES: usize = 1 << 18;
/// Words of a line.
const WORDS: usize = 16;
const WORD_BYTES: usize = 4;
/// Low bits of addresses that share a line.
const STRETCH_BITS: u32 = 8;
/// Bits of addresses.
const ADDRESS_BITS: u32 = 47;
/// Flags of a word: it holds an address; that address is on its second line.
const OCCUPIED: u32 = 1 << 31;
const ELSEWHERE: u32 = 1 << 30;
const _: () = assert!(ADDRESS_BITS - LINES.ilog2() <= 30);

static FILTER: [AtomicU8; FILTER_BYTES] = [const { AtomicU8::new(0) }; FILTER_BYTES];
static SUMMARY: [AtomicU32; SUMMARY_WORDS] = [const { AtomicU32::new(0) }; SUMMARY_WORDS];
/// The filter, for the stub.
pub(crate) static FILTER_AT: &[AtomicU8; FILTER_BYTES] = &FILTER;
/// The summary, for the stub.
pub(crate) static SUMMARY_AT: &[AtomicU32; SUMMARY_WORDS] = &SUMMARY;
static SET: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Allocates the set, unless there is one.
pub(crate) fn prepare() -> Result<(), Errno> {
    if SET.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let table = Scratch::untouched(LINES * WORDS * WORD_BYTES, Protection::ReadWrite)?;
    let address = table.address();
    let installed = SET.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
    if installed.is_ok() {
        table.keep();
    }
    Ok(())
}

/// Filling of the set, in sixteenths.
pub(crate) fn sixteenths() -> u32 {
    COUNT.load(Ordering::Relaxed) / (LINES * WORDS / 16) as u32
}

/// The two lines where an address may be stored, each with its word there.
fn lines(address: u64) -> Option<[(usize, u32); 2]> {
    let set = SET.load(Ordering::Acquire);
    if set == 0 || address >> ADDRESS_BITS != 0 {
        return None;
    }
    let line = (address >> STRETCH_BITS) as usize % LINES;
    let upper = (address >> STRETCH_BITS >> LINES.ilog2()) as u32;
    let low = address as u32 & ((1 << STRETCH_BITS) - 1);
    let word = upper << STRETCH_BITS | low | OCCUPIED;
    // Line and word together determine the address, for both lines.
    let other = line ^ ((upper.wrapping_mul(0x9e37_79b1) >> 8 | 1) as usize % LINES);
    let at = |line: usize| set + line * WORDS * WORD_BYTES;
    Some([(at(line), word), (at(other), word | ELSEWHERE)])
}

/// The places of a line, starting at the address's preferred one.
fn places(line: usize, address: u64) -> impl Iterator<Item = usize> {
    let first = (address >> FILTER_SHIFT) as usize;
    (0..WORDS).map(move |turn| line + (first + turn) % WORDS * WORD_BYTES)
}

fn filter(address: u64) -> &'static AtomicU8 {
    let index = (address >> FILTER_SHIFT) as usize % FILTER_BYTES;
    FILTER.get(index).unwrap_or(&FILTER[0])
}

/// The word of the summary with an address's bit, and that bit.
fn summary(address: u64) -> (&'static AtomicU32, u32) {
    let bit = (address >> SUMMARY_SHIFT) as usize;
    let word = SUMMARY.get(bit / u32::BITS as usize % SUMMARY_WORDS);
    (word.unwrap_or(&SUMMARY[0]), 1 << (bit % u32::BITS as usize))
}

/// True if all bytes of the filter that share the address's bit of the summary are 0.
fn is_clear_around(address: u64) -> bool {
    let first = (address >> FILTER_SHIFT) as usize % FILTER_BYTES / SUMMARIZED * SUMMARIZED;
    let bytes = FILTER.get(first..first + SUMMARIZED).unwrap_or_default();
    bytes.iter().all(|byte| byte.load(Ordering::SeqCst) == 0)
}

/// Adds `step` to an address's byte of the filter, unless it is saturated.
fn count(address: u64, step: u8) {
    let byte = filter(address);
    let mut found = byte.load(Ordering::Relaxed);
    while found != FULL {
        let new = found.wrapping_add(step);
        match byte.compare_exchange_weak(found, new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(other) => found = other,
        }
    }
}

/// Counts a new block in the filter, and then in its summary.
fn add_to_filter(address: u64) {
    count(address, 1);
    let (word, bit) = summary(address);
    word.fetch_or(bit, Ordering::SeqCst);
}

/// Removes a block from the filter, and from its summary with the last block there.
///
/// Another thread may add a block between the look at the filter and the change of the summary, so the filter
/// is looked at again afterwards. A free of that block in between, within nanoseconds of its allocation, is
/// not noticed.
fn remove_from_filter(address: u64) {
    count(address, u8::MAX);
    if !is_clear_around(address) {
        return;
    }
    let (word, bit) = summary(address);
    word.fetch_and(!bit, Ordering::SeqCst);
    if !is_clear_around(address) {
        word.fetch_or(bit, Ordering::SeqCst);
    }
}

/// Remembers a block; `false` if there was no room.
pub(crate) fn insert(address: u64) -> bool {
    let Some(lines) = lines(address) else {
        return false;
    };
    if contains(address) {
        // The free of the last block there was not observed.
        return true;
    }
    let put = lines.into_iter().any(|(line, word)| {
        places(line, address).any(|place| {
            let place = word32(place);
            place.load(Ordering::Relaxed) == 0
                && place
                    .compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })
    });
    if put {
        COUNT.fetch_add(1, Ordering::Relaxed);
        add_to_filter(address);
    }
    put
}

/// True if a block is remembered.
pub(crate) fn contains(address: u64) -> bool {
    filter(address).load(Ordering::Relaxed) != 0 && find(address).is_some()
}

fn find(address: u64) -> Option<(usize, u32)> {
    lines(address)?.into_iter().find_map(|(line, word)| {
        let place =
            places(line, address).find(|place| word32(*place).load(Ordering::Relaxed) == word)?;
        Some((place, word))
    })
}

/// Forgets a block; returns whether it was remembered.
pub(crate) fn remove(address: u64) -> bool {
    if filter(address).load(Ordering::Relaxed) == 0 {
        return false;
    }
    let removed = find(address).is_some_and(|(place, word)| {
        word32(place)
            .compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    });
    if removed {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        remove_from_filter(address);
    }
    removed
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// All tests share the process's tables, so one uses them at a time.
    fn exclusive_tables() -> MutexGuard<'static, ()> {
        static TABLES: Mutex<()> = Mutex::new(());
        TABLES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn an_inserted_address_is_removed_once() {
        let _tables = exclusive_tables();
        assert!(prepare().is_ok());
        for step in [8, 16, 48, 4096, 1 << 20] {
            let blocks = || (1..60_000).map(move |block| 0x7f00_0000_0000 + block * step);
            for address in blocks() {
                assert!(insert(address), "{step}: {address:x}");
                assert!(insert(address), "{step}: {address:x}");
            }
            assert!(!remove(0x10));
            for address in blocks() {
                assert!(contains(address), "{step}: {address:x}");
                assert!(!contains(address ^ 1), "{step}: {address:x}");
                assert!(!remove(address ^ (1 << 40)), "{step}: {address:x}");
                assert!(remove(address), "{step}: {address:x}");
                assert!(!remove(address), "{step}: {address:x}");
            }
        }
        assert!(!insert(1 << 47), "no address of a program's");
        assert_eq!(sixteenths(), 0);
    }

    /// True if the stub looks at the filter for this address.
    fn is_in_summary(address: u64) -> bool {
        let (word, bit) = summary(address);
        word.load(Ordering::Relaxed) & bit != 0
    }

    #[test]
    fn the_filter_is_empty_again_when_all_blocks_are() {
        let _tables = exclusive_tables();
        let addresses = || (0..200).map(|turn| 0x3f1_2310 + turn * FILTER_BYTES as u64 * 16);
        for address in addresses() {
            add_to_filter(address);
        }
        assert_eq!(filter(0x3f1_2310).load(Ordering::Relaxed), 200);
        assert!(is_in_summary(0x3f1_2310));
        for address in addresses() {
            assert!(is_in_summary(address));
            remove_from_filter(address);
        }
        assert_eq!(filter(0x3f1_2310).load(Ordering::Relaxed), 0);
        assert!(!is_in_summary(0x3f1_2310));
        // A saturated byte stays.
        (0..300).for_each(|_| add_to_filter(0x3f4_5610));
        (0..300).for_each(|_| remove_from_filter(0x3f4_5610));
        assert_eq!(filter(0x3f4_5610).load(Ordering::Relaxed), FULL);
        assert!(is_in_summary(0x3f4_5610));
    }

    #[test]
    fn the_summary_has_a_bit_for_eight_neighbours() {
        let _tables = exclusive_tables();
        let (first, last, next) = (0x5_0000, 0x5_0070, 0x5_0080);
        add_to_filter(first);
        add_to_filter(last);
        assert!(is_in_summary(first + 0x30) && !is_in_summary(next) && !is_in_summary(first - 1));
        remove_from_filter(first);
        assert!(is_in_summary(first), "the last one is still there");
        remove_from_filter(last);
        assert!(!is_in_summary(first));
    }
}
