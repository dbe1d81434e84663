//! What functions as a whole do to state, and what that lets a caller assume.

use std::collections::HashMap;

use super::Analyst;
use super::backward::{Boundary, Callee};
use super::convention::{ARGUMENTS, CALLEE_SAVED};
use crate::RegisterSet;
use crate::code::{Block, BlockEnd, Function};
use crate::image::Convention;

/// What one function does to state by its own instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What any of its instructions may write, its callees not included.
    pub writes: RegisterSet,
    /// What it certainly does not hand back as it got it, where it writes it at all:
    /// `writes` without the registers that it pops.
    pub clobbers: RegisterSet,
    /// What it may read before it writes it, its callees and continuations included.
    pub reads_before_write: RegisterSet,
    /// Where it jumps to outside itself.
    pub leaves_to: Box<[u64]>,
}

impl Summary {
    /// What `function` does.
    #[must_use]
    pub fn of(function: &Function, analyst: &mut Analyst) -> Self {
        let mut scratch = analyst.take_scratch();
        let written = scratch.load(function, analyst);
        let mut leaves_to: Vec<u64> = function
            .blocks
            .iter()
            .filter_map(|block| match block.leaves_by {
                BlockEnd::Leaves { target, .. } => Some(target),
                _ => None,
            })
            .collect();
        leaves_to.sort_unstable();
        leaves_to.dedup();
        let entry = function.bounds.range.start;
        let entry = function.blocks.iter().position(|block| {
            function
                .block_instructions(block)
                .first()
                .is_some_and(|first| first.ip() == entry)
        });
        let summary = match entry {
            Some(entry) if !function.bounds.assembly => {
                scratch.solve(function, &Entered);
                Self {
                    writes: written.any,
                    clobbers: written.clobbered,
                    reads_before_write: scratch.at_block(entry),
                    leaves_to: leaves_to.into(),
                }
            }
            _ => Self {
                writes: RegisterSet::ALL,
                clobbers: RegisterSet::EMPTY,
                reads_before_write: RegisterSet::ALL,
                leaves_to: leaves_to.into(),
            },
        };
        analyst.return_scratch(scratch);
        summary
    }
}

/// Asks what is read of the state at entry: whatever leaves the function may look at
/// whatever can be an argument.
struct Entered;

impl Boundary for Entered {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        match leaves_by {
            BlockEnd::FallsThrough | BlockEnd::Jump | BlockEnd::Table => None,
            BlockEnd::Call { returns: true, .. } => None,
            BlockEnd::Call { returns: false, .. } => Some(CALLEE_SAVED),
            BlockEnd::Return => Some(RegisterSet::EMPTY),
            BlockEnd::Leaves { .. }
            | BlockEnd::TailCall
            | BlockEnd::Unresolved
            | BlockEnd::Stops => Some(ARGUMENTS),
        }
    }

    fn callee(&self, _: &Block) -> Callee {
        Callee {
            reads: ARGUMENTS,
            kills: RegisterSet::EMPTY,
        }
    }
}

/// The summaries of a module's functions, by where they start.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    by_start: HashMap<u64, Summary>,
    left_for: std::collections::HashSet<u64>,
}

impl Summaries {
    /// What is known of the function that starts at `address`.
    #[must_use]
    pub fn get(&self, address: u64) -> Option<&Summary> {
        self.by_start.get(&address)
    }

    /// Whether another function may jump to `address` with state of its own on the stack:
    /// one does, or not all functions are known.
    #[must_use]
    pub fn may_continue_another(&self, address: u64) -> bool {
        self.left_for.contains(&address) || !self.by_start.contains_key(&address)
    }
}

impl FromIterator<(u64, Summary)> for Summaries {
    fn from_iter<I: IntoIterator<Item = (u64, Summary)>>(summaries: I) -> Self {
        let by_start: HashMap<u64, Summary> = summaries.into_iter().collect();
        let left_for = by_start
            .values()
            .flat_map(|summary| summary.leaves_to.iter().copied())
            .collect();
        Self { by_start, left_for }
    }
}

/// What may be assumed at calls and returns.
#[derive(Clone, Copy, Debug)]
pub struct Conventions<'a> {
    /// The module's convention.
    pub convention: Convention,
    /// Of all functions of the module. Of a function that is missing nothing is known.
    pub summaries: &'a Summaries,
}
