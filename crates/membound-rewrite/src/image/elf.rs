//! The file's memory layout: program headers, the dynamic table, and section headers as hints.
//!
//! The kernel and the loader use program headers, so these are trusted. Section headers may be missing or
//! wrong; they are used only where they agree with the program headers.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod;
use object::read::elf::{FileHeader as _, NoteIterator, ProgramHeader as _, SectionHeader as _};

use super::error::{Error, Unsupported};
use super::kind::Kind;

/// Largest span of a module in bytes: displacements of jumps reach 2 GiB, and the code area needs a part of
/// that.
const LARGEST_SPAN: u64 = 1 << 30;

/// Longest name of a section or symbol in bytes; longer ones are taken for damage.
pub(super) const MAX_NAME_BYTES: usize = 1 << 14;
/// Most note segments that are read; files have one or two.
const NOTE_SEGMENTS: usize = 16;

/// The string at offset `at` of a string table, without its terminator.
pub(super) fn string(table: &[u8], at: u32) -> Option<&[u8]> {
    let rest = table.get(at as usize..)?;
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let end = rest.iter().position(|&byte| byte == 0)?;
    Some(&rest[..end])
}

/// The range that contains an address, among sorted and disjoint ranges.
pub(super) fn range_holding(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let after = ranges.partition_point(|range| range.start <= address);
    ranges[..after].last().filter(|range| address < range.end)
}

/// A `PT_LOAD` segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Addresses that have bytes in the file.
    pub(super) backed: Range<u64>,
    /// The first address after the segment in memory.
    pub(super) end: u64,
    /// Offset of its first byte in the file.
    pub(super) offset: u64,
    pub(super) writable: bool,
    pub(super) executable: bool,
}

/// A valid section header: its bytes lie in the file-backed part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Section<'data> {
    pub(super) name: &'data [u8],
    pub(super) range: Range<u64>,
    pub(super) executable: bool,
}

/// The contents of the dynamic table. Sizes are in bytes; 0 means absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Dynamic {
    pub(super) present: bool,
    pub(super) symbols: u64,
    pub(super) strings: Range<u64>,
    pub(super) hash: u64,
    pub(super) gnu_hash: u64,
    pub(super) relocations: Range<u64>,
    pub(super) plt_relocations: Range<u64>,
    pub(super) packed_relocations: Range<u64>,
    pub(super) init: u64,
    pub(super) fini: u64,
    relocates_text: bool,
    named: bool,
    says_executable: bool,
}

/// The file's headers, parsed.
#[derive(Clone, Debug)]
pub(super) struct Layout<'data> {
    pub(super) data: &'data [u8],
    pub(super) segments: Vec<Segment>,
    pub(super) sections: Vec<Section<'data>>,
    pub(super) dynamic: Dynamic,
    pub(super) entry: u64,
    pub(super) kind: Kind,
    pub(super) position_dependent: bool,
    pub(super) interpreter: Option<&'data [u8]>,
    pub(super) frame_header: Option<Range<u64>>,
    pub(super) program_headers: &'data [ProgramHeader64<LE>],
    /// All section headers, unchecked, with the table of their names.
    raw_sections: &'data [SectionHeader64<LE>],
    section_names: &'data [u8],
}

fn malformed(what: impl Into<String>) -> Error {
    Error::Malformed(what.into())
}

impl<'data> Layout<'data> {
    pub(super) fn parse(data: &'data [u8]) -> Result<Self, Error> {
        let header = header(data)?;
        let program_headers = header
            .program_headers(LE, data)
            .map_err(|error| malformed(format!("program headers: {error}")))?;
        let segments = segments(program_headers, data)?;
        // Section headers are only hints, so unreadable ones are ignored.
        let raw_sections = header.section_headers(LE, data).unwrap_or_default();
        let section_names = header
            .section_strings_index(LE, data)
            .ok()
            .and_then(|index| raw_sections.get(index.0))
            .and_then(|header| header.data(LE, data).ok())
            .unwrap_or_default();

        let mut layout = Self {
            data,
            segments,
            sections: Vec::new(),
            dynamic: Dynamic::default(),
            entry: header.e_entry.get(LE),
            kind: Kind::SharedObject,
            position_dependent: header.e_type.get(LE) == elf::ET_EXEC,
            interpreter: None,
            frame_header: None,
            program_headers,
            raw_sections,
            section_names,
        };
        layout.read_program_headers();
        layout.read_sections();
        if layout.dynamic.relocates_text {
            return Err(Error::Unsupported(Unsupported::WritableText));
        }
        layout.kind = layout.what_kind();
        Ok(layout)
    }

    fn read_program_headers(&mut self) {
        for header in self.program_headers {
            match header.p_type(LE) {
                elf::PT_INTERP if self.interpreter.is_none() => {
                    self.interpreter = header.interpreter(LE, self.data).ok().flatten();
                }
                elf::PT_DYNAMIC if !self.dynamic.present => {
                    let start = header.p_vaddr(LE);
                    let bytes = start
                        .checked_add(header.p_filesz(LE))
                        .and_then(|end| self.bytes(start..end));
                    if let Some(bytes) = bytes {
                        self.dynamic = dynamic(bytes);
                    }
                }
                elf::PT_GNU_EH_FRAME => {
                    let start = header.p_vaddr(LE);
                    self.frame_header = start
                        .checked_add(header.p_filesz(LE))
                        .map(|end| start..end)
                        .filter(|range| self.bytes(range.clone()).is_some());
                }
                _ => {}
            }
        }
    }

    fn read_sections(&mut self) {
        for header in self.raw_sections {
            let start = header.sh_addr(LE);
            let Some(end) = start.checked_add(header.sh_size(LE)) else {
                continue;
            };
            let flags = header.sh_flags(LE);
            if !flags.contains(elf::SHF_ALLOC)
                || header.sh_type(LE) == elf::SHT_NOBITS
                || start == end
                || self.bytes(start..end).is_none()
            {
                continue;
            }
            self.sections.push(Section {
                name: string(self.section_names, header.sh_name(LE)).unwrap_or_default(),
                range: start..end,
                executable: flags.contains(elf::SHF_EXECINSTR),
            });
        }
    }

    fn what_kind(&self) -> Kind {
        match (self.interpreter, &self.dynamic) {
            (None, dynamic) if self.position_dependent && !dynamic.present => Kind::Static,
            _ if self.position_dependent => Kind::Executable,
            (None, dynamic) if dynamic.says_executable => Kind::Static,
            // libc and the dynamic loader have an interpreter, because they can be run directly, and a
            // `DT_SONAME`. Executables from before `DF_1_PIE` existed have no `DT_SONAME`.
            (interpreter, dynamic)
                if dynamic.says_executable || (interpreter.is_some() && !dynamic.named) =>
            {
                Kind::PositionIndependentExecutable
            }
            _ => Kind::SharedObject,
        }
    }

    /// True if an address lies in the file-backed part of an executable segment.
    pub(super) fn is_text(&self, address: u64) -> bool {
        self.segment_at(address)
            .is_some_and(|segment| segment.executable && address < segment.backed.end)
    }

    /// The code in an executable segment: from its first executable section to its last. Without section
    /// headers, all of its file-backed part. The limits matter because linkers may put symbol tables into the
    /// same segment.
    pub(super) fn code_of(&self, segment: &Segment) -> Range<u64> {
        let backed = &segment.backed;
        let inside =
            |section: &&Section<'_>| section.executable && backed.contains(&section.range.start);
        let sections = || self.sections.iter().filter(inside);
        let start = sections().map(|section| section.range.start).min();
        let end = sections().map(|section| section.range.end).max();
        match (start, end) {
            (Some(start), Some(end)) => start..end,
            _ => backed.clone(),
        }
    }

    /// The segment that contains an address in memory.
    pub(super) fn segment_at(&self, address: u64) -> Option<&Segment> {
        let after = self
            .segments
            .partition_point(|segment| segment.backed.start <= address);
        self.segments[..after]
            .last()
            .filter(|segment| address < segment.end)
    }

    /// The file's bytes for a range of addresses; `None` unless one segment has all of them.
    pub(super) fn bytes(&self, range: Range<u64>) -> Option<&'data [u8]> {
        let rest = self.bytes_from(range.start)?;
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        rest.get(..length)
    }

    /// The file's bytes from an address to the end of its segment.
    pub(super) fn bytes_from(&self, address: u64) -> Option<&'data [u8]> {
        let after = self
            .segments
            .partition_point(|segment| segment.backed.start <= address);
        let segment = self.segments[..after].last()?;
        if address > segment.backed.end {
            return None;
        }
        let from = usize::try_from(segment.offset + (address - segment.backed.start)).ok()?;
        let to = usize::try_from(segment.offset + (segment.backed.end - segment.backed.start));
        self.data.get(from..to.ok()?)
    }

    /// True if the file has a table of sections.
    pub(super) const fn has_sections(&self) -> bool {
        !self.raw_sections.is_empty()
    }

    /// The bytes of the section with this name, whether it is loaded or not; `None` if there is none.
    pub(super) fn raw_section(&self, name: &[u8]) -> Option<&'data [u8]> {
        self.raw_sections
            .iter()
            .find(|header| string(self.section_names, header.sh_name(LE)) == Some(name))
            .and_then(|header| header.data(LE, self.data).ok())
    }

    /// The symbol table for debuggers (`SHT_SYMTAB`), and its strings.
    pub(super) fn debug_symbols(&self) -> Option<(&'data [elf::Sym64<LE>], &'data [u8])> {
        let header = self
            .raw_sections
            .iter()
            .find(|header| header.sh_type(LE) == elf::SHT_SYMTAB)?;
        let symbols = header.data_as_array(LE, self.data).ok()?;
        let strings = self.raw_sections.get(header.sh_link(LE) as usize)?;
        Some((symbols, strings.data(LE, self.data).ok()?))
    }

    /// The notes in all `PT_NOTE` segments: name without terminator, type and contents.
    pub(super) fn notes(&self) -> Vec<(&'data [u8], u32, &'data [u8])> {
        let mut found = Vec::new();
        let segments = self.program_headers.iter();
        let noted = segments.filter_map(|header| header.notes(LE, self.data).ok().flatten());
        for mut notes in noted.take(NOTE_SEGMENTS) {
            let notes: &mut NoteIterator<'_, FileHeader64<LE>> = &mut notes;
            while let Ok(Some(note)) = notes.next() {
                found.push((note.name(), note.n_type(LE).0, note.desc()));
            }
        }
        found
    }
}

fn header(data: &[u8]) -> Result<&FileHeader64<LE>, Error> {
    let unsupported = |kind| Err(Error::Unsupported(kind));
    if !data.starts_with(&elf::ELFMAG) {
        return unsupported(Unsupported::NotElf);
    }
    let (header, _) = pod::from_bytes::<FileHeader64<LE>>(data)
        .map_err(|()| malformed("it ends within the file header"))?;
    if !(header.is_class_64()
        && header.is_little_endian()
        && header.e_machine.get(LE) == elf::EM_X86_64)
    {
        return unsupported(Unsupported::Machine);
    }
    if !matches!(header.e_type.get(LE), elf::ET_EXEC | elf::ET_DYN) {
        return unsupported(Unsupported::Kind);
    }
    if !header.is_supported() {
        return Err(malformed("an ELF version that does not exist"));
    }
    Ok(header)
}

/// The loadable segments, in ascending order as the kernel requires.
fn segments(headers: &[ProgramHeader64<LE>], data: &[u8]) -> Result<Vec<Segment>, Error> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut backed = 0_u64;
    for header in headers {
        if header.p_type(LE) != elf::PT_LOAD || header.p_memsz(LE) == 0 {
            continue;
        }
        let start = header.p_vaddr(LE);
        let in_file = header.p_filesz(LE);
        let offset = header.p_offset(LE);
        let flags = header.p_flags(LE);
        let end = start
            .checked_add(header.p_memsz(LE))
            .filter(|_| in_file <= header.p_memsz(LE))
            .ok_or_else(|| malformed(format!("a segment at {start:#x} of impossible size")))?;
        if offset
            .checked_add(in_file)
            .is_none_or(|end| end > data.len() as u64)
        {
            return Err(malformed(format!(
                "the segment at {start:#x} ends outside the file"
            )));
        }
        if segments.last().is_some_and(|last| last.end > start) {
            return Err(malformed(format!("segments overlap at {start:#x}")));
        }
        let writable = flags.contains(elf::PF_W);
        let executable = flags.contains(elf::PF_X);
        if writable && executable {
            return Err(Error::Unsupported(Unsupported::WritableText));
        }
        backed += in_file;
        segments.push(Segment {
            backed: start..start + in_file,
            end,
            offset,
            writable,
            executable,
        });
    }
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
        return Err(malformed("it has no loadable segment"));
    };
    if last.end - first.backed.start > LARGEST_SPAN {
        return Err(Error::Unsupported(Unsupported::TooLarge));
    }
    // Linkers map a page twice where segments meet. A file that maps its bytes many times over is meant to
    // waste time.
    if backed > 2 * data.len() as u64 + 0x1_0000 {
        return Err(malformed("its segments map the same bytes again and again"));
    }
    Ok(segments)
}

fn dynamic(bytes: &[u8]) -> Dynamic {
    let count = bytes.len() / size_of::<Dyn64<LE>>();
    let (entries, _) = pod::slice_from_bytes::<Dyn64<LE>>(bytes, count).unwrap_or_default();
    let mut found = Dynamic {
        present: true,
        ..Dynamic::default()
    };
    let mut sizes = [0_u64; 4];
    let [strings, relocations, plt, packed] = &mut sizes;
    for entry in entries {
        let value = entry.d_val.get(LE);
        match entry.d_tag.get(LE) {
            elf::DT_NULL => break,
            elf::DT_SYMTAB => found.symbols = value,
            elf::DT_STRTAB => found.strings.start = value,
            elf::DT_STRSZ => *strings = value,
            elf::DT_HASH => found.hash = value,
            elf::DT_GNU_HASH => found.gnu_hash = value,
            elf::DT_RELA => found.relocations.start = value,
            elf::DT_RELASZ => *relocations = value,
            elf::DT_JMPREL => found.plt_relocations.start = value,
            elf::DT_PLTRELSZ => *plt = value,
            elf::DT_RELR => found.packed_relocations.start = value,
            elf::DT_RELRSZ => *packed = value,
            elf::DT_INIT => found.init = value,
            elf::DT_FINI => found.fini = value,
            elf::DT_SONAME => found.named = true,
            elf::DT_TEXTREL => found.relocates_text = true,
            elf::DT_FLAGS => found.relocates_text |= value & elf::DF_TEXTREL.0 != 0,
            elf::DT_FLAGS_1 => found.says_executable = value & elf::DF_1_PIE.0 != 0,
            _ => {}
        }
    }
    for (range, size) in [
        (&mut found.strings, *strings),
        (&mut found.relocations, *relocations),
        (&mut found.plt_relocations, *plt),
        (&mut found.packed_relocations, *packed),
    ] {
        range.end = range.start.saturating_add(size);
    }
    found
}
