//! A thread's registers, and while unwinding what is known of them.

use crate::machine::{Machine, REGISTERS, Set};

/// Registers of a stopped thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// By the numbers that instructions use. x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15;
    /// aarch64: x0 … x30, sp.
    pub general: [u64; REGISTERS],
    /// Address of the next instruction.
    pub ip: u64,
}

/// Reads eight bytes of the thread's memory.
pub(super) type Memory<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Registers at one frame of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) machine: Machine,
    pub(super) ip: u64,
    general: [u64; REGISTERS],
    /// A bit for each register whose value is known.
    known: Set,
}

impl State {
    pub(super) const fn new(registers: &Registers, machine: Machine) -> Self {
        Self {
            machine,
            ip: registers.ip,
            general: registers.general,
            known: Set::MAX,
        }
    }

    pub(super) fn get(&self, number: u8) -> Option<u64> {
        let known = self.known >> number & 1 != 0;
        known.then(|| self.general[usize::from(number) % REGISTERS])
    }

    pub(super) fn set(&mut self, number: u8, value: Option<u64>) {
        match value {
            Some(value) => {
                self.general[usize::from(number) % REGISTERS] = value;
                self.known |= 1 << number;
            }
            None => self.known &= !(1 << number),
        }
    }

    /// Marks all registers as unknown that a call does not preserve.
    pub(super) const fn keep_preserved(&mut self) {
        self.known &= self.machine.preserved();
    }

    pub(super) fn sp(&self) -> Option<u64> {
        self.get(self.machine.stack_pointer())
    }

    pub(super) fn set_sp(&mut self, value: u64) {
        self.set(self.machine.stack_pointer(), Some(value));
    }

    pub(super) fn frame(&self) -> Option<u64> {
        self.get(self.machine.frame_pointer())
    }

    /// The value of a register by its DWARF number.
    pub(super) fn dwarf(&self, number: u16) -> Option<u64> {
        self.get(self.machine.hardware(number)?)
    }
}
