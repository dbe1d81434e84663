//! A function to plan with what the analyses know of it, and which of its instructions can be moved.

use iced_x86::Instruction;

use super::relocate::{self, Form};
use crate::RegisterSet;
use crate::code::Function;
use crate::flow::Liveness;

/// Largest distance in bytes from the module's origin to what moved code refers to.
const MAX_DISTANCE_BYTES: u64 = 1 << 30;

/// A function and what the analyses have found out about it.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    /// The decoded function.
    pub function: &'a Function,
    /// Bytes from the function's start up to the next one.
    pub bytes: &'a [u8],
    /// Which state is alive before each instruction.
    pub liveness: &'a Liveness,
    /// State that holds no value anywhere in the module, though it may count as alive where the function
    /// returns.
    pub unused: RegisterSet,
}

pub(super) fn movable(
    subject: &Subject<'_>,
    instruction: &Instruction,
    origin: u64,
) -> Option<Form> {
    let start = usize::try_from(instruction.ip() - subject.function.bounds.range.start).ok()?;
    let bytes = subject.bytes.get(start..start + instruction.len())?;
    let form = relocate::form(instruction, bytes)?;
    let target = match form {
        Form::Verbatim => origin,
        Form::RipOperand(_) => instruction.ip_rel_memory_address(),
        Form::Jump | Form::JumpIf(_) | Form::CountJump(_) => instruction.near_branch_target(),
    };
    let near = target.wrapping_sub(origin).cast_signed().unsigned_abs() <= MAX_DISTANCE_BYTES;
    let may_move = !is_untouchable(subject.function, instruction)
        && !is_overlapped(subject.function, instruction);
    (near && may_move).then_some(form)
}

pub(super) fn is_untouchable(function: &Function, instruction: &Instruction) -> bool {
    overlap(&function.untouchable, instruction)
}

/// True if control may enter the instruction in the middle.
pub(super) fn is_overlapped(function: &Function, instruction: &Instruction) -> bool {
    overlap(&function.overlapped, instruction)
}

fn overlap(ranges: &[std::ops::Range<u64>], instruction: &Instruction) -> bool {
    ranges
        .iter()
        .any(|range| instruction.ip() < range.end && range.start < instruction.next_ip())
}
