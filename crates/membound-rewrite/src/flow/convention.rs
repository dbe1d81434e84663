//! What the System V ABI lets caller and callee assume of state, as far as compilers adhere to it.
//!
//! Two liberties of compilers restrict it. gcc's `-fipa-ra` keeps values in caller-saved registers across
//! calls of functions that are known not to write them, so no register is dead merely because it is
//! caller-saved (see [`super::Liveness::of`]). And functions that are called only from their own module may
//! return in more registers than the ABI names (LLVM uses rcx, xmm2 and xmm3 too).

use crate::{Gpr, RegisterSet, VectorPart};

const fn gprs(numbers: &[u8]) -> RegisterSet {
    let mut set = RegisterSet::EMPTY;
    let mut index = 0;
    while index < numbers.len() {
        set = set.union(RegisterSet::gpr(Gpr::new(numbers[index])));
        index += 1;
    }
    set
}

const fn vectors(from: u8, end: u8) -> RegisterSet {
    let mut set = RegisterSet::EMPTY;
    let mut number = from;
    while number < end {
        set = set
            .union(RegisterSet::vector(number, VectorPart::Xmm))
            .union(RegisterSet::vector(number, VectorPart::YmmHigh))
            .union(RegisterSet::vector(number, VectorPart::ZmmHigh));
        number += 1;
    }
    set
}

/// Modes of the whole program: control of arithmetic and of string instructions.
const MODES: RegisterSet = RegisterSet::X87
    .union(RegisterSet::MXCSR)
    .union(RegisterSet::DIRECTION);

/// State that a callee leaves unchanged (rbx, rsp, rbp, r12–r15). The unwinder restores it in the frames
/// above, so it is alive wherever an exception may be thrown and nothing else reads it.
pub(super) const CALLEE_SAVED: RegisterSet = gprs(&[3, 4, 5, 12, 13, 14, 15]).union(MODES);

/// True if functions leave `register` unchanged by the platform's convention.
pub(crate) fn is_kept_by_calls(register: Gpr) -> bool {
    CALLEE_SAVED.contains(RegisterSet::gpr(register))
}

/// State that a callee may overwrite.
pub(super) const CALLER_SAVED: RegisterSet = CALLEE_SAVED.complement();

/// State in which an unknown callee may receive values: any general register (arguments, the number of vector
/// arguments in rax, a static chain in r10, conventions without saved registers) and the vector registers
/// that carry arguments.
pub(super) const ARGUMENTS: RegisterSet = RegisterSet::GPRS.union(vectors(0, 8)).union(MODES);

/// State in which a function never returns a value and which it need not leave unchanged.
pub(super) const SCRATCH: RegisterSet = CALLER_SAVED
    .without(gprs(&[0, 1, 2]))
    .without(vectors(0, 4));

/// State that a caller may read after the return of a function that writes `clobbered`.
///
/// A caller that knows the function's code may rely on everything it does not write.
pub(super) const fn alive_at_return(clobbered: RegisterSet) -> RegisterSet {
    SCRATCH.intersection(clobbered).complement()
}
