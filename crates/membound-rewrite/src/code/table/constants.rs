//! Finds registers that hold one of a few constants, wherever these were loaded.
//!
//! Compilers keep the address of a table in a register, or spill it to the stack, far away from the jump that
//! uses it.

use std::cell::OnceCell;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::basic_block::BlockEnd;
use crate::code::block_id::BlockId;
use crate::code::blocks::Graph;
use crate::code::descent::{Flow, flow};

/// Most copies and spills that are followed in a chain.
const MAX_COPY_CHAIN: usize = 6;
/// Most different constants of a register; the search gives up beyond this.
const MAX_CONSTANTS: usize = 8;

/// Most blocks that are searched for one register.
const MAX_BLOCKS_SEARCHED: usize = 8192;

/// A stack slot: its base register and displacement.
type Slot = (Register, u64);

/// Finds constants in one function.
pub(super) struct Constants<'a> {
    graph: &'a Graph,
    /// Instructions that store to each stack slot, by block and index in the block; computed when first
    /// needed.
    stores: OnceCell<FxHashMap<Slot, Vec<(BlockId, usize)>>>,
}

impl<'a> Constants<'a> {
    pub(super) const fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            stores: OnceCell::new(),
        }
    }

    /// The constants that a register may hold before instruction `index` of a block; `None` if it may hold
    /// other values.
    pub(super) fn at(&self, block: BlockId, index: usize, register: Register) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        self.before(block, index, register, &mut found, MAX_COPY_CHAIN)?;
        (!found.is_empty()).then_some(found)
    }

    /// The constants that the stack slot at `base + displacement` may hold.
    pub(super) fn in_slot(&self, base: Register, displacement: u64) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        self.slot(base, displacement, &mut found, MAX_COPY_CHAIN)?;
        (!found.is_empty()).then_some(found)
    }

    /// Adds the constants that `register` may hold before instruction `index` of a block.
    fn before(
        &self,
        block: BlockId,
        index: usize,
        register: Register,
        found: &mut Vec<u64>,
        depth: usize,
    ) -> Option<()> {
        let mut visited = FxHashSet::default();
        let mut work = vec![(block, index)];
        while let Some((block, limit)) = work.pop() {
            let first = self.graph.blocks[block.index()].first as usize;
            let defined = (0..limit).rev().find_map(|index| {
                let instruction = &self.graph.instructions[first + index];
                writes(instruction, register).then_some((index, instruction))
            });
            if let Some((index, instruction)) = defined {
                self.define(block, index, instruction, found, depth)?;
                if found.len() > MAX_CONSTANTS {
                    return None;
                }
                continue;
            }
            if first == 0 {
                // The function's entry: the register may hold anything.
                return None;
            }
            for (predecessor, thrown) in self.sources(block) {
                let source = &self.graph.blocks[predecessor.index()];
                let is_call = matches!(source.leaves_by, BlockEnd::Call { .. });
                if (is_call || thrown) && !kept_by_calls(register) {
                    return None;
                }
                if visited.len() > MAX_BLOCKS_SEARCHED {
                    return None;
                }
                if visited.insert(predecessor) {
                    work.push((predecessor, (source.end - source.first) as usize));
                }
            }
        }
        Some(())
    }

    /// The blocks that may run directly before a block, each with whether control comes from it by an
    /// exception.
    fn sources(&self, block: BlockId) -> Vec<(BlockId, bool)> {
        let predecessors = self.graph.predecessors(block);
        if !predecessors.is_empty() || !self.graph.blocks[block.index()].entered_from_outside {
            return predecessors.iter().map(|&block| (block, false)).collect();
        }
        let thrown = self.graph.blocks.iter().enumerate();
        thrown
            .filter(|(_, source)| source.landing_pad == Some(block))
            .filter_map(|(index, _)| Some((BlockId(u32::try_from(index).ok()?), true)))
            .collect()
    }

    fn define(
        &self,
        block: BlockId,
        index: usize,
        instruction: &Instruction,
        found: &mut Vec<u64>,
        depth: usize,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let constant = match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Lea, _) if instruction.is_ip_rel_memory_operand() => {
                instruction.memory_displacement64()
            }
            (Mnemonic::Mov, OpKind::Register) if instruction.op1_register().is_gpr64() => {
                return self.before(block, index, instruction.op1_register(), found, depth);
            }
            (Mnemonic::Mov, OpKind::Memory)
                if matches!(instruction.memory_base(), Register::RSP | Register::RBP)
                    && instruction.memory_index() == Register::None =>
            {
                let displacement = instruction.memory_displacement64();
                return self.slot(instruction.memory_base(), displacement, found, depth);
            }
            (
                Mnemonic::Mov,
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64,
            ) => instruction.immediate(1),
            _ => return None,
        };
        if !found.contains(&constant) {
            found.push(constant);
        }
        Some(())
    }

    /// Adds the constants that are stored to a stack slot anywhere in the function.
    fn slot(
        &self,
        base: Register,
        displacement: u64,
        found: &mut Vec<u64>,
        depth: usize,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let stores = self.stores.get_or_init(|| stores(self.graph));
        for &(block, index) in stores.get(&(base, displacement)).into_iter().flatten() {
            let first = self.graph.blocks[block.index()].first as usize;
            let instruction = &self.graph.instructions[first + index];
            if instruction.mnemonic() != Mnemonic::Mov {
                return None;
            }
            match instruction.op1_kind() {
                OpKind::Register if instruction.op1_register().is_gpr64() => {
                    self.before(block, index, instruction.op1_register(), found, depth)?;
                }
                OpKind::Immediate32to64 => found.push(instruction.immediate(1)),
                _ => return None,
            }
            if found.len() > MAX_CONSTANTS {
                return None;
            }
        }
        Some(())
    }
}

/// All instructions that write to stack slots.
fn stores(graph: &Graph) -> FxHashMap<Slot, Vec<(BlockId, usize)>> {
    let mut found: FxHashMap<Slot, Vec<(BlockId, usize)>> = FxHashMap::default();
    for (id, block) in (0..).map(BlockId).zip(&graph.blocks) {
        let instructions = &graph.instructions[block.first as usize..block.end as usize];
        for (index, instruction) in instructions.iter().enumerate() {
            let stores = instruction.op_count() > 0
                && instruction.op0_kind() == OpKind::Memory
                && matches!(instruction.memory_base(), Register::RSP | Register::RBP)
                && instruction.memory_index() == Register::None
                && flow(instruction) == Flow::Next
                && !matches!(
                    instruction.mnemonic(),
                    Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push
                );
            if stores {
                let slot = (
                    instruction.memory_base(),
                    instruction.memory_displacement64(),
                );
                found.entry(slot).or_default().push((id, index));
            }
        }
    }
    found
}

/// True if functions preserve the register.
fn kept_by_calls(register: Register) -> bool {
    matches!(
        register,
        Register::RBX
            | Register::RBP
            | Register::RSP
            | Register::R12
            | Register::R13
            | Register::R14
            | Register::R15
    )
}

/// True if an instruction writes at least part of `register`, in the ways that occur in compiled code:
/// through its first operand, or implicitly.
fn writes(instruction: &Instruction, register: Register) -> bool {
    let first = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == register;
    if first {
        return !matches!(
            instruction.mnemonic(),
            Mnemonic::Cmp
                | Mnemonic::Test
                | Mnemonic::Push
                | Mnemonic::Bt
                | Mnemonic::Jmp
                | Mnemonic::Call
        );
    }
    let second = matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd)
        && instruction.op1_kind() == OpKind::Register
        && instruction.op1_register().full_register() == register;
    // The form with one operand writes rax and rdx; the others write only their first operand.
    let widening = instruction.mnemonic() == Mnemonic::Imul && instruction.op_count() == 1;
    second
        || (widening && matches!(register, Register::RAX | Register::RDX))
        || match register {
            Register::RAX => matches!(
                instruction.mnemonic(),
                Mnemonic::Mul
                    | Mnemonic::Div
                    | Mnemonic::Idiv
                    | Mnemonic::Cdqe
                    | Mnemonic::Cwde
                    | Mnemonic::Cmpxchg
                    | Mnemonic::Syscall
                    | Mnemonic::Cpuid
                    | Mnemonic::Rdtsc
                    | Mnemonic::Xgetbv
                    | Mnemonic::Lahf
            ),
            Register::RDX => matches!(
                instruction.mnemonic(),
                Mnemonic::Mul
                    | Mnemonic::Div
                    | Mnemonic::Idiv
                    | Mnemonic::Cqo
                    | Mnemonic::Cdq
                    | Mnemonic::Cpuid
                    | Mnemonic::Rdtsc
                    | Mnemonic::Xgetbv
            ),
            Register::RCX => {
                instruction.is_string_instruction()
                    || matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Cpuid)
            }
            Register::RSI | Register::RDI => instruction.is_string_instruction(),
            Register::RBX => instruction.mnemonic() == Mnemonic::Cpuid,
            Register::R11 => instruction.mnemonic() == Mnemonic::Syscall,
            Register::RBP => instruction.mnemonic() == Mnemonic::Leave,
            _ => false,
        }
}
