//! A scavenger's home thread in a process with run queues: it runs the scavenger up to a yield, offers it
//! to run queues, and runs its system calls when it comes back.
//!
//! While no run queue has room for the scavenger, the idle policy decides: with [`Idle::Harvest`] the home
//! thread runs it in idle time, otherwise it waits. A scavenger that is wanted on another hardware thread
//! of the primary's core runs here while scavengers are admitted, whether a run queue has room or not.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{GuestRequest, GuestState, Idle, Lane};

use super::block::{Block, Context, ROUNDING_AT_FIRST, Use, blocks, take_block};
use super::ring::{ROOM, has_yielded};
use super::{ending, finish, has_peers, here, idle, leave, overdue, soak, warden};
use crate::guest::{self, Guest};
use crate::sys::{self, Errno, call, check};
use crate::trap;

/// Signals that a home thread blocks: signals sent to the process are for the program.
pub(crate) const MASK: u64 = !trap::mask(&trap::OF_GUESTS) & !trap::mask(&trap::OF_CHANGES);
/// Credit of a scavenger that runs at home: it comes back to its home thread after about 50 µs of counted
/// run time.
const SOAKING: i32 = 50_000 * membound_wire::CREDIT_UNITS_PER_NS;
/// Longest wait for room, in nanoseconds, before the home thread tries again.
const PATIENCE_NS: u64 = 100_000_000;
/// Longest wait, in nanoseconds, for a thread whose run queue has room to come to a yield.
const TAKING_NS: u64 = 5_000_000;
/// Waits for room after which the scavenger runs at home although no thread of the program has yielded yet.
const MOST_WAITS: u32 = 10;

/// State: the scavenger is on its home thread.
const HOME: u32 = 0;
/// State: a run queue has the scavenger, or is being given it.
const AWAY: u32 = 1;
/// State: the context lies ready, and any run queue may take it.
const READY: u32 = 2;

global_asm!(
    ".pushsection .text.membound_berth, \"ax\", @progbits",
    // rdi: the context; rsi: the address of its signal frame, from which it resumes, 0 if it is parked.
    // Returns when the context yields.
    ".globl membound_lane_run",
    ".hidden membound_lane_run",
    "membound_lane_run:",
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
    "jmp membound_lane_return",
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
    stack = const offset_of!(Lane, stack),
    resume = const offset_of!(Lane, resume),
    current = const offset_of!(Lane, current),
    selector = const offset_of!(Lane, selector),
    context_resume = const offset_of!(membound_wire::Context, resume),
    context_stack = const offset_of!(membound_wire::Context, stack),
    rounding = const offset_of!(Lane, rounding),
    context_rounding = const offset_of!(membound_wire::Context, rounding),
);

unsafe extern "C" {
    fn membound_lane_run(context: &Context, frame: u64);
}

/// Pending request: what the home thread does before the scavenger goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Nothing: run on.
    Run,
    /// Make the system call that the signal frame asks for.
    Call,
    /// Stay at home for the back-off time: the scavenger did not come back to a yield.
    Rest,
    /// Stay at home for the shortest back-off time: the kernel used the time slice, for page faults.
    Pause,
    /// End with this signal.
    Die(u32),
}

impl Errand {
    pub(super) const fn word(self) -> u32 {
        match self {
            Self::Run => 0,
            Self::Call => 1,
            Self::Rest => 2,
            Self::Pause => 3,
            // Signals begin at 1.
            Self::Die(signal) => 3 + signal,
        }
    }

    pub(super) const fn of_word(word: u32) -> Self {
        match word {
            0 => Self::Run,
            1 => Self::Call,
            2 => Self::Rest,
            3 => Self::Pause,
            _ => Self::Die(word - 3),
        }
    }
}

/// State with which a scavenger is handed over between its home thread and run queues.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Berth {
    pub(crate) context: Context,
    /// [`HOME`], [`AWAY`] or [`READY`].
    state: AtomicU32,
    /// The pending request, an [`Errand`] as its word.
    errand: AtomicU32,
    /// Address of the `ucontext` from which the scavenger resumes; 0: it is parked. The context itself
    /// cannot tell: the scavenger may have been interrupted while parking, with its stack pointer already
    /// written.
    frame: AtomicU64,
    /// Address of the home thread's slot; 0: none.
    block: AtomicU64,
    /// The home thread's alternate stack: address and bytes.
    alternate: [AtomicUsize; 2],
    /// 1 while it runs in idle time although it would rather be in a run queue.
    soaks: AtomicU32,
    /// 1: it is to run in idle time, and no run queue may have it.
    kept: AtomicU32,
    /// End of its back-off, in nanoseconds of `CLOCK_MONOTONIC`.
    rests_until_ns: AtomicU64,
    /// [`Self::loads`] at the last poll of the monitor thread.
    seen_loads: AtomicU64,
    /// CPU time of its home thread when idle-time execution was last judged.
    pub(super) judged: soak::Seen,
}

impl Berth {
    pub(crate) const fn new() -> Self {
        Self {
            context: Context::new(),
            state: AtomicU32::new(HOME),
            errand: AtomicU32::new(0),
            frame: AtomicU64::new(0),
            block: AtomicU64::new(0),
            alternate: [const { AtomicUsize::new(0) }; 2],
            soaks: AtomicU32::new(0),
            kept: AtomicU32::new(0),
            rests_until_ns: AtomicU64::new(0),
            seen_loads: AtomicU64::new(0),
            judged: soak::Seen::new(),
        }
    }

    fn of(context: &Context) -> &'static Self {
        let address = context.address() as usize - offset_of!(Self, context);
        // SAFETY: every context that goes home is part of a `Berth`, and these are static.
        unsafe { &*(address as *const Self) }
    }

    /// Remembers the home thread's alternate stack, on which the scavenger's faults are handled.
    pub(crate) fn set_alternate_stack(&self, stack: usize, bytes: usize) {
        let [place, length] = &self.alternate;
        place.store(stack, Ordering::Relaxed);
        length.store(bytes, Ordering::Relaxed);
    }

    fn block(&self) -> Option<&'static Block> {
        let address = self.block.load(Ordering::Relaxed);
        // SAFETY: blocks are never unmapped.
        (address != 0).then(|| unsafe { &*(address as *const Block) })
    }

    /// The scavenger has set the base of its `fs`.
    pub(crate) fn set_fs(&self, base: u64) {
        self.context.fs.store(base, Ordering::Relaxed);
        if let Some(block) = self.block() {
            block.base.store(base, Ordering::Relaxed);
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
        if let Some(block) = self.block() {
            // Before the slot is free, since another home thread may take it at once.
            self.block.store(0, Ordering::Relaxed);
            block.used.store(Use::FreeHome as u32, Ordering::Release);
        }
    }
}

/// The alternate stack of the context's home thread: address and bytes.
pub(super) fn alternate_stack(context: &Context) -> [usize; 2] {
    let [place, length] = &Berth::of(context).alternate;
    [
        place.load(Ordering::Relaxed),
        length.load(Ordering::Relaxed),
    ]
}

/// True if no run queue may have the scavenger of this context.
pub(super) fn keeps_off_lanes(context: &Context) -> bool {
    Guest::of(Berth::of(context)).keeps_off_lanes()
}

/// Gives a context, which must be in no ring any more, back to its home thread. `frame` is the address of
/// its `ucontext` if a signal interrupted it, 0 if it is parked.
pub(super) fn send_home(context: &Context, frame: u64, errand: Errand) {
    let berth = Berth::of(context);
    berth.frame.store(frame, Ordering::Relaxed);
    berth.errand.store(errand.word(), Ordering::Relaxed);
    // Last, with Release: the home thread reads `frame` and `errand` once it has loaded HOME with Acquire.
    berth.state.store(HOME, Ordering::Release);
    sys::wake_all(&berth.state);
}

/// Gets the calling home thread a slot, so that the scavenger's system calls are dispatched to the agent.
/// Returns `false` in a process without run queues.
pub(crate) fn settle(berth: &'static Berth) -> Result<bool, Errno> {
    if !here() {
        return Ok(false);
    }
    let block = take_block(Use::FreeHome).ok_or(Errno::ENOSPC)?;
    block.settle(sys::thread(), 0)?;
    // The state and the slot may have been another scavenger's.
    berth
        .seen_loads
        .store(berth.loads(block), Ordering::Relaxed);
    berth.rests_until_ns.store(0, Ordering::Relaxed);
    berth.block.store(block.address(), Ordering::Relaxed);
    block.used.store(Use::Home as u32, Ordering::Release);
    Ok(true)
}

/// Runs the scavenger, which begins at `resume` with this stack pointer, until it ends.
pub(crate) fn live(guest: &'static Guest, stack: u64, resume: u64) -> ! {
    let berth = guest.berth();
    let context = &berth.context;
    context.stack.store(stack, Ordering::Relaxed);
    context.rounding.store(ROUNDING_AT_FIRST, Ordering::Relaxed);
    context.resume.store(resume, Ordering::Relaxed);
    let mut soaks = false;
    let mut is_beside = false;
    let mut rests = Rests::default();
    loop {
        if ending::is_near() {
            guest::leave(guest);
        }
        let errand = Errand::of_word(berth.errand.swap(0, Ordering::AcqRel));
        let frame = berth.frame.swap(0, Ordering::AcqRel);
        match errand {
            Errand::Run => {}
            Errand::Call => {
                // In `SCHED_IDLE` the call would wait long for a busy processor.
                schedule(0, SCHED_OTHER);
                leave::in_frame(frame, |registers| {
                    guest::make_call(guest, registers);
                });
            }
            Errand::Rest | Errand::Pause => {
                berth.rest(&mut rests, errand);
                schedule(0, SCHED_IDLE);
                soaks = idle() == Idle::Harvest;
            }
            Errand::Die(signal) => guest::die(guest, GuestState::Killed, signal),
        }
        guest.wait_while_held();
        if let Some(block) = berth.block() {
            let credit = if soaks { SOAKING } else { 0 };
            block.credit.store(credit, Ordering::Relaxed);
            // The monitor thread clears `alone` and the credit to call the scavenger to a yield. One that
            // runs on another hardware thread of the primary's core returns by itself, to ask whether it
            // may go on.
            let alone = soaks && (has_peers() || !guest.is_beside());
            block.alone.store(u8::from(alone), Ordering::Relaxed);
            // A ring of one: at a miss the scavenger itself goes on, for as long as it has credit.
            context.next.store(context.address(), Ordering::Relaxed);
            block.first.store(0, Ordering::Relaxed);
        }
        // SAFETY: the context is parked or has its frame, and belongs to this thread alone.
        unsafe { membound_lane_run(context, frame) };
        guest.count(offset_of!(GuestRequest, parks));
        let before = sys::monotonic_ns();
        let left_ns = berth.rest_left_ns(before);
        berth.soaks.store(0, Ordering::Relaxed);
        let was_beside = is_beside;
        is_beside = guest.is_beside();
        if is_beside {
            if !was_beside {
                schedule(0, SCHED_OTHER);
            }
            warden::await_let_in();
            soaks = true;
            continue;
        }
        if guest.is_held() {
            soaks = true;
            continue;
        }
        if berth.is_kept() {
            schedule(0, SCHED_IDLE);
            soaks = true;
            continue;
        }
        if left_ns > 0 && idle() == Idle::Harvest {
            soaks = true;
            continue;
        }
        if left_ns > 0 {
            sys::nap(left_ns);
        }
        let before = before + left_ns;
        soaks = !find_lane(berth, soaks);
        if !soaks {
            let away_ns = sys::monotonic_ns().saturating_sub(before);
            guest.add(offset_of!(GuestRequest, away_ns), away_ns);
        }
        if soaks {
            schedule(0, SCHED_IDLE);
            berth.soaks.store(1, Ordering::Relaxed);
        }
    }
}

/// Polls all home threads: calls those to their next yield whose scavengers may take time slices now, if a
/// run queue `takes` them, and adds up the scavengers' progress. Returns true if a run queue has a
/// scavenger that must leave it.
pub(super) fn look_at_all(now_ns: u64, takes: bool) -> bool {
    let mut leaves = false;
    guest::each_berth(|_, berth| {
        let Some(block) = berth.block() else { return };
        let guest = Guest::of(berth);
        let keeps_off = guest.keeps_off_lanes();
        leaves |= keeps_off && berth.is_away();
        let is_free = !keeps_off && berth.rest_left_ns(now_ns) == 0;
        let is_called = takes && is_free || guest.is_held();
        if is_called && block.alone.swap(0, Ordering::Relaxed) != 0 {
            block.credit.store(0, Ordering::Relaxed);
        }
        let loads = berth.loads(block);
        let before = berth.seen_loads.swap(loads, Ordering::Relaxed);
        let progress = offset_of!(GuestRequest, progress);
        guest.add(progress, loads.wrapping_sub(before));
    });
    leaves
}

/// Number of scavengers that may take time slices with each other now: those in a run queue, those that lie
/// ready, and those that run alone for want of a run queue.
pub(super) fn candidates(now_ns: u64) -> u32 {
    let mut count = 0;
    guest::each_berth(|_, berth| {
        let is_free = !Guest::of(berth).keeps_off_lanes() && berth.rest_left_ns(now_ns) == 0;
        let runs_alone = berth
            .block()
            .is_some_and(|block| block.alone.load(Ordering::Relaxed) != 0);
        count += u32::from(berth.is_away() || is_free && (berth.is_ready() || runs_alone));
    });
    count
}

/// Takes scavengers that run in idle time out of `SCHED_IDLE`, so that they come to their next yield: a run
/// queue has room. Where the program keeps the processors busy there is no idle time, and they would not
/// come to a yield for seconds.
pub(super) fn call_soaking() {
    guest::each_berth(|thread, berth| {
        if berth.is_soaking() {
            schedule(thread, SCHED_OTHER);
        }
    });
}

/// True if any scavenger runs in idle time for want of a run queue.
pub(super) fn any_soaks() -> bool {
    let mut any = false;
    guest::each_berth(|_, berth| any |= berth.is_soaking());
    any
}

/// Number of recent back-offs, for slices that did not end.
#[derive(Debug, Default)]
struct Rests {
    times: u32,
}

impl Rests {
    /// Nanoseconds without a back-off after which the count starts again.
    const FORGOTTEN_NS: u64 = 60_000_000_000;

    /// Length of the next back-off in nanoseconds, `since_ns` after the last one ended. An
    /// [`Errand::Pause`] is not the scavenger's fault: it lasts as long as a first back-off and is not
    /// counted.
    fn next_ns(&mut self, since_ns: u64, errand: Errand) -> u64 {
        if since_ns > Self::FORGOTTEN_NS {
            self.times = 0;
        }
        if errand == Errand::Pause {
            return overdue::rest_ns(0);
        }
        self.times = self.times.saturating_add(1);
        overdue::rest_ns(self.times - 1)
    }
}

/// Offers the scavenger to run queues and waits until it is back; `false` if it is to run on at home.
///
/// Run queues take scavengers instead of being given them: on a busy processor this thread would not be
/// scheduled in time to hand its scavenger over when a run queue has room.
fn find_lane(berth: &'static Berth, soaks: bool) -> bool {
    if finish::is_over() {
        // No thread is left that could yield to it.
        return false;
    }
    let mut waits = 0;
    loop {
        // Read before the offer: if a run queue gets room after this, the wait below returns at once.
        let room = ROOM.load(Ordering::Acquire);
        // SeqCst, as `open` in `refill`: either that thread finds READY, or `asked_to_take` finds its queue
        // open.
        berth.state.store(READY, Ordering::SeqCst);
        let mut takers = 0;
        for block in blocks() {
            takers += u32::from(block.asked_to_take());
        }
        let harvests = idle() == Idle::Harvest;
        if takers > 0 || !(harvests && (soaks || has_peers())) {
            let patience = if takers > 0 { TAKING_NS } else { PATIENCE_NS };
            sys::wait_while(&ROOM, room, patience);
            waits += 1;
        }
        if !berth.take_back() {
            berth.await_return();
            return true;
        }
        // A program that has not come to a yield in all these waits may never come to one.
        let runs = soaks || has_peers() || berth.is_kept() || has_yielded() || waits > MOST_WAITS;
        if harvests && runs {
            return false;
        }
    }
}

impl Berth {
    fn is_soaking(&self) -> bool {
        self.soaks.load(Ordering::Relaxed) == 1
    }

    fn await_return(&self) {
        while self.state.load(Ordering::Acquire) != HOME {
            sys::wait_while(&self.state, AWAY, PATIENCE_NS);
        }
    }

    /// Starts a back-off, whose length `rests` determines.
    fn rest(&self, rests: &mut Rests, errand: Errand) {
        let now_ns = sys::monotonic_ns();
        let last_ns = self.rests_until_ns.load(Ordering::Relaxed);
        let rest_ns = rests.next_ns(now_ns.saturating_sub(last_ns), errand);
        self.rests_until_ns
            .store(now_ns.saturating_add(rest_ns), Ordering::Relaxed);
    }

    /// Nanoseconds of its back-off that are left.
    fn rest_left_ns(&self, now_ns: u64) -> u64 {
        let until_ns = self.rests_until_ns.load(Ordering::Relaxed);
        until_ns.saturating_sub(now_ns)
    }

    /// Loads with a yield that the scavenger has executed, in run queues and alone on its home thread,
    /// whose slot is `block`.
    fn loads(&self, block: &Block) -> u64 {
        let alone = block.turns.load(Ordering::Relaxed);
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

/// The program begins: home threads get only the time that no other thread wants, including those that have
/// not come to a yield, and have the least weight where they leave `SCHED_IDLE`.
pub(crate) fn stand_back() {
    if has_peers() {
        return;
    }
    const SET_PRIORITY: usize = 141;
    const LEAST: usize = 19;
    guest::each_thread(|thread| {
        // SAFETY: it touches no memory. Where it is refused, the thread's niceness stays.
        let _ = unsafe { call(SET_PRIORITY, [0, thread as usize, LEAST, 0, 0, 0]) };
        schedule(thread, SCHED_IDLE);
    });
}

/// Home threads are to end: they leave `SCHED_IDLE`, so that they can also where the program keeps
/// processors busy.
pub(super) fn step_forward() {
    guest::each_thread(|thread| schedule(thread, SCHED_OTHER));
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
