//! A memory operand that a body uses again.

use iced_x86::{Code, Instruction, OpKind, Register};

use super::emit::Address;
use crate::Gpr;
use crate::flow::{Access, Addressing, Segment};

/// A memory operand and how the instruction uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// Address without the segment base.
    pub address: Address,
    /// Segment, if it has a base of its own (`fs`, `gs`).
    pub segment: Option<Segment>,
    /// Size in bytes.
    pub bytes: u32,
    /// True if the instruction writes the operand.
    pub stores: bool,
}

impl Operand {
    /// The operand `bytes` bytes further on; `None` if that address cannot be encoded.
    pub(super) fn further(self, bytes: i64) -> Option<Self> {
        let address = self.address.further(bytes)?;
        Some(Self { address, ..self })
    }

    /// The operand of `access`; `None` if it is not an ordinary memory operand.
    pub(super) fn of(instruction: &Instruction, access: &Access) -> Option<Self> {
        let ordinary = access.addressing == Addressing::Operand
            && (0..instruction.op_count())
                .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        if !ordinary {
            return None;
        }
        // In `pop [rsp]`, rsp has its value after the pop.
        let pops = matches!(instruction.code(), Code::Pop_rm64 | Code::Pop_rm16);
        if pops && instruction.memory_base() == Register::RSP {
            return None;
        }
        Some(Self {
            address: address(instruction)?,
            segment: access.segment,
            bytes: access.bytes,
            stores: access.direction.stores(),
        })
    }
}

fn address(instruction: &Instruction) -> Option<Address> {
    let base = match instruction.memory_base() {
        Register::RIP => return Some(Address::Module(instruction.ip_rel_memory_address())),
        Register::None => None,
        register => Some(Gpr::of(register)?),
    };
    let index = match instruction.memory_index() {
        Register::None => None,
        register => Some((
            Gpr::of(register)?,
            u8::try_from(instruction.memory_index_scale().trailing_zeros()).ok()?,
        )),
    };
    // An address without registers may have 64 bits of displacement.
    let displacement = i32::try_from(instruction.memory_displacement64().cast_signed()).ok()?;
    Some(Address::Registers {
        base,
        index,
        displacement,
    })
}

impl Address {
    /// True if the address depends on `register`.
    pub(super) fn uses(self, register: Gpr) -> bool {
        match self {
            Self::Module(_) => false,
            Self::Registers { base, index, .. } => {
                base == Some(register) || index.is_some_and(|(index, _)| index == register)
            }
        }
    }

    /// The address with `from` replaced by `to`.
    pub(super) fn with(self, from: Gpr, to: Gpr) -> Self {
        let change = |register| if register == from { to } else { register };
        match self {
            Self::Module(_) => self,
            Self::Registers {
                base,
                index,
                displacement,
            } => Self::Registers {
                base: base.map(change),
                index: index.map(|(index, scale)| (change(index), scale)),
                displacement,
            },
        }
    }

    /// The address `bytes` bytes further on; `None` if it cannot be encoded.
    pub(super) fn further(self, bytes: i64) -> Option<Self> {
        let Self::Registers {
            base,
            index,
            displacement,
        } = self
        else {
            return None;
        };
        let displacement = i64::from(displacement).checked_add(bytes)?;
        Some(Self::Registers {
            base,
            index,
            displacement: i32::try_from(displacement).ok()?,
        })
    }

    /// The same address after the stack pointer has been lowered by `bytes`; `None` if it cannot be encoded.
    pub(super) fn below(self, bytes: i32) -> Option<Self> {
        match self {
            Self::Registers {
                base: Some(Gpr::RSP),
                ..
            } => self.further(bytes.into()),
            other => Some(other),
        }
    }
}
