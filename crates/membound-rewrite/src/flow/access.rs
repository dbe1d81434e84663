//! Explicit memory accesses of single instructions.

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

use super::traits;

/// Whether an access reads or writes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Reads memory.
    Load,
    /// Writes memory.
    Store,
    /// Reads and writes memory.
    Both,
}

impl Direction {
    /// True if memory is read.
    #[must_use]
    pub const fn loads(self) -> bool {
        matches!(self, Self::Load | Self::Both)
    }

    /// True if memory is written.
    #[must_use]
    pub const fn stores(self) -> bool {
        matches!(self, Self::Store | Self::Both)
    }
}

/// A segment whose base is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// `fs`: thread-local storage.
    Fs,
    /// `gs`: not used by the system; free for programs.
    Gs,
}

/// How the address is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// Base + scaled index + displacement, or relative to rip: the result of `lea` with the same operand,
    /// plus the base of the segment.
    Operand,
    /// One address for each element of a vector of indices: gather and scatter.
    Vector,
    /// A string instruction: addresses in rsi, rdi or both.
    String,
    /// By another method: `xlat` and masked moves through rdi, bits selected by a register (`bt [mem], reg`
    /// reaches beyond its operand), tiles.
    Other,
}

/// An explicit access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Whether the access reads or writes.
    pub direction: Direction,
    /// Bytes of one access, or of one element if there are several; 0 if it depends on the machine (`xsave`).
    pub bytes: u32,
    /// The segment whose base is added, if it is `fs` or `gs`.
    pub segment: Option<Segment>,
    /// How the address is computed.
    pub addressing: Addressing,
    /// True if the access may happen only in part or not at all: under a condition, a mask, or a count that
    /// may be zero.
    pub conditional: bool,
}

/// The explicit memory operand of `instruction`, if the instruction accesses it.
///
/// This includes string instructions, and memory operands of `push`, `pop`, `call` and `jmp`, but not the
/// stack slot that these use. Operands that only name an address (`lea`, `nop`, prefetches, cache control)
/// are no access.
#[must_use]
pub fn access(instruction: &Instruction) -> Option<Access> {
    let operands = instruction.op_count();
    let mut loads = false;
    let mut stores = false;
    let mut conditional = false;
    let mut addressing = None;
    let mut memory = None;
    for operand in 0..operands {
        let found = match instruction.op_kind(operand) {
            OpKind::Memory => Addressing::Operand,
            OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI => Addressing::String,
            OpKind::MemorySegDI | OpKind::MemorySegEDI | OpKind::MemorySegRDI => Addressing::Other,
            _ => continue,
        };
        let accesses = memory.get_or_insert_with(|| traits::of(instruction.code()).memory);
        match accesses[operand as usize] {
            OpAccess::Read => loads = true,
            OpAccess::CondRead => {
                loads = true;
                conditional = true;
            }
            OpAccess::Write => stores = true,
            OpAccess::CondWrite => {
                stores = true;
                conditional = true;
            }
            OpAccess::ReadWrite => {
                loads = true;
                stores = true;
            }
            OpAccess::ReadCondWrite => {
                loads = true;
                stores = true;
            }
            _ => continue,
        }
        addressing = Some(found);
    }
    let direction = match (loads, stores) {
        (true, false) => Direction::Load,
        (false, true) => Direction::Store,
        (true, true) => Direction::Both,
        (false, false) => return None,
    };
    let addressing = match addressing? {
        Addressing::Operand if instruction.is_vsib() => Addressing::Vector,
        Addressing::Operand if is_elsewhere(instruction) => Addressing::Other,
        access => access,
    };
    let segment = match instruction.memory_segment() {
        Register::FS => Some(Segment::Fs),
        Register::GS => Some(Segment::Gs),
        _ => None,
    };
    let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    Some(Access {
        direction,
        bytes: u32::try_from(instruction.memory_size().size()).unwrap_or(0),
        segment,
        addressing,
        conditional: conditional
            || instruction.has_op_mask()
            || addressing == Addressing::String && repeated
            || addressing == Addressing::Vector,
    })
}

/// True if the memory that is accessed differs from the encoded operand.
fn is_elsewhere(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => {
            instruction.op1_kind() == OpKind::Register
        }
        Mnemonic::Xlatb => true,
        _ => matches!(
            instruction.code(),
            Code::VEX_Tileloadd_tmm_sibmem
                | Code::VEX_Tileloaddt1_tmm_sibmem
                | Code::VEX_Tilestored_sibmem_tmm
        ),
    }
}
