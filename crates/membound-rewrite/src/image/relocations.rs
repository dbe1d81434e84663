//! The relocations that the loader applies to the image: its own addresses, and those of imported symbols.

use object::LittleEndian as LE;
use object::elf::{self, Rela64, Relr64};

use super::elf::Layout;
use super::symbols::{DynamicSymbols, entries};

/// Words that the loader fills; each list is sorted by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Relocations<'data> {
    /// Address of each word, and the address within this image that it will hold.
    pub(super) pointers: Vec<(u64, u64)>,
    /// Address of each word, and the name of the symbol whose address it will hold.
    pub(super) imports: Vec<(u64, &'data [u8])>,
    /// Addresses of the resolvers of indirect functions (`IRELATIVE`).
    pub(super) resolvers: Vec<u64>,
}

impl<'data> Relocations<'data> {
    pub(super) fn read(layout: &Layout<'data>, symbols: &DynamicSymbols<'data>) -> Self {
        let mut found = Self::default();
        let dynamic = &layout.dynamic;
        for range in [&dynamic.relocations, &dynamic.plt_relocations] {
            for relocation in entries::<Rela64<LE>>(layout, range.clone()) {
                found.take(relocation, symbols);
            }
        }
        // Static executables have no dynamic table but may have indirect functions.
        if !dynamic.present
            && let Some(bytes) = layout.raw_section(b".rela.plt")
        {
            let count = bytes.len() / size_of::<Rela64<LE>>();
            if let Ok((relocations, _)) = object::pod::slice_from_bytes::<Rela64<LE>>(bytes, count)
            {
                for relocation in relocations {
                    found.take(relocation, symbols);
                }
            }
        }
        found.unpack(layout);
        found.pointers.sort_unstable();
        found.pointers.dedup();
        found.imports.sort_unstable();
        found
    }

    fn take(&mut self, relocation: &Rela64<LE>, symbols: &DynamicSymbols<'data>) {
        let at = relocation.r_offset.get(LE);
        let addend = relocation.r_addend.get(LE).cast_unsigned();
        let symbol = relocation.r_sym(LE, false);
        match relocation.r_type(LE, false) {
            elf::R_X86_64_RELATIVE => self.pointers.push((at, addend)),
            elf::R_X86_64_IRELATIVE => self.resolvers.push(addend),
            elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => {
                if let Some(name) = symbols.name(symbol) {
                    self.imports.push((at, name));
                }
                if let Some(address) = symbols.address(symbol) {
                    self.pointers.push((at, address.wrapping_add(addend)));
                }
            }
            _ => {}
        }
    }

    /// Unpacks `DT_RELR`: an even word is the address of a pointer. An odd word is a bitmap: bit n is set if
    /// the n-th word behind the last address is a pointer. The file holds the pointers' values at their addresses.
    fn unpack(&mut self, layout: &Layout<'_>) {
        let mut next = 0_u64;
        for Relr64(entry) in
            entries::<Relr64<LE>>(layout, layout.dynamic.packed_relocations.clone())
        {
            let entry = entry.get(LE);
            let (first, bitmap) = if entry & 1 == 0 {
                (entry, 1)
            } else {
                (next, entry >> 1)
            };
            // The addresses ascend, so there cannot be more of them than words in the image.
            if first < next {
                return;
            }
            for bit in 0..63_u64 {
                if bitmap >> bit & 1 != 0 {
                    let Some(at) = first.checked_add(8 * bit) else {
                        return;
                    };
                    let Some(value) = at
                        .checked_add(8)
                        .and_then(|end| layout.bytes(at..end))
                        .and_then(|bytes| bytes.try_into().ok())
                        .map(u64::from_le_bytes)
                    else {
                        return;
                    };
                    self.pointers.push((at, value));
                }
            }
            let words = if entry & 1 == 0 { 1 } else { 63 };
            let Some(following) = first.checked_add(8 * words) else {
                return;
            };
            next = following;
        }
    }
}
