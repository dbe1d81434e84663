//! Where state is saved and given back around yields (document 003: "save at the site of
//! the definition, restore at the site of the use", by loops).
//!
//! A yield stands before an instruction and may leave any state changed. What is alive there
//! must come out as it went in. Doing both at the yield is always right. In a loop there is
//! a cheaper way for what the loop does not write: its value is the same in every round.
//!
//! - **Untouched**: no instruction of the loop reads or writes it. It is saved on the edges
//!   that enter the loop and given back on those that leave it (where it is alive); in
//!   between it may be anything.
//! - **Read only**: it is saved on the edges that enter, and given back after each yield.
//! - Otherwise, both happen at the yield.
//!
//! The outermost loop for which this holds is taken, of those that are entered by edges of
//! the function alone (state must have been saved on every way in), and that hold no call,
//! return, or jump that goes anywhere else (those may look at anything).

use super::loops::{LoopId, Loops};
use super::{Analyst, Liveness};
use crate::RegisterSet;
use crate::code::{BlockEnd, BlockId, Function};

/// State that is saved and given back at the edges of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// Of this loop.
    pub edges_of: LoopId,
    /// Saved on every edge that enters it.
    pub saved: RegisterSet,
    /// Given back on every edge that leaves it, where it is alive behind the edge. It was
    /// saved around this loop or one around it.
    pub restored: RegisterSet,
}

/// What a yield has to do with state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavePoints {
    /// Saved before the yield.
    pub save: RegisterSet,
    /// Given back after the yield; what is here and not in `save` was saved around a loop.
    pub restore: RegisterSet,
    /// What is done at the edges of loops, the innermost first. All yields in a loop agree
    /// about it: what a loop does not write is alive in all of it or nowhere.
    pub around: Vec<Around>,
}

/// What the loops of a function do to state.
#[derive(Debug)]
pub struct LoopUse {
    /// By loop: read or written. `None` where everything must be taken for both.
    touched: Vec<Option<(RegisterSet, RegisterSet)>>,
}

impl LoopUse {
    /// Of all `loops` of `function`.
    #[must_use]
    pub fn of(function: &Function, loops: &Loops, analyst: &mut Analyst) -> Self {
        let blocks: Vec<Option<(RegisterSet, RegisterSet)>> = function
            .blocks
            .iter()
            .map(|block| {
                let stays = matches!(
                    block.leaves_by,
                    BlockEnd::FallsThrough | BlockEnd::Jump | BlockEnd::Table
                ) && block.landing_pad.is_none();
                if !stays || block.successors.is_empty() {
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

    /// What `id` reads and what it writes; `None` where that cannot be said.
    #[must_use]
    pub fn of_loop(&self, id: LoopId) -> Option<(RegisterSet, RegisterSet)> {
        self.touched[id.index()]
    }
}

impl SavePoints {
    /// What a yield before instruction `index` of `block` has to do.
    ///
    /// # Panics
    /// When `index` is not an instruction of `block`.
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
        // From the outside in, so that the outermost loop that may takes a unit.
        let nest: Vec<LoopId> = loops.around(block).collect();
        let mut unsaved = alive;
        let mut ungiven = alive;
        for &id in nest.iter().rev() {
            let Some((reads, writes)) = uses.of_loop(id) else {
                continue;
            };
            // What an outer loop has saved is not written here either.
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
