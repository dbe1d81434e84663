//! A scavenger's first stack: arguments, environment and auxiliary vector, in the kernel's layout.

use core::ffi::CStr;

use super::image::Image;
use super::table::Request;
use crate::sys::{Errno, Protection, Scratch, call, check, number};
use crate::{auxiliary, memory};

/// Most pointers on the first stack.
const MAX_WORDS: u64 = 1 << 16;
const GUARD_BYTES: usize = 64 << 10;
const MIN_BYTES: usize = 128 << 10;
/// Number of different offsets at which stacks begin. Offsets are `COLOUR_BYTES` (seven lines) apart, so
/// that the stacks of neighbouring scavengers use different cache sets.
const COLOURS: usize = 64;
const COLOUR_BYTES: usize = 7 * 64;

/// Addresses of the strings behind a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strings {
    path: usize,
    pub(super) output: usize,
    pub(super) errors: usize,
    /// The first argument; the other arguments and the environment follow.
    first: usize,
}

impl Strings {
    /// `None` if there are fewer strings than the request counts, or the last one does not end.
    pub(super) fn of(request: Request) -> Option<Self> {
        let fields = request.get();
        let (begin, length) = (request.strings(), fields.strings as usize);
        let count = 3 + u64::from(fields.arguments) + u64::from(fields.variables);
        if count > MAX_WORDS {
            return None;
        }
        let mut starts = [begin; 4];
        let mut found = 0_u64;
        for at in begin..begin + length {
            // SAFETY: the launcher has mapped as many bytes as it says.
            if (unsafe { memory::get::<u8>(at) }) == 0 {
                found += 1;
                if let Some(start) = starts.get_mut(found as usize) {
                    *start = at + 1;
                }
            }
        }
        let [path, output, errors, first] = starts;
        (found == count).then_some(Self {
            path,
            output,
            errors,
            first,
        })
    }

    pub(super) fn path(&self) -> &'static CStr {
        // SAFETY: the string ends, and stays mapped.
        let bytes = unsafe { memory::c_string::<'static>(self.path) };
        // SAFETY: one byte behind the string there is its zero byte.
        let whole = unsafe { core::slice::from_raw_parts(bytes.as_ptr(), bytes.len() + 1) };
        // SAFETY: it ends with a zero byte and has no other.
        unsafe { CStr::from_bytes_with_nul_unchecked(whole) }
    }
}

/// Lays out the stack of the scavenger of this number; returns the stack pointer.
pub(super) fn make(
    request: Request,
    number: usize,
    strings: &Strings,
    executable: &Image,
    loader: Option<&Image>,
) -> Result<usize, Errno> {
    let fields = request.get();
    let bytes = (fields.stack as usize).max(MIN_BYTES) & !4095;
    let whole = bytes + GUARD_BYTES;
    let stack = Scratch::untouched(whole, Protection::ReadWrite)?;
    let begin = stack.address();
    // SAFETY: the lowest pages of a mapping that is not used yet.
    check(unsafe { call(number::MPROTECT, [begin, GUARD_BYTES, 0, 0, 0, 0]) })?;
    // Stacks at the same position in a page would compete for the same sets of the first-level cache.
    let colour = number % COLOURS * COLOUR_BYTES;
    let mut words = Words::new(begin + whole - colour)?;
    // Random bytes and the platform's name, to which the auxiliary vector points, lie above.
    let random = words.above(&random()?)?;
    let platform = words.above(&[u64::from_le_bytes(*b"x86_64\0\0"), 0])?;

    let pointers = 1
        + (u64::from(fields.arguments) + 1)
        + (u64::from(fields.variables) + 1)
        + 2 * (auxiliary::MAX_AUXILIARY_ENTRIES as u64 + 1);
    let start = words.begin(pointers)?;
    words.push(u64::from(fields.arguments));
    let mut at = strings.first;
    for count in [fields.arguments, fields.variables] {
        for _ in 0..count {
            words.push(at as u64);
            // SAFETY: the strings were counted.
            at += unsafe { memory::c_string(at) }.len() + 1;
        }
        words.push(0);
    }
    auxiliary::each(|kind, value| {
        if NOT_FOR_SCAVENGERS.contains(&kind) {
            return;
        }
        const PHDR: u64 = 3;
        const PHNUM: u64 = 5;
        const BASE: u64 = 7;
        const ENTRY: u64 = 9;
        const PLATFORM: u64 = 15;
        const RANDOM: u64 = 25;
        const EXECFN: u64 = 31;
        let value = match kind {
            PHDR => executable.headers.0 as u64,
            PHNUM => executable.headers.1 as u64,
            BASE => loader.map_or(0, |loader| loader.bias as u64),
            ENTRY => executable.entry as u64,
            PLATFORM => platform as u64,
            RANDOM => random as u64,
            EXECFN => strings.path as u64,
            _ => value,
        };
        words.push(kind);
        words.push(value);
    })?;
    words.push(0);
    words.push(0);
    stack.keep();
    Ok(start)
}

/// Entries that scavengers do not get: those to be ignored, and the two that describe rseq, which is
/// refused to scavengers.
const NOT_FOR_SCAVENGERS: [u64; 3] = [1, 27, 28];

fn random() -> Result<[u64; 2], Errno> {
    const GETRANDOM: usize = 318;
    let mut random = [0_u64; 2];
    // SAFETY: the kernel writes at most that many bytes.
    check(unsafe { call(GETRANDOM, [(&raw mut random) as usize, 16, 0, 0, 0, 0]) })?;
    Ok(random)
}

/// Writes words upwards.
#[derive(Debug)]
struct Words {
    /// Lowest address used from above; below it the stack is free.
    top: usize,
    at: usize,
}

impl Words {
    fn new(top: usize) -> Result<Self, Errno> {
        let top = top.checked_sub(64).ok_or(Errno::EINVAL)?;
        Ok(Self { top, at: top })
    }

    /// Puts words at the top; returns their address.
    fn above(&mut self, words: &[u64; 2]) -> Result<usize, Errno> {
        self.top = self.top.checked_sub(16).ok_or(Errno::EINVAL)?;
        // SAFETY: the stack is mapped there, and not used yet.
        unsafe { memory::put(self.top, *words) };
        Ok(self.top)
    }

    /// Reserves `count` words below, and returns their address, aligned as a stack pointer at a program's
    /// entry.
    fn begin(&mut self, count: u64) -> Result<usize, Errno> {
        let bytes = count.checked_mul(8).ok_or(Errno::EINVAL)? as usize;
        let fits = bytes < MIN_BYTES / 2;
        self.at = self
            .top
            .checked_sub(bytes)
            .filter(|_| fits)
            .ok_or(Errno::EINVAL)?
            & !15;
        Ok(self.at)
    }

    fn push(&mut self, word: u64) {
        // SAFETY: room was made for as many words as are pushed.
        unsafe { memory::put(self.at, word) };
        self.at += 8;
    }
}
