//! From a sampled instruction to the access it waited for.
//!
//! # Where a timer's interrupt lands
//!
//! Out-of-order processors retire in order and take an interrupt between two instructions. If the timer fires
//! while the oldest instruction waits, that instruction completes and the interrupt is taken after it: the
//! sample shows the instruction that would have run next. Small loops on a Zen 5 machine (perf's cpu-clock,
//! 10 kHz, some thousand samples each) show how strictly that holds:
//!
//! | loop | samples |
//! |---|---|
//! | pointer chase, its load first, in the middle, or before the branch | 100 % after the load |
//! | load whose value is used four instructions later | 100 % after the load, none at its user |
//! | chase with five dependent multiplications | 98 % after the load, the rest after each multiplication in
//! proportion to its own 3 cycles |
//! | two loads that miss together | 90 % after the first, 10 % after the second |
//! | gather, addition from memory | 98 % after the addition |
//! | `cmp` or `test` of memory, branch after it | over 99 % at the branch: the two are not fused; processors
//! that fuse them would show what follows the branch |
//! | `jmp` or `call` through memory | 93–94 % at the target's first instruction |
//! | load before a `ret`, `call`, `push` | 100 % at that instruction |
//! | stores that miss, in order or not | 91–99 % after a store, although stores retire before they are done:
//! the wait is for space in the store buffer |
//! | `mfence` after a store that misses | 96 % after the fence |
//! | `lock inc` that hits | 100 % after it |
//! | `rep movsb` | 100 % at the instruction itself, which is interrupted midway |
//! | prefetches that miss | 91 % after the prefetch |
//! | branches that are mispredicted | 6 % after the first instruction at each target: the first to retire
//! after the pipeline was empty |
//! | divisions | 77 % after the division, 23 % one instruction later |
//!
//! In guests on Emerald and Granite Rapids, 6 to 14 % of the samples that wait for a load which misses the caches and the
//! TLB are at the load itself; the analysis gives them back to it where the run's processor is Intel's. There, a comparison
//! with memory and the branch behind it are one: what follows the branch has their samples.
//!
//! # What follows
//!
//! The instruction executed before the sampled one is the answer. If it accesses memory, the program waited
//! for that access or for nothing. If it does not, the program waited for the instruction's own work: a value
//! that arrives late delays the load, which is older, and not the load's user. The remainder in the table (up
//! to 2 %) is attributed to the load that feeds the instruction, with a confidence that falls with each step
//! of arithmetic in between. If several blocks lead to the sampled instruction, each counts by how often it
//! probably runs and by how likely its last instruction is to wait.

use iced_x86::{FlowControl, Instruction, Mnemonic};

use super::function::{CodeFunction, SiteKind, index_of, is_prefetch, kind};
use crate::Gpr;
use crate::code::{BasicBlock, BlockEnd, BlockId, Function};
use crate::flow::{self, Addressing, Analyst, Definition};

/// An access that a sampled instruction may have waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// Address of the access in the file; `None` if the instruction waited for no memory.
    pub site: Option<u64>,
    /// Share of the instruction's samples, 0 to 1; the shares of one instruction add up to 1.
    pub share: f64,
    /// Confidence in the attribution, 0 to 1.
    pub confidence: f64,
}

/// Assumed ratio of iterations to entries of a loop, used because there are no counts.
const ITERATIONS_PER_ENTRY: f64 = 8.0;
/// Share of the samples of an instruction without an access that is attributed to a load which feeds it
/// directly.
const SAMPLE_SHARE_OF_FEEDING_LOAD: f64 = 0.02;
/// Most steps of arithmetic between a load and an instruction that it still feeds.
const MAX_FEEDING_STEPS: u32 = 3;

/// How likely an instruction of some kind is to wait.
#[derive(Clone, Copy, Debug)]
struct WaitLikelihood {
    /// How likely the instruction is to delay others, relative to a load (1).
    weight: f64,
    /// Confidence that it was waited for, 0 to 1, when it is the only candidate.
    confidence: f64,
    /// True if it waits for memory.
    memory: bool,
}

impl WaitLikelihood {
    const LOAD: Self = Self::of_memory(1.0, 0.97);
    const STORE: Self = Self::of_memory(0.7, 0.85);
    /// A locked operation also waits for older instructions, and takes long even when it hits.
    const LOCKED: Self = Self::of_memory(1.0, 0.6);
    /// A prefetch, which waits where too many lines are on their way already.
    const PREFETCH: Self = Self::of_memory(0.5, 0.9);
    /// A comparison with memory and the branch after it, which Intel's processors fuse: what follows the branch has all
    /// samples that wait for it. Where they are not fused, few samples are there for any reason.
    const FUSED: Self = Self::of_memory(1.0, 0.6);
    /// The same if the comparison has an immediate operand, for which no processor is known to fuse them.
    const UNFUSED: Self = Self::of_memory(0.3, 0.4);
    /// A return, or an instruction that pushes or pops: its access to the stack nearly always hits.
    const STACK: Self = Self::of_work(0.15, 0.5);
    const BRANCH: Self = Self::of_work(0.05, 0.7);
    const WORK: Self = Self::of_work(0.1, 0.9);

    const fn of_memory(weight: f64, confidence: f64) -> Self {
        Self {
            weight,
            confidence,
            memory: true,
        }
    }

    const fn of_work(weight: f64, confidence: f64) -> Self {
        Self {
            weight,
            confidence,
            memory: false,
        }
    }
}

/// A path by which control may have reached the sampled instruction.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Index of the instruction before the sampled one; `None` if it is in another function.
    index: Option<usize>,
    habit: WaitLikelihood,
    /// Assumed frequency of this path, relative to the others.
    frequency: f64,
}

impl CodeFunction {
    /// See [`super::Code::waits`].
    #[must_use]
    pub fn waits(&self, sampled: u64) -> Vec<Wait> {
        waits(self, sampled)
    }
}

fn waits(code: &CodeFunction, sampled: u64) -> Vec<Wait> {
    let function = code.function();
    let Some(index) = code.index_of(sampled) else {
        return Vec::new();
    };
    if is_interrupted_midway(&function.instructions[index]) {
        return vec![Wait {
            site: Some(sampled),
            share: 1.0,
            confidence: WaitLikelihood::LOAD.confidence,
        }];
    }
    let candidates = candidates(code, index);
    let weight = |candidate: &Candidate| candidate.frequency * candidate.habit.weight;
    let total: f64 = candidates.iter().map(weight).sum();
    let mut found = Vec::new();
    for candidate in &candidates {
        let share = weight(candidate) / total;
        // If several paths compete, their shares are guesses, so confidence is lower.
        let clear = f64::midpoint(1.0, (2.0 * share - 1.0).abs());
        let confidence = candidate.habit.confidence * clear;
        match candidate.index {
            Some(at) if candidate.habit.memory => add(
                &mut found,
                Some(function.instructions[at].ip()),
                share,
                confidence,
            ),
            Some(at) => fed(code, at, share, confidence, &mut found),
            None => add(&mut found, None, share, confidence),
        }
    }
    found.sort_by(|one, other| other.share.total_cmp(&one.share));
    found
}

/// Adds a share to what a site already has.
fn add(found: &mut Vec<Wait>, site: Option<u64>, share: f64, confidence: f64) {
    match found.iter_mut().find(|wait| wait.site == site) {
        Some(wait) => {
            wait.confidence = (wait.confidence * wait.share + confidence * share)
                / (wait.share + share).max(f64::MIN_POSITIVE);
            wait.share += share;
        }
        None => found.push(Wait {
            site,
            share,
            confidence,
        }),
    }
}

/// True for a repeated string instruction, which can be interrupted before its last step; the sample then
/// shows the instruction itself.
fn is_interrupted_midway(instruction: &Instruction) -> bool {
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    repeated
        && flow::access(instruction).is_some_and(|access| access.addressing == Addressing::String)
}

/// Implements [`super::Code::blocks_before`].
pub(super) fn blocks_before(function: &Function, sampled: u64) -> Option<Vec<u64>> {
    let index = index_of(function, sampled)? as u32;
    let to = function.block_of(index as usize)?;
    if function.blocks[to.index()].first != index {
        return None;
    }
    let leading = function
        .blocks
        .iter()
        .filter(|block| leads_to(block, to) && !matches!(block.leaves_by, BlockEnd::Call { .. }));
    let accesses = leading.flat_map(|block| {
        let instructions = &function.instructions[block.first as usize..block.end as usize];
        let accesses = instructions.iter().filter(|it| flow::access(it).is_some());
        accesses.map(Instruction::ip)
    });
    let mut accesses: Vec<u64> = accesses.collect();
    accesses.sort_unstable();
    accesses.dedup();
    Some(accesses)
}

/// The paths by which control reaches an instruction; at least one.
fn candidates(code: &CodeFunction, index: usize) -> Vec<Candidate> {
    let function = code.function();
    let Some(to) = function.block_of(index) else {
        // In no block: no known edge leads here, so assume that control falls through.
        return vec![before(function, index)];
    };
    let target = &function.blocks[to.index()];
    if target.first as usize != index {
        return vec![before(function, index)];
    }
    let loops = code.loops();
    let mut found = Vec::new();
    for number in code.predecessors(to) {
        let block = &function.blocks[number.index()];
        if block.first == block.end {
            continue;
        }
        let mut candidate = before(function, block.end as usize);
        if matches!(block.leaves_by, BlockEnd::Call { .. }) || block.landing_pad == Some(to) {
            // The instruction executed last is the callee's return.
            candidate = Candidate {
                index: None,
                habit: WaitLikelihood::STACK,
                frequency: 1.0,
            };
        }
        let inside = |id| loops.get(id).contains(number);
        if loops.innermost(to).is_some_and(inside) {
            candidate.frequency = ITERATIONS_PER_ENTRY;
        }
        found.push(candidate);
    }
    if target.entered_from_outside || found.is_empty() {
        found.push(Candidate {
            index: None,
            habit: WaitLikelihood::BRANCH,
            frequency: 1.0,
        });
    }
    found
}

fn leads_to(block: &BasicBlock, to: BlockId) -> bool {
    block.successors.contains(&to) || block.landing_pad == Some(to)
}

/// The instruction before the one at `index`; none if `index` is 0.
fn before(function: &Function, index: usize) -> Candidate {
    let Some(at) = index.checked_sub(1) else {
        return Candidate {
            index: None,
            habit: WaitLikelihood::BRANCH,
            frequency: 1.0,
        };
    };
    let (at, habit) = habit(function, at);
    Candidate {
        index: Some(at),
        habit,
        frequency: 1.0,
    }
}

/// The habit of the instruction at `at`, and the index of the instruction that is waited for, which may be an
/// earlier one.
fn habit(function: &Function, at: usize) -> (usize, WaitLikelihood) {
    let instruction = &function.instructions[at];
    if let Some(access) = flow::access(instruction) {
        let habit = match kind(instruction, access.direction) {
            SiteKind::Load | SiteKind::Both => WaitLikelihood::LOAD,
            SiteKind::Store => WaitLikelihood::STORE,
            SiteKind::Locked => WaitLikelihood::LOCKED,
            SiteKind::Prefetch => WaitLikelihood::PREFETCH,
        };
        return (at, habit);
    }
    if is_prefetch(instruction) {
        return (at, WaitLikelihood::PREFETCH);
    }
    let earlier = at.checked_sub(1).map(|earlier| {
        let instruction = &function.instructions[earlier];
        (earlier, instruction, flow::access(instruction))
    });
    match (instruction.mnemonic(), earlier) {
        // A full fence waits until older stores have completed.
        (Mnemonic::Mfence, Some((earlier, _, Some(access)))) if access.direction.stores() => {
            (earlier, WaitLikelihood::STORE)
        }
        _ if instruction.flow_control() == FlowControl::ConditionalBranch => match earlier {
            Some((earlier, compares, Some(access)))
                if access.direction.loads()
                    && matches!(compares.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) =>
            {
                let mut operands = 0..compares.op_count();
                match operands.any(|at| compares.try_immediate(at).is_ok()) {
                    true => (earlier, WaitLikelihood::UNFUSED),
                    false => (earlier, WaitLikelihood::FUSED),
                }
            }
            _ => (at, WaitLikelihood::BRANCH),
        },
        _ if instruction.is_stack_instruction() => (at, WaitLikelihood::STACK),
        _ if instruction.flow_control() != FlowControl::Next => (at, WaitLikelihood::BRANCH),
        _ => (at, WaitLikelihood::WORK),
    }
}

/// Distributes the samples of an instruction without an access: to its own work, except for the share that
/// the measurements leave open, which goes to the loads that feed it.
fn fed(code: &CodeFunction, at: usize, share: f64, confidence: f64, found: &mut Vec<Wait>) {
    let function = code.function();
    let mut analyst = Analyst::new();
    let reaching = code.origins();
    let mut layer = vec![at];
    let mut visited = layer.clone();
    let mut share_left = share;
    for step in 1..=MAX_FEEDING_STEPS {
        let mut loads = Vec::new();
        let mut next = Vec::new();
        for &user in &layer {
            let reads = analyst.effects(&function.instructions[user]).reads;
            for register in Gpr::all() {
                let set = crate::RegisterSet::gpr(register);
                if register == Gpr::RSP || !reads.contains(set) {
                    continue;
                }
                for definition in reaching.definitions(user, register) {
                    let Definition::Instruction(giver) = definition else {
                        continue;
                    };
                    if visited.contains(&giver) {
                        continue;
                    }
                    visited.push(giver);
                    let instruction = &function.instructions[giver];
                    let reads =
                        flow::access(instruction).is_some_and(|access| access.direction.loads());
                    if reads {
                        loads.push(giver);
                    } else if instruction.flow_control() == FlowControl::Next {
                        next.push(giver);
                    }
                }
            }
        }
        let factor = 0.5_f64.powi(step.cast_signed() - 1);
        for &load in &loads {
            let part = share * SAMPLE_SHARE_OF_FEEDING_LOAD * factor / loads.len() as f64;
            share_left -= part;
            let site = function.instructions[load].ip();
            add(found, Some(site), part, 0.3 * factor * confidence);
        }
        if !loads.is_empty() || next.is_empty() {
            break;
        }
        layer = next;
    }
    add(found, None, share_left, confidence);
}
