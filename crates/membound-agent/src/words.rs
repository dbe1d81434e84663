//! Words of shared memory by their addresses: atomic ones, and plain ones of eight bytes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory;

pub(crate) fn word32(address: usize) -> &'static AtomicU32 {
    // SAFETY: the shared memory stays mapped for the life of the process, and both sides use
    // atomics.
    unsafe { &*(address as *const AtomicU32) }
}

pub(crate) fn word64(address: usize) -> &'static AtomicU64 {
    // SAFETY: as for 32 bits.
    unsafe { &*(address as *const AtomicU64) }
}

/// Reads a word of a chain or of the index, which other threads may write.
pub(crate) fn load(address: usize) -> u64 {
    word64(address).load(Ordering::Acquire)
}

/// Writes a word that is not read yet.
pub(crate) fn store(address: usize, value: u64) {
    // SAFETY: the caller has reserved the word in the shared memory.
    unsafe { memory::put(address, value) }
}
