//! Moves one vector or mask register to or from the stack.

use super::VectorLevel;
use super::emit::Emitter;
use crate::VectorPart;

/// A vector or mask register, and how much of it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Register number and its highest live part: bytes 0 to 15, 31 or 63 are saved.
    Vector(u8, VectorPart),
    Mask(u8),
}

impl Slot {
    pub(super) const fn bytes(self) -> i32 {
        match self {
            Self::Vector(_, VectorPart::Xmm) => 16,
            Self::Vector(_, VectorPart::YmmHigh) => 32,
            Self::Vector(_, VectorPart::ZmmHigh) => 64,
            Self::Mask(_) => 8,
        }
    }

    /// Moves the slot between its register and `[rsp + offset]`.
    pub(super) fn write(self, opcode: u8, offset: i32, vectors: VectorLevel, out: &mut Emitter) {
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

pub(super) const LOAD: u8 = 0x10;
pub(super) const STORE: u8 = 0x11;

/// Stores the lowest 16 bytes of a vector register, numbered below 16, `above` bytes above the stack pointer.
pub(super) fn store_low(number: u8, above: i32, vectors: VectorLevel, out: &mut Emitter) {
    Slot::Vector(number, VectorPart::Xmm).write(STORE, above, vectors, out);
}

/// Loads what [`store_low`] stored.
pub(super) fn load_low(number: u8, above: i32, vectors: VectorLevel, out: &mut Emitter) {
    Slot::Vector(number, VectorPart::Xmm).write(LOAD, above, vectors, out);
}
