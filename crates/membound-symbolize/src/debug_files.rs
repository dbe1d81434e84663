//! Finds separate files with a program's debug information, and files that several of those share.
//!
//! A file is only used if it is known to match: by the same build-id or, without one, by the checksum that
//! the program states. A file that is found but does not match is noted.

use std::fs;
use std::path::{Path, PathBuf};

use crate::elf::{Elf, hexadecimal};

/// Length in bytes of a section that names a file, at most.
const MAX_LINK_BYTES: u64 = 8 << 10;

/// Where separate debug information files are searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugPaths {
    /// Directories like `/usr/lib/debug`, in the order of the search.
    pub roots: Vec<PathBuf>,
}

impl Default for DebugPaths {
    fn default() -> Self {
        Self {
            roots: vec![PathBuf::from("/usr/lib/debug")],
        }
    }
}

/// Contents of `.gnu_debuglink`.
struct Link {
    file: String,
    /// CRC-32 of the whole file.
    checksum: u32,
}

/// Finds the file with the debug information of `elf`, which was opened at `path`.
pub(crate) fn find(
    elf: &Elf<'_>,
    path: Option<&Path>,
    places: &DebugPaths,
    notes: &mut Vec<String>,
) -> Option<Elf<'static>> {
    let by_build_id = elf.build_id.as_deref().into_iter().flat_map(|id| {
        places
            .roots
            .iter()
            .filter_map(move |root| by_build_id(root, id))
    });
    for candidate in by_build_id {
        if let Some(found) = open(&candidate, notes) {
            if found.build_id == elf.build_id {
                return Some(found);
            }
            notes.push(format!(
                "{} is not used: its build-id differs from that of {}",
                candidate.display(),
                elf.name
            ));
        }
    }
    let link = link(elf)?;
    let mut opened = false;
    for candidate in candidates(path, &link.file, places) {
        // A program may name itself, if only a part of its debug information was moved.
        if is_same(&candidate, path) {
            continue;
        }
        let Some(found) = open(&candidate, notes) else {
            continue;
        };
        opened = true;
        match belongs(elf, &found, &link) {
            Ok(()) => return Some(found),
            Err(why) => notes.push(format!("{} is not used: {why}", candidate.display())),
        }
    }
    if !opened {
        notes.push(format!(
            "no debug information: {} names {}, which was not found",
            elf.name, link.file
        ));
    }
    None
}

/// Finds the file that the debug information of `elf` shares with others (made by `dwz`).
pub(crate) fn find_shared(
    elf: &Elf<'_>,
    places: &DebugPaths,
    notes: &mut Vec<String>,
) -> Option<Elf<'static>> {
    let bytes = small_section(elf, ".gnu_debugaltlink")?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let id = &bytes[end + 1..];
    let from = Path::new(&elf.name).parent().unwrap_or(Path::new(""));
    let mut candidates = vec![from.join(&name)];
    for root in &places.roots {
        candidates.extend(by_build_id(root, id));
        if let Some(file) = Path::new(&name).file_name() {
            candidates.push(root.join(".dwz").join(file));
        }
    }
    let mut opened = false;
    for candidate in candidates {
        let Some(found) = open(&candidate, notes) else {
            continue;
        };
        opened = true;
        if found.build_id.as_deref() == Some(id) {
            return Some(found);
        }
        notes.push(format!(
            "{} is not used: its build-id is not the one that {} names",
            candidate.display(),
            elf.name
        ));
    }
    if !opened {
        notes.push(format!(
            "names are missing: {} shares debug information with {name}, which was not found",
            elf.name
        ));
    }
    None
}

/// `ROOT/.build-id/ab/cdef….debug`.
fn by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let directory = root.join(".build-id").join(hexadecimal(&[*first]));
    (!rest.is_empty()).then(|| directory.join(format!("{}.debug", hexadecimal(rest))))
}

/// Paths at which debuggers search for a debug file with this name.
fn candidates(path: Option<&Path>, name: &str, places: &DebugPaths) -> Vec<PathBuf> {
    let Some(name) = Path::new(name).file_name() else {
        return Vec::new();
    };
    let Some(directory) = path.and_then(Path::parent) else {
        return Vec::new();
    };
    let mut candidates = vec![directory.join(name), directory.join(".debug").join(name)];
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    for root in &places.roots {
        let under = directory.strip_prefix("/").unwrap_or(&directory);
        candidates.push(root.join(under).join(name));
    }
    candidates
}

fn is_same(candidate: &Path, path: Option<&Path>) -> bool {
    match (fs::canonicalize(candidate), path.map(fs::canonicalize)) {
        (Ok(candidate), Some(Ok(path))) => candidate == path,
        _ => false,
    }
}

fn belongs(elf: &Elf<'_>, found: &Elf<'_>, link: &Link) -> Result<(), String> {
    if let (Some(own), Some(its)) = (&elf.build_id, &found.build_id) {
        return if own == its {
            Ok(())
        } else {
            Err(format!("its build-id differs from that of {}", elf.name))
        };
    }
    let mut checksum = crc32fast::Hasher::new();
    found
        .each_piece(|piece| checksum.update(piece))
        .map_err(|error| format!("it cannot be read: {error}"))?;
    if checksum.finalize() == link.checksum {
        Ok(())
    } else {
        Err(format!(
            "its checksum is not the one that {} names",
            elf.name
        ))
    }
}

fn link(elf: &Elf<'_>) -> Option<Link> {
    let bytes = small_section(elf, ".gnu_debuglink")?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    // The checksum is aligned to four bytes.
    let at = (end + 4) & !3;
    let checksum = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Link {
        file: String::from_utf8_lossy(&bytes[..end]).into_owned(),
        checksum: u32::from_le_bytes(checksum),
    })
}

fn small_section(elf: &Elf<'_>, name: &str) -> Option<Vec<u8>> {
    let section = elf
        .section(name)
        .filter(|section| section.size <= MAX_LINK_BYTES)?;
    elf.contents(section).ok()
}

/// Opens a file, if it exists; notes why if it cannot be used.
fn open(path: &Path, notes: &mut Vec<String>) -> Option<Elf<'static>> {
    if !path.exists() {
        return None;
    }
    match Elf::open(path) {
        Ok(elf) => Some(elf),
        Err(error) => {
            notes.push(format!("{} is not used: {error}", path.display()));
            None
        }
    }
}
