//! Reads symbols that name code, from the dynamic table and from the table for debuggers.

use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, HashHeader, Rela64, Sym64};
use object::pod;
use object::read::elf::GnuHashTable;

use super::elf::{Layout, string};

/// The type of a symbol for code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SymbolKind {
    /// `STT_FUNC` or `STT_GNU_IFUNC`.
    Function,
    /// `STT_NOTYPE`: a label in code.
    Label,
}

/// A symbol that is defined in text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'data> {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) kind: SymbolKind,
    pub(super) name: &'data [u8],
    pub(super) exported: bool,
}

/// The dynamic symbols by index, as the loader uses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DynamicSymbols<'data> {
    symbols: &'data [Sym64<LE>],
    strings: &'data [u8],
}

impl<'data> DynamicSymbols<'data> {
    pub(super) fn read(layout: &Layout<'data>) -> Self {
        let dynamic = &layout.dynamic;
        let strings = layout.bytes(dynamic.strings.clone()).unwrap_or_default();
        let bytes = if dynamic.symbols == 0 {
            None
        } else {
            layout.bytes_from(dynamic.symbols)
        };
        let symbols = bytes.map_or(&[][..], |bytes| {
            let available = bytes.len() / size_of::<Sym64<LE>>();
            let count = count(layout).min(available);
            pod::slice_from_bytes(bytes, count).map_or(&[][..], |(symbols, _)| symbols)
        });
        Self { symbols, strings }
    }

    /// True for a file that Mono has compiled ahead of time: it exports little besides its description.
    pub(super) fn is_mono(&self) -> bool {
        const MAX_SYMBOLS: usize = 64;
        const DESCRIPTION: &[u8] = b"mono_aot_file_info";
        self.symbols.len() <= MAX_SYMBOLS && self.defined().any(|name| name == DESCRIPTION)
    }

    /// Names of the symbols that this file defines.
    pub(super) fn defined(&self) -> impl Iterator<Item = &'data [u8]> {
        self.names(true)
    }

    /// Names of the symbols that this file imports.
    pub(super) fn undefined(&self) -> impl Iterator<Item = &'data [u8]> {
        self.names(false)
    }

    fn names(&self, defined: bool) -> impl Iterator<Item = &'data [u8]> {
        let Self { symbols, strings } = *self;
        let named = symbols
            .iter()
            .filter(move |symbol| (symbol.st_shndx.get(LE) != elf::SHN_UNDEF) == defined);
        named.filter_map(|symbol| string(strings, symbol.st_name.get(LE)))
    }

    fn get(&self, index: u32) -> Option<&'data Sym64<LE>> {
        self.symbols.get(index as usize)
    }

    /// The name of the symbol with this index.
    pub(super) fn name(&self, index: u32) -> Option<&'data [u8]> {
        string(self.strings, self.get(index)?.st_name.get(LE))
    }

    /// The address of the symbol with this index, if this file defines it.
    pub(super) fn address(&self, index: u32) -> Option<u64> {
        let symbol = self.get(index)?;
        (symbol.st_shndx.get(LE) != elf::SHN_UNDEF).then(|| symbol.st_value.get(LE))
    }
}

/// Number of dynamic symbols. The file does not state it, because the loader does not need it; it is derived
/// from the hash tables or, if these are empty, from the indices in relocations.
fn count(layout: &Layout<'_>) -> usize {
    let dynamic = &layout.dynamic;
    let mut count = 0_u32;
    if dynamic.gnu_hash != 0
        && let Some(bytes) = layout.bytes_from(dynamic.gnu_hash)
        && let Ok(table) = GnuHashTable::<FileHeader64<LE>>::parse(LE, bytes)
    {
        count = count.max(table.symbol_table_length(LE).unwrap_or(0));
    }
    if dynamic.hash != 0
        && let Some(bytes) = layout.bytes_from(dynamic.hash)
        && let Ok((header, _)) = pod::from_bytes::<HashHeader<LE>>(bytes)
    {
        count = count.max(header.chain_count.get(LE));
    }
    if count > 0 {
        // Every symbol that the hash tables leave out has a lower index than those in them; a large library has
        // a million relocations.
        return count as usize;
    }
    for range in [&dynamic.relocations, &dynamic.plt_relocations] {
        for relocation in entries::<Rela64<LE>>(layout, range.clone()) {
            count = count.max(relocation.r_sym(LE, false).saturating_add(1));
        }
    }
    count as usize
}

/// The entries of a table at a range of addresses; empty if the file does not have all of it.
pub(super) fn entries<'data, T: pod::Pod>(
    layout: &Layout<'data>,
    range: std::ops::Range<u64>,
) -> &'data [T] {
    let bytes = layout.bytes(range).unwrap_or_default();
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[], |(entries, _)| entries)
}

/// Functions that this file defines under `is_selected` names, with their addresses, from both tables and
/// under every name. Indirect functions are left out: their addresses are determined at load time.
pub(super) fn functions_named<'data>(
    layout: &Layout<'data>,
    dynamic: &DynamicSymbols<'data>,
    is_selected: impl Fn(&[u8]) -> bool,
) -> Vec<(u64, &'data [u8])> {
    let mut found = Vec::new();
    let mut look = |symbols: &'data [Sym64<LE>], strings| {
        for symbol in symbols {
            let section = symbol.st_shndx.get(LE);
            let address = symbol.st_value.get(LE);
            if symbol.st_type() == elf::STT_FUNC
                && section != elf::SHN_UNDEF
                && section != elf::SHN_ABS
                && let Some(name) = string(strings, symbol.st_name.get(LE))
                && is_selected(name)
                && layout.is_text(address)
            {
                found.push((address, name));
            }
        }
    };
    look(dynamic.symbols, dynamic.strings);
    if let Some((symbols, strings)) = layout.debug_symbols() {
        look(symbols, strings);
    }
    found
}

/// All symbols that name an address in text, sorted by address; at one address the most informative first.
pub(super) fn code_symbols<'data>(
    layout: &Layout<'data>,
    dynamic: &DynamicSymbols<'data>,
) -> Vec<Symbol<'data>> {
    let read = |symbol: &Sym64<LE>, exported| {
        let kind = match symbol.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => SymbolKind::Function,
            elf::STT_NOTYPE => SymbolKind::Label,
            _ => return None,
        };
        let address = symbol.st_value.get(LE);
        let section = symbol.st_shndx.get(LE);
        (section != elf::SHN_UNDEF && section != elf::SHN_ABS && layout.is_text(address)).then(
            || Symbol {
                address,
                size: symbol.st_size.get(LE),
                kind,
                name: &[],
                exported,
            },
        )
    };
    let mut found = Vec::new();
    for symbol in dynamic.symbols {
        if let Some(mut read) = read(symbol, true) {
            read.name = string(dynamic.strings, symbol.st_name.get(LE)).unwrap_or_default();
            found.push(read);
        }
    }
    if let Some((symbols, strings)) = layout.debug_symbols() {
        for symbol in symbols {
            if let Some(mut read) = read(symbol, false) {
                read.name = string(strings, symbol.st_name.get(LE)).unwrap_or_default();
                // Local labels made up by assemblers carry no information.
                if read.kind == SymbolKind::Function || !read.name.starts_with(b".L") {
                    found.push(read);
                }
            }
        }
    }
    found.sort_by_key(|symbol| {
        (
            symbol.address,
            symbol.kind,
            std::cmp::Reverse(symbol.size),
            !symbol.exported,
        )
    });
    found
}
