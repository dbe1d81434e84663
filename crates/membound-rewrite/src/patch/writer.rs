//! Writes a body's code and, for every instruction boundary, how to restore the program's state there.

use super::emit::{Address, Emitter, Width};
use super::table::{DraftStep, FlagsKept, Kept, RegisterOffsets, Resume, Tables};
use crate::Gpr;

/// Bytes below the stack pointer that a leaf function may use without moving it.
pub(super) const RED_ZONE: i32 = 128;

/// Where a body keeps the original value of a register that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The register is dead: its value is not kept.
    Nowhere,
    /// In a dead register.
    In(Gpr),
    /// On the stack.
    OnStack,
}

/// Writes code and, in step with it, the table entries for restoring the program's state.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Emitter,
    pub(super) tables: &'a mut Tables,
    pub(super) steps: &'a mut Vec<DraftStep>,
    pub(super) frame: RegisterOffsets,
    pub(super) resume: Resume,
}

impl Writer<'_> {
    /// Begins the place at the current offset.
    pub(super) fn begin(&mut self) {
        let at = self.out.at();
        self.tables.begin(self.steps, at, &self.frame, self.resume);
    }

    /// Notes that the code from here on is executed in the present frame.
    pub(super) fn mark(&mut self) {
        let at = self.out.at();
        self.tables.mark(self.steps, at, &self.frame, self.resume);
    }

    /// Notes that the stack pointer has moved down by `bytes`.
    pub(super) fn moved(&mut self, bytes: i32) {
        self.frame.lowered += bytes;
        self.mark();
    }

    pub(super) fn lower(&mut self, bytes: i32) {
        self.out.move_stack(-bytes);
        self.moved(bytes);
    }

    pub(super) fn push(&mut self, register: Gpr) {
        self.out.push(register);
        self.frame.lowered += 8;
        let depth = self.frame.lowered;
        if register == Gpr::RAX && self.frame.flags == Some(FlagsKept::InRax) {
            // Pushes the flags in rax, not rax itself.
            self.frame.flags = Some(FlagsKept::Below(depth));
        } else if self.frame.kept(register).is_none() {
            self.frame.keep(register, Kept::Below(depth));
        }
        self.mark();
    }

    pub(super) fn pop(&mut self, register: Gpr) {
        self.out.pop(register);
        let depth = self.frame.lowered;
        self.frame.lowered -= 8;
        if register == Gpr::RAX && self.frame.flags == Some(FlagsKept::Below(depth)) {
            self.frame.flags = Some(FlagsKept::InRax);
        } else if self.frame.kept(register) == Some(Kept::Below(depth)) {
            self.frame.put_back(register);
        }
        self.mark();
    }

    pub(super) fn restore_flags(&mut self) {
        self.out.overflow_from_al();
        self.out.sahf();
        self.frame.flags = None;
        self.mark();
    }

    pub(super) fn restore_rax(&mut self, keep: Keep, red_zone: bool) {
        match keep {
            Keep::Nowhere => {}
            Keep::In(register) => {
                self.out.copy(Gpr::RAX, register);
                self.frame.put_back(Gpr::RAX);
                self.mark();
            }
            Keep::OnStack => {
                self.pop(Gpr::RAX);
                if red_zone {
                    self.lower(-RED_ZONE);
                }
            }
        }
    }

    /// Loads into `register` the address of the operand as the original program would compute it.
    pub(super) fn load_address(&mut self, register: Gpr, operand: Address) {
        let mut operand = operand;
        let flags_in_rax = self.frame.kept(Gpr::RAX);
        if operand.uses(Gpr::RAX) {
            match flags_in_rax {
                Some(Kept::In(other)) => operand = operand.with(Gpr::RAX, other),
                Some(Kept::Below(depth)) => {
                    let slot = Address::Registers {
                        base: Some(Gpr::RSP),
                        index: None,
                        displacement: self.frame.lowered - depth,
                    };
                    self.out
                        .with_operand(&[], Width::Quad, &[0x8b], register.number(), slot);
                    operand = operand.with(Gpr::RAX, register);
                }
                None => {}
            }
        }
        // Out of range only for addresses that no stack has; the reported address is then wrong.
        let operand = operand.below(self.frame.lowered).unwrap_or(operand);
        self.out.address(register, operand);
    }
}

/// Receives the code and frames of `body::SettledBody::enter`: [`Writer`] writes them, [`Quiet`] ignores them
/// where only the resulting frame is needed.
pub(super) trait Marker {
    fn emit(&mut self, code: impl FnOnce(&mut Emitter));
    fn mark(&mut self, frame: &RegisterOffsets);
}

pub(super) struct Quiet;

impl Marker for Quiet {
    fn emit(&mut self, _: impl FnOnce(&mut Emitter)) {}
    fn mark(&mut self, _: &RegisterOffsets) {}
}

impl Marker for Writer<'_> {
    fn emit(&mut self, code: impl FnOnce(&mut Emitter)) {
        code(self.out);
    }

    fn mark(&mut self, frame: &RegisterOffsets) {
        self.frame = *frame;
        Writer::mark(self);
    }
}
