//! What one instruction does to state.

use iced_x86::{Instruction, InstructionInfoFactory};

use super::{Access, access};
use crate::RegisterSet;

/// What an instruction does to state, that of a called function not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// What the results may depend on.
    pub reads: RegisterSet,
    /// What may be different afterwards.
    pub writes: RegisterSet,
    /// Units of which no bit of the old value is left, whatever happens. A part of `writes`.
    pub kills: RegisterSet,
    /// Its explicit access to memory.
    pub access: Option<Access>,
}

/// Finds out effects. It holds scratch space: one for each thread.
#[derive(Debug)]
pub struct Analyst {
    factory: InstructionInfoFactory,
}

impl Default for Analyst {
    fn default() -> Self {
        Self::new()
    }
}

impl Analyst {
    /// One that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            factory: InstructionInfoFactory::new(),
        }
    }

    /// What `instruction` does.
    #[must_use]
    pub fn effects(&mut self, instruction: &Instruction) -> Effects {
        let _ = &self.factory;
        Effects {
            reads: RegisterSet::ALL,
            writes: RegisterSet::ALL,
            kills: RegisterSet::EMPTY,
            access: access(instruction),
        }
    }
}
