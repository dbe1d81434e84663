//! Guests that do not come back to a yield.
//!
//! Between two yields a guest has the program's thread for itself. One whose turn goes on and on, in a
//! loop that no plan knew of, is taken home by a signal that the warden sends, and stays there for a
//! while: longer every time, so that what the program loses by it stays small. Where the kernel had the
//! turn for a page's first use, or where there is no program to lose anything, it is a short while.

use core::sync::atomic::Ordering;

use super::berth::Errand;
use super::block::Block;
use super::{has_peers, warden};
use crate::{sys, threads, trap};

/// CPU time that a turn may take.
const LONGEST_NS: u64 = 3_000_000;
/// Looks that have to find the same turn: the time of a virtual processor that was another's counts as ours.
const LOOKS: u32 = 2;
/// How long a guest stays at home the first time; each time twice as long, up to 1024 times.
const FIRST_REST_NS: u64 = 10_000_000;
const MOST_DOUBLINGS: u32 = 10;

/// What a signal of ours carries.
fn magic() -> u64 {
    watch as *const () as u64
}

/// Whether a signal with this information says that a turn is overdue.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// Looks at a thread that has begun `turned` turns and had this CPU time since the last look, and calls
/// it out of one that is overdue; returns whether it is.
pub(super) fn watch(block: &Block, thread: u32, turned: u64, ran_ns: u64) -> bool {
    let current = block.current.load(Ordering::Acquire);
    if turned > 0 || !block.is_member(current) {
        block.turn_ns.store(0, Ordering::Relaxed);
        block.turn_looks.store(0, Ordering::Relaxed);
        return false;
    }
    let looks = block.turn_looks.load(Ordering::Relaxed) + 1;
    if looks == 1 {
        let faults = threads::minor_faults(thread).unwrap_or(0);
        block.turn_faults.store(faults, Ordering::Relaxed);
    }
    let lasted = block.turn_ns.load(Ordering::Relaxed).saturating_add(ran_ns);
    let is_overdue = lasted >= LONGEST_NS && looks >= LOOKS;
    let (lasted, looks) = if is_overdue { (0, 0) } else { (lasted, looks) };
    block.turn_ns.store(lasted, Ordering::Relaxed);
    block.turn_looks.store(looks, Ordering::Relaxed);
    if is_overdue && !warden::is_own(thread) {
        let faults = threads::minor_faults(thread).unwrap_or(0);
        let has_faulted = faults != block.turn_faults.load(Ordering::Relaxed);
        block
            .has_faulted
            .store(u32::from(has_faulted), Ordering::Relaxed);
        sys::queue_signal(sys::process(), thread, trap::CALL as u32, magic());
    }
    is_overdue
}

/// What a guest's own thread is to do after the warden has ended the guest's turn in this block.
pub(super) fn errand(block: &Block) -> Errand {
    if block.has_faulted.load(Ordering::Relaxed) != 0 {
        Errand::Pause
    } else {
        Errand::Rest
    }
}

/// How long a guest is to stay at home that was taken there so often before.
pub(super) fn rest_ns(times: u32) -> u64 {
    if has_peers() {
        return FIRST_REST_NS;
    }
    FIRST_REST_NS << times.min(MOST_DOUBLINGS)
}
