//! Saves vector and mask registers that are alive across a yield on the stack of the suspended context.

use super::VectorLevel;
use super::emit::Emitter;
use super::surroundings::Surroundings;
use super::writer::Writer;
use crate::{RegisterSet, VectorPart};

/// A vector or mask register, and how much of it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Register number and its highest live part: bytes 0 to 15, 31 or 63 are saved.
    Vector(u8, VectorPart),
    Mask(u8),
}

impl Slot {
    const fn bytes(self) -> i32 {
        match self {
            Self::Vector(_, VectorPart::Xmm) => 16,
            Self::Vector(_, VectorPart::YmmHigh) => 32,
            Self::Vector(_, VectorPart::ZmmHigh) => 64,
            Self::Mask(_) => 8,
        }
    }

    /// Moves the slot between its register and `[rsp + offset]`.
    fn write(self, opcode: u8, offset: i32, vectors: VectorLevel, out: &mut Emitter) {
        match self {
            Self::Vector(number, part) => {
                let inverted = |bit: u8| !number >> bit & 1;
                if part == VectorPart::ZmmHigh || number >= 16 {
                    let first = inverted(3) << 7 | 0x61 | inverted(4) << 4;
                    out.raw(&[0x62, first, 0x7c, 0x48, opcode]);
                } else if vectors == VectorLevel::Sse {
                    if number >= 8 {
                        out.raw(&[0x44]);
                    }
                    out.raw(&[0x0f, opcode]);
                } else {
                    let wide = u8::from(part == VectorPart::YmmHigh) << 2;
                    out.raw(&[0xc5, inverted(3) << 7 | 0x78 | wide, opcode]);
                }
                out.raw(&[0x84 | (number & 7) << 3, 0x24]);
            }
            Self::Mask(number) => {
                // kmovq; as for vectors, the opcode of the store is that of the load plus one.
                out.raw(&[0xc4, 0xe1, 0xf8, 0x80 | opcode, 0x84 | number << 3, 0x24]);
            }
        }
        out.raw(&offset.to_le_bytes());
    }
}

const LOAD: u8 = 0x10;
const STORE: u8 = 0x11;

/// Stores the lowest 16 bytes of a vector register, numbered below 16, `above` bytes above the stack pointer.
pub(super) fn store_low(number: u8, above: i32, vectors: VectorLevel, out: &mut Emitter) {
    Slot::Vector(number, VectorPart::Xmm).write(STORE, above, vectors, out);
}

/// Loads what [`store_low`] stored.
pub(super) fn load_low(number: u8, above: i32, vectors: VectorLevel, out: &mut Emitter) {
    Slot::Vector(number, VectorPart::Xmm).write(LOAD, above, vectors, out);
}

/// Vector and mask registers that are at least partly alive.
fn slots(around: &Surroundings, vectors: VectorLevel) -> Vec<Slot> {
    let live = around.live;
    let is = |number, part| live.contains(RegisterSet::vector(number, part));
    let (registers, parts): (u8, &[VectorPart]) = match vectors {
        VectorLevel::Avx512 => (
            32,
            &[VectorPart::ZmmHigh, VectorPart::YmmHigh, VectorPart::Xmm],
        ),
        VectorLevel::Avx => (16, &[VectorPart::YmmHigh, VectorPart::Xmm]),
        VectorLevel::Sse => (16, &[VectorPart::Xmm]),
    };
    let mut slots = Vec::new();
    for number in 0..registers {
        let widest = parts.iter().find(|part| is(number, **part));
        let Some(&part) = widest else {
            continue;
        };
        // Registers from 16 on are reachable only by EVEX forms, and the one used here moves all 64 bytes.
        let part = if number >= 16 {
            VectorPart::ZmmHigh
        } else {
            part
        };
        slots.push(Slot::Vector(number, part));
    }
    if vectors == VectorLevel::Avx512 {
        slots.extend((0..8).filter_map(|number| {
            live.contains(RegisterSet::mask(number))
                .then_some(Slot::Mask(number))
        }));
    }
    slots
}

/// Lowers the stack pointer and stores live vectors there; returns the bytes that they take.
pub(super) fn save(around: &Surroundings, vectors: VectorLevel, writer: &mut Writer<'_>) -> i32 {
    let slots = slots(around, vectors);
    let room: i32 = slots.iter().map(|slot| slot.bytes()).sum();
    if room == 0 {
        return 0;
    }
    writer.lower(room);
    let mut offset = 0;
    for slot in slots {
        slot.write(STORE, offset, vectors, writer.out);
        offset += slot.bytes();
    }
    room
}

/// Loads vectors from the `room` bytes that [`save`] allocated, and frees those.
pub(super) fn restore(
    around: &Surroundings,
    vectors: VectorLevel,
    room: i32,
    writer: &mut Writer<'_>,
) {
    if room == 0 {
        return;
    }
    let mut offset = 0;
    for slot in slots(around, vectors) {
        slot.write(LOAD, offset, vectors, writer.out);
        offset += slot.bytes();
    }
    writer.lower(-room);
}
