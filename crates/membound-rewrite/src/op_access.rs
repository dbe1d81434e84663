//! What an instruction does to an operand.

use iced_x86::OpAccess;

/// True if the operand may be read, or if only its address is computed.
pub(crate) const fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read
            | OpAccess::CondRead
            | OpAccess::ReadWrite
            | OpAccess::ReadCondWrite
            | OpAccess::NoMemAccess
    )
}

/// True if the operand may be written.
pub(crate) const fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}
