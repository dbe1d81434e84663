//! The monitor thread: it polls run queues, takes contexts from threads that wait or have ended, has slices
//! timed, and decides when scavengers are admitted.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{ASK, ControlPage, Idle};

use super::admission::{BEGINS, are_admitted, set_admission};
use super::handover::{self, PendingRequest};
use super::monitor_thread::THREAD;
use super::pace::{Activity, Pace, Phases, UNIT_NS, WHOLE};
use super::page::{add_to_counter, control_page, has_peers, idle};
use super::ring::announce_room;
use super::thread_slot::{Context, ThreadSlot, Use, thread_slots};
use super::{ending, home_threads, idle_time, overdue};
use crate::scavenger::table;
use crate::sys::{self, Errno, call, number};
use crate::{own_thread, threads};

const STACK_BYTES: usize = 64 << 10;
/// Longest poll interval, in units, in a process without a primary, where polls take no processor from a
/// program.
const MAX_POLL_UNITS_WITHOUT_PRIMARY: u32 = 4;
/// Nanoseconds between two calls to the scavengers that run in idle time.
const CALL_INTERVAL_NS: u64 = 16_000_000;
/// Nanoseconds between two checks whether the program still exists.
const EXIT_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// Starts the monitor thread.
pub(super) fn start() -> Result<(), Errno> {
    let flags = own_thread::THREAD | own_thread::SAME_DIRECTORY;
    own_thread::start(flags, STACK_BYTES, run, 0).map(drop)
}

extern "C" fn run(_: usize) -> ! {
    own_thread::name(c"membound-lanes");
    THREAD.store(sys::thread(), Ordering::Release);
    // The thread does not share its descriptor table.
    let _ = own_thread::close_from(0);
    let mut pace = Pace::new();
    let mut phases = Phases::new();
    let mut since_exit_check = 0;
    let mut since_call = 0;
    let mut polls_with_slices = 0_u32;
    let mut idle_time_judge = idle_time::Judge::default();
    loop {
        let units = if pace.is_at_rest() {
            pace.units()
        } else {
            phases.units(pace.units())
        };
        // Without a primary, polls also move scavengers between run queues and home threads.
        let units = if has_peers() {
            units.min(MAX_POLL_UNITS_WITHOUT_PRIMARY)
        } else {
            units
        };
        let period = u64::from(units) * UNIT_NS;
        sys::nap(period);
        if ending::is_monitor_ending() {
            THREAD.store(0, Ordering::Release);
            own_thread::exit(0);
        }
        let were_admitted = are_admitted();
        if BEGINS.swap(0, Ordering::AcqRel) == 1 {
            phases.begin();
        }
        let (share, length) = control_page().map_or((WHOLE, 1), |it| (it.share, it.phase_looks));
        set_admission(phases.after(units, share, length, pace.units()));
        let poll = Poll {
            were_admitted,
            changed: are_admitted() != were_admitted,
            times: pace.is_timed_after(polls_with_slices),
            period_ns: period,
        };
        let mut activity = Activity::Rest;
        let mut any_slices = false;
        for slot in thread_slots() {
            let slot_activity = poll_slot(slot, &poll);
            any_slices |= matches!(slot_activity, Activity::Slices { .. });
            activity = activity.and(slot_activity);
        }
        polls_with_slices = polls_with_slices.saturating_add(u32::from(any_slices));
        pace.record(if table::any_lives() {
            activity
        } else {
            Activity::Rest
        });
        since_call += period;
        let can_take = thread_slots().any(ThreadSlot::can_take);
        if since_call >= CALL_INTERVAL_NS {
            since_call = 0;
            // Once called they come to a yield, and then ask run queues themselves.
            if can_take && home_threads::any_in_idle_time() {
                home_threads::call_from_idle_time();
            }
        }
        let now_ns = sys::monotonic_ns();
        if home_threads::poll_all(now_ns, can_take) {
            thread_slots().for_each(ThreadSlot::ask);
        }
        idle_time_judge.judge_if_due(now_ns);
        since_exit_check += period;
        if since_exit_check >= EXIT_CHECK_INTERVAL_NS {
            since_exit_check = 0;
            end_process_without_program();
        }
    }
}

/// What one poll does at every run queue.
#[derive(Clone, Copy, Debug)]
struct Poll {
    /// True if scavengers were admitted since the last poll.
    were_admitted: bool,
    /// True if that is different now.
    changed: bool,
    /// True if slices are timed after this poll.
    times: bool,
    period_ns: u64,
}

fn poll_slot(slot: &'static ThreadSlot, poll: &Poll) -> Activity {
    slot.keep_exceptions_apart();
    let thread = slot.thread.load(Ordering::Acquire);
    let Some(cpu_ns) = sys::cpu_ns(thread) else {
        reclaim(slot, false);
        return Activity::Motion;
    };
    let (slices, ran_ns) = account(slot, cpu_ns, poll.were_admitted);
    let is_overdue = overdue::watch(slot, thread, slices, ran_ns);
    // A thread that has run for less may be waiting.
    let ran_little = ran_ns < poll.period_ns / 4;
    let empty = slot.count.load(Ordering::Acquire) == 0;
    slot.count_lonely_polls();
    if !empty {
        if slices == 0 && ran_little && idle() != Idle::Stop {
            steal(slot, thread);
        } else if poll.times {
            slot.time();
        } else if poll.changed {
            slot.ask();
        }
    }
    let open = slot.current.load(Ordering::Acquire) != 0;
    if is_overdue {
        Activity::Overdue
    } else if slices > 0 {
        Activity::Slices { open }
    } else if open || (ran_little && !empty) {
        Activity::Motion
    } else if ran_little {
        Activity::Waits
    } else {
        Activity::Rest
    }
}

/// Accounts for all slices that were not accounted for yet: the program is about to end.
pub(super) fn account_for_all() {
    for slot in thread_slots() {
        if let Some(cpu_ns) = sys::cpu_ns(slot.thread.load(Ordering::Acquire)) {
            account(slot, cpu_ns, are_admitted());
        }
    }
}

/// Adds a thread's slices and CPU time since the last call to the control page, without those in short
/// waits. Returns both with those.
fn account(slot: &ThreadSlot, cpu_ns: u64, are_admitted: bool) -> (u64, u64) {
    let all_slices = slot.turns.load(Ordering::Relaxed);
    let new_slices =
        all_slices.saturating_sub(slot.counted_slices.swap(all_slices, Ordering::Relaxed));
    let before = slot.counted_cpu_ns.swap(cpu_ns, Ordering::Relaxed);
    let ran_ns = cpu_ns.saturating_sub(before);
    let (in_waits, waited_ns) = slot.account_for_waits();
    let slices_in_stalls = new_slices.saturating_sub(in_waits);
    if slices_in_stalls > 0 {
        let (slices_offset, cpu_offset) = if are_admitted {
            (
                offset_of!(ControlPage, turns_with),
                offset_of!(ControlPage, cpu_with_ns),
            )
        } else {
            (
                offset_of!(ControlPage, turns_without),
                offset_of!(ControlPage, cpu_without_ns),
            )
        };
        add_to_counter(slices_offset, slices_in_stalls);
        add_to_counter(cpu_offset, ran_ns.saturating_sub(waited_ns));
    }
    (new_slices, ran_ns)
}

/// Takes the contexts of a thread that waits in the kernel, and closes its run queue until it yields again.
fn steal(slot: &'static ThreadSlot, thread: u32) {
    let stolen = slot.locked_at_once(|| {
        // From here on the thread's next yield enters the agent and waits there for the lock. Stored before
        // the thread's state is read: if that shows a waiting thread, no yield with the old `owner` is
        // under way.
        slot.owner.store(0, Ordering::SeqCst);
        let waits = threads::waits_in_call(thread) && slot.current.load(Ordering::Acquire) == 0;
        if waits {
            slot.queue().close();
            add_to_counter(offset_of!(ControlPage, steals), empty(slot));
        } else {
            slot.ask();
        }
        waits
    });
    if stolen == Some(true) {
        announce_room();
    }
}

/// Takes the contexts of a thread that has ended, or that is ending itself (`ends`), and frees its slot.
pub(super) fn reclaim(slot: &'static ThreadSlot, ends: bool) {
    if !ends {
        // A thread that has ended may have held the lock and will never release it.
        slot.lock.store(1, Ordering::Release);
    }
    if ends && let Some(cpu_ns) = sys::cpu_ns(sys::thread()) {
        account(slot, cpu_ns, are_admitted());
    }
    slot.release_after(|| {
        slot.owner.store(0, Ordering::SeqCst);
        slot.queue().close();
        add_to_counter(offset_of!(ControlPage, reclaimed), empty(slot));
    });
    slot.used.store(Use::Free as u32, Ordering::Release);
    announce_room();
}

/// Returns all contexts of a run queue to their home threads; the result is their number. The caller has the
/// lock.
pub(super) fn empty(slot: &'static ThreadSlot) -> u64 {
    slot.next.store(ASK, Ordering::SeqCst);
    let count = slot.count.swap(0, Ordering::AcqRel);
    let mut at = slot.ring.swap(0, Ordering::AcqRel);
    for _ in 0..count {
        let context = Context::at(at);
        at = context.next.load(Ordering::Acquire);
        handover::return_home(context, 0, PendingRequest::Run);
    }
    count.into()
}

/// Ends the process if no thread of the program is left, only scavengers and membound's threads.
fn end_process_without_program() {
    if let Some(code) = threads::exit_code_without_others(table::is_own_thread) {
        // SAFETY: no thread of the program runs any more.
        let _ = unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}
