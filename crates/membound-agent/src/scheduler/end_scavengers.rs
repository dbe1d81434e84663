//! Ends all scavengers before the program installs a filter on its system calls (seccomp).
//!
//! Such a filter may cover all threads of the process and kill it for any call it does not know: a
//! scavenger's, the monitor thread's, or those by which the program's threads take scavengers and send them
//! home. So all of these must have ended before it is installed.

use core::sync::atomic::Ordering;

use super::ending::{ENDING, MONITOR_ENDING};
use super::page::has_run_queues;
use super::thread_slot::{ThreadSlot, thread_slots};
use super::{home_threads, monitor, monitor_thread, ring};
use crate::scavenger::table;
use crate::sys::{self, Quiet};
use crate::{own_signals, threads};

/// Nanoseconds between two polls whether scavengers are still there.
const POLL_INTERVAL_NS: u64 = 1_000_000;
/// Polls after which remaining scavengers are left alone, for example in a call that cannot be interrupted.
/// Half a minute: a thread in `SCHED_IDLE` gets only a few milliseconds a second to end in while others
/// want the processors, and any scavenger that remains gets the program killed.
const MAX_POLLS: u32 = 30_000;

/// Value by which a signal that this module sends is recognised.
fn magic() -> u64 {
    end_scavengers as *const () as u64
}

/// True if a signal with this information tells a scavenger to end.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
        || (sys::is_information_lost(code, process) && ENDING.load(Ordering::Relaxed))
}

/// Ends all scavengers and the monitor thread, and returns when they are gone or have been given up.
pub(crate) fn end_scavengers() {
    if !has_run_queues() || ENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    let _quiet = Quiet::new();
    if let Some(slot) = ThreadSlot::own() {
        slot.locked(|| monitor::empty(slot));
    }
    ring::announce_room();
    for _ in 0..MAX_POLLS {
        if table::all_ended() {
            break;
        }
        home_threads::step_forward();
        thread_slots().for_each(ThreadSlot::give_up);
        table::visit_threads(|thread| {
            sys::queue_signal(sys::process(), thread, own_signals::SYS as u32, magic());
        });
        sys::nap(POLL_INTERVAL_NS);
    }
    MONITOR_ENDING.store(true, Ordering::Release);
    for _ in 0..MAX_POLLS {
        if !monitor_thread::is_running() {
            return;
        }
        sys::nap(POLL_INTERVAL_NS);
    }
}

impl ThreadSlot {
    /// Empties the ring: the thread returns its contexts to their home threads at its next yield. If it
    /// comes to no yield, they are returned here.
    fn give_up(&'static self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let thread = self.thread.load(Ordering::Acquire);
        let Some(cpu_ns) = sys::cpu_ns(thread) else {
            // The monitor thread finds that it has ended.
            return;
        };
        if self.owner.load(Ordering::SeqCst) != 0 || self.asked_ns.load(Ordering::Relaxed) == 0 {
            self.asked_ns.store(cpu_ns.max(1), Ordering::Relaxed);
            self.ask();
            return;
        }
        self.locked_at_once(|| {
            // With `owner` 0 the thread's next yield enters the agent and waits there for the lock. A
            // thread that has run for long since it was asked, or waits in a call, is past any yield begun
            // before that.
            let is_asked = self.owner.load(Ordering::SeqCst) == 0;
            let has_moved_on = threads::has_moved_on(thread, self.asked_ns.load(Ordering::Relaxed));
            if is_asked && has_moved_on && self.current.load(Ordering::Acquire) == 0 {
                monitor::empty(self);
            }
        });
    }
}
