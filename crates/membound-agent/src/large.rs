//! Addresses of the blocks that are always followed, so that freeing one is known to be worth
//! telling when small blocks are followed in part.
//!
//! A table of the process's own, which children of a fork inherit as they inherit the blocks.
//! When it has no room for a block, every freeing is told of from then on.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::sys::{Errno, Scratch};
use crate::tell::word64;

const WORDS: usize = 1 << 17;
/// Words of a line, which are looked at together.
const LINE: usize = 8;

static TABLE: AtomicUsize = AtomicUsize::new(0);
static OVERFLOWED: AtomicBool = AtomicBool::new(false);

/// Makes the table, unless there is one.
pub(crate) fn prepare() -> Result<(), Errno> {
    if TABLE.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let table = Scratch::new(WORDS * 8)?;
    let address = table.address();
    let made = TABLE.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
    if made.is_ok() {
        table.keep();
    }
    Ok(())
}

/// The two lines where an address may stand.
fn places(address: u64) -> Option<impl Iterator<Item = usize>> {
    let table = TABLE.load(Ordering::Acquire);
    if table == 0 {
        return None;
    }
    let spread = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let line = |bits: u64| table + (bits as usize % (WORDS / LINE)) * LINE * 8;
    let lines = [line(spread >> 44), line(spread >> 27)];
    Some(
        lines
            .into_iter()
            .flat_map(|line| (0..LINE).map(move |word| line + word * 8)),
    )
}

/// Remembers a block.
pub(crate) fn insert(address: u64) {
    let taken = places(address).is_some_and(|mut places| {
        places.any(|place| {
            let word = word64(place);
            let found = word.load(Ordering::Relaxed);
            found == address
                || found == 0
                    && word
                        .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
        })
    });
    if !taken {
        OVERFLOWED.store(true, Ordering::Relaxed);
    }
}

/// Forgets a block; whether it may have been here.
pub(crate) fn remove(address: u64) -> bool {
    let found = places(address).is_some_and(|mut places| {
        places.any(|place| {
            let word = word64(place);
            word.load(Ordering::Relaxed) == address
                && word
                    .compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })
    });
    found || OVERFLOWED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_taken_out_once() {
        assert!(prepare().is_ok());
        let blocks = |step: u64| (1..40_000).map(move |block| 0x7f00_0000_0000 + block * step);
        for address in blocks(4096) {
            insert(address);
        }
        assert!(!OVERFLOWED.load(Ordering::Relaxed));
        assert!(!remove(0x10));
        for address in blocks(4096) {
            assert!(remove(address), "{address:x}");
            assert!(!remove(address), "{address:x}");
        }
        // Far more than there is room for.
        for block in 0..4 * WORDS as u64 {
            insert(0x6000_0000_0000 + block * 64);
        }
        assert!(remove(0x10), "every freeing counts now");
    }
}
