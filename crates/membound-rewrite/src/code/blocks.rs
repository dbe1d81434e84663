//! From instructions to basic blocks.

use std::collections::HashMap;

use iced_x86::Instruction;

use super::descent::{Descent, Flow, flow};
use super::table::Resolution;
use super::{Block, BlockEnd, BlockId};

/// A function's instructions in order, and its blocks.
pub(super) struct Graph {
    pub(super) instructions: Vec<Instruction>,
    pub(super) blocks: Vec<Block>,
    /// The blocks that a block may run after, inside the function.
    pub(super) predecessors: Vec<Vec<BlockId>>,
    /// Whether a call's exceptions are caught outside the function.
    pub(super) caught_elsewhere: bool,
}

fn block_id(index: usize) -> BlockId {
    BlockId(u32::try_from(index).expect("a function has fewer blocks than 2^32"))
}

/// Cuts what was decoded into blocks. `resolutions` says by address what is known of
/// indirect jumps.
pub(super) fn build(descent: &Descent<'_, '_>, resolutions: &HashMap<u64, Resolution>) -> Graph {
    let instructions: Vec<Instruction> = descent.in_order().copied().collect();
    let mut blocks: Vec<Block> = Vec::with_capacity(instructions.len() / 3);
    let mut starts: Vec<u64> = Vec::with_capacity(instructions.len() / 3);
    let mut goes_on_at = None;
    for (index, instruction) in instructions.iter().enumerate() {
        let index = u32::try_from(index).expect("a function has fewer bytes than 2^32");
        match blocks.last_mut() {
            Some(block)
                if goes_on_at == Some(instruction.ip()) && !descent.is_leader(instruction.ip()) =>
            {
                block.end = index + 1;
            }
            _ => {
                starts.push(instruction.ip());
                blocks.push(Block {
                    first: index,
                    end: index + 1,
                    leaves_by: BlockEnd::Stops,
                    successors: Vec::new(),
                    landing_pad: None,
                    entered_from_outside: descent.is_entered(instruction.ip()),
                });
            }
        }
        goes_on_at = (flow(instruction) == Flow::Next).then(|| instruction.next_ip());
    }
    let find = |address: u64| starts.binary_search(&address).ok().map(block_id);
    let mut graph = Graph {
        predecessors: vec![Vec::new(); blocks.len()],
        caught_elsewhere: false,
        instructions,
        blocks,
    };
    for block in &mut graph.blocks {
        let last = &graph.instructions[block.end as usize - 1];
        let ending = ending(descent, resolutions, last, &find);
        block.leaves_by = ending.leaves_by;
        block.successors = ending.successors;
        if matches!(block.leaves_by, BlockEnd::Call { .. }) {
            let pad = descent.surroundings.knowledge.landing_pad(last);
            block.landing_pad = pad.and_then(&find);
            graph.caught_elsewhere |= pad.is_some() && block.landing_pad.is_none();
        }
    }
    for (index, block) in graph.blocks.iter().enumerate() {
        for successor in &block.successors {
            graph.predecessors[successor.index()].push(block_id(index));
        }
    }
    graph
}

struct Ending {
    leaves_by: BlockEnd,
    successors: Vec<BlockId>,
}

fn ending(
    descent: &Descent<'_, '_>,
    resolutions: &HashMap<u64, Resolution>,
    last: &Instruction,
    find: &impl Fn(u64) -> Option<BlockId>,
) -> Ending {
    let next = last.next_ip();
    let ends = |leaves_by, successors| Ending {
        leaves_by,
        successors,
    };
    // Where nothing was decoded control may still go: off the function's end, or into bytes
    // that were not understood. Both leave the function as far as its blocks can tell.
    let leaves = |target, conditional, successors| {
        ends(
            BlockEnd::Leaves {
                target,
                conditional,
            },
            successors,
        )
    };
    match flow(last) {
        Flow::Next | Flow::SystemCall => match find(next) {
            Some(next) => ends(BlockEnd::FallsThrough, vec![next]),
            None => leaves(next, false, Vec::new()),
        },
        Flow::Jump(target) => match find(target) {
            Some(target) => ends(BlockEnd::Jump, vec![target]),
            None => leaves(target, false, Vec::new()),
        },
        Flow::Branch(target) => match (find(next), find(target)) {
            (Some(next), Some(target)) if next == target => ends(BlockEnd::Jump, vec![next]),
            (Some(next), Some(target)) => ends(BlockEnd::Jump, vec![next, target]),
            (Some(next), None) => leaves(target, true, vec![next]),
            (None, Some(target)) => leaves(next, true, vec![target]),
            (None, None) => leaves(target, true, Vec::new()),
        },
        Flow::Call(target) => {
            let after = find(next);
            // Compilers end functions with calls that do not return, and with no others.
            let off_the_end = next == descent.end() && !descent.bounds.assembly;
            let returns = descent.surroundings.call_returns(last, target) && !off_the_end;
            let successors = if returns {
                after.into_iter().collect()
            } else {
                Vec::new()
            };
            ends(BlockEnd::Call { target, returns }, successors)
        }
        Flow::Indirect => match resolutions.get(&last.ip()) {
            Some(Resolution::Table {
                inside, outside, ..
            }) => {
                let mut successors: Vec<BlockId> =
                    inside.iter().filter_map(|&target| find(target)).collect();
                successors.sort_unstable();
                successors.dedup();
                match outside.first() {
                    None => ends(BlockEnd::Table, successors),
                    Some(&target) => leaves(target, true, successors),
                }
            }
            Some(Resolution::TailCall) => ends(BlockEnd::TailCall, Vec::new()),
            Some(Resolution::Unresolved) | None => ends(BlockEnd::Unresolved, Vec::new()),
        },
        Flow::Return => ends(BlockEnd::Return, Vec::new()),
        Flow::Stops => ends(BlockEnd::Stops, Vec::new()),
    }
}
