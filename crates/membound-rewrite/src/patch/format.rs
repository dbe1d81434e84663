//! The plan as bytes; the format is described in `docs/formats/plan.md`.
//!
//! Everything is little-endian. A header holds the place of each section. Reading a plan checks the header;
//! every index in a section is checked when it is used. A damaged file therefore gives an error or a plan
//! that patches less, never a panic.

use std::ops::Range;

use membound_wire::fingerprint;
use rayon::prelude::*;

pub(super) const MAGIC: [u8; 8] = *b"MBNDPLAN";
pub(super) const VERSION: u32 = 27;
/// Bytes of magic, version, number of sections, the numbers, the section table and the checksum.
pub(super) const HEADER_BYTES: usize = 16 + 8 * NUMBERS + 16 * SECTIONS + 8;
pub(super) const NUMBERS: usize = 7;
pub(super) const SECTIONS: usize = 11;

/// The sections of a plan, in the order in which they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Section {
    /// One byte for the kind, then the build-id or hash.
    Identity,
    /// The key of the options, from `Options::key`.
    Options,
    /// Machine code of the trampolines.
    Code,
    /// `u32` offsets, in the code, of 32-bit displacements that refer to the module.
    Relocations,
    /// [`super::edit::Edit`]s of [`EDIT_BYTES`] each.
    Edits,
    /// The tables for the agent, beginning with a `TableHeader`.
    Tables,
    /// Punned jumps, [`PUN_BYTES`] each, sorted by island address.
    Puns,
    /// Sites, [`SITE_BYTES`] each, sorted by address.
    Sites,
    /// System calls, [`HOOK_BYTES`] each.
    Hooks,
    /// Functions, [`FUNCTION_BYTES`] each, sorted by address.
    Functions,
    /// Entries of wrapped functions, [`HOOK_BYTES`] each.
    Wraps,
}

/// Indices of the numbers in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Number {
    /// The address in the file from which offsets are counted.
    Origin,
    /// Bytes from the origin to the end of the module.
    Span,
    /// Number of sites that have a number.
    NumberedSites,
    /// Bytes of one site's words in the data pages.
    SiteWords,
    /// Bytes of code in the area: whole pages. Tables and data likewise.
    CodeBytes,
    /// See `CodeBytes`.
    TablesBytes,
    /// See `CodeBytes`.
    DataBytes,
}

pub(super) const EDIT_BYTES: usize = 36;
pub(super) const PUN_BYTES: usize = 28;
pub(super) const SITE_BYTES: usize = 16;
pub(super) const HOOK_BYTES: usize = 12;
pub(super) const FUNCTION_BYTES: usize = 20;

/// Bytes that one thread copies at a time.
const COPY_CHUNK_BYTES: usize = 1 << 20;

/// Assembles the bytes of a plan.
#[derive(Debug, Default)]
pub(super) struct Builder {
    pub numbers: [u64; NUMBERS],
    pub sections: [Vec<u8>; SECTIONS],
}

impl Builder {
    pub(super) fn set(&mut self, number: Number, value: u64) {
        self.numbers[number as usize] = value;
    }

    pub(super) fn section(&mut self, section: Section) -> &mut Vec<u8> {
        &mut self.sections[section as usize]
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(SECTIONS as u32).to_le_bytes());
        for number in self.numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let mut at = HEADER_BYTES.next_multiple_of(16);
        for section in &self.sections {
            out.extend_from_slice(&(at as u64).to_le_bytes());
            out.extend_from_slice(&(section.len() as u64).to_le_bytes());
            at = (at + section.len()).next_multiple_of(16);
        }
        let checksum = u64::from(fingerprint(&out)) << 32 | at as u64 & 0xffff_ffff;
        out.extend_from_slice(&checksum.to_le_bytes());
        // Plans of large modules have a hundred megabytes, so copy in parallel.
        let mut whole = vec![0; at];
        let (header, mut rest) = whole.split_at_mut(HEADER_BYTES.next_multiple_of(16));
        header[..out.len()].copy_from_slice(&out);
        let mut pieces = Vec::new();
        for section in &self.sections {
            let (place, behind) = rest.split_at_mut(section.len().next_multiple_of(16));
            rest = behind;
            pieces.extend(
                place[..section.len()]
                    .chunks_mut(COPY_CHUNK_BYTES)
                    .zip(section.chunks(COPY_CHUNK_BYTES)),
            );
        }
        pieces
            .into_par_iter()
            .for_each(|(place, piece)| place.copy_from_slice(piece));
        whole
    }
}

/// Why bytes cannot be read as a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The bytes do not begin as a plan does.
    #[error("not a plan")]
    NotAPlan,
    /// The plan was written by another version of membound.
    #[error("a plan of version {version}; delete it and it is made anew")]
    Version {
        /// The version in the plan's header.
        version: u32,
    },
    /// The parts of the plan contradict each other; names the damaged part.
    #[error("the plan's {0} is damaged; delete it and it is made anew")]
    Damaged(&'static str),
}

/// The header of a plan, as read and checked.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub numbers: [u64; NUMBERS],
    pub sections: [Range<usize>; SECTIONS],
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, PlanError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(PlanError::NotAPlan)?;
        if header[..8] != MAGIC {
            return Err(PlanError::NotAPlan);
        }
        let version = word(header, 8);
        if version != VERSION || word(header, 12) != SECTIONS as u32 {
            return Err(PlanError::Version { version });
        }
        let checked = HEADER_BYTES - 8;
        let checksum =
            u64::from(fingerprint(&header[..checked])) << 32 | bytes.len() as u64 & 0xffff_ffff;
        if long(header, checked) != checksum {
            return Err(PlanError::Damaged("header"));
        }
        let mut sections: [Range<usize>; SECTIONS] = Default::default();
        for (index, section) in sections.iter_mut().enumerate() {
            let at = 16 + 8 * NUMBERS + 16 * index;
            let start = usize::try_from(long(header, at));
            let length = usize::try_from(long(header, at + 8));
            let (Ok(start), Ok(length)) = (start, length) else {
                return Err(PlanError::Damaged("section"));
            };
            let end = start.checked_add(length).filter(|end| *end <= bytes.len());
            *section = start..end.ok_or(PlanError::Damaged("section"))?;
        }
        let mut numbers = [0; NUMBERS];
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = long(header, 16 + 8 * index);
        }
        Ok(Self { numbers, sections })
    }
}

/// The `u32` at an offset that is known to be in range.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(field)
}

/// The `u64` at an offset that is known to be in range.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(field)
}

/// The `u16` at an offset that is known to be in range.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    let field = bytes[at..at + 2].try_into().expect("two bytes");
    u16::from_le_bytes(field)
}
