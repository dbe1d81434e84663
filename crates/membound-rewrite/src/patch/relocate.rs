//! How an instruction is executed at another address.
//!
//! Most instructions are copied byte for byte. Parts that depend on the address are re-encoded: the 32-bit
//! displacement of a RIP-relative operand in place, branches in their 32-bit form. An instruction for which
//! neither is possible is refused; nothing is guessed.

use iced_x86::{Code, FlowControl, Instruction, Register};

use super::emit::{Condition, Emitter};

/// How an instruction is written at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The same bytes.
    Verbatim,
    /// The same bytes, except the 4-byte displacement at this offset.
    RipOperand(u8),
    /// A direct jump.
    Jump,
    /// A conditional jump.
    JumpIf(Condition),
    /// `loop`, `loope`, `loopne` or `jrcxz`/`jecxz`, which have no 32-bit form; the field is the offset of
    /// the opcode.
    CountJump(u8),
}

/// How `instruction`, encoded as `bytes`, can be executed elsewhere; `None` if it cannot.
pub(super) fn form(instruction: &Instruction, bytes: &[u8]) -> Option<Form> {
    match instruction.flow_control() {
        FlowControl::Next => {
            if must_stay(instruction.code()) || instruction.is_privileged() {
                return None;
            }
            operand_form(instruction, bytes)
        }
        FlowControl::Return => {
            let near = matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16);
            near.then_some(Form::Verbatim)
        }
        FlowControl::IndirectBranch => {
            if instruction.code() != Code::Jmp_rm64 {
                return None;
            }
            operand_form(instruction, bytes)
        }
        FlowControl::UnconditionalBranch => {
            let near = instruction.is_jmp_short_or_near();
            (near && !narrowed(bytes)).then_some(Form::Jump)
        }
        FlowControl::ConditionalBranch => conditional(instruction, bytes),
        FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::Interrupt
        | FlowControl::XbeginXabortXend
        | FlowControl::Exception => None,
    }
}

/// True if the meaning of the instruction depends on its own address.
fn must_stay(code: Code) -> bool {
    matches!(
        code,
        // Targets of indirect branches, which must stay there.
        Code::Endbr64 | Code::Endbr32 | Code::INVALID
    )
}

fn operand_form(instruction: &Instruction, bytes: &[u8]) -> Option<Form> {
    if !instruction.is_ip_rel_memory_operand() {
        return Some(Form::Verbatim);
    }
    if instruction.memory_base() != Register::RIP {
        return None;
    }
    let field = modrm_offset(bytes)? + 1;
    if bytes.get(field - 1)? & 0xc7 != 5 {
        return None;
    }
    let stored = i32::from_le_bytes(bytes.get(field..field + 4)?.try_into().ok()?);
    let target = instruction.next_ip().wrapping_add_signed(i64::from(stored));
    // The field's offset is right only if the decoder finds the same target.
    (target == instruction.ip_rel_memory_address())
        .then(|| u8::try_from(field).ok().map(Form::RipOperand))
        .flatten()
}

fn conditional(instruction: &Instruction, bytes: &[u8]) -> Option<Form> {
    if narrowed(bytes) {
        return None;
    }
    let at = prefixes(bytes);
    let opcode = *bytes.get(at)?;
    if instruction.is_jcc_short_or_near() {
        let opcode = match opcode {
            0x70..=0x7f => opcode,
            0x0f => *bytes.get(at + 1)?,
            _ => return None,
        };
        return Some(Form::JumpIf(Condition(opcode & 15)));
    }
    (0xe0..=0xe3)
        .contains(&opcode)
        .then(|| u8::try_from(at).ok().map(Form::CountJump))
        .flatten()
}

/// True if a branch has an operand-size prefix, which processors interpret differently.
fn narrowed(bytes: &[u8]) -> bool {
    bytes[..prefixes(bytes)].contains(&0x66)
}

/// Number of prefix bytes, REX included.
fn prefixes(bytes: &[u8]) -> usize {
    let legacy = bytes
        .iter()
        .take_while(|byte| {
            matches!(
                byte,
                0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65
            )
        })
        .count();
    legacy + usize::from(bytes.get(legacy).is_some_and(|byte| byte & 0xf0 == 0x40))
}

/// Offset of the ModRM byte of an instruction that has one.
fn modrm_offset(bytes: &[u8]) -> Option<usize> {
    let at = prefixes(bytes);
    Some(match (*bytes.get(at)?, *bytes.get(at + 1)?) {
        (0xc5, _) => at + 3,
        (0xc4, _) => at + 4,
        (0x62, _) => at + 5,
        // XOP; with a smaller map it is `pop`.
        (0x8f, second) if second & 0x1f >= 8 => at + 4,
        (0x0f, 0x38 | 0x3a) => at + 3,
        (0x0f, _) => at + 2,
        _ => at + 1,
    })
}

/// Writes `instruction`, encoded as `bytes`, so that it does the same at its new address.
pub(super) fn write(form: Form, instruction: &Instruction, bytes: &[u8], out: &mut Emitter) {
    match form {
        Form::Verbatim => out.raw(bytes),
        Form::RipOperand(field) => {
            let field = usize::from(field);
            out.raw(&bytes[..field]);
            let behind = &bytes[field + 4..];
            let trailing = u8::try_from(behind.len()).expect("an instruction has 15 bytes");
            out.module_field(instruction.ip_rel_memory_address(), trailing);
            out.raw(behind);
        }
        Form::Jump => out.jump(instruction.near_branch_target()),
        Form::JumpIf(condition) => out.jump_if(condition, instruction.near_branch_target()),
        Form::CountJump(opcode) => {
            // If taken: to the long jump, past the short jump that skips it.
            out.raw(&bytes[..=usize::from(opcode)]);
            out.raw(&[2, 0xeb, 5]);
            out.jump(instruction.near_branch_target());
        }
    }
}

/// Writes a branch with a later offset of `out` as its target. Returns its field, for [`Emitter::land`];
/// `None` if the instruction is not such a branch.
pub(super) fn write_ahead(form: Form, out: &mut Emitter) -> Option<u32> {
    match form {
        Form::Jump => Some(out.jump_ahead()),
        Form::JumpIf(condition) => Some(out.jump_if_ahead(condition)),
        Form::Verbatim | Form::RipOperand(_) | Form::CountJump(_) => None,
    }
}

/// Writes a branch on the opposite condition, with a later offset of `out` as its target. Returns its field,
/// for [`Emitter::land`]; `None` if the instruction is not a conditional jump.
pub(super) fn write_opposite_ahead(form: Form, out: &mut Emitter) -> Option<u32> {
    match form {
        Form::JumpIf(condition) => Some(out.jump_if_ahead(condition.opposite())),
        _ => None,
    }
}

/// Writes a branch with `place`, an earlier offset of `out`, as its target; false if the instruction is not
/// such a branch.
pub(super) fn write_back(form: Form, place: u32, out: &mut Emitter) -> bool {
    match form {
        Form::Jump => out.jump_back(place),
        Form::JumpIf(condition) => out.jump_if_back(condition, place),
        Form::Verbatim | Form::RipOperand(_) | Form::CountJump(_) => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    use super::*;

    const HERE: u64 = 0x40_1000;

    fn read(bytes: &[u8], at: u64) -> String {
        let mut formatter = IntelFormatter::new();
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let mut text = String::new();
        while decoder.can_decode() {
            if !text.is_empty() {
                text.push_str("; ");
            }
            formatter.format(&decoder.decode(), &mut text);
        }
        text
    }

    /// The code in the trampoline for `bytes`, or `None`.
    fn moved(bytes: &[u8]) -> Option<String> {
        let mut decoder = Decoder::with_ip(64, bytes, HERE, DecoderOptions::NONE);
        let instruction = decoder.decode();
        assert_eq!(instruction.len(), bytes.len(), "{bytes:x?}");
        let mut out = Emitter {
            origin: 0x40_0000,
            ..Emitter::default()
        };
        write(form(&instruction, bytes)?, &instruction, bytes, &mut out);
        Some(read(&out.bytes, 0x40_0000))
    }

    fn check(bytes: &[u8], expected: Option<&str>) {
        assert_eq!(moved(bytes).as_deref(), expected, "{}", read(bytes, HERE));
    }

    #[test]
    fn position_independent_instructions_are_copied() {
        check(&[0x8b, 0x07], Some("mov eax,[rdi]"));
        check(&[0xc3], Some("ret"));
        check(&[0xff, 0x27], Some("jmp qword ptr [rdi]"));
        check(&[0xf3, 0xa4], Some("rep movsb [rdi],[rsi]"));
    }

    #[test]
    fn rip_relative_operands_lead_to_the_same_address() {
        // Legacy, with an immediate, 0F, 0F38, VEX2, VEX3, EVEX.
        check(&[0x8b, 0x05, 0, 1, 0, 0], Some("mov eax,[401106h]"));
        check(
            &[0x48, 0xc7, 0x05, 0, 1, 0, 0, 9, 0, 0, 0],
            Some("mov qword ptr [40110Bh],9"),
        );
        check(
            &[0x66, 0x0f, 0x6f, 0x05, 0, 1, 0, 0],
            Some("movdqa xmm0,[401108h]"),
        );
        check(
            &[0x66, 0x0f, 0x38, 0x00, 0x05, 0, 1, 0, 0],
            Some("pshufb xmm0,[401109h]"),
        );
        check(
            &[0xc5, 0xfd, 0x6f, 0x05, 0, 1, 0, 0],
            Some("vmovdqa ymm0,[401108h]"),
        );
        check(
            &[0xc4, 0xe2, 0x7d, 0x18, 0x05, 0, 1, 0, 0],
            Some("vbroadcastss ymm0,[401109h]"),
        );
        check(
            &[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x05, 0, 1, 0, 0],
            Some("vmovups zmm0,[40110Ah]"),
        );
        check(&[0x67, 0x8b, 0x05, 0, 1, 0, 0], None);
    }

    #[test]
    fn branches_become_their_long_forms() {
        check(&[0xeb, 0x10], Some("jmp 0000000000401012h"));
        check(&[0x74, 0xf0], Some("je 0000000000400FF2h"));
        check(
            &[0x2e, 0x0f, 0x8c, 0, 1, 0, 0],
            Some("jl 0000000000401107h"),
        );
        check(
            &[0xe3, 0x10],
            Some("jrcxz 0000000000400004h; jmp short 0000000000400009h; jmp 0000000000401012h"),
        );
        check(
            &[0x67, 0xe3, 0x10],
            Some("jecxz 0000000000400005h; jmp short 000000000040000Ah; jmp 0000000000401013h"),
        );
    }

    #[test]
    fn instructions_that_cannot_move_are_refused() {
        check(&[0xf3, 0x0f, 0x1e, 0xfa], None);
        check(&[0xe8, 0, 0, 0, 0], None);
        check(&[0xff, 0x17], None);
        check(&[0x0f, 0x05], None);
        check(&[0xc7, 0xf8, 0, 0, 0, 0], None);
        check(&[0x0f, 0x0b], None);
        check(&[0xcc], None);
        check(&[0xff, 0x2f], None);
        check(&[0x48, 0xcf], None);
    }
}
