//! Sets of machine state that an instruction reads or writes.
//!
//! State is divided into units that can be dead or alive independently: each general register as a whole,
//! each arithmetic flag, the direction flag, MXCSR, x87/MMX together, each mask register, and three parts of
//! each vector register (bytes 0–15, 16–31, 32–63).

use std::fmt;

use iced_x86::Register;

/// A general register by its number in the instruction set (rax 0 … r15 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpr(u8);

impl Gpr {
    /// rax.
    pub const RAX: Self = Self(0);
    /// rcx.
    pub const RCX: Self = Self(1);
    /// rdx.
    pub const RDX: Self = Self(2);
    /// rbx.
    pub const RBX: Self = Self(3);
    /// rsp.
    pub const RSP: Self = Self(4);
    /// rbp.
    pub const RBP: Self = Self(5);
    /// rsi.
    pub const RSI: Self = Self(6);
    /// rdi.
    pub const RDI: Self = Self(7);

    /// The register with this number.
    ///
    /// # Panics
    /// When `number` is above 15.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        assert!(number < 16, "there are sixteen general registers");
        Self(number)
    }

    /// The general register of 64 bits that is `register`; `None` if that is another kind.
    #[must_use]
    pub fn of(register: Register) -> Option<Self> {
        let number = register.is_gpr64().then(|| register.number())?;
        u8::try_from(number).ok().map(Self::new)
    }

    /// The register's number in the instruction set, 0–15.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All sixteen registers, in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..16).map(Self)
    }
}

impl fmt::Display for Gpr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        out.write_str(NAMES[usize::from(self.0)])
    }
}

/// A flag of `rflags` that can be dead on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flag {
    /// Carry.
    Carry,
    /// Parity.
    Parity,
    /// Auxiliary carry.
    Adjust,
    /// Zero.
    Zero,
    /// Sign.
    Sign,
    /// Overflow.
    Overflow,
    /// Direction.
    Direction,
}

/// Part of a vector register that can be dead on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VectorPart {
    /// Bytes 0–15.
    Xmm,
    /// Bytes 16–31.
    YmmHigh,
    /// Bytes 32–63.
    ZmmHigh,
}

/// A set of state units. An ordinary value: `Copy`, 32 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RegisterSet {
    /// Bits 0–15 general registers, 16–21 arithmetic flags, 22 direction, 23 MXCSR,
    /// 24 x87/MMX, 25–32 mask registers.
    scalar: u64,
    /// Bit `32 * part + register`.
    vector: u128,
}

const FLAGS: u64 = 0x3f << 16;
const DIRECTION: u64 = 1 << 22;
const MXCSR: u64 = 1 << 23;
const X87: u64 = 1 << 24;
const MASKS: u64 = 0xff << 25;
const SCALARS: u64 = 0xffff | FLAGS | DIRECTION | MXCSR | X87 | MASKS;
const VECTORS: u128 = (1 << 96) - 1;

impl RegisterSet {
    /// The empty set.
    pub const EMPTY: Self = Self {
        scalar: 0,
        vector: 0,
    };
    /// The set of all state units.
    pub const ALL: Self = Self {
        scalar: SCALARS,
        vector: VECTORS,
    };
    /// All general registers.
    pub const GPRS: Self = Self {
        scalar: 0xffff,
        vector: 0,
    };
    /// The six arithmetic flags.
    pub const ARITHMETIC_FLAGS: Self = Self {
        scalar: FLAGS,
        vector: 0,
    };
    /// All parts of all vector registers.
    pub const VECTORS: Self = Self {
        scalar: 0,
        vector: VECTORS,
    };
    /// All mask registers.
    pub const MASKS: Self = Self {
        scalar: MASKS,
        vector: 0,
    };
    /// The direction flag.
    pub const DIRECTION: Self = Self {
        scalar: DIRECTION,
        vector: 0,
    };
    /// The control and status register of SSE.
    pub const MXCSR: Self = Self {
        scalar: MXCSR,
        vector: 0,
    };
    /// The x87 and MMX state, taken together.
    pub const X87: Self = Self {
        scalar: X87,
        vector: 0,
    };

    /// One general register.
    #[must_use]
    pub const fn gpr(register: Gpr) -> Self {
        Self {
            scalar: 1 << register.number(),
            vector: 0,
        }
    }

    /// One flag.
    #[must_use]
    pub const fn flag(flag: Flag) -> Self {
        Self {
            scalar: 1 << (16 + flag as u32),
            vector: 0,
        }
    }

    /// One mask register, 0–7.
    #[must_use]
    pub const fn mask(number: u8) -> Self {
        assert!(number < 8, "there are eight mask registers");
        Self {
            scalar: 1 << (25 + number),
            vector: 0,
        }
    }

    /// One part of the vector register `number`, 0–31.
    #[must_use]
    pub const fn vector(number: u8, part: VectorPart) -> Self {
        assert!(number < 32, "there are thirty-two vector registers");
        Self {
            scalar: 0,
            vector: 1 << (32 * part as u32 + number as u32),
        }
    }

    /// State units in `self` or `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            scalar: self.scalar | other.scalar,
            vector: self.vector | other.vector,
        }
    }

    /// State units in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self {
            scalar: self.scalar & other.scalar,
            vector: self.vector & other.vector,
        }
    }

    /// State units in `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            scalar: self.scalar & !other.scalar,
            vector: self.vector & !other.vector,
        }
    }

    /// State units that are not in `self`.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self::ALL.without(self)
    }

    /// True if every unit of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.scalar & other.scalar == other.scalar && self.vector & other.vector == other.vector
    }

    /// True if the sets have a unit in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.scalar & other.scalar != 0 || self.vector & other.vector != 0
    }

    /// True if the set has no units.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.scalar == 0 && self.vector == 0
    }

    /// The general registers of the set, in ascending order.
    pub fn gprs(self) -> impl DoubleEndedIterator<Item = Gpr> {
        Gpr::all().filter(move |register| self.contains(Self::gpr(*register)))
    }
}

impl fmt::Debug for RegisterSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{{{self}}}")
    }
}

/// Names, separated by spaces: `rax rcx CF ZF k1 xmm0-5 ymmhi2 mxcsr x87 df`.
impl fmt::Display for RegisterSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut word = |out: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            write!(out, "{separator}{text}")?;
            separator = " ";
            Ok(())
        };
        for register in self.gprs() {
            word(out, format_args!("{register}"))?;
        }
        for (bit, name) in ["CF", "PF", "AF", "ZF", "SF", "OF", "df", "mxcsr", "x87"]
            .into_iter()
            .enumerate()
        {
            if self.scalar >> (16 + bit) & 1 == 1 {
                word(out, format_args!("{name}"))?;
            }
        }
        for number in 0..8 {
            if self.contains(Self::mask(number)) {
                word(out, format_args!("k{number}"))?;
            }
        }
        for (part, name) in ["xmm", "ymmhi", "zmmhi"].into_iter().enumerate() {
            let bits = (self.vector >> (32 * part)) as u32;
            let mut number = 0;
            while number < 32 {
                if bits >> number & 1 == 0 {
                    number += 1;
                    continue;
                }
                let end = number + (bits >> number).trailing_ones();
                match end - number {
                    1 => word(out, format_args!("{name}{number}"))?,
                    _ => word(out, format_args!("{name}{number}-{}", end - 1))?,
                }
                number = end;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_distinct_and_make_up_everything() {
        let mut units: Vec<RegisterSet> = Gpr::all().map(RegisterSet::gpr).collect();
        for flag in [
            Flag::Carry,
            Flag::Parity,
            Flag::Adjust,
            Flag::Zero,
            Flag::Sign,
            Flag::Overflow,
            Flag::Direction,
        ] {
            units.push(RegisterSet::flag(flag));
        }
        units.extend([RegisterSet::MXCSR, RegisterSet::X87]);
        units.extend((0..8).map(RegisterSet::mask));
        for part in [VectorPart::Xmm, VectorPart::YmmHigh, VectorPart::ZmmHigh] {
            units.extend((0..32).map(|number| RegisterSet::vector(number, part)));
        }
        let mut all = RegisterSet::EMPTY;
        for unit in &units {
            assert!(!all.intersects(*unit), "{unit:?} twice");
            all = all.union(*unit);
        }
        assert_eq!(all, RegisterSet::ALL);
        assert_eq!(RegisterSet::ALL.complement(), RegisterSet::EMPTY);
        assert_eq!(RegisterSet::flag(Flag::Direction), RegisterSet::DIRECTION);
    }

    #[test]
    fn a_set_is_read_by_its_names() {
        let set = RegisterSet::gpr(Gpr::RDI)
            .union(RegisterSet::flag(Flag::Zero))
            .union(RegisterSet::vector(3, VectorPart::Xmm))
            .union(RegisterSet::vector(4, VectorPart::Xmm))
            .union(RegisterSet::vector(31, VectorPart::ZmmHigh));
        assert_eq!(set.to_string(), "rdi ZF xmm3-4 zmmhi31");
    }
}
