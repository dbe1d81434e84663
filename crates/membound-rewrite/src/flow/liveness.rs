//! Liveness: the state that may still be read, at each instruction of a function.
//!
//! Assumptions where control leaves for code that is not analysed:
//!
//! - **Return**: a unit is dead only if the ABI lets a callee overwrite it, no value is returned in it, and
//!   this function itself overwrites it. The last condition is for callers compiled with `-fipa-ra`: they may
//!   keep values in registers that this function does not write.
//! - **Call of a function of the module**: it reads what its summary lists, and certainly overwrites at most
//!   what the function writes itself.
//! - **Any other call**: it may read every general register and every vector register that carries arguments.
//!   An indirect call overwrites the caller-saved state, unless it has the form of a call of a TLS
//!   descriptor. A direct call is assumed to overwrite nothing: `-fipa-ra` may know better of a callee that writes
//!   little.
//! - **Call that does not return**: it may throw an exception, and the unwinder then restores callee-saved
//!   state in the frames above.
//! - **Jump to another function, unresolved jump, trap**: everything is alive.
//! - **Landing pad**: state that it reads is alive at the call; the unwinder's own writes of rax and rdx are
//!   not counted.
//! - Functions of an unknown convention, in assembly, or that change stacks: everything is alive at every
//!   call and return. If callers show that a function returns values by a convention of its own, those are
//!   alive at its returns too.
//!
//! rsp is alive everywhere, because a signal may arrive at any instruction.

use super::backward::{Boundary, Callee, STACK_POINTER, may_call_descriptor};
use super::convention::{ARGUMENTS, CALLEE_SAVED, CALLER_SAVED, alive_at_return};
use super::stack::Stack;
use super::{Analyst, Conventions};
use crate::RegisterSet;
use crate::code::{BasicBlock, BlockEnd, Function};
use crate::image::Convention;

/// State that is alive before each instruction of a function.
#[derive(Clone, Debug)]
pub struct Liveness {
    before: Vec<RegisterSet>,
    red_zone: bool,
    stack_usable: bool,
}

impl Liveness {
    /// Computes what is alive in `function`, under the assumptions of `conventions`.
    #[must_use]
    pub fn of(function: &Function, conventions: &Conventions<'_>, analyst: &mut Analyst) -> Self {
        let stack = Stack::of(function, conventions);
        let mut scratch = analyst.take_scratch();
        let written = scratch.load(function, analyst);
        // If rsp is loaded from elsewhere, a return may enter a function at its start (`setcontext`), with
        // arguments in registers.
        let is_conventional = conventions.convention == Convention::SystemV
            && !function.bounds.assembly
            && stack.usable;
        let start = function.bounds.range.start;
        if is_conventional {
            scratch.solve(
                function,
                &SystemV {
                    function,
                    conventions,
                    clobbered: written
                        .clobbered
                        .without(conventions.summaries.returned_unconventionally(start)),
                },
            );
        } else {
            scratch.solve(function, &Opaque);
        }
        let before = scratch.spread(function, RegisterSet::ALL);
        analyst.return_scratch(scratch);
        let mut liveness = Self {
            before,
            red_zone: stack.red_zone,
            stack_usable: stack.usable,
        };
        for alive in &mut liveness.before {
            *alive = alive.union(STACK_POINTER);
        }
        liveness
    }

    /// State that may be read, before it is written, from instruction `index` on.
    ///
    /// # Panics
    /// If the function has no such instruction.
    #[must_use]
    pub fn before(&self, index: usize) -> RegisterSet {
        self.before[index]
    }

    /// True if the 128 bytes below the stack pointer may hold data.
    #[must_use]
    pub const fn red_zone(&self) -> bool {
        self.red_zone
    }

    /// True if rsp points to a stack everywhere in the function, so that a patch may push below the red zone.
    /// False if the function loads rsp from elsewhere.
    #[must_use]
    pub const fn stack_usable(&self) -> bool {
        self.stack_usable
    }
}

/// Boundary assumptions for compiled code under the System V ABI.
pub(super) struct SystemV<'a> {
    pub(super) function: &'a Function,
    pub(super) conventions: &'a Conventions<'a>,
    /// State that the function writes and does not restore.
    pub(super) clobbered: RegisterSet,
}

impl Boundary for SystemV<'_> {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        if leaves_by.stays_inside() {
            return None;
        }
        Some(match leaves_by {
            BlockEnd::Call { .. } => CALLEE_SAVED,
            BlockEnd::Return => alive_at_return(self.clobbered),
            BlockEnd::TailCall => alive_at_return(self.clobbered).union(ARGUMENTS),
            _ => RegisterSet::ALL,
        })
    }

    fn callee(&self, block: &BasicBlock) -> Callee {
        let BlockEnd::Call { target, .. } = block.leaves_by else {
            return Callee {
                reads: RegisterSet::ALL,
                kills: RegisterSet::EMPTY,
            };
        };
        let summaries = self.conventions.summaries;
        match target.map(|target| (target, summaries.get(target))) {
            // A register in which the callee returns by a convention of its own may have been written on one
            // path and left unchanged on another: it is not killed.
            Some((target, Some(callee))) => Callee {
                reads: callee.reads_before_write,
                kills: callee
                    .clobbers
                    .intersection(CALLER_SAVED)
                    .without(summaries.returned_unconventionally(target)),
            },
            None if !may_call_descriptor(self.function, block) => Callee {
                reads: ARGUMENTS,
                kills: CALLER_SAVED,
            },
            Some((_, None)) | None => Callee {
                reads: ARGUMENTS,
                kills: RegisterSet::EMPTY,
            },
        }
    }
}

/// Boundary assumptions for code of unknown convention.
struct Opaque;

impl Boundary for Opaque {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        (!leaves_by.stays_inside()).then_some(RegisterSet::ALL)
    }

    fn callee(&self, _: &BasicBlock) -> Callee {
        Callee {
            reads: RegisterSet::ALL,
            kills: RegisterSet::EMPTY,
        }
    }
}
