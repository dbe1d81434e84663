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
use Operand::{Address, Double, Doubles, General, Quad, Word, Words};

impl Instruction {
    /// The instruction's encoded word.
    ///
    /// # Errors
    /// [`Error::Assemble`] if an operand does not fit.
    pub fn encode(self) -> Result<u32, Error> {
        let form = self.form();
        match form.error {
            Some(error) => Err(Error::Assemble(format!("`{self}`: {error}"))),
            None => Ok(form.word),
        }
    }

    /// The table of all instructions: opcode, mnemonic, and the operands in the order of the text.
    fn form(self) -> Form {
        match self {
            I::AddImmediate {
                to,
                from,
                immediate,
                shifted,
            } => {
                let form = Form::new(0x9100_0000, "add").rd(Address(to));
                let form = form.rn(Address(from)).immediate(immediate);
                if shifted { form.lsl(1 << 22, 12) } else { form }
            }
            I::SubtractImmediate {
                to,
                from,
                immediate,
            } => {
                let form = Form::new(0xd100_0000, "sub").rd(Address(to));
                form.rn(Address(from)).immediate(immediate)
            }
            I::SubtractImmediateFlags {
                to,
                from,
                immediate,
            } => {
                let form = Form::new(0xf100_0000, "subs").rd(General(to));
                form.rn(Address(from)).immediate(immediate)
            }
            I::Add {
                to,
                left,
                right,
                shift,
            } => Form::new(0x8b00_0000, "add")
                .three(to, left, right)
                .shift(shift),
            I::Subtract { to, left, right } => Form::new(0xcb00_0000, "sub").three(to, left, right),
            // The zero register as `to`.
            I::Compare { left, right } => Form::new(0xeb00_001f, "cmp")
                .rn(General(left))
                .rm(General(right)),
            I::Xor { to, left, right } => Form::new(0xca00_0000, "eor").three(to, left, right),
            // An `orr` with the zero register on the left.
            I::Move { to, from } => Form::new(0xaa00_03e0, "mov")
                .rd(General(to))
                .rm(General(from)),
            I::MoveZero { to, bits, part } => Form::new(0xd280_0000, "movz").half(to, bits, part),
            I::MoveKeep { to, bits, part } => Form::new(0xf280_0000, "movk").half(to, bits, part),
            I::MultiplyAdd {
                to,
                left,
                right,
                addend,
            } => Form::new(0x9b00_0000, "madd")
                .three(to, left, right)
                .ra(General(addend)),
            I::MultiplyHigh { to, left, right } => {
                Form::new(0x9bc0_7c00, "umulh").three(to, left, right)
            }
            I::Load { to, base, bytes } => Form::new(0xf940_0000, "ldr")
                .rd(General(to))
                .memory(base, bytes, 8),
            I::Store { from, base, bytes } => Form::new(0xf900_0000, "str")
                .rd(General(from))
                .memory(base, bytes, 8),
            I::LoadIndexed { to, base, index } => Form::new(0xf860_6800, "ldr")
                .rd(General(to))
                .indexed(base, index),
            I::LoadWordIndexed { to, base, index } => Form::new(0xb860_6800, "ldr")
                .rd(Word(to))
                .indexed(base, index),
            I::PushPair {
                first,
                second,
                bytes,
            } => Form::new(0xa980_0000, "stp")
                .rd(General(first))
                .ra(General(second))
                .push(bytes),
            I::PopPair {
                first,
                second,
                bytes,
            } => Form::new(0xa8c0_0000, "ldp")
                .rd(General(first))
                .ra(General(second))
                .pop(bytes),
            I::Prefetch { base, bytes } => Form::new(0xf980_0000, "prfm")
                .text("pldl1keep")
                .memory(base, bytes, 8),
            I::LoadVector { to, base, bytes } => Form::new(0x3dc0_0000, "ldr")
                .rd(Quad(to))
                .memory(base, bytes, 16),
            I::StoreVector { from, base, bytes } => Form::new(0x3d80_0000, "str")
                .rd(Quad(from))
                .memory(base, bytes, 16),
            I::LoadVectors {
                first,
                second,
                base,
                bytes,
            } => Form::new(0xad40_0000, "ldp").quads(first, second, base, bytes),
            I::StoreVectors {
                first,
                second,
                base,
                bytes,
            } => Form::new(0xad00_0000, "stp").quads(first, second, base, bytes),
            I::StoreVectorsPast {
                first,
                second,
                base,
                bytes,
            } => Form::new(0xac00_0000, "stnp").quads(first, second, base, bytes),
            I::LoadDouble { to, base, bytes } => Form::new(0xfd40_0000, "ldr")
                .rd(Double(to))
                .memory(base, bytes, 8),
            I::StoreDouble { from, base, bytes } => Form::new(0xfd00_0000, "str")
                .rd(Double(from))
                .memory(base, bytes, 8),
            I::NegateDouble { to, from } => Form::new(0x1e61_4000, "fneg")
                .rd(Double(to))
                .rn(Double(from)),
            I::NegateDoubles { to, from } => Form::new(0x6ee0_f800, "fneg")
                .rd(Doubles(to))
                .rn(Doubles(from)),
            I::MultiplyAddDoubles { to, left, right } => Form::new(0x4e60_cc00, "fmla")
                .rd(Doubles(to))
                .rn(Doubles(left))
                .rm(Doubles(right)),
            I::AddWords { to, left, right } => Form::new(0x4ea0_8400, "add")
                .rd(Words(to))
                .rn(Words(left))
                .rm(Words(right)),
            I::Broadcast { to, from } => Form::new(0x4e08_0c00, "dup")
                .rd(Doubles(to))
                .rn(General(from)),
            I::ClearVector { to } => Form::new(0x6f00_e400, "movi").rd(Doubles(to)).text("#0"),
            I::BranchIf { condition, words } => condition.branch(words),
            I::ReadCounter { to } => Form::new(0xd53b_e040, "mrs")
                .rd(General(to))
                .text("cntvct_el0"),
            I::Synchronise(Barrier::All) => Form::new(0xd503_3f9f, "dsb").text("sy"),
            I::Synchronise(Barrier::Loads) => Form::new(0xd503_3d9f, "dsb").text("ld"),
            I::SynchroniseInstructions => Form::new(0xd503_3fdf, "isb"),
            I::Nop => Form::new(0xd503_201f, "nop"),
            I::Return => Form::new(0xd65f_03c0, "ret"),
        }
    }
}

impl Condition {
    /// The branch under this condition, to the instruction `words` words further on.
    fn branch(self, words: i64) -> Form {
        let (code, mnemonic) = match self {
            Self::Equal => (0, "b.eq"),
            Self::NotEqual => (1, "b.ne"),
            Self::Lower => (3, "b.lo"),
        };
        let distance = (words as u32 & 0x7_ffff) << 5;
        let mut form = Form::new(0x5400_0000 | distance | code, mnemonic);
        if !(-(1 << 18)..1 << 18).contains(&words) {
            form.error = Some("too far away");
        }
        form.text(format_args!(".{:+}", 4 * words))
    }
}

/// Word and text of an instruction, to which each method adds an operand.
struct Form {
    word: u32,
    text: String,
    /// Why an operand cannot be encoded.
    error: Option<&'static str>,
}

impl Form {
    fn new(opcode: u32, mnemonic: &str) -> Self {
        Self {
            word: opcode,
            text: mnemonic.to_owned(),
            error: None,
        }
    }

    /// Adds an operand that is part of the opcode, or whose field the caller has filled.
    fn text(mut self, operand: impl fmt::Display) -> Self {
        let separator = if self.text.contains(' ') { ", " } else { " " };
        self.text = format!("{}{separator}{operand}", self.text);
        self
    }

    fn register(mut self, register: Operand, field: u32) -> Self {
        self.word |= u32::from(register.number() & 31) << field;
        self.text(register)
    }

    /// The register that is written or stored.
    fn rd(self, register: Operand) -> Self {
        self.register(register, 0)
    }

    /// The first operand.
    fn rn(self, register: Operand) -> Self {
        self.register(register, 5)
    }

    /// The second operand.
    fn rm(self, register: Operand) -> Self {
        self.register(register, 16)
    }

    /// The second register of a pair, or the addend.
    fn ra(self, register: Operand) -> Self {
        self.register(register, 10)
    }

    fn three(self, to: X, left: X, right: X) -> Self {
        self.rd(General(to)).rn(General(left)).rm(General(right))
    }

    /// Returns `value` in units of `unit`, which must be a whole number and at most `most`.
    fn scaled(&mut self, value: u32, unit: u32, most: u32) -> u32 {
        let scaled = value / unit;
        if !value.is_multiple_of(unit) || scaled > most {
            self.error = Some("the operand does not fit");
        }
        scaled
    }

    /// An unsigned immediate of 12 bits.
    fn immediate(mut self, value: u32) -> Self {
        self.word |= self.scaled(value, 1, 0xfff) << 10;
        self.text(format_args!("#{value}"))
    }

    /// A shift of the last operand to the left, which `bits` encode.
    fn lsl(mut self, bits: u32, shift: u32) -> Self {
        self.word |= bits;
        self.text(format_args!("lsl #{shift}"))
    }

    /// A shift of the last register to the left, by 0 to 63 bits.
    fn shift(mut self, shift: u32) -> Self {
        let bits = self.scaled(shift, 1, 63) << 10;
        if shift == 0 {
            self
        } else {
            self.lsl(bits, shift)
        }
    }

    /// Sixteen bits for one of the four parts of a register.
    fn half(mut self, to: X, bits: u16, part: u8) -> Self {
        let part = u32::from(part);
        self.word |= u32::from(bits) << 5;
        let position = self.scaled(part, 1, 3) << 21;
        let form = self.rd(General(to)).text(format_args!("#{bits}"));
        form.lsl(position, 16 * part)
    }

    /// Memory at a non-negative offset of 12 bits in units of `unit` bytes.
    fn memory(mut self, base: X, bytes: u32, unit: u32) -> Self {
        self.word |= self.scaled(bytes, unit, 0xfff) << 10 | field_rn(base);
        self.text(format_args!("[{}, #{bytes}]", Address(base)))
    }

    /// Memory at a register's distance from the base.
    fn indexed(mut self, base: X, index: X) -> Self {
        self.word |= u32::from(index.0 & 31) << 16 | field_rn(base);
        self.text(format_args!("[{}, {index}]", Address(base)))
    }

    /// Two vectors in memory. The offset of a pair has seven bits with sign; only non-negative ones are used.
    fn quads(self, first: V, second: V, base: X, bytes: u32) -> Self {
        let mut form = self.rd(Quad(first)).ra(Quad(second));
        form.word |= form.scaled(bytes, 16, 0x3f) << 15 | field_rn(base);
        form.text(format_args!("[{}, #{bytes}]", Address(base)))
    }

    /// The stack below its pointer, which moves down by `bytes` first.
    fn push(mut self, bytes: u32) -> Self {
        // The offset is negative: two's complement in seven bits.
        let distance = 0x80_u32.wrapping_sub(self.scaled(bytes, 8, 0x40)) & 0x7f;
        self.word |= distance << 15 | field_rn(X::SP);
        self.text(format_args!("[sp, #-{bytes}]!"))
    }

    /// The stack at its pointer, which moves up by `bytes` afterwards.
    fn pop(mut self, bytes: u32) -> Self {
        self.word |= self.scaled(bytes, 8, 0x3f) << 15 | field_rn(X::SP);
        self.text(format_args!("[sp], #{bytes}"))
    }
}

/// Field of the base register.
fn field_rn(base: X) -> u32 {
    u32::from(base.0 & 31) << 5
}

/// A register, by the name that the text has for the used part of it.
#[derive(Clone, Copy)]
enum Operand {
    /// A general register; number 31 is the zero register.
    General(X),
    /// A general register; number 31 is the stack pointer.
    Address(X),
    /// The lower 32 bits of a general register.
    Word(X),
    /// All 128 bits of a vector register.
    Quad(V),
    /// The double in the lower half of a vector register.
    Double(V),
    /// Both doubles of a vector register.
    Doubles(V),
    /// The four words of a vector register.
    Words(V),
}

impl Operand {
    const fn number(self) -> u8 {
        match self {
            General(X(number)) | Address(X(number)) | Word(X(number)) | Quad(V(number))
            | Double(V(number)) | Doubles(V(number)) | Words(V(number)) => number,
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address(X::SP) => out.write_str("sp"),
            General(register) | Address(register) => write!(out, "{register}"),
            Word(X::ZERO) => out.write_str("wzr"),
            Word(X(number)) => write!(out, "w{number}"),
            Quad(V(number)) => write!(out, "q{number}"),
            Double(V(number)) => write!(out, "d{number}"),
            Doubles(V(number)) => write!(out, "v{number}.2d"),
            Words(V(number)) => write!(out, "v{number}.4s"),
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
        out.write_str(&self.form().text)
    }
}
