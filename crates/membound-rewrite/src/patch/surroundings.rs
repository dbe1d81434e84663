//! The state that a body finds at its place.

use super::loop_saves::LoopSaves;
use crate::flow::Liveness;
use crate::{Gpr, RegisterSet};

/// The state that a body finds at its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// State that may be read later.
    pub live: RegisterSet,
    /// True if the red zone may contain values.
    pub red_zone: bool,
    /// True if rsp is known to point to a stack.
    pub stack: bool,
    /// State that a loop around the body has already saved on the stack.
    pub saves: Option<LoopSaves>,
}

impl Surroundings {
    pub(super) fn before(liveness: &Liveness, index: usize) -> Self {
        Self {
            live: liveness.before(index),
            red_zone: liveness.red_zone(),
            stack: liveness.stack_usable(),
            saves: None,
        }
    }

    /// Two dead registers, without those that a loop around the body has saved but keeps in place
    /// ([`LoopSaves::in_place`]).
    pub(super) fn two_dead(&self) -> Option<[Gpr; 2]> {
        let in_place = self.saves.map_or(RegisterSet::EMPTY, LoopSaves::in_place);
        let mut dead = self.dead_registers();
        let mut next = || dead.find(|register| !in_place.intersects(RegisterSet::gpr(*register)));
        Some([next()?, next()?])
    }

    /// True if none of the units in `set` is read later.
    pub(super) fn is_dead(&self, set: RegisterSet) -> bool {
        !self.live.intersects(set)
    }

    /// Registers whose values the program does not need, rsp excepted.
    pub(super) fn dead_registers(&self) -> impl Iterator<Item = Gpr> {
        let around = *self;
        Gpr::all().filter(move |register| {
            *register != Gpr::RSP && around.is_dead(RegisterSet::gpr(*register))
        })
    }
}

impl LoopSaves {
    /// The surroundings of a yield in the loop, without the state that is saved around the loop.
    pub(super) fn within(self, around: &Surroundings) -> Surroundings {
        Surroundings {
            live: around
                .live
                .without(self.read)
                .without(self.untouched)
                .without(self.vector_set()),
            red_zone: false,
            saves: Some(self),
            ..*around
        }
    }
}
