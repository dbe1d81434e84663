//! What may still be read, at each instruction of a function.

use super::{Analyst, Conventions};
use crate::RegisterSet;
use crate::code::Function;

/// What is alive before each instruction of a function.
#[derive(Clone, Debug)]
pub struct Liveness {
    before: Vec<RegisterSet>,
    red_zone: bool,
    stack_usable: bool,
}

impl Liveness {
    /// Everything is alive everywhere: true of any function of `instructions` instructions.
    #[must_use]
    pub fn everything(instructions: usize) -> Self {
        Self {
            before: vec![RegisterSet::ALL; instructions],
            red_zone: true,
            stack_usable: false,
        }
    }

    /// What is alive in `function`, as far as `conventions` allow to say.
    #[must_use]
    pub fn of(function: &Function, conventions: &Conventions<'_>, analyst: &mut Analyst) -> Self {
        let _ = (conventions, analyst);
        Self::everything(function.instructions.len())
    }

    /// What may be read later before it is written, seen from before instruction `index`.
    ///
    /// # Panics
    /// When the function has no such instruction.
    #[must_use]
    pub fn before(&self, index: usize) -> RegisterSet {
        self.before[index]
    }

    /// Whether the 128 bytes below the stack pointer may hold something.
    #[must_use]
    pub const fn red_zone(&self) -> bool {
        self.red_zone
    }

    /// Whether rsp points to a stack wherever the function runs, so that a patch may push
    /// below the red zone. False where the function loads rsp from elsewhere.
    #[must_use]
    pub const fn stack_usable(&self) -> bool {
        self.stack_usable
    }
}
