//! Where a thread is heard while the stack of a guest on it is full: the alternate stack of its
//! own, or one of its lane's while it has none, of which the program is not to know.
//!
//! What the program does about its own can take ours away: it sets another and gives that up
//! ([`set`]), and the kernel puts back at a handler's end what there was at its begin
//! ([`Alternate::outlive`]).

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::entry::Frame;
use crate::memory;
use crate::own_thread;
use crate::sys::{Errno, Protection, Quiet, Scratch, call, check, number};

use super::block::Block;

/// Handlers of the program's may come to run there too, several in each other, and a frame of the
/// kernel's may take 11 KiB.
const BYTES: usize = 512 << 10;
/// Flags of a `stack_t`.
const ON_STACK: usize = 1;
const DISABLED: usize = 2;

/// Where a `ucontext` has a `stack_t`.
const STACK_OFFSET: usize = 16;

/// A `stack_t`: address, flags, bytes.
pub(super) type Told = [usize; 3];

const NONE: Told = [0, DISABLED, 0];

/// The alternate stack of a lane, for whoever has the lane.
#[derive(Debug)]
pub(crate) struct Alternate {
    /// 0: nobody has had the lane yet.
    place: AtomicUsize,
}

impl Alternate {
    /// Has it there for the calling thread, which has `now` and uses this one where that is none. Signals
    /// are blocked.
    pub(super) fn provide(&self, now: Told) -> Result<(), Errno> {
        if self.place.load(Ordering::Relaxed) == 0 {
            let place = Scratch::untouched(BYTES, Protection::ReadWrite)?.keep();
            self.place.store(place, Ordering::Relaxed);
        }
        if !is_none(now) {
            return Ok(());
        }
        own_thread::use_alternate_stack([self.place.load(Ordering::Relaxed), 0, BYTES])
    }

    /// Takes it from the calling thread: others get the lane. Signals are blocked.
    pub(super) fn take_back(&self) {
        let taken = match present() {
            Ok(now) if self.is(now) => own_thread::use_alternate_stack(NONE),
            other => other.map(drop),
        };
        if taken.is_err() {
            // A thread that ends in a handler keeps what it runs on.
            self.place.store(0, Ordering::Relaxed);
        }
    }

    fn is(&self, told: Told) -> bool {
        !is_none(told) && told[0] == self.place.load(Ordering::Relaxed)
    }

    /// Has the calling thread keep it when its handler with the frame at `context` is over, though the
    /// thread had none when that began.
    pub(super) fn outlive(&self, context: usize) {
        let place = self.place.load(Ordering::Relaxed);
        if is_none(before(context)) && place != 0 {
            put_back(context, [place, BYTES]);
        }
    }
}

/// Has the thread that goes on from the frame at `context` use this alternate stack: address and bytes.
pub(super) fn put_back(context: usize, [place, bytes]: [usize; 2]) {
    // SAFETY: the kernel put a `stack_t` there, and takes it back from there.
    unsafe { memory::put(context + STACK_OFFSET, [place, 0, bytes]) };
}

/// What there was before the handler with the frame at `context`.
fn before(context: usize) -> Told {
    // SAFETY: the kernel put a `stack_t` there.
    unsafe { memory::get(context + STACK_OFFSET) }
}

/// Whether the frame at `context` lies on the alternate stack that its handler had.
pub(super) fn holds(context: usize) -> bool {
    let [begin, _, bytes] = before(context);
    context.wrapping_sub(begin) < bytes
}

/// What the kernel says of the calling thread's alternate stack.
pub(super) fn present() -> Result<Told, Errno> {
    let mut now = NONE;
    // SAFETY: the kernel writes a `stack_t`.
    let asked = unsafe {
        call(
            number::SIGALTSTACK,
            [0, (&raw mut now) as usize, 0, 0, 0, 0],
        )
    };
    check(asked).map(|_| now)
}

/// Flags of a `stack_t`: the kernel writes no more of that word into a frame.
fn flags(told: Told) -> usize {
    told[1] & 0xffff_ffff
}

fn is_none(told: Told) -> bool {
    flags(told) & DISABLED != 0
}

/// Whether the thread that has it runs on it.
pub(super) fn is_in_use(told: Told) -> bool {
    flags(told) == ON_STACK
}

/// `sigaltstack` as the program calls it. `None`: its thread has no lane.
pub(crate) fn set(frame: &Frame) -> Option<isize> {
    let alternate = &Block::own()?.alternate;
    let _quiet = Quiet::new();
    let was_ours = present().is_ok_and(|now| alternate.is(now));
    let [new, old] = [frame.rdi, frame.rsi].map(|it| it as usize);
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program asked for.
    let result = unsafe { call(number::SIGALTSTACK, [new, old, 0, 0, 0, 0]) };
    if result == 0 && was_ours && old != 0 {
        // SAFETY: the kernel has just written there.
        unsafe { memory::put(old, NONE) };
    }
    // It is there, and the thread does not run on it, since it gave another up.
    let _ = present().and_then(|now| alternate.provide(now));
    Some(result)
}
