//! Declared cache sizes, as a hint on how much work to spend.
//!
//! In a guest the declaration may be wrong, so nothing here becomes a figure: it decides
//! how long caches are warmed or emptied, and which sizes are tried when none are given.

use membound_platform::caches;
use membound_types::CacheKind;

use crate::{Region, Session};

const MIB: u64 = 1 << 20;

/// The largest declared cache in bytes, within bounds that keep a wrong declaration from
/// costing much; 32 MiB where nothing is declared.
pub(crate) fn largest_cache_bytes(session: &Session<'_>) -> u64 {
    let declared = caches::read(session.root)
        .iter()
        .map(|cache| cache.size_bytes)
        .max();
    declared.unwrap_or(32 * MIB).clamp(16 * MIB, 512 * MIB)
}

/// The declared second-level cache of the measuring CPU in bytes, within bounds as above;
/// 512 KiB where nothing is declared.
pub(crate) fn second_level_bytes(session: &Session<'_>) -> u64 {
    caches::of_cpu(session.root, session.cpu)
        .iter()
        .find(|cache| cache.level == 2 && cache.kind != CacheKind::Instruction)
        .map_or(MIB / 2, |cache| cache.size_bytes)
        .clamp(MIB / 4, 64 * MIB)
}

/// Reads `bytes` of `region` from `offset` on (or up to its end), line by line: if that is more
/// than the caches hold, it evicts everything they held.
pub(crate) fn read_through(region: &Region, offset: usize, bytes: usize) {
    read_every(region, offset, bytes, 64);
}

/// Bytes whose translations share a line of a page table, with base pages of 4 KiB.
pub(crate) const BYTES_PER_PAGE_TABLE_LINE: usize = 8 * 4096;

/// Reads one line in every 32 KiB of the `bytes` bytes of `region` from `offset` on.
///
/// A line of a page table holds the entries of eight base pages, and a host may back the huge pages
/// of its guest with base pages. Emptying the caches also evicts those lines, which a program that
/// has run for a while would find cached; this function brings them back and hardly anything else.
pub(crate) fn read_translations(region: &Region, offset: usize, bytes: usize) {
    read_every(region, offset, bytes, BYTES_PER_PAGE_TABLE_LINE);
}

/// Reads a word every `step` bytes, a multiple of 8.
fn read_every(region: &Region, offset: usize, bytes: usize, step: usize) {
    let end = region.len().min(offset.saturating_add(bytes));
    let mut sum = 0_u64;
    for at in (offset..end).step_by(step) {
        let word = region.start().wrapping_add(at).cast::<u64>();
        // SAFETY: `at` lies inside the region, which is readable, and is a multiple of 8
        // from the beginning of a page.
        sum = sum.wrapping_add(unsafe { word.read_volatile() });
    }
    std::hint::black_box(sum);
}
