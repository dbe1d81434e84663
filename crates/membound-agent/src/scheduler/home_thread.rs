//! A scavenger's home thread in a process with run queues: it runs the scavenger up to a yield, offers it
//! to run queues, and runs its system calls when it comes back.
//!
//! While no run queue has room for the scavenger, the idle policy decides: with [`Idle::Harvest`] the home
//! thread runs it in idle time, otherwise it waits. A scavenger that is wanted on another hardware thread
//! of the primary's core runs here while scavengers are admitted, whether a run queue has room or not.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{Idle, RunQueue, ScavengerProcessState, ScavengerRequest};

use super::ring::{ROOM_EVENTS, has_yielded};
use super::thread_slot::{Context, ROUNDING_AT_FIRST, ThreadSlot, Use, slots, take_slot};
use super::{ending, finish, has_peers, here, idle, idle_time, leave, monitor, overdue};
use crate::scavenger::{self, Scavenger};
use crate::sys::{self, Errno, call, check};
use crate::trap;

/// Signals that a home thread blocks: signals sent to the process are for the program.
pub(crate) const MASK: u64 = !trap::mask(&trap::OF_SCAVENGERS) & !trap::mask(&trap::OF_CHANGES);
/// Credit of a scavenger that runs at home: it comes back to its home thread after about 50 µs of counted
/// run time.
const IDLE_TIME_CREDIT: i32 = 50_000 * membound_wire::CREDIT_UNITS_PER_NS;
/// Longest wait for room, in nanoseconds, before the home thread tries again.
const ROOM_TIMEOUT_NS: u64 = 100_000_000;
/// Longest wait, in nanoseconds, for a thread whose run queue has room to come to a yield.
const TAKE_TIMEOUT_NS: u64 = 5_000_000;
/// Waits for room after which the scavenger runs at home although no thread of the program has yielded yet.
const MAX_WAITS_FOR_FIRST_YIELD: u32 = 10;

/// State: the scavenger is on its home thread.
const HOME: u32 = 0;
/// State: a run queue has the scavenger, or is being given it.
const AWAY: u32 = 1;
/// State: the context lies ready, and any run queue may take it.
const READY: u32 = 2;

global_asm!(
    ".pushsection .text.membound_home_thread, \"ax\", @progbits",
    // rdi: the context; rsi: the address of its signal frame, from which it resumes, 0 if it is parked.
    // Returns when the context yields.
    ".globl membound_run_queue_run",
    ".hidden membound_run_queue_run",
    "membound_run_queue_run:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov gs:[{stack}], rsp",
    "stmxcsr gs:[{rounding}]",
    "fnstcw gs:[{rounding} + 4]",
    "lea rax, [rip + 2f]",
    "mov gs:[{resume}], rax",
    "mov gs:[{current}], rdi",
    "mov byte ptr gs:[{selector}], 1",
    "test rsi, rsi",
    "jnz 3f",
    "mov rdx, [rdi + {context_resume}]",
    "mov rsp, [rdi + {context_stack}]",
    "ldmxcsr [rdi + {context_rounding}]",
    "fldcw [rdi + {context_rounding} + 4]",
    "mov qword ptr [rdi + {context_resume}], 0",
    "jmp rdx",
    "3:",
    "mov rsp, rsi",
    "jmp membound_run_queue_return",
    "2:",
    "mov byte ptr gs:[{selector}], 0",
    "mov qword ptr gs:[{current}], 0",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".popsection",
    stack = const offset_of!(RunQueue, stack),
    resume = const offset_of!(RunQueue, resume),
    current = const offset_of!(RunQueue, current),
    selector = const offset_of!(RunQueue, selector),
    context_resume = const offset_of!(membound_wire::Context, resume),
    context_stack = const offset_of!(membound_wire::Context, stack),
    rounding = const offset_of!(RunQueue, rounding),
    context_rounding = const offset_of!(membound_wire::Context, rounding),
);

unsafe extern "C" {
    fn membound_run_queue_run(context: &Context, frame: u64);
}

/// Pending request: what the home thread does before the scavenger goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingRequest {
    /// Nothing: run on.
    Run,
    /// Make the system call that the signal frame asks for.
    Call,
    /// Stay at home for the back-off time: the scavenger did not come back to a yield.
    BackOff,
    /// Stay at home for the shortest back-off time: the kernel used the time slice, for page faults.
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
    state: AtomicU32,
    /// The pending request, a [`PendingRequest`] as its word.
    pending_request: AtomicU32,
    /// Address of the `ucontext` from which the scavenger resumes; 0: it is parked. The context itself
    /// cannot tell: the scavenger may have been interrupted while parking, with its stack pointer already
    /// written.
    frame: AtomicU64,
    /// Address of the home thread's slot; 0: none.
    slot: AtomicU64,
    /// The home thread's alternate stack: address and bytes.
    alternate: [AtomicUsize; 2],
    /// 1 while it runs in idle time although it would rather be in a run queue.
    in_idle_time: AtomicU32,
    /// 1: it is to run in idle time, and no run queue may have it.
    kept: AtomicU32,
    /// End of its back-off, in nanoseconds of `CLOCK_MONOTONIC`.
    backs_off_until_ns: AtomicU64,
    /// [`Self::loads`] at the last poll of the monitor thread.
    seen_loads: AtomicU64,
    /// CPU time of its home thread when idle-time execution was last judged.
    pub(super) judged: idle_time::Seen,
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
            seen_loads: AtomicU64::new(0),
            judged: idle_time::Seen::new(),
        }
    }

    fn of(context: &Context) -> &'static Self {
        let address = context.address() as usize - offset_of!(Self, context);
        // SAFETY: every context that goes home is part of a `HomeThread`, and these are static.
        unsafe { &*(address as *const Self) }
    }

    /// Remembers the home thread's alternate stack, on which the scavenger's faults are handled.
    pub(crate) fn set_alternate_stack(&self, stack: usize, bytes: usize) {
        let [place, length] = &self.alternate;
        place.store(stack, Ordering::Relaxed);
        length.store(bytes, Ordering::Relaxed);
    }

    fn slot(&self) -> Option<&'static ThreadSlot> {
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
    pub(super) fn is_away(&self) -> bool {
        self.state.load(Ordering::Acquire) == AWAY
    }

    /// Makes it run in idle time from now on.
    pub(super) fn keep(&self) {
        self.judged.forget();
        self.kept.store(1, Ordering::Release);
    }

    /// Run queues may have it again. `thread`, its home thread, leaves `SCHED_IDLE` so that it comes to a
    /// yield soon.
    pub(super) fn let_go(&self, thread: u32) {
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

/// True if no run queue may have the scavenger of this context.
pub(super) fn keeps_off_run_queues(context: &Context) -> bool {
    Scavenger::of(HomeThread::of(context)).keeps_off_run_queues()
}

/// Gives a context, which must be in no ring any more, back to its home thread. `frame` is the address of
/// its `ucontext` if a signal interrupted it, 0 if it is parked.
pub(super) fn send_home(context: &Context, frame: u64, pending_request: PendingRequest) {
    let home_thread = HomeThread::of(context);
    home_thread.frame.store(frame, Ordering::Relaxed);
    home_thread
        .pending_request
        .store(pending_request.word(), Ordering::Relaxed);
    // Last, with Release: the home thread reads `frame` and `pending_request` once it has loaded HOME with
    // Acquire.
    home_thread.state.store(HOME, Ordering::Release);
    sys::wake_all(&home_thread.state);
}

/// Gets the calling home thread a slot, so that the scavenger's system calls are dispatched to the agent.
/// Returns `false` in a process without run queues.
pub(crate) fn settle(home_thread: &'static HomeThread) -> Result<bool, Errno> {
    if !here() {
        return Ok(false);
    }
    let slot = take_slot(Use::FreeHome).ok_or(Errno::ENOSPC)?;
    slot.settle(sys::thread(), 0)?;
    // The state and the slot may have been another scavenger's.
    home_thread
        .seen_loads
        .store(home_thread.loads(slot), Ordering::Relaxed);
    home_thread.backs_off_until_ns.store(0, Ordering::Relaxed);
    home_thread.slot.store(slot.address(), Ordering::Relaxed);
    slot.used.store(Use::Home as u32, Ordering::Release);
    Ok(true)
}

/// Runs the scavenger, which begins at `resume` with this stack pointer, until it ends.
pub(crate) fn live(scavenger: &'static Scavenger, stack: u64, resume: u64) -> ! {
    let home_thread = scavenger.home_thread();
    let context = &home_thread.context;
    context.stack.store(stack, Ordering::Relaxed);
    context.rounding.store(ROUNDING_AT_FIRST, Ordering::Relaxed);
    context.resume.store(resume, Ordering::Relaxed);
    let mut in_idle_time = false;
    let mut is_beside = false;
    let mut back_offs = BackOffs::default();
    loop {
        if ending::is_near() {
            scavenger::leave(scavenger);
        }
        let pending_request =
            PendingRequest::of_word(home_thread.pending_request.swap(0, Ordering::AcqRel));
        let frame = home_thread.frame.swap(0, Ordering::AcqRel);
        match pending_request {
            PendingRequest::Run => {}
            PendingRequest::Call => {
                // In `SCHED_IDLE` the call would wait long for a busy processor.
                schedule(0, SCHED_OTHER);
                leave::in_frame(frame, |registers| {
                    scavenger::make_call(scavenger, registers);
                });
            }
            PendingRequest::BackOff | PendingRequest::ShortBackOff => {
                home_thread.back_off(&mut back_offs, pending_request);
                schedule(0, SCHED_IDLE);
                in_idle_time = idle() == Idle::Harvest;
            }
            PendingRequest::Die(signal) => {
                scavenger::die(scavenger, ScavengerProcessState::Killed, signal)
            }
        }
        scavenger.wait_while_held();
        if let Some(slot) = home_thread.slot() {
            let credit = if in_idle_time { IDLE_TIME_CREDIT } else { 0 };
            slot.credit.store(credit, Ordering::Relaxed);
            // The monitor thread clears `alone` and the credit to call the scavenger to a yield. One that
            // runs on another hardware thread of the primary's core returns by itself, to ask whether it
            // may go on.
            let alone = in_idle_time && (has_peers() || !scavenger.is_beside());
            slot.alone.store(u8::from(alone), Ordering::Relaxed);
            // A ring of one: at a miss the scavenger itself goes on, for as long as it has credit.
            context.next.store(context.address(), Ordering::Relaxed);
            slot.first.store(0, Ordering::Relaxed);
        }
        // SAFETY: the context is parked or has its frame, and belongs to this thread alone.
        unsafe { membound_run_queue_run(context, frame) };
        scavenger.count(offset_of!(ScavengerRequest, parks));
        let before = sys::monotonic_ns();
        let left_ns = home_thread.back_off_left_ns(before);
        home_thread.in_idle_time.store(0, Ordering::Relaxed);
        let was_beside = is_beside;
        is_beside = scavenger.is_beside();
        if is_beside {
            if !was_beside {
                schedule(0, SCHED_OTHER);
            }
            monitor::await_let_in();
            in_idle_time = true;
            continue;
        }
        if scavenger.is_held() {
            in_idle_time = true;
            continue;
        }
        if home_thread.is_kept() {
            schedule(0, SCHED_IDLE);
            in_idle_time = true;
            continue;
        }
        if left_ns > 0 && idle() == Idle::Harvest {
            in_idle_time = true;
            continue;
        }
        if left_ns > 0 {
            sys::nap(left_ns);
        }
        let before = before + left_ns;
        in_idle_time = !find_run_queue(home_thread, in_idle_time);
        if !in_idle_time {
            let away_ns = sys::monotonic_ns().saturating_sub(before);
            scavenger.add(offset_of!(ScavengerRequest, away_ns), away_ns);
        }
        if in_idle_time {
            schedule(0, SCHED_IDLE);
            home_thread.in_idle_time.store(1, Ordering::Relaxed);
        }
    }
}

/// Polls all home threads: calls those to their next yield whose scavengers may take time slices now, if a
/// run queue `takes` them, and adds up the scavengers' progress. Returns true if a run queue has a
/// scavenger that must leave it.
pub(super) fn look_at_all(now_ns: u64, takes: bool) -> bool {
    let mut leaves = false;
    scavenger::each_home_thread(|_, home_thread| {
        let Some(slot) = home_thread.slot() else {
            return;
        };
        let scavenger = Scavenger::of(home_thread);
        let keeps_off = scavenger.keeps_off_run_queues();
        leaves |= keeps_off && home_thread.is_away();
        let is_free = !keeps_off && home_thread.back_off_left_ns(now_ns) == 0;
        let is_called = takes && is_free || scavenger.is_held();
        if is_called && slot.alone.swap(0, Ordering::Relaxed) != 0 {
            slot.credit.store(0, Ordering::Relaxed);
        }
        let loads = home_thread.loads(slot);
        let before = home_thread.seen_loads.swap(loads, Ordering::Relaxed);
        let progress = offset_of!(ScavengerRequest, progress);
        scavenger.add(progress, loads.wrapping_sub(before));
    });
    leaves
}

/// Number of scavengers that could share a run queue now: those in a run queue, those that are ready for one,
/// and those that run on their home threads because no run queue has room.
pub(super) fn candidates(now_ns: u64) -> u32 {
    let mut count = 0;
    scavenger::each_home_thread(|_, home_thread| {
        let is_free = !Scavenger::of(home_thread).keeps_off_run_queues()
            && home_thread.back_off_left_ns(now_ns) == 0;
        let runs_alone = home_thread
            .slot()
            .is_some_and(|slot| slot.alone.load(Ordering::Relaxed) != 0);
        count +=
            u32::from(home_thread.is_away() || is_free && (home_thread.is_ready() || runs_alone));
    });
    count
}

/// Takes scavengers that run in idle time out of `SCHED_IDLE`, so that they come to their next yield: a run
/// queue has room. Where the program keeps the processors busy there is no idle time, and they would not
/// come to a yield for seconds.
pub(super) fn call_from_idle_time() {
    scavenger::each_home_thread(|thread, home_thread| {
        if home_thread.is_in_idle_time() {
            schedule(thread, SCHED_OTHER);
        }
    });
}

/// True if any scavenger runs in idle time for want of a run queue.
pub(super) fn any_in_idle_time() -> bool {
    let mut any = false;
    scavenger::each_home_thread(|_, home_thread| any |= home_thread.is_in_idle_time());
    any
}

/// Number of recent back-offs, for slices that did not end.
#[derive(Debug, Default)]
struct BackOffs {
    times: u32,
}

impl BackOffs {
    /// Nanoseconds without a back-off after which the count starts again.
    const FORGOTTEN_NS: u64 = 60_000_000_000;

    /// Length of the next back-off in nanoseconds, `since_ns` after the last one ended. An
    /// [`PendingRequest::ShortBackOff`] is not the scavenger's fault: it lasts as long as a first back-off
    /// and is not counted.
    fn next_ns(&mut self, since_ns: u64, pending_request: PendingRequest) -> u64 {
        if since_ns > Self::FORGOTTEN_NS {
            self.times = 0;
        }
        if pending_request == PendingRequest::ShortBackOff {
            return overdue::back_off_ns(0);
        }
        self.times = self.times.saturating_add(1);
        overdue::back_off_ns(self.times - 1)
    }
}

/// Offers the scavenger to run queues and waits until it is back; `false` if it is to run on at home.
///
/// Run queues take scavengers instead of being given them: on a busy processor this thread would not be
/// scheduled in time to hand its scavenger over when a run queue has room.
fn find_run_queue(home_thread: &'static HomeThread, in_idle_time: bool) -> bool {
    if finish::is_over() {
        // No thread is left that could yield to it.
        return false;
    }
    let mut waits = 0;
    loop {
        // Read before the offer: if a run queue gets room after this, the wait below returns at once.
        let room = ROOM_EVENTS.load(Ordering::Acquire);
        // SeqCst, as `open` in `refill`: either that thread finds READY, or `asked_to_take` finds its queue
        // open.
        home_thread.state.store(READY, Ordering::SeqCst);
        let mut takers = 0;
        for slot in slots() {
            takers += u32::from(slot.asked_to_take());
        }
        let harvests = idle() == Idle::Harvest;
        if takers > 0 || !(harvests && (in_idle_time || has_peers())) {
            let patience = if takers > 0 {
                TAKE_TIMEOUT_NS
            } else {
                ROOM_TIMEOUT_NS
            };
            sys::wait_while(&ROOM_EVENTS, room, patience);
            waits += 1;
        }
        if !home_thread.take_back() {
            home_thread.await_return();
            return true;
        }
        // A program that has not come to a yield in all these waits may never come to one.
        let runs = in_idle_time
            || has_peers()
            || home_thread.is_kept()
            || has_yielded()
            || waits > MAX_WAITS_FOR_FIRST_YIELD;
        if harvests && runs {
            return false;
        }
    }
}

impl HomeThread {
    fn is_in_idle_time(&self) -> bool {
        self.in_idle_time.load(Ordering::Relaxed) == 1
    }

    fn await_return(&self) {
        while self.state.load(Ordering::Acquire) != HOME {
            sys::wait_while(&self.state, AWAY, ROOM_TIMEOUT_NS);
        }
    }

    /// Starts a back-off, whose length `back_offs` determines.
    fn back_off(&self, back_offs: &mut BackOffs, pending_request: PendingRequest) {
        let now_ns = sys::monotonic_ns();
        let last_ns = self.backs_off_until_ns.load(Ordering::Relaxed);
        let back_off_ns = back_offs.next_ns(now_ns.saturating_sub(last_ns), pending_request);
        self.backs_off_until_ns
            .store(now_ns.saturating_add(back_off_ns), Ordering::Relaxed);
    }

    /// Nanoseconds of its back-off that are left.
    fn back_off_left_ns(&self, now_ns: u64) -> u64 {
        let until_ns = self.backs_off_until_ns.load(Ordering::Relaxed);
        until_ns.saturating_sub(now_ns)
    }

    /// Loads with a yield that the scavenger has executed, in run queues and alone on its home thread,
    /// whose slot is `slot`.
    fn loads(&self, slot: &ThreadSlot) -> u64 {
        let alone = slot.turns.load(Ordering::Relaxed);
        alone.wrapping_add(self.context.yields.load(Ordering::Relaxed))
    }

    /// True if any run queue may take it.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY
    }

    /// Keeps the scavenger at home from now on; `false` if a run queue has it already.
    pub(crate) fn stays_home(&self) -> bool {
        self.take_back() || self.state.load(Ordering::Acquire) == HOME
    }

    /// Withdraws the offer; `false` if a run queue has taken the scavenger.
    fn take_back(&self) -> bool {
        let taken_back =
            self.state
                .compare_exchange(READY, HOME, Ordering::AcqRel, Ordering::Acquire);
        taken_back.is_ok()
    }

    /// Takes the context for a run queue, if it lies ready. The exchange lets exactly one of all run queues
    /// and the home thread win.
    pub(crate) fn take(&self) -> Option<&Context> {
        let taken = self
            .state
            .compare_exchange(READY, AWAY, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok().then_some(&self.context)
    }
}

const SCHED_OTHER: usize = 0;
const SCHED_IDLE: usize = 5;

/// Called when the program begins: lowers every home thread to `SCHED_IDLE`, also the home threads of scavengers
/// that have not reached a yield. A home thread that leaves `SCHED_IDLE` later has the lowest weight.
pub(crate) fn stand_back() {
    if has_peers() {
        return;
    }
    const SET_PRIORITY: usize = 141;
    const LOWEST_PRIORITY_NICENESS: usize = 19;
    scavenger::each_thread(|thread| {
        // SAFETY: it touches no memory. Where it is refused, the thread's niceness stays.
        let _ = unsafe {
            call(
                SET_PRIORITY,
                [0, thread as usize, LOWEST_PRIORITY_NICENESS, 0, 0, 0],
            )
        };
        schedule(thread, SCHED_IDLE);
    });
}

/// Home threads are to end: they leave `SCHED_IDLE`, so that they can also where the program keeps
/// processors busy.
pub(super) fn step_forward() {
    scavenger::each_thread(|thread| schedule(thread, SCHED_OTHER));
}

/// Sets the scheduling policy of a thread (0: the calling one). The kernel lets only a privileged thread leave
/// `SCHED_IDLE`; for others the policy stays as it is. Without a primary this does nothing.
fn schedule(thread: u32, policy: usize) {
    if has_peers() {
        return;
    }
    const SET_SCHEDULER: usize = 144;
    let priority = 0_u32;
    // SAFETY: the kernel reads one word.
    let set = unsafe {
        call(
            SET_SCHEDULER,
            [
                thread as usize,
                policy,
                (&raw const priority) as usize,
                0,
                0,
                0,
            ],
        )
    };
    let _ = check(set);
}
