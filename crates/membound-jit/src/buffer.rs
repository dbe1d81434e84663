//! Code pages that are writable or executable, never both.

use std::marker::PhantomData;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::Error;

/// Memory pages that hold one piece of code at a time.
#[derive(Debug)]
pub struct CodeBuffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its mapping; nothing about it is tied to a thread.
unsafe impl Send for CodeBuffer {}

/// Code that is ready to run. It borrows its buffer, so the code cannot change while this exists.
#[derive(Clone, Copy, Debug)]
pub struct Code<'buffer> {
    entry: NonNull<u8>,
    bytes: usize,
    buffer: PhantomData<&'buffer CodeBuffer>,
}

// SAFETY: code pages are immutable while a `Code` exists, and may be executed by any thread.
unsafe impl Send for Code<'_> {}
// SAFETY: as above; shared references only read or execute.
unsafe impl Sync for Code<'_> {}

/// Code together with its pages; the pages are unmapped when this is dropped.
#[derive(Debug)]
pub struct OwnedCode {
    buffer: CodeBuffer,
}

impl OwnedCode {
    /// Loads `code` into `buffer`, where it stays unchanged.
    ///
    /// # Errors
    /// As [`CodeBuffer::load`].
    pub fn new(mut buffer: CodeBuffer, code: &[u8]) -> Result<Self, Error> {
        buffer.load(code)?;
        Ok(Self { buffer })
    }

    /// Address of the first instruction. Cast it to the type of the emitted function.
    #[must_use]
    pub const fn entry(&self) -> NonNull<u8> {
        self.buffer.start
    }
}

// SAFETY: the code can no longer be replaced, so any thread may execute it.
unsafe impl Sync for OwnedCode {}

impl CodeBuffer {
    /// Maps a buffer of at least `bytes` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::Memory`] when the kernel refuses.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let bytes = bytes.max(1).next_multiple_of(page);
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = mapped.map_err(|errno| Error::Memory {
            action: "map",
            bytes,
            errno,
        })?;
        let start = NonNull::new(start.cast()).expect("a successful mmap is never at zero");
        Ok(Self { start, bytes })
    }

    /// Capacity in bytes.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.bytes
    }

    /// Replaces the buffer's code and makes it executable.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the code does not fit, [`Error::Memory`] if the kernel refuses to change the
    /// protection.
    pub fn load(&mut self, code: &[u8]) -> Result<Code<'_>, Error> {
        if code.len() > self.bytes {
            return Err(Error::TooLarge {
                code_bytes: code.len(),
                buffer_bytes: self.bytes,
            });
        }
        self.protect("make writable", MprotectFlags::READ | MprotectFlags::WRITE)?;
        // SAFETY: the mapping is writable, at least `code.len()` long, and nobody holds a
        // `Code` of it, because that would borrow `self`.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), self.start.as_ptr(), code.len()) };
        self.protect("make executable", MprotectFlags::READ | MprotectFlags::EXEC)?;
        #[cfg(target_arch = "aarch64")]
        synchronise(self.start, code.len());
        Ok(Code {
            entry: self.start,
            bytes: code.len(),
            buffer: PhantomData,
        })
    }

    /// The address that code loaded into this buffer will have.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn protect(&self, action: &'static str, flags: MprotectFlags) -> Result<(), Error> {
        // SAFETY: the range is exactly this buffer's own mapping.
        unsafe { mprotect(self.start.as_ptr().cast(), self.bytes, flags) }.map_err(|errno| {
            Error::Memory {
                action,
                bytes: self.bytes,
                errno,
            }
        })
    }
}

/// Makes written code visible to instruction fetches: on aarch64 the hardware does not keep the instruction
/// cache coherent with the data cache. The sequence is that of the Arm Architecture Reference Manual (DDI
/// 0487), section B2.4.4, which user code may execute on Linux.
#[cfg(target_arch = "aarch64")]
fn synchronise(start: NonNull<u8>, bytes: usize) {
    use std::arch::asm;
    let cache_type: u64;
    // SAFETY: reads a register that Linux lets every process read.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags));
    }
    let first = start.as_ptr() as usize;
    let lines = |log_words: u64| {
        let line = 4_usize << (log_words & 15);
        (first & !(line - 1)..first + bytes).step_by(line)
    };
    for line in lines(cache_type >> 16) {
        // SAFETY: cleans a line of this mapping; no data change.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in lines(cache_type) {
        // SAFETY: invalidates a line that instruction fetches will load again.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

impl Drop for CodeBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this buffer, and no `Code` that borrows it can exist any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own pages succeeds");
    }
}

impl Code<'_> {
    /// Address of the first instruction. Cast it to the type of the emitted function.
    #[must_use]
    pub const fn entry(&self) -> NonNull<u8> {
        self.entry
    }

    /// The machine code.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are readable and stay as they are while the buffer is borrowed.
        unsafe { std::slice::from_raw_parts(self.entry.as_ptr(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protection_of(address: u64) -> String {
        // An emulator's list may lack a mapping while another thread maps something.
        const READINGS: usize = 100;
        (0..READINGS)
            .find_map(|_| listed_protection(address))
            .expect("the buffer is mapped")
    }

    /// Protection of the mapping at `address` in one reading of the list.
    fn listed_protection(address: u64) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (low, high) = range.split_once('-')?;
            let low = u64::from_str_radix(low, 16).ok()?;
            let high = u64::from_str_radix(high, 16).ok()?;
            (low..high).contains(&address).then(|| rest[..4].to_owned())
        })
    }

    #[test]
    fn pages_are_never_writable_and_executable_at_once() {
        let mut buffer = CodeBuffer::new(100).unwrap();
        let address = buffer.address();
        assert_eq!(protection_of(address), "rw-p");
        buffer.load(&[0xc3]).unwrap();
        assert_eq!(protection_of(address), "r-xp");
        buffer.load(&[0x90, 0xc3]).unwrap();
        assert_eq!(protection_of(address), "r-xp");
    }

    #[test]
    fn code_that_does_not_fit_is_refused() {
        let mut buffer = CodeBuffer::new(1).unwrap();
        let code = vec![0x90; buffer.capacity() + 1];
        assert!(matches!(buffer.load(&code), Err(Error::TooLarge { .. })));
    }

    /// A function that returns `value`.
    #[cfg(target_arch = "x86_64")]
    fn returning(value: u8) -> Vec<u8> {
        // mov eax, value; ret
        vec![0xb8, value, 0, 0, 0, 0xc3]
    }

    #[cfg(target_arch = "aarch64")]
    fn returning(value: u8) -> Vec<u8> {
        use crate::a64::{Assembler, Instruction, X};
        let mut assembler = Assembler::new();
        assembler.constant(X(0), value.into());
        assembler.push(Instruction::Return);
        assembler.encode().unwrap()
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn loaded_code_runs_and_can_be_replaced() {
        let mut buffer = CodeBuffer::new(64).unwrap();
        for value in [7, 9, 11] {
            let code = buffer.load(&returning(value)).unwrap();
            // SAFETY: the code is a function of no arguments that returns a number.
            let function: extern "C" fn() -> u64 =
                unsafe { std::mem::transmute(code.entry().as_ptr()) };
            assert_eq!(function(), u64::from(value));
        }
    }
}
