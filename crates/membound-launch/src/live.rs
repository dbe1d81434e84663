//! Wakes the control threads of programs whose patches are to change.
//!
//! All of them share one doorbell, a page that every live process maps (see [`membound_wire::own_word`]). A
//! control thread that is rung for asks what is wanted; a late one gets the newest state.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use membound_wire::{DOORBELL_BYTES, own_word, waking_bits};
use memmap2::MmapRaw;
use rustix::thread::futex;

use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::memfd;
use crate::orders::{NewModules, Order, Part};
use crate::room;

/// Name of the page, and the name that it has in lists of mappings.
const NAME: &str = "membound-doorbell";
const MAPPED_NAME: &str = "/memfd:membound-doorbell (deleted)";

/// True if the process `pid` has mapped a doorbell: it loses it when it executes another program.
pub(crate) fn has_control_thread(pid: u32) -> bool {
    let is_doorbell = |map: &Mapping| map.name == MAPPED_NAME;
    maps::of(pid).is_ok_and(|maps| maps.iter().any(is_doorbell))
}

/// The doorbell.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// True if it was rung before the page was made: a change made while the first program was being prepared
    /// may have come too late for it.
    has_early_ring: bool,
    /// Made when the first process maps it.
    bell: Option<Bell>,
    /// True if the number of any process differs from that in its own namespace, which chooses its word.
    numbers_differ: bool,
}

impl State {
    fn bell(&mut self) -> io::Result<&Bell> {
        let bell = match self.bell.take() {
            Some(bell) => bell,
            None => {
                let bell = Bell::make()?;
                if self.has_early_ring {
                    bell.ring();
                }
                bell
            }
        };
        Ok(self.bell.insert(bell))
    }

    fn ring(&mut self) {
        match &self.bell {
            Some(bell) => bell.ring(),
            None => self.has_early_ring = true,
        }
    }

    fn ring_for(&mut self, pid: u32) {
        match &self.bell {
            Some(bell) if !self.numbers_differ => bell.ring_for(pid),
            _ => self.ring(),
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
        let file = memfd::zeroed(NAME, DOORBELL_BYTES as u64)?;
        let page = MmapRaw::map_raw(&file)?;
        Ok(Self { file, page })
    }

    /// Rings for all processes.
    fn ring(&self) {
        for offset in (4..DOORBELL_BYTES).step_by(4) {
            self.word(offset).fetch_add(1, Ordering::Relaxed);
        }
        self.wake(NonZero::<u32>::MAX);
    }

    /// Rings for the process `pid`, and for processes that have the same own word.
    fn ring_for(&self, pid: u32) {
        self.word(own_word(pid)).fetch_add(1, Ordering::Relaxed);
        self.wake(NonZero::new(waking_bits(pid)).unwrap_or(NonZero::<u32>::MAX));
    }

    fn wake(&self, bits: NonZero<u32>) {
        let all = self.word(0);
        // Release: a control thread that loads this count with Acquire then loads the own words of this ring.
        all.fetch_add(1, Ordering::Release);
        // If no thread waits, nothing happens.
        let most = i32::MAX.unsigned_abs();
        let _ = futex::wake_bitset(all, futex::Flags::empty(), most, bits);
    }

    /// The word at `offset`, a multiple of 4 below the length of the page.
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < DOORBELL_BYTES);
        // SAFETY: the sum lies in the page, which is mapped as long as `self` lives.
        let word = unsafe { self.page.as_mut_ptr().add(offset) };
        // SAFETY: the word is aligned, and all processes that map the page use its words only as atomic
        // counters.
        unsafe { AtomicU32::from_ptr(word.cast()) }
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
        map_near(
            conversation,
            maps,
            &near,
            DOORBELL_BYTES as u64,
            inode,
            |range| {
                let part = Part::shared(range, file.as_fd());
                conversation.map_and(&part, Order::listen(range.start, modules))
            },
        )
        .map(drop)
    }

    /// Wakes all control threads, and those that map the doorbell later.
    pub(crate) fn ring(&self) {
        self.state().ring();
    }

    /// Wakes the control thread of the process `pid`.
    pub(crate) fn ring_for(&self, pid: u32) {
        self.state().ring_for(pid);
    }

    /// Notes the number of a process in its own namespace.
    pub(crate) fn note_number(&self, pid: u32, own: u32) {
        if pid != own {
            self.state().numbers_differ = true;
        }
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

    fn counts(state: &mut State, pid: u32) -> (u32, u32) {
        let bell = state.bell().expect("there is memory for a page");
        let count = |offset| bell.word(offset).load(Ordering::Acquire);
        (count(0), count(own_word(pid)))
    }

    /// Control threads begin at 0: a ring before one starts must wake it.
    #[test]
    fn a_ring_before_anybody_listens_is_heard() {
        let mut state = State::default();
        state.ring();
        assert_eq!(counts(&mut state, 5), (1, 1));
        state.ring();
        assert_eq!(counts(&mut state, 5), (2, 2));
    }

    #[test]
    fn a_ring_for_one_process_changes_its_own_word_only() {
        let mut state = State::default();
        assert_eq!(counts(&mut state, 5), (0, 0));
        state.ring_for(5);
        assert_eq!(counts(&mut state, 5), (1, 1));
        assert_eq!(counts(&mut state, 6), (1, 0));
        // Where its own word is not known, it is rung for with all others.
        state.numbers_differ = true;
        state.ring_for(5);
        assert_eq!(counts(&mut state, 5), (2, 2));
        assert_eq!(counts(&mut state, 6), (2, 1));
    }
}
