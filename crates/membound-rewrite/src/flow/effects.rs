//! The effect of one instruction on state.
//!
//! The operand tables of `iced-x86` are the base. Where they say nothing or differ from what processors do,
//! they are corrected here. The tests execute every encoding that the processor has and compare.
//!
//! Rules for certainty:
//! - A unit is **killed** only if every bit of it is new after every execution. Writes of 8 and 16 bits kill
//!   nothing, nor do writes under a condition, a mask or a count that may be zero, or that a fault may
//!   prevent.
//! - A flag that the manuals call undefined is written and **not** killed, because processors may leave it
//!   unchanged. Nothing is lost by this: compilers do not read such flags either.
//! - x87 and MMX are one unit that nothing kills: no instruction replaces all of it.
//! - MXCSR is read and written by all floating-point arithmetic (rounding and masks; sticky status) and
//!   killed by `ldmxcsr` alone.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits, UsedRegister,
};

use super::backward::Scratch;
use super::state::State;
use super::traits::{self, Kind, Mxcsr, Traits, UpperParts, X87};
use super::{Access, access};
use crate::op_access::{reads, writes};
use crate::{Flag, Gpr, RegisterSet, VectorPart};

/// The effect of an instruction on state, without that of a called function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// State that the results may depend on.
    pub reads: RegisterSet,
    /// State that may differ afterwards.
    pub writes: RegisterSet,
    /// Units of which no bit keeps its old value in any execution. A subset of `writes`.
    pub kills: RegisterSet,
    /// The instruction's explicit access to memory.
    pub access: Option<Access>,
}

/// Computes effects. It owns scratch space, so use one per thread.
#[derive(Debug)]
pub struct Analyst {
    factory: InstructionInfoFactory,
    scratch: Scratch,
}

impl Default for Analyst {
    fn default() -> Self {
        Self::new()
    }
}

impl Analyst {
    /// A new analyst.
    #[must_use]
    pub fn new() -> Self {
        Self {
            factory: InstructionInfoFactory::new(),
            scratch: Scratch::default(),
        }
    }

    /// Lends the scratch space for an analysis of a function.
    pub(super) fn take_scratch(&mut self) -> Scratch {
        std::mem::take(&mut self.scratch)
    }

    /// Takes the scratch space back for reuse.
    pub(super) fn return_scratch(&mut self, scratch: Scratch) {
        self.scratch = scratch;
    }

    /// The effects of `instruction`, with its access to memory.
    #[must_use]
    pub fn effects(&mut self, instruction: &Instruction) -> Effects {
        let State {
            reads,
            writes,
            kills,
        } = self.state(instruction);
        Effects {
            reads,
            writes,
            kills,
            access: access(instruction),
        }
    }

    /// The effect of `instruction` on state.
    pub(super) fn state(&mut self, instruction: &Instruction) -> State {
        let traits = traits::of(instruction.code());
        if traits.kind == Kind::Everything {
            return State::EVERYTHING;
        }
        let mut state = State::NOTHING;
        self.operands(instruction, traits, &mut state);
        flags(instruction, &mut state);
        if traits.mxcsr == Mxcsr::Arithmetic {
            state.read(RegisterSet::MXCSR);
            state.write(RegisterSet::MXCSR);
        }
        if traits.x87 == X87::Always {
            state.read(RegisterSet::X87);
            state.write(RegisterSet::X87);
        }
        if traits.kind == Kind::Corrected {
            correct(instruction, &mut state);
        }
        state
    }

    fn operands(&mut self, instruction: &Instruction, traits: &Traits, state: &mut State) {
        let info = self
            .factory
            .info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            operand(used, state);
        }
        let destination = instruction.op0_register();
        if traits.clears_upper == UpperParts::Cleared
            && destination.is_vector_register()
            && writes(info.op0_access())
        {
            // A masked write sets the bytes above the operand to zero too.
            let above =
                parts(Register::ZMM0 + destination.number() as u32).without(parts(destination));
            state.kill(above);
        }
    }
}

fn operand(used: &UsedRegister, state: &mut State) {
    let register = used.register();
    let access = used.access();
    let always = matches!(access, OpAccess::Write | OpAccess::ReadWrite);
    let (set, whole) = if register.is_gpr() {
        (gpr(register), register.size() >= 4)
    } else if register.is_vector_register() {
        (parts(register), true)
    } else if register.is_k() {
        (RegisterSet::mask(number(register)), true)
    } else if register.is_mm() || register.is_st() {
        state.read(RegisterSet::X87);
        state.write(RegisterSet::X87);
        return;
    } else {
        return;
    };
    if reads(access) {
        state.read(set);
    }
    if writes(access) {
        if always && whole {
            state.kill(set);
        } else {
            state.write(set);
        }
    }
}

fn number(register: Register) -> u8 {
    u8::try_from(register.number()).expect("registers are numbered from 0 to 31")
}

fn gpr(register: Register) -> RegisterSet {
    RegisterSet::gpr(Gpr::new(number(register.full_register())))
}

/// The parts of a vector register that its name covers: all three for zmm.
fn parts(register: Register) -> RegisterSet {
    let number = number(register);
    let xmm = RegisterSet::vector(number, VectorPart::Xmm);
    if register.is_xmm() {
        return xmm;
    }
    let ymm = xmm.union(RegisterSet::vector(number, VectorPart::YmmHigh));
    if register.is_ymm() {
        return ymm;
    }
    ymm.union(RegisterSet::vector(number, VectorPart::ZmmHigh))
}

/// Sets of flags, indexed by iced's bits.
const FLAGS: [RegisterSet; 128] = {
    let order = [
        (RflagsBits::OF, Flag::Overflow),
        (RflagsBits::SF, Flag::Sign),
        (RflagsBits::ZF, Flag::Zero),
        (RflagsBits::AF, Flag::Adjust),
        (RflagsBits::CF, Flag::Carry),
        (RflagsBits::PF, Flag::Parity),
        (RflagsBits::DF, Flag::Direction),
    ];
    let mut sets = [RegisterSet::EMPTY; 128];
    let mut bits = 0;
    while bits < 128 {
        let mut flag = 0;
        while flag < order.len() {
            if bits & order[flag].0 as usize != 0 {
                sets[bits] = sets[bits].union(RegisterSet::flag(order[flag].1));
            }
            flag += 1;
        }
        bits += 1;
    }
    sets
};

fn flag_set(bits: u32) -> RegisterSet {
    FLAGS[(bits & 127) as usize]
}

fn flags(instruction: &Instruction, state: &mut State) {
    let modified = instruction.rflags_modified();
    let read = instruction.rflags_read();
    if modified | read == 0 {
        return;
    }
    state.read(flag_set(read));
    state.write(flag_set(modified));
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    if !(repeated && instruction.is_string_instruction()) {
        state.kill(flag_set(modified & !instruction.rflags_undefined()));
    }
}

const EXTENDED: RegisterSet = RegisterSet::VECTORS
    .union(RegisterSet::MASKS)
    .union(RegisterSet::X87)
    .union(RegisterSet::MXCSR);

const ALL_FLAGS: RegisterSet = RegisterSet::ARITHMETIC_FLAGS.union(RegisterSet::DIRECTION);

fn registers<const N: usize>(numbers: [u8; N]) -> RegisterSet {
    numbers.into_iter().fold(RegisterSet::EMPTY, |set, number| {
        set.union(RegisterSet::gpr(Gpr::new(number)))
    })
}

fn correct(instruction: &Instruction, state: &mut State) {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Syscall => {
            // The kernel preserves all but rax, rcx and r11; it keeps the flags in r11. A new thread
            // (`clone`) continues with the other registers, which are alive after the call.
            *state = State::NOTHING;
            state.read(registers([0, 2, 4, 6, 7, 8, 9, 10]).union(ALL_FLAGS));
            state.kill(registers([0, 1, 11]));
        }
        M::Bsf | M::Bsr => {
            // With a source of zero the destination is unchanged.
            may_stay(gpr(instruction.op0_register()), state);
        }
        M::Nop | M::Reservednop => *state = State::NOTHING,
        // `rdssp` does nothing where shadow stacks are off. Where the kernel emulates the others, it writes
        // 16 bits.
        M::Rdsspd | M::Rdsspq | M::Sldt | M::Str | M::Smsw
            if instruction.op0_kind() == OpKind::Register =>
        {
            may_stay(gpr(instruction.op0_register()), state);
        }
        M::Insertq => may_stay(parts(instruction.op0_register()), state),
        M::Rcl | M::Rcr | M::Rol | M::Ror | M::Sal | M::Sar | M::Shl | M::Shr
            if instruction.op1_kind() == OpKind::Register =>
        {
            // A count of zero leaves the flags unchanged.
            state.spare(ALL_FLAGS);
        }
        M::Rcl | M::Rcr => {
            // With 8 and 16 bits, a count that rotates by a full circle leaves operand and carry unchanged,
            // but overflow may change.
            let overwritten =
                RegisterSet::flag(Flag::Carry).union(RegisterSet::flag(Flag::Overflow));
            match instruction.immediate8() & 31 {
                0 | 1 => {}
                _ => {
                    state.read(RegisterSet::flag(Flag::Carry));
                    state.write(overwritten);
                    state.spare(RegisterSet::flag(Flag::Overflow));
                }
            }
        }
        M::Shld | M::Shrd if instruction.op2_kind() == OpKind::Register => {
            state.spare(ALL_FLAGS);
        }
        M::Sbb if same_register(instruction, 0, 1) => {
            let register = gpr(instruction.op0_register());
            state.reads = state.reads.without(register);
        }
        mnemonic if traits::is_constant_idiom(mnemonic) => {
            let sources = if instruction.op_count() == 2 { 0 } else { 1 };
            if !instruction.has_op_mask() && same_register(instruction, sources, sources + 1) {
                state.reads = state.reads.intersection(RegisterSet::X87);
            }
        }
        mnemonic => correct_extended_state(mnemonic, state),
    }
}

/// Corrects the instructions that save, load or clear many registers or MXCSR.
fn correct_extended_state(mnemonic: Mnemonic, state: &mut State) {
    use Mnemonic as M;
    match mnemonic {
        M::Vzeroall => {
            *state = State::NOTHING;
            for number in 0..16 {
                state.kill(parts(Register::ZMM0 + number));
            }
        }
        M::Vzeroupper => {
            *state = State::NOTHING;
            for number in 0..16 {
                state.kill(parts(Register::ZMM0 + number).without(parts(Register::XMM0 + number)));
            }
        }
        M::Ldmxcsr | M::Vldmxcsr => state.kill(RegisterSet::MXCSR),
        M::Stmxcsr | M::Vstmxcsr => state.read(RegisterSet::MXCSR),
        mnemonic if traits::saves_extended_state(mnemonic) => {
            state.read(EXTENDED.union(registers([0, 2])));
        }
        mnemonic if traits::loads_extended_state(mnemonic) => {
            // The components to load are named in memory and in edx:eax.
            state.read(registers([0, 2]));
            state.write(EXTENDED);
            state.spare(EXTENDED);
        }
        // It may report which components are in use.
        M::Xgetbv => state.read(EXTENDED),
        _ => {}
    }
}

/// Some executions leave the destination as it is.
fn may_stay(destination: RegisterSet, state: &mut State) {
    state.read(destination);
    state.spare(destination);
}

fn same_register(instruction: &Instruction, first: u32, second: u32) -> bool {
    instruction.op_kind(first) == OpKind::Register
        && instruction.op_kind(second) == OpKind::Register
        && instruction.op_register(first) == instruction.op_register(second)
}
