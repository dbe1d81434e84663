//! A memory operand that a body has to name again.

use iced_x86::{Code, Instruction, OpKind, Register};

use super::emit::Address;
use crate::Gpr;
use crate::flow::{Access, Addressing, Segment};

/// An operand and what it is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// Its address, without the segment's base.
    pub address: Address,
    /// Its segment, if that matters.
    pub segment: Option<Segment>,
    /// Its size.
    pub bytes: u32,
    /// Whether it is written.
    pub stores: bool,
}

impl Operand {
    /// The same, so many bytes further on; `None` when that cannot be written.
    pub(super) fn further(self, bytes: i64) -> Option<Self> {
        let address = self.address.further(bytes)?;
        Some(Self { address, ..self })
    }

    /// The operand of `access`, or `None` when it cannot be named by an ordinary one.
    pub(super) fn of(instruction: &Instruction, access: &Access) -> Option<Self> {
        let ordinary = access.addressing == Addressing::Operand
            && (0..instruction.op_count())
                .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        if !ordinary {
            return None;
        }
        // `pop [rsp]` means the stack pointer after the pop.
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
        register => Some(gpr(register)?),
    };
    let index = match instruction.memory_index() {
        Register::None => None,
        register => Some((
            gpr(register)?,
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

/// A register of 64 bits.
pub(super) fn gpr(register: Register) -> Option<Gpr> {
    let wide = register.is_gpr64() && register != Register::None;
    wide.then(|| Gpr::new(u8::try_from(register.number()).expect("sixteen registers")))
}

impl Address {
    /// Whether its value depends on `register`.
    pub(super) fn uses(self, register: Gpr) -> bool {
        match self {
            Self::Module(_) => false,
            Self::Registers { base, index, .. } => {
                base == Some(register) || index.is_some_and(|(index, _)| index == register)
            }
        }
    }

    /// The same with `to` where `from` stood.
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

    /// The address so many bytes further on; `None` when that cannot be written.
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

    /// The same, seen with the stack pointer `bytes` lower; `None` when that cannot be
    /// written.
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
