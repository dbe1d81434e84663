//! Random instructions of every encoding.

use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, MemoryOperand, Mnemonic,
    OpCodeOperandKind as Kind, OpKind, Register,
};

use crate::machine::{Random, typical_value};

/// How operands are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    /// Any registers.
    Any,
    /// rsp and r15 are left alone; memory is addressed through r15 with a displacement.
    Reserved,
}

/// Instructions that cannot run in a test: they leave the program, its thread state or this code, wait, or
/// give different results each time.
pub(crate) fn cannot_run(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_privileged()
        || instruction.flow_control() != iced_x86::FlowControl::Next
        || matches!(
            instruction.mnemonic(),
            M::Syscall
                | M::Wrfsbase
                | M::Wrgsbase
                | M::Wrpkru
                | M::Xrstor
                | M::Xrstor64
                | M::Monitor
                | M::Mwait
                | M::Monitorx
                | M::Mwaitx
                | M::Umonitor
                | M::Umwait
                | M::Tpause
                | M::Lfs
                | M::Lgs
                | M::Lss
                | M::In
                | M::Out
                | M::Insb
                | M::Insw
                | M::Insd
                | M::Outsb
                | M::Outsw
                | M::Outsd
                | M::Getsec
                | M::Cpuid
        )
        || (0..instruction.op_count()).any(|operand| {
            instruction.op_kind(operand) == OpKind::Register
                && (instruction.op_register(operand).is_segment_register()
                    || instruction.op_register(operand).is_cr()
                    || instruction.op_register(operand).is_dr()
                    || instruction.op_register(operand).is_tr()
                    || instruction.op_register(operand).is_tmm())
        })
        || matches!(
            instruction.code(),
            Code::Pushw_FS | Code::Pushq_FS | Code::Pushw_GS | Code::Pushq_GS
        )
}

/// Instructions whose results do not depend on registers and memory alone.
pub(crate) fn answers_differently(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Rdtsc | M::Rdtscp | M::Rdrand | M::Rdseed | M::Rdpru | M::Rdpmc | M::Rdpid
    )
}

/// A random instruction of `code`, decoded from its bytes. `None` if the encoding does not exist in 64-bit
/// mode or its operands cannot be chosen.
pub(crate) fn instruction(
    code: Code,
    operands: Operands,
    random: &mut Random,
) -> Option<Instruction> {
    let op_code = code.op_code();
    if !op_code.is_instruction() || !op_code.mode64() {
        return None;
    }
    let mut instruction = Instruction::default();
    instruction.set_code(code);
    let mut memory = None;
    for operand in 0..op_code.op_count() {
        let kind = op_code.op_kind(operand);
        set_operand(
            &mut instruction,
            operand,
            kind,
            operands,
            &mut memory,
            random,
        )?;
    }
    decorate(&mut instruction, random);
    let mut encoder = Encoder::new(64);
    encoder.encode(&instruction, 0x1000).ok()?;
    let bytes = encoder.take_buffer();
    let mut decoder = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE);
    let decoded = decoder.decode();
    (decoded.code() == code && decoded.len() == bytes.len()).then_some(decoded)
}

/// Prefixes, masks and broadcasts.
fn decorate(instruction: &mut Instruction, random: &mut Random) {
    let op_code = instruction.code().op_code();
    if op_code.can_use_op_mask_register()
        && (op_code.require_op_mask_register() || !random.once_in(3))
    {
        instruction.set_op_mask(Register::K1 + random.below(7) as u32);
        instruction.set_zeroing_masking(op_code.can_use_zeroing_masking() && random.once_in(2));
    }
    let in_memory =
        (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    if in_memory && op_code.can_broadcast() && random.once_in(2) {
        instruction.set_is_broadcast(true);
    }
    if !in_memory && op_code.can_suppress_all_exceptions() && random.once_in(3) {
        instruction.set_suppress_all_exceptions(true);
    }
    if instruction.is_string_instruction() && random.once_in(2) {
        if op_code.can_use_rep_prefix() {
            instruction.set_has_rep_prefix(true);
        } else if op_code.can_use_repne_prefix() {
            instruction.set_has_repne_prefix(true);
        }
    }
    if in_memory && op_code.can_use_lock_prefix() && random.once_in(4) {
        instruction.set_has_lock_prefix(true);
    }
}

fn gpr(first: Register, operands: Operands, random: &mut Random) -> Register {
    loop {
        let number = random.below(16) as u32;
        if operands == Operands::Reserved && matches!(number, 4 | 15) {
            continue;
        }
        return first + number;
    }
}

fn byte_register(operands: Operands, random: &mut Random) -> Register {
    // al cl dl bl, spl bpl sil dil, r8l…r15l, and ah ch dh bh.
    loop {
        let register = *random.pick(&[
            Register::AL,
            Register::CL,
            Register::DL,
            Register::BL,
            Register::AH,
            Register::CH,
            Register::DH,
            Register::BH,
            Register::SPL,
            Register::BPL,
            Register::SIL,
            Register::DIL,
            Register::R8L,
            Register::R9L,
            Register::R13L,
            Register::R15L,
        ]);
        if operands == Operands::Reserved && matches!(register, Register::SPL | Register::R15L) {
            continue;
        }
        return register;
    }
}

fn vector(first: Register, code: Code, random: &mut Random) -> Register {
    let count = if code.encoding() == iced_x86::EncodingKind::EVEX
        && crate::machine::Width::of_machine() == crate::machine::Width::Zmm
    {
        32
    } else {
        16
    };
    first + random.below(count) as u32
}

fn memory_operand(
    vsib: Option<Register>,
    operands: Operands,
    random: &mut Random,
) -> MemoryOperand {
    let displacement = match random.below(4) {
        0 => random.below(256) as i64 - 128,
        _ => random.below(16) as i64 * 64 - 512,
    };
    if operands == Operands::Reserved {
        return match vsib {
            Some(index) => MemoryOperand::with_base_index_scale_displ_size(
                Register::R15,
                index,
                1,
                displacement,
                4,
            ),
            None => MemoryOperand::with_base_displ_size(Register::R15, displacement, 4),
        };
    }
    let base = gpr(Register::RAX, operands, random);
    let index = vsib.unwrap_or_else(|| match random.below(3) {
        0 => Register::None,
        _ => gpr(Register::RAX, operands, random),
    });
    if index == Register::RSP || index == base {
        return MemoryOperand::with_base_displ_size(base, displacement, 4);
    }
    let scale = 1 << random.below(4);
    MemoryOperand::with_base_index_scale_displ_size(base, index, scale, displacement, 4)
}

fn set_operand(
    instruction: &mut Instruction,
    operand: u32,
    kind: Kind,
    operands: Operands,
    memory: &mut Option<MemoryOperand>,
    random: &mut Random,
) -> Option<()> {
    let code = instruction.code();
    let register = match kind {
        Kind::mem
        | Kind::mem_mib
        | Kind::mem_vsib32x
        | Kind::mem_vsib64x
        | Kind::mem_vsib32y
        | Kind::mem_vsib64y
        | Kind::mem_vsib32z
        | Kind::mem_vsib64z => {
            let vsib = match kind {
                Kind::mem_vsib32x | Kind::mem_vsib64x => Some(Register::XMM0),
                Kind::mem_vsib32y | Kind::mem_vsib64y => Some(Register::YMM0),
                Kind::mem_vsib32z | Kind::mem_vsib64z => Some(Register::ZMM0),
                _ => None,
            };
            let vsib = vsib.map(|first| vector(first, code, random));
            set_memory(
                instruction,
                operand,
                memory_operand(vsib, operands, random),
                memory,
            );
            return Some(());
        }
        Kind::r8_or_mem
        | Kind::r16_or_mem
        | Kind::r32_or_mem
        | Kind::r64_or_mem
        | Kind::mm_or_mem
        | Kind::xmm_or_mem
        | Kind::ymm_or_mem
        | Kind::zmm_or_mem
        | Kind::k_or_mem => {
            if random.once_in(2) {
                set_memory(
                    instruction,
                    operand,
                    memory_operand(None, operands, random),
                    memory,
                );
                return Some(());
            }
            match kind {
                Kind::r8_or_mem => byte_register(operands, random),
                Kind::r16_or_mem => gpr(Register::AX, operands, random),
                Kind::r32_or_mem => gpr(Register::EAX, operands, random),
                Kind::r64_or_mem => gpr(Register::RAX, operands, random),
                Kind::mm_or_mem => Register::MM0 + random.below(8) as u32,
                Kind::xmm_or_mem => vector(Register::XMM0, code, random),
                Kind::ymm_or_mem => vector(Register::YMM0, code, random),
                Kind::zmm_or_mem => vector(Register::ZMM0, code, random),
                _ => Register::K0 + random.below(8) as u32,
            }
        }
        Kind::r8_reg | Kind::r8_opcode => byte_register(operands, random),
        Kind::r16_reg | Kind::r16_reg_mem | Kind::r16_rm | Kind::r16_opcode => {
            gpr(Register::AX, operands, random)
        }
        Kind::r32_reg | Kind::r32_reg_mem | Kind::r32_rm | Kind::r32_opcode | Kind::r32_vvvv => {
            gpr(Register::EAX, operands, random)
        }
        Kind::r64_reg | Kind::r64_reg_mem | Kind::r64_rm | Kind::r64_opcode | Kind::r64_vvvv => {
            gpr(Register::RAX, operands, random)
        }
        Kind::k_reg | Kind::k_rm | Kind::k_vvvv => Register::K0 + random.below(8) as u32,
        Kind::kp1_reg => Register::K0 + 2 * random.below(4) as u32,
        Kind::mm_reg | Kind::mm_rm => Register::MM0 + random.below(8) as u32,
        Kind::xmm_reg
        | Kind::xmm_rm
        | Kind::xmm_vvvv
        | Kind::xmmp3_vvvv
        | Kind::xmm_is4
        | Kind::xmm_is5 => vector(Register::XMM0, code, random),
        Kind::ymm_reg | Kind::ymm_rm | Kind::ymm_vvvv | Kind::ymm_is4 | Kind::ymm_is5 => {
            vector(Register::YMM0, code, random)
        }
        Kind::zmm_reg | Kind::zmm_rm | Kind::zmm_vvvv | Kind::zmmp3_vvvv => {
            vector(Register::ZMM0, code, random)
        }
        Kind::al => Register::AL,
        Kind::cl => Register::CL,
        Kind::ax => Register::AX,
        Kind::dx => Register::DX,
        Kind::eax => Register::EAX,
        Kind::rax => Register::RAX,
        Kind::st0 => Register::ST0,
        Kind::sti_opcode => Register::ST0 + random.below(8) as u32,
        Kind::imm8
        | Kind::imm8sex16
        | Kind::imm8sex32
        | Kind::imm8sex64
        | Kind::imm16
        | Kind::imm32
        | Kind::imm32sex64
        | Kind::imm64 => {
            set_immediate(instruction, operand, kind, random);
            return Some(());
        }
        Kind::imm8_const_1 => {
            instruction.set_op_kind(operand, OpKind::Immediate8);
            instruction.set_immediate8(1);
            return Some(());
        }
        Kind::imm4_m2z => {
            instruction.set_op_kind(operand, OpKind::Immediate8);
            instruction.set_immediate8(random.below(4) as u8);
            return Some(());
        }
        Kind::seg_rSI | Kind::es_rDI | Kind::seg_rDI if operands == Operands::Any => {
            let place = match kind {
                Kind::seg_rSI => OpKind::MemorySegRSI,
                Kind::es_rDI => OpKind::MemoryESRDI,
                _ => OpKind::MemorySegRDI,
            };
            instruction.set_op_kind(operand, place);
            return Some(());
        }
        Kind::seg_rBX_al if operands == Operands::Any => {
            instruction.set_op_kind(operand, OpKind::Memory);
            instruction.set_memory_base(Register::RBX);
            instruction.set_memory_index(Register::AL);
            return Some(());
        }
        _ => return None,
    };
    instruction.set_op_kind(operand, OpKind::Register);
    instruction.set_op_register(operand, register);
    Some(())
}

fn set_memory(
    instruction: &mut Instruction,
    operand: u32,
    chosen: MemoryOperand,
    memory: &mut Option<MemoryOperand>,
) {
    instruction.set_op_kind(operand, OpKind::Memory);
    instruction.set_memory_base(chosen.base);
    instruction.set_memory_index(chosen.index);
    instruction.set_memory_index_scale(chosen.scale);
    instruction.set_memory_displacement64(chosen.displacement as u64);
    instruction.set_memory_displ_size(chosen.displ_size);
    *memory = Some(chosen);
}

fn set_immediate(instruction: &mut Instruction, operand: u32, kind: Kind, random: &mut Random) {
    let value = if instruction.mnemonic() == Mnemonic::Enter {
        random.below(256)
    } else {
        typical_value(random)
    };
    let (place, value) = match kind {
        Kind::imm8 => (OpKind::Immediate8, u64::from(value as u8)),
        Kind::imm8sex16 => (OpKind::Immediate8to16, value as u8 as i8 as u64),
        Kind::imm8sex32 => (OpKind::Immediate8to32, value as u8 as i8 as u64),
        Kind::imm8sex64 => (OpKind::Immediate8to64, value as u8 as i8 as u64),
        Kind::imm16 => (OpKind::Immediate16, u64::from(value as u16)),
        Kind::imm32 => (OpKind::Immediate32, u64::from(value as u32)),
        Kind::imm32sex64 => (OpKind::Immediate32to64, value as u32 as i32 as u64),
        _ => (OpKind::Immediate64, value),
    };
    // A second immediate (`enter`, `extrq`) has its own field.
    let second = (0..operand).any(|before| {
        matches!(
            instruction.op_kind(before),
            OpKind::Immediate8 | OpKind::Immediate16
        )
    });
    if second {
        instruction.set_op_kind(operand, OpKind::Immediate8_2nd);
        instruction.set_immediate8_2nd(value as u8);
        return;
    }
    instruction.set_op_kind(operand, place);
    match place {
        OpKind::Immediate8 => instruction.set_immediate8(value as u8),
        OpKind::Immediate8to16 => instruction.set_immediate8to16(value as i16),
        OpKind::Immediate8to32 => instruction.set_immediate8to32(value as i32),
        OpKind::Immediate8to64 => instruction.set_immediate8to64(value as i64),
        OpKind::Immediate16 => instruction.set_immediate16(value as u16),
        OpKind::Immediate32 => instruction.set_immediate32(value as u32),
        OpKind::Immediate32to64 => instruction.set_immediate32to64(value as i64),
        _ => instruction.set_immediate64(value),
    }
}
