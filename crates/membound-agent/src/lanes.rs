//! Lanes: what lets guests run at the yields of the program's threads.
//!
//! A thread that yields is given a [`Block`] at its first yield that matters. Guests that were
//! parked at a yield of their own lie ready on their own threads (`berth`), and the thread takes
//! what it has room for when it is asked to come here by an `owner` of 0: nobody else changes its
//! ring. Only where the kernel has it blocked, or it has ended, may the warden (`warden`) take its contexts away, under
//! the block's lock. What sends a guest home in the middle of its turn (a system call, a fault, a
//! signal to the program) is in `leave`.
//!
//! What blocks and contexts are is in `block`, who comes into a block's ring in `ring`, and what turns
//! are timed by in `timing`. See [`membound_wire::Lane`] for the order in which yields read and write.

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

/// Address of the [`Board`].
static BOARD: AtomicUsize = AtomicUsize::new(0);
/// The process whose lanes these are.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// 1: guests run on their own threads, whatever the launcher wished.
static IDLE_WISH: AtomicU32 = AtomicU32::new(0);

/// What the launcher says, and is told.
pub(crate) fn board() -> Option<&'static Board> {
    let address = BOARD.load(Ordering::Acquire);
    // SAFETY: the launcher has mapped it, and it stays mapped. Its words are changed by the other
    // side at any time; all are read and written as single words.
    (address != 0).then(|| unsafe { &*(address as *const Board) })
}

/// A word of the board that the agent writes.
fn told(offset: usize) -> Option<&'static AtomicU64> {
    let address = BOARD.load(Ordering::Acquire);
    // SAFETY: as above.
    (address != 0).then(|| unsafe { &*((address + offset) as *const AtomicU64) })
}

/// Adds to a word of the board.
fn tell(offset: usize, more: u64) {
    if let Some(word) = told(offset) {
        word.fetch_add(more, Ordering::Relaxed);
    }
}

/// Nanoseconds of ticks of the time stamp counter.
fn ns_of(ticks: u64) -> u64 {
    let each = board().map_or(1024, |board| u64::from(board.ticks.max(1)));
    ticks.saturating_mul(1024) / each
}

/// Ticks of the time stamp counter in so many nanoseconds.
fn ticks_of(ns: u64) -> u64 {
    let each = board().map_or(1024, |board| u64::from(board.ticks));
    ns.saturating_mul(each) / 1024
}

/// What is to become of contexts without a lane.
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

/// Whether the process is there for its guests alone.
fn has_peers() -> bool {
    board().is_some_and(|board| board.peers != 0)
}

/// Begins to give lanes to the program's threads: `address` of a [`Board`].
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
    POOL.store(pool.keep(), Ordering::Release);
    trap::install(&trap::OF_CHANGES)?;
    let _quiet = Quiet::new();
    // It may wait for others all its life: nothing is given to it before it yields.
    adopt(sys::thread()).map_err(refused)?.close();
    YIELDED.store(0, Ordering::Release);
    warden::start().map_err(|errno| Failure::new(errno, Refusal::NoThread))
}

/// Whether programs may set the bases of `fs` and `gs` themselves (`FSGSBASE`).
fn bases_are_ours() -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    let mut ours = false;
    let read = auxiliary::each(|kind, value| ours |= kind == AT_HWCAP2 && value & FSGSBASE != 0);
    read.is_ok() && ours
}

/// Whether there are lanes in this process.
pub(crate) fn here() -> bool {
    POOL.load(Ordering::Acquire) != 0 && PROCESS.load(Ordering::Acquire) == sys::process()
}

/// A phase, in which contexts are let in or nobody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) lets_in: bool,
    /// Time stamp at which it began.
    pub(crate) since: u64,
}

/// The present phase.
pub(crate) fn phase() -> Phase {
    if POOL.load(Ordering::Acquire) == 0 {
        return Phase {
            lets_in: false,
            since: 0,
        };
    }
    warden::phase()
}

/// Gives the calling thread a lane of its own. Signals are blocked.
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

/// [`membound_wire::Entry::Yield`]: a yield that found its lane another thread's, or closed.
pub(crate) extern "C" fn on_yield(_: &mut Frame) {
    let Some(block) = Block::of_thread().filter(|_| !filters::shut_in()) else {
        return;
    };
    let quiet = Quiet::new();
    // A child of vfork runs in our memory with its parent's bases.
    if !here() {
        return;
    }
    let is_deaf = deaf::is_deaf(quiet.before());
    let thread = sys::thread();
    let is_own = block.thread.load(Ordering::Acquire) == thread;
    let stack = alternate::present();
    if stack.is_ok_and(alternate::is_in_use) {
        // While a guest runs the kernel would take that stack for unused, and begin it anew.
        if is_own {
            block.next.store(0, Ordering::SeqCst);
        }
        return;
    }
    if is_deaf {
        let own = if is_own {
            Some(block)
        } else {
            // With a lane of its own it does not come here at each of its yields.
            adopt(thread).ok()
        };
        if let Some(own) = own {
            own.hush();
        }
        return;
    }
    if is_own {
        // A handler may run on a stack that the kernel has taken from the thread for that long.
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
        // Without a lane it runs on alone, and asks again.
        let _ = adopt(thread);
    }
}

/// The calling thread is about to make a process or a thread. A child of vfork has its memory, bases
/// and lane, but no guests: it must ask before it yields.
pub(crate) fn before_child() {
    if let Some(block) = Block::own() {
        let _quiet = Quiet::new();
        block.ask_at_once();
    }
}

/// A handler of the program's begins, or has ended, with the frame at `context`: on an alternate
/// stack it has no turns, nor with a mask that guests cannot be heard with. `mask` is the thread's
/// from now on.
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

/// The calling thread is about to end: what it has is for others.
pub(crate) fn thread_ends() {
    if let Some(block) = Block::own() {
        let _quiet = Quiet::new();
        // Whoever has the block next sets its selector and runs on its stack, while this thread's last call
        // is to come.
        own_thread::keep_calls();
        block.alternate.take_back();
        warden::reclaim(block, true);
    }
}

/// Whether a thread of the process is none of the program's.
pub(crate) fn is_agents(thread: u32) -> bool {
    guest::is_own_thread(thread) || warden::is_own(thread) || listen::is_own(thread)
}
