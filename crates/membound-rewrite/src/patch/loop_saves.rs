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

mod choice;

use super::VectorLevel;
use super::emit::Address;
use super::run_queue::{self, at, load};
use super::table::{Kept, KeptVectors, RegisterOffsets};
use super::vector_slot::{load_low, store_low};
use super::writer::{RED_ZONE, Writer};
use crate::{Gpr, RegisterSet, VectorPart};

/// Bytes of MXCSR and the x87 control word, in the layout of run queues and contexts.
const ROUNDING_BYTES: i32 = 8;

/// What is on the stack while a loop runs, from the highest address down: the red zone, registers that are
/// only read, registers that are not used, vectors, and the rounding mode. The loop's yields push their own
/// state below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopSaves {
    red_zone: bool,
    pub(super) read: RegisterSet,
    pub(super) untouched: RegisterSet,
    /// Bit n is set if `xmm` n is saved: the loop does not use it, and none of its upper parts is alive.
    vectors: u16,
    level: VectorLevel,
    rounding: bool,
}

impl LoopSaves {
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
                store_low(number, above, self.level, writer.out);
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
                load_low(number, above, self.level, writer.out);
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

    pub(super) fn vector_set(self) -> RegisterSet {
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

fn bytes_of(set: RegisterSet) -> i32 {
    set.gprs().map(|_| 8).sum()
}
