//! Deschedules scavengers that do not reach a yield.
//!
//! Between two yields a scavenger has the program's thread for itself. If a time slice does not end, for
//! example in a loop that no plan knew of, the monitor thread sends a signal that returns the scavenger to
//! its home thread. There it waits for a back-off that doubles each time, so that the program loses little.
//! Where the kernel used the slice, for a page's first use, or where there is no program to lose anything,
//! the back-off is as short as the first.

use core::sync::atomic::Ordering;

use super::handover::PendingRequest;
use super::monitor_thread;
use super::page::has_peers;
use super::thread_slot::ThreadSlot;
use crate::{own_signals, sys, threads};

/// CPU time that a slice may take, in nanoseconds.
const MAX_SLICE_CPU_NS: u64 = 3_000_000;
/// Polls that must find the same slice: CPU time includes time during which the hypervisor ran another
/// virtual machine.
const MIN_POLLS: u32 = 2;
/// First back-off in nanoseconds; it doubles each time, [`MAX_BACK_OFF_DOUBLINGS`] times at most.
const FIRST_BACK_OFF_NS: u64 = 10_000_000;
const MAX_BACK_OFF_DOUBLINGS: u32 = 10;

/// Value by which a signal that this module sends is recognised.
fn magic() -> u64 {
    watch as *const () as u64
}

/// True if a signal with this information reports an overdue time slice.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// Checks a thread that, since the last poll, has begun `turned` slices and used `ran_ns` of CPU time. If
/// its slice is overdue, sends it the signal that ends the slice, and returns true.
pub(super) fn watch(slot: &ThreadSlot, thread: u32, slices: u64, ran_ns: u64) -> bool {
    let current = slot.current.load(Ordering::Acquire);
    if slices > 0 || !slot.is_member(current) {
        slot.slice_ns.store(0, Ordering::Relaxed);
        slot.slice_polls.store(0, Ordering::Relaxed);
        return false;
    }
    let polls = slot.slice_polls.load(Ordering::Relaxed) + 1;
    if polls == 1 {
        let faults = threads::minor_faults(thread).unwrap_or(0);
        slot.slice_faults.store(faults, Ordering::Relaxed);
    }
    let lasted_ns = slot.slice_ns.load(Ordering::Relaxed).saturating_add(ran_ns);
    let is_overdue = lasted_ns >= MAX_SLICE_CPU_NS && polls >= MIN_POLLS;
    let (lasted_ns, polls) = if is_overdue {
        (0, 0)
    } else {
        (lasted_ns, polls)
    };
    slot.slice_ns.store(lasted_ns, Ordering::Relaxed);
    slot.slice_polls.store(polls, Ordering::Relaxed);
    if is_overdue && !monitor_thread::is_own(thread) {
        let faults = threads::minor_faults(thread).unwrap_or(0);
        let has_faulted = faults != slot.slice_faults.load(Ordering::Relaxed);
        slot.has_faulted
            .store(u32::from(has_faulted), Ordering::Relaxed);
        sys::queue_signal(sys::process(), thread, own_signals::CALL as u32, magic());
    }
    is_overdue
}

/// Pending request for the scavenger whose slice in this thread slot the monitor thread has ended.
pub(super) fn pending_request(slot: &ThreadSlot) -> PendingRequest {
    if slot.has_faulted.load(Ordering::Relaxed) != 0 {
        PendingRequest::ShortBackOff
    } else {
        PendingRequest::BackOff
    }
}

/// Back-off in nanoseconds of a scavenger that has had `times` before.
pub(super) fn back_off_ns(earlier_back_offs: u32) -> u64 {
    if has_peers() {
        return FIRST_BACK_OFF_NS;
    }
    FIRST_BACK_OFF_NS << earlier_back_offs.min(MAX_BACK_OFF_DOUBLINGS)
}
