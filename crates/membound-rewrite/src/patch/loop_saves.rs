//! Registers that are saved once around a loop instead of at each of its yields (document 003).
//!
//! What no instruction of a loop touches may be anything while it runs; what it only reads is the same in
//! every lap. Where the loop lies in one trampoline, both go onto the stack when it is entered, and the
//! stack pointer stays below them until it is left: no instruction of such a loop has to do with it. A
//! thread that is put back into the middle of it comes by way of a stub, which saves them again.
//!
//! `xmm` registers that it does not touch go there too. So does how the program rounds, where no instruction
//! of the loop can change that: `stmxcsr` at each yield takes some processors longer than the rest of it.

use iced_x86::{FlowControl, Instruction};

use super::Yield;
use super::body::Settled;
use super::emit::Address;
use super::lane::{self, at, load};
use super::relocate::Form;
use super::surroundings::Surroundings;
use super::table::{Frame, Kept, KeptVectors};
use super::vectors;
use super::writer::{RED_ZONE, Writer};
use super::{Options, VectorLevel, YieldPart};
use crate::flow::Analyst;
use crate::{Gpr, RegisterSet, VectorPart};

/// Bytes of MXCSR and the x87 control word, as lanes and contexts have them.
const ROUNDING_BYTES: i32 = 8;

/// What is on the stack while a loop runs: what lies highest first, the red zone, what is read, what is not
/// touched, and how the program rounds, beside what its yields put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopSaves {
    red_zone: bool,
    read: RegisterSet,
    untouched: RegisterSet,
    /// Bit n: `xmm` n, which is not touched and of which no more is alive.
    vectors: u16,
    level: VectorLevel,
    rounding: bool,
}

impl LoopSaves {
    /// Of a loop of these instructions, as they are moved, with these bodies before some of them. `None`
    /// where nothing is won by it: a loop whose yields seldom pass control on is entered more often than it
    /// is away, unless it runs for long.
    pub(super) fn of(
        instructions: &[Instruction],
        forms: impl Iterator<Item = Option<Form>>,
        bodies: impl Iterator<Item = Settled>,
        options: &Options,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        if options.without.contains(&YieldPart::LoopSaves) {
            return None;
        }
        let mut live = RegisterSet::EMPTY;
        let mut red_zone = false;
        let mut passes = instructions.iter().any(|it| options.lasts(it.ip()));
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

    /// What a yield in the loop still has to keep.
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

    /// What is still where the program has it.
    pub(super) const fn in_place(self) -> RegisterSet {
        self.read
    }

    /// As a thread is that runs in the loop.
    pub(super) fn frame(self) -> Frame {
        let mut frame = Frame::lowered_by(self.bytes());
        for (register, depth) in self.untouched() {
            frame.keep(register, Kept::Below(depth));
        }
        frame.vectors = self.vectors().unwrap_or_default();
        frame
    }

    /// Into the loop.
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
            lane::store_rounding(writer.out, &[], at(Gpr::RSP, 0));
        }
        // What is only read still is where it was.
        writer.frame = self.frame();
        writer.mark();
    }

    /// Out of it.
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

    /// From here on what is only read is on the stack alone.
    pub(super) fn let_go(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.read() {
            writer.frame.keep(register, Kept::Below(depth));
        }
        writer.mark();
    }

    /// Loads what is only read.
    pub(super) fn take_back(self, writer: &mut Writer<'_>) {
        for (register, depth) in self.read() {
            let slot = at(Gpr::RSP, (writer.frame.lowered - depth) as usize);
            load(writer.out, register, slot);
            writer.frame.put_back(register);
            writer.mark();
        }
    }

    /// Where it stands, in this frame, how the program rounds; `None`: nowhere.
    pub(super) fn rounding(self, frame: &Frame) -> Option<Address> {
        let above = frame.lowered - self.bytes();
        self.rounding.then(|| at(Gpr::RSP, above as usize))
    }

    /// What is only read, and how many bytes below the program's stack pointer each register lies.
    fn read(self) -> impl Iterator<Item = (Gpr, i32)> {
        below(self.red_zone_bytes(), self.read)
    }

    /// The same of what is not touched.
    fn untouched(self) -> impl Iterator<Item = (Gpr, i32)> {
        below(self.red_zone_bytes() + bytes_of(self.read), self.untouched)
    }

    /// Bytes of the stack that all of it has.
    fn bytes(self) -> i32 {
        self.vectors_depth() + if self.rounding { ROUNDING_BYTES } else { 0 }
    }

    fn vectors(self) -> Option<KeptVectors> {
        (self.vectors != 0).then(|| KeptVectors {
            numbers: self.vectors,
            depth: self.vectors_depth(),
        })
    }

    /// Bytes of the stack down to where vectors begin.
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

/// The registers of `set`, pushed where so many bytes are on the stack.
fn below(bytes: i32, set: RegisterSet) -> impl Iterator<Item = (Gpr, i32)> {
    let pushed = set.gprs().zip(1..);
    pushed.map(move |(register, place)| (register, bytes + 8 * place))
}

/// Bit n: of vector n the lowest 16 bytes and no more are `live`, and nothing of it is `touched`.
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
