//! What is known at the place of a body.

use super::loop_saves::LoopSaves;
use crate::flow::Liveness;
use crate::{Gpr, RegisterSet};

/// What is known at the place of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// What may be read later.
    pub live: RegisterSet,
    /// Whether the red zone may hold something.
    pub red_zone: bool,
    /// Whether there is a stack.
    pub stack: bool,
    /// What a loop around it keeps on the stack already.
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

    /// Two registers whose values nobody needs, neither the program nor who gives back what is on the
    /// stack.
    pub(super) fn two_dead(&self) -> Option<[Gpr; 2]> {
        let kept = self.saves.map_or(RegisterSet::EMPTY, LoopSaves::in_place);
        let mut dead = self.dead_registers();
        let mut next = || dead.find(|register| !kept.intersects(RegisterSet::gpr(*register)));
        Some([next()?, next()?])
    }

    /// Whether nobody reads any of it later.
    pub(super) fn is_dead(&self, set: RegisterSet) -> bool {
        !self.live.intersects(set)
    }

    /// Registers whose values the program does not need.
    pub(super) fn dead_registers(&self) -> impl Iterator<Item = Gpr> {
        let around = *self;
        Gpr::all().filter(move |register| {
            *register != Gpr::RSP && around.is_dead(RegisterSet::gpr(*register))
        })
    }
}
