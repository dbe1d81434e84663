//! Summaries: the effect of whole functions on state, and what a caller may assume from it.

use iced_x86::{Code, FlowControl, Instruction};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use super::Analyst;
use super::backward::{Boundary, Callee, Scratch};
use super::convention::{ARGUMENTS, CALLEE_SAVED, CALLER_SAVED, SCRATCH};
use crate::code::{BasicBlock, BlockEnd, Function, Unresolved};
use crate::image::Convention;
use crate::{RegisterSet, VectorPart};

/// The effect of one function's own instructions on state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// State that any of its instructions may write, without its callees.
    pub writes: RegisterSet,
    /// State that its own instructions read or write; everything if its bytes cannot be decoded. The
    /// instructions decide this even where the other fields are worst-case assumptions.
    pub touches: RegisterSet,
    /// State that the function writes and certainly does not hand back unchanged: `writes` without the
    /// registers that it may restore.
    pub clobbers: RegisterSet,
    /// State that it may read before it writes it, including its callees and the code it jumps to.
    pub reads_before_write: RegisterSet,
    /// Targets of its jumps to other functions.
    pub leaves_to: Box<[u64]>,
    /// Functions that it calls directly.
    pub calls: Box<[u64]>,
    /// Direct callees after which it reads state in which the ABI returns nothing, with that state. Such a
    /// callee has a convention of its own, unless it left the state unchanged.
    pub wants: Box<[(u64, RegisterSet)]>,
}

impl Summary {
    /// Computes the summary of `function`.
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
                scratch.solve(function, &EntryBoundary);
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

/// Boundary for the state read from the entry: code outside the function may read everything that can be
/// an argument.
struct EntryBoundary;

impl Boundary for EntryBoundary {
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

    fn callee(&self, _: &BasicBlock) -> Callee {
        Callee {
            reads: ARGUMENTS,
            kills: RegisterSet::EMPTY,
        }
    }
}

/// The addresses that `of` finds in a function's blocks, sorted, each once.
fn targets(function: &Function, of: impl Fn(&BasicBlock) -> Option<u64>) -> Box<[u64]> {
    let mut targets: Vec<u64> = function.blocks.iter().filter_map(of).collect();
    targets.sort_unstable();
    targets.dedup();
    targets.into()
}

fn direct_callee(block: &BasicBlock) -> Option<u64> {
    match block.leaves_by {
        BlockEnd::Call {
            target,
            returns: true,
        } => target,
        _ => None,
    }
}

/// For each direct callee, the state that the function's own instructions read after the call although the
/// ABI returns nothing in it.
fn wants(function: &Function, calls: &[u64], scratch: &mut Scratch) -> Box<[(u64, RegisterSet)]> {
    if calls.is_empty() {
        return Box::default();
    }
    scratch.believe_plain_reads_only(function);
    scratch.solve(function, &OwnReadsBoundary);
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

/// Boundary for what a function's own instructions read: code outside reads nothing, and a callee overwrites
/// all that the ABI lets it overwrite.
struct OwnReadsBoundary;

impl Boundary for OwnReadsBoundary {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        (!leaves_by.stays_inside()).then_some(RegisterSet::EMPTY)
    }

    fn callee(&self, _: &BasicBlock) -> Callee {
        Callee {
            reads: RegisterSet::EMPTY,
            kills: CALLER_SAVED,
        }
    }
}

/// The summaries of a module's functions, by start address.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    by_start: FxHashMap<u64, Summary>,
    left_for: FxHashSet<u64>,
    /// For each function, the state that is read after its return although the ABI returns nothing in it.
    looked_at: FxHashMap<u64, RegisterSet>,
    /// State that any instruction of the module reads or writes.
    touched: RegisterSet,
    /// True if functions of the module are missing, whose assumptions are not known.
    is_partial: bool,
}

impl Summaries {
    /// The same, of only some functions of the module: the others may assume anything that the ABI does not
    /// forbid.
    pub(crate) fn of_some(self) -> Self {
        Self {
            touched: RegisterSet::ALL,
            is_partial: true,
            ..self
        }
    }

    /// All summaries, each with the start address of its function.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Summary)> {
        self.by_start
            .iter()
            .map(|(start, summary)| (*start, summary))
    }

    /// The summary of the function that starts at `address`, if there is one.
    #[must_use]
    pub fn get(&self, address: u64) -> Option<&Summary> {
        self.by_start.get(&address)
    }

    /// True if another function may jump to `address` with its own state on the stack: a known function does,
    /// or there is no summary for `address`.
    #[must_use]
    pub fn may_continue_another(&self, address: u64) -> bool {
        self.is_partial || self.left_for.contains(&address) || !self.by_start.contains_key(&address)
    }

    /// State that callers in this module read after the function at `address` has returned, and that the
    /// function overwrites, although the ABI returns nothing in it: assembly with conventions of its own. The
    /// value may also come from a function that this one calls or jumps to, so the state is propagated to
    /// those.
    #[must_use]
    pub fn returned_unconventionally(&self, address: u64) -> RegisterSet {
        let all = RegisterSet::ALL;
        let looked_at = match self.is_partial {
            true => Some(&all),
            false => self.looked_at.get(&address),
        };
        let clobbers = self.by_start.get(&address).map(|summary| summary.clobbers);
        looked_at
            .zip(clobbers)
            .map_or(RegisterSet::EMPTY, |(looked_at, clobbers)| {
                looked_at.intersection(clobbers)
            })
    }

    /// Propagates the state that is read after a call to all functions that may have written it.
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
            let previous = self.looked_at.entry(address).or_insert(RegisterSet::EMPTY);
            if previous.union(looked_at) != *previous {
                *previous = previous.union(looked_at);
                let callees = summary.calls.iter().chain(&summary.leaves_to);
                pending.extend(callees.map(|other| (*other, looked_at)));
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
            is_partial: false,
        };
        summaries.find_unconventional();
        summaries
    }
}

impl Conventions<'_> {
    /// Vector and mask registers that hold no value for any caller of `function`, though they may count as
    /// alive: no instruction of the module reads or writes them.
    ///
    /// A caller that keeps a value in a caller-saved register over a call, because it knows the function's
    /// code, is in the same module and has written the register there; other callers follow the ABI. Not in
    /// the set are registers whose values may pass through untouched: vector arguments of functions that jump
    /// to others, and return values handed on unchanged. Their upper parts are in the set if the module uses
    /// no upper parts at all, because then it was not compiled for them.
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
                let is_preserved =
                    number < handed_through && (part == VectorPart::Xmm || uses_upper);
                if !is_preserved {
                    unused = unused.union(RegisterSet::vector(number, part));
                }
            }
        }
        unused.without(touched)
    }
}

/// Number of vector registers that carry arguments.
const ARGUMENT_VECTORS: u8 = 8;

/// State that only code compiled for AVX or AVX-512 uses: upper parts of vectors, and masks.
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
    // Instructions that end the program or enter the kernel are assumed to use everything, but they keep no
    // value for the module's code.
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

/// The assumptions about calls and returns in a module.
#[derive(Clone, Copy, Debug)]
pub struct Conventions<'a> {
    /// The module's convention.
    pub convention: Convention,
    /// The summaries of all functions of the module. Nothing is known of a function without one.
    pub summaries: &'a Summaries,
}
