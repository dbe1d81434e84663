//! What a function does with its stack pointer.
//!
//! **Red zone.** A function may keep data in the 128 bytes below rsp, and then no patch may
//! push there. Data get there only through an address that is made from rsp: seen as an
//! operand below rsp, or made first (copied to a frame pointer, `lea`, an index) and used
//! out of sight. So nothing can be there when
//!
//! - no operand lies below rsp, and
//! - the function calls something, because compilers use the red zone only where nothing
//!   is called (a callee's return address would overwrite it); or, where nothing is called,
//!   no address is ever made from rsp except by operands at or above it without an index,
//! - and it does not step over the red zone to call something by hand (inline assembly does,
//!   in functions that the compiler believes to call nothing), having made addresses from
//!   rsp out of sight,
//! - and the function is not a part of another that jumps into it (a `.cold` part of a leaf
//!   function works with the red zone of that function), nor jumps out of itself.
//!
//! **Usable.** rsp is taken for a stack pointer unless something writes it that compilers
//! do not use for frames.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Conventions;
use crate::code::{BlockEnd, Function, Unresolved};
use crate::image::Convention;

const RED_ZONE_BYTES: u64 = 128;

/// What is known of a function's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Whether something may lie below it.
    pub(super) red_zone: bool,
    /// Whether it is one.
    pub(super) usable: bool,
}

impl Stack {
    pub(super) fn of(function: &Function, conventions: &Conventions<'_>) -> Self {
        let seen = Seen::of(function);
        Self {
            red_zone: seen.may_use_red_zone(function, conventions),
            usable: seen.rsp_is_a_stack(),
        }
    }
}

/// How the instructions of a function use rsp.
#[derive(Debug, Default)]
struct Seen {
    /// An operand below rsp.
    below: bool,
    /// An address made from rsp that is not followed any further.
    escapes: bool,
    /// rsp lowered by the size of the red zone, which may be a frame of that size.
    steps_over: bool,
    /// A call that pushes a return address.
    calls: bool,
    /// A jump into another function, or one whose target is not known.
    leaves: bool,
    /// rsp set in a way that no frame explains.
    replaced: bool,
    /// General registers that rsp is set from.
    sources: u32,
    /// General registers that were made from rsp.
    copies: u32,
}

impl Seen {
    fn of(function: &Function) -> Self {
        let mut seen = Self::default();
        for block in &function.blocks {
            match block.leaves_by {
                BlockEnd::Leaves { .. } | BlockEnd::Unresolved => seen.leaves = true,
                BlockEnd::Call { .. } => seen.calls = true,
                _ => {}
            }
        }
        for instruction in &function.instructions {
            if mentions_rsp(instruction) {
                seen.look_at(instruction);
            }
        }
        seen
    }

    fn look_at(&mut self, instruction: &Instruction) {
        if memory_uses_rsp(instruction) && !moves_rsp(instruction) {
            if instruction.memory_displacement64().cast_signed() < 0 {
                self.below = true;
            }
            if instruction.memory_index() != Register::None
                || instruction.memory_base() != Register::RSP
            {
                self.escapes = true;
            }
        }
        match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Pop => {
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op0_register().full_register() == Register::RSP
                {
                    self.escapes = true;
                    self.replaced |= instruction.mnemonic() == Mnemonic::Pop;
                }
            }
            Mnemonic::Lea => self.lea(instruction),
            Mnemonic::Mov => self.mov(instruction),
            // Growing and shrinking, by any amount: a frame, an array of variable size.
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And
                if instruction.op0_register() == Register::RSP =>
            {
                if instruction.op1_kind() == OpKind::Register {
                    self.escapes = true;
                } else if matches!(
                    instruction.op1_kind(),
                    OpKind::Immediate8to64 | OpKind::Immediate32to64
                ) {
                    self.step(instruction.immediate(1).cast_signed());
                }
            }
            Mnemonic::Cmp | Mnemonic::Test => {}
            _ => self.otherwise(instruction),
        }
    }

    fn step(&mut self, by: i64) {
        self.steps_over |= by.unsigned_abs() == RED_ZONE_BYTES;
    }

    fn lea(&mut self, instruction: &Instruction) {
        let destination = instruction.op0_register();
        if destination == Register::RSP {
            let base = instruction.memory_base();
            if base == Register::RSP {
                self.step(instruction.memory_displacement64().cast_signed());
            } else {
                self.sources |= bit(base);
            }
        } else if memory_uses_rsp(instruction) {
            self.escapes = true;
            self.copies |= bit(destination);
        }
    }

    fn mov(&mut self, instruction: &Instruction) {
        let to = instruction.op0_register();
        let from = instruction.op1_register();
        if instruction.op0_kind() == OpKind::Register && to.full_register() == Register::RSP {
            if instruction.op1_kind() == OpKind::Register && to == Register::RSP {
                self.sources |= bit(from);
            } else {
                self.replaced = true;
            }
        } else if instruction.op1_kind() == OpKind::Register
            && from.full_register() == Register::RSP
        {
            self.escapes = true;
            if instruction.op0_kind() == OpKind::Register {
                self.copies |= bit(to);
            }
        }
    }

    /// Any other instruction with rsp as a register operand.
    fn otherwise(&mut self, instruction: &Instruction) {
        for operand in 0..instruction.op_count() {
            if instruction.op_kind(operand) == OpKind::Register
                && instruction.op_register(operand).full_register() == Register::RSP
            {
                self.escapes = true;
                if operand == 0 || instruction.mnemonic() == Mnemonic::Xchg {
                    self.replaced = true;
                }
            }
        }
    }

    fn may_use_red_zone(&self, function: &Function, conventions: &Conventions<'_>) -> bool {
        if function.bounds.assembly
            || matches!(function.unresolved, Some(Unresolved::Undecodable(_)))
            || conventions.convention == Convention::Unknown
            || self.below
        {
            return true;
        }
        if self.calls {
            return self.steps_over && self.escapes;
        }
        self.escapes
            || self.leaves
            || conventions
                .summaries
                .may_continue_another(function.bounds.range.start)
    }

    fn rsp_is_a_stack(&self) -> bool {
        // A frame pointer may have been set by `enter`, or by the part of the function that
        // jumped here.
        !self.replaced && self.sources & !(self.copies | bit(Register::RBP)) == 0
    }
}

/// `lea rsp, [rsp + …]` makes room or takes it back, and reads nothing.
fn moves_rsp(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Lea && instruction.op0_register() == Register::RSP
}

fn bit(register: Register) -> u32 {
    if register.is_gpr() {
        1 << register.full_register().number()
    } else {
        1 << 31
    }
}

fn memory_uses_rsp(instruction: &Instruction) -> bool {
    let has_memory = instruction.op_count() > 0
        && (instruction.op0_kind() == OpKind::Memory
            || instruction.op1_kind() == OpKind::Memory
            || instruction.op2_kind() == OpKind::Memory
            || instruction.op3_kind() == OpKind::Memory);
    has_memory && instruction.memory_base().full_register() == Register::RSP
}

fn mentions_rsp(instruction: &Instruction) -> bool {
    if instruction.flow_control() == FlowControl::Return {
        return false;
    }
    memory_uses_rsp(instruction)
        || (0..instruction.op_count()).any(|operand| {
            instruction.op_kind(operand) == OpKind::Register
                && instruction.op_register(operand).full_register() == Register::RSP
        })
}
