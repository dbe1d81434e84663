//! The instructions of measuring kernels: operands, encoded words and text.
//!
//! Source of the encodings: Arm Architecture Reference Manual for A-profile (DDI 0487), chapter C4 "A64
//! instruction set encoding". The text is in the syntax of GNU as.

use std::fmt;

use crate::Error;

/// A general register by its number. Number 31 is the stack pointer in addresses and in additions of an
/// immediate, and the zero register elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct X(pub u8);

impl X {
    /// Register 31 as the zero register: reads as zero, ignores writes.
    pub const ZERO: Self = Self(31);
    /// Register 31 as the stack pointer.
    pub const SP: Self = Self(31);
}

/// A vector register by its number, 0–31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct V(pub u8);

/// When a branch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The last comparison found equal operands, or the last result was zero.
    Equal,
    /// The opposite of [`Self::Equal`].
    NotEqual,
    /// The left operand of the last comparison was below the right one, unsigned.
    Lower,
}

/// The accesses that a data synchronisation barrier waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Barrier {
    /// Loads and stores: `dsb sy`.
    All,
    /// Loads only: `dsb ld`.
    Loads,
}

/// An instruction with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "fields are operands: to and from registers, bytes, words"
)]
pub enum Instruction {
    /// `add to, from, #immediate`; the immediate is multiplied by 4096 if `shifted`.
    AddImmediate {
        to: X,
        from: X,
        immediate: u32,
        shifted: bool,
    },
    /// `sub to, from, #immediate`.
    SubtractImmediate { to: X, from: X, immediate: u32 },
    /// `subs to, from, #immediate`: also sets the flags; with [`X::ZERO`] as `to` it is `cmp`.
    SubtractImmediateFlags { to: X, from: X, immediate: u32 },
    /// `add to, left, right, lsl #shift`.
    Add {
        to: X,
        left: X,
        right: X,
        shift: u32,
    },
    /// `sub to, left, right`.
    Subtract { to: X, left: X, right: X },
    /// `cmp left, right`.
    Compare { left: X, right: X },
    /// `eor to, left, right`.
    Xor { to: X, left: X, right: X },
    /// `mov to, from`.
    Move { to: X, from: X },
    /// `movz to, #bits, lsl #(16 × part)`.
    MoveZero { to: X, bits: u16, part: u8 },
    /// `movk to, #bits, lsl #(16 × part)`: the other bits of `to` are unchanged.
    MoveKeep { to: X, bits: u16, part: u8 },
    /// `madd to, left, right, addend`.
    MultiplyAdd { to: X, left: X, right: X, addend: X },
    /// `umulh to, left, right`: the upper half of the product.
    MultiplyHigh { to: X, left: X, right: X },
    /// `ldr to, [base, #bytes]`.
    Load { to: X, base: X, bytes: u32 },
    /// `str from, [base, #bytes]`.
    Store { from: X, base: X, bytes: u32 },
    /// `ldr to, [base, index]`.
    LoadIndexed { to: X, base: X, index: X },
    /// `ldr to, [base, index]` of 32 bits.
    LoadWordIndexed { to: X, base: X, index: X },
    /// `stp first, second, [sp, #-bytes]!`.
    PushPair { first: X, second: X, bytes: u32 },
    /// `ldp first, second, [sp], #bytes`.
    PopPair { first: X, second: X, bytes: u32 },
    /// `prfm pldl1keep, [base, #bytes]`.
    Prefetch { base: X, bytes: u32 },
    /// `ldr to, [base, #bytes]` of 128 bits.
    LoadVector { to: V, base: X, bytes: u32 },
    /// `str from, [base, #bytes]` of 128 bits.
    StoreVector { from: V, base: X, bytes: u32 },
    /// `ldp first, second, [base, #bytes]` of 128 bits each.
    LoadVectors {
        first: V,
        second: V,
        base: X,
        bytes: u32,
    },
    /// `stp first, second, [base, #bytes]` of 128 bits each.
    StoreVectors {
        first: V,
        second: V,
        base: X,
        bytes: u32,
    },
    /// `stnp first, second, [base, #bytes]` of 128 bits each, with the hint that the data will not be read
    /// soon.
    StoreVectorsPast {
        first: V,
        second: V,
        base: X,
        bytes: u32,
    },
    /// `ldr to, [base, #bytes]` of a double.
    LoadDouble { to: V, base: X, bytes: u32 },
    /// `str from, [base, #bytes]` of a double.
    StoreDouble { from: V, base: X, bytes: u32 },
    /// `fneg to, from` of a double.
    NegateDouble { to: V, from: V },
    /// `fneg to.2d, from.2d`.
    NegateDoubles { to: V, from: V },
    /// `fmla to.2d, left.2d, right.2d`.
    MultiplyAddDoubles { to: V, left: V, right: V },
    /// `add to.4s, left.4s, right.4s`.
    AddWords { to: V, left: V, right: V },
    /// `dup to.2d, from`.
    Broadcast { to: V, from: X },
    /// `movi to.2d, #0`.
    ClearVector { to: V },
    /// `b.condition`, to the instruction `words` words further on.
    BranchIf { condition: Condition, words: i64 },
    /// `mrs to, cntvct_el0`: the generic timer's virtual count.
    ReadCounter { to: X },
    /// `dsb`.
    Synchronise(Barrier),
    /// `isb`.
    SynchroniseInstructions,
    /// `nop`.
    Nop,
    /// `ret`.
    Return,
}

use Instruction as I;

impl Instruction {
    /// The instruction's encoded word.
    ///
    /// # Errors
    /// [`Error::Assemble`] if an operand does not fit.
    pub fn encode(self) -> Result<u32, Error> {
        let unsigned = |value: u32, unit: u32, most: u32| {
            let scaled = value / unit;
            if value.is_multiple_of(unit) && scaled <= most {
                Ok(scaled)
            } else {
                Err(Error::Assemble(format!(
                    "`{self}`: the operand does not fit"
                )))
            }
        };
        let scaled = |bytes, unit| unsigned(bytes, unit, 0xfff).map(|value| value << 10);
        // The offset of a pair has seven bits with sign; only non-negative ones are used here.
        let paired = |bytes, unit| unsigned(bytes, unit, 0x3f).map(|value| value << 15);
        let small = |value| unsigned(value, 1, 0xfff).map(|value| value << 10);
        Ok(match self {
            I::AddImmediate {
                to,
                from,
                immediate,
                shifted,
            } => 0x9100_0000 | u32::from(shifted) << 22 | small(immediate)? | n(from) | d(to),
            I::SubtractImmediate {
                to,
                from,
                immediate,
            } => 0xd100_0000 | small(immediate)? | n(from) | d(to),
            I::SubtractImmediateFlags {
                to,
                from,
                immediate,
            } => 0xf100_0000 | small(immediate)? | n(from) | d(to),
            I::Add {
                to,
                left,
                right,
                shift,
            } => {
                let shift = unsigned(shift, 1, 63)? << 10;
                0x8b00_0000 | m(right) | shift | n(left) | d(to)
            }
            I::Subtract { to, left, right } => 0xcb00_0000 | m(right) | n(left) | d(to),
            I::Compare { left, right } => 0xeb00_0000 | m(right) | n(left) | d(X::ZERO),
            I::Xor { to, left, right } => 0xca00_0000 | m(right) | n(left) | d(to),
            I::Move { to, from } => 0xaa00_0000 | m(from) | n(X::ZERO) | d(to),
            I::MoveZero { to, bits, part } => {
                0xd280_0000 | half(unsigned(u32::from(part), 1, 3)?, bits) | d(to)
            }
            I::MoveKeep { to, bits, part } => {
                0xf280_0000 | half(unsigned(u32::from(part), 1, 3)?, bits) | d(to)
            }
            I::MultiplyAdd {
                to,
                left,
                right,
                addend,
            } => 0x9b00_0000 | m(right) | second(addend.0) | n(left) | d(to),
            I::MultiplyHigh { to, left, right } => 0x9bc0_7c00 | m(right) | n(left) | d(to),
            I::Load { to, base, bytes } => 0xf940_0000 | scaled(bytes, 8)? | n(base) | d(to),
            I::Store { from, base, bytes } => 0xf900_0000 | scaled(bytes, 8)? | n(base) | d(from),
            I::LoadIndexed { to, base, index } => 0xf860_6800 | m(index) | n(base) | d(to),
            I::LoadWordIndexed { to, base, index } => 0xb860_6800 | m(index) | n(base) | d(to),
            I::PushPair {
                first,
                second: other,
                bytes,
            } => {
                // The offset is negative: two's complement in seven bits.
                let distance = (0x80 - unsigned(bytes, 8, 0x40)?) & 0x7f;
                0xa980_0000 | distance << 15 | second(other.0) | n(X::SP) | d(first)
            }
            I::PopPair {
                first,
                second: other,
                bytes,
            } => 0xa8c0_0000 | paired(bytes, 8)? | second(other.0) | n(X::SP) | d(first),
            I::Prefetch { base, bytes } => 0xf980_0000 | scaled(bytes, 8)? | n(base),
            I::LoadVector { to, base, bytes } => 0x3dc0_0000 | scaled(bytes, 16)? | n(base) | v(to),
            I::StoreVector { from, base, bytes } => {
                0x3d80_0000 | scaled(bytes, 16)? | n(base) | v(from)
            }
            I::LoadVectors {
                first,
                second: other,
                base,
                bytes,
            } => 0xad40_0000 | paired(bytes, 16)? | second(other.0) | n(base) | v(first),
            I::StoreVectors {
                first,
                second: other,
                base,
                bytes,
            } => 0xad00_0000 | paired(bytes, 16)? | second(other.0) | n(base) | v(first),
            I::StoreVectorsPast {
                first,
                second: other,
                base,
                bytes,
            } => 0xac00_0000 | paired(bytes, 16)? | second(other.0) | n(base) | v(first),
            I::LoadDouble { to, base, bytes } => 0xfd40_0000 | scaled(bytes, 8)? | n(base) | v(to),
            I::StoreDouble { from, base, bytes } => {
                0xfd00_0000 | scaled(bytes, 8)? | n(base) | v(from)
            }
            I::NegateDouble { to, from } => 0x1e61_4000 | vn(from) | v(to),
            I::NegateDoubles { to, from } => 0x6ee0_f800 | vn(from) | v(to),
            I::MultiplyAddDoubles { to, left, right } => 0x4e60_cc00 | vm(right) | vn(left) | v(to),
            I::AddWords { to, left, right } => 0x4ea0_8400 | vm(right) | vn(left) | v(to),
            I::Broadcast { to, from } => 0x4e08_0c00 | n(from) | v(to),
            I::ClearVector { to } => 0x6f00_e400 | v(to),
            I::BranchIf { condition, words } => {
                if !(-(1 << 18)..1 << 18).contains(&words) {
                    return Err(Error::Assemble(format!("`{self}`: too far away")));
                }
                0x5400_0000 | (words as u32 & 0x7_ffff) << 5 | condition.code()
            }
            I::ReadCounter { to } => 0xd53b_e040 | d(to),
            I::Synchronise(Barrier::All) => 0xd503_3f9f,
            I::Synchronise(Barrier::Loads) => 0xd503_3d9f,
            I::SynchroniseInstructions => 0xd503_3fdf,
            I::Nop => 0xd503_201f,
            I::Return => 0xd65f_03c0,
        })
    }
}

impl Condition {
    const fn code(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::NotEqual => 1,
            Self::Lower => 3,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Equal => "eq",
            Self::NotEqual => "ne",
            Self::Lower => "lo",
        }
    }
}

/// Field of the register that is written or stored.
fn d(register: X) -> u32 {
    u32::from(register.0 & 31)
}

/// Field of the base register, or of the first operand.
fn n(register: X) -> u32 {
    u32::from(register.0 & 31) << 5
}

/// Field of the index register, or of the second operand.
fn m(register: X) -> u32 {
    u32::from(register.0 & 31) << 16
}

fn v(register: V) -> u32 {
    d(X(register.0))
}

fn vn(register: V) -> u32 {
    n(X(register.0))
}

fn vm(register: V) -> u32 {
    m(X(register.0))
}

/// Field of the second register of a pair, or of the addend.
fn second(number: u8) -> u32 {
    u32::from(number & 31) << 10
}

fn half(part: u32, bits: u16) -> u32 {
    part << 21 | u32::from(bits) << 5
}

/// A register in an address, where number 31 is the stack pointer.
struct Base(X);

impl fmt::Display for Base {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            X::SP => out.write_str("sp"),
            other => write!(out, "{other}"),
        }
    }
}

impl fmt::Display for X {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ZERO => out.write_str("xzr"),
            Self(number) => write!(out, "x{number}"),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |X(number): X| match number {
            31 => "wzr".to_owned(),
            number => format!("w{number}"),
        };
        match *self {
            I::AddImmediate {
                to,
                from,
                immediate,
                shifted,
            } => {
                let shift = if shifted { ", lsl #12" } else { "" };
                write!(out, "add {}, {}, #{immediate}{shift}", Base(to), Base(from))
            }
            I::SubtractImmediate {
                to,
                from,
                immediate,
            } => {
                write!(out, "sub {}, {}, #{immediate}", Base(to), Base(from))
            }
            I::SubtractImmediateFlags {
                to,
                from,
                immediate,
            } => {
                write!(out, "subs {to}, {}, #{immediate}", Base(from))
            }
            I::Add {
                to,
                left,
                right,
                shift: 0,
            } => write!(out, "add {to}, {left}, {right}"),
            I::Add {
                to,
                left,
                right,
                shift,
            } => {
                write!(out, "add {to}, {left}, {right}, lsl #{shift}")
            }
            I::Subtract { to, left, right } => write!(out, "sub {to}, {left}, {right}"),
            I::Compare { left, right } => write!(out, "cmp {left}, {right}"),
            I::Xor { to, left, right } => write!(out, "eor {to}, {left}, {right}"),
            I::Move { to, from } => write!(out, "mov {to}, {from}"),
            I::MoveZero { to, bits, part } => {
                write!(out, "movz {to}, #{bits}, lsl #{}", 16 * u32::from(part))
            }
            I::MoveKeep { to, bits, part } => {
                write!(out, "movk {to}, #{bits}, lsl #{}", 16 * u32::from(part))
            }
            I::MultiplyAdd {
                to,
                left,
                right,
                addend,
            } => {
                write!(out, "madd {to}, {left}, {right}, {addend}")
            }
            I::MultiplyHigh { to, left, right } => write!(out, "umulh {to}, {left}, {right}"),
            I::Load { to, base, bytes } => write!(out, "ldr {to}, [{}, #{bytes}]", Base(base)),
            I::Store { from, base, bytes } => {
                write!(out, "str {from}, [{}, #{bytes}]", Base(base))
            }
            I::LoadIndexed { to, base, index } => {
                write!(out, "ldr {to}, [{}, {index}]", Base(base))
            }
            I::LoadWordIndexed { to, base, index } => {
                write!(out, "ldr {}, [{}, {index}]", word(to), Base(base))
            }
            I::PushPair {
                first,
                second,
                bytes,
            } => {
                write!(out, "stp {first}, {second}, [sp, #-{bytes}]!")
            }
            I::PopPair {
                first,
                second,
                bytes,
            } => {
                write!(out, "ldp {first}, {second}, [sp], #{bytes}")
            }
            I::Prefetch { base, bytes } => {
                write!(out, "prfm pldl1keep, [{}, #{bytes}]", Base(base))
            }
            I::LoadVector {
                to: V(to),
                base,
                bytes,
            } => {
                write!(out, "ldr q{to}, [{}, #{bytes}]", Base(base))
            }
            I::StoreVector {
                from: V(from),
                base,
                bytes,
            } => {
                write!(out, "str q{from}, [{}, #{bytes}]", Base(base))
            }
            I::LoadVectors {
                first: V(first),
                second: V(second),
                base,
                bytes,
            } => {
                write!(out, "ldp q{first}, q{second}, [{}, #{bytes}]", Base(base))
            }
            I::StoreVectors {
                first: V(first),
                second: V(second),
                base,
                bytes,
            } => {
                write!(out, "stp q{first}, q{second}, [{}, #{bytes}]", Base(base))
            }
            I::StoreVectorsPast {
                first: V(first),
                second: V(second),
                base,
                bytes,
            } => {
                write!(out, "stnp q{first}, q{second}, [{}, #{bytes}]", Base(base))
            }
            I::LoadDouble {
                to: V(to),
                base,
                bytes,
            } => {
                write!(out, "ldr d{to}, [{}, #{bytes}]", Base(base))
            }
            I::StoreDouble {
                from: V(from),
                base,
                bytes,
            } => {
                write!(out, "str d{from}, [{}, #{bytes}]", Base(base))
            }
            I::NegateDouble {
                to: V(to),
                from: V(from),
            } => write!(out, "fneg d{to}, d{from}"),
            I::NegateDoubles {
                to: V(to),
                from: V(from),
            } => {
                write!(out, "fneg v{to}.2d, v{from}.2d")
            }
            I::MultiplyAddDoubles {
                to: V(to),
                left: V(left),
                right: V(right),
            } => {
                write!(out, "fmla v{to}.2d, v{left}.2d, v{right}.2d")
            }
            I::AddWords {
                to: V(to),
                left: V(left),
                right: V(right),
            } => {
                write!(out, "add v{to}.4s, v{left}.4s, v{right}.4s")
            }
            I::Broadcast { to: V(to), from } => write!(out, "dup v{to}.2d, {from}"),
            I::ClearVector { to: V(to) } => write!(out, "movi v{to}.2d, #0"),
            I::BranchIf { condition, words } => {
                write!(out, "b.{} .{:+}", condition.name(), 4 * words)
            }
            I::ReadCounter { to } => write!(out, "mrs {to}, cntvct_el0"),
            I::Synchronise(Barrier::All) => out.write_str("dsb sy"),
            I::Synchronise(Barrier::Loads) => out.write_str("dsb ld"),
            I::SynchroniseInstructions => out.write_str("isb"),
            I::Nop => out.write_str("nop"),
            I::Return => out.write_str("ret"),
        }
    }
}
