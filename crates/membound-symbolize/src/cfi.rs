//! Call frame information: where each piece of code has its rules.
//!
//! [`SearchTable`] finds the rules of one address by the index that the program's own unwinder uses, and reads nothing
//! else. [`Cfi`] reads every entry of a file: that takes milliseconds for a large one, and knows all code with rules.

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer,
    UnwindContext, UnwindSection,
};

use crate::elf::Elf;
use crate::machine::Machine;

pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of an address.
const ADDRESS_BYTES: u8 = 8;

/// One section with call frame information.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) bytes: Vec<u8>,
    pub(crate) bases: BaseAddresses,
    pub(crate) kind: Kind,
    pub(crate) machine: Machine,
}

/// The bytes of one section of rules, wherever they are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    bytes: &'a [u8],
    bases: &'a BaseAddresses,
    kind: Kind,
    machine: Machine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `.eh_frame`.
    Eh,
    /// `.debug_frame`.
    Debug,
}

/// The index of `.eh_frame` by address (`.eh_frame_hdr`; Linux Standard Base Core, section 10.6.2).
#[derive(Debug)]
pub(crate) struct SearchTable {
    /// Where both are in the file.
    header: Range<u64>,
    section: Range<u64>,
    bases: BaseAddresses,
    machine: Machine,
}

/// A piece of code that has rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset of its entry in the section.
    offset: u32,
    section: Kind,
}

/// All call frame information of a file.
#[derive(Debug, Default)]
pub(crate) struct Cfi {
    sections: Vec<Section>,
    /// Sorted by first address.
    pieces: Vec<Piece>,
}

/// Whether a frame is a kernel signal frame (`S` in the CIE augmentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A signal frame: the caller was interrupted at its address, it did not call.
    Yes,
    /// A normal frame: made by a call.
    No,
}

/// A rule at one address.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) cfa: gimli::CfaRule<usize>,
    /// Rules by DWARF register number.
    pub(crate) registers: Vec<(u16, gimli::RegisterRule<usize>)>,
    pub(crate) encoding: gimli::Encoding,
    pub(crate) section: Kind,
    pub(crate) signal: Signal,
}

impl Cfi {
    pub(crate) fn read(elf: &Elf<'_>) -> Self {
        let mut cfi = Self::default();
        if let Some((file, bases)) = eh_frame(elf)
            && let Some(bytes) = elf.range(file)
        {
            cfi.add(Section {
                bytes,
                bases,
                kind: Kind::Eh,
                machine: elf.machine,
            });
        }
        if let Some(section) = elf.section(".debug_frame")
            && let Ok(bytes) = elf.contents(section)
        {
            cfi.add(Section {
                bytes,
                bases: BaseAddresses::default(),
                kind: Kind::Debug,
                machine: elf.machine,
            });
        }
        // Where both sections describe the same code, `.eh_frame` wins, as in the program's own unwinder.
        cfi.pieces.sort_by_key(|piece| piece.start);
        cfi.pieces.dedup_by_key(|piece| piece.start);
        cfi
    }

    /// Sorted by first address; they may overlap in malformed files.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn piece(&self, address: u64) -> Option<&Piece> {
        let behind = self.pieces.partition_point(|piece| piece.start <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        (address < piece.end).then_some(piece)
    }

    pub(crate) fn section(&self, kind: Kind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    /// The rules for `address`.
    pub(crate) fn row(&self, address: u64, context: &mut UnwindContext<usize>) -> Option<Row> {
        let piece = self.piece(address)?;
        let rules = self.section(piece.section)?.rules();
        let offset = usize::try_from(piece.offset).ok()?;
        match rules.kind {
            Kind::Eh => row(
                &rules.eh(),
                rules,
                gimli::EhFrameOffset(offset),
                address,
                context,
            ),
            Kind::Debug => row(
                &rules.debug(),
                rules,
                gimli::DebugFrameOffset(offset),
                address,
                context,
            ),
        }
    }

    fn add(&mut self, section: Section) {
        let rules = section.rules();
        match section.kind {
            Kind::Eh => pieces(&rules.eh(), rules, &mut self.pieces),
            Kind::Debug => pieces(&rules.debug(), rules, &mut self.pieces),
        }
        self.sections.push(section);
    }
}

impl Section {
    pub(crate) fn rules(&self) -> Rules<'_> {
        Rules {
            bytes: &self.bytes,
            bases: &self.bases,
            kind: self.kind,
            machine: self.machine,
        }
    }
}

impl<'a> Rules<'a> {
    pub(crate) fn eh(self) -> EhFrame<Slice<'a>> {
        let mut section = EhFrame::new(self.bytes, LittleEndian);
        section.set_address_size(ADDRESS_BYTES);
        section.set_vendor(self.machine.vendor());
        section
    }

    pub(crate) fn debug(self) -> DebugFrame<Slice<'a>> {
        let mut section = DebugFrame::new(self.bytes, LittleEndian);
        section.set_address_size(ADDRESS_BYTES);
        section.set_vendor(self.machine.vendor());
        section
    }
}

impl SearchTable {
    /// The table of a file. `None` if the file has none, or if the table is about another section than `.eh_frame`.
    pub(crate) fn of(elf: &Elf<'_>) -> Option<Self> {
        let header = elf.frame_header.clone()?;
        let (section, bases) = eh_frame(elf)?;
        let table = Self {
            header: elf.file_range(header.start, header.end - header.start)?,
            section,
            bases: bases.set_eh_frame_hdr(header.start),
            machine: elf.machine,
        };
        let pointer = parsed_header(&elf.range(table.header.clone())?, &table.bases)?;
        (table.bases.eh_frame.section == Some(pointer)).then_some(table)
    }

    /// The rule at `address`, read from the bytes of the whole file. `None` if the table has no entry for the address.
    pub(crate) fn row(
        &self,
        file: &[u8],
        address: u64,
        context: &mut UnwindContext<usize>,
    ) -> Option<Row> {
        let header = EhFrameHdr::new(part(file, &self.header)?, LittleEndian)
            .parse(&self.bases, ADDRESS_BYTES)
            .ok()?;
        let table = header.table()?;
        let entry = table.lookup(address, &self.bases).ok()?;
        // gimli's `pointer_to_offset` subtracts unchecked, and a damaged entry may lie before the section.
        let offset = entry
            .direct()
            .ok()?
            .checked_sub(self.bases.eh_frame.section?)?;
        let offset = gimli::EhFrameOffset(usize::try_from(offset).ok()?);
        let rules = self.rules(file)?;
        // An entry that does not hold the address has no rule for it.
        row(&rules.eh(), rules, offset, address, context)
    }

    /// `.eh_frame`, in the bytes of the whole file.
    pub(crate) fn rules<'a>(&'a self, file: &'a [u8]) -> Option<Rules<'a>> {
        Some(Rules {
            bytes: part(file, &self.section)?,
            bases: &self.bases,
            kind: Kind::Eh,
            machine: self.machine,
        })
    }
}

fn part<'a>(file: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    file.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Where `.eh_frame` is in the file, and the addresses that its entries refer to: by its section, or, in files without
/// a table of sections, by the header that the program's own unwinder finds it with.
fn eh_frame(elf: &Elf<'_>) -> Option<(Range<u64>, BaseAddresses)> {
    let mut bases = BaseAddresses::default();
    for section in &elf.sections {
        match section.name.as_str() {
            ".text" => bases = bases.set_text(section.address),
            ".got" => bases = bases.set_got(section.address),
            _ => {}
        }
    }
    if let Some(section) = elf.section(".eh_frame") {
        return Some((section.stored()?, bases.set_eh_frame(section.address)));
    }
    let header = elf.frame_header.clone()?;
    let bytes = elf.at(header.start, header.end - header.start)?;
    let bases = bases.set_eh_frame_hdr(header.start);
    let address = parsed_header(&bytes, &bases)?;
    let segment = elf.segments.iter().find(|segment| {
        let length = segment.file.end - segment.file.start;
        (segment.address..segment.address.saturating_add(length)).contains(&address)
    })?;
    let offset = address - segment.address;
    let file = segment.file.start + offset..segment.file.end;
    Some((file, bases.set_eh_frame(address)))
}

/// The address of `.eh_frame` that its header states.
fn parsed_header(header: &[u8], bases: &BaseAddresses) -> Option<u64> {
    let parsed = EhFrameHdr::new(header, LittleEndian)
        .parse(bases, ADDRESS_BYTES)
        .ok()?;
    match parsed.eh_frame_ptr() {
        Pointer::Direct(address) => Some(address),
        Pointer::Indirect(_) => None,
    }
}

/// Finds every entry of `section` that speaks of code.
fn pieces<'a, S: UnwindSection<Slice<'a>>>(section: &S, about: Rules<'a>, pieces: &mut Vec<Piece>) {
    let mut entries = section.entries(about.bases);
    let mut common: Option<(S::Offset, gimli::CommonInformationEntry<Slice<'a>>)> = None;
    // After an entry with a damaged length, no further entry can be found.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(entry) = entry else {
            continue;
        };
        let parsed = entry.parse(|section, bases, offset| match &common {
            Some((last, common)) if *last == offset => Ok(common.clone()),
            _ => {
                let read = section.cie_from_offset(bases, offset)?;
                common = Some((offset, read.clone()));
                Ok(read)
            }
        });
        let Ok(entry) = parsed else {
            continue;
        };
        let (start, end) = (entry.initial_address(), entry.end_address());
        if let Ok(offset) = u32::try_from(entry.offset())
            && start < end
            // Code that the linker discarded has an entry at address 0.
            && start != 0
        {
            pieces.push(Piece {
                start,
                end,
                offset,
                section: about.kind,
            });
        }
    }
}

fn row<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    about: Rules<'a>,
    offset: S::Offset,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Row> {
    let entry = section
        .fde_from_offset(about.bases, offset, S::cie_from_offset)
        .ok()?;
    let row = entry
        .unwind_info_for_address(section, about.bases, context, address)
        .ok()?;
    Some(Row {
        cfa: row.cfa().clone(),
        registers: row
            .registers()
            .map(|(register, rule)| (register.0, rule.clone()))
            .collect(),
        encoding: entry.cie().encoding(),
        section: about.kind,
        signal: if entry.is_signal_trampoline() {
            Signal::Yes
        } else {
            Signal::No
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses at which both ways to a rule are compared, spread over the file.
    const COMPARED: usize = 2000;

    #[test]
    fn the_search_table_finds_the_rules_that_reading_every_entry_finds() {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let elf = Elf::of_borrowed(&bytes, "own").unwrap();
        let all = Cfi::read(&elf);
        let table = SearchTable::of(&elf).expect("linkers write one");
        let mut context = UnwindContext::new();
        let every = (all.pieces().len() / COMPARED).max(1);
        let mut compared = 0;
        for piece in all.pieces().iter().step_by(every) {
            for address in [piece.start, (piece.start + piece.end) / 2, piece.end - 1] {
                let found = table.row(&bytes, address, &mut context);
                assert_eq!(found, all.row(address, &mut context), "{address:x}");
                compared += usize::from(found.is_some());
            }
        }
        assert!(compared > 1000, "{compared} rules");
        let outside = [0, u64::MAX, all.pieces().last().unwrap().end];
        for address in outside {
            assert!(table.row(&bytes, address, &mut context).is_none());
        }
    }

    #[test]
    fn an_entry_that_leads_before_its_section_has_no_rule() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::of_borrowed(&bytes, "own").unwrap();
        let table = SearchTable::of(&elf).expect("linkers write one");
        let start = Cfi::read(&elf).pieces()[0].start;
        drop(elf);
        let mut context = UnwindContext::new();
        assert!(table.row(&bytes, start, &mut context).is_some());
        // The distance from the header to address 0 as the second half of each entry.
        let header = table.bases.eh_frame_hdr.section.unwrap();
        let distance = i32::try_from(header).unwrap().wrapping_neg().to_le_bytes();
        let entries = table.header.start as usize + 12..table.header.end as usize;
        for entry in bytes[entries].chunks_exact_mut(8) {
            entry[4..].copy_from_slice(&distance);
        }
        assert!(table.row(&bytes, start, &mut context).is_none());
    }

    #[test]
    fn a_file_cut_off_before_its_table_has_no_rules_and_does_no_harm() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::of_borrowed(&bytes, "own").unwrap();
        let table = SearchTable::of(&elf).expect("linkers write one");
        let start = Cfi::read(&elf).pieces()[0].start;
        let mut context = UnwindContext::new();
        for part in [0, 64, table.header.start as usize + 4] {
            let cut = &bytes[..part];
            assert!(table.row(cut, start, &mut context).is_none());
        }
        // Entries that lead anywhere are refused, regardless of their content.
        let mut damaged = bytes.clone();
        for byte in &mut damaged[table.header.start as usize + 12..table.header.end as usize] {
            *byte = byte.wrapping_mul(31).wrapping_add(7);
        }
        let found = table.row(&damaged, start, &mut context);
        let right = table.row(&bytes, start, &mut context);
        assert!(found.is_none() || found == right);
    }
}
