//! What one instruction does to state.
//!
//! The operand tables of `iced-x86` are the base; what they do not say, or say otherwise
//! than processors behave, is corrected here. The tests run every encoding that the
//! machine knows and compare.
//!
//! How certainty is decided:
//! - A unit is **killed** only if every bit of it is new after every execution. Writes of 8
//!   and 16 bits, writes under a condition, a mask, a count of zero or a fault kill nothing.
//! - A flag that the manuals call undefined is written and **not** killed: processors may
//!   leave it as it was. That loses nothing, because compilers do not read it either.
//! - x87 and MMX are one unit that nothing kills: no instruction replaces all of it.
//! - MXCSR is read and written by all floating-point arithmetic (rounding and masks; sticky
//!   status) and killed by `ldmxcsr` alone.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits, UsedRegister,
};

use super::backward::Scratch;
use super::traits::{self, Kind, Mxcsr, Traits, UpperParts, X87};
use super::{Access, access};
use crate::{Flag, Gpr, RegisterSet, VectorPart};

/// What an instruction does to state, that of a called function not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// What the results may depend on.
    pub reads: RegisterSet,
    /// What may be different afterwards.
    pub writes: RegisterSet,
    /// Units of which no bit of the old value is left, whatever happens. A part of `writes`.
    pub kills: RegisterSet,
    /// Its explicit access to memory.
    pub access: Option<Access>,
}

/// The part of the effects that liveness needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) reads: RegisterSet,
    pub(super) writes: RegisterSet,
    pub(super) kills: RegisterSet,
}

impl State {
    const NOTHING: Self = Self {
        reads: RegisterSet::EMPTY,
        writes: RegisterSet::EMPTY,
        kills: RegisterSet::EMPTY,
    };

    /// What any instruction may do.
    pub(super) const EVERYTHING: Self = Self {
        reads: RegisterSet::ALL,
        writes: RegisterSet::ALL,
        kills: RegisterSet::EMPTY,
    };

    const fn read(&mut self, set: RegisterSet) {
        self.reads = self.reads.union(set);
    }

    const fn write(&mut self, set: RegisterSet) {
        self.writes = self.writes.union(set);
    }

    const fn kill(&mut self, set: RegisterSet) {
        self.writes = self.writes.union(set);
        self.kills = self.kills.union(set);
    }

    const fn spare(&mut self, set: RegisterSet) {
        self.kills = self.kills.without(set);
    }
}

/// Finds out effects. It holds scratch space: one for each thread.
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
    /// One that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            factory: InstructionInfoFactory::new(),
            scratch: Scratch::default(),
        }
    }

    /// Lends the space in which facts are worked out.
    pub(super) fn take_scratch(&mut self) -> Scratch {
        std::mem::take(&mut self.scratch)
    }

    /// Takes it back.
    pub(super) fn return_scratch(&mut self, scratch: Scratch) {
        self.scratch = scratch;
    }

    /// What `instruction` does.
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

    /// What `instruction` does to state.
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
            // Of a masked write, the bytes above the operand are zero all the same.
            let above =
                parts(Register::ZMM0 + destination.number() as u32).without(parts(destination));
            state.kill(above);
        }
    }
}

const fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read
            | OpAccess::CondRead
            | OpAccess::ReadWrite
            | OpAccess::ReadCondWrite
            | OpAccess::NoMemAccess
    )
}

const fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
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

/// The parts of a vector register that it names: all three for zmm.
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

/// Sets of flags by iced's bits.
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
            // The kernel keeps all but these three, the flags too, by way of r11. A cloned
            // thread goes on with the rest, which is alive after the call.
            *state = State::NOTHING;
            state.read(registers([0, 2, 4, 6, 7, 8, 9, 10]).union(ALL_FLAGS));
            state.kill(registers([0, 1, 11]));
        }
        M::Bsf | M::Bsr => {
            // With a source of zero the destination stays.
            let destination = gpr(instruction.op0_register());
            state.read(destination);
            state.spare(destination);
        }
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
        M::Fxsave
        | M::Fxsave64
        | M::Xsave
        | M::Xsave64
        | M::Xsavec
        | M::Xsavec64
        | M::Xsaveopt
        | M::Xsaveopt64
        | M::Xsaves
        | M::Xsaves64 => {
            state.read(EXTENDED.union(registers([0, 2])));
        }
        M::Fxrstor | M::Fxrstor64 | M::Xrstor | M::Xrstor64 | M::Xrstors | M::Xrstors64 => {
            // Which components are loaded stands in memory and in edx:eax.
            state.read(registers([0, 2]));
            state.write(EXTENDED);
            state.spare(EXTENDED);
        }
        // It may tell which components are in use.
        M::Xgetbv => state.read(EXTENDED),
        M::Nop | M::Reservednop => *state = State::NOTHING,
        // `rdssp` does nothing where shadow stacks are off; of the others the kernel, where it
        // emulates them, writes 16 bits.
        M::Rdsspd | M::Rdsspq | M::Sldt | M::Str | M::Smsw
            if instruction.op0_kind() == OpKind::Register =>
        {
            let destination = gpr(instruction.op0_register());
            state.read(destination);
            state.spare(destination);
        }
        M::Insertq => {
            let destination = parts(instruction.op0_register());
            state.read(destination);
            state.spare(destination);
        }
        M::Rcl | M::Rcr | M::Rol | M::Ror | M::Sal | M::Sar | M::Shl | M::Shr
            if instruction.op1_kind() == OpKind::Register =>
        {
            // A count of zero leaves the flags as they are.
            state.spare(ALL_FLAGS);
        }
        M::Rcl | M::Rcr => {
            // Of 8 and 16 bits, a count that turns the whole circle leaves the operand and
            // the carry, and yet overflow may change.
            let turned = RegisterSet::flag(Flag::Carry).union(RegisterSet::flag(Flag::Overflow));
            match instruction.immediate8() & 31 {
                0 | 1 => {}
                _ => {
                    state.read(RegisterSet::flag(Flag::Carry));
                    state.write(turned);
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
        _ => {}
    }
}

fn same_register(instruction: &Instruction, first: u32, second: u32) -> bool {
    instruction.op_kind(first) == OpKind::Register
        && instruction.op_kind(second) == OpKind::Register
        && instruction.op_register(first) == instruction.op_register(second)
}
