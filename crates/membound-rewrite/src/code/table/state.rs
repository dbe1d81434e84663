//! The effect of instructions on symbolic values, as far as jump tables need it.

use iced_x86::{
    ConditionCode, Instruction, InstructionInfoFactory, InstructionInfoOptions, MemorySize,
    Mnemonic, OpKind, Register,
};
use rustc_hash::FxHashMap;

use super::value::{Value, Values, low_mask};
use crate::op_access::writes;

/// Registers that a call may change: rax, rcx, rdx, rsi, rdi, r8–r11.
const CALLER_SAVED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
const RSP: usize = 4;
/// The registers' values at the start of a path.
const INITIAL: [Value; 16] = {
    let mut registers = [Values::initial(0); 16];
    let mut register = 1;
    while register < 16 {
        registers[register as usize] = Values::initial(register);
        register += 1;
    }
    registers
};

/// The operands of the comparison that set the flags, and their width.
#[derive(Clone, Copy, Debug)]
struct Compared {
    left: Value,
    right: Value,
    bits: u8,
}

/// Registers, flags and memory along one path.
pub(super) struct State {
    pub(super) values: Values,
    registers: [Value; 16],
    flags: Option<Compared>,
    memory: FxHashMap<Value, (Value, u8)>,
    /// Number of calls so far: memory read before a call may have changed after it.
    epoch: u32,
    info: InstructionInfoFactory,
    /// Upper bounds from signed comparisons. They become bounds once the value is known not to be negative.
    signed_bounds: FxHashMap<Value, u64>,
    not_negative: Vec<Value>,
}

/// Number of the general register that contains `register`.
fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    full.is_gpr64()
        .then(|| u8::try_from(full.number()).ok())
        .flatten()
}

fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

fn bits_of(bytes: usize) -> u8 {
    u8::try_from(bytes * 8).unwrap_or(64).min(64)
}

/// Width of the first operand in bits.
fn width(instruction: &Instruction) -> u8 {
    match instruction.op0_kind() {
        OpKind::Register => bits_of(instruction.op0_register().size()),
        _ => match instruction.memory_size() {
            MemorySize::Unknown => 64,
            size => bits_of(size.size()),
        },
    }
}

impl Compared {
    fn of(instruction: &Instruction, left: Value, right: Value) -> Self {
        let bits = width(instruction);
        Self { left, right, bits }
    }
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            values: Values::default(),
            registers: INITIAL,
            flags: None,
            memory: FxHashMap::default(),
            epoch: 0,
            info: InstructionInfoFactory::new(),
            signed_bounds: FxHashMap::default(),
            not_negative: Vec::new(),
        }
    }

    /// Returns to the start of a path; keeps the allocations.
    pub(super) fn reset(&mut self) {
        self.values.clear();
        self.registers = INITIAL;
        self.flags = None;
        self.memory.clear();
        self.epoch = 0;
        self.signed_bounds.clear();
        self.not_negative.clear();
    }

    fn read_register(&mut self, register: Register) -> Value {
        let Some(number) = number(register) else {
            return self.values.unknown();
        };
        if is_high_byte(register) {
            return self.values.at_most(0xff);
        }
        let value = self.registers[usize::from(number)];
        self.values
            .masked(value, low_mask(bits_of(register.size())))
    }

    fn write_register(&mut self, register: Register, value: Value) {
        let Some(number) = number(register) else {
            return;
        };
        let slot = usize::from(number);
        self.registers[slot] = match register.size() {
            8 => value,
            4 => self.values.masked(value, low_mask(32)),
            _ if is_high_byte(register) => self.values.unknown(),
            bytes => {
                let bits = bits_of(bytes);
                let low = self.values.masked(value, low_mask(bits));
                self.values.inserted(self.registers[slot], low, bits)
            }
        };
    }

    /// The address of an instruction's memory operand; unknown with an `fs` or `gs` prefix.
    pub(super) fn address(&mut self, instruction: &Instruction) -> Value {
        if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
            return self.values.unknown();
        }
        let displacement = self.values.constant(instruction.memory_displacement64());
        if instruction.is_ip_rel_memory_operand() {
            return displacement;
        }
        let mut address = displacement;
        if instruction.memory_base() != Register::None {
            let base = self.read_register(instruction.memory_base());
            address = self.values.add(base, address);
        }
        if instruction.memory_index() != Register::None {
            let index = self.read_register(instruction.memory_index());
            let scaled = self
                .values
                .multiple(index, instruction.memory_index_scale().into());
            address = self.values.add(address, scaled);
        }
        address
    }

    fn read_memory(&mut self, address: Value, bits: u8) -> Value {
        match self.memory.get(&address) {
            Some(&(value, have)) if have >= bits => self.values.masked(value, low_mask(bits)),
            _ => {
                let word = self.values.load(address, self.epoch);
                self.values.masked(word, low_mask(bits))
            }
        }
    }

    /// The value of an operand, zero-extended.
    pub(super) fn read(&mut self, instruction: &Instruction, operand: u32) -> Value {
        match instruction.op_kind(operand) {
            OpKind::Register => self.read_register(instruction.op_register(operand)),
            OpKind::Memory => {
                let address = self.address(instruction);
                let bits = bits_of(instruction.memory_size().size());
                self.read_memory(address, bits)
            }
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => self.values.constant(instruction.immediate(operand)),
            _ => self.values.unknown(),
        }
    }

    fn write(&mut self, instruction: &Instruction, value: Value) {
        match instruction.op0_kind() {
            OpKind::Register => self.write_register(instruction.op0_register(), value),
            OpKind::Memory => {
                let address = self.address(instruction);
                let bits = bits_of(instruction.memory_size().size());
                self.memory.insert(address, (value, bits));
            }
            _ => {}
        }
    }

    /// Applies an instruction to the state.
    pub(super) fn step(&mut self, instruction: &Instruction) {
        let mut flags = None;
        match instruction.mnemonic() {
            Mnemonic::Cdqe => {
                let value = self.values.signed(self.registers[0], 32);
                self.registers[0] = value;
            }
            Mnemonic::Sub => {
                let (left, right) = (self.read(instruction, 0), self.read(instruction, 1));
                flags = Some(Compared::of(instruction, left, right));
                let value = match self.values.as_constant(right) {
                    Some(right) => {
                        let negative = self.values.constant(right.wrapping_neg());
                        self.values.add(left, negative)
                    }
                    None => self.values.unknown(),
                };
                self.write(instruction, value);
            }
            Mnemonic::Cmp => {
                let (left, right) = (self.read(instruction, 0), self.read(instruction, 1));
                flags = Some(Compared::of(instruction, left, right));
            }
            Mnemonic::Test if instruction.op0_register() == instruction.op1_register() => {
                let (left, right) = (self.read(instruction, 0), self.values.constant(0));
                flags = Some(Compared::of(instruction, left, right));
            }
            Mnemonic::Push => {
                let value = self.read(instruction, 0);
                self.move_stack(8_u64.wrapping_neg());
                self.memory.insert(self.registers[RSP], (value, 64));
            }
            Mnemonic::Pop => {
                let value = self.read_memory(self.registers[RSP], 64);
                self.move_stack(8);
                self.write(instruction, value);
            }
            _ => {
                let Some(value) = self.result(instruction) else {
                    self.other(instruction);
                    return;
                };
                self.write(instruction, value);
            }
        }
        if instruction.rflags_modified() != 0 {
            self.flags = flags;
        }
    }

    /// What an instruction writes to its first operand, if that is all it does apart from flags, which become
    /// unknown; `None` for all other instructions.
    fn result(&mut self, instruction: &Instruction) -> Option<Value> {
        let width = width(instruction);
        Some(match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => self.read(instruction, 1),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let bits = match instruction.op1_kind() {
                    OpKind::Register => bits_of(instruction.op1_register().size()),
                    _ => bits_of(instruction.memory_size().size()),
                };
                let value = self.read(instruction, 1);
                self.values.signed(value, bits)
            }
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Add => {
                let (a, b) = (self.read(instruction, 0), self.read(instruction, 1));
                self.values.add(a, b)
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let a = self.read(instruction, 0);
                let by = if instruction.mnemonic() == Mnemonic::Inc {
                    1
                } else {
                    u64::MAX
                };
                let by = self.values.constant(by);
                self.values.add(a, by)
            }
            Mnemonic::And => {
                let (a, b) = (self.read(instruction, 0), self.read(instruction, 1));
                match (self.values.as_constant(a), self.values.as_constant(b)) {
                    (_, Some(mask)) => self.values.masked(a, mask & low_mask(width)),
                    (Some(mask), None) => self.values.masked(b, mask),
                    (None, None) => self.values.unknown(),
                }
            }
            Mnemonic::Shl | Mnemonic::Sal => {
                let (a, by) = (self.read(instruction, 0), self.read(instruction, 1));
                match self.values.as_constant(by) {
                    Some(by) if by < 64 => self.values.multiple(a, 1 << by),
                    _ => self.values.unknown(),
                }
            }
            Mnemonic::Shr => {
                let (a, by) = (self.read(instruction, 0), self.read(instruction, 1));
                match self.values.as_constant(by) {
                    Some(by) if by < u64::from(width) => {
                        let by = u8::try_from(by).expect("less than a width");
                        self.values.shifted_right(a, by, width)
                    }
                    _ => self.values.unknown(),
                }
            }
            Mnemonic::Xor if instruction.op0_register() == instruction.op1_register() => {
                self.values.constant(0)
            }
            _ => return None,
        })
    }

    fn move_stack(&mut self, by: u64) {
        let by = self.values.constant(by);
        self.registers[RSP] = self.values.add(self.registers[RSP], by);
    }

    /// Applies an instruction that is not modelled: all that it writes becomes unknown.
    fn other(&mut self, instruction: &Instruction) {
        let condition = instruction.condition_code();
        let is_register_move = matches!(instruction.op0_kind(), OpKind::Register)
            && instruction.op_count() == 2
            && condition != ConditionCode::None;
        if is_register_move {
            // cmovcc: one of two values, each with the bound that its condition implies.
            let old_value = self.read(instruction, 0);
            let new_value = self.read(instruction, 1);
            let value = match (
                self.bound_when(old_value, condition, false),
                self.bound_when(new_value, condition, true),
            ) {
                (Some(a), Some(b)) => self.values.at_most(a.max(b)),
                _ => self.values.unknown(),
            };
            self.write(instruction, value);
            return;
        }
        if condition != ConditionCode::None && instruction.op_count() == 1 {
            // setcc; or a conditional jump, which writes nothing.
            let value = self.values.at_most(1);
            self.write(instruction, value);
            return;
        }
        let info = self
            .info
            .info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        let mut written = [false; 16];
        for used in info.used_registers() {
            if writes(used.access())
                && let Some(number) = number(used.register())
            {
                written[usize::from(number)] = true;
            }
        }
        for (register, written) in written.into_iter().enumerate() {
            if written {
                self.registers[register] = self.values.unknown();
            }
        }
        if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory {
            let address = self.address(instruction);
            self.memory.remove(&address);
        }
        if instruction.rflags_modified() != 0 {
            self.flags = None;
        }
    }

    /// Applies a call that has returned.
    pub(super) fn called(&mut self) {
        for register in CALLER_SAVED {
            self.registers[usize::from(register)] = self.values.unknown();
        }
        self.flags = None;
        self.epoch += 1;
    }

    /// The bound of a value, given that the flags meet a condition (`met`) or do not.
    fn bound_when(&self, value: Value, condition: ConditionCode, met: bool) -> Option<u64> {
        let known = self.values.bound(value);
        let implied = self
            .implied(condition, met)
            .filter(|implied| implied.value == value && !implied.signed)
            .map(|implied| implied.bound);
        match (known, implied) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Records that control continues because the flags meet a condition (`met`) or do not.
    pub(super) fn assume(&mut self, condition: ConditionCode, met: bool) {
        if let Some(implied) = self.implied(condition, met) {
            let half = low_mask(implied.bits - 1);
            let never_negative = self.not_negative.contains(&implied.value)
                || self
                    .values
                    .bound(implied.value)
                    .is_some_and(|bound| bound <= half);
            if !implied.signed || never_negative {
                self.values.narrow(implied.value, implied.bound);
            } else if implied.bound <= half {
                self.signed_bounds.insert(implied.value, implied.bound);
            }
        }
        // `x < 0` is false.
        let positive = matches!(
            (condition, met),
            (ConditionCode::l | ConditionCode::s, false)
                | (ConditionCode::ge | ConditionCode::ns, true)
        );
        if positive
            && let Some(compared) = self.flags
            && self.values.as_constant(compared.right) == Some(0)
        {
            self.not_negative.push(compared.left);
            if let Some(&bound) = self.signed_bounds.get(&compared.left) {
                self.values.narrow(compared.left, bound);
            }
        }
    }

    fn implied(&self, condition: ConditionCode, met: bool) -> Option<Implied> {
        let compared = self.flags?;
        // The condition as a relation between left and right.
        let relation = match (condition, met) {
            (ConditionCode::a, false) | (ConditionCode::be, true) => Relation::AtMost,
            (ConditionCode::b, true) | (ConditionCode::ae, false) => Relation::Below,
            (ConditionCode::a, true) | (ConditionCode::be, false) => Relation::Above,
            (ConditionCode::b, false) | (ConditionCode::ae, true) => Relation::AtLeast,
            (ConditionCode::e, true) | (ConditionCode::ne, false) => Relation::Equal,
            (ConditionCode::g, false) | (ConditionCode::le, true) => Relation::SignedAtMost,
            (ConditionCode::l, true) | (ConditionCode::ge, false) => Relation::SignedBelow,
            _ => return None,
        };
        let mask = low_mask(compared.bits);
        let left = self.values.as_constant(compared.left);
        let right = self.values.as_constant(compared.right);
        let (value, bound) = match (relation, left, right) {
            (Relation::AtMost | Relation::Equal | Relation::SignedAtMost, None, Some(right)) => {
                (compared.left, Some(right & mask))
            }
            (Relation::Below | Relation::SignedBelow, None, Some(right)) => {
                (compared.left, (right & mask).checked_sub(1))
            }
            (Relation::AtLeast | Relation::Equal, Some(left), None) => {
                (compared.right, Some(left & mask))
            }
            (Relation::Above, Some(left), None) => (compared.right, (left & mask).checked_sub(1)),
            _ => return None,
        };
        Some(Implied {
            value,
            bound: bound?,
            bits: compared.bits,
            signed: matches!(relation, Relation::SignedAtMost | Relation::SignedBelow),
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Relation {
    AtMost,
    Below,
    Above,
    AtLeast,
    Equal,
    SignedAtMost,
    SignedBelow,
}

/// The bound that a condition implies for a value.
struct Implied {
    value: Value,
    bound: u64,
    bits: u8,
    signed: bool,
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    /// Steps through `code`; returns the values of the general registers after it.
    fn run(state: &mut State, code: &[u8]) -> [Value; 16] {
        for instruction in &mut Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE) {
            state.step(&instruction);
        }
        state.assume(ConditionCode::be, true);
        state.registers
    }

    #[test]
    fn a_path_after_another_is_evaluated_as_if_it_were_the_first() {
        // mov [rsp+8], rcx; pop rax; cmp edi, 5
        let one = [0x48, 0x89, 0x4c, 0x24, 0x08, 0x58, 0x83, 0xff, 0x05];
        // mov rdx, [rsp+8]; cmp esi, 9
        let other = [0x48, 0x8b, 0x54, 0x24, 0x08, 0x83, 0xfe, 0x09];
        let mut fresh = State::new();
        let expected = run(&mut fresh, &other);
        let mut used = State::new();
        run(&mut used, &one);
        used.called();
        used.reset();
        assert_eq!(run(&mut used, &other), expected);
        for register in 0..16 {
            let value = Values::initial(register);
            assert_eq!(used.values.checked(value), fresh.values.checked(value));
        }
        assert_eq!(used.values.checked(Values::initial(6)), Some(9));
        assert_eq!(
            used.values.checked(Values::initial(7)),
            None,
            "of the path before"
        );
        let nodes = |state: &State| expected.map(|value| state.values.node(value));
        assert_eq!(nodes(&used), nodes(&fresh));
    }
}
