//! The ring into which the kernel writes an event's records.
//!
//! A page with positions comes before the data. Positions only grow; the kernel moves the head after writing,
//! and this process moves the tail after reading. Records are copied out before they are parsed, so that no
//! reference to the shared memory is kept.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// A mapped ring.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: NonNull<u8>,
    page: usize,
    /// Bytes of data, a power of two.
    data: usize,
}

// SAFETY: this value alone owns the mapping, which is not bound to a thread. Memory that the kernel changes
// is read atomically, or only up to the head, where the kernel has finished.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event: the largest power of two of pages that has at most `bytes`.
    pub(crate) fn map(event: impl AsFd, bytes: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let data = prev_power_of_two((bytes / page).max(1)) * page;
        // SAFETY: a new mapping at an address that the kernel chooses, so it overlaps nothing.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                page + data,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, page, data })
    }

    /// Appends all unread bytes to `to`. Returns the position up to which they were read, for
    /// [`Self::taken`].
    pub(crate) fn copy(&self, to: &mut Vec<u8>) -> u64 {
        let head = self.position(HEAD).load(Ordering::Acquire);
        let tail = self.position(TAIL).load(Ordering::Relaxed);
        let mut left = usize::try_from(head.wrapping_sub(tail))
            .unwrap_or(usize::MAX)
            .min(self.data);
        let mask = self.data as u64 - 1;
        let mut at = (tail & mask) as usize;
        to.reserve(left);
        while left > 0 {
            let piece = left.min(self.data - at);
            // SAFETY: `at` is below the length of the data, which follow the first page.
            let from = unsafe { self.memory.add(self.page + at) };
            // SAFETY: `piece` bytes from there on lie in the data, and the kernel does not
            // write between tail and head.
            let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), piece) };
            to.extend_from_slice(from);
            left -= piece;
            at = 0;
        }
        head
    }

    /// Frees everything before `position`, so that the kernel may overwrite it.
    pub(crate) fn taken(&self, position: u64) {
        self.position(TAIL).store(position, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets lie in the first page.
        let at = unsafe { self.memory.add(offset) };
        // SAFETY: they are multiples of 8 in a page, and the kernel reads and writes them in one step.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.page + self.data) };
    }
}

const fn prev_power_of_two(number: usize) -> usize {
    1 << number.ilog2()
}
