//! Emission for x86-64 by the assembler of `iced-x86`.

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;

use crate::{Code, CodeBuffer, Error, OwnedCode};

impl From<IcedError> for Error {
    fn from(error: IcedError) -> Self {
        Self::Assemble(error.to_string())
    }
}

/// Assembles the instructions that `emit` writes and loads them into `buffer`.
///
/// # Errors
/// [`Error::Assemble`] if an instruction cannot be encoded, otherwise the errors of [`CodeBuffer::load`].
pub fn assemble(
    buffer: &mut CodeBuffer,
    emit: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<Code<'_>, Error> {
    let mut assembler = CodeAssembler::new(64)?;
    emit(&mut assembler)?;
    let code = assembler.assemble(buffer.address())?;
    buffer.load(&code)
}

/// Assembles the instructions that `emit` writes into a new buffer.
///
/// # Errors
/// As [`assemble`].
pub fn assemble_owned(
    emit: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<OwnedCode, Error> {
    let mut assembler = CodeAssembler::new(64)?;
    emit(&mut assembler)?;
    // Branches have the same length at every address, so the size at address 0 is the final size.
    let size = assembler.assemble(0)?.len();
    let buffer = CodeBuffer::new(size)?;
    let code = assembler.assemble(buffer.address())?;
    OwnedCode::new(buffer, &code)
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::{rax, rdi, rsi};

    use super::*;

    #[test]
    fn an_emitted_loop_adds_up() {
        let mut buffer = CodeBuffer::new(256).unwrap();
        let code = assemble(&mut buffer, |a| {
            let mut top = a.create_label();
            a.mov(rax, 0_u64)?;
            a.set_label(&mut top)?;
            a.add(rax, rdi)?;
            a.dec(rsi)?;
            a.jnz(top)?;
            a.ret()
        })
        .unwrap();
        // SAFETY: the code above is a function of two integers that returns one.
        let sum: extern "sysv64" fn(u64, u64) -> u64 =
            unsafe { std::mem::transmute(code.entry().as_ptr()) };
        assert_eq!(sum(3, 5), 15);
    }

    #[test]
    fn code_that_cannot_be_assembled_is_an_error() {
        let mut buffer = CodeBuffer::new(64).unwrap();
        let result = assemble(&mut buffer, |a| {
            let mut label = a.create_label();
            a.set_label(&mut label)?;
            a.set_label(&mut label)
        });
        assert!(matches!(result, Err(Error::Assemble(_))));
    }
}
