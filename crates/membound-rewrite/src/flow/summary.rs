//! What functions as a whole do to state, and what that lets a caller assume.

use iced_x86::{Code, FlowControl, Instruction};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use super::Analyst;
use super::backward::{Boundary, Callee, Scratch};
use super::convention::{ARGUMENTS, CALLEE_SAVED, CALLER_SAVED, SCRATCH};
use crate::code::{Block, BlockEnd, Function, Unresolved};
use crate::image::Convention;
use crate::{RegisterSet, VectorPart};

/// What one function does to state by its own instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// What any of its instructions may write, its callees not included.
    pub writes: RegisterSet,
    /// What its own instructions read or write, also where nothing else is taken for granted of
    /// it.
    pub touches: RegisterSet,
    /// What it certainly does not hand back as it got it, where it writes it at all:
    /// `writes` without the registers that may be put back.
    pub clobbers: RegisterSet,
    /// What it may read before it writes it, its callees and continuations included.
    pub reads_before_write: RegisterSet,
    /// Where it jumps to outside itself.
    pub leaves_to: Box<[u64]>,
    /// Functions that it calls directly.
    pub calls: Box<[u64]>,
    /// Of those, the ones after which it looks at what the ABI lets nobody return anything
    /// in. They have conventions of their own, unless they leave that as it was.
    pub wants: Box<[(u64, RegisterSet)]>,
}

impl Summary {
    /// What `function` does.
    #[must_use]
    pub fn of(function: &Function, analyst: &mut Analyst) -> Self {
        let mut scratch = analyst.take_scratch();
        let written = scratch.load(function, analyst);
        let leaves_to = targets(function, |block| match block.leaves_by {
            BlockEnd::Leaves { target, .. } => Some(target),
            _ => None,
        });
        let calls = targets(function, direct_callee);
        let touches = match function.unresolved {
            Some(Unresolved::Undecodable(_)) => RegisterSet::ALL,
            _ => touched(function, analyst),
        };
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
                    touches,
                    writes: written.any,
                    clobbers: written.clobbered,
                    reads_before_write: scratch.at_block(entry),
                    wants: wants(function, &calls, &mut scratch),
                    leaves_to,
                    calls,
                }
            }
            _ => Self {
                touches,
                writes: RegisterSet::ALL,
                clobbers: RegisterSet::EMPTY,
                reads_before_write: RegisterSet::ALL,
                wants: wants(function, &calls, &mut scratch),
                leaves_to,
                calls,
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
        if leaves_by.stays_inside() {
            return None;
        }
        Some(match leaves_by {
            BlockEnd::Call { .. } => CALLEE_SAVED,
            BlockEnd::Return => RegisterSet::EMPTY,
            _ => ARGUMENTS,
        })
    }

    fn callee(&self, _: &Block) -> Callee {
        Callee {
            reads: ARGUMENTS,
            kills: RegisterSet::EMPTY,
        }
    }
}

/// The addresses that `of` finds in a function's blocks, each once.
fn targets(function: &Function, of: impl Fn(&Block) -> Option<u64>) -> Box<[u64]> {
    let mut targets: Vec<u64> = function.blocks.iter().filter_map(of).collect();
    targets.sort_unstable();
    targets.dedup();
    targets.into()
}

fn direct_callee(block: &Block) -> Option<u64> {
    match block.leaves_by {
        BlockEnd::Call {
            target,
            returns: true,
        } => target,
        _ => None,
    }
}

/// What the function's own instructions look at after each of its direct calls that nothing
/// is returned in under the ABI.
fn wants(function: &Function, calls: &[u64], scratch: &mut Scratch) -> Box<[(u64, RegisterSet)]> {
    if calls.is_empty() {
        return Box::default();
    }
    scratch.believe_plain_reads_only(function);
    scratch.solve(function, &Alone);
    let mut wants: Vec<(u64, RegisterSet)> = Vec::new();
    for block in &function.blocks {
        if let (Some(callee), [site]) = (direct_callee(block), &block.successors[..]) {
            let looked_at = scratch.at_block(site.index()).intersection(SCRATCH);
            if looked_at != RegisterSet::EMPTY {
                wants.push((callee, looked_at));
            }
        }
    }
    wants.into()
}

/// Asks what a function's own instructions read: nobody else reads anything, and a callee
/// overwrites what the ABI lets it.
struct Alone;

impl Boundary for Alone {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        (!leaves_by.stays_inside()).then_some(RegisterSet::EMPTY)
    }

    fn callee(&self, _: &Block) -> Callee {
        Callee {
            reads: RegisterSet::EMPTY,
            kills: CALLER_SAVED,
        }
    }
}

/// The summaries of a module's functions, by where they start.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    by_start: FxHashMap<u64, Summary>,
    left_for: FxHashSet<u64>,
    /// What is looked at after a function's return and not returned in under the ABI.
    looked_at: FxHashMap<u64, RegisterSet>,
    /// What any instruction of the module reads or writes.
    touched: RegisterSet,
}

impl Summaries {
    /// All of them, each with where its function starts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Summary)> {
        self.by_start
            .iter()
            .map(|(start, summary)| (*start, summary))
    }

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

    /// What callers in this module look at when the function at `address` has returned,
    /// although the ABI lets nobody return anything in it and the function overwrites it:
    /// assembly with conventions of its own. A function that such a one calls or jumps to
    /// may be where it comes from.
    #[must_use]
    pub fn returned_unconventionally(&self, address: u64) -> RegisterSet {
        let looked_at = self.looked_at.get(&address);
        let clobbers = self.by_start.get(&address).map(|summary| summary.clobbers);
        looked_at
            .zip(clobbers)
            .map_or(RegisterSet::EMPTY, |(looked_at, clobbers)| {
                looked_at.intersection(clobbers)
            })
    }

    /// Hands what is looked at after a call down to whatever may have put it there.
    fn find_unconventional(&mut self) {
        let mut pending: Vec<(u64, RegisterSet)> = self
            .by_start
            .values()
            .flat_map(|summary| summary.wants.iter().copied())
            .collect();
        while let Some((address, looked_at)) = pending.pop() {
            let Some(summary) = self.by_start.get(&address) else {
                continue;
            };
            let known = self.looked_at.entry(address).or_insert(RegisterSet::EMPTY);
            if known.union(looked_at) != *known {
                *known = known.union(looked_at);
                let others = summary.calls.iter().chain(&summary.leaves_to);
                pending.extend(others.map(|other| (*other, looked_at)));
            }
        }
    }
}

impl FromIterator<(u64, Summary)> for Summaries {
    fn from_iter<I: IntoIterator<Item = (u64, Summary)>>(summaries: I) -> Self {
        let by_start: FxHashMap<u64, Summary> = summaries.into_iter().collect();
        let left_for = by_start
            .values()
            .flat_map(|summary| summary.leaves_to.iter().copied())
            .collect();
        let touched = by_start.values().fold(RegisterSet::EMPTY, |all, summary| {
            all.union(summary.touches)
        });
        let mut summaries = Self {
            touched,
            by_start,
            left_for,
            looked_at: FxHashMap::default(),
        };
        summaries.find_unconventional();
        summaries
    }
}

impl Conventions<'_> {
    /// Vector and mask registers that hold nothing for any caller of `function`, though they may
    /// look alive: no instruction of the module reads or writes them.
    ///
    /// A caller that keeps a value in a caller-saved register over a call, since it has seen the
    /// function compiled, is of the same module, and has written it there; others keep to the ABI.
    /// What may be handed through without being touched stays: vector arguments of functions that go
    /// on elsewhere, and what a function may return as it got it. Of these the upper parts are left
    /// out where the module touches none: it was not compiled for them.
    #[must_use]
    pub fn unused_vectors(&self, function: &Function) -> RegisterSet {
        if self.convention != Convention::SystemV || self.summaries.by_start.is_empty() {
            return RegisterSet::EMPTY;
        }
        let stays_inside = function.blocks.iter().all(|block| {
            block.leaves_by.stays_inside() || matches!(block.leaves_by, BlockEnd::Return)
        });
        let handed_through = if stays_inside { 2 } else { ARGUMENT_VECTORS };
        let touched = self.summaries.touched;
        let uses_upper = touched.intersects(UPPER);
        let mut unused = RegisterSet::MASKS;
        for number in 0..32 {
            for part in [VectorPart::Xmm, VectorPart::YmmHigh, VectorPart::ZmmHigh] {
                let kept = number < handed_through && (part == VectorPart::Xmm || uses_upper);
                if !kept {
                    unused = unused.union(RegisterSet::vector(number, part));
                }
            }
        }
        unused.without(touched)
    }
}

/// Vector registers that carry arguments.
const ARGUMENT_VECTORS: u8 = 8;

/// What only code that was compiled for it has to do with.
const UPPER: RegisterSet = {
    let mut set = RegisterSet::MASKS;
    let mut number = 0;
    while number < 32 {
        set = set
            .union(RegisterSet::vector(number, VectorPart::YmmHigh))
            .union(RegisterSet::vector(number, VectorPart::ZmmHigh));
        number += 1;
    }
    set
};

fn touched(function: &Function, analyst: &mut Analyst) -> RegisterSet {
    let mut touched = RegisterSet::EMPTY;
    // What ends a program, or enters the kernel, is taken to do anything, and keeps no value for
    // anybody here.
    let computes = |instruction: &&Instruction| {
        !instruction.is_privileged()
            && !matches!(
                instruction.flow_control(),
                FlowControl::Exception | FlowControl::Interrupt
            )
            && instruction.code() != Code::Syscall
    };
    for instruction in function.instructions.iter().filter(computes) {
        let effects = analyst.effects(instruction);
        touched = touched.union(effects.reads).union(effects.writes);
    }
    touched
}

/// What may be assumed at calls and returns.
#[derive(Clone, Copy, Debug)]
pub struct Conventions<'a> {
    /// The module's convention.
    pub convention: Convention,
    /// Of all functions of the module. Of a function that is missing nothing is known.
    pub summaries: &'a Summaries,
}
