//! The body that tests the liveness analysis: it overwrites all state considered dead.
//!
//! All dead general registers and flags are overwritten at every place. Of the dead vector and mask registers
//! only some are overwritten at each place, and others at the next: all thirty-two at every place would make
//! the program a hundred times as large.

use super::VectorLevel;
use super::emit::Emitter;
use super::surroundings::Surroundings;
use crate::{Flag, Gpr, RegisterSet, VectorPart};

/// Number of vector registers overwritten at one place.
const VECTORS_A_PLACE: usize = 3;

/// Writes arbitrary values into the state that is dead in `around`.
pub(super) fn write(around: &Surroundings, vectors: VectorLevel, seed: u64, out: &mut Emitter) {
    let mut random = Random(seed);
    let dead = around.live.complement();
    flags(dead, &mut random, out);
    stack(around, &mut random, out);
    vector_registers(dead, vectors, &mut random, out);
    if vectors == VectorLevel::Avx512 {
        let mask = (random.next() % 8) as u8;
        if dead.contains(RegisterSet::mask(mask)) {
            // kmovw k, [pattern]
            out.with_pattern(&[0xc5, 0xf8, 0x90, mask << 3 | 5], &[]);
        }
    }
    for register in dead.gprs() {
        if register == Gpr::RSP {
            continue;
        }
        let value = random.next();
        if value & 1 == 0 {
            out.constant(register, value);
        } else {
            // mov r64, imm32, sign-extended: shorter.
            let number = register.number();
            out.raw(&[0x48 | number >> 3, 0xc7, 0xc0 | number & 7]);
            out.raw(&((value >> 20) as u32).to_le_bytes());
        }
    }
}

/// Sets the dead flags to values that the program is unlikely to have left in them.
fn flags(dead: RegisterSet, random: &mut Random, out: &mut Emitter) {
    let carry = RegisterSet::flag(Flag::Carry);
    let overflow = RegisterSet::flag(Flag::Overflow);
    let all = RegisterSet::ARITHMETIC_FLAGS;
    if dead.contains(all) {
        // cmp rsp, imm32: any flags, and no register is needed.
        out.raw(&[0x48, 0x81, 0xfc]);
        out.raw(&(random.next() as u32).to_le_bytes());
        if random.next() & 1 == 0 {
            out.raw(&[0xf5]);
        }
    } else {
        let rax = RegisterSet::gpr(Gpr::RAX);
        if dead.contains(all.without(overflow)) && dead.contains(rax) {
            // mov ah, imm8; sahf
            out.raw(&[0xb4, random.next() as u8, 0x9e]);
        } else if dead.contains(carry) {
            out.raw(&[0xf5]);
        }
        if dead.contains(all.without(carry))
            && let Some(register) = dead.gprs().find(|register| *register != Gpr::RSP)
        {
            // mov r32, 0x7fffffff; inc r32: overflow.
            let number = register.number();
            if number >= 8 {
                out.raw(&[0x41]);
            }
            out.raw(&[0xb8 | number & 7, 0xff, 0xff, 0xff, 0x7f]);
            out.raw(&[0x40 | number >> 3, 0xff, 0xc0 | number & 7]);
        }
    }
    if dead.contains(RegisterSet::DIRECTION) {
        out.raw(&[0xfd]);
    }
}

/// Overwrites bytes below the stack pointer: in the red zone if that is dead, below it otherwise.
fn stack(around: &Surroundings, random: &mut Random, out: &mut Emitter) {
    if !around.stack {
        return;
    }
    let slot = 1 + (random.next() % 16) as i32;
    let below = if around.red_zone { 128 } else { 0 };
    // mov qword [rsp - …], imm32
    out.raw(&[0x48, 0xc7, 0x84, 0x24]);
    out.raw(&(-below - 8 * slot).to_le_bytes());
    out.raw(&(random.next() as u32).to_le_bytes());
}

fn vector_registers(
    dead: RegisterSet,
    vectors: VectorLevel,
    random: &mut Random,
    out: &mut Emitter,
) {
    let count = if vectors == VectorLevel::Avx512 {
        32
    } else {
        16
    };
    let first = (random.next() % count) as u8;
    let mut written = 0;
    for step in 0..count as u8 {
        let number = (first + step) % count as u8;
        if vector_register(dead, vectors, number, out) {
            written += 1;
            if written == VECTORS_A_PLACE {
                return;
            }
        }
    }
}

/// Overwrites the parts of one register that are dead and can be overwritten alone; false if there are none.
fn vector_register(dead: RegisterSet, vectors: VectorLevel, number: u8, out: &mut Emitter) -> bool {
    let is_dead = |part| dead.contains(RegisterSet::vector(number, part));
    let low = is_dead(VectorPart::Xmm);
    let high = is_dead(VectorPart::YmmHigh) || vectors == VectorLevel::Sse;
    let highest = is_dead(VectorPart::ZmmHigh) || vectors != VectorLevel::Avx512;
    let modrm = (number & 7) << 3 | 5;
    // Register number bits, inverted as VEX and EVEX require.
    let bit3 = (!number >> 3 & 1) << 7;
    let bit4 = (!number >> 4 & 1) << 4;
    match (low, high, highest) {
        (true, true, true) if vectors == VectorLevel::Avx512 => {
            // vmovups zmm, [pattern]
            out.with_pattern(&[0x62, bit3 | 0x61 | bit4, 0x7c, 0x48, 0x10, modrm], &[]);
        }
        (true, true, true) if vectors == VectorLevel::Avx => {
            // vmovups ymm, [pattern]
            out.with_pattern(&[0xc5, bit3 | 0x7c, 0x10, modrm], &[]);
        }
        (true, ..) if number < 16 => {
            // movups xmm, [pattern], which leaves the upper parts unchanged.
            if number >= 8 {
                out.raw(&[0x44]);
            }
            out.with_pattern(&[0x0f, 0x10, modrm], &[]);
        }
        (false, true, true) if vectors != VectorLevel::Sse && number < 16 => {
            // vinsertf128 ymm, ymm, [pattern], 1
            let same = (!number & 15) << 3;
            out.with_pattern(&[0xc4, bit3 | 0x63, 0x05 | same, 0x18, modrm], &[1]);
        }
        (false, false, true) if vectors == VectorLevel::Avx512 => {
            // vinsertf64x4 zmm, zmm, [pattern], 1
            let same = (!number & 15) << 3;
            let same_high = (!number >> 4 & 1) << 3;
            out.with_pattern(
                &[
                    0x62,
                    bit3 | 0x63 | bit4,
                    0x85 | same,
                    0x40 | same_high,
                    0x1a,
                    modrm,
                ],
                &[1],
            );
        }
        _ => return false,
    }
    true
}

/// The SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }
}
