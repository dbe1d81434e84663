//! The body of a loop, with its memory operands moved.

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction,
    InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

/// Most instructions of a body.
const MAX_INSTRUCTIONS: usize = 128;
/// Most buffers. With more, they would not fit a first cache of 32 KiB.
const MAX_BUFFERS: usize = 8;
/// Bytes of all buffers that the iterations of a round touch.
const TOUCHED_BYTES: i64 = 16 << 10;
/// Most bytes of one buffer that a round touches.
const MAX_TOUCHED_BYTES: i64 = 4 << 10;
/// Operands with the same registers that lie closer than this are in one buffer, as in the program.
const SAME_BUFFER_BYTES: i64 = 512;
/// Iterations of a round, if the buffers permit it.
const MAX_ITERATIONS: i64 = 64;
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
    bytes: i64,
    access: OpAccess,
}

/// The block of a loop that consists of one.
#[derive(Debug)]
pub(super) struct Body {
    /// Its instructions; the last one is the jump back.
    instructions: Vec<Instruction>,
    /// The memory operand of each instruction, if it has one.
    operands: Vec<Option<Operand>>,
    buffers: Vec<Buffer>,
    /// Registers in the order in which instructions set them to something else than themselves and a constant.
    set_anew: Vec<Register>,
    /// Iterations that stay within [`MAX_TOUCHED_BYTES`] of each buffer.
    pub(super) iterations: usize,
    /// How its vector instructions are encoded, the latest kind of them.
    pub(super) vectors: EncodingKind,
}

impl Body {
    /// Decodes the loop that is entered at `entry`; `None` if it has another form or cannot be executed apart from
    /// its program. `code` lies at `address`.
    pub(super) fn decode(code: &[u8], address: u64, entry: u64) -> Option<Self> {
        let from = |start: u64| {
            let offset = usize::try_from(start.checked_sub(address)?).ok()?;
            Self::until_branch(code.get(offset..)?, start)
        };
        let first = from(entry)?;
        let back_to = first.instructions.last()?.near_branch_target();
        // A compiler that does not optimise puts the condition last, and enters the loop there.
        let mut body = if back_to == entry {
            first
        } else {
            from(back_to)?
        };
        let last = body.instructions.last()?;
        let is_loop = last.near_branch_target() == back_to
            && body.instructions.iter().any(|it| it.ip() == entry);
        (is_loop && body.fits()).then_some(body)
    }

    /// Decodes up to the first conditional branch.
    fn until_branch(code: &[u8], address: u64) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        let mut body = Self {
            instructions: Vec::new(),
            operands: Vec::new(),
            buffers: Vec::new(),
            set_anew: Vec::new(),
            iterations: 0,
            vectors: EncodingKind::Legacy,
        };
        let mut info = InstructionInfoFactory::new();
        while decoder.can_decode() && body.instructions.len() < MAX_INSTRUCTIONS {
            let instruction = decoder.decode();
            // Not `loop` or `jrcxz`, which depend on a register.
            if instruction.is_jcc_short_or_near() {
                body.instructions.push(instruction);
                body.operands.push(None);
                return Some(body);
            }
            body.add(instruction, &mut info)?;
        }
        None
    }

    /// Adds an instruction that is no branch; `None` if it must not be executed here.
    fn add(&mut self, instruction: Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        if !only_computes(&instruction) {
            return None;
        }
        let info = info.info(&instruction);
        let is_stack = |register: Register| register.full_register() == Register::RSP;
        if info.used_registers().iter().any(|used| {
            (is_stack(used.register()) && writes(used.access()))
                || used.register().is_segment_register()
        }) {
            return None;
        }
        let operand = match info.used_memory() {
            [] => None,
            [memory] if has_operand(&instruction) => {
                Some(self.operand(&instruction, memory.access())?)
            }
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
            if writes(used.access()) && constant_step(&instruction, register).is_none() {
                self.set_anew.push(register);
            }
        }
        self.instructions.push(instruction);
        self.operands.push(operand);
        Some(())
    }

    fn operand(&mut self, instruction: &Instruction, access: OpAccess) -> Option<Operand> {
        let bytes = instruction.memory_size().size() as i64;
        let (base, index, scale) = registers_of(instruction)?;
        let value = |register: Register| {
            let earlier = self.set_anew.iter().filter(|it| **it == register);
            (register, earlier.count())
        };
        let registers = (value(base), value(index), scale);
        let displacement = instruction.memory_displacement64().cast_signed();
        if bytes == 0 || instruction.memory_size() == MemorySize::Unknown {
            return None;
        }
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
            bytes,
            access,
        })
    }

    /// Sets the number of iterations; false if they would not stay within the first cache, or not do as in the
    /// program.
    fn fits(&mut self) -> bool {
        if self.buffers.is_empty() || self.buffers.len() > MAX_BUFFERS {
            return false;
        }
        let of_each = MAX_TOUCHED_BYTES.min(TOUCHED_BYTES / self.buffers.len() as i64);
        let mut iterations = MAX_ITERATIONS;
        for (number, buffer) in self.buffers.iter().enumerate() {
            let ((base, _), (index, _), scale) = buffer.registers;
            let steps = self.step(base).zip(self.step(index));
            let of_buffer = |access: fn(OpAccess) -> bool| {
                let mut operands = self.operands.iter().flatten();
                operands.any(|operand| operand.buffer == number && access(operand.access))
            };
            let step = match steps {
                Some((base, index)) => (base + index * i64::from(scale)).abs(),
                // Where it goes is computed from zeros: it stays. If it is stored to and read, each iteration would
                // wait for the one before, as in the program it may not.
                None if of_buffer(reads) && of_buffer(writes) => return false,
                None => 0,
            };
            iterations = iterations.min(of_each.checked_div(step).unwrap_or(MAX_ITERATIONS));
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
        let mut steps = steps.filter_map(|instruction| constant_step(instruction, register));
        steps.try_fold(0_i64, i64::checked_add)
    }

    /// Number of buffers.
    pub(super) fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The body with its operands in buffers that begin at `starts`, and a jump to the next iteration in place of
    /// the jump back. The instructions get numbers from `number` on in place of addresses.
    pub(super) fn moved(&self, starts: &[u32], number: u64) -> Vec<Instruction> {
        let both = (number..).zip(self.instructions.iter().zip(&self.operands));
        let moved = both.map(|(number, (instruction, operand))| {
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
    pub(super) fn stored_words(&self, starts: &[u32]) -> Vec<u64> {
        let written = self
            .operands
            .iter()
            .flatten()
            .filter(|operand| writes(operand.access));
        let words = written.flat_map(|operand| {
            let place = self.place(operand, starts);
            (0..operand.bytes.cast_unsigned().div_ceil(8)).map(move |word| place + 8 * word)
        });
        words.collect()
    }
}

fn reads(access: OpAccess) -> bool {
    !matches!(access, OpAccess::Write | OpAccess::CondWrite)
}

fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::Read | OpAccess::CondRead)
}

fn has_operand(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
}

/// The registers of an instruction's memory operand; `None` if it is relative to a segment, or has vectors or
/// halves of registers.
fn registers_of(instruction: &Instruction) -> Option<(Register, Register, u32)> {
    let base = match instruction.memory_base() {
        Register::RIP | Register::RSP => Register::None,
        base => base,
    };
    let index = instruction.memory_index();
    let is_whole = |register: Register| register == Register::None || register.is_gpr64();
    (is_whole(base) && is_whole(index) && instruction.segment_prefix() == Register::None)
        .then_some((base, index, instruction.memory_index_scale()))
}

/// What an instruction adds to a register; `None` if that is no constant.
fn constant_step(instruction: &Instruction, register: Register) -> Option<i64> {
    if instruction.op0_kind() != OpKind::Register
        || instruction.op0_register().full_register() != register
    {
        return None;
    }
    match instruction.mnemonic() {
        Mnemonic::Inc => Some(1),
        Mnemonic::Dec => Some(-1),
        Mnemonic::Add | Mnemonic::Sub
            if instruction.op_kind(1) != OpKind::Register
                && instruction.op_kind(1) != OpKind::Memory =>
        {
            let added = instruction.immediate(1).cast_signed();
            Some(if instruction.mnemonic() == Mnemonic::Sub {
                -added
            } else {
                added
            })
        }
        Mnemonic::Lea
            if instruction.memory_base() == register
                && instruction.memory_index() == Register::None =>
        {
            Some(instruction.memory_displacement64().cast_signed())
        }
        _ => None,
    }
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

/// Instructions of them that are refused: their time depends on values, they pass the caches by, or they change how
/// later ones behave.
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
    let is_exchange = instruction.mnemonic() == Mnemonic::Xchg && has_operand(instruction);
    instruction.code() != Code::INVALID
        && instruction.flow_control() == FlowControl::Next
        && instruction
            .cpuid_features()
            .iter()
            .all(|feature| COMPUTING.contains(feature))
        && !REFUSED.contains(&instruction.mnemonic())
        && !instruction.is_privileged()
        && !instruction.is_stack_instruction()
        && !instruction.is_string_instruction()
        && !instruction.is_save_restore_instruction()
        && !instruction.has_lock_prefix()
        // It locks the bus without a prefix.
        && !is_exchange
        && changed_flags & (RflagsBits::DF | RflagsBits::IF) == 0
}
