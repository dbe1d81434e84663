//! Exception tables: which calls of a function lead to which landing pads.
//!
//! The format is the one that the C++ ABI's personality routines share with Rust's: a
//! header (landing pad base, type table, encoding of the call sites), then call sites of
//! start, length, landing pad (0 for none) and action.

use std::ops::Range;

use gimli::{DwEhPe, EndianSlice, LittleEndian, Reader as _};
use serde::{Deserialize, Serialize};

use crate::image::Image;

/// A call that begins in `start..end` and throws continues at `pad`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct LandingPad {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) pad: u64,
}

/// The landing pads in the unwind entries that begin in `range`, sorted.
pub(super) fn landing_pads(image: &Image<'_>, range: Range<u64>) -> Vec<LandingPad> {
    let mut found = Vec::new();
    for (function, table) in image.exception_tables(range) {
        if let Some(bytes) = image.bytes_from(table) {
            // Entries read before the damage, if any, are valid.
            let _complete = read(bytes, table, &function, &mut found);
        }
    }
    found.sort_unstable();
    found
}

fn read(
    bytes: &[u8],
    address: u64,
    function: &Range<u64>,
    found: &mut Vec<LandingPad>,
) -> Option<()> {
    let mut table = Table {
        all: EndianSlice::new(bytes, LittleEndian),
        rest: EndianSlice::new(bytes, LittleEndian),
        address,
    };
    let pad_base_encoding = DwEhPe(table.rest.read_u8().ok()?);
    let pad_base = if pad_base_encoding == gimli::DW_EH_PE_omit {
        function.start
    } else {
        table.pointer(pad_base_encoding)?
    };
    if table.rest.read_u8().ok()? != gimli::DW_EH_PE_omit.0 {
        // The offset of the type table, which begins after the call sites.
        table.rest.read_uleb128().ok()?;
    }
    let encoding = DwEhPe(table.rest.read_u8().ok()?);
    let length = usize::try_from(table.rest.read_uleb128().ok()?).ok()?;
    let end = table.rest.len().checked_sub(length)?;
    // Limit for damaged tables: every call site has an instruction of its own, so a function has at most as
    // many call sites as bytes.
    let mut bytes_left = function.end - function.start;
    while table.rest.len() > end && bytes_left > 0 {
        bytes_left -= 1;
        let start = table.pointer(encoding)?;
        let length = table.pointer(encoding)?;
        let pad = table.pointer(encoding)?;
        table.rest.read_uleb128().ok()?;
        if pad == 0 {
            continue;
        }
        let start = function.start.wrapping_add(start);
        found.push(LandingPad {
            start,
            end: start.wrapping_add(length),
            pad: pad_base.wrapping_add(pad),
        });
    }
    Some(())
}

struct Table<'a> {
    all: EndianSlice<'a, LittleEndian>,
    rest: EndianSlice<'a, LittleEndian>,
    address: u64,
}

impl Table<'_> {
    /// Reads a value in one of the encodings that compilers use in these tables: absolute or relative to its
    /// own address, never through another pointer.
    fn pointer(&mut self, encoding: DwEhPe) -> Option<u64> {
        let position = self
            .address
            .wrapping_add((self.all.len() - self.rest.len()) as u64);
        let value = match encoding.format() {
            gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => {
                self.rest.read_u64().ok()?
            }
            gimli::DW_EH_PE_uleb128 => self.rest.read_uleb128().ok()?,
            gimli::DW_EH_PE_sleb128 => self.rest.read_sleb128().ok()?.cast_unsigned(),
            gimli::DW_EH_PE_udata2 => self.rest.read_u16().ok()?.into(),
            gimli::DW_EH_PE_udata4 => self.rest.read_u32().ok()?.into(),
            gimli::DW_EH_PE_sdata2 => i64::from(self.rest.read_i16().ok()?).cast_unsigned(),
            gimli::DW_EH_PE_sdata4 => i64::from(self.rest.read_i32().ok()?).cast_unsigned(),
            _ => return None,
        };
        if encoding.is_indirect() {
            return None;
        }
        match encoding.application() {
            gimli::DW_EH_PE_absptr => Some(value),
            gimli::DW_EH_PE_pcrel => Some(position.wrapping_add(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_sites_in_every_usual_encoding() {
        // Two call sites: one without a landing pad, one with.
        let sites: [(u8, &[u8]); 2] = [
            (
                0x01,
                &[0x10, 0x05, 0x00, 0x00, 0x20, 0x05, 0x80, 0x01, 0x03],
            ),
            (
                0x03,
                &[
                    0x10, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x20, 0, 0, 0, 5, 0, 0, 0, 0x80,
                    0, 0, 0, 0x03,
                ],
            ),
        ];
        for (encoding, sites) in sites {
            let length = u8::try_from(sites.len()).unwrap();
            for header in [&[0xff, 0xff][..], &[0xff, 0x9b, 0x20]] {
                let bytes = [header, &[encoding, length], sites, &[0xaa; 8]].concat();
                let mut found = Vec::new();
                let complete = read(&bytes, 0x9000, &(0x1000..0x1200), &mut found);
                assert_eq!(complete, Some(()));
                let pad = LandingPad {
                    start: 0x1020,
                    end: 0x1025,
                    pad: 0x1080,
                };
                assert_eq!(found, [pad]);
            }
        }
    }

    #[test]
    fn a_landing_pad_base_of_its_own_is_honoured() {
        // Base: 0x9001 + 0x10 (pc-relative, 4 bytes).
        let bytes = [
            0x1b, 0x10, 0, 0, 0, 0xff, 0x01, 4, 0x02, 0x03, 0x04, 0x00, 0,
        ];
        let mut found = Vec::new();
        read(&bytes, 0x9000, &(0x1000..0x1200), &mut found).unwrap();
        assert_eq!(found[0].pad, 0x9015);
    }

    #[test]
    fn a_truncated_table_gives_its_complete_entries() {
        let bytes = [0xff, 0xff, 0x01, 60, 0x02, 0x03, 0x04, 0x00, 0x01];
        let mut found = Vec::new();
        assert_eq!(read(&bytes, 0x9000, &(0x1000..0x1200), &mut found), None);
        assert!(found.is_empty(), "the length leads out of the file");
    }
}
