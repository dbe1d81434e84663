//! Where indirect jumps lead.

use iced_x86::{Instruction, OpKind};

use super::blocks::Graph;
use super::descent::Descent;
use super::knowledge::Tables;

/// What is known of an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// It leads to these addresses, sorted: inside the function, and in others.
    Table { inside: Vec<u64>, outside: Vec<u64> },
    /// It leaves the function for good.
    TailCall,
    /// It may lead anywhere.
    Unresolved,
}

/// Finds out where the jump that ends a block leads.
pub(super) fn resolve(descent: &Descent<'_, '_>, _graph: &Graph, jump: &Instruction) -> Resolution {
    // Through a word at a fixed place: a slot that the loader fills.
    if jump.op0_kind() == OpKind::Memory && jump.is_ip_rel_memory_operand() {
        return Resolution::TailCall;
    }
    if descent.surroundings.knowledge.tables() == Tables::Ignore {
        return Resolution::Unresolved;
    }
    Resolution::Unresolved
}
