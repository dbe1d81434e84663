//! The registers of a machine, accessible as the bytes of each unit.

use membound_rewrite::{Flag, Gpr, RegisterSet, VectorPart};

use super::{Arena, Random, typical_value};

/// All register state that code can observe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct State {
    /// As `fxsave64` stores it: x87 and MMX in bytes 0–23 and 32–159, MXCSR in 24–27.
    pub(super) x87: [u8; 512],
    pub(super) vectors: [[u8; 64]; 32],
    pub(super) masks: [u64; 8],
    pub(super) gprs: [u64; 16],
    pub(super) flags: u64,
}

/// The processor's flags with their bit numbers in rflags.
pub(crate) const FLAGS: [(Flag, u32); 7] = [
    (Flag::Carry, 0),
    (Flag::Parity, 2),
    (Flag::Adjust, 4),
    (Flag::Zero, 6),
    (Flag::Sign, 7),
    (Flag::Overflow, 11),
    (Flag::Direction, 10),
];

const PARTS: [(VectorPart, std::ops::Range<usize>); 3] = [
    (VectorPart::Xmm, 0..16),
    (VectorPart::YmmHigh, 16..32),
    (VectorPart::ZmmHigh, 32..64),
];

/// A unit of state, for comparing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Gpr(Gpr),
    Flag(Flag, u32),
    Mxcsr,
    X87,
    Mask(u8),
    Vector(u8, VectorPart),
}

impl Unit {
    pub(crate) fn set(self) -> RegisterSet {
        match self {
            Self::Gpr(register) => RegisterSet::gpr(register),
            Self::Flag(flag, _) => RegisterSet::flag(flag),
            Self::Mxcsr => RegisterSet::MXCSR,
            Self::X87 => RegisterSet::X87,
            Self::Mask(number) => RegisterSet::mask(number),
            Self::Vector(number, part) => RegisterSet::vector(number, part),
        }
    }

    /// All units that this machine has.
    pub(crate) fn all() -> Vec<Self> {
        let width = Width::of_machine();
        let mut units: Vec<Self> = Gpr::all().map(Self::Gpr).collect();
        units.extend(FLAGS.iter().map(|&(flag, bit)| Self::Flag(flag, bit)));
        units.extend([Self::Mxcsr, Self::X87]);
        if width == Width::Zmm {
            units.extend((0..8).map(Self::Mask));
        }
        let parts = match width {
            Width::Xmm => 1,
            Width::Ymm => 2,
            Width::Zmm => 3,
        };
        for (part, _) in &PARTS[..parts] {
            units.extend((0..width.registers()).map(|number| Self::Vector(number, *part)));
        }
        units
    }
}

impl State {
    /// Random registers; rsp at the arena's middle.
    pub(crate) fn random(random: &mut Random, arena: &Arena) -> Self {
        let mut state = Self {
            x87: [0; 512],
            vectors: [[0; 64]; 32],
            masks: [0; 8],
            gprs: [0; 16],
            flags: 2,
        };
        for unit in Unit::all() {
            state.scramble(unit, random);
        }
        state.set_gpr(Gpr::RSP, arena.middle());
        state
    }

    pub(crate) fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[usize::from(register.number())]
    }

    pub(crate) fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.gprs[usize::from(register.number())] = value;
    }

    pub(crate) fn vector_mut(&mut self, number: u8) -> &mut [u8; 64] {
        &mut self.vectors[usize::from(number)]
    }

    /// The bytes of a unit.
    pub(crate) fn bytes(&self, unit: Unit) -> Vec<u8> {
        match unit {
            Unit::Gpr(register) => self.gpr(register).to_le_bytes().to_vec(),
            Unit::Flag(_, bit) => vec![(self.flags >> bit & 1) as u8],
            Unit::Mxcsr => self.x87[24..28].to_vec(),
            Unit::X87 => {
                let mut bytes = self.x87[..24].to_vec();
                // The address of the last x87 instruction. Only some processors keep it, and it differs for
                // moved code.
                bytes[8..16].fill(0);
                bytes.extend(&self.x87[32..160]);
                bytes
            }
            Unit::Mask(number) => self.masks[usize::from(number)].to_le_bytes().to_vec(),
            Unit::Vector(number, part) => self.vectors[usize::from(number)][range(part)].to_vec(),
        }
    }

    /// Changes a unit to another value.
    pub(crate) fn scramble(&mut self, unit: Unit, random: &mut Random) {
        match unit {
            Unit::Gpr(register) => self.set_gpr(register, typical_value(random)),
            Unit::Flag(_, bit) => {
                self.flags = self.flags & !(1 << bit) | random.below(2) << bit;
            }
            Unit::Mxcsr => {
                // All exceptions masked; rounding, flushing and sticky bits at random.
                let control = 0x1f80 | random.next() as u32 & 0xe07f;
                self.x87[24..28].copy_from_slice(&control.to_le_bytes());
                self.x87[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
            }
            Unit::X87 => self.scramble_x87(random),
            Unit::Mask(number) => self.masks[usize::from(number)] = typical_value(random),
            Unit::Vector(number, part) => {
                let style = random.below(4);
                for chunk in self.vectors[usize::from(number)][range(part)].chunks_mut(8) {
                    let value = match style {
                        0 => typical_value(random),
                        1 => (random.below(1000) as f64).to_bits(),
                        2 => {
                            let [low, high] = [random.below(1000), random.below(1000)]
                                .map(|value| u64::from((value as f32).to_bits()));
                            low | high << 32
                        }
                        _ => random.next(),
                    };
                    chunk.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    fn scramble_x87(&mut self, random: &mut Random) {
        let control = 0x007f | random.next() as u16 & 0x0f00;
        let status = random.next() as u16 & 0x7f00;
        self.x87[..2].copy_from_slice(&control.to_le_bytes());
        self.x87[2..4].copy_from_slice(&status.to_le_bytes());
        self.x87[4] = random.next() as u8;
        for register in 0..8 {
            let at = 32 + 16 * register;
            self.x87[at..at + 8].copy_from_slice(&(random.next() | 1 << 63).to_le_bytes());
            let exponent = 0x3fff_u16 + random.below(64) as u16;
            self.x87[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
        }
    }
}

fn range(part: VectorPart) -> std::ops::Range<usize> {
    PARTS[part as usize].1.clone()
}

/// The extent of vector registers on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Xmm,
    Ymm,
    Zmm,
}

impl Width {
    pub(crate) fn of_machine() -> Self {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            Self::Zmm
        } else if is_x86_feature_detected!("avx") {
            Self::Ymm
        } else {
            Self::Xmm
        }
    }

    pub(super) const fn registers(self) -> u8 {
        match self {
            Self::Zmm => 32,
            _ => 16,
        }
    }
}
