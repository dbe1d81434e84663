//! Why a function is not fully understood.

use std::fmt;

/// Why not all branches into a function are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unresolved {
    /// An indirect jump with unknown targets, at this address.
    IndirectJump(u64),
    /// The bytes from this address on cannot be decoded, or there are data among them.
    Undecodable(u64),
    /// Code outside jumps to this address in the middle of the function, where no block is known to begin.
    EnteredInside(u64),
}

impl fmt::Display for Unresolved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndirectJump(at) => write!(out, "an indirect jump at {at:#x}"),
            Self::Undecodable(at) => write!(out, "bytes at {at:#x} that are no instruction"),
            Self::EnteredInside(at) => write!(out, "a jump from outside to {at:#x}"),
        }
    }
}
