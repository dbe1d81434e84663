//! Loads the agent into this process if no dynamic loader does.
//!
//! The command itself may be statically linked, and its process that loads from known levels is patched
//! like any other program. The agent needs no other object, so this module only does the little that a
//! loader would do for it.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use membound_wire::{CONTROL_VARIABLE, agent_in};
use object::elf::{PF_R, PF_W, PF_X, PT_LOAD, ProgramFlags, R_X86_64_GLOB_DAT, R_X86_64_RELATIVE};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{RelocationFlags, RelocationTarget};

use crate::session::PRELOAD;

/// The kernel's unit of mappings.
const PAGE: u64 = 4096;
/// Symbol by which the agent finds the environment; its other symbols belong to a dynamic loader.
const ENVIRONMENT: &str = "__environ";

unsafe extern "C" {
    /// The C library's variable.
    static mut environ: *mut *mut libc::c_char;
}

/// Loads the agent as a loader would, from the `LD_PRELOAD` of [`crate::Session::start_self_loading`]. Does
/// nothing if a loader has done that, or if no session has started this process. No other thread may run.
///
/// # Errors
/// If the agent's file cannot be read or mapped.
pub fn load_agent() -> io::Result<()> {
    let (Some(_), Some(preload)) = (
        std::env::var_os(CONTROL_VARIABLE),
        std::env::var_os(PRELOAD),
    ) else {
        return Ok(());
    };
    let own = agent_in(preload.as_bytes());
    let path = PathBuf::from(std::ffi::OsString::from_vec(
        preload.as_bytes()[own].to_vec(),
    ));
    let bytes = std::fs::read(&path)?;
    let invalid = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error);
    let file = ElfFile64::<LittleEndian>::parse(&*bytes).map_err(invalid)?;
    let base = map(&file, &File::open(&path)?)?;
    relocate(&file, base)?;
    let initialisers = file.section_by_name(".init_array");
    let initialisers = initialisers.map_or(0..0, |it| it.address()..it.address() + it.size());
    for address in initialisers.step_by(8) {
        // SAFETY: an array of functions that take nothing, relocated above.
        let initialise = unsafe { *((base + address) as *const extern "C" fn()) };
        initialise();
    }
    Ok(())
}

/// Maps the segments with their protections; returns the difference to the file's addresses.
fn map(elf: &ElfFile64<'_, LittleEndian>, file: &File) -> io::Result<u64> {
    let endian = elf.endian();
    let loads = || {
        let headers = elf.elf_program_headers().iter();
        headers.filter(|header| header.p_type(endian) == PT_LOAD)
    };
    let end = loads().map(|it| it.p_vaddr(endian) + it.p_memsz(endian));
    let length = end.max().unwrap_or(0).next_multiple_of(PAGE);
    let base = mapped(0..length, ProgramFlags::default(), None)?;
    for header in loads() {
        let (address, flags) = (header.p_vaddr(endian), header.p_flags(endian));
        let (offset, in_file) = header.file_range(endian);
        let first = address & !(PAGE - 1);
        let end_of_file = (address + in_file).next_multiple_of(PAGE);
        let end = (address + header.p_memsz(endian)).next_multiple_of(PAGE);
        let own = Some((file, offset & !(PAGE - 1)));
        mapped(base + first..base + end_of_file, flags, own)?;
        if flags.contains(PF_W) {
            let rest = base + address + in_file..base + end_of_file;
            let bytes = (rest.end - rest.start) as usize;
            // SAFETY: the rest of the last page of a writable private mapping made above.
            unsafe { (rest.start as *mut u8).write_bytes(0, bytes) };
        }
        if end > end_of_file {
            mapped(base + end_of_file..base + end, flags, None)?;
        }
    }
    Ok(base)
}

/// Maps `range` (anywhere if it begins at 0) with a segment's protection: a file from an offset on, or
/// zeroes.
fn mapped(range: Range<u64>, flags: ProgramFlags, from: Option<(&File, u64)>) -> io::Result<u64> {
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let fixed = if range.start == 0 { 0 } else { libc::MAP_FIXED };
    let anonymous = if from.is_none() {
        libc::MAP_ANONYMOUS
    } else {
        0
    };
    let permitted =
        |flag: ProgramFlags, protection: c_int| if flags.contains(flag) { protection } else { 0 };
    let protection = permitted(PF_R, libc::PROT_READ)
        | permitted(PF_W, libc::PROT_WRITE)
        | permitted(PF_X, libc::PROT_EXEC);
    let (descriptor, offset) = from.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
    // SAFETY: a new mapping, or a part of one that such a call has reserved.
    let place = unsafe {
        libc::mmap(
            range.start as *mut libc::c_void,
            length,
            protection,
            libc::MAP_PRIVATE | fixed | anonymous,
            descriptor,
            offset.cast_signed(),
        )
    };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(place as u64)
}

/// Writes the addresses that depend on where the file was mapped.
fn relocate(elf: &ElfFile64<'_, LittleEndian>, base: u64) -> io::Result<()> {
    let unknown = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the agent has an unknown relocation",
        )
    };
    let symbols = elf.dynamic_symbol_table().ok_or_else(unknown)?;
    for (address, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        let value = match (relocation.flags(), relocation.target()) {
            (
                RelocationFlags::Elf {
                    r_type: R_X86_64_RELATIVE,
                },
                _,
            ) => base.wrapping_add_signed(relocation.addend()),
            (
                RelocationFlags::Elf {
                    r_type: R_X86_64_GLOB_DAT,
                },
                RelocationTarget::Symbol(index),
            ) => {
                let symbol = object::ObjectSymbolTable::symbol_by_index(&symbols, index);
                let name = symbol.ok().and_then(|it| it.name().ok().map(str::to_owned));
                let is_environment = name.as_deref() == Some(ENVIRONMENT);
                if is_environment {
                    &raw const environ as u64
                } else {
                    0
                }
            }
            _ => return Err(unknown()),
        };
        // SAFETY: the linker put relocations into the writable segments, which were mapped above.
        unsafe { *((base + address) as *mut u64) = value };
    }
    Ok(())
}
