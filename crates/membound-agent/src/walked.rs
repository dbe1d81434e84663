//! Cache of call chains that were walked before.
//!
//! A thread that allocates again in the same frame mostly has the same callers as before. That holds if its
//! return addresses are still where they were: comparing them is several times as fast as unwinding
//! ([`crate::unwind`]) and looking up the chain's number ([`crate::chains`]).
//!
//! All threads share the entries: their stacks, and so the keys of entries, differ. The version of an entry
//! is odd while it is written; a reader that finds another version afterwards discards what it has read.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::unwind::{self, Registers, Stack};

const ENTRIES: usize = 512;
/// Most return addresses of a cached chain; longer chains are walked every time.
pub(crate) const MAX_CACHED_CHAIN: usize = 32;

/// A cached chain: its start, and the places of its return addresses.
struct Entry {
    version: AtomicU64,
    ip: AtomicU64,
    sp: AtomicU64,
    bp: AtomicU64,
    /// See [`epoch`].
    epoch: AtomicU64,
    /// Number of return addresses in the upper half, the chain's number in the lower one.
    length_and_number: AtomicU64,
    /// Place on the stack and value of each return address.
    frames: [ReturnAddress; MAX_CACHED_CHAIN],
}

struct ReturnAddress {
    slot: AtomicU64,
    address: AtomicU64,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        version: AtomicU64::new(0),
        ip: AtomicU64::new(0),
        sp: AtomicU64::new(0),
        bp: AtomicU64::new(0),
        epoch: AtomicU64::new(0),
        length_and_number: AtomicU64::new(0),
        frames: [const {
            ReturnAddress {
                slot: AtomicU64::new(0),
                address: AtomicU64::new(0),
            }
        }; MAX_CACHED_CHAIN],
    }
}; ENTRIES];

/// Counts the shared memories in which chains were numbered.
static MEMORIES: AtomicU32 = AtomicU32::new(0);

/// Invalidates all entries: chains get other numbers from now on.
pub(crate) fn forget() {
    MEMORIES.fetch_add(1, Ordering::Release);
}

/// State for which entries are valid: the unwind rules and the memory with the numbers. Never 0, the value
/// of an entry that was never written.
fn epoch() -> u64 {
    let memories = u64::from(MEMORIES.load(Ordering::Acquire)) << 32;
    (memories | u64::from(unwind::generation())).wrapping_add(1)
}

fn entry_of(begin: &Registers) -> Option<&'static Entry> {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = (begin.ip ^ begin.sp.rotate_left(24)).wrapping_mul(SPREAD);
    TABLE.get((hash >> 40) as usize % ENTRIES)
}

/// Number of the chain that begins here, if it is cached and its return addresses are where they were.
pub(crate) fn number(begin: &Registers, stack: Stack) -> Option<u32> {
    let entry = entry_of(begin)?;
    let version = entry.version.load(Ordering::Acquire);
    let is_key = entry.ip.load(Ordering::Relaxed) == begin.ip
        && entry.sp.load(Ordering::Relaxed) == begin.sp
        && entry.bp.load(Ordering::Relaxed) == begin.bp
        && entry.epoch.load(Ordering::Relaxed) == epoch();
    if version & 1 != 0 || !is_key {
        return None;
    }
    let length_and_number = entry.length_and_number.load(Ordering::Relaxed);
    let frames = entry.frames.get(..(length_and_number >> 32) as usize)?;
    let is_there = |frame: &ReturnAddress| {
        stack.word(frame.slot.load(Ordering::Relaxed))
            == Some(frame.address.load(Ordering::Relaxed))
    };
    if !frames.iter().all(is_there) {
        return None;
    }
    // Keeps the loads above before the second load of the version.
    fence(Ordering::Acquire);
    (entry.version.load(Ordering::Relaxed) == version).then_some(length_and_number as u32)
}

/// Caches the chain with this number, whose return addresses are at `slots`.
pub(crate) fn store(begin: &Registers, slots: &[u64], addresses: &[u64], number: u32) {
    let Some(entry) = entry_of(begin).filter(|_| slots.len() <= MAX_CACHED_CHAIN) else {
        return;
    };
    let version = entry.version.load(Ordering::Relaxed);
    if version & 1 != 0 {
        return;
    }
    let claimed =
        entry
            .version
            .compare_exchange(version, version | 1, Ordering::Acquire, Ordering::Relaxed);
    if claimed.is_err() {
        return;
    }
    // Keeps the stores below behind the odd version.
    fence(Ordering::Release);
    entry.ip.store(begin.ip, Ordering::Relaxed);
    entry.sp.store(begin.sp, Ordering::Relaxed);
    entry.bp.store(begin.bp, Ordering::Relaxed);
    entry.epoch.store(epoch(), Ordering::Relaxed);
    let length = slots.len() as u64;
    let length_and_number = length << 32 | u64::from(number);
    entry
        .length_and_number
        .store(length_and_number, Ordering::Relaxed);
    for (frame, (slot, address)) in entry.frames.iter().zip(slots.iter().zip(addresses)) {
        frame.slot.store(*slot, Ordering::Relaxed);
        frame.address.store(*address, Ordering::Relaxed);
    }
    entry
        .version
        .store(version.wrapping_add(2), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn a_cached_chain_is_found_while_its_return_addresses_are_in_place() {
        // Cells: the cache reads them by their addresses between writes.
        let words = [const { Cell::new(0_u64) }; 16];
        let base = words.as_ptr() as u64;
        let at = |index: usize| base + index as u64 * 8;
        let stack = Stack {
            low: base,
            high: at(16),
        };
        let begin = Registers {
            ip: 0x1234_5678,
            sp: at(1),
            bp: 7,
        };
        words[3].set(0xaaaa);
        words[9].set(0xbbbb);
        assert_eq!(number(&begin, stack), None);
        store(&begin, &[at(3), at(9)], &[0xaaaa, 0xbbbb], 42);
        assert_eq!(number(&begin, stack), Some(42));
        let others = [
            Registers { bp: 8, ..begin },
            Registers { sp: at(2), ..begin },
        ];
        for other in others {
            assert_eq!(number(&other, stack), None, "{other:?}");
        }
        let short = Stack {
            high: at(9),
            ..stack
        };
        assert_eq!(number(&begin, short), None, "it may not be read");
        words[9].set(0xcccc);
        assert_eq!(number(&begin, stack), None, "another caller");
        words[9].set(0xbbbb);
        assert_eq!(number(&begin, stack), Some(42));
        forget();
        assert_eq!(number(&begin, stack), None, "numbers of another memory");
        let long = [at(3); MAX_CACHED_CHAIN + 1];
        store(&begin, &long, &[0xaaaa; MAX_CACHED_CHAIN + 1], 43);
        assert_eq!(number(&begin, stack), None, "too long to be kept");
    }
}
