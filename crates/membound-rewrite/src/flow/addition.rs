//! Additions of a constant to a register: what advances pointers and counts iterations.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::Gpr;

/// An addition of a constant to a general register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The register.
    pub register: Gpr,
    /// What is added to it.
    pub by: i64,
    /// Number of the register's low bits to which it is added, 32 or 64. With 32 the others become zero.
    pub bits: u32,
}

/// The addition that `instruction` makes, if it does nothing else to the register.
#[must_use]
pub fn addition(instruction: &Instruction) -> Option<Addition> {
    let target = instruction.op0_register();
    let is_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
    if !is_register || !(target.is_gpr64() || target.is_gpr32()) {
        return None;
    }
    let constant = || match instruction.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            Some(instruction.immediate(1).cast_signed())
        }
        OpKind::Immediate8to32 | OpKind::Immediate32 => {
            Some(i64::from((instruction.immediate(1) as u32).cast_signed()))
        }
        _ => None,
    };
    let by = match instruction.mnemonic() {
        Mnemonic::Add => constant()?,
        Mnemonic::Sub => constant()?.wrapping_neg(),
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Lea
            if instruction.memory_base() == target
                && instruction.memory_index() == Register::None =>
        {
            instruction.memory_displacement64().cast_signed()
        }
        _ => return None,
    };
    Some(Addition {
        register: Gpr::of(target.full_register())?,
        by,
        bits: if target.is_gpr64() { 64 } else { 32 },
    })
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn of(code: &[u8]) -> Option<Addition> {
        addition(&Decoder::new(64, code, DecoderOptions::NONE).decode())
    }

    #[test]
    fn constants_are_added_by_several_instructions() {
        let of = |code: &[u8]| of(code).map(|it| (it.register.number(), it.by, it.bits));
        assert_eq!(
            of(&[0x48, 0x83, 0xc0, 0x08]),
            Some((0, 8, 64)),
            "add rax, 8"
        );
        assert_eq!(of(&[0x83, 0xe9, 0x05]), Some((1, -5, 32)), "sub ecx, 5");
        assert_eq!(
            of(&[0x81, 0xe9, 0, 0, 0, 0x80]),
            Some((1, 1 << 31, 32)),
            "sub ecx, -2^31"
        );
        assert_eq!(of(&[0x49, 0xff, 0xcf]), Some((15, -1, 64)), "dec r15");
        assert_eq!(
            of(&[0x48, 0x8d, 0x76, 0xfc]),
            Some((6, -4, 64)),
            "lea rsi, [rsi-4]"
        );
        assert_eq!(of(&[0x48, 0x8d, 0x77, 0xfc]), None, "lea rsi, [rdi-4]");
        assert_eq!(of(&[0x48, 0x01, 0xc8]), None, "add rax, rcx");
        assert_eq!(of(&[0x48, 0x83, 0x00, 0x08]), None, "add qword [rax], 8");
        assert_eq!(of(&[0x83, 0xc0, 0x08]), Some((0, 8, 32)), "add eax, 8");
        assert_eq!(of(&[0x66, 0x83, 0xc0, 0x08]), None, "add ax, 8");
        assert_eq!(of(&[0xc3]), None, "ret");
    }
}
