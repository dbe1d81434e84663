//! Parses entries of symbol tables and relocations, and the strings that they refer to.
//!
//! Entries are read byte by byte, since tables may have any alignment in memory.

use object::elf::{self, RelocationType, SymbolType};

use crate::elf::Elf;

/// Length of a symbol in bytes.
const SYMBOL: usize = 24;

/// Length of a relocation in bytes.
const RELOCATION: usize = 24;

/// Longest name that is read from a string table, in bytes.
const MAX_NAME_BYTES: usize = 64 << 10;

/// A symbol; fields in the file's order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    info: u8,
    section: u16,
    pub(crate) value: u64,
    pub(crate) size: u64,
}

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Code,
    Data,
}

/// Visibility of a symbol to other files, the widest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Binding {
    Global,
    Weak,
    Local,
}

impl Symbol {
    /// What it names in `file`; `None` if it is undefined there or has no address.
    pub(crate) fn class(&self, file: &Elf<'_>) -> Option<Class> {
        if self.section == elf::SHN_UNDEF.0 {
            return None;
        }
        match self.kind() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => Some(Class::Code),
            elf::STT_OBJECT | elf::STT_COMMON => Some(Class::Data),
            // Symbols from assembly may have no type. Absolute symbols are no addresses.
            elf::STT_NOTYPE if self.section < elf::SHN_LORESERVE => {
                let section = file.sections.get(usize::from(self.section))?;
                if section.executable() {
                    Some(Class::Code)
                } else {
                    section.loaded().then_some(Class::Data)
                }
            }
            _ => None,
        }
    }

    pub(crate) const fn kind(&self) -> SymbolType {
        SymbolType(self.info & 0xf)
    }

    pub(crate) const fn binding(&self) -> Binding {
        const GLOBAL: u8 = elf::STB_GLOBAL.0;
        const UNIQUE: u8 = elf::STB_GNU_UNIQUE.0;
        const WEAK: u8 = elf::STB_WEAK.0;
        match self.info >> 4 {
            GLOBAL | UNIQUE => Binding::Global,
            WEAK => Binding::Weak,
            _ => Binding::Local,
        }
    }
}

/// A symbol table with its strings.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    bytes: Vec<u8>,
    pub(crate) strings: Vec<u8>,
}

impl Symbols {
    /// The table in the section of this name.
    pub(crate) fn read(file: &Elf<'_>, name: &str) -> Option<Self> {
        let section = file.section(name)?;
        let strings = file.sections.get(section.link)?;
        Some(Self {
            bytes: file.contents(section).ok()?,
            strings: file.contents(strings).ok()?,
        })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Symbol> {
        self.bytes.chunks_exact(SYMBOL).map(symbol)
    }

    /// Name of the symbol with this index.
    pub(crate) fn name_at(&self, position: u32) -> Option<&[u8]> {
        let start = usize::try_from(position).ok()?.checked_mul(SYMBOL)?;
        let bytes = self.bytes.get(start..start.checked_add(SYMBOL)?)?;
        string(&self.strings, symbol(bytes).name)
    }
}

fn symbol(bytes: &[u8]) -> Symbol {
    Symbol {
        name: u32::from_le_bytes(fixed(bytes, 0)),
        info: fixed::<1>(bytes, 4)[0],
        section: u16::from_le_bytes(fixed(bytes, 6)),
        value: u64::from_le_bytes(fixed(bytes, 8)),
        size: u64::from_le_bytes(fixed(bytes, 16)),
    }
}

/// A string of a table; `None` if it is empty or does not end within the table.
pub(crate) fn string(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let end = rest.iter().position(|byte| *byte == 0)?;
    (end > 0).then(|| &rest[..end])
}

/// A relocation with its addend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    pub(crate) slot: u64,
    pub(crate) kind: RelocationType,
    /// Index in the dynamic symbol table.
    pub(crate) symbol: u32,
    pub(crate) addend: u64,
}

/// The relocations in the section of this name.
pub(crate) fn relocations(file: &Elf<'_>, name: &str) -> Vec<Relocation> {
    let bytes = file
        .section(name)
        .and_then(|section| file.contents(section).ok())
        .unwrap_or_default();
    bytes
        .chunks_exact(RELOCATION)
        .map(|bytes| Relocation {
            slot: u64::from_le_bytes(fixed(bytes, 0)),
            kind: RelocationType(u32::from_le_bytes(fixed(bytes, 8))),
            symbol: u32::from_le_bytes(fixed(bytes, 12)),
            addend: u64::from_le_bytes(fixed(bytes, 16)),
        })
        .collect()
}

/// `N` bytes of an entry, at offset `at`; zeros if they are missing.
fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or([0; N])
}
