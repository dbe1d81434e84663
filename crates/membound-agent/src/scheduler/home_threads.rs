//! All home threads at one time: polls them, counts their scavengers, and sets their scheduling policy.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::ScavengerRequest;

use super::handover::HomeThread;
use super::page::has_peers;
use super::policy::{
    LOWEST_PRIORITY_NICENESS, SCHED_IDLE, SCHED_OTHER, own_niceness, schedule, set_niceness,
};
use super::thread_slot::Context;
use crate::scavenger::table::{self, Scavenger};

/// True if no run queue may have the scavenger of this context.
pub(super) fn is_barred_from_run_queues(context: &Context) -> bool {
    Scavenger::of(HomeThread::of(context)).is_barred_from_run_queues()
}

/// Polls all home threads: calls those to their next yield whose scavengers may take time slices now, if a
/// run queue `takes` them, and adds up the scavengers' progress. Returns true if a run queue has a
/// scavenger that must leave it.
pub(super) fn poll_all(now_ns: u64, takes: bool) -> bool {
    let mut must_leave = false;
    table::visit_home_threads(|_, home_thread| {
        let Some(slot) = home_thread.slot() else {
            return;
        };
        let scavenger = Scavenger::of(home_thread);
        let is_barred = scavenger.is_barred_from_run_queues();
        must_leave |= is_barred && home_thread.is_in_run_queue();
        let is_free = !is_barred && home_thread.back_off_left_ns(now_ns) == 0;
        let is_called = takes && is_free || scavenger.is_held();
        if is_called && slot.alone.swap(0, Ordering::Relaxed) != 0 {
            slot.credit.store(0, Ordering::Relaxed);
        }
        let loads = home_thread.loads(slot);
        let counted = home_thread.counted_loads.swap(loads, Ordering::Relaxed);
        let progress = offset_of!(ScavengerRequest, progress);
        scavenger.add(progress, loads.wrapping_sub(counted));
    });
    must_leave
}

/// Number of scavengers that could share a run queue now. A scavenger counts if it is in a run queue, is
/// ready for one, or runs on its home thread because no run queue has room.
pub(super) fn candidates(now_ns: u64) -> u32 {
    let mut count = 0;
    table::visit_home_threads(|_, home_thread| {
        let is_free = !Scavenger::of(home_thread).is_barred_from_run_queues()
            && home_thread.back_off_left_ns(now_ns) == 0;
        let runs_alone = home_thread
            .slot()
            .is_some_and(|slot| slot.alone.load(Ordering::Relaxed) != 0);
        count += u32::from(
            home_thread.is_in_run_queue() || is_free && (home_thread.is_ready() || runs_alone),
        );
    });
    count
}

/// Takes scavengers that run in idle time out of `SCHED_IDLE`, so that they come to their next yield: a run
/// queue has room. Where the program keeps the processors busy there is no idle time, and they would not
/// come to a yield for seconds.
pub(super) fn call_from_idle_time() {
    table::visit_home_threads(|thread, home_thread| {
        if home_thread.is_in_idle_time() {
            schedule(thread, SCHED_OTHER);
        }
    });
}

/// True if any scavenger runs in idle time for want of a run queue.
pub(super) fn any_in_idle_time() -> bool {
    let mut any = false;
    table::visit_home_threads(|_, home_thread| any |= home_thread.is_in_idle_time());
    any
}

/// Called when the program begins: lowers every home thread to `SCHED_IDLE`, also the home threads of
/// scavengers that have not reached a yield. A home thread that leaves `SCHED_IDLE` later has the lowest
/// weight.
pub(crate) fn lower_priorities() {
    if has_peers() {
        return;
    }
    table::visit_threads(|thread| {
        set_niceness(thread, LOWEST_PRIORITY_NICENESS);
        schedule(thread, SCHED_IDLE);
    });
}

/// Called once the program has ended: nothing is left to protect from its scavengers, and their ends are
/// waited for. Home threads get the niceness of the calling thread of the program.
pub(super) fn raise_priorities() {
    if has_peers() {
        return;
    }
    if let Some(niceness) = own_niceness() {
        table::visit_threads(|thread| {
            set_niceness(thread, niceness);
            schedule(thread, SCHED_OTHER);
        });
    }
}

/// Home threads are to end: they leave `SCHED_IDLE`, so that they can also where the program keeps
/// processors busy.
pub(super) fn step_forward() {
    table::visit_threads(|thread| schedule(thread, SCHED_OTHER));
}
