//! Registers that are saved once around a loop instead of at each of its yields (document 003).
//!
//! What no instruction of a loop touches may be anything while it runs; what it only reads is the same in
//! every lap. Where the loop lies in one trampoline, both go onto the stack when it is entered, and the
//! stack pointer stays below them until it is left: no instruction of such a loop has to do with it. A
//! thread that is put back into the middle of it comes by way of a stub, which saves them again.

use iced_x86::{FlowControl, Instruction};

use super::Yield;
use super::body::{Settled, Surroundings};
use super::emit::{Address, Width};
use super::relocate::Form;
use super::table::{Frame, Kept};
use super::writer::{RED_ZONE, Writer};
use crate::flow::Analyst;
use crate::{Gpr, RegisterSet};

/// What is on the stack while a loop runs: what lies highest first, the red zone, what is read, and what
/// is not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopSaves {
    red_zone: bool,
    read: RegisterSet,
    untouched: RegisterSet,
}

impl LoopSaves {
    /// Of a loop of these instructions, as they are moved, with these bodies before some of them. `None`
    /// where nothing is won by it: a loop whose yields seldom pass control on is entered more often than it
    /// is away.
    pub(super) fn of(
        instructions: &[Instruction],
        forms: impl Iterator<Item = Option<Form>>,
        bodies: impl Iterator<Item = Settled>,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        let mut live = RegisterSet::EMPTY;
        let mut red_zone = false;
        let mut passes = false;
        for body in bodies {
            let (what, around) = body.yields()?;
            live = live.union(around.live);
            red_zone |= around.red_zone;
            passes |= matches!(what, Yield::Primary | Yield::Miss { .. });
        }
        let (mut reads, mut writes) = (RegisterSet::EMPTY, RegisterSet::EMPTY);
        for instruction in instructions {
            // It leads out of the loop by a way that cannot be closed.
            if instruction.flow_control() == FlowControl::IndirectBranch {
                return None;
            }
            let effects = analyst.effects(instruction);
            reads = reads.union(effects.reads);
            writes = writes.union(effects.writes);
        }
        let stack = RegisterSet::gpr(Gpr::RSP);
        let moves = |form: Option<Form>| !matches!(form, None | Some(Form::CountJump(_)));
        if !passes || reads.union(writes).intersects(stack) || !forms.into_iter().all(moves) {
            return None;
        }
        let unchanged = registers(live.without(writes).without(stack));
        let saves = Self {
            red_zone,
            read: unchanged.intersection(reads),
            untouched: unchanged.without(reads),
        };
        (saves.untouched != RegisterSet::EMPTY || red_zone).then_some(saves)
    }

    /// What a yield in the loop still has to keep.
    pub(super) fn within(self, around: &Surroundings) -> Surroundings {
        Surroundings {
            live: around.live.without(self.read).without(self.untouched),
            red_zone: false,
            saves: Some(self),
            ..*around
        }
    }

    /// As a thread is that runs in the loop.
    pub(super) fn frame(self) -> Frame {
        let mut frame = Frame::lowered_by(self.bytes());
        for (register, depth) in self.slots() {
            if !self.read.intersects(RegisterSet::gpr(register)) {
                frame.keep(register, Kept::Below(depth));
            }
        }
        frame
    }

    /// Into the loop.
    pub(super) fn enter(self, writer: &mut Writer<'_>) {
        if self.red_zone {
            writer.lower(RED_ZONE);
        }
        for (register, _) in self.slots() {
            writer.push(register);
        }
        // What is only read still is where it was.
        writer.frame = self.frame();
        writer.mark();
    }

    /// Out of it.
    pub(super) fn leave(self, writer: &mut Writer<'_>) {
        for register in self.untouched.gprs().rev() {
            writer.pop(register);
        }
        if writer.frame.lowered != 0 {
            writer.lower(-writer.frame.lowered);
        }
    }

    /// From here on what is only read is on the stack alone.
    pub(super) fn let_go(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.slots() {
            if self.read.intersects(RegisterSet::gpr(register)) {
                writer.frame.keep(register, Kept::Below(depth));
            }
        }
        writer.mark();
    }

    /// Loads what is only read.
    pub(super) fn take_back(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.slots() {
            if self.read.intersects(RegisterSet::gpr(register)) {
                let slot = Address::Registers {
                    base: Some(Gpr::RSP),
                    index: None,
                    displacement: writer.frame.lowered - depth,
                };
                writer
                    .out
                    .with_operand(&[], Width::Quad, &[0x8b], register.number(), slot);
                writer.frame.put_back(register);
                writer.mark();
            }
        }
    }

    /// Registers, and how many bytes below the loop's stack pointer each lies.
    fn slots(self) -> impl Iterator<Item = (Gpr, i32)> {
        let above = if self.red_zone { RED_ZONE } else { 0 };
        let all = self.read.gprs().chain(self.untouched.gprs());
        all.zip(1..)
            .map(move |(register, place)| (register, above + 8 * place))
    }

    /// Bytes of the stack that all of it has.
    fn bytes(self) -> i32 {
        let above = if self.red_zone { RED_ZONE } else { 0 };
        self.slots().last().map_or(above, |it| it.1)
    }
}

/// Its general registers.
fn registers(set: RegisterSet) -> RegisterSet {
    set.gprs().fold(RegisterSet::EMPTY, |all, register| {
        all.union(RegisterSet::gpr(register))
    })
}
