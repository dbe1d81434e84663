//! Thread slots and contexts as the code of yields lays them out, and the pool that slots come from.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use membound_sync::lock;
use membound_sync::queue::Queue;
use membound_wire::{
    Context as WireContext, EVERY_BIT, NO_EXCEPTIONS, RECENT_LINES, RECENT_OFFSET, RunQueue,
};

use super::cpu_share::JudgedCpuTime;
use super::leaving::Leaving;
use super::page::{POOL, control_page, has_run_queues};
use super::waits::Waits;
use crate::own_thread;
use crate::sys::{self, Errno, call, check, number};

/// Threads that can have a slot at one time.
pub(super) const MAX_THREAD_SLOTS: usize = 4096;

/// Rounding state of a program that begins, laid out as [`WireContext::rounding`]: to nearest, all
/// exceptions masked and, in the x87, the longest mantissa.
pub(super) const ROUNDING_AT_FIRST: u64 = 0x037f_0000_1f80;

/// Slots that were ever used: those below this index.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// A context, laid out as [`membound_wire::Context`].
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

    /// The context at an address found in a ring.
    pub(super) fn at(address: u64) -> &'static Self {
        // SAFETY: a ring holds only contexts of scavengers and of slots, and neither are ever unmapped.
        unsafe { &*(address as *const Self) }
    }
}

/// A thread slot: a thread's run queue (the fields of [`RunQueue`]), and the agent's state of the thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ThreadSlot {
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
    /// Context that starts the timing of a slice.
    pub(super) stopwatch: Context,
    /// Context that takes a slice and returns at once.
    pub(super) empty_slice: Context,
    /// Address of one context of the ring; 0: the ring is empty.
    pub(super) ring: AtomicU64,
    /// A [`Use`] as its number.
    pub(super) used: AtomicU32,
    /// Number of its thread.
    pub(super) thread: AtomicU32,
    /// Contexts in the ring.
    pub(super) count: AtomicU32,
    /// 1 while the ring is being changed, by the slot's thread or by one that takes contexts from it.
    pub(super) lock: AtomicU32,
    /// 1 while the run queue takes contexts.
    pub(super) open: AtomicU32,
    /// See [`ThreadSlot::change_next`].
    pub(super) changing: AtomicU32,
    /// Value of `turns` at the monitor thread's last poll.
    pub(super) counted_slices: AtomicU64,
    /// CPU time of the thread at that poll, in nanoseconds.
    pub(super) counted_cpu_ns: AtomicU64,
    /// CPU time of the thread when idle-time execution was last judged.
    pub(super) judged: JudgedCpuTime,
    /// 1: the ring had contexts at that time.
    pub(super) had_scavengers: AtomicU32,
    /// CPU time of the present slice up to the monitor thread's last poll, in nanoseconds.
    pub(super) slice_ns: AtomicU64,
    /// Polls that have found the present slice.
    pub(super) slice_polls: AtomicU32,
    /// 1: the thread had page faults during the slice that the monitor thread has ended.
    pub(super) has_faulted: AtomicU32,
    /// Page faults of the thread at the first poll that found the slice.
    pub(super) slice_faults: AtomicU64,
    /// Consecutive polls that have found one context alone in the ring.
    pub(super) lonely_polls: AtomicU32,
    /// Its thread's CPU time when the thread was asked to give up its contexts, in nanoseconds; 0: it was
    /// not.
    pub(super) asked_ns: AtomicU64,
    /// 1: its thread blocks signals that scavengers need, and has no time slices.
    pub(super) signals_blocked: AtomicU32,
    /// Slices that are still to be timed. Only the last of them are recorded: the code that had the
    /// processor before has left caches and predictors cold.
    pub(super) to_time: AtomicU32,
    pub(super) waits: Waits,
    pub(super) leaving: Leaving,
    /// Written by yields alone.
    recent: Recent,
}

/// The recent-miss filter, see [`RECENT_OFFSET`].
#[derive(Debug)]
#[repr(C, align(4096))]
struct Recent([AtomicU16; RECENT_LINES]);

const _: () = assert!(
    offset_of!(ThreadSlot, recent) == RECENT_OFFSET
        && size_of::<Context>() == size_of::<WireContext>()
        && offset_of!(Context, resume) == offset_of!(WireContext, resume)
        && offset_of!(Context, next) == offset_of!(WireContext, next)
        && offset_of!(Context, fs) == offset_of!(WireContext, fs)
        && offset_of!(Context, yields) == offset_of!(WireContext, yields)
        && offset_of!(Context, rounding) == offset_of!(WireContext, rounding)
        && offset_of!(Context, skipped) == offset_of!(WireContext, skipped)
        && offset_of!(ThreadSlot, owner) == offset_of!(RunQueue, owner)
        && offset_of!(ThreadSlot, current) == offset_of!(RunQueue, current)
        && offset_of!(ThreadSlot, first) == offset_of!(RunQueue, first)
        && offset_of!(ThreadSlot, stack) == offset_of!(RunQueue, stack)
        && offset_of!(ThreadSlot, resume) == offset_of!(RunQueue, resume)
        && offset_of!(ThreadSlot, borrowed) == offset_of!(RunQueue, borrowed)
        && offset_of!(ThreadSlot, credit) == offset_of!(RunQueue, credit)
        && offset_of!(ThreadSlot, span) == offset_of!(RunQueue, span)
        && offset_of!(ThreadSlot, selector) == offset_of!(RunQueue, selector)
        && offset_of!(ThreadSlot, alone) == offset_of!(RunQueue, alone)
        && offset_of!(ThreadSlot, skips) == offset_of!(RunQueue, skips)
        && offset_of!(ThreadSlot, turns) == offset_of!(RunQueue, turns)
        && offset_of!(ThreadSlot, base) == offset_of!(RunQueue, base)
        && offset_of!(ThreadSlot, itself) == offset_of!(RunQueue, itself)
        && offset_of!(ThreadSlot, timed_resume) == offset_of!(RunQueue, timed_resume)
        && offset_of!(ThreadSlot, begun) == offset_of!(RunQueue, begun)
        && offset_of!(ThreadSlot, rounding) == offset_of!(RunQueue, rounding)
        && offset_of!(ThreadSlot, own_bits) == offset_of!(RunQueue, own_bits)
        && offset_of!(ThreadSlot, stopwatch) == size_of::<RunQueue>()
);

/// Use of a thread slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Use {
    /// Free: never used, or left by a thread of the program.
    Free = 0,
    /// A thread is initialising it.
    Taken = 1,
    /// A thread of the program has it.
    Thread = 2,
    /// A home thread has it.
    Home = 3,
    /// Left by a home thread, for another home thread only: no contexts are given to it.
    FreeHome = 4,
}

/// All slots that were ever used.
pub(super) fn slots() -> &'static [ThreadSlot] {
    let pool = POOL.load(Ordering::Acquire);
    if pool == 0 {
        return &[];
    }
    let count = HIGHEST.load(Ordering::Acquire).min(MAX_THREAD_SLOTS);
    // SAFETY: the pool is never unmapped, zero bytes are a thread slot, and all its fields are atomics.
    unsafe { core::slice::from_raw_parts(pool as *const ThreadSlot, count) }
}

/// The slots of the program's threads.
pub(super) fn thread_slots() -> impl Iterator<Item = &'static ThreadSlot> {
    let is_of_program =
        |slot: &&ThreadSlot| slot.used.load(Ordering::Acquire) == Use::Thread as u32;
    slots().iter().filter(is_of_program)
}

/// Allocates a slot: one that was left as `free`, else one that was never used. `None`: all are in use.
pub(super) fn take_slot(free: Use) -> Option<&'static ThreadSlot> {
    let take = |slot: &ThreadSlot, free: Use| {
        let claimed = slot.used.compare_exchange(
            free as u32,
            Use::Taken as u32,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        claimed.is_ok()
    };
    loop {
        if let Some(slot) = slots().iter().find(|slot| take(slot, free)) {
            return Some(slot);
        }
        let more = |highest: usize| (highest < MAX_THREAD_SLOTS).then_some(highest + 1);
        let index = HIGHEST
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        let slot = slots().get(index)?;
        // Another thread may have taken it first.
        if take(slot, Use::Free) {
            return Some(slot);
        }
    }
}

/// Base of the calling thread's `gs`.
#[inline(always)]
fn gs_base() -> u64 {
    let base;
    // SAFETY: there are slots only where the kernel permits the instruction (see `begin`).
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, preserves_flags, nomem)) };
    base
}

/// Sets the base of the calling thread's `fs`.
pub(super) fn set_fs(base: u64) {
    // SAFETY: no code of the agent uses fs, and the caller knows whether the program or a scavenger runs
    // next.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags, nomem)) };
}

impl ThreadSlot {
    /// The slot that the calling thread's `gs` names: its own, or one inherited from the thread that made
    /// it.
    pub(super) fn of_thread() -> Option<&'static Self> {
        let pool = POOL.load(Ordering::Acquire) as u64;
        if pool == 0 {
            return None;
        }
        let base = gs_base();
        let within = (MAX_THREAD_SLOTS * size_of::<Self>()) as u64;
        // SAFETY: thread slots are never unmapped.
        (pool..pool + within)
            .contains(&base)
            .then(|| unsafe { &*(base as *const Self) })
    }

    /// The slot of the calling thread, if it has one of its own. A thread that has not yielded yet, and a
    /// child of `vfork`, still have that of the thread that made them.
    pub(crate) fn own() -> Option<&'static Self> {
        let slot = Self::of_thread()?;
        let is_own = has_run_queues() && slot.thread.load(Ordering::Acquire) == sys::thread();
        is_own.then_some(slot)
    }

    /// The slot of the calling thread, if a context runs on the thread or is about to.
    pub(crate) fn with_context() -> Option<&'static Self> {
        let slot = Self::of_thread()?;
        let on = slot.used.load(Ordering::Relaxed) == Use::Thread as u32
            && slot.current.load(Ordering::Relaxed) != 0;
        // As in `own`, but the kernel is asked for the thread's number only during time slices.
        (on && slot.thread.load(Ordering::Acquire) == sys::thread()).then_some(slot)
    }

    pub(super) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// The words by which other threads ask this one.
    pub(super) fn queue(&self) -> Queue<'_> {
        Queue {
            next: &self.next,
            owner: &self.owner,
            open: &self.open,
        }
    }

    /// Initialises the slot for the calling thread `thread`, whose base of `fs` is `fs`. From now on its
    /// system calls are dispatched to the agent while a context runs. Relaxed stores suffice: the caller
    /// publishes the slot by storing `used` with Release afterwards.
    pub(super) fn settle(&'static self, thread: u32, fs: u64) -> Result<(), Errno> {
        const SET_GS: usize = 0x1001;
        for word in [
            &self.next,
            &self.owner,
            &self.current,
            &self.borrowed,
            &self.turns,
            &self.ring,
            &self.counted_slices,
            &self.slice_ns,
            &self.asked_ns,
            &self.rounding,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.skips,
            &self.signals_blocked,
            &self.changing,
            &self.slice_polls,
        ] {
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
        self.counted_cpu_ns
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

    /// Makes each side keep its own floating-point exception flags, if the program or a scavenger reads
    /// them.
    pub(super) fn keep_exceptions_apart(&self) {
        let read = control_page().is_none_or(|control_page| control_page.own_exceptions != 0);
        let own_bits = if read { EVERY_BIT } else { NO_EXCEPTIONS };
        self.own_bits.store(own_bits, Ordering::Relaxed);
    }

    /// Runs `change` with the slot's lock held. Signals must be blocked: a handler of the program on the
    /// same thread would enter the agent at its yield and wait for the lock for ever.
    pub(super) fn locked<T>(&self, change: impl FnOnce() -> T) -> T {
        while !lock::try_lock(&self.lock) {
            sys::wait_while(&self.lock, 1, 1_000_000);
        }
        self.release_after(change)
    }

    /// As [`Self::locked`], but does not wait: `None`, without running `change`, if the lock is held.
    pub(super) fn locked_at_once<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        lock::try_lock(&self.lock).then(|| self.release_after(change))
    }

    /// As [`Self::locked`], where the lock is held already, or by a thread that has ended.
    pub(super) fn release_after<T>(&self, change: impl FnOnce() -> T) -> T {
        let result = change();
        lock::unlock(&self.lock);
        sys::wake_all(&self.lock);
        result
    }
}
