//! Lanes: what lets guests run at the yields of the program's threads.
//!
//! A thread that yields is given a [`Block`] at its first yield that matters. Guests that were
//! parked at a yield of their own lie ready on their own threads (`berth`), and the thread takes
//! what it has room for when it is asked to come here by an `owner` of 0: nobody else changes its
//! ring. Only where the kernel has it blocked, or it has ended, may the warden (`warden`) take its contexts away, under
//! the block's lock. What sends a guest home in the middle of its turn (a system call, a fault, a
//! signal to the program) is in `leave`.
//!
//! See [`membound_wire::Lane`] for the order in which yields read and write.

pub(crate) mod berth;
pub(crate) mod deaf;
pub(crate) mod finish;
pub(crate) mod leave;
pub(crate) mod overdue;
mod warden;

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{ASK, Board, Command, Context as WireContext, Idle, Lane, Refusal, time_class};

use crate::control::Failure;
use crate::entry::Frame;
use crate::sys::{self, Errno, Protection, Quiet, Scratch, call, check, number};
use crate::{assembly, auxiliary, guest, listen, own_thread, trap};

/// Threads that can have a lane at one time.
const BLOCKS: usize = 4096;
/// Turns before one that is timed: the kernel, which was between, leaves predictors and caches cold.
const WARMING: u32 = 256;
/// Alternate stack of a thread that has none: a guest's stack may be full. Handlers of the program's may
/// come to run there too, several in each other, and a frame of the kernel's may take 11 KiB.
const ALTERNATE_BYTES: usize = 512 << 10;

/// A context, as [`membound_wire::Context`] says.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Context {
    pub(crate) stack: AtomicU64,
    pub(crate) resume: AtomicU64,
    pub(crate) next: AtomicU64,
    pub(crate) fs: AtomicU64,
    /// Written by yields.
    rounding: AtomicU64,
    rest: [u64; 3],
}

impl Context {
    pub(crate) const fn new() -> Self {
        Self {
            stack: AtomicU64::new(0),
            resume: AtomicU64::new(0),
            next: AtomicU64::new(0),
            fs: AtomicU64::new(0),
            rounding: AtomicU64::new(0),
            rest: [0; 3],
        }
    }

    pub(crate) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// The context at an address that a ring holds.
    fn at(address: u64) -> &'static Self {
        // SAFETY: only contexts of guests and of blocks get into one, and both stay.
        unsafe { &*(address as *const Self) }
    }
}

/// A thread's lane, and what the agent knows of the thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    next: AtomicU64,
    owner: AtomicU64,
    current: AtomicU64,
    first: AtomicU64,
    stack: AtomicU64,
    resume: AtomicU64,
    borrowed: AtomicU64,
    credit: AtomicI32,
    span: AtomicI32,
    selector: AtomicU64,
    turns: AtomicU64,
    base: AtomicU64,
    itself: AtomicU64,
    timed_resume: AtomicU64,
    begun: AtomicU64,
    /// Written by yields.
    rounding: AtomicU64,
    rest: u64,
    /// Begins a turn that is timed.
    stopwatch: Context,
    /// Takes a turn and does nothing in it.
    nobody: Context,
    /// A context of the ring; 0: it is empty.
    ring: AtomicU64,
    /// A [`Use`] as its number.
    used: AtomicU32,
    /// Its thread.
    thread: AtomicU32,
    /// Contexts in the ring.
    count: AtomicU32,
    /// 1 while somebody changes the ring: the thread, or whoever takes from it.
    lock: AtomicU32,
    /// 1 while it takes contexts.
    open: AtomicU32,
    /// Turns when the warden looked last, and its thread's CPU time.
    seen_turns: AtomicU64,
    seen_cpu_ns: AtomicU64,
    /// CPU time that its present turn has taken, as far as the warden has seen.
    turn_ns: AtomicU64,
    /// 1: its thread blocks signals that guests need, and has no turns.
    deaf: AtomicU32,
    /// Turns that are timed and not recorded: whoever had the processor before has left it cold.
    warming: AtomicU32,
    leaving: leave::Leaving,
}

const _: () = assert!(
    size_of::<Context>() == size_of::<WireContext>()
        && offset_of!(Context, resume) == offset_of!(WireContext, resume)
        && offset_of!(Context, next) == offset_of!(WireContext, next)
        && offset_of!(Context, fs) == offset_of!(WireContext, fs)
        && offset_of!(Context, rounding) == offset_of!(WireContext, rounding)
        && offset_of!(Block, owner) == offset_of!(Lane, owner)
        && offset_of!(Block, current) == offset_of!(Lane, current)
        && offset_of!(Block, first) == offset_of!(Lane, first)
        && offset_of!(Block, stack) == offset_of!(Lane, stack)
        && offset_of!(Block, resume) == offset_of!(Lane, resume)
        && offset_of!(Block, borrowed) == offset_of!(Lane, borrowed)
        && offset_of!(Block, credit) == offset_of!(Lane, credit)
        && offset_of!(Block, span) == offset_of!(Lane, span)
        && offset_of!(Block, selector) == offset_of!(Lane, selector)
        && offset_of!(Block, turns) == offset_of!(Lane, turns)
        && offset_of!(Block, base) == offset_of!(Lane, base)
        && offset_of!(Block, itself) == offset_of!(Lane, itself)
        && offset_of!(Block, timed_resume) == offset_of!(Lane, timed_resume)
        && offset_of!(Block, begun) == offset_of!(Lane, begun)
        && offset_of!(Block, rounding) == offset_of!(Lane, rounding)
        && offset_of!(Block, stopwatch) == size_of::<Lane>()
);

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Use {
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

/// How a program rounds when it begins, as [`WireContext::rounding`] has it: to nearest, with all
/// exceptions masked and, in the x87, the longest mantissa.
const ROUNDING_AT_FIRST: u64 = 0x037f_0000_1f80;

/// Address of the blocks, 0 before there are any. Memory that a forked child finds empty: its
/// threads have no lanes.
static POOL: AtomicUsize = AtomicUsize::new(0);
/// Blocks that were ever used.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Address of the [`Board`].
static BOARD: AtomicUsize = AtomicUsize::new(0);
/// The process whose lanes these are.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// 1: guests run on their own threads, whatever the launcher wished.
static IDLE_WISH: AtomicU32 = AtomicU32::new(0);
/// 1 once a thread of the program's has come to a yield.
static YIELDED: AtomicU32 = AtomicU32::new(0);
/// Counts the occasions on which a guest may find a lane.
static ROOM: AtomicU32 = AtomicU32::new(0);

// rax: the context that was gone on to. Each is what the field of that name says.
global_asm!(
    ".pushsection .text.membound_lanes, \"ax\", @progbits",
    ".globl membound_lanes_begin",
    ".hidden membound_lanes_begin",
    "membound_lanes_begin:",
    ".globl membound_lane_stopwatch",
    ".hidden membound_lane_stopwatch",
    "membound_lane_stopwatch:",
    // Not while what the thread waited for before is still on its way: processors run ahead, and
    // would count that to the turn, and the turn's own loads to nobody.
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov gs:[{begun}], rax",
    "mov rax, gs:[{resume}]",
    "mov gs:[{timed_resume}], rax",
    "lea rax, [rip + membound_lane_timed]",
    "mov gs:[{resume}], rax",
    "mov rax, gs:[{current}]",
    "mov rcx, [rax + {context_next}]",
    "mov gs:[{first}], rcx",
    "mov gs:[{next}], rcx",
    "mov gs:[{current}], rcx",
    "mov rdx, [rcx + {context_resume}]",
    "mov rsp, [rcx + {context_stack}]",
    "ldmxcsr [rcx + {context_rounding}]",
    "fldcw [rcx + {context_rounding} + 4]",
    "mov qword ptr [rcx + {context_resume}], 0",
    "jmp rdx",
    // The thread is back from a turn that is timed. What it has on its stack is all it needs.
    ".globl membound_lane_timed",
    ".hidden membound_lane_timed",
    "membound_lane_timed:",
    "mov r12, gs:[{timed_resume}]",
    "mov byte ptr gs:[{selector}], 0",
    "mov qword ptr gs:[{current}], 0",
    "mov rbx, rsp",
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, gs:[{begun}]",
    "mov rdi, rax",
    "xor ebp, ebp",
    "and rsp, -16",
    "cld",
    "call {timed}",
    "mov rsp, rbx",
    "jmp r12",
    ".globl membound_lane_nobody",
    ".hidden membound_lane_nobody",
    "membound_lane_nobody:",
    "mov rsp, gs:[{stack}]",
    "ldmxcsr gs:[{rounding}]",
    "fldcw gs:[{rounding} + 4]",
    "mov qword ptr [rax + {context_resume}], rdx",
    "jmp gs:[{resume}]",
    ".globl membound_lanes_end",
    ".hidden membound_lanes_end",
    "membound_lanes_end:",
    ".popsection",
    begun = const offset_of!(Lane, begun),
    resume = const offset_of!(Lane, resume),
    timed_resume = const offset_of!(Lane, timed_resume),
    current = const offset_of!(Lane, current),
    selector = const offset_of!(Lane, selector),
    first = const offset_of!(Lane, first),
    next = const offset_of!(Lane, next),
    stack = const offset_of!(Lane, stack),
    context_next = const offset_of!(WireContext, next),
    context_resume = const offset_of!(WireContext, resume),
    context_rounding = const offset_of!(WireContext, rounding),
    rounding = const offset_of!(Lane, rounding),
    context_stack = const offset_of!(WireContext, stack),
    timed = sym timed,
);

unsafe extern "C" {
    fn membound_lanes_begin();
    fn membound_lanes_end();
    fn membound_lane_stopwatch();
    fn membound_lane_timed();
    fn membound_lane_nobody();
}

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

/// Records what a turn took, in ticks of the time stamp counter.
extern "C" fn timed(ticks: u64) {
    let (Some(board), Some(block)) = (board(), Block::of_thread()) else {
        return;
    };
    let warming = block.warming.load(Ordering::Relaxed);
    if warming > 0 {
        block.warming.store(warming - 1, Ordering::Relaxed);
        // The kernel is not to come between. Should a handler send the next one home meanwhile, the
        // thread is asked to come to the agent before anything of this is looked at.
        let next = block.next.load(Ordering::Relaxed);
        if block.is_member(next) {
            block.begin_with(&block.stopwatch, next);
        }
        return;
    }
    let ns = ticks.saturating_mul(1024) / u64::from(board.ticks.max(1));
    tell(offset_of!(Board, timed), 1);
    tell(offset_of!(Board, timed_ns), ns);
    tell(offset_of!(Board, times) + 8 * time_class(ns), 1);
    if let Some(longest) = told(offset_of!(Board, longest_ns)) {
        longest.fetch_max(ns, Ordering::Relaxed);
    }
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

/// The blocks that were ever used.
fn blocks() -> &'static [Block] {
    let pool = POOL.load(Ordering::Acquire);
    if pool == 0 {
        return &[];
    }
    let count = HIGHEST.load(Ordering::Acquire).min(BLOCKS);
    // SAFETY: the pool is never unmapped, zero bytes are a block, and all its fields are atomics.
    unsafe { core::slice::from_raw_parts(pool as *const Block, count) }
}

/// A block for whoever comes: one that was left as `free`, else one that was never used.
fn take_block(free: Use) -> Option<&'static Block> {
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
fn set_fs(base: u64) {
    // SAFETY: nothing of the agent's uses fs, and the caller knows whose turn it is.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags, nomem)) };
}

impl Block {
    /// The block that the calling thread has, or has inherited.
    fn of_thread() -> Option<&'static Self> {
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

    /// The block whose lane this is, if a context is on it, or is about to be.
    pub(crate) fn with_context() -> Option<&'static Self> {
        let block = Self::of_thread()?;
        let on = block.used.load(Ordering::Relaxed) == Use::Thread as u32
            && block.current.load(Ordering::Relaxed) != 0;
        // A thread that has not yielded yet has the lane of the one that made it.
        (on && block.thread.load(Ordering::Acquire) == sys::thread()).then_some(block)
    }

    fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// Makes it the calling thread's: its calls are handed over from now on while a context runs.
    fn settle(&'static self, thread: u32, fs: u64) -> Result<(), Errno> {
        const SET_GS: usize = 0x1001;
        for word in [
            &self.next,
            &self.owner,
            &self.current,
            &self.borrowed,
            &self.selector,
            &self.turns,
            &self.ring,
            &self.seen_turns,
            &self.turn_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.deaf.store(0, Ordering::Relaxed);
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

    /// Keeps everybody else from the ring while `change` runs. Signals are blocked.
    fn locked<T>(&self, change: impl FnOnce() -> T) -> T {
        while self.lock.swap(1, Ordering::AcqRel) != 0 {
            sys::wait_while(&self.lock, 1, 1_000_000);
        }
        let result = change();
        self.lock.store(0, Ordering::Release);
        sys::wake_all(&self.lock);
        result
    }

    /// Where the thread goes on, with nothing timed on the way.
    fn untimed_resume(&self) -> u64 {
        let resume = self.resume.load(Ordering::Relaxed);
        if resume == membound_lane_timed as *const () as u64 {
            self.timed_resume.load(Ordering::Relaxed)
        } else {
            resume
        }
    }

    /// Whether a context of the ring is meant.
    fn is_member(&self, context: u64) -> bool {
        context > ASK && context != self.stopwatch.address() && context != self.nobody.address()
    }

    /// Takes what it has room for into its ring, and says what the next yield does. By its own
    /// thread, under the lock, between turns.
    fn refill(&self) {
        let base = self.base.load(Ordering::Relaxed);
        self.open.store(1, Ordering::SeqCst);
        self.owner.store(base, Ordering::SeqCst);
        YIELDED.store(1, Ordering::Release);
        self.take_ready();
        let begin = self.next.load(Ordering::Relaxed);
        let ring = self.ring.load(Ordering::Relaxed);
        if ring == 0 {
            self.next.store(0, Ordering::SeqCst);
            // Somebody may have become ready, and asked, since it was looked for them.
            if self.owner.load(Ordering::SeqCst) != base {
                self.ask();
            }
            return;
        }
        let begin = if self.is_member(begin) { begin } else { ring };
        self.ring.store(begin, Ordering::Relaxed);
        let Some(board) = board() else { return };
        self.span.store(board.span, Ordering::Relaxed);
        let before = if warden::lets_in() {
            &self.stopwatch
        } else {
            &self.nobody
        };
        self.begin_with(before, begin);
    }

    /// Takes contexts that lie ready, for as many as it may have.
    fn take_ready(&self) {
        while self.has_room()
            && let Some(context) = guest::take_ready()
        {
            self.count.fetch_add(1, Ordering::AcqRel);
            self.link(context);
        }
    }

    fn has_room(&self) -> bool {
        let most = board().map_or(0, |board| board.per_thread);
        self.count.load(Ordering::Acquire) < most
    }

    /// Has the next turn begin with one of the block's own contexts, before the one at `next`.
    fn begin_with(&self, own: &Context, next: u64) {
        let code: unsafe extern "C" fn() = if own.address() == self.nobody.address() {
            membound_lane_nobody
        } else {
            membound_lane_stopwatch
        };
        // Where it lies until it goes over, which it does at once.
        let stack = Context::at(next).stack.load(Ordering::Relaxed);
        own.stack.store(stack, Ordering::Relaxed);
        own.rounding.store(ROUNDING_AT_FIRST, Ordering::Relaxed);
        own.next.store(next, Ordering::Relaxed);
        own.resume
            .store(code as *const () as u64, Ordering::Relaxed);
        self.next.store(own.address(), Ordering::Release);
    }

    /// Nothing is given to it until its thread yields.
    fn close(&self) {
        self.open.store(0, Ordering::SeqCst);
        self.ask_at_once();
    }

    /// Has one of the turns to come timed.
    fn time(&self) {
        self.warming.store(WARMING, Ordering::Relaxed);
        self.ask();
    }

    /// Makes the thread come to the agent at its next yield.
    fn ask(&self) {
        self.owner.store(0, Ordering::SeqCst);
        let _ = self
            .next
            .compare_exchange(0, ASK, Ordering::SeqCst, Ordering::Relaxed);
    }

    fn link(&self, context: &Context) {
        let ring = self.ring.load(Ordering::Relaxed);
        if ring == 0 {
            context.next.store(context.address(), Ordering::Release);
            self.ring.store(context.address(), Ordering::Relaxed);
        } else {
            let member = Context::at(ring);
            context
                .next
                .store(member.next.load(Ordering::Relaxed), Ordering::Release);
            member.next.store(context.address(), Ordering::Release);
        }
    }

    /// Takes a context out of the ring. By the block's own thread, or under the lock while that
    /// is known to be blocked.
    fn unlink(&self, context: &Context) {
        let address = context.address();
        let next = context.next.load(Ordering::Relaxed);
        let rest = if next == address {
            0
        } else {
            let mut before = Context::at(next);
            while before.next.load(Ordering::Relaxed) != address {
                before = Context::at(before.next.load(Ordering::Relaxed));
            }
            before.next.store(next, Ordering::Relaxed);
            next
        };
        if self.ring.load(Ordering::Relaxed) == address {
            self.ring.store(rest, Ordering::Relaxed);
        }
        // What the next yield finds: it asks, which also sets right what named this one.
        self.ask_at_once();
        self.count.fetch_sub(1, Ordering::AcqRel);
        announce_room();
    }

    /// As [`Self::ask`], by its own thread: whatever was next is so no longer.
    fn ask_at_once(&self) {
        self.next.store(ASK, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }

    /// Whether it would take a context now, and is asked to look for one.
    fn asked_to_take(&self) -> bool {
        let takes = self.used.load(Ordering::Acquire) == Use::Thread as u32
            && self.open.load(Ordering::SeqCst) != 0
            && self.has_room();
        if takes {
            self.ask();
        }
        takes
    }
}

/// Whether a thread of the program's has come to a yield.
fn has_yielded() -> bool {
    YIELDED.load(Ordering::Acquire) != 0
}

/// A guest may find a lane.
fn announce_room() {
    ROOM.fetch_add(1, Ordering::AcqRel);
    sys::wake_all(&ROOM);
}

/// Gives the calling thread a lane of its own. Signals are blocked.
fn adopt(thread: u32) -> Result<&'static Block, Errno> {
    let block = take_block(Use::Free).ok_or(Errno::ENOSPC)?;
    let fs = assembly::thread_pointer();
    alternate_stack()?;
    let settled = block.settle(thread, fs);
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

/// What the kernel says of the calling thread's alternate stack: address, flags, bytes.
fn present_alternate_stack() -> Result<[u64; 3], Errno> {
    let mut now = [0_u64; 3];
    // SAFETY: the kernel writes a `stack_t`.
    let asked = unsafe {
        call(
            number::SIGALTSTACK,
            [0, (&raw mut now) as usize, 0, 0, 0, 0],
        )
    };
    check(asked).map(|_| now)
}

/// Whether the calling thread runs on its alternate stack.
fn is_on_alternate_stack() -> bool {
    const ON_STACK: u64 = 1;
    present_alternate_stack().is_ok_and(|[_, flags, _]| flags & 0xffff_ffff == ON_STACK)
}

/// Gives a thread that has none somewhere to be heard when a guest's stack is full.
fn alternate_stack() -> Result<(), Errno> {
    const DISABLED: u64 = 2;
    if present_alternate_stack()?[1] & DISABLED == 0 {
        return Ok(());
    }
    own_thread::set_alternate_stack(ALTERNATE_BYTES).map(drop)
}

/// [`membound_wire::Entry::Yield`]: a yield that found its lane another thread's, or closed.
pub(crate) extern "C" fn on_yield(_: &mut Frame) {
    let Some(block) = Block::of_thread() else {
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
    if is_on_alternate_stack() {
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
    if let Some(block) = Block::of_thread()
        && here()
        && block.thread.load(Ordering::Acquire) == sys::thread()
    {
        let _quiet = Quiet::new();
        block.ask_at_once();
    }
}

/// A handler of the program's begins, or has ended, with the frame at `context`: on an alternate
/// stack it has no turns, nor with a mask that guests cannot be heard with. `mask` is the thread's
/// from now on.
pub(crate) fn on_handler(context: usize, mask: u64) {
    deaf::on_mask(mask);
    const STACK_OFFSET: usize = 16;
    let Some(block) = Block::of_thread() else {
        return;
    };
    // SAFETY: the kernel put a `stack_t` there.
    let [begin, _, bytes]: [u64; 3] = unsafe { crate::memory::get(context + STACK_OFFSET) };
    let is_on_it = (context as u64).wrapping_sub(begin) < bytes;
    if is_on_it && here() && block.thread.load(Ordering::Acquire) == sys::thread() {
        block.ask_at_once();
    }
}

/// The calling thread is about to end: what it has is for others.
pub(crate) fn thread_ends() {
    let Some(block) = Block::of_thread() else {
        return;
    };
    if here() && block.thread.load(Ordering::Acquire) == sys::thread() {
        let _quiet = Quiet::new();
        warden::reclaim(block, true);
    }
}

/// Whether a thread of the process is none of the program's.
pub(crate) fn is_agents(thread: u32) -> bool {
    guest::is_own_thread(thread) || warden::is_own(thread) || listen::is_own(thread)
}

/// Whether an instruction is one of those between the program's yields and its contexts.
fn between(ip: u64) -> bool {
    let [begin, end] = [membound_lanes_begin, membound_lanes_end]
        .map(|mark: unsafe extern "C" fn()| mark as *const () as u64);
    (begin..end).contains(&ip)
}
