//! Tracks how far the stack pointer is below its value at a function's entry.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::block_id::BlockId;
use super::blocks::Graph;
use crate::image::{Depth as Unwound, FunctionBounds, Image};

/// Depths in bytes; `None` where unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depth {
    stack: Option<i64>,
    /// The depth to which rbp points, while it is a frame pointer.
    frame: Option<i64>,
}

/// Most queries of unwind information for one function: each query reads it from the function's start.
const MAX_UNWIND_QUERIES: usize = 1024;

/// The depth of the stack at the end of each block.
pub(super) struct Stack {
    ends: Vec<Option<Depth>>,
}

impl Stack {
    /// Follows the stack pointer through a function from every block that is entered from outside. The depth
    /// there is that of the unwind information; without any, hand-written code is assumed to have the depth
    /// of the entry.
    pub(super) fn trace(graph: &Graph, bounds: &FunctionBounds, image: Option<&Image<'_>>) -> Self {
        let mut ends = vec![None; graph.blocks.len()];
        let mut queries = 0;
        for (index, block) in graph.blocks.iter().enumerate() {
            let is_entry = index == 0;
            if !(is_entry || block.entered_from_outside) || ends[index].is_some() {
                continue;
            }
            let address = graph.instructions[block.first as usize].ip();
            queries += 1;
            let described = image
                .filter(|_| queries <= MAX_UNWIND_QUERIES)
                .and_then(|image| image.depth_at(address));
            let signed = |depth: u64| i64::try_from(depth).ok();
            let (stack, frame) = match described {
                Some(Unwound::Stack(depth)) => (signed(depth), None),
                Some(Unwound::Frame(depth)) => (None, signed(depth)),
                None if is_entry || bounds.assembly => (Some(0), None),
                None => (None, None),
            };
            if let Ok(index) = u32::try_from(index) {
                follow(graph, BlockId(index), Depth { stack, frame }, &mut ends);
            }
        }
        Self { ends }
    }

    /// True if the stack pointer at a block's end is as at the entry, so that the return address is on top of
    /// the stack.
    pub(super) fn is_as_at_entry(&self, block: BlockId) -> bool {
        self.ends[block.index()].is_some_and(|depth| depth.stack == Some(0))
    }
}

/// Follows the stack pointer from one block to its successors. The first path found to a block counts:
/// compilers keep the depth at a place the same on all paths.
fn follow(graph: &Graph, from: BlockId, depth: Depth, ends: &mut [Option<Depth>]) {
    let mut work = vec![(from, depth)];
    while let Some((id, mut depth)) = work.pop() {
        if ends[id.index()].is_some() {
            continue;
        }
        let block = &graph.blocks[id.index()];
        for instruction in &graph.instructions[block.first as usize..block.end as usize] {
            step(instruction, &mut depth);
        }
        ends[id.index()] = Some(depth);
        let targets = block.successors.iter().chain(&block.landing_pad);
        work.extend(targets.map(|&target| (target, depth)));
    }
}

fn step(instruction: &Instruction, depth: &mut Depth) {
    let first = match instruction.op_count() {
        0 => Register::None,
        _ if instruction.op0_kind() == OpKind::Register => instruction.op0_register(),
        _ => Register::None,
    };
    let constant = (instruction.op_count() == 2)
        .then(|| match instruction.op1_kind() {
            OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
                Some(instruction.immediate(1).cast_signed())
            }
            _ => None,
        })
        .flatten();
    let add = |depth: Option<i64>, by: i64| depth.and_then(|depth| depth.checked_add(by));
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => depth.stack = add(depth.stack, 8),
        Mnemonic::Pop | Mnemonic::Popfq => {
            depth.stack = add(depth.stack, -8);
            if first == Register::RBP {
                depth.frame = None;
            }
            if first == Register::RSP {
                depth.stack = None;
            }
        }
        Mnemonic::Leave => {
            depth.stack = add(depth.frame, -8);
            depth.frame = None;
        }
        Mnemonic::Sub if first == Register::RSP => {
            depth.stack = constant.and_then(|by| add(depth.stack, by));
        }
        Mnemonic::Add if first == Register::RSP => {
            depth.stack = constant.and_then(|by| add(depth.stack, by.checked_neg()?));
        }
        Mnemonic::Lea if first == Register::RSP => {
            let by = instruction.memory_displacement64().cast_signed();
            let base = match instruction.memory_base() {
                _ if instruction.memory_index() != Register::None => None,
                Register::RSP => depth.stack,
                Register::RBP => depth.frame,
                // The end of a function with an aligned frame: a register has kept the address just above the
                // return address.
                Register::R10 | Register::R13 if by == -8 => Some(-8),
                _ => None,
            };
            depth.stack = add(base, by.wrapping_neg());
        }
        Mnemonic::Mov if first == Register::RBP && instruction.op1_kind() == OpKind::Register => {
            depth.frame = match instruction.op1_register() {
                Register::RSP => depth.stack,
                _ => None,
            };
        }
        Mnemonic::Mov if first == Register::RSP => {
            depth.stack = match instruction.op1_kind() {
                OpKind::Register if instruction.op1_register() == Register::RBP => depth.frame,
                _ => None,
            };
        }
        Mnemonic::Call | Mnemonic::Cmp | Mnemonic::Test => {}
        _ if first.full_register() == Register::RSP => depth.stack = None,
        _ if first.full_register() == Register::RBP => depth.frame = None,
        _ => {}
    }
}
