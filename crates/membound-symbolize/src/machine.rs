//! Properties of architectures that unwinding depends on: register numbers, and which registers a call
//! preserves.

use object::elf;

/// Architectures whose files can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// Number of general registers on the architecture with the most.
pub(crate) const REGISTERS: usize = 32;

/// A set of registers: one bit for each.
pub(crate) type Set = u32;

/// DWARF number of the link register, and of the pseudo-register that says whether the return address is
/// signed (DWARF for the Arm 64-bit Architecture, section 4.1).
const LINK_REGISTER: u16 = 30;
pub(crate) const SIGNED_RETURN: u16 = 34;

impl Machine {
    /// The architecture of a file's `e_machine`.
    pub(crate) fn of(file: elf::Machine) -> Option<Self> {
        match file {
            elf::EM_X86_64 => Some(Self::X86_64),
            elf::EM_AARCH64 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// The architecture that this code runs on; x86-64 if it is another than the two.
    pub(crate) const fn native() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Aarch64
        } else {
            Self::X86_64
        }
    }

    /// Number of rsp, or sp.
    pub(crate) const fn stack_pointer(self) -> u8 {
        match self {
            Self::X86_64 => 4,
            Self::Aarch64 => 31,
        }
    }

    /// Number of rbp, or x29.
    pub(crate) const fn frame_pointer(self) -> u8 {
        match self {
            Self::X86_64 => 5,
            Self::Aarch64 => 29,
        }
    }

    /// The register that receives a call's return address, where there is one.
    pub(crate) const fn link_register(self) -> Option<u8> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some(LINK_REGISTER as u8),
        }
    }

    /// Registers that a called function must preserve: rbx, rsp, rbp, r12–r15; or x19–x29 and sp.
    pub(crate) const fn preserved(self) -> Set {
        match self {
            Self::X86_64 => 1 << 3 | 1 << 4 | 1 << 5 | 0xf000,
            Self::Aarch64 => 0x3ff8_0000 | 1 << 31,
        }
    }

    /// Registers with a slot in the plain form of a rule: rbx, rbp, r12–r15; or x19–x29.
    pub(crate) const fn callee_saved(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &[3, 5, 12, 13, 14, 15],
            Self::Aarch64 => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
        }
    }

    /// DWARF number of the return address.
    pub(crate) const fn return_address(self) -> u16 {
        match self {
            Self::X86_64 => 16,
            Self::Aarch64 => LINK_REGISTER,
        }
    }

    /// Converts a general register's DWARF number to the number that instructions use.
    pub(crate) const fn hardware(self, dwarf: u16) -> Option<u8> {
        const FIRST: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
        match (self, dwarf) {
            (Self::X86_64, 0..8) => Some(FIRST[dwarf as usize]),
            (Self::X86_64, 8..16) | (Self::Aarch64, 0..32) => Some(dwarf as u8),
            _ => None,
        }
    }

    /// A return address without its signature, which is above the 48 bits of user addresses.
    pub(crate) const fn code_address(self, address: u64) -> u64 {
        match self {
            Self::X86_64 => address,
            Self::Aarch64 => address & ((1 << 48) - 1),
        }
    }

    /// The vendor whose extensions of the rules apply.
    pub(crate) const fn vendor(self) -> gimli::Vendor {
        match self {
            Self::X86_64 => gimli::Vendor::Default,
            Self::Aarch64 => gimli::Vendor::AArch64,
        }
    }
}
