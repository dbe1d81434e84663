//! Emission for aarch64, by this crate's own encoder.
//!
//! A64 instructions are words of 32 bits, and kernels need some forty forms of them. [`Instruction`] is one
//! such form with its operands. [`Instruction::encode`] gives the word; `Display` gives the text that an
//! assembler turns into the same word, which the tests compare. Nothing here depends on the machine, so
//! kernels can be encoded and inspected everywhere and executed on aarch64.

mod instruction;
#[cfg(test)]
mod tests;

pub use instruction::{Barrier, Condition, Instruction, V, X};

use crate::{CodeBuffer, Error, OwnedCode};

/// A position in the code, as a branch target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A function under construction.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
}

impl Assembler {
    /// An empty function.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The instructions so far.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Appends an instruction.
    pub fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    /// A label at the next instruction.
    #[must_use]
    pub const fn here(&self) -> Label {
        Label(self.instructions.len())
    }

    /// Appends a conditional branch back to `label`.
    pub fn branch_if(&mut self, condition: Condition, label: Label) {
        let words = label.0 as i64 - self.instructions.len() as i64;
        self.push(Instruction::BranchIf { condition, words });
    }

    /// Loads a constant into a register with as few 16-bit moves as possible.
    pub fn constant(&mut self, to: X, value: u64) {
        let mut written = false;
        for part in 0..4_u8 {
            let bits = (value >> (16 * part)) as u16;
            if bits == 0 {
                continue;
            }
            self.push(if written {
                Instruction::MoveKeep { to, bits, part }
            } else {
                Instruction::MoveZero { to, bits, part }
            });
            written = true;
        }
        if !written {
            let (bits, part) = (0, 0);
            self.push(Instruction::MoveZero { to, bits, part });
        }
    }

    /// Appends `to = from + bytes`, for `bytes` below 16 MiB.
    pub fn add_bytes(&mut self, to: X, from: X, bytes: u32) {
        let (low, high) = (bytes & 0xfff, bytes >> 12);
        if high > 0 {
            let (immediate, shifted) = (high, true);
            self.push(Instruction::AddImmediate {
                to,
                from,
                immediate,
                shifted,
            });
        }
        if low > 0 || high == 0 {
            self.push(Instruction::AddImmediate {
                to,
                from: if high > 0 { to } else { from },
                immediate: low,
                shifted: false,
            });
        }
    }

    /// The function's machine code, little-endian.
    ///
    /// # Errors
    /// [`Error::Assemble`] if an operand does not fit its instruction.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(4 * self.instructions.len());
        for instruction in &self.instructions {
            bytes.extend(instruction.encode()?.to_le_bytes());
        }
        Ok(bytes)
    }
}

/// Assembles the instructions that `emit` writes into a new buffer.
///
/// # Errors
/// [`Error::Assemble`] if an operand does not fit its instruction, otherwise the errors of
/// [`CodeBuffer::load`].
pub fn assemble_owned(emit: impl FnOnce(&mut Assembler)) -> Result<OwnedCode, Error> {
    let mut assembler = Assembler::new();
    emit(&mut assembler);
    let code = assembler.encode()?;
    OwnedCode::new(CodeBuffer::new(code.len())?, &code)
}
