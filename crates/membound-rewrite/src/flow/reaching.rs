//! Reaching definitions: where the value of a general register at an instruction may come from.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::backward::{Boundary, may_call_descriptor};
use super::convention::CALLER_SAVED;
use super::graph::Graph;
use super::liveness::SystemV;
use super::{Analyst, Conventions};
use crate::code::{BasicBlock, BlockEnd, Function};
use crate::image::Convention;
use crate::{Gpr, RegisterSet};

/// An origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Definition {
    /// Outside the function: a caller, an unwinder, or code that jumped in.
    Outside,
    /// The instruction with this index; for a call, the called function.
    Instruction(usize),
}

/// For each instruction of a block, the state it may write and the state it certainly overwrites.
type Written = Box<[(RegisterSet, RegisterSet)]>;

/// The writes of a function's instructions, prepared for queries about the origin of values.
#[derive(Debug)]
pub struct Reaching<'a> {
    function: &'a Function,
    graph: Arc<Graph>,
    /// Assumptions about the effect of calls.
    conventions: &'a Conventions<'a>,
    analyst: Mutex<Analyst>,
    /// For each block, filled in when a query reaches it: what its instructions may write and what they
    /// certainly overwrite.
    written: Vec<OnceLock<Written>>,
    /// For each instruction, the number of its block.
    block: Vec<u32>,
}

impl<'a> Reaching<'a> {
    /// Prepares for queries about `function`.
    #[must_use]
    pub fn of(function: &'a Function, conventions: &'a Conventions<'a>) -> Self {
        Self::in_graph(function, Arc::new(Graph::of(function)), conventions)
    }

    /// As [`Self::of`], if the function's graph is known already.
    pub(crate) fn in_graph(
        function: &'a Function,
        graph: Arc<Graph>,
        conventions: &'a Conventions<'a>,
    ) -> Self {
        let mut of_instruction = vec![u32::MAX; function.instructions.len()];
        for (number, block) in (0_u32..).zip(&function.blocks) {
            of_instruction[block.first as usize..block.end as usize].fill(number);
        }
        Self {
            function,
            graph,
            conventions,
            analyst: Mutex::new(Analyst::new()),
            written: vec![OnceLock::new(); function.blocks.len()],
            block: of_instruction,
        }
    }

    /// The writes of block `number`; computed once. See the field of this name.
    fn written(&self, number: usize) -> &[(RegisterSet, RegisterSet)] {
        self.written[number].get_or_init(|| {
            let block = &self.function.blocks[number];
            let mut analyst = self.analyst.lock().unwrap_or_else(PoisonError::into_inner);
            let instructions = self.function.block_instructions(block);
            let states = instructions.iter().map(|it| {
                let state = analyst.state(it);
                (state.writes, state.kills)
            });
            let mut written: Written = states.collect();
            let calls = matches!(block.leaves_by, BlockEnd::Call { .. });
            if let Some((writes, kills)) = written.last_mut().filter(|_| calls) {
                self.call(block, writes, kills);
            }
            written
        })
    }

    /// Adds the effect of the function that a block's last instruction calls.
    fn call(&self, block: &BasicBlock, writes: &mut RegisterSet, kills: &mut RegisterSet) {
        let Self {
            function,
            conventions,
            ..
        } = self;
        if conventions.convention != Convention::SystemV || function.bounds.assembly {
            *writes = RegisterSet::ALL;
            *kills = RegisterSet::EMPTY;
            return;
        }
        *writes = writes.union(CALLER_SAVED);
        if !may_call_descriptor(function, block) {
            let callees = SystemV {
                function,
                conventions,
                clobbered: RegisterSet::EMPTY,
            };
            *kills = kills.union(callees.callee(block).kills);
        }
    }

    /// The places that may have written the value that `register` has before instruction `index`, sorted.
    /// Partial writes count, and so do the writes before them.
    ///
    /// # Panics
    /// If the function has no such instruction.
    #[must_use]
    pub fn definitions(&self, index: usize, register: Gpr) -> Vec<Definition> {
        let set = RegisterSet::gpr(register);
        let mut found = Vec::new();
        let mut visited = vec![false; self.function.blocks.len()];
        let mut pending = Vec::new();
        let start = self.block[index];
        if start == u32::MAX {
            return vec![Definition::Outside];
        }
        self.search(start as usize, index, set, &mut found, &mut pending);
        while let Some(block) = pending.pop() {
            if std::mem::replace(&mut visited[block], true) {
                continue;
            }
            let end = self.function.blocks[block].end as usize;
            self.search(block, end, set, &mut found, &mut pending);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Searches one block backward from `end`; adds predecessors to `pending` if the search must continue.
    fn search(
        &self,
        block: usize,
        end: usize,
        set: RegisterSet,
        found: &mut Vec<Definition>,
        pending: &mut Vec<usize>,
    ) {
        let first = self.function.blocks[block].first as usize;
        let written = if first < end {
            self.written(block)
        } else {
            &[]
        };
        for at in (first..end).rev() {
            let (writes, kills) = &written[at - first];
            if writes.contains(set) {
                found.push(Definition::Instruction(at));
            }
            if kills.contains(set) {
                return;
            }
        }
        let mut has_predecessor = false;
        for before in self.graph.predecessors(block) {
            has_predecessor = true;
            pending.push(before);
        }
        if self.graph.is_root(block) || !has_predecessor {
            found.push(Definition::Outside);
        }
    }
}
