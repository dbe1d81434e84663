//! Chooses the instruction of a basic block before which the block's body is put.
//!
//! Control enters a block at its first instruction and leaves it at its last, so a body before any of them
//! runs as often as the block. Instructions that another plan patches come first, then those that need no punned
//! jump; among those, the one where the body costs least.

use iced_x86::{Code, Instruction};

use super::body::{Cost, SettledBody};
use super::companions::Companions;
use super::subject::{self, Subject};
use super::surroundings::Surroundings;
use super::{EDIT, Options};
use crate::code::BasicBlock;
use crate::flow::access;

/// A chosen instruction and its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChosenInstruction {
    /// Index of the instruction in its function.
    pub instruction: usize,
    /// Address of the block in the file.
    pub block: u64,
}

/// How suitable an instruction is; the smallest value is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suitability {
    /// True if the instruction cannot have a body or cannot be moved.
    impossible: bool,
    /// True if it is not among [`Options::preferred`].
    is_other: bool,
    /// True if it and the neighbours that can move with it have fewer than five bytes.
    cramped: bool,
    cost: Cost,
}

/// One instruction of each block that begins at one of `starts`, in the order of the blocks. `origin` is the
/// module's first page.
pub(super) fn choose(
    subject: &Subject<'_>,
    starts: &[u64],
    options: &Options,
    origin: u64,
) -> Vec<ChosenInstruction> {
    let function = subject.function;
    let blocks = function.blocks.iter().filter_map(|block| {
        let start = function.block_instructions(block).first()?.ip();
        starts.binary_search(&start).ok()?;
        let best = (block.first..block.end)
            .map(|index| index as usize)
            .min_by_key(|index| (merit(subject, block, *index, options, origin), *index))?;
        Some(ChosenInstruction {
            instruction: best,
            block: start,
        })
    });
    blocks.collect()
}

fn merit(
    subject: &Subject<'_>,
    block: &BasicBlock,
    index: usize,
    options: &Options,
    origin: u64,
) -> Suitability {
    let function = subject.function;
    let instruction = &function.instructions[index];
    let movable =
        |index: usize| subject::movable(subject, &function.instructions[index], origin).is_some();
    let around = Surroundings::before(subject.liveness, index);
    let access = access(instruction);
    let start = function.instructions[block.first as usize].ip();
    let settled = SettledBody::settle(
        options.body_at(start),
        options,
        around,
        instruction,
        access.as_ref(),
        |_| Companions::default(),
    );
    let impossible = Suitability {
        impossible: true,
        is_other: true,
        cramped: true,
        cost: Cost::MAX,
    };
    // System calls are patched as hooks, not here.
    let free = instruction.code() != Code::Syscall && movable(index);
    let (Ok(body), true) = (settled, free) else {
        return impossible;
    };
    let room = if function.unresolved.is_some() {
        instruction.len()
    } else {
        // Neighbours in the block can move along while they are movable.
        let mut first = index;
        while first > block.first as usize && movable(first - 1) {
            first -= 1;
        }
        let mut end = index + 1;
        while end < block.end as usize && movable(end) {
            end += 1;
        }
        let all = &function.instructions[first..end];
        all.iter().map(Instruction::len).sum()
    };
    Suitability {
        impossible: false,
        is_other: options.preferred.binary_search(&instruction.ip()).is_err(),
        cramped: room < EDIT,
        cost: body.cost(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::code::{Function, ImageFacts, Tables};
    use crate::image::Image;
    use crate::patch::{Body, Hooks, Plan, Sites};

    #[test]
    fn most_blocks_can_be_counted_and_each_has_one_site() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let knowledge = ImageFacts::gather(&image, Tables::Resolve);
        let mut starts = Vec::new();
        for index in (0..image.functions().len()).step_by(7) {
            let function = Function::decode(&image, &knowledge, index);
            let blocks = function.blocks.iter();
            starts.extend(blocks.map(|block| function.block_instructions(block)[0].ip()));
        }
        starts.sort_unstable();
        let mut options = Options::new(Body::Count { exact: false });
        options.hooks = Hooks::LeaveOut;
        options.sites = Sites::Blocks(starts.clone());
        let plan = Plan::make(&image, &options);
        let sites: Vec<u64> = plan.sites().map(|site| site.address).collect();
        assert_eq!(sites, starts);
        let mut refused: BTreeMap<_, usize> = BTreeMap::new();
        for site in plan.sites() {
            if let Err(refusal) = site.number {
                *refused.entry(refusal).or_default() += 1;
            }
        }
        let lost: usize = refused.values().sum();
        assert!(lost * 4 < starts.len(), "{refused:?} of {}", starts.len());
    }
}
