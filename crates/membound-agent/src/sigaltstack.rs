//! The program's own `sigaltstack` calls.

use crate::alternate::{NONE, is_ours, present, provide};
use crate::memory;
use crate::saved_registers::SavedRegisters;
use crate::sys::{Quiet, call, number};

/// Makes the program's `sigaltstack` call and hides our stack from it.
pub(crate) fn set(frame: &SavedRegisters) -> Option<isize> {
    let [new, old] = [frame.rdi, frame.rsi].map(|it| it as usize);
    let _quiet = Quiet::new();
    let was_ours = present().is_ok_and(is_ours);
    // SAFETY: the kernel refuses pointers that it cannot use; the program asked for the change.
    let result = unsafe { call(number::SIGALTSTACK, [new, old, 0, 0, 0, 0]) };
    if result == 0 && was_ours && old != 0 {
        // SAFETY: the kernel has just written there.
        unsafe { memory::put(old, NONE) };
    }
    // The thread cannot be running on our stack, since it has just given up another one.
    let _ = present().and_then(provide);
    Some(result)
}
