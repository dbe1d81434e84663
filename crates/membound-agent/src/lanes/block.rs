//! Threads' lanes and contexts as both sides lay them out, and where blocks come from.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use membound_wire::{
    Context as WireContext, EVERY_BIT, Lane, NO_EXCEPTIONS, RECENT_LINES, RECENT_OFFSET,
};

use super::alternate::Alternate;
use super::wait::Waits;
use super::{board, here, leave, soak};
use crate::own_thread;
use crate::sys::{self, Errno, call, check, number};

/// Threads that can have a lane at one time.
pub(super) const BLOCKS: usize = 4096;

/// How a program rounds when it begins, as [`WireContext::rounding`] has it: to nearest, with all
/// exceptions masked and, in the x87, the longest mantissa.
pub(super) const ROUNDING_AT_FIRST: u64 = 0x037f_0000_1f80;

/// Address of the blocks, 0 before there are any. Memory that a forked child finds empty: its
/// threads have no lanes.
pub(super) static POOL: AtomicUsize = AtomicUsize::new(0);
/// Blocks that were ever used.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// A context, as [`membound_wire::Context`] says.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Context {
    pub(crate) stack: AtomicU64,
    pub(crate) resume: AtomicU64,
    pub(crate) next: AtomicU64,
    pub(crate) fs: AtomicU64,
    /// Written by yields.
    pub(super) rounding: AtomicU64,
    /// Written by yields.
    skipped: AtomicU32,
    padding: u32,
    /// Written by yields.
    pub(super) yields: AtomicU64,
    rest: u64,
}

impl Context {
    pub(crate) const fn new() -> Self {
        Self {
            stack: AtomicU64::new(0),
            resume: AtomicU64::new(0),
            next: AtomicU64::new(0),
            fs: AtomicU64::new(0),
            rounding: AtomicU64::new(0),
            skipped: AtomicU32::new(0),
            padding: 0,
            yields: AtomicU64::new(0),
            rest: 0,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// The context at an address that a ring holds.
    pub(super) fn at(address: u64) -> &'static Self {
        // SAFETY: only contexts of guests and of blocks get into one, and both stay.
        unsafe { &*(address as *const Self) }
    }
}

/// A thread's lane, and what the agent knows of the thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    pub(super) next: AtomicU64,
    pub(super) owner: AtomicU64,
    pub(super) current: AtomicU64,
    pub(super) first: AtomicU64,
    pub(super) stack: AtomicU64,
    pub(super) resume: AtomicU64,
    pub(super) borrowed: AtomicU64,
    pub(super) credit: AtomicI32,
    pub(super) span: AtomicI32,
    pub(super) selector: AtomicU8,
    pub(super) alone: AtomicU8,
    padding: AtomicU16,
    pub(super) skips: AtomicU32,
    pub(super) turns: AtomicU64,
    pub(super) base: AtomicU64,
    pub(super) itself: AtomicU64,
    pub(super) timed_resume: AtomicU64,
    pub(super) begun: AtomicU64,
    /// Written by yields.
    pub(super) rounding: AtomicU64,
    pub(super) own_bits: AtomicU64,
    /// Begins a turn that is timed.
    pub(super) stopwatch: Context,
    /// Takes a turn and does nothing in it.
    pub(super) nobody: Context,
    /// A context of the ring; 0: it is empty.
    pub(super) ring: AtomicU64,
    /// A [`Use`] as its number.
    pub(super) used: AtomicU32,
    /// Its thread.
    pub(super) thread: AtomicU32,
    /// Contexts in the ring.
    pub(super) count: AtomicU32,
    /// 1 while somebody changes the ring: the thread, or whoever takes from it.
    pub(super) lock: AtomicU32,
    /// 1 while it takes contexts.
    pub(super) open: AtomicU32,
    /// See [`Block::change_next`].
    pub(super) changing: AtomicU32,
    /// Turns when the warden looked last, and its thread's CPU time.
    pub(super) seen_turns: AtomicU64,
    pub(super) seen_cpu_ns: AtomicU64,
    /// The latter when it was judged last who runs in idle time.
    pub(super) judged: soak::Seen,
    /// 1: it had guests then.
    pub(super) had_guests: AtomicU32,
    /// CPU time that its present turn has taken, as far as the warden has seen.
    pub(super) turn_ns: AtomicU64,
    /// Looks that have found it, page faults of the thread at the first of them, and 1 where there had been
    /// more when it was called out of one.
    pub(super) turn_looks: AtomicU32,
    pub(super) has_faulted: AtomicU32,
    pub(super) turn_faults: AtomicU64,
    /// Looks in a row that have found one context alone in the ring.
    pub(super) lonely_looks: AtomicU32,
    /// Its thread's CPU time when it was asked to give up its guests; 0: it was not.
    pub(super) asked_ns: AtomicU64,
    /// 1: its thread blocks signals that guests need, and has no turns.
    pub(super) deaf: AtomicU32,
    /// Turns that are to be timed yet, the last of them recorded: whoever had the processor before has left it cold.
    pub(super) to_time: AtomicU32,
    pub(super) waits: Waits,
    pub(super) alternate: Alternate,
    pub(super) leaving: leave::Leaving,
    /// Written by yields alone.
    recent: Recent,
}

/// Lines that were yielded for lately, see [`RECENT_OFFSET`].
#[derive(Debug)]
#[repr(C, align(4096))]
struct Recent([AtomicU16; RECENT_LINES]);

const _: () = assert!(
    offset_of!(Block, recent) == RECENT_OFFSET
        && size_of::<Context>() == size_of::<WireContext>()
        && offset_of!(Context, resume) == offset_of!(WireContext, resume)
        && offset_of!(Context, next) == offset_of!(WireContext, next)
        && offset_of!(Context, fs) == offset_of!(WireContext, fs)
        && offset_of!(Context, yields) == offset_of!(WireContext, yields)
        && offset_of!(Context, rounding) == offset_of!(WireContext, rounding)
        && offset_of!(Context, skipped) == offset_of!(WireContext, skipped)
        && offset_of!(Block, owner) == offset_of!(Lane, owner)
        && offset_of!(Block, current) == offset_of!(Lane, current)
        && offset_of!(Block, first) == offset_of!(Lane, first)
        && offset_of!(Block, stack) == offset_of!(Lane, stack)
        && offset_of!(Block, resume) == offset_of!(Lane, resume)
        && offset_of!(Block, borrowed) == offset_of!(Lane, borrowed)
        && offset_of!(Block, credit) == offset_of!(Lane, credit)
        && offset_of!(Block, span) == offset_of!(Lane, span)
        && offset_of!(Block, selector) == offset_of!(Lane, selector)
        && offset_of!(Block, alone) == offset_of!(Lane, alone)
        && offset_of!(Block, skips) == offset_of!(Lane, skips)
        && offset_of!(Block, turns) == offset_of!(Lane, turns)
        && offset_of!(Block, base) == offset_of!(Lane, base)
        && offset_of!(Block, itself) == offset_of!(Lane, itself)
        && offset_of!(Block, timed_resume) == offset_of!(Lane, timed_resume)
        && offset_of!(Block, begun) == offset_of!(Lane, begun)
        && offset_of!(Block, rounding) == offset_of!(Lane, rounding)
        && offset_of!(Block, own_bits) == offset_of!(Lane, own_bits)
        && offset_of!(Block, stopwatch) == size_of::<Lane>()
);

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Use {
    /// Nobody has it, or it was a thread's and is to be one's again.
    Free = 0,
    /// Somebody is filling it.
    Taken = 1,
    /// A thread of the program's.
    Thread = 2,
    /// A guest's own thread.
    Home = 3,
    /// It was a guest's, and is to be one's again: nothing is given to such ones.
    FreeHome = 4,
}

/// The blocks that were ever used.
pub(super) fn blocks() -> &'static [Block] {
    let pool = POOL.load(Ordering::Acquire);
    if pool == 0 {
        return &[];
    }
    let count = HIGHEST.load(Ordering::Acquire).min(BLOCKS);
    // SAFETY: the pool is never unmapped, zero bytes are a block, and all its fields are atomics.
    unsafe { core::slice::from_raw_parts(pool as *const Block, count) }
}

/// Those that threads of the program's have.
pub(super) fn lanes() -> impl Iterator<Item = &'static Block> {
    let is_lane = |block: &&Block| block.used.load(Ordering::Acquire) == Use::Thread as u32;
    blocks().iter().filter(is_lane)
}

/// A block for whoever comes: one that was left as `free`, else one that was never used.
pub(super) fn take_block(free: Use) -> Option<&'static Block> {
    let take = |block: &Block, free: Use| {
        let taken = block.used.compare_exchange(
            free as u32,
            Use::Taken as u32,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        taken.is_ok()
    };
    loop {
        if let Some(block) = blocks().iter().find(|block| take(block, free)) {
            return Some(block);
        }
        let more = |highest: usize| (highest < BLOCKS).then_some(highest + 1);
        let index = HIGHEST
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        let block = blocks().get(index)?;
        // Another one may have found it first.
        if take(block, Use::Free) {
            return Some(block);
        }
    }
}

/// The base of `gs`.
#[inline(always)]
fn gs_base() -> u64 {
    let base;
    // SAFETY: there are lanes only where the instruction may be used.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, preserves_flags, nomem)) };
    base
}

/// Sets the base of `fs`.
pub(super) fn set_fs(base: u64) {
    // SAFETY: nothing of the agent's uses fs, and the caller knows whose turn it is.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags, nomem)) };
}

impl Block {
    /// The block that the calling thread has, or has inherited.
    pub(super) fn of_thread() -> Option<&'static Self> {
        let pool = POOL.load(Ordering::Acquire) as u64;
        if pool == 0 {
            return None;
        }
        let base = gs_base();
        let within = (BLOCKS * size_of::<Self>()) as u64;
        // SAFETY: blocks are never unmapped.
        (pool..pool + within)
            .contains(&base)
            .then(|| unsafe { &*(base as *const Self) })
    }

    /// The block of the calling thread, if it has one of its own: one that has not yielded yet has the
    /// lane of the thread that made it, and so has a child of vfork.
    pub(crate) fn own() -> Option<&'static Self> {
        let block = Self::of_thread()?;
        let is_own = here() && block.thread.load(Ordering::Acquire) == sys::thread();
        is_own.then_some(block)
    }

    /// The block whose lane this is, if a context is on it, or is about to be.
    pub(crate) fn with_context() -> Option<&'static Self> {
        let block = Self::of_thread()?;
        let on = block.used.load(Ordering::Relaxed) == Use::Thread as u32
            && block.current.load(Ordering::Relaxed) != 0;
        // As in `own`, and asks the kernel for turns alone.
        (on && block.thread.load(Ordering::Acquire) == sys::thread()).then_some(block)
    }

    pub(super) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// Makes it the calling thread's: its calls are handed over from now on while a context runs.
    pub(super) fn settle(&'static self, thread: u32, fs: u64) -> Result<(), Errno> {
        const SET_GS: usize = 0x1001;
        for word in [
            &self.next,
            &self.owner,
            &self.current,
            &self.borrowed,
            &self.turns,
            &self.ring,
            &self.seen_turns,
            &self.turn_ns,
            &self.asked_ns,
            &self.rounding,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.skips, &self.deaf, &self.changing, &self.turn_looks] {
            word.store(0, Ordering::Relaxed);
        }
        for byte in [&self.selector, &self.alone] {
            byte.store(0, Ordering::Relaxed);
        }
        self.judged.forget();
        self.waits.forget();
        self.keep_exceptions_apart();
        self.base.store(fs, Ordering::Relaxed);
        self.itself.store(self.address(), Ordering::Relaxed);
        self.seen_cpu_ns
            .store(sys::thread_cpu_ns(), Ordering::Relaxed);
        self.thread.store(thread, Ordering::Release);
        own_thread::dispatch_calls((&raw const self.selector) as usize)?;
        // SAFETY: programs have no use for the base of gs.
        let set = unsafe {
            call(
                number::ARCH_PRCTL,
                [SET_GS, self.address() as usize, 0, 0, 0, 0],
            )
        };
        check(set).map(drop)
    }

    /// Has both sides keep to themselves which floating-point exceptions they had, where somebody reads it.
    pub(super) fn keep_exceptions_apart(&self) {
        let read = board().is_none_or(|board| board.own_exceptions != 0);
        let own_bits = if read { EVERY_BIT } else { NO_EXCEPTIONS };
        self.own_bits.store(own_bits, Ordering::Relaxed);
    }

    /// Keeps everybody else from the ring while `change` runs. Signals are blocked.
    pub(super) fn locked<T>(&self, change: impl FnOnce() -> T) -> T {
        while self.lock.swap(1, Ordering::AcqRel) != 0 {
            sys::wait_while(&self.lock, 1, 1_000_000);
        }
        self.release_after(change)
    }

    /// The same, unless somebody else does so now: then `change` does not run.
    pub(super) fn locked_at_once<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let is_free = self.lock.swap(1, Ordering::AcqRel) == 0;
        is_free.then(|| self.release_after(change))
    }

    fn release_after<T>(&self, change: impl FnOnce() -> T) -> T {
        let result = change();
        self.lock.store(0, Ordering::Release);
        sys::wake_all(&self.lock);
        result
    }
}
