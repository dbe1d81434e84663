//! Wakes the control threads of programs whose patches are to change.
//!
//! All of them share one doorbell: a counter in a page that every live process maps. A control thread that
//! wakes asks what is wanted; a late one gets the newest state.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::MmapRaw;
use rustix::thread::futex;

use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::memfd;
use crate::orders::{NewModules, Order, Part};
use crate::room;

const PAGE_BYTES: u64 = 4096;

/// The doorbell.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of rings so far, including those before the page was made: a change made while the first
    /// program was being prepared may have come too late for it.
    rings: u32,
    /// Made when the first process maps it.
    bell: Option<Bell>,
}

impl State {
    fn bell(&mut self) -> io::Result<&Bell> {
        let bell = match self.bell.take() {
            Some(bell) => bell,
            None => {
                let bell = Bell::make()?;
                bell.counter().store(self.rings, Ordering::Release);
                bell
            }
        };
        Ok(self.bell.insert(bell))
    }

    fn ring(&mut self) {
        self.rings = self.rings.wrapping_add(1);
        if let Some(bell) = &self.bell {
            let counter = bell.counter();
            counter.store(self.rings, Ordering::Release);
            // If no thread waits, nothing happens.
            let _ = futex::wake(counter, futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
    }
}

#[derive(Debug)]
struct Bell {
    file: File,
    page: MmapRaw,
}

impl Bell {
    fn make() -> io::Result<Self> {
        let file = memfd::zeroed("membound-doorbell", PAGE_BYTES)?;
        let page = MmapRaw::map_raw(&file)?;
        Ok(Self { file, page })
    }

    fn counter(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self` lives, its start is aligned, and all processes that
        // map it use these four bytes only as an atomic counter.
        unsafe { AtomicU32::from_ptr(self.page.as_mut_ptr().cast()) }
    }
}

impl Doorbells {
    /// Maps the doorbell into a process, and starts the control thread that waits for it.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        modules: NewModules,
    ) -> Result<(), Failure> {
        let file = self.state().bell()?.file.try_clone()?;
        let inode = file.metadata()?.ino();
        let near = conversation.agent();
        map_near(conversation, maps, &near, PAGE_BYTES, inode, |range| {
            let part = Part::shared(range, file.as_fd());
            conversation.map_and(&part, Order::listen(range.start, modules))
        })
        .map(drop)
    }

    /// Wakes all control threads, and those that map the doorbell later.
    pub(crate) fn ring(&self) {
        self.state().ring();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds room for `length` bytes near `near` and maps them there with `map`; repeats that while another
/// thread of the program takes the room first. The file that `map` maps has the inode `inode`.
pub(crate) fn map_near(
    conversation: &Conversation,
    maps: &mut Vec<Mapping>,
    near: &std::ops::Range<u64>,
    length: u64,
    inode: u64,
    map: impl Fn(&std::ops::Range<u64>) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    const ATTEMPTS: usize = 8;
    let heap = conversation.heap_start();
    let mut last = Failure::Refused {
        what: "finding room",
        errno: rustix::io::Errno::NOMEM,
        refusal: membound_wire::Refusal::None,
    };
    for _ in 0..ATTEMPTS {
        let Some(at) = room::find(maps, heap, &[], near, length) else {
            break;
        };
        match map(&(at..at + length)) {
            Ok(()) => {
                maps::add(maps, at..at + length, inode);
                return Ok(at);
            }
            Err(failure) if failure.occupied() => last = failure,
            Err(failure) => return Err(failure),
        }
        *maps = maps::of(conversation.pid)?;
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control threads begin at 0: a ring before one starts must wake it.
    #[test]
    fn a_ring_before_anybody_listens_is_heard() {
        let mut state = State::default();
        state.ring();
        let heard = |state: &mut State| {
            let bell = state.bell().expect("there is memory for a page");
            bell.counter().load(Ordering::Acquire)
        };
        assert_eq!(heard(&mut state), 1);
        state.ring();
        assert_eq!(heard(&mut state), 2);
    }
}
