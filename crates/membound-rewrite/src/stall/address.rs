//! Reconstructs the address of an access from registers that were sampled later.
//!
//! Usually only the access itself lies between it and the sample, because the sampled instruction pointer is
//! the address of the next instruction. The effects of instructions in between are undone where possible,
//! that is, for registers to which a constant was added. Where they cannot be undone, above all after a load
//! that overwrites its own base register, the result is an address nearby: that of the loaded pointer, or the
//! start of the array.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::function::{CodeFunction, index_of, is_prefetch};
use crate::code::Function;
use crate::flow::{self, Addressing, Analyst, Segment};
use crate::{Gpr, RegisterSet};

/// Values to be added to addresses of a file and to segment offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// Address in the process minus address in the file.
    pub bias: u64,
    /// Base of `fs`, if known.
    pub fs: Option<u64>,
    /// Base of `gs`, if known.
    pub gs: Option<u64>,
}

/// The address of an access, in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The reconstructed address.
    pub address: u64,
    /// True if this is the accessed address; false if it is only near it, such as a loaded pointer.
    pub exact: bool,
}

/// Lowest address taken for a pointer; smaller values are numbers.
const MIN_POINTER: u64 = 4096;

impl CodeFunction {
    /// See [`super::Code::effective_address`].
    #[must_use]
    pub fn effective_address(
        &self,
        site: u64,
        sampled: u64,
        registers: &[u64; 16],
        bases: Bases,
    ) -> Option<Effective> {
        effective(self.function(), site, sampled, registers, bases)
    }
}

fn effective(
    function: &Function,
    site: u64,
    sampled: u64,
    registers: &[u64; 16],
    bases: Bases,
) -> Option<Effective> {
    let at = index_of(function, site)?;
    let instruction = &function.instructions[at];
    let access = flow::access(instruction);
    let base = match access.and_then(|access| access.segment) {
        None => 0,
        Some(Segment::Fs) => bases.fs?,
        Some(Segment::Gs) => bases.gs?,
    };
    let mut values = Values(registers.map(Some));
    if site != sampled {
        let between = between(function, at, sampled)?;
        let mut analyst = Analyst::new();
        for later in between.iter().rev() {
            values.undo(later, &mut analyst);
        }
    }
    let Some(access) = access else {
        let found = is_prefetch(instruction)
            .then(|| operand(instruction, &values, registers, bases.bias))??;
        // The line is asked for, not accessed.
        let exact = false;
        return Some(Effective { exact, ..found });
    };
    match access.addressing {
        Addressing::String => string(instruction, &values, registers),
        Addressing::Operand | Addressing::Vector => {
            operand(instruction, &values, registers, bases.bias).map(|found| Effective {
                address: found.address.wrapping_add(base),
                exact: found.exact && access.addressing == Addressing::Operand,
            })
        }
        Addressing::Other => None,
    }
}

/// The instructions from the access at index `at`, itself included, up to the sampled one, if one path
/// between them is known.
fn between(function: &Function, at: usize, sampled: u64) -> Option<Vec<&Instruction>> {
    let end = index_of(function, sampled)?;
    let (from, to) = (function.block_of(at)?, function.block_of(end)?);
    if from == to && at < end {
        return Some(function.instructions[at..end].iter().collect());
    }
    let leaving = &function.blocks[from.index()];
    let follows = leaving.successors.contains(&to);
    follows.then(|| {
        let head = &function.instructions[at..leaving.end as usize];
        let tail = &function.instructions[function.blocks[to.index()].first as usize..end];
        head.iter().chain(tail).collect()
    })
}

/// Values of general registers, `None` where unknown.
struct Values([Option<u64>; 16]);

impl Values {
    fn of(&self, register: Register) -> Option<u64> {
        self.0[number(register)?]
    }

    /// Undoes the effect of `instruction`.
    fn undo(&mut self, instruction: &Instruction, analyst: &mut Analyst) {
        let writes = analyst.effects(instruction).writes;
        let stepped = step(instruction);
        for register in Gpr::all() {
            if !writes.contains(RegisterSet::gpr(register)) {
                continue;
            }
            let place = &mut self.0[usize::from(register.number())];
            *place = match stepped {
                Some((changed, by)) if changed == register => {
                    place.map(|value| value.wrapping_sub(by))
                }
                _ => None,
            };
        }
    }
}

/// What `instruction` adds to a register, if it does nothing else to it.
fn step(instruction: &Instruction) -> Option<(Gpr, u64)> {
    if instruction.is_stack_instruction() {
        let into_pointer = instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RSP;
        let by = i64::from(instruction.stack_pointer_increment());
        let plain = matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Pop);
        return (plain && !into_pointer).then_some((Gpr::RSP, by.cast_unsigned()));
    }
    // The upper half is lost where only the lower one is added to.
    let added = flow::addition(instruction).filter(|added| added.bits == 64)?;
    Some((added.register, added.by.cast_unsigned()))
}

fn number(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

fn operand(
    instruction: &Instruction,
    values: &Values,
    sampled: &[u64; 16],
    bias: u64,
) -> Option<Effective> {
    let exactly = |address| Effective {
        address,
        exact: true,
    };
    let displacement = instruction.memory_displacement64();
    if instruction.is_ip_rel_memory_operand() {
        return Some(exactly(displacement.wrapping_add(bias)));
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let base_value = match base {
        Register::None => Some(0),
        register => values.of(register),
    };
    let index_value = match index {
        Register::None => Some(0),
        register => values
            .of(register)
            .map(|value| value.wrapping_mul(u64::from(instruction.memory_index_scale()))),
    };
    let near = |address: u64| {
        (address >= MIN_POINTER).then_some(Effective {
            address,
            exact: false,
        })
    };
    match (base_value, index_value) {
        (Some(base_value), Some(index_value)) => {
            let address = base_value.wrapping_add(index_value);
            Some(exactly(address.wrapping_add(displacement)))
        }
        // The base is the array, unless the index register holds the pointer.
        (Some(base_value), None) if base != Register::None => {
            near(base_value.wrapping_add(displacement))
        }
        // The displacement is the address of the array.
        (Some(_), None) => near(displacement),
        (None, _) => {
            let loads_pointer = instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_kind() == OpKind::Register
                && instruction.op0_register() == base;
            let loaded = sampled[number(base)?];
            let pointer = loads_pointer && loaded >= MIN_POINTER;
            pointer.then_some(Effective {
                address: loaded.wrapping_add(displacement),
                exact: false,
            })
        }
    }
}

/// The address of a string instruction: its source if it has one, else its destination. An instruction that
/// has completed has advanced the register, in an unknown direction.
fn string(instruction: &Instruction, values: &Values, sampled: &[u64; 16]) -> Option<Effective> {
    let reads_source = (0..instruction.op_count())
        .any(|operand| instruction.op_kind(operand) == OpKind::MemorySegRSI);
    let register = if reads_source { Gpr::RSI } else { Gpr::RDI };
    let number = usize::from(register.number());
    let (address, exact) = match values.0[number] {
        Some(address) => (address, true),
        None => (sampled[number], false),
    };
    Some(Effective { address, exact })
}
