//! The control page that launcher and agent share, and whether this process has run queues.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{ControlPage, Idle};

use crate::sys;

/// Address of the [`ControlPage`]; 0 before `scheduler::begin`.
pub(super) static CONTROL_PAGE: AtomicUsize = AtomicUsize::new(0);
/// Number of the process whose threads have the run queues: a forked child has none.
pub(super) static PROCESS: AtomicU32 = AtomicU32::new(0);
/// 1: scavengers without a run queue run in idle time, whatever the value of [`ControlPage::idle`].
pub(super) static IDLE_HARVEST_FORCED: AtomicU32 = AtomicU32::new(0);
/// Address of the slots; 0 before there are any. A forked child finds this memory zeroed: its threads have
/// no run queues.
pub(super) static POOL: AtomicUsize = AtomicUsize::new(0);

/// The shared control page: settings of the launcher and counters of the agent; `None` before
/// `scheduler::begin`.
pub(crate) fn control_page() -> Option<&'static ControlPage> {
    let address = CONTROL_PAGE.load(Ordering::Acquire);
    // SAFETY: the launcher has mapped the page, and it stays mapped. The launcher changes its words at any
    // time; all are read and written as single words.
    (address != 0).then(|| unsafe { &*(address as *const ControlPage) })
}

/// The counter at `offset` of the control page, which the agent writes.
pub(super) fn counter(offset: usize) -> Option<&'static AtomicU64> {
    let address = CONTROL_PAGE.load(Ordering::Acquire);
    // SAFETY: as above.
    (address != 0).then(|| unsafe { &*((address + offset) as *const AtomicU64) })
}

/// Adds `more` to the counter at `offset` of the control page.
pub(super) fn add_to_counter(offset: usize, more: u64) {
    if let Some(word) = counter(offset) {
        word.fetch_add(more, Ordering::Relaxed);
    }
}

/// Converts ticks of the time stamp counter to nanoseconds.
pub(super) fn ns_of(ticks: u64) -> u64 {
    let each = control_page().map_or(1024, |control_page| u64::from(control_page.ticks.max(1)));
    ticks.saturating_mul(1024) / each
}

/// Converts nanoseconds to ticks of the time stamp counter.
pub(super) fn ticks_of(ns: u64) -> u64 {
    let each = control_page().map_or(1024, |control_page| u64::from(control_page.ticks));
    ns.saturating_mul(each) / 1024
}

/// The idle policy: what scavengers without a run queue do.
pub(super) fn idle() -> Idle {
    if IDLE_HARVEST_FORCED.load(Ordering::Acquire) != 0 {
        return Idle::Harvest;
    }
    match control_page().map_or(0, |control_page| control_page.idle) {
        0 => Idle::Harvest,
        1 => Idle::Steal,
        _ => Idle::Stop,
    }
}

/// True if the process has no primary and exists only for its scavengers.
pub(super) fn has_peers() -> bool {
    control_page().is_some_and(|control_page| control_page.peers != 0)
}

/// True if this process has run queues.
pub(crate) fn has_run_queues() -> bool {
    POOL.load(Ordering::Acquire) != 0 && PROCESS.load(Ordering::Acquire) == sys::process()
}
