//! Memory that is shared with programs: anonymous files, accessed through their descriptors or, word by
//! word, through a mapping in this process. Memory of a program is never mapped here.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::fs::SeekFrom;

use crate::conversation::{Conversation, Failure};
use crate::live::map_near;
use crate::maps::Mapping;
use crate::memfd;
use crate::orders::{Order, Part};

const PAGE_BYTES: usize = 4096;

/// Shared memory whose words both sides access atomically.
#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    /// Identifies its mappings in processes that inherit them.
    pub(crate) inode: u64,
    words: MmapRaw,
}

impl Shared {
    /// Makes at least `length` zero bytes, in whole pages.
    pub(crate) fn zeroed(name: &str, length: usize) -> io::Result<Self> {
        let file = memfd::zeroed(name, length.next_multiple_of(PAGE_BYTES) as u64)?;
        Ok(Self {
            inode: file.metadata()?.ino(),
            words: MmapRaw::map_raw(&file)?,
            file,
        })
    }

    /// Maps it into the program of this conversation, near its agent; returns the address there.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<u64, Failure> {
        self.map(conversation, maps, |part| conversation.map(part))
    }

    /// As [`Self::hang`], followed by an order that needs the address.
    pub(crate) fn hang_and(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        order: impl Fn(u64) -> Order,
    ) -> Result<u64, Failure> {
        self.map(conversation, maps, |part| {
            conversation.map_and(part, order(part.at.start))
        })
    }

    fn map(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        map: impl Fn(&Part<'_>) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let near = conversation.agent();
        let length = self.words.len() as u64;
        map_near(conversation, maps, &near, length, self.inode, |range| {
            map(&Part::shared(range, self.file.as_fd()))
        })
    }

    /// Writes `bytes` at `offset`, before another process maps it.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Fills `bytes` from `offset`.
    #[cfg(test)]
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        memfd::read(&self.file, offset, bytes)
    }

    /// The first offset from `offset` on that was touched; `None`: there is none. Untouched pages take no
    /// memory, and reading them would allocate it.
    pub(crate) fn touched_from(&self, offset: usize) -> Option<usize> {
        let found = rustix::fs::seek(&self.file, SeekFrom::Data(offset as u64)).ok()?;
        usize::try_from(found).ok()
    }

    /// The word of 32 bits at `offset`.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.words.len());
        // SAFETY: the offset was just checked to be inside the mapping.
        let word = unsafe { self.words.as_mut_ptr().add(offset) };
        // SAFETY: pages and the offset are aligned; the mapping lives as long as `self`, and both sides
        // access its words atomically.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// The word of 64 bits at `offset`.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.words.len());
        // SAFETY: the offset was just checked to be inside the mapping.
        let word = unsafe { self.words.as_mut_ptr().add(offset) };
        // SAFETY: as for 32 bits.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// Reads a histogram of this many `classes`, in words of 64 bits from `offset` on: lower bound, upper
    /// bound and count of each class that is not empty; `begin` gives lower bounds.
    pub(crate) fn classes(
        &self,
        offset: usize,
        classes: usize,
        begin: fn(usize) -> u64,
    ) -> Vec<(u64, u64, u64)> {
        let counted = |class: usize| {
            let word = self.word64(offset + size_of::<u64>() * class);
            let count = word.load(Ordering::Relaxed);
            (count > 0).then(|| (begin(class), begin(class + 1), count))
        };
        (0..classes).filter_map(counted).collect()
    }
}

/// Shortest time between two searches for rings in use. It doubles, up to [`MAX_SEARCH_INTERVAL`], with every
/// search that finds no new ring.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time between two searches for rings in use.
const MAX_SEARCH_INTERVAL: Duration = Duration::from_millis(8);

/// Finds the rings in one memory that were ever used, without touching the others.
///
/// A search takes at least one system call for each ring in use, some microseconds together, so searches back off
/// while they find nothing new.
#[derive(Debug)]
pub(crate) struct UsedRings {
    /// Their indices, sorted.
    known: Vec<usize>,
    /// When the next search is due; `None`: at once.
    next_search: Option<Instant>,
    search_interval: Duration,
}

impl Default for UsedRings {
    fn default() -> Self {
        Self {
            known: Vec::new(),
            next_search: None,
            search_interval: MIN_SEARCH_INTERVAL,
        }
    }
}

impl UsedRings {
    /// All known rings, each of `bytes` from `first` on. Searches for new ones first, if a search is due at
    /// `now`.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        memory: &Shared,
        first: usize,
        bytes: usize,
        count: usize,
    ) -> &[usize] {
        if self.next_search.is_none_or(|due| now >= due) {
            let known = self.known.len();
            self.search(memory, first, bytes, count);
            self.search_interval = if self.known.len() > known {
                MIN_SEARCH_INTERVAL
            } else {
                (2 * self.search_interval).min(MAX_SEARCH_INTERVAL)
            };
            self.next_search = Some(now + self.search_interval);
        }
        &self.known
    }

    /// Makes the next [`Self::look`] search, whatever the time.
    pub(crate) const fn search_at_once(&mut self) {
        self.next_search = None;
    }

    fn search(&mut self, memory: &Shared, first: usize, bytes: usize, count: usize) {
        let start = |index: usize| first + index * bytes;
        // A thread takes a ring into use by putting its number at the ring's start.
        let mut next = 0;
        while next < count
            && let Some(touched) = memory.touched_from(start(next) & !(PAGE_BYTES - 1))
        {
            let page = touched & !(PAGE_BYTES - 1);
            next = page.saturating_sub(first).div_ceil(bytes).max(next);
            if next < count && start(next) < page + PAGE_BYTES {
                if let Err(place) = self.known.binary_search(&next) {
                    self.known.insert(place, next);
                }
                next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_nobody_used_stay_untouched() {
        const BYTES: usize = 3 * PAGE_BYTES + 64;
        const FIRST: usize = 64;
        let memory = Shared::zeroed("test", FIRST + 40 * BYTES).unwrap();
        let mut used = UsedRings::default();
        let mut look = || {
            used.search_at_once();
            used.look(Instant::now(), &memory, FIRST, BYTES, 40)
                .to_vec()
        };
        assert!(look().is_empty());
        for index in [39, 0, 7, 8] {
            let owner = memory.word32(FIRST + index * BYTES);
            owner.store(1, Ordering::Relaxed);
        }
        assert_eq!(look(), [0, 7, 8, 39]);
        // Records in the middle of a ring must not be taken for the next ring.
        memory
            .word64(FIRST + 7 * BYTES + 2 * PAGE_BYTES)
            .store(1, Ordering::Relaxed);
        for index in [0, 7, 8, 39] {
            memory.word32(FIRST + index * BYTES).load(Ordering::Relaxed);
        }
        assert_eq!(look(), [0, 7, 8, 39]);
    }

    #[test]
    fn searches_for_rings_back_off_until_one_is_found() {
        const RING_BYTES: usize = PAGE_BYTES;
        let memory = Shared::zeroed("test", 8 * RING_BYTES).unwrap();
        let mut used = UsedRings::default();
        let begun = Instant::now();
        // Milliseconds after which a ring that is used from `from_ms` on is found.
        let mut found_after = |from_ms: u64, ring: usize| {
            memory.word32(ring * RING_BYTES).store(1, Ordering::Relaxed);
            let found = (0..100).find(|ms| {
                let now = begun + Duration::from_millis(from_ms + ms);
                used.look(now, &memory, 0, RING_BYTES, 8).contains(&ring)
            });
            let interval = used.search_interval;
            // No new ring for a while.
            for ms in 0..100 {
                let now = begun + Duration::from_millis(from_ms + 100 + ms);
                used.look(now, &memory, 0, RING_BYTES, 8);
            }
            (found, interval, used.search_interval)
        };
        assert_eq!(
            found_after(0, 3),
            (Some(0), MIN_SEARCH_INTERVAL, MAX_SEARCH_INTERVAL)
        );
        let (found, after, later) = found_after(1000, 5);
        assert!(found.is_some_and(|ms| ms <= 8), "{found:?}");
        assert_eq!((after, later), (MIN_SEARCH_INTERVAL, MAX_SEARCH_INTERVAL));
    }
}
