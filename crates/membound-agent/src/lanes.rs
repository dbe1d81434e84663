//! Run queues: they let scavengers run at the yields of the program's threads.
//!
//! A thread gets a [`Block`] (thread slot) at its first yield that matters. Scavengers that are parked at a
//! yield of their own lie ready on their home threads (`berth`). A thread takes as many as its run queue
//! has room for when an `owner` of 0 makes it enter the agent; no other thread changes its ring. The one
//! exception is the monitor thread (`warden`): under the slot's lock it may take the contexts of a thread
//! that the kernel has blocked or that has ended. `leave` handles what descheduled a scavenger in the
//! middle of its time slice: a system call, a fault, a signal to the program.
//!
//! `block` defines thread slots and contexts, `ring` decides which contexts enter a ring, and `timing`
//! times slices. See [`membound_wire::Lane`] for the order in which yields read and write. Times are
//! nanoseconds, or ticks of the time stamp counter where a name says so.

pub(crate) mod alternate;
pub(crate) mod berth;
mod block;
mod deaf;
pub(crate) mod ending;
pub(crate) mod finish;
pub(crate) mod leave;
pub(crate) mod overdue;
mod pace;
mod ring;
mod soak;
mod timing;
pub(crate) mod wait;
mod warden;

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{Board, Command, Idle, Refusal};

use crate::control::Failure;
use crate::entry::Frame;
use crate::sys::{self, Errno, Protection, Quiet, Scratch};
use crate::{assembly, auxiliary, filters, guest, listen, own_thread, trap};

use block::{BLOCKS, POOL, Use, take_block};
pub(crate) use block::{Block, Context};
use ring::{YIELDED, announce_room};

/// Address of the [`Board`]; 0 before [`begin`].
static BOARD: AtomicUsize = AtomicUsize::new(0);
/// Number of the process whose threads have the run queues: a forked child has none.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// 1: scavengers without a run queue run in idle time, whatever [`Board::idle`] says.
static IDLE_WISH: AtomicU32 = AtomicU32::new(0);

/// The shared control page: settings of the launcher and counters of the agent; `None` before [`begin`].
pub(crate) fn board() -> Option<&'static Board> {
    let address = BOARD.load(Ordering::Acquire);
    // SAFETY: the launcher has mapped the page, and it stays mapped. The launcher changes its words at any
    // time; all are read and written as single words.
    (address != 0).then(|| unsafe { &*(address as *const Board) })
}

/// The counter at `offset` of the control page, which the agent writes.
fn told(offset: usize) -> Option<&'static AtomicU64> {
    let address = BOARD.load(Ordering::Acquire);
    // SAFETY: as above.
    (address != 0).then(|| unsafe { &*((address + offset) as *const AtomicU64) })
}

/// Adds `more` to the counter at `offset` of the control page.
fn tell(offset: usize, more: u64) {
    if let Some(word) = told(offset) {
        word.fetch_add(more, Ordering::Relaxed);
    }
}

/// Converts ticks of the time stamp counter to nanoseconds.
fn ns_of(ticks: u64) -> u64 {
    let each = board().map_or(1024, |board| u64::from(board.ticks.max(1)));
    ticks.saturating_mul(1024) / each
}

/// Converts nanoseconds to ticks of the time stamp counter.
fn ticks_of(ns: u64) -> u64 {
    let each = board().map_or(1024, |board| u64::from(board.ticks));
    ns.saturating_mul(each) / 1024
}

/// The idle policy: what scavengers without a run queue do.
fn idle() -> Idle {
    if IDLE_WISH.load(Ordering::Acquire) != 0 {
        return Idle::Harvest;
    }
    match board().map_or(0, |board| board.idle) {
        0 => Idle::Harvest,
        1 => Idle::Steal,
        _ => Idle::Stop,
    }
}

/// True if the process has no primary and exists only for its scavengers.
fn has_peers() -> bool {
    board().is_some_and(|board| board.peers != 0)
}

/// Begins to give run queues to the program's threads; `command.address` is that of a [`Board`].
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    let refused = |errno| Failure::new(errno, Refusal::None);
    if command.length < size_of::<Board>() as u64 || command.address == 0 {
        return Err(Failure::malformed());
    }
    if !bases_are_ours() {
        return Err(Failure::new(Errno::EINVAL, Refusal::NoBases));
    }
    let pool = Scratch::untouched(BLOCKS * size_of::<Block>(), Protection::ReadWrite)?;
    pool.wipe_on_fork().map_err(refused)?;
    BOARD.store(command.address as usize, Ordering::Release);
    PROCESS.store(sys::process(), Ordering::Release);
    // Last: `here` reads the pool first, and then relies on the others.
    POOL.store(pool.keep(), Ordering::Release);
    trap::install(&trap::OF_CHANGES)?;
    let _quiet = Quiet::new();
    // This thread may wait for others all its life, so its run queue gets no contexts before it yields.
    adopt(sys::thread()).map_err(refused)?.close();
    YIELDED.store(0, Ordering::Release);
    warden::start().map_err(|errno| Failure::new(errno, Refusal::NoThread))
}

/// True if programs may set the bases of `fs` and `gs` themselves (`FSGSBASE`).
fn bases_are_ours() -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    let mut ours = false;
    let read = auxiliary::each(|kind, value| ours |= kind == AT_HWCAP2 && value & FSGSBASE != 0);
    read.is_ok() && ours
}

/// True if this process has run queues.
pub(crate) fn here() -> bool {
    POOL.load(Ordering::Acquire) != 0 && PROCESS.load(Ordering::Acquire) == sys::process()
}

/// A phase: scavengers are admitted during all of it, or during none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) lets_in: bool,
    /// Time stamp at which it began.
    pub(crate) since: u64,
}

/// The present phase; before [`begin`] none admits scavengers.
pub(crate) fn phase() -> Phase {
    if POOL.load(Ordering::Acquire) == 0 {
        return Phase {
            lets_in: false,
            since: 0,
        };
    }
    warden::phase()
}

/// Gives the calling thread a run queue of its own. The caller has blocked signals.
fn adopt(thread: u32) -> Result<&'static Block, Errno> {
    let block = take_block(Use::Free).ok_or(Errno::ENOSPC)?;
    let fs = assembly::thread_pointer();
    let settled = alternate::present()
        .and_then(|now| block.alternate.provide(now))
        .and_then(|()| block.settle(thread, fs));
    if settled.is_err() {
        block.used.store(Use::Free as u32, Ordering::Release);
        return settled.map(|()| block);
    }
    block.owner.store(fs, Ordering::Release);
    block.used.store(Use::Thread as u32, Ordering::Release);
    block.locked(|| block.refill());
    tell(offset_of!(Board, adopted), 1);
    announce_room();
    Ok(block)
}

/// [`membound_wire::Entry::Yield`]: a yield whose run queue belongs to another thread, or that was asked to
/// enter.
pub(crate) extern "C" fn on_yield(_: &mut Frame) {
    let Some(block) = Block::of_thread().filter(|_| !filters::shut_in()) else {
        return;
    };
    let quiet = Quiet::new();
    // A child of `vfork` runs in its parent's memory with the parent's bases.
    if !here() {
        return;
    }
    let is_deaf = deaf::is_deaf(quiet.before());
    let thread = sys::thread();
    let is_own = block.thread.load(Ordering::Acquire) == thread;
    let stack = alternate::present();
    if stack.is_ok_and(alternate::is_in_use) {
        // While a scavenger runs, `rsp` is outside the alternate stack. The kernel would take that stack
        // for unused and put the next signal's frame over those of the program's handler.
        if is_own {
            block.next.store(0, Ordering::SeqCst);
        }
        return;
    }
    if is_deaf {
        let own = if is_own {
            Some(block)
        } else {
            // With a run queue of its own the thread does not enter the agent at each of its yields.
            adopt(thread).ok()
        };
        if let Some(own) = own {
            own.hush();
        }
        return;
    }
    if is_own {
        // During a handler the kernel may have disabled the thread's alternate stack (`SS_AUTODISARM`).
        if stack.and_then(|now| block.alternate.provide(now)).is_err() {
            block.hush();
            return;
        }
        let closed = block.open.load(Ordering::Relaxed) == 0;
        block.deaf.store(0, Ordering::Relaxed);
        block.locked(|| block.refill());
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
    if let Some(block) = Block::own() {
        let _quiet = Quiet::new();
        block.ask_at_once();
    }
}

/// A handler of the program begins, or has ended, with the frame at `context`. The thread has no time
/// slices while it runs on an alternate stack, nor while its mask blocks signals that scavengers need.
/// `mask` gives the thread's mask from now on.
pub(crate) fn on_handler(context: usize, mask: impl FnOnce() -> u64) {
    let Some(block) = Block::own() else {
        return;
    };
    block.interrupt_change();
    block.on_mask(mask());
    block.alternate.outlive(context);
    if alternate::holds(context) {
        block.ask_at_once();
    }
}

/// The calling thread is about to end: its contexts and its slot become free for others.
pub(crate) fn thread_ends() {
    if let Some(block) = Block::own() {
        let _quiet = Quiet::new();
        // The next thread that gets the slot writes its selector and runs on its alternate stack, while
        // this thread has yet to make its last system call.
        own_thread::keep_calls();
        block.alternate.take_back();
        warden::reclaim(block, true);
    }
}

/// True if a thread of this process is one of membound's and not the program's.
pub(crate) fn is_agents(thread: u32) -> bool {
    guest::is_own_thread(thread) || warden::is_own(thread) || listen::is_own(thread)
}
