//! The end of all guests before the program puts itself behind a filter of its system calls.
//!
//! Such a filter may be one for all threads of the process, and kill it for whatever it does not know: a
//! guest's calls, the warden's, and those by which the program's threads take guests and send them home. So
//! nobody of these is left when it comes.

use core::sync::atomic::{AtomicBool, Ordering};

use super::block::{Block, lanes};
use super::{berth, here, ring, warden};
use crate::sys::{self, Quiet};
use crate::{guest, threads, trap};

/// From one look whether guests are still there to the next.
const LOOK_NS: u64 = 1_000_000;
/// Looks after which they are left alone: a call that cannot be interrupted, say. Half a minute: whom the
/// kernel runs in idle time alone has few milliseconds a second to end in where others want the processors,
/// and the program is killed for whoever is left.
const PATIENCE: u32 = 30_000;

/// Set when guests are to end.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Set when the warden is.
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether guests are to end, and nobody may have a turn any more.
pub(crate) fn is_near() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// Whether the warden is to end.
pub(super) fn is_over() -> bool {
    OVER.load(Ordering::Acquire)
}

/// What a signal of ours carries.
fn magic() -> u64 {
    end_guests as *const () as u64
}

/// Whether a signal with this information has a guest end.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// Ends all guests and the warden, and comes back when they are gone.
pub(crate) fn end_guests() {
    if !here() || ENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    let _quiet = Quiet::new();
    if let Some(block) = Block::own() {
        block.locked(|| warden::empty(block));
        block.alternate.take_back();
    }
    ring::announce_room();
    for _ in 0..PATIENCE {
        if guest::none_left() {
            break;
        }
        berth::step_forward();
        lanes().for_each(Block::give_up);
        guest::each_thread(|thread| {
            sys::queue_signal(sys::process(), thread, trap::SYS as u32, magic());
        });
        sys::nap(LOOK_NS);
    }
    OVER.store(true, Ordering::Release);
    for _ in 0..PATIENCE {
        if !warden::is_here() {
            return;
        }
        sys::nap(LOOK_NS);
    }
}

impl Block {
    /// Has no guest in its ring any more: its thread sends them home at its next yield, and where it comes
    /// to none, it is done here.
    fn give_up(&'static self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let thread = self.thread.load(Ordering::Acquire);
        let Some(cpu_ns) = sys::cpu_ns(thread) else {
            // The warden finds that it has ended.
            return;
        };
        if self.owner.load(Ordering::SeqCst) != 0 || self.asked_ns.load(Ordering::Relaxed) == 0 {
            self.asked_ns.store(cpu_ns.max(1), Ordering::Relaxed);
            self.ask();
            return;
        }
        self.locked_at_once(|| {
            // Whatever it does next, it comes to the agent first, and waits there for the lock. A yield that
            // it had begun when it was asked is over.
            let is_asked = self.owner.load(Ordering::SeqCst) == 0;
            let has_moved_on = threads::has_moved_on(thread, self.asked_ns.load(Ordering::Relaxed));
            if is_asked && has_moved_on && self.current.load(Ordering::Acquire) == 0 {
                warden::empty(self);
            }
        });
    }
}
