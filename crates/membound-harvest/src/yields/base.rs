//! Finds where a context's own `fs` base must be restored.
//!
//! When a context resumes after a yield, the base may be the thread's: it is **foreign**. It is so behind a
//! plain yield along every edge, up to a body that restores the base. Instructions that use `fs` or leave the
//! function (calls and returns too) must never be reached with a foreign base. So a function is never entered
//! with a foreign base, and no call returns with one.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use membound_rewrite::code::{BlockEnd, Function, Unresolved};

/// How an instruction depends on `fs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// It uses `fs`, or may lead to code outside the function.
    pub needs_base: bool,
    /// Its memory operand is relative to `fs`.
    pub own_operand: bool,
    /// Other code runs during it, and returns with the context's own base.
    pub calls: bool,
}

/// Instructions that follow each other without a branch in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BasicBlock {
    /// Index of the first instruction.
    pub first: usize,
    /// One past the last.
    pub end: usize,
    /// Indices of the blocks that may run next.
    pub successors: Vec<usize>,
}

/// The parts of a function that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub steps: Vec<Step>,
    /// Sorted and disjoint.
    pub blocks: Vec<BasicBlock>,
    /// Control may take edges that are not known, so that no base may be foreign anywhere in the function.
    pub opaque: bool,
}

/// How a yield leaves, and with which base it resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leave {
    /// Whether the context leaves at each execution; if not, it usually stays.
    pub always: bool,
    /// Whether the yield itself restores the context's own base when it resumes.
    pub own_base: bool,
}

/// The bodies before the instructions of a function, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bodies {
    pub yields: BTreeMap<usize, Leave>,
    pub bases: BTreeSet<usize>,
    /// Instructions at which a body that restores a base was refused.
    pub forbidden: BTreeSet<usize>,
    /// Yields that were given up, because a base had to be restored in their place.
    pub given_up: Vec<usize>,
}

/// What changed when a violation was mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mended {
    /// One body.
    Here,
    /// So much that all violations must be computed again.
    Anew,
}

/// Maximum number of instructions that are visited to find superfluous bodies.
const EFFORT: usize = 20_000_000;

impl Flow {
    pub(super) fn of(function: &Function) -> Self {
        let mut steps: Vec<Step> = function.instructions.iter().map(step).collect();
        let mut blocks = Vec::with_capacity(function.blocks.len());
        for block in &function.blocks {
            let last = block.end as usize - 1;
            steps[last].needs_base |= match block.leaves_by {
                BlockEnd::FallsThrough | BlockEnd::Jump | BlockEnd::Table | BlockEnd::Stops => {
                    false
                }
                BlockEnd::Leaves { .. }
                | BlockEnd::Call { .. }
                | BlockEnd::TailCall
                | BlockEnd::Unresolved
                | BlockEnd::Return => true,
            };
            // An exception handler is entered from a call, with the context's own base.
            blocks.push(BasicBlock {
                first: block.first as usize,
                end: block.end as usize,
                successors: block.successors.iter().map(|to| to.index()).collect(),
            });
        }
        Self {
            steps,
            blocks,
            // The kernel may leave an rseq critical section at any instruction, for its abort handler.
            opaque: !function.untouchable.is_empty()
                || matches!(function.unresolved, Some(Unresolved::Undecodable(_))),
        }
    }

    /// Whether the base may be foreign behind the body before the instruction at `index`; `foreign` is
    /// whether it may be in front of that body.
    fn behind_body(&self, index: usize, foreign: bool, bodies: &Bodies) -> bool {
        if bodies.bases.contains(&index) {
            return false;
        }
        match bodies.yields.get(&index) {
            Some(leave) if !leave.own_base => true,
            Some(leave) => foreign && !leave.always,
            None => foreign,
        }
    }

    /// For each block, whether the base may be foreign at its start.
    fn solve(&self, bodies: &Bodies) -> Vec<bool> {
        let mut foreign = vec![false; self.blocks.len()];
        let mut pending: Vec<usize> = (0..self.blocks.len()).collect();
        while let Some(number) = pending.pop() {
            let block = &self.blocks[number];
            let mut is_foreign = foreign[number];
            for index in block.first..block.end {
                is_foreign =
                    self.behind_body(index, is_foreign, bodies) && !self.steps[index].calls;
            }
            if is_foreign {
                for &to in &block.successors {
                    if !std::mem::replace(&mut foreign[to], true) {
                        pending.push(to);
                    }
                }
            }
        }
        foreign
    }

    /// Instructions that need the context's own base and may find a foreign one.
    pub(super) fn violations(&self, bodies: &Bodies) -> Vec<usize> {
        let foreign = self.solve(bodies);
        let mut found = Vec::new();
        for (block, mut is_foreign) in self.blocks.iter().zip(foreign) {
            for index in block.first..block.end {
                let step = self.steps[index];
                let behind = self.behind_body(index, is_foreign, bodies);
                let prefetches = step.own_operand && bodies.yields.contains_key(&index);
                if step.needs_base && behind || prefetches && is_foreign {
                    found.push(index);
                }
                is_foreign = behind && !step.calls;
            }
        }
        found
    }

    /// Places bodies that restore bases where they are needed, except where that is forbidden; where there is
    /// no place, the yields that lead there restore the base themselves.
    pub(super) fn settle(&self, bodies: &mut Bodies) {
        bodies.bases.clear();
        if self.opaque {
            for leave in bodies.yields.values_mut() {
                leave.own_base = true;
            }
        }
        loop {
            let violations = self.violations(bodies);
            if violations.is_empty() {
                break;
            }
            let mut last = None;
            for (position, index) in violations.into_iter().enumerate() {
                // An earlier repair may have mended this violation too. A yield is given up only if its
                // violation is certain, and only the first violation of a block is mended in each round.
                let block = self.block_of(index);
                let stale = position > 0 && self.must_give_up(index, bodies);
                if stale || last.replace(block) == Some(block) {
                    continue;
                }
                if self.mend(index, bodies) == Mended::Anew {
                    break;
                }
            }
        }
        if bodies.bases.len().saturating_mul(self.steps.len()) > EFFORT {
            return;
        }
        // Later repairs may have made some bodies superfluous.
        for index in bodies.bases.clone() {
            bodies.bases.remove(&index);
            if !self.violations(bodies).is_empty() {
                bodies.bases.insert(index);
            }
        }
    }

    fn mend(&self, index: usize, bodies: &mut Bodies) -> Mended {
        let own_yield = bodies.yields.get(&index).copied();
        if let Some(leave) = own_yield.filter(|leave| !leave.own_base) {
            bodies.yields.insert(
                index,
                Leave {
                    own_base: true,
                    ..leave
                },
            );
            return Mended::Here;
        }
        if self.must_give_up(index, bodies) {
            bodies.yields.remove(&index);
            bodies.given_up.push(index);
            return Mended::Here;
        }
        let block = self.block_of(index);
        let first = self.blocks[block].first;
        let last = if own_yield.is_some() {
            index
        } else {
            index + 1
        };
        let behind_yield = bodies.yields.range(first..index).next_back();
        let from = behind_yield.map_or(first, |(at, _)| at + 1);
        let place = (from..last)
            .rev()
            .find(|place| !bodies.forbidden.contains(place));
        match place {
            Some(place) => {
                bodies.bases.insert(place);
                Mended::Here
            }
            None => {
                let leading = self.leading_to(block, index, bodies);
                if leading.is_empty() {
                    // Another repair has mended it.
                    return Mended::Here;
                }
                for at in leading {
                    if let Some(leave) = bodies.yields.get_mut(&at) {
                        leave.own_base = true;
                    }
                }
                // The yields now restore the base themselves, so fewer bodies are needed.
                bodies.bases.clear();
                Mended::Anew
            }
        }
    }

    /// Whether a yield that finds a foreign base must be given up: it restores its own base on resuming, but
    /// its prefetch comes before that.
    fn must_give_up(&self, index: usize, bodies: &Bodies) -> bool {
        let own_yield = bodies.yields.get(&index);
        self.steps[index].own_operand && own_yield.is_some_and(|leave| leave.own_base)
    }

    fn block_of(&self, index: usize) -> usize {
        self.blocks
            .partition_point(|block| block.end <= index)
            .min(self.blocks.len() - 1)
    }

    /// Plain yields from which control reaches the body before `index` with a foreign base.
    fn leading_to(&self, block: usize, index: usize, bodies: &Bodies) -> Vec<usize> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.blocks.len()];
        for (number, block) in self.blocks.iter().enumerate() {
            for &to in &block.successors {
                before[to].push(number);
            }
        }
        let mut found = BTreeSet::new();
        let mut visited = vec![false; self.blocks.len()];
        let mut pending = vec![(block, index)];
        while let Some((number, end)) = pending.pop() {
            let first = self.blocks[number].first;
            let mut reaches_start = true;
            for at in (first..end).rev() {
                let plain = bodies.yields.get(&at).is_some_and(|it| !it.own_base);
                if plain && !self.steps[at].calls {
                    found.insert(at);
                }
                if self.steps[at].calls || plain || !self.behind_body(at, true, bodies) {
                    reaches_start = false;
                    break;
                }
            }
            if reaches_start {
                for &from in &before[number] {
                    if !std::mem::replace(&mut visited[from], true) {
                        pending.push((from, self.blocks[from].end));
                    }
                }
            }
        }
        found.into_iter().collect()
    }
}

fn step(instruction: &Instruction) -> Step {
    let operands = 0..instruction.op_count();
    let in_memory = |operand| {
        matches!(
            instruction.op_kind(operand),
            OpKind::Memory
                | OpKind::MemorySegSI
                | OpKind::MemorySegESI
                | OpKind::MemorySegRSI
                | OpKind::MemorySegDI
                | OpKind::MemorySegEDI
                | OpKind::MemorySegRDI
        )
    };
    let own_operand =
        instruction.memory_segment() == Register::FS && operands.clone().any(in_memory);
    let selector = operands.clone().any(|operand| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand) == Register::FS
    });
    let base = matches!(
        instruction.mnemonic(),
        Mnemonic::Rdfsbase | Mnemonic::Wrfsbase | Mnemonic::Lfs
    );
    let (leaves, calls) = match instruction.flow_control() {
        FlowControl::Next
        | FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        // The block's end determines their targets.
        | FlowControl::IndirectBranch
        | FlowControl::Exception => (false, false),
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => (true, true),
        FlowControl::Return | FlowControl::XbeginXabortXend => (true, false),
    };
    Step {
        needs_base: own_operand || selector || base || leaves,
        own_operand,
        calls,
    }
}
