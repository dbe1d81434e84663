//! Hands a scavenger over between its home thread and run queues.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_sync::handover::{AWAY, HOME, Handover, READY};

use super::cpu_share::JudgedCpuTime;
use super::policy::{SCHED_OTHER, schedule};
use super::thread_slot::{Context, ThreadSlot, Use};
use crate::{own_signals, sys};

/// Signals that a home thread blocks: signals sent to the process are for the program.
pub(crate) const MASK: u64 =
    !own_signals::mask(&own_signals::OF_SCAVENGERS) & !own_signals::mask(&own_signals::OF_CHANGES);

/// Pending request: what the home thread does before the scavenger continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingRequest {
    /// Nothing: run on.
    Run,
    /// Make the system call that the signal frame asks for.
    Call,
    /// Stay on the home thread for the back-off time: the scavenger did not reach a yield.
    BackOff,
    /// Stay on the home thread for the shortest back-off time: the kernel used the time slice, for page
    /// faults.
    ShortBackOff,
    /// End with this signal.
    Die(u32),
}

impl PendingRequest {
    pub(super) const fn word(self) -> u32 {
        match self {
            Self::Run => 0,
            Self::Call => 1,
            Self::BackOff => 2,
            Self::ShortBackOff => 3,
            // Signals begin at 1.
            Self::Die(signal) => 3 + signal,
        }
    }

    pub(super) const fn of_word(word: u32) -> Self {
        match word {
            0 => Self::Run,
            1 => Self::Call,
            2 => Self::BackOff,
            3 => Self::ShortBackOff,
            _ => Self::Die(word - 3),
        }
    }
}

/// State with which a scavenger is handed over between its home thread and run queues.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct HomeThread {
    pub(crate) context: Context,
    /// [`HOME`], [`AWAY`] or [`READY`].
    pub(super) state: AtomicU32,
    /// The pending request, a [`PendingRequest`] as its word.
    pub(super) pending_request: AtomicU32,
    /// Address of the `ucontext` from which the scavenger resumes; 0: it is parked. The context itself
    /// cannot know: the scavenger may have been interrupted while parking, with its stack pointer already
    /// written.
    pub(super) frame: AtomicU64,
    /// Address of the home thread's slot; 0: none.
    pub(super) slot: AtomicU64,
    /// The home thread's alternate stack: address and bytes.
    alternate: [AtomicUsize; 2],
    /// 1 while it runs in idle time although it would rather be in a run queue.
    pub(super) in_idle_time: AtomicU32,
    /// 1: it is to run in idle time, and no run queue may have it.
    kept: AtomicU32,
    /// End of its back-off, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) backs_off_until_ns: AtomicU64,
    /// [`Self::loads`] at the last poll of the monitor thread.
    pub(super) counted_loads: AtomicU64,
    /// CPU time of its home thread when idle-time execution was last judged.
    pub(super) judged: JudgedCpuTime,
}

impl HomeThread {
    pub(crate) const fn new() -> Self {
        Self {
            context: Context::new(),
            state: AtomicU32::new(HOME),
            pending_request: AtomicU32::new(0),
            frame: AtomicU64::new(0),
            slot: AtomicU64::new(0),
            alternate: [const { AtomicUsize::new(0) }; 2],
            in_idle_time: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            backs_off_until_ns: AtomicU64::new(0),
            counted_loads: AtomicU64::new(0),
            judged: JudgedCpuTime::new(),
        }
    }

    pub(super) fn of(context: &Context) -> &'static Self {
        let address = context.address() as usize - offset_of!(Self, context);
        // SAFETY: every context that returns to a home thread is part of a `HomeThread`, and these are
        // static.
        unsafe { &*(address as *const Self) }
    }

    /// Remembers the home thread's alternate stack, on which the scavenger's faults are handled.
    pub(crate) fn set_alternate_stack(&self, stack: usize, bytes: usize) {
        let [place, length] = &self.alternate;
        place.store(stack, Ordering::Relaxed);
        length.store(bytes, Ordering::Relaxed);
    }

    /// The words by which the context is handed over.
    pub(super) fn handover(&self) -> Handover<'_> {
        Handover {
            state: &self.state,
            frame: &self.frame,
            request: &self.pending_request,
        }
    }

    pub(super) fn slot(&self) -> Option<&'static ThreadSlot> {
        let address = self.slot.load(Ordering::Relaxed);
        // SAFETY: thread slots are never unmapped.
        (address != 0).then(|| unsafe { &*(address as *const ThreadSlot) })
    }

    /// The scavenger has set the base of its `fs`.
    pub(crate) fn set_fs(&self, base: u64) {
        self.context.fs.store(base, Ordering::Relaxed);
        if let Some(slot) = self.slot() {
            slot.base.store(base, Ordering::Relaxed);
        }
    }

    /// True if it is to run in idle time, and no run queue may have it.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire) != 0
    }

    /// True if a run queue has the scavenger.
    pub(super) fn is_in_run_queue(&self) -> bool {
        self.state.load(Ordering::Acquire) == AWAY
    }

    /// Makes it run in idle time from now on.
    pub(super) fn keep(&self) {
        self.judged.forget();
        self.kept.store(1, Ordering::Release);
    }

    /// Run queues may have it again. `thread`, its home thread, leaves `SCHED_IDLE` so that it comes to a
    /// yield soon.
    pub(super) fn release(&self, thread: u32) {
        self.kept.store(0, Ordering::Release);
        schedule(thread, SCHED_OTHER);
    }

    /// The scavenger has ended: frees its thread slot.
    pub(crate) fn clear(&self) {
        self.kept.store(0, Ordering::Release);
        if let Some(slot) = self.slot() {
            // Before the slot is free, since another home thread may take it at once.
            self.slot.store(0, Ordering::Relaxed);
            slot.used.store(Use::FreeHome as u32, Ordering::Release);
        }
    }
}

/// The alternate stack of the context's home thread: address and bytes.
pub(super) fn alternate_stack(context: &Context) -> [usize; 2] {
    let [place, length] = &HomeThread::of(context).alternate;
    [
        place.load(Ordering::Relaxed),
        length.load(Ordering::Relaxed),
    ]
}

/// Gives a context, which must be in no ring any more, back to its home thread. `frame` is the address of
/// its `ucontext` if a signal interrupted it, 0 if it is parked.
pub(super) fn return_home(context: &Context, frame: u64, pending_request: PendingRequest) {
    let home_thread = HomeThread::of(context);
    home_thread
        .handover()
        .return_home(frame, pending_request.word());
    sys::wake_all(&home_thread.state);
}

impl HomeThread {
    pub(super) fn is_in_idle_time(&self) -> bool {
        self.in_idle_time.load(Ordering::Relaxed) == 1
    }

    /// Nanoseconds of its back-off that are left.
    pub(super) fn back_off_left_ns(&self, now_ns: u64) -> u64 {
        let until_ns = self.backs_off_until_ns.load(Ordering::Relaxed);
        until_ns.saturating_sub(now_ns)
    }

    /// Loads with a yield that the scavenger has executed, in run queues and alone on its home thread,
    /// whose slot is `slot`.
    pub(super) fn loads(&self, slot: &ThreadSlot) -> u64 {
        let alone = slot.turns.load(Ordering::Relaxed);
        alone.wrapping_add(self.context.yields.load(Ordering::Relaxed))
    }

    /// True if any run queue may take it.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY
    }

    /// Keeps the scavenger on its home thread from now on; `false` if a run queue has it already.
    pub(crate) fn keep_at_home(&self) -> bool {
        self.take_back() || self.handover().is_home()
    }

    /// Withdraws the offer; `false` if a run queue has taken the scavenger.
    pub(super) fn take_back(&self) -> bool {
        self.handover().take_back()
    }

    /// Takes the context for a run queue, if it is ready.
    pub(crate) fn take(&self) -> Option<&Context> {
        self.handover().take().then_some(&self.context)
    }
}
