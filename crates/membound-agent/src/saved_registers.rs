//! Registers of the program at a trampoline's call, for the functions that entry points call.

use core::mem::offset_of;

use membound_wire::{CALL_FRAME_BASE, CALL_FRAME_FLAGS, CALL_FRAME_RETURN};

use crate::single_thread;

/// Registers that a stub saved, lowest address first, and what the trampoline had pushed above them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SavedRegisters {
    // The callee-saved registers are here for signal handlers only (see `interrupted`).
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) rbx: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rax: u64,
    pub(crate) rbp: u64,
    pub(crate) flags: u64,
    pub(crate) return_address: u64,
    /// Arguments of the entries `Sample`, `Record` and `Mark`; in other entries the words hold other data
    /// of the trampoline.
    pub(crate) arguments: [u64; 5],
}

// Launcher and agent use the same offsets.
const _: () = assert!(
    offset_of!(SavedRegisters, flags) as u64 == CALL_FRAME_FLAGS
        && offset_of!(SavedRegisters, return_address) as u64 == CALL_FRAME_RETURN
        && offset_of!(SavedRegisters, rbp) as u64 == CALL_FRAME_BASE
        && offset_of!(SavedRegisters, rcx) == 12 * 8
);

/// Flags by which the agent answers a trampoline.
const CARRY: u64 = 1;

const ZERO: u64 = 1 << 6;

impl SavedRegisters {
    /// Tells the trampoline that the system call was made, with this result.
    pub(crate) fn done(&mut self, result: isize) {
        self.rax = result.cast_unsigned() as u64;
        self.flags |= CARRY;
    }

    /// Arguments of the system call that the trampoline asks about.
    pub(crate) const fn call_arguments(&self) -> [usize; 6] {
        [
            self.rdi as usize,
            self.rsi as usize,
            self.rdx as usize,
            self.r10 as usize,
            self.r8 as usize,
            self.r9 as usize,
        ]
    }

    /// True if these bytes lie in the page of the stack that holds these registers: they can be read, and
    /// the kernel need not be asked.
    pub(crate) fn is_beside(&self, address: usize, bytes: usize) -> bool {
        const PAGE_BYTES: usize = 4096;
        let page = (&raw const self.return_address) as usize / PAGE_BYTES;
        address
            .checked_add(bytes)
            .is_some_and(|end| address / PAGE_BYTES == page && (end - 1) / PAGE_BYTES == page)
    }

    /// The system call that the trampoline asks about.
    pub(crate) const fn call(&self) -> single_thread::Call {
        single_thread::Call {
            number: self.rax as usize,
            arguments: self.call_arguments(),
        }
    }

    /// Tells the trampoline the result of the system call, or that it was not made.
    pub(crate) fn made(&mut self, result: Option<isize>) {
        match result {
            Some(result) => self.done(result),
            None => self.not_done(),
        }
    }

    /// Tells the trampoline what to do about a call that may wait.
    pub(crate) fn waits(&mut self, answer: Wait) {
        self.flags &= !(CARRY | ZERO);
        match answer {
            Wait::Call => {}
            Wait::Done => {
                self.rax = 0;
                self.flags |= ZERO;
            }
            Wait::Yield => self.flags |= CARRY,
        }
    }

    /// Tells the trampoline to make the system call itself.
    pub(crate) fn not_done(&mut self) {
        self.flags &= !CARRY;
    }
}

/// What a trampoline does about a system call that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It makes the call.
    Call,
    /// The call is over, without an error.
    Done,
    /// It yields, and asks again.
    Yield,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_in_the_page_of_the_registers_are_beside_them() {
        // SAFETY: the registers are integers.
        let frame: SavedRegisters = unsafe { core::mem::zeroed() };
        let page = (&raw const frame.return_address) as usize & !4095;
        for (address, bytes, is_beside) in [
            (page, 4096, true),
            (page + 4064, 32, true),
            (page + 4065, 32, false),
            (page - 1, 2, false),
            (page + 4096, 8, false),
            (usize::MAX - 3, 8, false),
        ] {
            assert_eq!(frame.is_beside(address, bytes), is_beside, "{address:x}");
        }
    }
}
