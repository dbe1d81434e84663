//! Divides decoded instructions into basic blocks.

use std::cell::OnceCell;

use iced_x86::Instruction;
use rustc_hash::FxHashMap;

use super::basic_block::{BasicBlock, BlockEnd};
use super::block_id::BlockId;
use super::descent::{Descent, Flow, flow};
use super::resolution::Resolution;
use super::successors::Successors;

/// A function's instructions in order of address, and its blocks.
pub(super) struct Graph {
    pub(super) instructions: Vec<Instruction>,
    pub(super) blocks: Vec<BasicBlock>,
    /// True if an exception thrown by a call is caught outside the function.
    pub(super) caught_elsewhere: bool,
    /// Computed on demand: only jump tables need them.
    predecessors: OnceCell<Predecessors>,
}

struct Predecessors {
    /// Index in `all` of each block's first predecessor; one entry more than there are blocks.
    first: Vec<u32>,
    all: Vec<BlockId>,
}

impl Graph {
    /// The blocks of the function that may run directly before a block.
    pub(super) fn predecessors(&self, block: BlockId) -> &[BlockId] {
        let predecessors = self
            .predecessors
            .get_or_init(|| Predecessors::of(&self.blocks));
        let first = &predecessors.first[block.index()..];
        &predecessors.all[first[0] as usize..first[1] as usize]
    }
}

impl Predecessors {
    fn of(blocks: &[BasicBlock]) -> Self {
        let mut first = vec![0_u32; blocks.len() + 1];
        let targets = blocks.iter().flat_map(|block| &block.successors);
        for target in targets {
            first[target.index() + 1] += 1;
        }
        for index in 0..blocks.len() {
            first[index + 1] += first[index];
        }
        let mut next = first.clone();
        let mut all = vec![BlockId(0); first[blocks.len()] as usize];
        for (index, block) in blocks.iter().enumerate() {
            for target in &block.successors {
                let place = &mut next[target.index()];
                all[*place as usize] = block_id(index);
                *place += 1;
            }
        }
        Self { first, all }
    }
}

fn block_id(index: usize) -> BlockId {
    BlockId(u32::try_from(index).expect("a function has fewer blocks than 2^32"))
}

/// Marks a byte where no block begins.
const NONE: u32 = u32::MAX;

/// Divides the decoded instructions into blocks. `resolutions` has the known targets of indirect jumps, by
/// address.
pub(super) fn build(descent: &Descent<'_, '_>, resolutions: &FxHashMap<u64, Resolution>) -> Graph {
    let mut instructions: Vec<Instruction> = Vec::with_capacity(descent.instructions.len());
    instructions.extend(descent.in_order());
    let mut blocks: Vec<BasicBlock> = Vec::with_capacity(instructions.len() / 3);
    // For each byte of the function, the block that begins there.
    let length = usize::try_from(descent.end() - descent.start()).expect("it is in memory");
    let mut begins = vec![NONE; length];
    let mut ended_at = None;
    for (index, instruction) in instructions.iter().enumerate() {
        let index = u32::try_from(index).expect("a function has fewer bytes than 2^32");
        let ip = instruction.ip();
        // An instruction that does not continue with the next one has made that one a leader, if it exists.
        match blocks.last_mut() {
            Some(block) if ended_at == Some(ip) && !descent.is_leader(ip) => {
                block.end = index + 1;
            }
            _ => {
                if let Some(offset) = descent.offset(ip) {
                    begins[offset] = block_id(blocks.len()).0;
                }
                blocks.push(BasicBlock {
                    first: index,
                    end: index + 1,
                    leaves_by: BlockEnd::Stops,
                    successors: Successors::default(),
                    landing_pad: None,
                    entered_from_outside: descent.is_entered(ip),
                });
            }
        }
        ended_at = Some(instruction.next_ip());
    }
    let find = |address: u64| {
        let block = begins[descent.offset(address)?];
        (block != NONE).then_some(BlockId(block))
    };
    let mut graph = Graph {
        predecessors: OnceCell::new(),
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
    graph
}

struct Ending {
    leaves_by: BlockEnd,
    successors: Successors,
}

fn ending(
    descent: &Descent<'_, '_>,
    resolutions: &FxHashMap<u64, Resolution>,
    last: &Instruction,
    find: &impl Fn(u64) -> Option<BlockId>,
) -> Ending {
    let next = last.next_ip();
    let ends = |leaves_by, successors: &[BlockId]| Ending {
        leaves_by,
        successors: Successors::of(successors),
    };
    // Control may go where nothing was decoded: beyond the function's end, or into bytes that cannot be
    // decoded. In both cases it counts as leaving the function.
    let leaves = |target, conditional, successors: &[BlockId]| {
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
            Some(next) => ends(BlockEnd::FallsThrough, &[next]),
            None => leaves(next, false, &[]),
        },
        Flow::Jump(target) => match find(target) {
            Some(target) => ends(BlockEnd::Jump, &[target]),
            None => leaves(target, false, &[]),
        },
        Flow::Branch(target) => match (find(next), find(target)) {
            (Some(next), Some(target)) if next == target => ends(BlockEnd::Jump, &[next]),
            (Some(next), Some(target)) => ends(BlockEnd::Jump, &[next, target]),
            (Some(next), None) => leaves(target, true, &[next]),
            (None, Some(target)) => leaves(next, true, &[target]),
            (None, None) => leaves(target, true, &[]),
        },
        Flow::Call(target) => {
            let after = find(next);
            // Compilers end a function with a call only if that call does not return.
            let off_the_end = next == descent.end() && !descent.bounds.assembly;
            let returns = descent.surroundings.call_returns(last, target) && !off_the_end;
            let after = after.filter(|_| returns);
            ends(BlockEnd::Call { target, returns }, after.as_slice())
        }
        Flow::Indirect => match resolutions.get(&last.ip()) {
            Some(
                resolution @ (Resolution::Table { inside, .. } | Resolution::Labels { inside }),
            ) => {
                let mut successors: Vec<BlockId> =
                    inside.iter().filter_map(|&target| find(target)).collect();
                successors.sort_unstable();
                successors.dedup();
                match resolution.outside().first() {
                    // None of its targets is code: the table was misunderstood.
                    None if successors.is_empty() => ends(BlockEnd::Unresolved, &[]),
                    None => ends(BlockEnd::Table, &successors),
                    Some(&target) => leaves(target, true, &successors),
                }
            }
            Some(Resolution::TailCall) => ends(BlockEnd::TailCall, &[]),
            Some(Resolution::Unresolved) | None => ends(BlockEnd::Unresolved, &[]),
        },
        Flow::Return => ends(BlockEnd::Return, &[]),
        Flow::Stops => ends(BlockEnd::Stops, &[]),
    }
}
