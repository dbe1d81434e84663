//! Other cache lines of the object that a yield's load is about to wait for (adjacent-line prefetch).
//!
//! Without a yield the processor executes ahead of a missing load and so already requests the lines of the
//! same object that it reads next. The yield sequence displaces that speculation: only one line has been
//! requested, and the thread waits for the next one when it resumes. So a yield prefetches those lines too,
//! as far as the code after it shows which they are.

use iced_x86::{FlowControl, Instruction};

use super::cycle::LINE_BYTES;
use super::operand::Operand;
use crate::flow::{Analyst, access};
use crate::{Gpr, RegisterSet};

/// Number of instructions after the load that are examined.
const MAX_INSTRUCTIONS_APART: usize = 32;
/// Most lines prefetched besides the load's own.
const MAX_COMPANION_LINES: usize = 3;
/// Lines prefetched for an access to an array element, whose index is not known here.
const ARRAY_LINES: i64 = 2;

/// Operands to prefetch besides that of the load.
pub(super) type Companions = [Option<Operand>; MAX_COMPANION_LINES];

/// Lines other than that of `operand`, the operand of the instruction at `index`, that the following
/// instructions access through the same base register; in the order of the text, up to the first call or
/// change of the base.
pub(super) fn of(
    instructions: &[Instruction],
    index: usize,
    operand: Operand,
    analyst: &mut Analyst,
) -> Companions {
    let mut companions = Companions::default();
    let Some(own) = OperandAddress::of(&operand) else {
        return companions;
    };
    let mut displacements = vec![own.displacement];
    let from_load = instructions.iter().skip(index).take(MAX_INSTRUCTIONS_APART);
    for (behind, instruction) in from_load.enumerate() {
        let accessed = access(instruction)
            .filter(|access| behind > 0 && access.segment == operand.segment)
            .and_then(|access| Operand::of(instruction, &access))
            .and_then(|other| OperandAddress::of(&other))
            .map_or(0..0, |other| own.lines(&other));
        for displacement in accessed.step_by(LINE_BYTES as usize) {
            let apart = |it: &i64| (it - displacement).abs() >= LINE_BYTES;
            if displacements.len() <= MAX_COMPANION_LINES && displacements.iter().all(apart) {
                companions[displacements.len() - 1] =
                    operand.further(displacement - own.displacement);
                displacements.push(displacement);
            }
        }
        let continues = matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        if !continues
            || analyst
                .effects(instruction)
                .writes
                .intersects(own.registers())
        {
            break;
        }
    }
    companions
}

/// An operand that is reached through a pointer in a register.
#[derive(Clone, Copy, Debug)]
struct OperandAddress {
    base: Gpr,
    /// Index register and the logarithm of its scale.
    index: Option<(Gpr, u8)>,
    displacement: i64,
}

impl OperandAddress {
    /// `None` for operands on the stack or in the module.
    fn of(operand: &Operand) -> Option<Self> {
        let (base, index, displacement) = operand.address.parts()?;
        Some(Self {
            base: base.filter(|base| *base != Gpr::RSP)?,
            index,
            displacement,
        })
    }

    /// The registers that the address depends on.
    fn registers(&self) -> RegisterSet {
        let index = self
            .index
            .map_or(RegisterSet::EMPTY, |it| RegisterSet::gpr(it.0));
        RegisterSet::gpr(self.base).union(index)
    }

    /// The displacements, one per line, at which `other` may lie; empty if the distance is not known.
    fn lines(&self, other: &Self) -> std::ops::Range<i64> {
        let begin = other.displacement;
        let lines = match (self.index, other.index) {
            _ if self.base != other.base => 0,
            (own, its) if own == its => 1,
            (None, Some(_)) => ARRAY_LINES,
            _ => 0,
        };
        begin..begin + lines * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Function;

    /// Displacements of the operands prefetched besides that of the first instruction.
    fn besides(code: &[u8]) -> Vec<i64> {
        let function = Function::from_code(code, 0x1000);
        let load = &function.instructions[0];
        let operand = Operand::of(load, &access(load).unwrap()).unwrap();
        let all = of(&function.instructions, 0, operand, &mut Analyst::new());
        let operands = all.into_iter().flatten();
        operands.map(|it| it.address.parts().unwrap().2).collect()
    }

    #[test]
    fn a_descent_asks_for_keys_and_children() {
        // mov r8,[rsi]; 1: cmp rdi,[rsi+rax*8]; jae 1b; mov rsi,[rsi+rcx*8+0x80]; mov rax,[rsi+0x200]
        let code = [
            0x4c, 0x8b, 0x06, 0x48, 0x3b, 0x3c, 0xc6, 0x73, 0xfa, 0x48, 0x8b, 0xb4, 0xce, 0x80, 0,
            0, 0, 0x48, 0x8b, 0x86, 0, 2, 0, 0,
        ];
        assert_eq!(besides(&code), [64, 128, 192]);
    }

    #[test]
    fn at_most_three_fields_in_other_lines_are_prefetched() {
        // mov rax,[rdi+8]; mov rcx,[rdi+16]; mov rcx,[rdi-64]; mov [rdi+72],rcx; mov rcx,[rsi+640];
        // mov rcx,[rdi+320]; mov rcx,[rdi+960]
        let code = [
            0x48, 0x8b, 0x47, 8, 0x48, 0x8b, 0x4f, 16, 0x48, 0x8b, 0x4f, 0xc0, 0x48, 0x89, 0x4f,
            72, 0x48, 0x8b, 0x8e, 0x80, 2, 0, 0, 0x48, 0x8b, 0x8f, 0x40, 1, 0, 0, 0x48, 0x8b, 0x8f,
            0xc0, 3, 0, 0,
        ];
        assert_eq!(besides(&code), [-64, 72, 320]);
    }

    #[test]
    fn nothing_is_known_behind_a_call_or_of_another_index() {
        // mov rax,[rdi]; call rax; mov rcx,[rdi+64]
        let call = [0x48, 0x8b, 0x07, 0xff, 0xd0, 0x48, 0x8b, 0x4f, 64];
        assert_eq!(besides(&call), []);
        // mov rax,[rdi+rsi*8]; mov rcx,[rdi+rdx*8+128]; mov rcx,[rdi+rsi*8+64]
        let indexed = [
            0x48, 0x8b, 0x04, 0xf7, 0x48, 0x8b, 0x8c, 0xd7, 128, 0, 0, 0, 0x48, 0x8b, 0x4c, 0xf7,
            64,
        ];
        assert_eq!(besides(&indexed), [64]);
        // mov rax,[rsp+8]; mov rcx,[rsp+128]
        let stack = [
            0x48, 0x8b, 0x44, 0x24, 8, 0x48, 0x8b, 0x8c, 0x24, 128, 0, 0, 0,
        ];
        assert_eq!(besides(&stack), []);
    }
}
