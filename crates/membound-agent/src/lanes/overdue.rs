//! Guests that do not come back to a yield.
//!
//! Between two yields a guest has the program's thread for itself. One whose turn goes on and on, in a
//! loop that no plan knew of, is taken home by a signal that the warden sends, and stays there for a
//! while: longer every time, so that what the program loses by it stays small.

use core::sync::atomic::Ordering;

use super::block::Block;
use super::warden;
use crate::sys;
use crate::trap;

/// CPU time that a turn may take.
const LONGEST_NS: u64 = 3_000_000;
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
    let before = block.turn_ns.load(Ordering::Relaxed);
    let lasted = if turned == 0 && block.is_member(current) {
        before.saturating_add(ran_ns)
    } else {
        0
    };
    let is_overdue = lasted >= LONGEST_NS;
    block
        .turn_ns
        .store(if is_overdue { 0 } else { lasted }, Ordering::Relaxed);
    if is_overdue && !warden::is_own(thread) {
        sys::queue_signal(sys::process(), thread, trap::CALL as u32, magic());
    }
    is_overdue
}

/// How long a guest is to stay at home that was taken there so often before.
pub(super) fn rest_ns(times: u32) -> u64 {
    FIRST_REST_NS << times.min(MOST_DOUBLINGS)
}
