//! The program's own `sigaltstack` calls, on threads with a run queue.

use super::alternate::{NONE, present};
use super::thread_slot::ThreadSlot;
use crate::memory;
use crate::saved_registers::SavedRegisters;
use crate::sys::{Quiet, call, number};

/// Makes the program's `sigaltstack` call and hides our stack from it. `None`: the thread has no run queue.
pub(crate) fn set(frame: &SavedRegisters) -> Option<isize> {
    let alternate = &ThreadSlot::own()?.alternate;
    let _quiet = Quiet::new();
    let was_ours = present().is_ok_and(|now| alternate.is(now));
    let [new, old] = [frame.rdi, frame.rsi].map(|it| it as usize);
    // SAFETY: the kernel refuses pointers that it cannot use; the program asked for the change.
    let result = unsafe { call(number::SIGALTSTACK, [new, old, 0, 0, 0, 0]) };
    if result == 0 && was_ours && old != 0 {
        // SAFETY: the kernel has just written there.
        unsafe { memory::put(old, NONE) };
    }
    // It is mapped already, and the thread cannot be running on it, since it has just given up another one.
    let _ = present().and_then(|now| alternate.provide(now));
    Some(result)
}
