//! Saves vector and mask registers that are alive across a yield on the stack of the suspended context.

use super::VectorLevel;
use super::surroundings::Surroundings;
use super::vector_slot::{LOAD, STORE, Slot};
use super::writer::Writer;
use crate::{RegisterSet, VectorPart};

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
