//! Memory modules and their slots, from the firmware's DMI table (SMBIOS type 17).
//!
//! Empty slots matter: a memory channel without a module halves the bandwidth that the machine
//! could have. The firmware may have written anything into the table, so every length and index in
//! it is checked.

use std::fs;

use membound_types::{NotMeasured, Outcome};

use crate::Root;

const TABLE: &str = "sys/firmware/dmi/tables/DMI";

/// One slot for a memory module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Label on the board, such as `DIMM_A1`.
    pub locator: String,
    /// Its bank or channel as the firmware names it.
    pub bank: String,
    /// The module in it; `None` where it is empty.
    pub module: Option<MemoryModule>,
}

/// A memory module as the firmware describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryModule {
    /// Capacity; `None` where the firmware does not know it.
    pub size_bytes: Option<u64>,
    /// Memory type, such as `DDR4` or `DDR5`.
    pub kind: String,
    /// Rated speed in millions of transfers per second.
    pub rated_mts: Option<u32>,
    /// Configured speed in millions of transfers per second.
    pub configured_mts: Option<u32>,
    /// Number of ranks; `None` where the table does not give it.
    pub ranks: Option<u8>,
    /// Name of the manufacturer.
    pub manufacturer: String,
}

/// All slots in the order of the table.
#[must_use]
pub fn slots(root: &Root) -> Outcome<Vec<Slot>> {
    let path = root.path(TABLE);
    match fs::read(&path) {
        Ok(table) => {
            let slots = parse(&table);
            if slots.is_empty() {
                return Outcome::missing(format!("{} lists no memory slots", path.display()));
            }
            Outcome::Known(slots)
        }
        Err(error) => Outcome::Missing {
            not_measured: NotMeasured {
                reason: format!("cannot read {}: {error}", path.display()),
                remedy: (error.kind() == std::io::ErrorKind::PermissionDenied)
                    .then(|| "run membound as root".to_owned()),
            },
        },
    }
}

/// The type 17 structures of a table, up to the first structure that does not fit into it.
#[must_use]
pub fn parse(table: &[u8]) -> Vec<Slot> {
    const MEMORY_DEVICE: u8 = 17;
    const END_OF_TABLE: u8 = 127;
    let mut slots = Vec::new();
    let mut rest = table;
    while let Some((structure, after)) = Structure::first_of(rest) {
        match structure.kind {
            MEMORY_DEVICE => slots.extend(structure.slot()),
            END_OF_TABLE => break,
            _ => {}
        }
        rest = after;
    }
    slots
}

/// A structure: its formatted part with the header, and the strings after it.
struct Structure<'a> {
    kind: u8,
    formatted: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Structure<'a> {
    /// The structure at the beginning, and what follows it.
    fn first_of(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const HEADER: usize = 4;
        let kind = *bytes.first()?;
        let length = usize::from(*bytes.get(1)?);
        if length < HEADER {
            return None;
        }
        let formatted = bytes.get(..length)?;
        let tail = &bytes[length..];
        // The strings end with an empty one, so with two zero bytes in a row.
        let end = tail.windows(2).position(|pair| pair == [0, 0])?;
        let structure = Self {
            kind,
            formatted,
            strings: &tail[..end],
        };
        Some((structure, &tail[end + 2..]))
    }

    fn byte(&self, offset: usize) -> Option<u8> {
        self.formatted.get(offset).copied()
    }

    fn word(&self, offset: usize) -> Option<u16> {
        let bytes = self.formatted.get(offset..offset + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    fn double(&self, offset: usize) -> Option<u32> {
        let bytes = self.formatted.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The string whose number, from 1, is at `offset`; empty where there is none.
    fn string(&self, offset: usize) -> String {
        let number = usize::from(self.byte(offset).unwrap_or(0));
        let bytes = number
            .checked_sub(1)
            .and_then(|index| self.strings.split(|&byte| byte == 0).nth(index))
            .unwrap_or_default();
        String::from_utf8_lossy(bytes)
            .chars()
            .filter(|letter| !letter.is_control())
            .collect::<String>()
            .trim()
            .to_owned()
    }

    /// Decodes a memory device (SMBIOS 3.6, 7.18).
    fn slot(&self) -> Option<Slot> {
        let size = self.word(0x0c)?;
        let module = (size != 0).then(|| MemoryModule {
            size_bytes: self.size_bytes(size),
            kind: memory_type(self.byte(0x12).unwrap_or(0)).to_owned(),
            rated_mts: self.speed(0x15, 0x54),
            configured_mts: self.speed(0x20, 0x58),
            ranks: self
                .byte(0x1b)
                .map(|byte| byte & 0x0f)
                .filter(|&ranks| ranks > 0),
            manufacturer: self.string(0x17),
        });
        Some(Slot {
            locator: self.string(0x10),
            bank: self.string(0x11),
            module,
        })
    }

    fn size_bytes(&self, size: u16) -> Option<u64> {
        const UNKNOWN: u16 = 0xffff;
        const EXTENDED: u16 = 0x7fff;
        const IN_KIB: u16 = 0x8000;
        match size {
            UNKNOWN => None,
            EXTENDED => {
                let mib = self.double(0x1c)? & 0x7fff_ffff;
                (mib > 0).then_some(u64::from(mib) << 20)
            }
            _ if size & IN_KIB != 0 => Some(u64::from(size & !IN_KIB) << 10),
            _ => Some(u64::from(size) << 20),
        }
    }

    fn speed(&self, offset: usize, extended: usize) -> Option<u32> {
        match self.word(offset)? {
            0 => None,
            0xffff => self.double(extended).filter(|&speed| speed > 0),
            speed => Some(u32::from(speed)),
        }
    }
}

fn memory_type(code: u8) -> &'static str {
    match code {
        0x12 => "DDR",
        0x13 => "DDR2",
        0x18 => "DDR3",
        0x1a => "DDR4",
        0x1b => "LPDDR",
        0x1c => "LPDDR2",
        0x1d => "LPDDR3",
        0x1e => "LPDDR4",
        0x1f => "NVDIMM",
        0x20 => "HBM",
        0x21 => "HBM2",
        0x22 => "DDR5",
        0x23 => "LPDDR5",
        0x24 => "HBM3",
        0x07 => "RAM",
        _ => "memory of unknown type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use proptest::prelude::*;

    /// A type 17 structure of SMBIOS 3.3 with the given size word and extended size.
    fn device(size: u16, extended_mib: u32, strings: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0u8; 0x5c];
        bytes[0] = 17;
        bytes[1] = 0x5c;
        bytes[0x0c..0x0e].copy_from_slice(&size.to_le_bytes());
        bytes[0x10] = 1;
        bytes[0x11] = 2;
        bytes[0x12] = 0x22;
        bytes[0x15..0x17].copy_from_slice(&5600u16.to_le_bytes());
        bytes[0x17] = 3;
        bytes[0x1b] = 2;
        bytes[0x1c..0x20].copy_from_slice(&extended_mib.to_le_bytes());
        bytes[0x20..0x22].copy_from_slice(&0xffffu16.to_le_bytes());
        bytes[0x58..0x5c].copy_from_slice(&4800u32.to_le_bytes());
        append_strings(&mut bytes, strings);
        bytes
    }

    fn append_strings(bytes: &mut Vec<u8>, strings: &[&str]) {
        for string in strings {
            bytes.extend_from_slice(string.as_bytes());
            bytes.push(0);
        }
        if strings.is_empty() {
            bytes.push(0);
        }
        bytes.push(0);
    }

    #[test]
    fn full_and_empty_slots() {
        let mut table = vec![0, 4, 0, 0];
        append_strings(&mut table, &["BIOS"]);
        table.extend(device(16384, 0, &["DIMM_A1", "BANK 0", "Samsung"]));
        table.extend(device(0x7fff, 65536, &["DIMM_A2", "BANK 0", "Micron"]));
        table.extend(device(0, 0, &["DIMM_B1", "BANK 1"]));
        table.extend([127, 4, 1, 0, 0, 0]);
        table.extend(device(16384, 0, &["beyond the end"]));
        let tree = Tree::new().file(TABLE, &table);
        let slots = slots(&tree.root());
        let slots = slots.known().unwrap();
        assert_eq!(slots.len(), 3);
        assert_eq!(slots[0].locator, "DIMM_A1");
        assert_eq!(slots[0].bank, "BANK 0");
        assert_eq!(
            slots[0].module,
            Some(MemoryModule {
                size_bytes: Some(16 << 30),
                kind: "DDR5".to_owned(),
                rated_mts: Some(5600),
                configured_mts: Some(4800),
                ranks: Some(2),
                manufacturer: "Samsung".to_owned(),
            })
        );
        assert_eq!(slots[1].module.as_ref().unwrap().size_bytes, Some(64 << 30));
        assert_eq!(slots[2].module, None);
        assert_eq!(slots[2].locator, "DIMM_B1");
    }

    #[test]
    fn small_and_unknown_sizes() {
        let size = |word| {
            parse(&device(word, 0, &[]))[0]
                .module
                .clone()
                .unwrap()
                .size_bytes
        };
        assert_eq!(size(0x8000 | 512), Some(512 << 10));
        assert_eq!(size(0xffff), None);
        assert_eq!(size(0x7fff), None);
    }

    #[test]
    fn a_table_that_cannot_be_read_has_a_reason() {
        let absent = slots(&Tree::new().root());
        assert!(absent.why_missing().unwrap().reason.contains(TABLE));
        let empty = slots(&Tree::new().file(TABLE, "").root());
        assert!(
            empty
                .why_missing()
                .unwrap()
                .reason
                .contains("no memory slots")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(table in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&table);
        }

        #[test]
        fn no_damage_to_a_table_panics(
            at in 0usize..220, value in any::<u8>(), cut in 0usize..220,
        ) {
            let mut table = device(16384, 0, &["A", "B", "C"]);
            table.extend(device(0x7fff, 1, &["A", "B", "C"]));
            let at = at % table.len();
            table[at] = value;
            let _ = parse(&table);
            table.truncate(cut.min(table.len()));
            let _ = parse(&table);
        }
    }
}
