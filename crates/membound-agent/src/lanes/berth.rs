//! A guest's own thread, where there are lanes: it runs the guest up to a yield, gives it to a
//! lane, and has it back for its system calls.
//!
//! While nobody has room for the guest, it runs on here in time that nobody else wants, if that is
//! wished ([`Idle::Harvest`]); otherwise it waits. One that is wanted beside the program's threads
//! runs here whoever has room, while guests are let in.

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

/// Signals that a guest's own thread blocks: what is sent to the process is for the program.
pub(crate) const MASK: u64 = !trap::mask(&trap::OF_GUESTS) & !trap::mask(&trap::OF_CHANGES);
/// Credit of a guest that runs here for want of a lane: how often it is asked for.
const SOAKING: i32 = 50_000 * membound_wire::CREDIT_UNITS_PER_NS;
/// How long it waits for room before it looks again.
const PATIENCE_NS: u64 = 100_000_000;
/// How long it waits for a thread that has room to come to a yield.
const TAKING_NS: u64 = 5_000_000;
/// How often, until it runs on its own though nobody has yielded.
const MOST_WAITS: u32 = 10;

const HOME: u32 = 0;
/// A lane has it, or is being given it.
const AWAY: u32 = 1;
/// Nobody has it, and any lane may take it.
const READY: u32 = 2;

global_asm!(
    ".pushsection .text.membound_berth, \"ax\", @progbits",
    // rdi: the context, rsi: the frame of the signal that it is to return from, 0 when it is parked.
    // Returns when it yields.
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

/// What is to be done at home before a guest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Nothing.
    Run,
    /// The system call that its frame asks for.
    Call,
    /// To stay for a while: it did not come back to a yield.
    Rest,
    /// The same, for a short while: the kernel had its turn.
    Pause,
    /// Its end, by this signal.
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

/// What a guest's thread has of its guest.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Berth {
    pub(crate) context: Context,
    /// [`HOME`] while its own thread has it.
    state: AtomicU32,
    /// An [`Errand`] as its word.
    errand: AtomicU32,
    /// Address of the `ucontext` with which the guest goes on, 0 when it is parked. The context
    /// does not say it: the guest may have been about to park, with its stack pointer written.
    frame: AtomicU64,
    /// Address of the thread's block, 0 without one.
    block: AtomicU64,
    /// The thread's alternate stack.
    alternate: [AtomicUsize; 2],
    /// 1 while it runs in idle time and would rather have a lane.
    soaks: AtomicU32,
    /// 1: it is to run in idle time, and no lane is to have it.
    kept: AtomicU32,
    /// Until when it is to stay at home, by the kernel's clock.
    rests_until_ns: AtomicU64,
    /// Loads that it had come by when the warden looked last.
    seen_loads: AtomicU64,
    /// CPU time of its own thread when it was judged last whether that pays.
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
        // SAFETY: contexts that go home are those of berths, which are static.
        unsafe { &*(address as *const Self) }
    }

    /// Remembers where faults of the guest are heard.
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

    /// The guest has set the base of its `fs`.
    pub(crate) fn set_fs(&self, base: u64) {
        self.context.fs.store(base, Ordering::Relaxed);
        if let Some(block) = self.block() {
            block.base.store(base, Ordering::Relaxed);
        }
    }

    /// Whether it is to run in idle time, and no lane is to have it.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire) != 0
    }

    /// Whether a lane has its guest.
    pub(super) fn is_away(&self) -> bool {
        self.state.load(Ordering::Acquire) == AWAY
    }

    /// Has it run in idle time from now on.
    pub(super) fn keep(&self) {
        self.judged.forget();
        self.kept.store(1, Ordering::Release);
    }

    /// Lanes may have it again; `thread` is its own, which is to come to a yield soon.
    pub(super) fn let_go(&self, thread: u32) {
        self.kept.store(0, Ordering::Release);
        schedule(thread, SCHED_OTHER);
    }

    /// The guest is over.
    pub(crate) fn clear(&self) {
        self.kept.store(0, Ordering::Release);
        if let Some(block) = self.block() {
            self.block.store(0, Ordering::Relaxed);
            block.used.store(Use::FreeHome as u32, Ordering::Release);
        }
    }
}

/// The alternate stack of the thread whose context this is: address and bytes.
pub(super) fn alternate_stack(context: &Context) -> [usize; 2] {
    let [place, length] = &Berth::of(context).alternate;
    [
        place.load(Ordering::Relaxed),
        length.load(Ordering::Relaxed),
    ]
}

/// Whether no lane is to have the guest whose context this is.
pub(super) fn keeps_off_lanes(context: &Context) -> bool {
    Guest::of(Berth::of(context)).keeps_off_lanes()
}

/// Gives a context, which is in no ring any more, back to its own thread. It is parked, or a signal
/// has interrupted it: then `frame` is the address of the `ucontext`, else 0.
pub(super) fn send_home(context: &Context, frame: u64, errand: Errand) {
    let berth = Berth::of(context);
    berth.frame.store(frame, Ordering::Relaxed);
    berth.errand.store(errand.word(), Ordering::Relaxed);
    berth.state.store(HOME, Ordering::Release);
    sys::wake_all(&berth.state);
}

/// Has the calling thread's system calls handed over while its guest runs, where there are lanes.
/// Returns whether there are.
pub(crate) fn settle(berth: &'static Berth) -> Result<bool, Errno> {
    if !here() {
        return Ok(false);
    }
    let block = take_block(Use::FreeHome).ok_or(Errno::ENOSPC)?;
    block.settle(sys::thread(), 0)?;
    // The place, and the block, may have been another guest's.
    berth
        .seen_loads
        .store(berth.loads(block), Ordering::Relaxed);
    berth.rests_until_ns.store(0, Ordering::Relaxed);
    berth.block.store(block.address(), Ordering::Relaxed);
    block.used.store(Use::Home as u32, Ordering::Release);
    Ok(true)
}

/// Runs the guest, which begins at `resume` with this stack pointer, for as long as it lives.
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
                // On a busy processor its turn would not come soon otherwise.
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
            // The warden calls it. Who is beside the program's threads asks by itself whether it may go on.
            let alone = soaks && (has_peers() || !guest.is_beside());
            block.alone.store(u8::from(alone), Ordering::Relaxed);
            // Its ring is itself: a miss goes on as the same, for as long as it has credit.
            context.next.store(context.address(), Ordering::Relaxed);
            block.first.store(0, Ordering::Relaxed);
        }
        // SAFETY: the context is parked, or has its frame, and is this thread's alone.
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

/// Looks at all guests' own threads: has those come back from their next yield on that may take turns in a
/// lane now, where one `takes` them, and adds up how far each has come. Returns whether a lane has one that is
/// to be in none.
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

/// Guests that may take turns with each other now: who is in a lane, lies ready, or runs alone for want of one.
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

/// Calls guests that run in idle time to their next yield: a lane has room. Where the program keeps the
/// processors busy there is no idle time, and they would not come to it for seconds.
pub(super) fn call_soaking() {
    guest::each_berth(|thread, berth| {
        if berth.is_soaking() {
            schedule(thread, SCHED_OTHER);
        }
    });
}

/// Whether a guest runs in idle time.
pub(super) fn any_soaks() -> bool {
    let mut any = false;
    guest::each_berth(|_, berth| any |= berth.is_soaking());
    any
}

/// How often a guest was kept at home lately, after turns that did not end.
#[derive(Debug, Default)]
struct Rests {
    times: u32,
}

impl Rests {
    /// Without another one for so long, the next one is as the first.
    const FORGOTTEN_NS: u64 = 60_000_000_000;

    /// How long the next one takes, `since_ns` after the last one ended. One that is no fault of the guest's is as
    /// short as the first, and none of those that are counted.
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

/// Lets a lane take the guest and waits until it is back; `false` when it is to run on here.
///
/// Lanes take guests, rather than be given them: on a busy processor this thread would not come to
/// give its guest away when one has room.
fn find_lane(berth: &'static Berth, soaks: bool) -> bool {
    if finish::is_over() {
        // Nobody is left to yield to it.
        return false;
    }
    let mut waits = 0;
    loop {
        let room = ROOM.load(Ordering::Acquire);
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
        // A program that has not come to a yield for so long may never come to one.
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

    /// Has it stay at home from now on, for as long as `rests` says.
    fn rest(&self, rests: &mut Rests, errand: Errand) {
        let now_ns = sys::monotonic_ns();
        let last_ns = self.rests_until_ns.load(Ordering::Relaxed);
        let rest_ns = rests.next_ns(now_ns.saturating_sub(last_ns), errand);
        self.rests_until_ns
            .store(now_ns.saturating_add(rest_ns), Ordering::Relaxed);
    }

    /// How long it is yet to stay at home.
    fn rest_left_ns(&self, now_ns: u64) -> u64 {
        let until_ns = self.rests_until_ns.load(Ordering::Relaxed);
        until_ns.saturating_sub(now_ns)
    }

    /// Loads with a yield that it has come by, in lanes and alone on its own thread, whose block this is.
    fn loads(&self, block: &Block) -> u64 {
        let alone = block.turns.load(Ordering::Relaxed);
        alone.wrapping_add(self.context.yields.load(Ordering::Relaxed))
    }

    /// Whether any lane may take it.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY
    }

    /// Has it at home from now on, unless a lane has it already; whether it is.
    pub(crate) fn stays_home(&self) -> bool {
        self.take_back() || self.state.load(Ordering::Acquire) == HOME
    }

    /// No lane may take it any more; `false`: one has.
    fn take_back(&self) -> bool {
        let taken_back =
            self.state
                .compare_exchange(READY, HOME, Ordering::AcqRel, Ordering::Acquire);
        taken_back.is_ok()
    }

    /// Takes the context, if it lies ready.
    pub(crate) fn take(&self) -> Option<&Context> {
        let taken = self
            .state
            .compare_exchange(READY, AWAY, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok().then_some(&self.context)
    }
}

const SCHED_OTHER: usize = 0;
const SCHED_IDLE: usize = 5;

/// The program begins: guests' own threads get what time nobody else wants, also those that have
/// not come to a yield, and little where they go back to work.
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

/// Guests' own threads are to end, also where the program keeps the processors busy.
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
