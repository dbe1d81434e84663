//! Wakes the control threads of programs whose patches are to change.
//!
//! There is one doorbell for all of them: a counter in a page that every live process maps.
//! A control thread that wakes asks what is wanted; one that comes late finds the newest.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use membound_wire::Protection;
use memmap2::MmapRaw;
use rustix::thread::futex;

use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::memory;
use crate::room;

const PAGE_BYTES: u64 = 4096;

/// The doorbell, made when the first process hangs it.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(Mutex<Option<Bell>>);

#[derive(Debug)]
struct Bell {
    file: File,
    page: MmapRaw,
}

impl Bell {
    fn make() -> io::Result<Self> {
        let file = memory::zeroed("membound-doorbell", PAGE_BYTES)?;
        let page = MmapRaw::map_raw(&file)?;
        Ok(Self { file, page })
    }

    fn counter(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self` lives, its start is aligned, and
        // everybody who maps it uses these four bytes as an atomic counter only.
        unsafe { AtomicU32::from_ptr(self.page.as_mut_ptr().cast()) }
    }
}

impl Doorbells {
    /// Maps the doorbell into a process; its address there.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<u64, Failure> {
        let file = {
            let mut bell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if bell.is_none() {
                *bell = Some(Bell::make()?);
            }
            let bell = bell.as_ref().ok_or(io::ErrorKind::NotFound);
            bell.and_then(|bell| bell.file.try_clone().map_err(|error| error.kind()))
                .map_err(io::Error::from)?
        };
        map_near(
            conversation,
            maps,
            &conversation.agent(),
            PAGE_BYTES,
            |range| {
                let shared = Protection::READ_WRITE | Protection::SHARED;
                conversation.map(range, file.as_fd(), 0, shared)
            },
        )
    }

    /// Wakes everybody.
    pub(crate) fn ring(&self) {
        let bell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = bell.as_ref() {
            let counter = bell.counter();
            counter.fetch_add(1, Ordering::Release);
            // Nobody may be waiting.
            let _ = futex::wake(counter, futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
    }
}

/// Finds room for `length` bytes near `near` and maps them there with `map`, as often as
/// another thread of the program is faster.
pub(crate) fn map_near(
    conversation: &Conversation,
    maps: &mut Vec<Mapping>,
    near: &std::ops::Range<u64>,
    length: u64,
    map: impl Fn(&std::ops::Range<u64>) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    const ATTEMPTS: usize = 8;
    let heap = maps::heap_start(conversation.pid);
    let mut last = Failure::Refused {
        what: "finding room",
        errno: rustix::io::Errno::NOMEM,
        refusal: membound_wire::Refusal::None,
    };
    for _ in 0..ATTEMPTS {
        let Some(at) = room::find(maps, heap, &[], near, length) else {
            break;
        };
        let mapped = map(&(at..at + length));
        *maps = maps::of(conversation.pid)?;
        match mapped {
            Ok(()) => return Ok(at),
            Err(failure) if failure.occupied() => last = failure,
            Err(failure) => return Err(failure),
        }
    }
    Err(last)
}
