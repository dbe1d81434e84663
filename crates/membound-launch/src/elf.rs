//! ELF files: their bytes, and the program headers, which tell where the bytes of a file are mapped.
//!
//! `membound-rewrite` analyses the code; here only the program headers are read, to compute from the
//! kernel's list of mappings by how much a module was moved.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::maps::Mapping;

const PAGE: u64 = 4096;
const HEADER_BYTES: usize = 56;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const EXECUTABLE: u32 = 1;

/// Maps a program's or library's file: to read all of a large one takes a tenth of a second, and most who ask
/// need a few pages of it.
///
/// # Errors
/// If the file cannot be opened or mapped.
pub fn map_file(path: &Path) -> io::Result<Mmap> {
    map_open_file(&File::open(path)?)
}

/// Maps such a file that is open.
///
/// # Errors
/// If it cannot be mapped.
pub fn map_open_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: truncating a file of code in use kills every program that executes it, including this one.
    unsafe { Mmap::map(file) }
}

/// A `PT_LOAD` header.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    executable: bool,
}

/// Program headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    loads: Vec<Load>,
    /// True if it names a dynamic loader.
    pub(crate) interpreter: bool,
}

impl Headers {
    /// True if it names a loader that is to run it.
    #[must_use]
    pub const fn has_interpreter(&self) -> bool {
        self.interpreter
    }

    /// The headers of a 64-bit little-endian file; `None` for any other.
    #[must_use]
    pub fn parse(file: &[u8]) -> Option<Self> {
        // \x7fELF, 64 bits, little-endian.
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let table = usize::try_from(u64_at(file, 0x20)?).ok()?;
        let size = usize::from(u16_at(file, 0x36)?);
        let count = usize::from(u16_at(file, 0x38)?);
        if size != HEADER_BYTES {
            return None;
        }
        let mut headers = Self {
            loads: Vec::new(),
            interpreter: false,
        };
        for index in 0..count {
            let at = table.checked_add(index * size)?;
            match u32_at(file, at)? {
                LOAD => headers.loads.push(Load {
                    offset: u64_at(file, at.checked_add(8)?)?,
                    address: u64_at(file, at.checked_add(16)?)?,
                    file_bytes: u64_at(file, at.checked_add(32)?)?,
                    memory_bytes: u64_at(file, at.checked_add(40)?)?,
                    executable: u32_at(file, at.checked_add(4)?)? & EXECUTABLE != 0,
                }),
                INTERPRETER => headers.interpreter = true,
                _ => {}
            }
        }
        Some(headers)
    }

    /// Headers for `length` bytes of text at `address` without a file.
    pub(crate) fn of_piece(address: u64, length: u64) -> Self {
        Self {
            loads: vec![Load {
                offset: 0,
                address,
                file_bytes: length,
                memory_bytes: length,
                executable: true,
            }],
            interpreter: false,
        }
    }

    /// The bias of the module: mapped address minus file address, if `map` shows a part of its text. (Pages
    /// of other segments may be shared by two segments, and are ignored.)
    #[must_use]
    pub fn bias(&self, map: &Mapping) -> Option<u64> {
        let load = self.loads.iter().find(|load| {
            let first = load.offset & !(PAGE - 1);
            let end = load.offset.saturating_add(load.file_bytes);
            load.executable && (first..end).contains(&map.offset)
        })?;
        let address = load
            .address
            .wrapping_add(map.offset)
            .wrapping_sub(load.offset);
        Some(map.range.start.wrapping_sub(address))
    }

    /// The bytes of `file` that are mapped at the file's address `address`.
    #[must_use]
    pub fn bytes<'a>(&self, file: &'a [u8], address: u64, length: u64) -> Option<&'a [u8]> {
        let end = address.checked_add(length)?;
        let load = self.loads.iter().find(|load| {
            load.address <= address && end <= load.address.saturating_add(load.file_bytes)
        })?;
        let start = load.offset.checked_add(address - load.address)?;
        let range =
            usize::try_from(start).ok()?..usize::try_from(start.checked_add(length)?).ok()?;
        file.get(range)
    }

    /// Bytes of all executable segments together.
    pub(crate) fn text_bytes(&self) -> u64 {
        let executable = self.loads.iter().filter(|load| load.executable);
        executable.map(|load| load.file_bytes).sum()
    }

    /// Lowest to highest address of the file, in whole pages.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        let start = self.loads.iter().map(|load| load.address).min();
        let end = self
            .loads
            .iter()
            .map(|load| load.address.saturating_add(load.memory_bytes))
            .max();
        let start = start.unwrap_or(0) & !(PAGE - 1);
        let end = end.unwrap_or(0).saturating_add(PAGE - 1) & !(PAGE - 1);
        start..end.max(start)
    }
}

fn field<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..)?.first_chunk().copied()
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    field(file, at).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    field(file, at).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    field(file, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found_where_the_kernel_put_it() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let headers = Headers::parse(&file).unwrap();
        let maps = crate::maps::of(std::process::id()).unwrap();
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        let mine: Vec<_> = maps.iter().filter(|map| map.name == exe).collect();
        let text = mine.iter().filter(|map| map.executable);
        let biases: Vec<u64> = text.filter_map(|map| headers.bias(map)).collect();
        assert!(!biases.is_empty());
        assert!(biases.iter().all(|bias| *bias == biases[0]), "{biases:x?}");
        let span = headers.span();
        assert_eq!(
            span.start.wrapping_add(biases[0]),
            mine[0].range.start,
            "the first page of the file is the lowest"
        );
    }

    #[test]
    fn truncated_headers_are_no_headers() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        for length in 0..4096.min(file.len()) {
            // Any content is permitted, as long as parsing does not panic.
            let _ = Headers::parse(&file[..length]);
        }
        assert_eq!(Headers::parse(b"#!/bin/sh"), None);
    }
}
