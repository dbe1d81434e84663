//! Solves dataflow problems that propagate facts backward through the blocks of a function.

mod written;

use iced_x86::{Code, Mnemonic, OpKind};

use super::state::State;
use crate::code::{BasicBlock, BlockEnd, Function};
use crate::{Gpr, RegisterSet};

/// Assumptions where control leaves a block for code that is not analysed.
pub(super) trait Boundary {
    /// State read by the code after a block whose end leaves the function for good. `None` if the function
    /// continues.
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet>;

    /// State that the callee of a block's last instruction reads, and state that it certainly overwrites.
    fn callee(&self, block: &BasicBlock) -> Callee;
}

/// The effect of a called function on state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callee {
    pub(super) reads: RegisterSet,
    pub(super) kills: RegisterSet,
}

/// The effects of a function's instructions, and the dataflow facts computed from them.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    states: Vec<State>,
    blocks: Vec<Transfer>,
    predecessors: Vec<u32>,
    predecessors_of: Vec<u32>,
    pending: Vec<u32>,
    queued: Vec<Queued>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    No,
    Yes,
}

/// How a block transforms the facts at its end into those at its beginning.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    reads: RegisterSet,
    kills: RegisterSet,
    /// The facts at its beginning, as far as they are known.
    before: RegisterSet,
    /// Facts at its end that hold whatever its successors say.
    always: RegisterSet,
    /// State that the callee at its end overwrites.
    callee_kills: RegisterSet,
}

impl Scratch {
    /// Removes the reads of system calls and of instructions with unknown effects: those reads are only
    /// worst-case assumptions.
    pub(super) fn believe_plain_reads_only(&mut self, function: &Function) {
        for (state, instruction) in self.states.iter_mut().zip(&function.instructions) {
            let vague = matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Int);
            if vague || *state == State::EVERYTHING {
                state.reads = RegisterSet::EMPTY;
            }
        }
    }

    /// Solves for the facts at the beginning of every block.
    pub(super) fn solve(&mut self, function: &Function, boundary: &impl Boundary) {
        let blocks = &function.blocks;
        self.blocks.clear();
        for block in blocks {
            let mut reads = RegisterSet::EMPTY;
            let mut kills = RegisterSet::EMPTY;
            for state in self.states[block.first as usize..block.end as usize]
                .iter()
                .rev()
            {
                reads = reads.without(state.kills).union(state.reads);
                kills = kills.union(state.kills);
            }
            let exit = boundary.exit(block.leaves_by);
            let mut transfer = Transfer {
                reads,
                kills,
                before: RegisterSet::EMPTY,
                always: exit.unwrap_or(RegisterSet::EMPTY),
                callee_kills: RegisterSet::EMPTY,
            };
            if exit.is_none() && block.successors.is_empty() {
                transfer.always = RegisterSet::ALL;
            }
            if let BlockEnd::Call { .. } = block.leaves_by {
                let callee = boundary.callee(block);
                transfer.always = transfer.always.without(callee.kills).union(callee.reads);
                transfer.callee_kills = callee.kills;
            }
            self.blocks.push(transfer);
        }
        self.link(function);
        self.keep_what_endless_loops_owe(function, boundary);
        self.iterate(function);
    }

    /// The facts before the first instruction of `block`.
    pub(super) fn at_block(&self, block: usize) -> RegisterSet {
        self.blocks[block].before
    }

    /// The facts before every instruction; `outside` for instructions that are in no block.
    pub(super) fn spread(&self, function: &Function, outside: RegisterSet) -> Vec<RegisterSet> {
        let mut before = vec![outside; function.instructions.len()];
        for (index, block) in function.blocks.iter().enumerate() {
            let (mut alive, everywhere) = self.at_end(function, index);
            for at in (block.first as usize..block.end as usize).rev() {
                let state = &self.states[at];
                alive = alive
                    .without(state.kills)
                    .union(state.reads)
                    .union(everywhere);
                before[at] = alive;
            }
        }
        before
    }

    fn link(&mut self, function: &Function) {
        let blocks = &function.blocks;
        self.predecessors_of.clear();
        self.predecessors_of.resize(blocks.len() + 1, 0);
        for block in blocks {
            for next in block.successors.iter().chain(&block.landing_pad) {
                self.predecessors_of[next.index() + 1] += 1;
            }
        }
        for index in 0..blocks.len() {
            self.predecessors_of[index + 1] += self.predecessors_of[index];
        }
        self.predecessors.clear();
        self.predecessors
            .resize(self.predecessors_of[blocks.len()] as usize, 0);
        // Filling moves each start to the start of the next; the loop after this moves them back.
        for (index, block) in blocks.iter().enumerate() {
            for next in block.successors.iter().chain(&block.landing_pad) {
                let place = &mut self.predecessors_of[next.index()];
                self.predecessors[*place as usize] = index as u32;
                *place += 1;
            }
        }
        for index in (1..=blocks.len()).rev() {
            self.predecessors_of[index] = self.predecessors_of[index - 1];
        }
        self.predecessors_of[0] = 0;
    }

    fn predecessors(&self, block: usize) -> std::ops::Range<usize> {
        self.predecessors_of[block] as usize..self.predecessors_of[block + 1] as usize
    }

    /// A loop that is left only by an exception must still preserve callee-saved state for the frames above:
    /// no instruction in it reads that state, so it is added here.
    fn keep_what_endless_loops_owe(&mut self, function: &Function, boundary: &impl Boundary) {
        self.queued.clear();
        self.queued.resize(function.blocks.len(), Queued::No);
        self.pending.clear();
        for (index, block) in function.blocks.iter().enumerate() {
            if boundary.exit(block.leaves_by).is_some() || block.successors.is_empty() {
                self.queued[index] = Queued::Yes;
                self.pending.push(index as u32);
            }
        }
        while let Some(block) = self.pending.pop() {
            for edge in self.predecessors(block as usize) {
                let before = self.predecessors[edge] as usize;
                if self.queued[before] == Queued::No {
                    self.queued[before] = Queued::Yes;
                    self.pending.push(before as u32);
                }
            }
        }
        for (transfer, reaches_exit) in self.blocks.iter_mut().zip(&self.queued) {
            if *reaches_exit == Queued::No {
                transfer.always = transfer.always.union(super::convention::CALLEE_SAVED);
            }
        }
    }

    fn iterate(&mut self, function: &Function) {
        self.pending.clear();
        self.pending.extend(0..function.blocks.len() as u32);
        self.queued.clear();
        self.queued.resize(function.blocks.len(), Queued::Yes);
        while let Some(block) = self.pending.pop() {
            let block = block as usize;
            self.queued[block] = Queued::No;
            let (end, everywhere) = self.at_end(function, block);
            let transfer = &mut self.blocks[block];
            let before = end
                .without(transfer.kills)
                .union(transfer.reads)
                .union(everywhere);
            if before == transfer.before {
                continue;
            }
            transfer.before = before;
            for edge in self.predecessors(block) {
                let earlier = self.predecessors[edge];
                if self.queued[earlier as usize] == Queued::No {
                    self.queued[earlier as usize] = Queued::Yes;
                    self.pending.push(earlier);
                }
            }
        }
    }

    /// The facts after the last instruction of `block`, before the effects of its callee, and the facts that
    /// hold at all of its instructions because each of them may go to a landing pad.
    fn at_end(&self, function: &Function, index: usize) -> (RegisterSet, RegisterSet) {
        let block = &function.blocks[index];
        let transfer = &self.blocks[index];
        let mut end = RegisterSet::EMPTY;
        for next in &block.successors {
            end = end.union(self.blocks[next.index()].before);
        }
        end = end.without(transfer.callee_kills).union(transfer.always);
        let Some(pad) = block.landing_pad else {
            return (end, RegisterSet::EMPTY);
        };
        let pad = self.blocks[pad.index()].before;
        match block.leaves_by {
            BlockEnd::Call { .. } => (end.union(pad), RegisterSet::EMPTY),
            _ => (end.union(pad), pad),
        }
    }
}

/// True if the call has the form of a call of a thread-local storage descriptor, `call [rax]`: its resolver
/// preserves everything but rax.
pub(super) fn may_call_descriptor(function: &Function, block: &BasicBlock) -> bool {
    let Some(call) = function.block_instructions(block).last() else {
        return true;
    };
    call.code() == Code::Call_rm64
        && call.op0_kind() == OpKind::Memory
        && call.memory_base() == iced_x86::Register::RAX
        && call.memory_index() == iced_x86::Register::None
        && call.memory_displacement64() == 0
}

/// rsp, which is alive everywhere: a signal may arrive at any instruction.
pub(super) const STACK_POINTER: RegisterSet = RegisterSet::gpr(Gpr::RSP);
