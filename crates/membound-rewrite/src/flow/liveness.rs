//! What may still be read, at each instruction of a function.
//!
//! What holds where control leaves for code that is not looked at:
//!
//! - **Return**: a unit is dead only if the ABI lets a callee overwrite it, nothing is
//!   returned in it, and this function itself overwrites it. The last is for callers
//!   compiled with `-fipa-ra`: they may keep values in what this function does not write.
//! - **Call of a function of the module**: it reads what its summary says and overwrites
//!   for certain at most what it writes itself.
//! - **Any other call**: it may read every general register and every vector register that
//!   carries arguments. It overwrites what is caller-saved if it is indirect and not by its
//!   form the call of a TLS descriptor; of a direct call to unknown code only the flags are
//!   taken for lost.
//! - **Call that does not return**: an exception may begin there, and an unwinder hands what
//!   is callee-saved to the frames above.
//! - **Jump to another function, unresolved jump, trap**: everything is alive.
//! - **Landing pad**: what it reads is alive at the call; the unwinder's own writes of rax
//!   and rdx are not counted.
//! - Functions of an unknown convention, in assembly or that change stacks: everything is
//!   alive at every call and return. What callers show to be returned in by a convention of
//!   its own is alive at a function's returns too.
//!
//! rsp is alive everywhere, because signals arrive anywhere.

use super::backward::{Boundary, Callee, STACK_POINTER, may_call_descriptor};
use super::convention::{ARGUMENTS, CALLEE_SAVED, CALLER_SAVED, alive_at_return};
use super::stack::Stack;
use super::{Analyst, Conventions};
use crate::RegisterSet;
use crate::code::{Block, BlockEnd, Function};
use crate::image::Convention;

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
        let stack = Stack::of(function, conventions);
        let mut scratch = analyst.take_scratch();
        let written = scratch.load(function, analyst);
        // Where rsp is loaded from elsewhere, a return may lead to a function that begins
        // (`setcontext`), with arguments in its registers.
        let known = conventions.convention == Convention::SystemV
            && !function.bounds.assembly
            && stack.usable;
        let start = function.bounds.range.start;
        if known {
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

/// Compilers' code under the System V ABI.
pub(super) struct SystemV<'a> {
    pub(super) function: &'a Function,
    pub(super) conventions: &'a Conventions<'a>,
    /// What the function writes and does not put back.
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

    fn callee(&self, block: &Block) -> Callee {
        let BlockEnd::Call { target, .. } = block.leaves_by else {
            return Callee {
                reads: RegisterSet::ALL,
                kills: RegisterSet::EMPTY,
            };
        };
        let summaries = self.conventions.summaries;
        match target.map(|target| (target, summaries.get(target))) {
            // What it returns in a register of its own it may have written on one path
            // and left as it was on another.
            Some((target, Some(callee))) => Callee {
                reads: callee.reads_before_write,
                kills: callee
                    .clobbers
                    .intersection(CALLER_SAVED)
                    .without(summaries.returned_unconventionally(target)),
            },
            Some((_, None)) => Callee {
                reads: ARGUMENTS,
                kills: RegisterSet::ARITHMETIC_FLAGS,
            },
            None if may_call_descriptor(self.function, block) => Callee {
                reads: ARGUMENTS,
                kills: RegisterSet::EMPTY,
            },
            None => Callee {
                reads: ARGUMENTS,
                kills: CALLER_SAVED,
            },
        }
    }
}

/// Code of which no convention is assumed.
struct Opaque;

impl Boundary for Opaque {
    fn exit(&self, leaves_by: BlockEnd) -> Option<RegisterSet> {
        (!leaves_by.stays_inside()).then_some(RegisterSet::ALL)
    }

    fn callee(&self, _: &Block) -> Callee {
        Callee {
            reads: RegisterSet::ALL,
            kills: RegisterSet::EMPTY,
        }
    }
}
