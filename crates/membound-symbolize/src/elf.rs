//! Reads an ELF file's headers, and sections' bytes on request.
//!
//! Files are read in parts and stay open: hundreds of megabytes of debug information are read only when
//! requested, and a file that is replaced meanwhile remains the opened one.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::read::{CompressedData, CompressionFormat, ReadCache, ReadRef};
use object::{LittleEndian, read};

use crate::error::Error;
use crate::machine::Machine;

const LE: LittleEndian = LittleEndian;

/// Bytes of a section's name that are kept: more than any name that is searched for has.
const MAX_NAME_BYTES: usize = 64;

/// Compression ratio above which a section is refused. Debug information is far below it; a higher ratio
/// means a file made to exhaust memory.
const MAX_UNPACKED: u64 = 256;

/// Bytes of one section after decompression, at most.
const LARGEST_UNPACKED: u64 = 2 << 30;

/// Segments and sections of notes that are searched for a build-id, at most. Files have three.
const MAX_NOTES: usize = 64;

#[derive(Debug)]
enum Source<'data> {
    Memory(Arc<[u8]>),
    Borrowed(&'data [u8]),
    File(File, u64),
}

impl Source<'_> {
    /// All bytes, if they are in memory; otherwise the file and its length.
    fn bytes(&self) -> Result<&[u8], (&File, u64)> {
        match self {
            Self::Memory(bytes) => Ok(bytes),
            Self::Borrowed(bytes) => Ok(bytes),
            Self::File(file, length) => Err((file, *length)),
        }
    }
}

/// A section.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    flags: elf::SectionFlags,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) entry_size: u64,
    /// Index of the section that it refers to: the strings of symbols, the symbols of relocations.
    pub(crate) link: usize,
    /// Range of its bytes in the file; `None` if it has none.
    file: Option<Range<u64>>,
    compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug)]
struct Compression {
    format: CompressionFormat,
    /// Bytes of the header before the compressed data.
    header: u64,
    unpacked: u64,
}

impl Section {
    pub(crate) const fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    /// Where its bytes are in the file. `None` if it has none there, or packed ones.
    pub(crate) fn stored(&self) -> Option<Range<u64>> {
        self.file.clone().filter(|_| self.compression.is_none())
    }

    /// Whether it lies in a process's memory.
    pub(crate) fn loaded(&self) -> bool {
        self.flags.contains(elf::SHF_ALLOC)
    }

    pub(crate) fn executable(&self) -> bool {
        self.loaded() && self.flags.contains(elf::SHF_EXECINSTR)
    }
}

/// A loadable segment (`PT_LOAD`).
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    /// Range of its bytes in the file.
    pub(crate) file: Range<u64>,
    pub(crate) executable: bool,
}

/// An opened ELF file.
#[derive(Debug)]
pub(crate) struct Elf<'data> {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    source: Source<'data>,
    pub(crate) sections: Vec<Section>,
    pub(crate) segments: Vec<Segment>,
    /// Addresses of `.eh_frame_hdr`, from `PT_GNU_EH_FRAME`.
    pub(crate) frame_header: Option<Range<u64>>,
    pub(crate) build_id: Option<Vec<u8>>,
}

impl<'data> Elf<'data> {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            // Reading a pipe or a device may never end.
            return Err(failed(io::Error::other("not a regular file")));
        }
        let name = path.display().to_string();
        Self::read(Source::File(file, about.len()), name)
    }

    pub(crate) fn of_bytes(bytes: Arc<[u8]>, name: &str) -> Result<Self, Error> {
        Self::read(Source::Memory(bytes), name.to_owned())
    }

    pub(crate) fn of_borrowed(bytes: &'data [u8], name: &str) -> Result<Self, Error> {
        Self::read(Source::Borrowed(bytes), name.to_owned())
    }

    fn read(source: Source<'data>, name: String) -> Result<Self, Error> {
        let contents = match source.bytes() {
            Ok(bytes) => Contents::read(bytes),
            Err((file, length)) => {
                let cache = ReadCache::new(Cursor {
                    file,
                    length,
                    position: 0,
                });
                Contents::read(&cache)
            }
        };
        match contents {
            Ok(contents) => Ok(Self {
                name,
                machine: contents.machine,
                source,
                sections: contents.sections,
                segments: contents.segments,
                frame_header: contents.frame_header,
                build_id: contents.build_id,
            }),
            Err(reason) => Err(Error::Malformed { name, reason }),
        }
    }

    /// The first section with this name that has bytes in the file.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| section.name == name && section.file.is_some())
    }

    /// A section's bytes, decompressed. `Err` is a message.
    pub(crate) fn contents(&self, section: &Section) -> Result<Vec<u8>, String> {
        let Some(range) = section.file.clone() else {
            return Ok(Vec::new());
        };
        let broken = |why: &str| format!("section {} of {} {why}", section.name, self.name);
        let Some(compression) = section.compression else {
            return self
                .range(range)
                .ok_or_else(|| broken("lies beyond the end of the file"));
        };
        let packed = self
            .range(range.start.saturating_add(compression.header)..range.end)
            .ok_or_else(|| broken("lies beyond the end of the file"))?;
        // Short sections may compress better: always allow 1 MiB more.
        let most = (packed.len() as u64).saturating_mul(MAX_UNPACKED) + (1 << 20);
        if compression.unpacked > most.min(LARGEST_UNPACKED) {
            return Err(broken("claims to be larger than its packed bytes can hold"));
        }
        let data = CompressedData {
            format: compression.format,
            data: &packed,
            uncompressed_size: compression.unpacked,
        };
        data.decompress()
            .map(Cow::into_owned)
            .map_err(|_| broken("cannot be unpacked"))
    }

    /// Length of the file in bytes.
    pub(crate) fn length(&self) -> u64 {
        match self.source.bytes() {
            Ok(bytes) => bytes.len() as u64,
            Err((_, length)) => length,
        }
    }

    /// Bytes of a range of the file; `None` if it reaches beyond the end.
    pub(crate) fn range(&self, range: Range<u64>) -> Option<Vec<u8>> {
        self.view(range).map(Cow::into_owned)
    }

    /// Bytes of the file, copied only where the file is not in memory.
    pub(crate) fn view(&self, range: Range<u64>) -> Option<Cow<'_, [u8]>> {
        match self.source.bytes() {
            Ok(bytes) => {
                let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
                bytes.get(range).map(Cow::Borrowed)
            }
            Err((file, length)) => {
                if range.start > range.end || range.end > length {
                    return None;
                }
                let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
                file.read_exact_at(&mut bytes, range.start).ok()?;
                Some(Cow::Owned(bytes))
            }
        }
    }

    /// Bytes in the file for addresses within one segment.
    pub(crate) fn at(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        self.range(self.file_range(address, length)?)
    }

    /// Where the bytes for addresses of one segment are in the file.
    pub(crate) fn file_range(&self, address: u64, length: u64) -> Option<Range<u64>> {
        self.segments.iter().find_map(|segment| {
            let offset = address.checked_sub(segment.address)?;
            let start = segment.file.start.checked_add(offset)?;
            let end = start.checked_add(length)?;
            (end <= segment.file.end).then_some(start..end)
        })
    }

    /// Passes every byte of the file to `eat`, in pieces.
    pub(crate) fn each_piece(&self, mut eat: impl FnMut(&[u8])) -> io::Result<()> {
        match self.source.bytes() {
            Ok(bytes) => eat(bytes),
            Err((file, length)) => {
                let mut piece = vec![0; 1 << 20];
                let mut at = 0;
                while at < length {
                    let read = file.read_at(&mut piece, at)?;
                    if read == 0 {
                        break;
                    }
                    eat(&piece[..read]);
                    at += read as u64;
                }
            }
        }
        Ok(())
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The headers of a file, parsed.
struct Contents {
    machine: Machine,
    sections: Vec<Section>,
    segments: Vec<Segment>,
    frame_header: Option<Range<u64>>,
    build_id: Option<Vec<u8>>,
}

impl Contents {
    fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Self, String> {
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(error_text)?;
        let endian = header.endian().map_err(error_text)?;
        if header.e_ident.data != elf::ELFDATA2LSB || endian != LE {
            return Err("not a little-endian file".to_owned());
        }
        let machine = Machine::of(header.e_machine.get(LE));
        let machine = machine.ok_or_else(|| "neither x86-64 nor aarch64 code".to_owned())?;
        // Files with only debug information may name segments whose bytes they lack.
        let program_headers = header.program_headers(LE, data).unwrap_or_default();
        let length = data
            .len()
            .map_err(|()| "its length is unknown".to_owned())?;
        let mut contents = Self {
            machine,
            sections: Vec::new(),
            segments: Vec::new(),
            frame_header: None,
            build_id: None,
        };
        let mut notes = 0;
        for program_header in program_headers {
            let address = program_header.p_vaddr(LE);
            let (offset, size) = program_header.file_range(LE);
            let file = offset.min(length)..offset.saturating_add(size).min(length);
            match program_header.p_type(LE) {
                elf::PT_LOAD => contents.segments.push(Segment {
                    address,
                    file,
                    executable: program_header.p_flags(LE).contains(elf::PF_X),
                }),
                elf::PT_GNU_EH_FRAME => {
                    contents.frame_header = Some(address..address.saturating_add(size));
                }
                elf::PT_NOTE if contents.build_id.is_none() && notes < MAX_NOTES => {
                    notes += 1;
                    let found = program_header.notes(LE, data);
                    contents.build_id = found.ok().flatten().and_then(build_id);
                }
                _ => {}
            }
        }
        let sections = header.sections(LE, data).map_err(error_text)?;
        for section in sections.iter() {
            let name = sections.section_name(LE, section).unwrap_or_default();
            let name = &name[..name.len().min(MAX_NAME_BYTES)];
            let file = section
                .file_range(LE)
                .filter(|(_, size)| *size > 0)
                .map(|(offset, size)| offset..offset.saturating_add(size))
                .filter(|range| range.end <= length);
            let compression = file.as_ref().and_then(|_| compression(section, data));
            if contents.build_id.is_none()
                && section.sh_type(LE) == elf::SHT_NOTE
                && notes < MAX_NOTES
            {
                notes += 1;
                contents.build_id = section.notes(LE, data).ok().flatten().and_then(build_id);
            }
            contents.sections.push(Section {
                name: String::from_utf8_lossy(name).into_owned(),
                flags: section.sh_flags(LE),
                address: section.sh_addr(LE),
                size: section.sh_size(LE),
                entry_size: section.sh_entsize(LE),
                link: usize::try_from(section.sh_link(LE)).unwrap_or(usize::MAX),
                file,
                compression,
            });
        }
        Ok(contents)
    }
}

/// Messages of the `object` crate begin with a capital letter.
fn error_text(error: read::Error) -> String {
    error.to_string().to_lowercase()
}

fn compression<'data, R: ReadRef<'data>>(
    section: &elf::SectionHeader64<LittleEndian>,
    data: R,
) -> Option<Compression> {
    let (header, offset, _) = section.compression(LE, data).ok()??;
    let format = match header.ch_type.get(LE) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => CompressionFormat::Unknown,
    };
    Some(Compression {
        format,
        header: offset.saturating_sub(section.sh_offset(LE)),
        unpacked: header.ch_size.get(LE),
    })
}

fn build_id(mut notes: read::elf::NoteIterator<'_, FileHeader64<LittleEndian>>) -> Option<Vec<u8>> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == b"GNU"
            && note.n_type(LE) == elf::NT_GNU_BUILD_ID
            && !note.desc().is_empty()
        {
            return Some(note.desc().to_vec());
        }
    }
    None
}

/// A reading position of its own, so that several threads can read one file.
struct Cursor<'a> {
    file: &'a File,
    length: u64,
    position: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
