//! The pool of stubs that stand in the kernel's table for the program's handlers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::disposition::Disposition;
use crate::scheduler::page;
use crate::{own_signals, tick};

/// Number of stubs; the assembly in `handlers` has the same number.
const STUBS: usize = 1024;
const STUB_BYTES: u64 = 16;

unsafe extern "C" {
    fn membound_signal_stubs();
}

/// Mark in [`HANDLERS`]: the program did not ask for `SA_SIGINFO`. With run queues the kernel is asked for
/// the information all the same, since a signal may have to be sent again with it.
const WITHOUT_INFORMATION: u64 = 1 << 63;
/// Mark in [`HANDLERS`]: the program asked for `SA_RESETHAND`. With run queues the stub resets the handler,
/// not the kernel: a signal that is sent again must still find it.
pub(crate) const ONCE: u64 = 1 << 62;
pub(crate) const MARKS: u64 = WITHOUT_INFORMATION | ONCE;
const SIGINFO: u64 = 4;
const RESETHAND: u64 = 0x8000_0000;
/// Handler of each stub, with [`MARKS`]; 0 where the stub is free. Written once.
static HANDLERS: [AtomicU64; STUBS] = [const { AtomicU64::new(0) }; STUBS];

impl Disposition {
    /// Puts a stub in the handler's place; `false` if it stays as it is.
    pub(crate) fn wrap(&mut self) -> bool {
        let mut marks = 0;
        if page::control_page().is_some() {
            if self.flags & SIGINFO == 0 {
                marks |= WITHOUT_INFORMATION;
            }
            if self.flags & RESETHAND != 0 {
                marks |= ONCE;
            }
        }
        let Some(stub) = marked_stub_of(self.handler, marks) else {
            return false;
        };
        self.handler = stub;
        if marks & WITHOUT_INFORMATION != 0 {
            self.flags |= SIGINFO;
        }
        if marks & ONCE != 0 {
            self.flags &= !RESETHAND;
        }
        true
    }

    /// Undoes [`Self::wrap`]: puts the program's handler and flags back. Returns whether the handler was a
    /// stub.
    pub(crate) fn unwrap(&mut self) -> bool {
        let Some(marked) = handler_of(self.handler) else {
            return false;
        };
        self.handler = marked & !MARKS;
        if marked & WITHOUT_INFORMATION != 0 {
            self.flags &= !SIGINFO;
        }
        if marked & ONCE != 0 {
            self.flags |= RESETHAND;
        }
        true
    }
}

fn stub_address(index: usize) -> u64 {
    membound_signal_stubs as *const () as u64 + index as u64 * STUB_BYTES
}

/// Handler of the stub at `address`, with its marks; `None` if there is no stub.
pub(crate) fn handler_of(address: u64) -> Option<u64> {
    let offset = address.checked_sub(stub_address(0))?;
    let handler = HANDLERS
        .get((offset / STUB_BYTES) as usize)?
        .load(Ordering::Acquire);
    (handler != 0 && offset.is_multiple_of(STUB_BYTES)).then_some(handler)
}

/// The stub of `handler`. `None` when the pool is used up: then the handler sees the registers as the
/// kernel does.
pub(crate) fn stub_of(handler: u64) -> Option<u64> {
    marked_stub_of(handler, 0)
}

fn marked_stub_of(handler: u64, marks: u64) -> Option<u64> {
    const DEFAULT_AND_IGNORE: u64 = 1;
    let ours = [own_signals::address(), tick::address()].contains(&handler)
        || handler_of(handler).is_some();
    if handler <= DEFAULT_AND_IGNORE || ours {
        return None;
    }
    for (index, slot) in HANDLERS.iter().enumerate() {
        let current_owner = slot
            .compare_exchange(0, handler | marks, Ordering::AcqRel, Ordering::Acquire)
            .err();
        if current_owner.is_none_or(|owner| owner == handler | marks) {
            return Some(stub_address(index));
        }
    }
    None
}
