//! Alternate signal stacks of threads with a run queue.
//!
//! A scavenger's stack may be full when a signal comes, so each such thread needs an alternate stack: its
//! own, or one of its thread slot while it has none. The program must not notice the latter.
//!
//! What the program does about its own alternate stack can remove ours: the program sets another one and
//! disables it later (`sigaltstack`), and at a handler's end the kernel restores the one that was set at the
//! handler's start ([`Alternate::outlive`]).

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::memory;
use crate::own_thread;
use crate::sys::{Errno, Protection, Scratch, call, check, number};

/// Bytes of a slot's alternate stack. Nested handlers of the program may run there too, and a single frame
/// of the kernel may take 11 KiB.
const BYTES: usize = 512 << 10;
/// Flags of a `stack_t`: `SS_ONSTACK` and `SS_DISABLE`.
const ON_STACK: usize = 1;
const DISABLED: usize = 2;

/// Offset of the `stack_t` in a `ucontext`, in bytes.
const STACK_OFFSET: usize = 16;

/// A `stack_t`: address, flags, bytes.
pub(super) type SignalStack = [usize; 3];

pub(super) const NONE: SignalStack = [0, DISABLED, 0];

/// The alternate stack of a thread slot, used by whichever thread has the slot.
#[derive(Debug)]
pub(crate) struct Alternate {
    /// Address of its lowest byte; 0 before the first thread has had the slot.
    place: AtomicUsize,
}

impl Alternate {
    /// Maps the stack, and has the calling thread use it where `now`, the thread's alternate stack, is
    /// none. Signals are blocked.
    pub(super) fn provide(&self, now: SignalStack) -> Result<(), Errno> {
        if self.place.load(Ordering::Relaxed) == 0 {
            let place = Scratch::untouched(BYTES, Protection::ReadWrite)?.keep();
            self.place.store(place, Ordering::Relaxed);
        }
        if !is_none(now) {
            return Ok(());
        }
        own_thread::use_alternate_stack([self.place.load(Ordering::Relaxed), 0, BYTES])
    }

    /// Removes it from the calling thread before another thread gets the slot. Signals are blocked.
    pub(super) fn take_back(&self) {
        let removed = match present() {
            Ok(now) if self.is(now) => own_thread::use_alternate_stack(NONE),
            other => other.map(drop),
        };
        if removed.is_err() {
            // A thread that ends in a handler still runs on this stack, so it keeps it and the slot's next
            // thread gets a new one.
            self.place.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is(&self, stack: SignalStack) -> bool {
        !is_none(stack) && stack[0] == self.place.load(Ordering::Relaxed)
    }

    /// Keeps this stack set after the handler with the frame at `context` has returned, although the thread
    /// had none when the handler began.
    pub(super) fn outlive(&self, context: usize) {
        let place = self.place.load(Ordering::Relaxed);
        if is_none(before(context)) && place != 0 {
            put_back(context, [place, BYTES]);
        }
    }
}

/// Makes the thread that resumes from the frame at `context` use this alternate stack: address and bytes.
pub(super) fn put_back(context: usize, [place, bytes]: [usize; 2]) {
    // SAFETY: the kernel put a `stack_t` there, and takes it back from there.
    unsafe { memory::put(context + STACK_OFFSET, [place, 0, bytes]) };
}

/// The alternate stack that was set before the handler with the frame at `context`.
fn before(context: usize) -> SignalStack {
    // SAFETY: the kernel put a `stack_t` there.
    unsafe { memory::get(context + STACK_OFFSET) }
}

/// True if the frame at `context` lies on the alternate stack that its handler had.
pub(super) fn contains_frame(context: usize) -> bool {
    let [begin, _, bytes] = before(context);
    context.wrapping_sub(begin) < bytes
}

/// The calling thread's alternate stack, as the kernel reports it.
pub(super) fn present() -> Result<SignalStack, Errno> {
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
pub(super) fn is_in_use(stack: SignalStack) -> bool {
    flags(stack) == ON_STACK
}
