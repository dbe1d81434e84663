//! The scheduler: it lets scavengers run at the yields of the program's threads.
//!
//! A thread gets a [`ThreadSlot`] at its first yield that matters. Scavengers that are parked at a
//! yield of their own are ready on their home threads (`home_thread`). A thread takes as many as its run
//! queue has room for when an `owner` of 0 makes it enter the agent; no other thread changes its ring. The
//! one exception is the monitor thread (`monitor`): under the slot's lock it may take the contexts of a
//! thread that the kernel has blocked or that has ended. `leave` handles what descheduled a scavenger in the
//! middle of its time slice: a system call, a fault, a signal to the program.
//!
//! `handover` defines the state of a scavenger that its home thread and run queues share, and `home_threads`
//! does what concerns all home threads; `admission` decides whether scavengers may run now, and `page` is the
//! control page.
//! `thread_slot` defines thread slots and contexts, `ring` decides which contexts enter a ring, and `timing`
//! times slices. See [`membound_wire::RunQueue`] for the order in which yields read and write. Times are
//! nanoseconds, or ticks of the time stamp counter where a name contains the word.

mod admission;
mod blocked_signals;
mod cpu_share;
pub(crate) mod end_scavengers;
pub(crate) mod ending;
pub(crate) mod finish;
pub(crate) mod handover;
pub(crate) mod home_thread;
pub(crate) mod home_threads;
mod idle_time;
pub(crate) mod leave;
mod leaving;
mod monitor;
mod monitor_thread;
pub(crate) mod overdue;
mod pace;
pub(crate) mod page;
mod policy;
mod ring;
mod thread_slot;
mod timing;
pub(crate) mod wait;
mod waits;

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{Command, ControlPage, Refusal};

use crate::failure::Failure;
use crate::saved_registers::SavedRegisters;
use crate::scavenger::table;
use crate::sys::{self, Errno, Protection, Quiet, Scratch};
use crate::{
    alternate, assembly, auxiliary, listen, own_signals, own_thread, syscall_filter, trap,
};

use admission::Phase;
use page::{CONTROL_PAGE, POOL, PROCESS, add_to_counter, has_run_queues};
use ring::{YIELDED, announce_room};
pub(crate) use thread_slot::{Context, ThreadSlot};
use thread_slot::{MAX_THREAD_SLOTS, Use, take_slot};

/// Begins to give run queues to the program's threads; `command.address` is that of a [`ControlPage`].
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    let refused = |errno| Failure::new(errno, Refusal::None);
    if command.length < size_of::<ControlPage>() as u64 || command.address == 0 {
        return Err(Failure::malformed());
    }
    if !bases_are_ours() {
        return Err(Failure::new(Errno::EINVAL, Refusal::NoBases));
    }
    let pool = Scratch::untouched(
        MAX_THREAD_SLOTS * size_of::<ThreadSlot>(),
        Protection::ReadWrite,
    )?;
    pool.wipe_on_fork().map_err(refused)?;
    CONTROL_PAGE.store(command.address as usize, Ordering::Release);
    PROCESS.store(sys::process(), Ordering::Release);
    // Last: `has_run_queues` reads the pool first, and then relies on the others.
    POOL.store(pool.keep(), Ordering::Release);
    trap::install(&own_signals::OF_CHANGES)?;
    let _quiet = Quiet::new();
    // This thread may wait for others all its life, so its run queue gets no contexts before it yields.
    adopt(sys::thread()).map_err(refused)?.close();
    YIELDED.store(0, Ordering::Release);
    monitor::start().map_err(|errno| Failure::new(errno, Refusal::NoThread))
}

/// True if programs may set the bases of `fs` and `gs` themselves (`FSGSBASE`).
fn bases_are_ours() -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    let mut ours = false;
    let read = auxiliary::each(|kind, value| ours |= kind == AT_HWCAP2 && value & FSGSBASE != 0);
    read.is_ok() && ours
}

/// The present phase; before [`begin`] none admits scavengers.
pub(crate) fn phase() -> Phase {
    if POOL.load(Ordering::Acquire) == 0 {
        return Phase {
            are_admitted: false,
            since: 0,
        };
    }
    admission::phase()
}

/// Gives the calling thread a run queue of its own. The caller has blocked signals.
fn adopt(thread: u32) -> Result<&'static ThreadSlot, Errno> {
    let slot = take_slot(Use::Free).ok_or(Errno::ENOSPC)?;
    let fs = assembly::thread_pointer();
    let settled = alternate::present()
        .and_then(alternate::provide)
        .and_then(|()| slot.settle(thread, fs));
    if settled.is_err() {
        slot.used.store(Use::Free as u32, Ordering::Release);
        return settled.map(|()| slot);
    }
    slot.owner.store(fs, Ordering::Release);
    slot.used.store(Use::Thread as u32, Ordering::Release);
    slot.locked(|| slot.refill());
    add_to_counter(offset_of!(ControlPage, adopted), 1);
    announce_room();
    Ok(slot)
}

/// [`membound_wire::Entry::Yield`]: a yield whose run queue belongs to another thread, or that was asked to
/// enter.
pub(crate) extern "C" fn on_yield(_: &mut SavedRegisters) {
    let Some(slot) = ThreadSlot::of_thread().filter(|_| !syscall_filter::may_apply()) else {
        return;
    };
    let quiet = Quiet::new();
    // A child of `vfork` runs in its parent's memory with the parent's bases.
    if !has_run_queues() {
        return;
    }
    let blocks_needed_signals = blocked_signals::blocks_needed_signals(quiet.before());
    let thread = sys::thread();
    let is_own = slot.thread.load(Ordering::Acquire) == thread;
    let stack = alternate::present();
    if stack.is_ok_and(alternate::is_in_use) {
        // While a scavenger runs, `rsp` is outside the alternate stack. The kernel would take that stack
        // for unused and put the next signal's frame over those of the program's handler.
        if is_own {
            slot.next.store(0, Ordering::SeqCst);
        }
        return;
    }
    if blocks_needed_signals {
        let own = if is_own {
            Some(slot)
        } else {
            // With a run queue of its own the thread does not enter the agent at each of its yields.
            adopt(thread).ok()
        };
        if let Some(own) = own {
            own.suspend();
        }
        return;
    }
    if is_own {
        // During a handler the kernel may have disabled the thread's alternate stack (`SS_AUTODISARM`).
        if stack.and_then(alternate::provide).is_err() {
            slot.suspend();
            return;
        }
        let closed = slot.open.load(Ordering::Relaxed) == 0;
        slot.signals_blocked.store(0, Ordering::Relaxed);
        slot.locked(|| slot.refill());
        if closed {
            announce_room();
        }
    } else {
        // If this fails, the thread runs without a run queue and asks again at its next yield.
        let _ = adopt(thread);
    }
}

/// The calling thread is about to make a process or a thread. A child of `vfork` has its memory, bases and
/// run queue, but may not run its scavengers: it must ask before it yields.
pub(crate) fn before_child() {
    if let Some(slot) = ThreadSlot::own() {
        let _quiet = Quiet::new();
        slot.ask_at_once();
    }
}

/// A handler of the program begins, or has ended, with the frame at `context`. The thread has no time
/// slices while it runs on an alternate stack, nor while its mask blocks signals that scavengers need.
/// `mask` gives the thread's mask from now on.
pub(crate) fn on_handler(context: usize, mask: impl FnOnce() -> u64) {
    let Some(slot) = ThreadSlot::own() else {
        return;
    };
    slot.interrupt_change();
    slot.on_mask(mask());
    alternate::outlive(context);
    if alternate::contains_frame(context) {
        slot.ask_at_once();
    }
}

/// The calling thread is about to end: its contexts and its slot become free for others.
pub(crate) fn thread_ends() {
    if let Some(slot) = ThreadSlot::own() {
        let _quiet = Quiet::new();
        // The next thread that gets the slot writes its selector, while this thread has yet to make its last
        // system call.
        own_thread::keep_calls();
        monitor::reclaim(slot, true);
    }
}

/// True if a thread of this process is one of membound's and not the program's.
pub(crate) fn is_agents(thread: u32) -> bool {
    table::is_own_thread(thread) || monitor_thread::is_own(thread) || listen::is_own(thread)
}
