//! The body of a loop as code that can be executed apart from its program, with its memory operands moved.

use std::ops::Range;

use iced_x86::{
    Code, ConditionCode, CpuidFeature, EncodingKind, FlowControl, Instruction,
    InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits,
};

use super::function::{index_of, is_prefetch};
use crate::Gpr;
use crate::code::Function;
use crate::flow::{self, Access, Addressing, Direction};
use crate::op_access::writes;

/// Most instructions of a body.
const MAX_INSTRUCTIONS: usize = 128;
/// Most buffers. With more, they would not fit a first cache of 32 KiB.
const MAX_BUFFERS: usize = 8;
/// Bytes of all buffers that the iterations of a round touch.
const TOUCHED_BYTES: i64 = 16 << 10;
/// Most bytes of one buffer that a round touches.
const MAX_TOUCHED_BYTES: i64 = 8 << 10;
/// Operands with the same registers that lie closer than this are in one buffer, as in the program.
const SAME_BUFFER_BYTES: i64 = 512;
/// Iterations of a round, if the buffers permit it: of a loop that ends as in the program, where half of them are still too
/// many for the processor to foresee the end, …
const MAX_ITERATIONS: i64 = 512;
/// … and of one that is written out.
const MAX_WRITTEN_OUT: i64 = 64;
/// With fewer, the time that a round takes to begin and end is too large a part of it.
const MIN_ITERATIONS: i64 = 16;

/// A register, and how often the body has set it anew before the instruction that uses it.
type Value = (Register, usize);

/// A memory operand's registers: base (none where it is constant), index and scale.
type Registers = (Value, Value, u32);

/// A buffer for memory operands that have the same registers.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    registers: Registers,
    /// Lowest and highest displacement in the program.
    lowest: i64,
    highest: i64,
}

/// A memory operand of the body.
#[derive(Clone, Copy, Debug)]
struct Operand {
    buffer: usize,
    displacement: i64,
    bytes: u32,
    direction: Direction,
}

/// The body of a loop that is one stretch of code and only computes.
///
/// Each memory operand is to be moved to a small buffer. Operands that have the same registers and lie close
/// together share one, so that stores are forwarded to loads as in the program.
#[derive(Debug)]
pub struct LoopBody {
    /// Its instructions, each with its memory operand if it has one; the last one is the jump back.
    instructions: Vec<(Instruction, Option<Operand>)>,
    buffers: Vec<Buffer>,
    /// Registers in the order in which instructions set them to something else than themselves and a constant.
    set_anew: Vec<Register>,
    iterations: usize,
    vectors: EncodingKind,
}

impl LoopBody {
    /// The loop that is entered at `entry`; `None` if it has another form, or cannot be executed apart from its
    /// program.
    pub(super) fn of(function: &Function, entry: u64) -> Option<Self> {
        let from =
            |start: u64| Self::until_branch(&function.instructions[index_of(function, start)?..]);
        let first = from(entry)?;
        let back_to = first.jump().near_branch_target();
        // A compiler that does not optimise puts the condition last, and enters the loop there.
        let mut body = if back_to == entry {
            first
        } else {
            from(back_to)?
        };
        let mut addresses = body.instructions.iter().map(|(it, _)| it.ip());
        let is_loop =
            body.jump().near_branch_target() == back_to && addresses.any(|it| it == entry);
        (is_loop && body.fits()).then_some(body)
    }

    /// The instructions up to the first conditional branch.
    fn until_branch(code: &[Instruction]) -> Option<Self> {
        let mut body = Self {
            instructions: Vec::new(),
            buffers: Vec::new(),
            set_anew: Vec::new(),
            iterations: 0,
            vectors: EncodingKind::Legacy,
        };
        let mut info = InstructionInfoFactory::new();
        let mut expected = code.first()?.ip();
        for instruction in code.iter().take(MAX_INSTRUCTIONS) {
            if instruction.ip() != expected {
                return None;
            }
            expected = instruction.next_ip();
            // Not `loop` or `jrcxz`, which depend on a register.
            if instruction.is_jcc_short_or_near() {
                body.instructions.push((*instruction, None));
                return Some(body);
            }
            body.add(instruction, &mut info)?;
        }
        None
    }

    /// Adds an instruction that is no branch; `None` if it must not be executed here.
    fn add(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        if !only_computes(instruction) {
            return None;
        }
        let info = info.info(instruction);
        let is_stack = |register: Register| register.full_register() == Register::RSP;
        if info.used_registers().iter().any(|used| {
            (is_stack(used.register()) && writes(used.access()))
                || used.register().is_segment_register()
        }) {
            return None;
        }
        let operand = match (flow::access(instruction), info.used_memory()) {
            (None, []) => None,
            (Some(access), [_]) => Some(self.operand(instruction, access)?),
            // An implicit one, or two.
            _ => return None,
        };
        match instruction.encoding() {
            EncodingKind::Legacy => {}
            EncodingKind::VEX if self.vectors == EncodingKind::EVEX => {}
            encoding @ (EncodingKind::VEX | EncodingKind::EVEX) => self.vectors = encoding,
            _ => return None,
        }
        for used in info.used_registers() {
            let register = used.register().full_register();
            if writes(used.access()) && added(instruction, register).is_none() {
                self.set_anew.push(register);
            }
        }
        self.instructions.push((*instruction, operand));
        Some(())
    }

    fn operand(&mut self, instruction: &Instruction, access: Access) -> Option<Operand> {
        let is_plain = access.addressing == Addressing::Operand && access.segment.is_none();
        if !is_plain || access.bytes == 0 {
            return None;
        }
        let (base, index, scale) = registers_of(instruction)?;
        let value = |register: Register| {
            let earlier = self.set_anew.iter().filter(|it| **it == register);
            (register, earlier.count())
        };
        let registers = (value(base), value(index), scale);
        let displacement = instruction.memory_displacement64().cast_signed();
        let is_near = |buffer: &Buffer| {
            buffer.registers == registers
                && displacement > buffer.highest.saturating_sub(SAME_BUFFER_BYTES)
                && displacement < buffer.lowest.saturating_add(SAME_BUFFER_BYTES)
        };
        let known = self.buffers.iter().position(is_near);
        let buffer = known.unwrap_or(self.buffers.len());
        if known.is_none() {
            self.buffers.push(Buffer {
                registers,
                lowest: displacement,
                highest: displacement,
            });
        }
        let of = &mut self.buffers[buffer];
        of.lowest = of.lowest.min(displacement);
        of.highest = of.highest.max(displacement);
        Some(Operand {
            buffer,
            displacement,
            bytes: access.bytes,
            direction: access.direction,
        })
    }

    /// Sets the number of iterations; false if they would not stay within the first cache, or not do as in the
    /// program.
    fn fits(&mut self) -> bool {
        if self.buffers.is_empty() || self.buffers.len() > MAX_BUFFERS {
            return false;
        }
        let of_each = MAX_TOUCHED_BYTES.min(TOUCHED_BYTES / self.buffers.len() as i64);
        let most = match self.ends_after(1) {
            Some(_) => MAX_ITERATIONS,
            None => MAX_WRITTEN_OUT,
        };
        let mut iterations = most;
        for (number, buffer) in self.buffers.iter().enumerate() {
            let ((base, _), (index, _), scale) = buffer.registers;
            let steps = self.step(base).zip(self.step(index));
            let mut directions = self.operands().filter(|it| it.buffer == number);
            let step = match steps {
                Some((base, index)) => (base + index * i64::from(scale)).abs(),
                // Where it goes is computed from zeros: it stays. If it is stored to and read, each iteration would
                // wait for the one before, as in the program it may not.
                None if directions.clone().any(|it| it.direction.loads())
                    && directions.any(|it| it.direction.stores()) =>
                {
                    return false;
                }
                None => 0,
            };
            iterations = iterations.min(of_each.checked_div(step).unwrap_or(most));
        }
        self.iterations = iterations.max(0) as usize;
        iterations >= MIN_ITERATIONS
    }

    /// Bytes by which a register advances in an iteration; `None` if it is not by a constant.
    fn step(&self, register: Register) -> Option<i64> {
        if self.set_anew.contains(&register) {
            return None;
        }
        let steps = self.instructions.iter();
        let mut steps = steps.filter_map(|(instruction, _)| added(instruction, register));
        steps.try_fold(0_i64, i64::checked_add)
    }

    fn operands(&self) -> impl Iterator<Item = &Operand> + Clone {
        self.instructions.iter().filter_map(|(_, it)| it.as_ref())
    }

    /// The jump back.
    fn jump(&self) -> Instruction {
        self.instructions
            .last()
            .map_or_else(Instruction::default, |(it, _)| *it)
    }

    /// Number of buffers for its memory operands.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// Number of iterations that touch no more than 8 KiB of each buffer, and 16 KiB of all.
    #[must_use]
    pub const fn iterations(&self) -> usize {
        self.iterations
    }

    /// Addresses of its code in the program.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        let start = self.instructions.first().map_or(0, |(it, _)| it.ip());
        start..self.jump().next_ip().max(start)
    }

    /// How its vector instructions are encoded: the latest of legacy, VEX and EVEX that occurs.
    #[must_use]
    pub const fn vectors(&self) -> EncodingKind {
        self.vectors
    }

    /// The instructions of [`Self::moved`] as a loop that ends after `iterations` iterations or one more. The caller sets
    /// all registers to zero before it. Where a register decides when the loop ends, the first instruction sets that
    /// register. `None` if it is not known what ends the loop.
    ///
    /// # Panics
    /// With fewer starts than [`Self::buffers`].
    #[must_use]
    pub fn looping(
        &self,
        starts: &[u32],
        number: u64,
        iterations: usize,
    ) -> Option<Vec<Instruction>> {
        let end = self.ends_after(i32::try_from(iterations).ok()?)?;
        let mut all = Vec::new();
        if let End::Begins(register, value) = end {
            let mut begins = Instruction::with2(Code::Mov_rm64_imm32, register, value).ok()?;
            begins.set_ip(number);
            all.push(begins);
        }
        let first = number + all.len() as u64;
        all.extend(self.moved(starts, first));
        all.last_mut()?.set_near_branch64(first);
        if let End::Compared(mut compares) = end {
            let condition = all.len().checked_sub(2)?;
            compares.set_ip(all[condition].ip());
            all[condition] = compares;
        }
        Some(all)
    }

    /// What makes the loop end after so many iterations: a comparison of a register that advances by a constant with one
    /// that does not change, or with a constant, or that register itself, which the jump compares with zero.
    fn ends_after(&self, iterations: i32) -> Option<End> {
        let [.., (condition, operand), (jump, _)] = &self.instructions[..] else {
            return None;
        };
        if operand.is_some() || condition.op_count() == 0 {
            return None;
        }
        let register = |at: u32| {
            let is_register =
                at < condition.op_count() && condition.op_kind(at) == OpKind::Register;
            let register = is_register.then(|| condition.op_register(at))?;
            let is_whole = register.is_gpr64() || register.is_gpr32();
            let register = register.full_register();
            (is_whole && register != Register::RSP).then_some(register)
        };
        let steps = |register: Register| self.step(register).filter(|step| *step != 0);
        let end = |step: i64| i32::try_from(step.checked_mul(i64::from(iterations))?).ok();
        let code = jump.condition_code();
        let first = register(0)?;
        if condition.mnemonic() != Mnemonic::Cmp {
            // It counts to zero.
            let step = steps(first).filter(|step| added(condition, first) == Some(*step))?;
            let counts = code == ConditionCode::ne && !self.is_address(first);
            return counts.then_some(End::Begins(first, end(-step)?));
        }
        let wide = condition.op_register(0).is_gpr64();
        if let Some(second) = register(1) {
            let (advances, stays, is_swapped) = match (steps(first), steps(second)) {
                (Some(step), None) => (step, second, false),
                (None, Some(step)) => (step, first, true),
                _ => return None,
            };
            let is_constant = self.step(stays) == Some(0) && !self.is_address(stays);
            let ends = goes_on_until(code, advances, is_swapped);
            return (is_constant && ends).then_some(End::Begins(stays, end(advances)?));
        }
        let step = steps(first).filter(|step| goes_on_until(code, *step, false))?;
        let (compare, register) = match wide {
            true => (Code::Cmp_rm64_imm32, first),
            false => (Code::Cmp_rm32_imm32, condition.op_register(0)),
        };
        let with = Instruction::with2(compare, register, end(step)?).ok()?;
        let is_constant = condition.try_immediate(1).is_ok();
        is_constant.then_some(End::Compared(with))
    }

    /// True if memory operands have this register.
    fn is_address(&self, register: Register) -> bool {
        let of = |buffer: &Buffer| [buffer.registers.0.0, buffer.registers.1.0];
        self.buffers
            .iter()
            .any(|buffer| of(buffer).contains(&register))
    }

    /// The body with its operands in buffers that begin at `starts`, and a jump to the next iteration in place of
    /// the jump back. The instructions get numbers from `number` on in place of addresses.
    ///
    /// # Panics
    /// With fewer starts than [`Self::buffers`].
    #[must_use]
    pub fn moved(&self, starts: &[u32], number: u64) -> Vec<Instruction> {
        let numbered = (number..).zip(&self.instructions);
        let moved = numbered.map(|(number, (instruction, operand))| {
            let mut moved = *instruction;
            moved.set_ip(number);
            if let Some(operand) = operand {
                if matches!(moved.memory_base(), Register::RIP | Register::RSP) {
                    moved.set_memory_base(Register::None);
                }
                moved.set_memory_displ_size(8);
                moved.set_memory_displacement64(self.place(operand, starts));
            } else if moved.flow_control() == FlowControl::ConditionalBranch {
                moved.set_near_branch64(number + 1);
            } else if moved.is_ip_rel_memory_operand() {
                // An address that is only computed.
                moved.set_memory_base(Register::None);
                moved.set_memory_displ_size(8);
                moved.set_memory_displacement64(0);
            }
            moved
        });
        moved.collect()
    }

    fn place(&self, operand: &Operand, starts: &[u32]) -> u64 {
        let offset = operand.displacement - self.buffers[operand.buffer].lowest;
        u64::from(starts[operand.buffer]) + offset.cast_unsigned()
    }

    /// Addresses of the words that the first iteration stores to: with zeros there, each round begins alike.
    ///
    /// # Panics
    /// With fewer starts than [`Self::buffers`].
    #[must_use]
    pub fn stored_words(&self, starts: &[u32]) -> Vec<u64> {
        let written = self.operands().filter(|it| it.direction.stores());
        let words = written.flat_map(|operand| {
            let place = self.place(operand, starts);
            (0..u64::from(operand.bytes.div_ceil(8))).map(move |word| place + 8 * word)
        });
        words.collect()
    }
}

/// What ends a loop after a number of iterations.
enum End {
    /// This register has this value at first.
    Begins(Register, i32),
    /// The comparison is this one.
    Compared(Instruction),
}

/// True if a loop with a jump back of this condition goes on while a register that advances by `step` from zero has not
/// reached another one, and ends then. `is_swapped`: the register that advances is the second one of the comparison.
fn goes_on_until(condition: ConditionCode, step: i64, is_swapped: bool) -> bool {
    let less = (step > 0) != is_swapped;
    match condition {
        ConditionCode::ne => true,
        ConditionCode::l | ConditionCode::le => less,
        ConditionCode::g | ConditionCode::ge => !less,
        // Below zero, unsigned values wrap.
        ConditionCode::b | ConditionCode::be => less && step > 0,
        ConditionCode::a | ConditionCode::ae => !less && step > 0,
        _ => false,
    }
}

/// The registers of an instruction's memory operand; `None` if it has vectors or halves of registers.
fn registers_of(instruction: &Instruction) -> Option<(Register, Register, u32)> {
    let base = match instruction.memory_base() {
        Register::RIP | Register::RSP => Register::None,
        base => base,
    };
    let index = instruction.memory_index();
    let is_whole = |register: Register| register == Register::None || register.is_gpr64();
    (is_whole(base) && is_whole(index)).then_some((base, index, instruction.memory_index_scale()))
}

/// What an instruction adds to a register; `None` if that is no constant.
fn added(instruction: &Instruction, register: Register) -> Option<i64> {
    let added = flow::addition(instruction)?;
    (Gpr::of(register) == Some(added.register)).then_some(added.by)
}

/// Extensions of the instruction set whose instructions only compute.
const COMPUTING: [CpuidFeature; 42] = [
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL386_ONLY,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::MULTIBYTENOP,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::AVX_VNNI,
    CpuidFeature::AVX512F,
    CpuidFeature::AVX512VL,
    CpuidFeature::AVX512BW,
    CpuidFeature::AVX512CD,
    CpuidFeature::AVX512DQ,
    CpuidFeature::AVX512_BITALG,
    CpuidFeature::AVX512_IFMA,
    CpuidFeature::AVX512_VBMI,
    CpuidFeature::AVX512_VBMI2,
    CpuidFeature::AVX512_VNNI,
    CpuidFeature::AVX512_VPOPCNTDQ,
    CpuidFeature::ADX,
    CpuidFeature::AES,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::GFNI,
    CpuidFeature::LZCNT,
    CpuidFeature::MOVBE,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::POPCNT,
    CpuidFeature::SHA,
    CpuidFeature::VAES,
];

/// Instructions of them that are refused: their time depends on values or on addresses that are not moved, they pass
/// the caches by, or they change how later ones behave.
const REFUSED: [Mnemonic; 30] = [
    Mnemonic::Div,
    Mnemonic::Idiv,
    Mnemonic::Divpd,
    Mnemonic::Divps,
    Mnemonic::Divsd,
    Mnemonic::Divss,
    Mnemonic::Sqrtpd,
    Mnemonic::Sqrtps,
    Mnemonic::Sqrtsd,
    Mnemonic::Sqrtss,
    Mnemonic::Vdivpd,
    Mnemonic::Vdivps,
    Mnemonic::Vdivsd,
    Mnemonic::Vdivss,
    Mnemonic::Vsqrtpd,
    Mnemonic::Vsqrtps,
    Mnemonic::Vsqrtsd,
    Mnemonic::Vsqrtss,
    Mnemonic::Movnti,
    Mnemonic::Movntdq,
    Mnemonic::Movntpd,
    Mnemonic::Movntps,
    Mnemonic::Vmovntdq,
    Mnemonic::Vmovntpd,
    Mnemonic::Vmovntps,
    Mnemonic::Maskmovdqu,
    Mnemonic::Ldmxcsr,
    Mnemonic::Vldmxcsr,
    Mnemonic::In,
    Mnemonic::Out,
];

/// True for instructions that only compute, in a time that does not depend on values.
fn only_computes(instruction: &Instruction) -> bool {
    let changed_flags = instruction.rflags_modified();
    let is_exchange =
        instruction.mnemonic() == Mnemonic::Xchg && flow::access(instruction).is_some();
    instruction.code() != Code::INVALID
        && instruction.flow_control() == FlowControl::Next
        && instruction
            .cpuid_features()
            .iter()
            .all(|feature| COMPUTING.contains(feature))
        && !REFUSED.contains(&instruction.mnemonic())
        && !is_prefetch(instruction)
        && !instruction.is_privileged()
        && !instruction.is_stack_instruction()
        && !instruction.is_string_instruction()
        && !instruction.is_save_restore_instruction()
        && !instruction.has_lock_prefix()
        // It locks the bus without a prefix.
        && !is_exchange
        && changed_flags & (RflagsBits::DF | RflagsBits::IF) == 0
}
