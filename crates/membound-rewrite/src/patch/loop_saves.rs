//! Registers that are saved once around a loop instead of at each of its yields (document 003).
//!
//! State that no instruction of a loop uses may have any value while the loop runs, and state that the loop
//! only reads has the same value in every iteration. If the loop lies in one trampoline, both are pushed onto
//! the stack when the loop is entered, and the stack pointer stays below them until it is left; no
//! instruction of such a loop uses the stack pointer. A thread that is moved into the middle of the loop
//! enters through a stub that saves them again.
//!
//! `xmm` registers that the loop does not use are saved there too. So is the rounding mode, if no instruction
//! of the loop can change it: on some processors `stmxcsr` at each yield takes longer than the rest of the
//! yield.

use iced_x86::{FlowControl, Instruction};

use super::Yield;
use super::body::SettledBody;
use super::emit::Address;
use super::relocate::Form;
use super::run_queue::{self, at, load};
use super::surroundings::Surroundings;
use super::table::{Kept, KeptVectors, RegisterOffsets};
use super::vectors;
use super::writer::{RED_ZONE, Writer};
use super::{Options, VectorLevel, YieldPart};
use crate::flow::Analyst;
use crate::{Gpr, RegisterSet, VectorPart};

/// Bytes of MXCSR and the x87 control word, in the layout of run queues and contexts.
const ROUNDING_BYTES: i32 = 8;

/// What is on the stack while a loop runs, from the highest address down: the red zone, registers that are
/// only read, registers that are not used, vectors, and the rounding mode. The loop's yields push their own
/// state below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopSaves {
    red_zone: bool,
    read: RegisterSet,
    untouched: RegisterSet,
    /// Bit n is set if `xmm` n is saved: the loop does not use it, and none of its upper parts is alive.
    vectors: u16,
    level: VectorLevel,
    rounding: bool,
}

impl LoopSaves {
    /// Decides what to save around a loop of these instructions, moved in these forms and with these bodies
    /// before some of them. `None` if saving gains nothing: a loop whose yields seldom switch is entered more
    /// often than it switches, unless it runs for long.
    pub(super) fn of(
        instructions: &[Instruction],
        forms: impl Iterator<Item = Option<Form>>,
        bodies: impl Iterator<Item = SettledBody>,
        options: &Options,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        if options.without.contains(&YieldPart::LoopSaves) {
            return None;
        }
        let mut live = RegisterSet::EMPTY;
        let mut red_zone = false;
        let mut passes = instructions.iter().any(|it| options.is_long_loop(it.ip()));
        for body in bodies {
            let (what, around) = body.yields()?;
            live = live.union(around.live);
            red_zone |= around.red_zone;
            passes |= matches!(what, Yield::Primary | Yield::Miss { .. });
        }
        let (mut reads, mut writes) = (RegisterSet::EMPTY, RegisterSet::EMPTY);
        for instruction in instructions {
            // An indirect branch leaves the loop, and no exit stub can be written for it.
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
        let touched = reads.union(writes);
        let unchanged = live
            .intersection(RegisterSet::GPRS)
            .without(writes)
            .without(stack);
        let rounds = RegisterSet::MXCSR.union(RegisterSet::X87);
        let saves = Self {
            red_zone,
            read: unchanged.intersection(reads),
            untouched: unchanged.without(reads),
            vectors: untouched_vectors(live, touched, options.vectors),
            level: options.vectors,
            rounding: !writes.intersects(rounds),
        };
        let wins = saves.untouched != RegisterSet::EMPTY || saves.vectors != 0 || red_zone;
        wins.then_some(saves)
    }

    /// The surroundings of a yield in the loop, without the state that is saved around the loop.
    pub(super) fn within(self, around: &Surroundings) -> Surroundings {
        Surroundings {
            live: around
                .live
                .without(self.read)
                .without(self.untouched)
                .without(self.vector_set()),
            red_zone: false,
            saves: Some(self),
            ..*around
        }
    }

    /// Registers that are saved and still have the program's values.
    pub(super) const fn in_place(self) -> RegisterSet {
        self.read
    }

    /// The frame of a thread that runs in the loop.
    pub(super) fn frame(self) -> RegisterOffsets {
        let mut frame = RegisterOffsets::lowered_by(self.bytes());
        for (register, depth) in self.untouched() {
            frame.keep(register, Kept::Below(depth));
        }
        frame.vectors = self.vectors().unwrap_or_default();
        frame
    }

    /// Writes the entry of the loop: saves the state and sets up the frame.
    pub(super) fn enter(self, writer: &mut Writer<'_>) {
        if self.red_zone {
            writer.lower(RED_ZONE);
        }
        for (register, _) in self.read().chain(self.untouched()) {
            writer.push(register);
        }
        if let Some(vectors) = self.vectors() {
            writer.lower(self.vector_bytes());
            for (number, above) in vectors.places() {
                vectors::store_low(number, above, self.level, writer.out);
            }
        }
        if self.rounding {
            writer.lower(ROUNDING_BYTES);
            run_queue::store_rounding(writer.out, &[], at(Gpr::RSP, 0));
        }
        // Registers that are only read are still unchanged, so the frame does not list them.
        writer.frame = self.frame();
        writer.mark();
    }

    /// Writes the exit of the loop: restores the state and removes the frame.
    pub(super) fn leave(self, writer: &mut Writer<'_>) {
        if self.rounding {
            writer.lower(-ROUNDING_BYTES);
        }
        if let Some(vectors) = self.vectors() {
            for (number, above) in vectors.places() {
                vectors::load_low(number, above, self.level, writer.out);
            }
            writer.frame.vectors = KeptVectors::default();
            writer.lower(-self.vector_bytes());
        }
        for register in self.untouched.gprs().rev() {
            writer.pop(register);
        }
        if writer.frame.lowered != 0 {
            writer.lower(-writer.frame.lowered);
        }
    }

    /// Marks that from here on the registers that are only read have their values on the stack alone.
    pub(super) fn mark_saved_only(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.read() {
            writer.frame.keep(register, Kept::Below(depth));
        }
        writer.mark();
    }

    /// Reloads the registers that are only read.
    pub(super) fn reload(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.read() {
            let slot = at(Gpr::RSP, (writer.frame.lowered - depth) as usize);
            load(writer.out, register, slot);
            writer.frame.put_back(register);
            writer.mark();
        }
    }

    /// Address of the saved rounding mode, in this frame; `None` if it is not saved.
    pub(super) fn rounding(self, frame: &RegisterOffsets) -> Option<Address> {
        let above = frame.lowered - self.bytes();
        self.rounding.then(|| at(Gpr::RSP, above as usize))
    }

    /// The registers that are only read, with the distance of each from the program's stack pointer in bytes.
    fn read(self) -> impl Iterator<Item = (Gpr, i32)> {
        below(self.red_zone_bytes(), self.read)
    }

    /// The registers that are not used, with the distance of each from the program's stack pointer in bytes.
    fn untouched(self) -> impl Iterator<Item = (Gpr, i32)> {
        below(self.red_zone_bytes() + bytes_of(self.read), self.untouched)
    }

    /// Bytes of stack for all that is saved.
    fn bytes(self) -> i32 {
        self.vectors_depth() + if self.rounding { ROUNDING_BYTES } else { 0 }
    }

    fn vectors(self) -> Option<KeptVectors> {
        (self.vectors != 0).then(|| KeptVectors {
            numbers: self.vectors,
            depth: self.vectors_depth(),
        })
    }

    /// Bytes of stack down to the lowest vector.
    fn vectors_depth(self) -> i32 {
        let registers = bytes_of(self.read) + bytes_of(self.untouched);
        self.red_zone_bytes() + registers + self.vector_bytes()
    }

    fn vector_bytes(self) -> i32 {
        self.vectors.count_ones().cast_signed() * KeptVectors::EACH
    }

    fn vector_set(self) -> RegisterSet {
        let places = self.vectors().into_iter().flat_map(KeptVectors::places);
        places.fold(RegisterSet::EMPTY, |set, (number, _)| {
            set.union(RegisterSet::vector(number, VectorPart::Xmm))
        })
    }

    const fn red_zone_bytes(self) -> i32 {
        if self.red_zone { RED_ZONE } else { 0 }
    }
}

/// The registers of `set`, pushed below `bytes` bytes of stack.
fn below(bytes: i32, set: RegisterSet) -> impl Iterator<Item = (Gpr, i32)> {
    let pushed = set.gprs().zip(1..);
    pushed.map(move |(register, place)| (register, bytes + 8 * place))
}

/// Bit n is set if of vector n only the lowest 16 bytes are `live`, and no part of it is `touched`.
fn untouched_vectors(live: RegisterSet, touched: RegisterSet, level: VectorLevel) -> u16 {
    use VectorPart::{Xmm, YmmHigh, ZmmHigh};
    let part = RegisterSet::vector;
    let fits = |number: &u8| {
        let low = part(*number, Xmm);
        let wide = part(*number, YmmHigh).union(part(*number, ZmmHigh));
        let has_wide = level != VectorLevel::Sse && live.intersects(wide);
        live.intersects(low) && !has_wide && !touched.intersects(low.union(wide))
    };
    (0..16)
        .filter(fits)
        .fold(0, |all, number| all | 1 << number)
}

fn bytes_of(set: RegisterSet) -> i32 {
    set.gprs().map(|_| 8).sum()
}
