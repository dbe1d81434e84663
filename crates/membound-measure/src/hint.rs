//! What the machine declares of its caches, as a hint on how much work to spend.
//!
//! In a guest the declaration may be wrong, so nothing here becomes a figure: it decides
//! how long caches are warmed or emptied, and which sizes are tried when none are given.

use membound_platform::caches;

use crate::Session;

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
