//! Maps an executable or its loader as the kernel would.

use core::ffi::CStr;

use crate::memory::{self, Line};
use crate::sys::{self, Descriptor, Errno, call, check, number};

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const MAX_SEGMENTS: usize = 64;
const PAGE: u64 = 4096;
/// The file is no executable for this machine.
const ENOEXEC: Errno = Errno(8);

/// A mapped executable or loader.
#[derive(Debug)]
pub(super) struct Image {
    /// Address of its first instruction.
    pub entry: usize,
    /// Difference between its addresses in memory and those in the file.
    pub bias: usize,
    /// Address and number of its program headers.
    pub headers: (usize, usize),
    /// Path of the loader that it names.
    pub loader: Option<Line<256>>,
    /// Start and end of all of its mappings.
    pub span: [u64; 2],
}

/// A program header.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

const _: () = assert!(size_of::<Segment>() == SEGMENT_BYTES);

const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;

/// Maps the file at `path`. Errors are those of the kernel, or `ENOEXEC`.
pub(super) fn load(path: &CStr) -> Result<Image, Errno> {
    let file = sys::open(path, sys::Open::Read)?;
    let mut header = [0; HEADER_BYTES];
    sys::read_all_at(&file, &mut header, 0).map_err(|_| ENOEXEC)?;
    let half = |at: usize| -> usize {
        let bytes = header.get(at..at + 2).and_then(|it| it.first_chunk());
        usize::from(bytes.map_or(0, |it| u16::from_le_bytes(*it)))
    };
    let long = |at: usize| -> u64 {
        let bytes = header.get(at..at + 8).and_then(|it| it.first_chunk());
        bytes.map_or(0, |it| u64::from_le_bytes(*it))
    };
    const X86_64: usize = 62;
    const FIXED: usize = 2;
    const ANYWHERE: usize = 3;
    let known = header.starts_with(b"\x7fELF\x02\x01")
        && half(18) == X86_64
        && [FIXED, ANYWHERE].contains(&half(16))
        && half(54) == SEGMENT_BYTES
        && (1..=MAX_SEGMENTS).contains(&half(56));
    if !known {
        return Err(ENOEXEC);
    }
    let mut room = [Segment::default(); MAX_SEGMENTS];
    let segments = room.get_mut(..half(56)).ok_or(ENOEXEC)?;
    for (index, segment) in segments.iter_mut().enumerate() {
        let mut bytes = [0; SEGMENT_BYTES];
        let at = long(32).wrapping_add((index * SEGMENT_BYTES) as u64);
        sys::read_all_at(&file, &mut bytes, at).map_err(|_| ENOEXEC)?;
        // SAFETY: the array has the structure's size, and any bits are numbers.
        *segment = unsafe { memory::get(bytes.as_ptr() as usize) };
    }
    let segments = &*segments;
    let bias = reserve(segments, half(16) == FIXED)?;
    let mut headers = 0;
    let mut span = [u64::MAX, 0];
    for segment in segments.iter().filter(|it| it.kind == LOAD) {
        map(&file, segment, bias)?;
        let begin = bias.wrapping_add(segment.address);
        span = [
            span[0].min(begin),
            span[1].max(begin.saturating_add(segment.memory_bytes)),
        ];
        let inside = long(32).wrapping_sub(segment.offset);
        if inside < segment.file_bytes {
            headers = bias.wrapping_add(segment.address).wrapping_add(inside);
        }
    }
    Ok(Image {
        entry: bias.wrapping_add(long(24)) as usize,
        bias: bias as usize,
        headers: (headers as usize, segments.len()),
        loader: loader(&file, segments)?,
        span,
    })
}

/// The loader's path from the program headers; `None`: the file names none.
fn loader(file: &Descriptor, segments: &[Segment]) -> Result<Option<Line<256>>, Errno> {
    let Some(segment) = segments.iter().find(|it| it.kind == INTERPRETER) else {
        return Ok(None);
    };
    let mut bytes = [0; 255];
    let length = usize::try_from(segment.file_bytes).map_err(|_| ENOEXEC)?;
    let path = bytes.get_mut(..length).ok_or(ENOEXEC)?;
    sys::read_all_at(file, path, segment.offset)?;
    let [path @ .., 0] = &*path else {
        return Err(ENOEXEC);
    };
    let mut line = Line::new();
    line.push(path).ok_or(ENOEXEC)?;
    Ok(Some(line))
}

/// Reserves addresses for all segments together; returns the difference to the file's addresses.
fn reserve(segments: &[Segment], fixed: bool) -> Result<u64, Errno> {
    const NOTHING: usize = 0;
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    const FIXED_NOREPLACE: usize = 0x10_0000;
    const MAX_IMAGE_BYTES: u64 = 1 << 40;
    let loads = || segments.iter().filter(|it| it.kind == LOAD);
    let begin = loads().map(|it| it.address).min().ok_or(ENOEXEC)? & !(PAGE - 1);
    let end = loads()
        .map(|it| it.address.saturating_add(it.memory_bytes))
        .max()
        .ok_or(ENOEXEC)?;
    let alignment = loads().map(|it| it.alignment).max().unwrap_or(0).max(PAGE);
    let length = end.saturating_sub(begin).next_multiple_of(PAGE);
    if !alignment.is_power_of_two() || length == 0 || length.max(alignment) > MAX_IMAGE_BYTES {
        return Err(ENOEXEC);
    }
    let (at, whole, place) = if fixed {
        (begin, length, FIXED_NOREPLACE)
    } else {
        (0, length + alignment - PAGE, 0)
    };
    let arguments = [
        at as usize,
        whole as usize,
        NOTHING,
        PRIVATE_ANONYMOUS_NORESERVE | place,
        usize::MAX,
        0,
    ];
    // SAFETY: a place that is free, or of the kernel's choice.
    let got = check(unsafe { call(number::MMAP, arguments) })? as u64;
    if fixed && got != begin {
        // An old kernel treats the address as a hint only.
        // SAFETY: the mapping is new and not used yet.
        let _ = unsafe { call(number::MUNMAP, [got as usize, whole as usize, 0, 0, 0, 0]) };
        return Err(Errno::EEXIST);
    }
    let aligned = if fixed {
        got
    } else {
        got.next_multiple_of(alignment)
    };
    Ok(aligned.wrapping_sub(if fixed { got } else { begin }))
}

/// Maps one segment inside the reserved addresses.
fn map(file: &Descriptor, segment: &Segment, bias: u64) -> Result<(), Errno> {
    const PRIVATE_FIXED: usize = 0x12;
    const ANONYMOUS: usize = 0x20;
    const WRITE: u32 = 2;
    let protection = (segment.flags & 1) << 2 | segment.flags & WRITE | (segment.flags & 4) >> 2;
    let address = bias.wrapping_add(segment.address);
    let lead = address & (PAGE - 1);
    if segment.offset & (PAGE - 1) != lead || segment.file_bytes > segment.memory_bytes {
        return Err(ENOEXEC);
    }
    let begin = address - lead;
    let file_end = address + segment.file_bytes;
    let end = (address + segment.memory_bytes).next_multiple_of(PAGE);
    let mut mapped_end = begin;
    if segment.file_bytes > 0 {
        mapped_end = file_end.next_multiple_of(PAGE);
        let arguments = [
            begin as usize,
            (mapped_end - begin) as usize,
            protection as usize,
            PRIVATE_FIXED,
            file.raw(),
            (segment.offset - lead) as usize,
        ];
        // SAFETY: it replaces part of what was set aside for this image.
        check(unsafe { call(number::MMAP, arguments) })?;
    }
    if end > mapped_end {
        let arguments = [
            mapped_end as usize,
            (end - mapped_end) as usize,
            protection as usize,
            PRIVATE_FIXED | ANONYMOUS,
            usize::MAX,
            0,
        ];
        // SAFETY: as above.
        check(unsafe { call(number::MMAP, arguments) })?;
    }
    if segment.flags & WRITE != 0 && segment.memory_bytes > segment.file_bytes {
        // Behind the last byte of the segment, its page holds whatever follows in the file.
        for at in file_end..mapped_end.max(file_end) {
            // SAFETY: the page was just mapped, writable and private.
            unsafe { memory::put(at as usize, 0_u8) };
        }
    }
    Ok(())
}
