//! How a function uses its stack pointer.
//!
//! **Red zone.** A function may keep data in the 128 bytes below rsp; then no patch may push there. Data get
//! there only through an address derived from rsp: either visibly, as an operand below rsp, or through a
//! register to which the address was copied (a frame pointer, `lea`, an index). So the red zone is certainly
//! unused if
//!
//! - no operand lies below rsp, and
//! - the function calls something, because compilers use the red zone only in functions without calls (a
//!   callee's return address would overwrite it); or, without a call, no address is derived from rsp except
//!   in operands at or above it without an index, and
//! - it does not step over the red zone to call something (inline assembly does that in functions that the
//!   compiler believes to have no call) after deriving addresses from rsp, and
//! - the function is not a part of another function that jumps into it (the `.cold` part of a leaf function
//!   works with the red zone of that function), and does not jump out of itself.
//!
//! **Usable.** rsp is assumed to be a stack pointer unless an instruction writes it in a way that compilers
//! do not use for frames.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Conventions;
use crate::code::{BlockEnd, Function, Unresolved};
use crate::image::Convention;

const RED_ZONE_BYTES: u64 = 128;

/// What is known of a function's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// True if data may lie in the red zone below it.
    pub(super) red_zone: bool,
    /// True if it points to a stack.
    pub(super) usable: bool,
}

impl Stack {
    pub(super) fn of(function: &Function, conventions: &Conventions<'_>) -> Self {
        let uses = StackUses::of(function);
        Self {
            red_zone: uses.may_use_red_zone(function, conventions),
            usable: uses.rsp_is_a_stack(),
        }
    }
}

/// How the instructions of a function use rsp.
#[derive(Debug, Default)]
struct StackUses {
    /// An operand lies below rsp.
    below: bool,
    /// An address derived from rsp is put where it is not tracked.
    escapes: bool,
    /// rsp is moved by the size of the red zone; it may also be a frame of that size.
    steps_over: bool,
    /// A call pushes a return address.
    calls: bool,
    /// A jump leads into another function, or its target is unknown.
    leaves: bool,
    /// rsp is set in a way that no frame explains.
    replaced: bool,
    /// General registers from which rsp is set, as a bit set.
    sources: u32,
    /// General registers that have been derived from rsp, as a bit set.
    copies: u32,
}

impl StackUses {
    fn of(function: &Function) -> Self {
        let mut uses = Self::default();
        for block in &function.blocks {
            match block.leaves_by {
                BlockEnd::Leaves { .. } | BlockEnd::Unresolved => uses.leaves = true,
                BlockEnd::Call { .. } => uses.calls = true,
                _ => {}
            }
        }
        for instruction in &function.instructions {
            if mentions_rsp(instruction) {
                uses.look_at(instruction);
            }
        }
        uses
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
            // rsp lowered or raised by any amount: a frame, or an array of variable size.
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

    /// Handles any other instruction with rsp as a register operand.
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
        // The frame pointer may have been set by `enter`, or by the part of the function that jumped here.
        !self.replaced && self.sources & !(self.copies | bit(Register::RBP)) == 0
    }
}

/// `lea rsp, [rsp + …]` allocates or frees stack and accesses nothing.
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
