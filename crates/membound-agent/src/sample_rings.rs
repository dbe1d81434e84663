//! The rings of records that the launcher has provided for samples and bursts.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Address of the [`membound_wire::RingSet`], 0 without one.
pub(crate) static RINGS: AtomicUsize = AtomicUsize::new(0);

/// Uses the rings at `address` from now on; 0: none.
pub(crate) fn use_rings(address: u64) {
    RINGS.store(address as usize, Ordering::Release);
}
