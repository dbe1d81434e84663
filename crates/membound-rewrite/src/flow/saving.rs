//! Where state is saved and restored around yields (document 003: "save at the site of the definition,
//! restore at the site of the use", by loops).
//!
//! A yield precedes an instruction and may change any state, so state that is alive there must be saved and
//! restored. Doing both at the yield is always correct. In a loop, state that the loop does not write can be
//! handled more cheaply, because it has the same value in every iteration:
//!
//! - **Untouched**: no instruction of the loop reads or writes it. It is saved on the edges that enter the
//!   loop and restored on those that leave it, if it is alive there; in between it may have any value.
//! - **Read only**: it is saved on the edges that enter the loop, and restored after each yield.
//! - Otherwise both happen at the yield.
//!
//! The outermost loop that qualifies is used. A loop qualifies if it is entered only by edges of the function
//! (state must have been saved on every entry) and contains no call, return, or jump out of the function
//! (code outside may read anything).

use super::loops::{LoopId, Loops};
use super::{Analyst, Liveness};
use crate::RegisterSet;
use crate::code::{BlockEnd, BlockId, Function};

/// State that is saved and restored at the edges of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// The loop.
    pub edges_of: LoopId,
    /// Saved on every edge that enters the loop.
    pub saved: RegisterSet,
    /// Restored on every edge that leaves the loop, if it is alive after the edge. It was saved around this
    /// loop or around a loop that contains it.
    pub restored: RegisterSet,
}

/// Where the state that a yield must keep is saved and restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavePoints {
    /// State saved before the yield.
    pub save: RegisterSet,
    /// State restored after the yield; state that is here and not in `save` was saved around a loop.
    pub restore: RegisterSet,
    /// Saves and restores at the edges of loops, the innermost first. They are the same for all yields in a
    /// loop: state that a loop does not write is alive in all of it or nowhere.
    pub around: Vec<Around>,
}

/// What each loop of a function does to state.
#[derive(Debug)]
pub struct LoopUse {
    /// For each loop, the state it reads and the state it writes; `None` if the loop may use any state.
    touched: Vec<Option<(RegisterSet, RegisterSet)>>,
}

impl LoopUse {
    /// Computes the use of state in all `loops` of `function`.
    #[must_use]
    pub fn of(function: &Function, loops: &Loops, analyst: &mut Analyst) -> Self {
        let blocks: Vec<Option<(RegisterSet, RegisterSet)>> = function
            .blocks
            .iter()
            .map(|block| {
                let is_internal = matches!(
                    block.leaves_by,
                    BlockEnd::FallsThrough | BlockEnd::Jump | BlockEnd::Table
                ) && block.landing_pad.is_none();
                if !is_internal || block.successors.is_empty() {
                    return None;
                }
                let mut reads = RegisterSet::EMPTY;
                let mut writes = RegisterSet::EMPTY;
                for instruction in function.block_instructions(block) {
                    let state = analyst.state(instruction);
                    reads = reads.union(state.reads);
                    writes = writes.union(state.writes);
                }
                Some((reads, writes))
            })
            .collect();
        let touched = loops
            .all()
            .iter()
            .map(|around| {
                if around.entered_from_outside || around.entered_by.is_empty() {
                    return None;
                }
                around.blocks.iter().try_fold(
                    (RegisterSet::EMPTY, RegisterSet::EMPTY),
                    |(reads, writes), block| {
                        let (more_reads, more_writes) = blocks[block.index()]?;
                        Some((reads.union(more_reads), writes.union(more_writes)))
                    },
                )
            })
            .collect();
        Self { touched }
    }

    /// The state that loop `id` reads and the state that it writes; `None` if the loop may use any state.
    #[must_use]
    pub fn of_loop(&self, id: LoopId) -> Option<(RegisterSet, RegisterSet)> {
        self.touched[id.index()]
    }
}

impl SavePoints {
    /// The saves and restores for a yield before instruction `index` of `block`.
    ///
    /// # Panics
    /// If `index` is not an instruction of `block`.
    #[must_use]
    pub fn of(
        function: &Function,
        block: BlockId,
        index: usize,
        liveness: &Liveness,
        loops: &Loops,
        uses: &LoopUse,
    ) -> Self {
        let bounds = &function.blocks[block.index()];
        assert!(
            (bounds.first as usize..bounds.end as usize).contains(&index),
            "a yield stands inside its block"
        );
        let alive = liveness.before(index);
        let mut points = Self {
            save: alive,
            restore: alive,
            around: Vec::new(),
        };
        // From the outside in, so that each unit is handled at the outermost loop that allows it.
        let nest: Vec<LoopId> = loops.around(block).collect();
        let mut unsaved = alive;
        let mut ungiven = alive;
        for &id in nest.iter().rev() {
            let Some((reads, writes)) = uses.of_loop(id) else {
                continue;
            };
            // State saved around an outer loop is not written in this one either.
            let saved = unsaved.without(writes);
            let restored = ungiven.without(reads.union(writes));
            if saved.is_empty() && restored.is_empty() {
                continue;
            }
            unsaved = unsaved.without(saved);
            ungiven = ungiven.without(restored);
            points.around.insert(
                0,
                Around {
                    edges_of: id,
                    saved,
                    restored,
                },
            );
        }
        points.save = unsaved;
        points.restore = ungiven;
        points
    }
}
