//! Alternate signal stacks of the program's threads.
//!
//! A frame of the kernel takes 1 to 11 KiB, and the agent's signals come anywhere: on the small stack of a
//! coroutine, on one that is nearly full, or on a scavenger's. So each thread of the program that has no
//! alternate stack gets one of the agent's when it starts. The program must not notice it.
//!
//! What the program does about its own alternate stack can remove ours: the program sets another one and
//! disables it later (`sigaltstack`), and at a handler's end the kernel restores the one that was set at the
//! handler's start ([`outlive`]).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, Errno, Protection, Quiet, Scratch, call, check, number};
use crate::{assembly, memory, own_thread};

/// Bytes of one stack. Handlers of the program may run there too, nested ones as well.
const BYTES: usize = 256 << 10;
/// Most stacks: of threads that live at the same time.
const MAX_STACKS: usize = 4096;
/// Flags of a `stack_t`: `SS_ONSTACK` and `SS_DISABLE`.
const ON_STACK: usize = 1;
const DISABLED: usize = 2;

/// Offset of the `stack_t` in a `ucontext`, in bytes.
const STACK_OFFSET: usize = 16;

/// A `stack_t`: address, flags, bytes.
pub(crate) type SignalStack = [usize; 3];

pub(crate) const NONE: SignalStack = [0, DISABLED, 0];

/// A stack, used by one thread after another.
struct Stack {
    /// Address of its lowest byte; 0 before the first thread has had it.
    place: AtomicUsize,
    /// The thread that has it, with its process in the upper half; 0: it is free.
    owner: AtomicU64,
}

static STACKS: [Stack; MAX_STACKS] = [const {
    Stack {
        place: AtomicUsize::new(0),
        owner: AtomicU64::new(0),
    }
}; MAX_STACKS];
/// Number of stacks that were ever used: these are the first ones.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Stack {
    /// All that were ever used.
    fn all() -> &'static [Self] {
        let used = USED.load(Ordering::Acquire).min(MAX_STACKS);
        STACKS.get(..used).unwrap_or_default()
    }

    /// The one that the calling thread has.
    fn own() -> Option<&'static Self> {
        let own = calling_thread();
        Self::all()
            .iter()
            .find(|stack| stack.owner.load(Ordering::Relaxed) == own)
    }

    /// Gives the calling thread a free one; `None` if all are in use.
    fn take() -> Option<&'static Self> {
        let own = calling_thread();
        let take = |stack: &&Self, from: u64| {
            let claimed =
                stack
                    .owner
                    .compare_exchange(from, own, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        };
        let left = || Self::all().iter().find(|stack| take(stack, 0));
        let unused = || {
            let more = |used: usize| (used < MAX_STACKS).then_some(used + 1);
            let index = USED
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
                .ok()?;
            // Another thread may have taken it first.
            STACKS.get(index).filter(|stack| take(stack, 0))
        };
        // Not every thread ends by a system call that the agent sees. In a forked child, stacks that the
        // parent's threads had may be in use by the child's first thread.
        let abandoned = || {
            let process = own >> 32;
            Self::all().iter().find(|stack| {
                let owner = stack.owner.load(Ordering::Relaxed);
                owner >> 32 == process
                    && !sys::thread_exists(process as u32, owner as u32)
                    && take(stack, owner)
            })
        };
        left().or_else(unused).or_else(abandoned)
    }

    /// Its address; maps it first if it was never used.
    fn mapped(&self) -> Result<usize, Errno> {
        let place = self.place.load(Ordering::Relaxed);
        if place != 0 {
            return Ok(place);
        }
        let place = Scratch::untouched(BYTES, Protection::ReadWrite)?.keep();
        self.place.store(place, Ordering::Relaxed);
        Ok(place)
    }
}

/// The calling thread's number, with its process in the upper half.
fn calling_thread() -> u64 {
    u64::from(sys::process()) << 32 | u64::from(sys::thread())
}

/// Has the calling thread use one of the agent's stacks where `now`, its alternate stack, is none. Signals
/// are blocked.
pub(crate) fn provide(now: SignalStack) -> Result<(), Errno> {
    if !is_none(now) {
        return Ok(());
    }
    let stack = Stack::own().or_else(Stack::take).ok_or(Errno::ENOSPC)?;
    own_thread::use_alternate_stack([stack.mapped()?, 0, BYTES])
}

/// Thread pointers of threads that [`provide_at_start`] has seen, each in the place that its bits select:
/// a program that changes its mask a million times a second must not ask for its stack each time.
static CHECKED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Where [`CHECKED`] may hold this thread pointer.
fn checked(thread_pointer: u64) -> Option<&'static AtomicU64> {
    // Threads' stacks lie whole pages apart.
    CHECKED.get((thread_pointer >> 12) as usize % CHECKED.len())
}

/// The program may be about to start a thread, which may get the thread pointer of one that has ended.
pub(crate) fn before_thread() {
    for place in &CHECKED {
        place.store(0, Ordering::Relaxed);
    }
}

/// As [`provide`], for a thread of the program that starts. Without a stack it runs as it would without the
/// agent.
pub(crate) fn provide_at_start() {
    let thread_pointer = assembly::thread_pointer();
    if let Some(place) = checked(thread_pointer) {
        if place.load(Ordering::Relaxed) == thread_pointer {
            return;
        }
        place.store(thread_pointer, Ordering::Relaxed);
    }
    if let Ok(now) = present()
        && is_none(now)
    {
        let _quiet = Quiet::new();
        let _ = provide(now);
    }
}

/// The calling thread is about to end: takes back the stack that it was given.
pub(crate) fn take_back() {
    let _quiet = Quiet::new();
    let Some(stack) = Stack::own() else {
        return;
    };
    let removed = match present() {
        Ok(now) if is_ours(now) => own_thread::use_alternate_stack(NONE),
        other => other.map(drop),
    };
    // A thread that ends in a handler still runs on this stack, and keeps it until it is gone.
    if removed.is_ok() {
        stack.owner.store(0, Ordering::Release);
    }
}

/// True if it is one of the agent's.
pub(crate) fn is_ours(stack: SignalStack) -> bool {
    let has_place = |ours: &Stack| ours.place.load(Ordering::Relaxed) == stack[0];
    !is_none(stack) && Stack::all().iter().any(has_place)
}

/// Keeps the thread's stack set after the handler with the frame at `context` has returned, although the
/// thread had none when the handler began.
pub(crate) fn outlive(context: usize) {
    if !is_none(before(context)) {
        return;
    }
    let place = Stack::own().map_or(0, |stack| stack.place.load(Ordering::Relaxed));
    if place != 0 {
        put_back(context, [place, BYTES]);
    }
}

/// Makes the thread that resumes from the frame at `context` use this alternate stack: address and bytes.
pub(crate) fn put_back(context: usize, [place, bytes]: [usize; 2]) {
    // SAFETY: the kernel put a `stack_t` there, and takes it back from there.
    unsafe { memory::put(context + STACK_OFFSET, [place, 0, bytes]) };
}

/// The alternate stack that was set before the handler with the frame at `context`.
fn before(context: usize) -> SignalStack {
    // SAFETY: the kernel put a `stack_t` there.
    unsafe { memory::get(context + STACK_OFFSET) }
}

/// True if the frame at `context` lies on the alternate stack that its handler had.
pub(crate) fn contains_frame(context: usize) -> bool {
    let [begin, _, bytes] = before(context);
    context.wrapping_sub(begin) < bytes
}

/// The calling thread's alternate stack, as the kernel reports it.
pub(crate) fn present() -> Result<SignalStack, Errno> {
    let mut now = NONE;
    // SAFETY: the kernel writes a `stack_t`.
    let result = unsafe {
        call(
            number::SIGALTSTACK,
            [0, (&raw mut now) as usize, 0, 0, 0, 0],
        )
    };
    check(result).map(|_| now)
}

/// Flags of a `stack_t`: only the lower 32 bits, since the kernel writes no more of that word into a frame.
fn flags(stack: SignalStack) -> usize {
    stack[1] & 0xffff_ffff
}

fn is_none(stack: SignalStack) -> bool {
    flags(stack) & DISABLED != 0
}

/// True if the thread runs on it now.
pub(crate) fn is_in_use(stack: SignalStack) -> bool {
    flags(stack) == ON_STACK
}
