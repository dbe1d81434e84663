//! The effect of one instruction on state, for the analyses of functions.

use crate::RegisterSet;

/// The part of the effects that liveness analysis needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) reads: RegisterSet,
    pub(super) writes: RegisterSet,
    pub(super) kills: RegisterSet,
}

impl State {
    pub(super) const NOTHING: Self = Self {
        reads: RegisterSet::EMPTY,
        writes: RegisterSet::EMPTY,
        kills: RegisterSet::EMPTY,
    };

    /// The effect assumed of an instruction that may do anything.
    pub(super) const EVERYTHING: Self = Self {
        reads: RegisterSet::ALL,
        writes: RegisterSet::ALL,
        kills: RegisterSet::EMPTY,
    };

    pub(super) const fn read(&mut self, set: RegisterSet) {
        self.reads = self.reads.union(set);
    }

    pub(super) const fn write(&mut self, set: RegisterSet) {
        self.writes = self.writes.union(set);
    }

    pub(super) const fn kill(&mut self, set: RegisterSet) {
        self.writes = self.writes.union(set);
        self.kills = self.kills.union(set);
    }

    pub(super) const fn spare(&mut self, set: RegisterSet) {
        self.kills = self.kills.without(set);
    }
}
