//! Call frame information: where each piece of code has its rules.

use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer,
    UnwindContext, UnwindSection,
};

use crate::elf::Elf;
use crate::machine::Machine;

pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of an address.
const ADDRESS_BYTES: u8 = 8;

/// One section of rules.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) bytes: Vec<u8>,
    pub(crate) bases: BaseAddresses,
    pub(crate) kind: Kind,
    pub(crate) machine: Machine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `.eh_frame`.
    Eh,
    /// `.debug_frame`.
    Debug,
}

/// A piece of code that has rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Of its entry in its section.
    offset: u32,
    section: Kind,
}

/// All rules of a file.
#[derive(Debug, Default)]
pub(crate) struct Cfi {
    sections: Vec<Section>,
    /// By first address.
    pieces: Vec<Piece>,
}

/// Whether the kernel made a frame, for a signal's handler to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// It did: the caller was interrupted, it has not called.
    Yes,
    /// A call did.
    No,
}

/// A rule at one address.
pub(crate) struct Row {
    pub(crate) cfa: gimli::CfaRule<usize>,
    /// By DWARF's number of the register.
    pub(crate) registers: Vec<(u16, gimli::RegisterRule<usize>)>,
    pub(crate) encoding: gimli::Encoding,
    pub(crate) section: Kind,
    pub(crate) signal: Signal,
}

impl Cfi {
    pub(crate) fn read(elf: &Elf<'_>) -> Self {
        let mut cfi = Self::default();
        if let Some(section) = eh_frame(elf) {
            cfi.add(section);
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
        // Where both speak of the same code, what the program itself unwinds by stands first.
        cfi.pieces.sort_by_key(|piece| piece.start);
        cfi.pieces.dedup_by_key(|piece| piece.start);
        cfi
    }

    /// By first address; they may overlap in files that nobody should write.
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

    /// The rule at `address`.
    pub(crate) fn row(&self, address: u64, context: &mut UnwindContext<usize>) -> Option<Row> {
        let piece = self.piece(address)?;
        let section = self.section(piece.section)?;
        let offset = usize::try_from(piece.offset).ok()?;
        match section.kind {
            Kind::Eh => row(
                &section.eh(),
                section,
                gimli::EhFrameOffset(offset),
                address,
                context,
            ),
            Kind::Debug => row(
                &section.debug(),
                section,
                gimli::DebugFrameOffset(offset),
                address,
                context,
            ),
        }
    }

    fn add(&mut self, section: Section) {
        match section.kind {
            Kind::Eh => pieces(&section.eh(), &section, &mut self.pieces),
            Kind::Debug => pieces(&section.debug(), &section, &mut self.pieces),
        }
        self.sections.push(section);
    }
}

impl Section {
    pub(crate) fn eh(&self) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(ADDRESS_BYTES);
        section.set_vendor(self.machine.vendor());
        section
    }

    pub(crate) fn debug(&self) -> DebugFrame<Slice<'_>> {
        let mut section = DebugFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(ADDRESS_BYTES);
        section.set_vendor(self.machine.vendor());
        section
    }
}

/// `.eh_frame` by its section, or, where the table of sections was taken out, by the header
/// that the program's own unwinder finds it with.
fn eh_frame(elf: &Elf<'_>) -> Option<Section> {
    let mut bases = BaseAddresses::default();
    for section in &elf.sections {
        match section.name.as_str() {
            ".text" => bases = bases.set_text(section.address),
            ".got" => bases = bases.set_got(section.address),
            _ => {}
        }
    }
    if let Some(section) = elf.section(".eh_frame") {
        return Some(Section {
            bytes: elf.contents(section).ok()?,
            bases: bases.set_eh_frame(section.address),
            kind: Kind::Eh,
            machine: elf.machine,
        });
    }
    let header = elf.frame_header.clone()?;
    let bytes = elf.at(header.start, header.end - header.start)?;
    let bases = bases.set_eh_frame_hdr(header.start);
    let parsed = EhFrameHdr::new(&bytes, LittleEndian)
        .parse(&bases, ADDRESS_BYTES)
        .ok()?;
    let Pointer::Direct(address) = parsed.eh_frame_ptr() else {
        return None;
    };
    let segment = elf.segments.iter().find(|segment| {
        let length = segment.file.end - segment.file.start;
        (segment.address..segment.address.saturating_add(length)).contains(&address)
    })?;
    let offset = address - segment.address;
    Some(Section {
        bytes: elf.range(segment.file.start + offset..segment.file.end)?,
        bases: bases.set_eh_frame(address),
        kind: Kind::Eh,
        machine: elf.machine,
    })
}

/// Finds every entry of `section` that speaks of code.
fn pieces<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    about: &'a Section,
    pieces: &mut Vec<Piece>,
) {
    let mut entries = section.entries(&about.bases);
    let mut common: Option<(S::Offset, gimli::CommonInformationEntry<Slice<'a>>)> = None;
    // Behind an entry whose length is damaged nothing can be found.
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
            // What the linker threw away keeps an entry at address 0.
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
    about: &'a Section,
    offset: S::Offset,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Row> {
    let entry = section
        .fde_from_offset(&about.bases, offset, S::cie_from_offset)
        .ok()?;
    let row = entry
        .unwind_info_for_address(section, &about.bases, context, address)
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
