//! What the System V ABI lets a caller and a callee assume of state, as far as compilers
//! really keep to it.
//!
//! Two liberties of compilers narrow it. gcc's `-fipa-ra` keeps values in caller-saved
//! registers across calls of functions that it has seen not to write them; so being
//! caller-saved makes nothing dead by itself (see [`super::Liveness::of`]). And functions
//! that are called from their own module alone may return in more registers than the ABI
//! says (LLVM uses rcx, xmm2 and xmm3 too).

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

/// What stands for the program as a whole: control of arithmetic and of strings.
const MODES: RegisterSet = RegisterSet::X87
    .union(RegisterSet::MXCSR)
    .union(RegisterSet::DIRECTION);

/// What a callee leaves as it was (rbx, rsp, rbp, r12–r15). An unwinder gives it back to the
/// frames above, so it is alive wherever an exception may begin and nothing else reads it.
pub(super) const CALLEE_SAVED: RegisterSet = gprs(&[3, 4, 5, 12, 13, 14, 15]).union(MODES);

/// Whether a function gives `register` back as it was, by the convention of the platform.
pub(crate) fn is_kept_by_calls(register: Gpr) -> bool {
    CALLEE_SAVED.contains(RegisterSet::gpr(register))
}

/// What a callee may overwrite.
pub(super) const CALLER_SAVED: RegisterSet = CALLEE_SAVED.complement();

/// What an unknown callee may be given: any general register (arguments, the count of
/// vector arguments in rax, a static chain in r10, conventions without saved registers) and
/// the vector registers that carry arguments.
pub(super) const ARGUMENTS: RegisterSet = RegisterSet::GPRS.union(vectors(0, 8)).union(MODES);

/// What a function never returns anything in, and need not leave as it was.
pub(super) const SCRATCH: RegisterSet = CALLER_SAVED
    .without(gprs(&[0, 1, 2]))
    .without(vectors(0, 4));

/// What a function that writes `clobbered` leaves for its caller to read.
///
/// A caller that has seen this function compiled may rely on whatever it does not write.
pub(super) const fn alive_at_return(clobbered: RegisterSet) -> RegisterSet {
    SCRATCH.intersection(clobbered).complement()
}
