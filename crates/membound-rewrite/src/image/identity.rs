//! The identity of an image, and the calling convention of the compilers that made it.

use memchr::memmem;
use sha2::{Digest as _, Sha256};

use super::elf::Layout;
use super::symbols::Symbol;

/// The identity of an image for caches: files with equal bytes have equal identities.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The linker's build-id.
    BuildId(Vec<u8>),
    /// SHA-256 of program headers and executable segments, where there is no build-id.
    TextHash([u8; 32]),
}

/// Calling convention that may be assumed at calls and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// The code comes from compilers that follow the System V ABI (gcc, clang, rustc), according to the file's
    /// `.comment` or, if that was stripped, to its unwind information.
    SystemV,
    /// The convention is unknown: everything is alive at calls and returns.
    Unknown,
}

const NT_GNU_BUILD_ID: u32 = 3;
const NT_GO_BUILD_ID: u32 = 4;
/// Marker that Go's linker writes for `go version`.
const GO_BUILD_INFO: &[u8] = b"\xff Go buildinf:";

/// The build-id that the linker wrote into the file, if there is one.
pub(super) fn build_id(layout: &Layout<'_>) -> Option<Identity> {
    let mut notes = layout.notes().into_iter();
    let (_, _, contents) = notes.find(|(name, kind, contents)| {
        *name == b"GNU" && *kind == NT_GNU_BUILD_ID && !contents.is_empty()
    })?;
    Some(Identity::BuildId(contents.to_vec()))
}

pub(super) fn identity(layout: &Layout<'_>) -> Identity {
    if let Some(build_id) = build_id(layout) {
        return build_id;
    }
    let mut hash = Sha256::new();
    hash.update(object::pod::bytes_of_slice(layout.program_headers));
    for segment in layout.segments.iter().filter(|segment| segment.executable) {
        hash.update(layout.bytes(segment.backed.clone()).unwrap_or_default());
    }
    Identity::TextHash(hash.finalize().into())
}

/// True if the file was made by Go.
pub(super) fn is_go(layout: &Layout<'_>) -> bool {
    let noted = layout
        .notes()
        .iter()
        .any(|&(name, kind, _)| name == b"Go" && kind == NT_GO_BUILD_ID);
    noted
        || layout.raw_section(b".gopclntab").is_some()
        || layout.raw_section(b".go.buildinfo").is_some()
        // Reading data of each of the libraries of a program takes longer than all other checks.
        || (!layout.has_sections() && has_go_build_info(layout))
}

/// True if Go's marker is where `go version` searches for it in files without sections.
fn has_go_build_info(layout: &Layout<'_>) -> bool {
    layout
        .segments
        .iter()
        .filter(|segment| segment.writable)
        .filter_map(|segment| layout.bytes(segment.backed.clone()))
        .any(|bytes| {
            bytes
                .chunks_exact(16)
                .take(4096)
                .any(|chunk| chunk.starts_with(GO_BUILD_INFO))
        })
}

/// The calling convention. Compilers name themselves in `.comment`; if that was stripped, unwind information
/// for most of the text is taken as a sign of a compiler that follows the ABI. Runtimes of languages with
/// conventions of their own make the convention unknown.
pub(super) fn convention(
    layout: &Layout<'_>,
    symbols: &[Symbol<'_>],
    covered_by_frames: u64,
) -> Convention {
    let foreign = symbols.iter().any(|symbol| {
        // Symbols of the runtimes of OCaml and Haskell.
        symbol.name.starts_with(b"caml_") || symbol.name.starts_with(b"stg_")
    });
    if foreign || runtime_of_another_language(layout) {
        return Convention::Unknown;
    }
    let comment = layout.raw_section(b".comment").unwrap_or_default();
    if !comment.is_empty() {
        let mut makers = comment.split(|&byte| byte == 0).filter(|s| !s.is_empty());
        return if makers.all(follows_the_abi) {
            Convention::SystemV
        } else {
            Convention::Unknown
        };
    }
    let text: u64 = layout
        .segments
        .iter()
        .filter(|segment| segment.executable)
        .map(|segment| segment.backed.end - segment.backed.start)
        .sum();
    if covered_by_frames >= text / 4 * 3 {
        Convention::SystemV
    } else {
        Convention::Unknown
    }
}

fn follows_the_abi(maker: &[u8]) -> bool {
    const KNOWN: [&[u8]; 6] = [b"GCC:", b"clang", b"LLD", b"rustc", b"mold", b"Linker:"];
    KNOWN
        .iter()
        .any(|known| maker.windows(known.len()).any(|part| part == *known))
}

/// True if the file contains the name of an environment variable that such a runtime reads: stripped programs
/// still do.
fn runtime_of_another_language(layout: &Layout<'_>) -> bool {
    // Including the terminator of a C string; otherwise this program would find itself.
    let names = ["OCAMLRUNPARAM", "GHCRTS"].map(|name| [name.as_bytes(), &[0]].concat());
    layout
        .segments
        .iter()
        .filter(|segment| !segment.executable && !segment.writable)
        .filter_map(|segment| layout.bytes(segment.backed.clone()))
        .any(|bytes| {
            let mut names = names.iter();
            names.any(|name| memmem::find(bytes, name).is_some())
        })
}
