//! Plans files while their programs run, so that no program waits long for them.
//!
//! A program waits for plans until they are of so much text, in one file or in two hundred. The others are made when it
//! has run for a while: each large file on a thread of its own, all small ones together on one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use membound_rewrite::image::{self, Identity};
use memmap2::Mmap;

use super::{LateFile, Later, Pending, Plans, Queue, Slot};
use crate::background::{self, Planning};
use crate::elf::Headers;
use crate::identities::{self, FileKey};
use crate::live::Doorbells;

/// Bytes of text above which a file is planned on a thread of its own.
const LARGE_TEXT: u64 = 2 << 20;

/// How much text files may have for which a program waits.
pub(crate) struct TextBudget {
    left: AtomicU64,
}

impl TextBudget {
    /// A budget of so many bytes.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { left: bytes.into() }
    }

    /// True if the program waits for a file with this much text, too.
    pub(crate) fn include(&self, text_bytes: u64) -> bool {
        let spend = |left: u64| left.checked_sub(text_bytes);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok()
    }
}

impl Pending {
    /// Notes the identity of the file.
    fn set(&self, identity: Option<Identity>) {
        self.later.pending().insert(self.key, identity);
        self.later.changed.notify_all();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.later.pending().remove(&self.key);
        self.later.changed.notify_all();
    }
}

impl LateFile {
    /// Makes its plan and its unwind table, which is needed at once, and stores both on disk.
    fn plan(self) {
        let Self {
            plans,
            pending,
            slot,
            path,
            headers,
            bytes,
            identity,
            planning,
        } = self;
        planning.wait();
        let compute = || identities::compute(&pending.key, &bytes, plans.cache.as_ref());
        let identity = identity.map_or_else(compute, Ok);
        pending.set(identity.as_ref().ok().cloned());
        background::run_short(|| {
            let make = || plans.module(&path, headers, bytes, identity, true);
            plans.unwind_table(slot.get_or_init(make));
        });
        pending.later.done.fetch_add(1, Ordering::Release);
    }
}

impl Later {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a small file to the queue. True if there is no thread yet that plans its files.
    fn add(&self, file: LateFile) -> bool {
        let mut queue = self.queue();
        queue.files.push_back(file);
        !std::mem::replace(&mut queue.has_thread, true)
    }

    /// The next file of the queue; `None` ends the thread that plans them.
    fn next(&self) -> Option<LateFile> {
        let mut queue = self.queue();
        let next = queue.files.pop_front();
        queue.has_thread = next.is_some();
        next
    }

    /// Plans the files in the queue until there are no more.
    fn plan_queue(&self) {
        background::sleep(background::BEGINS_AFTER);
        while let Some(file) = self.next() {
            // A file that cannot be planned stays unpatched, and the others are planned all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| file.plan()));
        }
        self.doorbells.ring();
    }
}

impl Plans {
    /// Sets that a program waits for the plans of `text_at_start` bytes of text at most, that other files are
    /// planned while their programs run if they were never planned, and that `doorbells` is rung afterwards.
    pub(crate) fn deferring(self, text_at_start: u64, doorbells: Arc<Doorbells>) -> Self {
        let later = Later {
            text_at_start,
            doorbells,
            pending: Mutex::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            done: AtomicUsize::new(0),
        };
        Self {
            later: Some(Arc::new(later)),
            ..self
        }
    }

    /// How much text a program waits for.
    pub(super) fn text_budget(&self) -> TextBudget {
        TextBudget::of(self.later.as_ref().map_or(u64::MAX, |it| it.text_at_start))
    }

    /// True if the program does not wait for this file: with the other files it has too much text, and results that
    /// it needs are not on disk. `identity` is what is known [at once](identities::at_once).
    pub(super) fn is_for_later(
        &self,
        path: &Path,
        headers: &Headers,
        identity: &Result<Option<Identity>, image::Error>,
        budget: &TextBudget,
    ) -> bool {
        if self.later.is_none() || is_c_library(path) || budget.include(headers.text_bytes()) {
            return false;
        }
        match identity {
            Ok(Some(identity)) => {
                self.around_in(identity).is_empty() && !self.keeps(path, identity)
            }
            // Its text would have to be hashed, which takes long as well.
            Ok(None) => true,
            // It will not be patched.
            Err(_) => false,
        }
    }

    /// Plans a file in the background.
    pub(super) fn plan_later(
        self: &Arc<Self>,
        (key, slot): (FileKey, Slot),
        path: PathBuf,
        headers: Headers,
        bytes: Mmap,
        identity: Option<Identity>,
    ) {
        let Some(later) = &self.later else { return };
        {
            let mut pending = later.pending();
            if pending.contains_key(&key) {
                return;
            }
            // So that threads that wait for other files need not wait for this one.
            pending.insert(key, identity.clone());
        }
        let is_small = headers.text_bytes() <= LARGE_TEXT;
        let file = LateFile {
            plans: Arc::clone(self),
            pending: Pending {
                later: Arc::clone(later),
                key,
            },
            slot,
            path,
            planning: Planning::of(headers.text_bytes()),
            headers,
            bytes,
            identity,
        };
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        let of_thread = Arc::clone(later);
        // Without a thread the files stay unpatched.
        if !is_small {
            let _ = thread.spawn(move || {
                file.plan();
                of_thread.doorbells.ring();
            });
        } else if later.add(file) && thread.spawn(move || of_thread.plan_queue()).is_err() {
            *later.queue() = Queue::default();
        }
    }

    /// True if any file was planned while its programs ran.
    pub(crate) fn has_late(&self) -> bool {
        let later = self.later.as_ref();
        later.is_some_and(|later| later.done.load(Ordering::Acquire) > 0)
    }

    /// True if `file` is being planned, or if a file of unknown identity is.
    pub(super) fn is_pending(&self, file: &Identity) -> bool {
        self.later.as_ref().is_some_and(|later| {
            let pending = later.pending();
            pending.values().any(|it| is_awaited(it.as_ref(), &[file]))
        })
    }

    /// Waits until none of `files` is being planned.
    pub(crate) fn await_late(&self, files: &[&Identity]) {
        let Some(later) = &self.later else { return };
        let mut pending = later.pending();
        while pending
            .values()
            .any(|identity| is_awaited(identity.as_ref(), files))
        {
            pending = later
                .changed
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// True if a file that is being planned may be one of `files`. A file whose identity is unknown may be any
/// of them.
fn is_awaited(identity: Option<&Identity>, files: &[&Identity]) -> bool {
    identity.is_none_or(|identity| files.contains(&identity))
}

/// True if this is the file of a C library, by its name. Without it no program can be patched, so that every program
/// waits for its plan.
fn is_c_library(path: &Path) -> bool {
    const BEGINNINGS: [&[u8]; 3] = [b"libc.", b"libpthread", b"ld-musl"];
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    BEGINNINGS.iter().any(|it| name.starts_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_waits_for_so_much_text_and_for_its_c_library() {
        let budget = TextBudget::of(100);
        let included: Vec<bool> = [60, 50, 40, 1].map(|text| budget.include(text)).to_vec();
        assert_eq!(included, [true, false, true, false]);
        let is = |path: &str| is_c_library(Path::new(path));
        assert!(is("/lib/x86_64-linux-gnu/libc.so.6") && is("/lib/ld-musl-x86_64.so.1"));
        assert!(is("/lib/libpthread-2.31.so") && !is("/usr/lib/libcurl.so.4"));
    }
}
