//! Loops that only wait until another thread changes a value in memory.
//!
//! A thread in such a loop ends it when the other thread stores the value, however fast it repeats the loop
//! itself. The loop is recognised in the machine code: all conditions on which it ends compare values that
//! the loop loads from fixed addresses, to which it does not store, with values that it does not change.

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use membound_run::ModuleId;

use crate::decoding::{AddressExpression, Changes, Functions, decoder};

/// A longer loop does more than wait.
const MAX_INSTRUCTIONS: usize = 32;
/// Most instructions through which a compared value is traced back.
const MAX_STEPS: u32 = 8;

/// True if the instruction at `address` belongs to a loop that only waits.
pub(super) fn waits_at(functions: &Functions<'_>, module: ModuleId, address: u64) -> bool {
    let Some(code) = functions.containing(module, address) else {
        return false;
    };
    let instructions: Vec<Instruction> = decoder(&code.bytes, code.address).into_iter().collect();
    let innermost = instructions
        .iter()
        .enumerate()
        .filter(|(_, it)| (it.near_branch_target()..=it.ip()).contains(&address) && jumps(it))
        .min_by_key(|(_, it)| it.ip() - it.near_branch_target());
    let Some((last, back)) = innermost else {
        return false;
    };
    let start = back.near_branch_target();
    let Ok(first) = instructions.binary_search_by_key(&start, Instruction::ip) else {
        return false;
    };
    last - first < MAX_INSTRUCTIONS && Body::new(&instructions[first..=last]).only_waits()
}

fn jumps(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    )
}

/// The instructions of a loop, from its first to the jump back.
struct Body<'a> {
    instructions: &'a [Instruction],
    /// By instruction.
    changes: Vec<Changes>,
}

impl<'a> Body<'a> {
    fn new(instructions: &'a [Instruction]) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let changes = instructions.iter().map(|it| Changes::of(&mut factory, it));
        Self {
            instructions,
            changes: changes.collect(),
        }
    }

    fn changes(&self, at: usize, register: Register) -> bool {
        self.changes[at].registers.contains(&register)
    }

    /// True if it can end only by conditions on values that others store.
    fn only_waits(&self) -> bool {
        let (start, end) = match self.instructions {
            [first, .., last] => (first.ip(), last.next_ip()),
            _ => return false,
        };
        let mut exits = 0;
        for (at, instruction) in self.instructions.iter().enumerate() {
            let stays = (start..end).contains(&instruction.near_branch_target());
            let is_last = at + 1 == self.instructions.len();
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::UnconditionalBranch if stays => {}
                FlowControl::ConditionalBranch => {
                    if !stays || is_last {
                        exits += 1;
                        if !self.depends_on_others(at) {
                            return false;
                        }
                    }
                }
                _ => return false,
            }
        }
        exits > 0
    }

    /// True if the conditional jump at `jump` depends on memory that others store to, and on nothing that the
    /// loop computes from iteration to iteration.
    fn depends_on_others(&self, jump: usize) -> bool {
        let flags = self
            .before(jump)
            .find(|&at| self.instructions[at].rflags_modified() != 0);
        let Some(at) = flags else { return false };
        let is_comparison = matches!(
            self.instructions[at].mnemonic(),
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt
        );
        is_comparison && self.inputs(at, MAX_STEPS) == Some(true)
    }

    /// Positions before `at`, from the next one back, and around to behind it.
    fn before(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        (0..at).rev().chain((at + 1..self.instructions.len()).rev())
    }

    /// Whether one of the operands that the instruction at `at` reads comes from memory; `None` if one of
    /// them is computed from its value in the iteration before.
    fn inputs(&self, at: usize, steps: u32) -> Option<bool> {
        let instruction = &self.instructions[at];
        let steps = steps.checked_sub(1)?;
        let mut comes_from_memory = false;
        // The first operand of a move is only written.
        let first = u32::from(is_move(instruction.mnemonic()));
        for operand in first..instruction.op_count() {
            comes_from_memory |= match instruction.op_kind(operand) {
                OpKind::Register => self.origin(instruction.op_register(operand), at, steps)?,
                OpKind::Memory if !self.is_stored_by_others(instruction) => return None,
                OpKind::Memory => true,
                _ => false,
            };
        }
        Some(comes_from_memory)
    }

    /// Whether the value that `register` has at `at` comes from memory; see [`Self::inputs`].
    fn origin(&self, register: Register, at: usize, steps: u32) -> Option<bool> {
        let register = register.full_register();
        let Some(from) = self.before(at).find(|&it| self.changes(it, register)) else {
            // It may be written by the instruction itself, in the iteration before.
            return (!self.changes(at, register)).then_some(false);
        };
        let keeps_no_count = is_move(self.instructions[from].mnemonic())
            || matches!(
                self.instructions[from].mnemonic(),
                Mnemonic::And | Mnemonic::Shr
            );
        if keeps_no_count {
            self.inputs(from, steps)
        } else {
            None
        }
    }

    /// True if the memory operand has the same address in each iteration, and the loop does not store there.
    fn is_stored_by_others(&self, instruction: &Instruction) -> bool {
        let address = AddressExpression::of(instruction);
        let changes = |it: &Changes| {
            address.depends_on(&it.registers) || it.memory.as_ref() == Some(&address)
        };
        !self.changes.iter().any(changes)
    }
}

const fn is_move(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    /// Whether a loop only waits, which `assemble` writes, with its first instruction at the label.
    fn only_waits(
        assemble: impl FnOnce(&mut CodeAssembler, CodeLabel) -> Result<(), IcedError>,
    ) -> bool {
        let mut assembler = CodeAssembler::new(64).unwrap();
        let mut start = assembler.create_label();
        assembler.set_label(&mut start).unwrap();
        assemble(&mut assembler, start).unwrap();
        let bytes = assembler.assemble(0x1000).unwrap();
        let instructions: Vec<Instruction> = decoder(&bytes, 0x1000).into_iter().collect();
        Body::new(&instructions).only_waits()
    }

    #[test]
    fn a_loop_waits_that_ends_when_a_value_changes() {
        assert!(only_waits(|a, start| {
            a.mov(edx, dword_ptr(0x4000))?;
            a.inc(rax)?;
            a.test(edx, edx)?;
            a.je(start)
        }));
        assert!(only_waits(|a, start| {
            a.pause()?;
            a.cmp(qword_ptr(rdi + 8), rcx)?;
            a.jl(start)
        }));
        assert!(only_waits(|a, start| {
            a.mov(rax, qword_ptr(rdi))?;
            a.shr(rax, 3)?;
            a.cmp(eax, ebx)?;
            a.jne(start)
        }));
        // Not optimised, with a counter on the stack.
        assert!(only_waits(|a, start| {
            a.add(qword_ptr(rbp - 8), 1)?;
            a.mov(eax, dword_ptr(0x4000))?;
            a.test(eax, eax)?;
            a.je(start)
        }));
    }

    #[test]
    fn a_loop_that_counts_or_walks_does_not_wait() {
        assert!(!only_waits(|a, start| {
            a.add(rax, qword_ptr(rdi))?;
            a.dec(rcx)?;
            a.jne(start)
        }));
        assert!(!only_waits(|a, start| {
            a.add(rcx, 1)?;
            a.cmp(rcx, qword_ptr(rdi))?;
            a.jl(start)
        }));
        assert!(!only_waits(|a, start| {
            a.mov(rax, qword_ptr(rax))?;
            a.test(rax, rax)?;
            a.jne(start)
        }));
        assert!(!only_waits(|a, start| {
            a.inc(qword_ptr(rbp - 8))?;
            a.mov(rax, qword_ptr(rbp - 8))?;
            a.cmp(rax, qword_ptr(rbp - 16))?;
            a.jl(start)
        }));
        assert!(!only_waits(|a, start| a.jmp(start)), "it never ends");
    }
}
