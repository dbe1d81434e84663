//! Plans files while their programs run, so that no program waits long for them.
//!
//! A program waits for the plans of so much text, whether of one file or of two hundred. The others are made when it
//! has run for a while: each large file on a thread of its own, all small ones together on one thread.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use membound_rewrite::image::Identity;
use memmap2::Mmap;

use super::{LateFile, Later, Plans, Queue, Slot};
use crate::background::{self, Planning};
use crate::elf::Headers;
use crate::identities::{self, FileKey};
use crate::live::Doorbells;

/// Bytes of text above which a file is planned on a thread of its own.
const LARGE_TEXT: u64 = 2 << 20;
/// Run time of a program after which its small files are planned. Many programs end before.
const SMALL_FILES_AFTER: Duration = Duration::from_millis(50);

/// How much planning a program that starts or loads files waits for.
pub(super) struct WaitsFor {
    text_left: AtomicU64,
}

impl WaitsFor {
    /// True if the program waits for the plan of this much text, too.
    fn include(&self, text_bytes: u64) -> bool {
        let spend = |left: u64| left.checked_sub(text_bytes);
        self.text_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok()
    }
}

impl Drop for LateFile {
    fn drop(&mut self) {
        if let Some(later) = &self.plans.later {
            later.pending().remove(&self.key);
            later.changed.notify_all();
        }
    }
}

impl LateFile {
    /// Makes its plan and its unwind table, which is needed at once, and stores both on disk.
    fn plan(mut self) {
        self.planning.wait();
        let (Some(later), Some(bytes)) = (&self.plans.later, self.bytes.take()) else {
            return;
        };
        let identity = identities::of(&self.key, &bytes, self.plans.cache.as_ref());
        let known = identity.as_ref().ok().cloned();
        later.pending().insert(self.key, known);
        later.changed.notify_all();
        background::run_short(|| {
            let make = || {
                let headers = self.headers.clone();
                self.plans
                    .module(&self.path, headers, bytes, identity, true)
            };
            self.plans.unwind_table(self.slot.get_or_init(make));
        });
        later.done.fetch_add(1, Ordering::Release);
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

    /// Plans the files in the queue until there are no more.
    fn plan_queue(&self) {
        background::sleep(SMALL_FILES_AFTER);
        loop {
            let next = {
                let mut queue = self.queue();
                let next = queue.files.pop_front();
                queue.has_thread = next.is_some();
                next
            };
            match next {
                Some(file) => file.plan(),
                None => break,
            }
        }
        self.doorbells.ring();
    }

    /// Gives up what is in the queue: no thread could be started.
    fn give_up_queue(&self) {
        let queue = std::mem::take(&mut *self.queue());
        drop(queue);
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
            later: Some(later),
            ..self
        }
    }

    /// How much planning a program waits for.
    pub(super) fn waits_for(&self) -> WaitsFor {
        let text_left = self.later.as_ref().map_or(u64::MAX, |it| it.text_at_start);
        WaitsFor {
            text_left: text_left.into(),
        }
    }

    /// True if the program does not wait for this file: with the other files it has too much text, and results that
    /// it needs are not on disk.
    pub(super) fn is_for_later(
        &self,
        (path, key): (&Path, &FileKey),
        headers: &Headers,
        bytes: &[u8],
        waits: &WaitsFor,
    ) -> bool {
        if self.later.is_none() || is_c_library(path) || waits.include(headers.text_bytes()) {
            return false;
        }
        match identities::at_once(key, bytes, self.cache.as_ref()) {
            Ok(Some(identity)) => {
                self.around_in(&identity).is_empty() && !self.keeps(path, &identity)
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
        key: FileKey,
        slot: Slot,
        path: PathBuf,
        headers: Headers,
        bytes: Mmap,
    ) {
        let Some(later) = &self.later else { return };
        {
            let mut pending = later.pending();
            if pending.contains_key(&key) {
                return;
            }
            // So that threads that wait for other files need not wait for this one.
            let known = identities::at_once(&key, &bytes, self.cache.as_ref());
            pending.insert(key, known.ok().flatten());
        }
        let is_small = headers.text_bytes() <= LARGE_TEXT;
        let file = LateFile {
            plans: Arc::clone(self),
            key,
            slot,
            path,
            planning: Planning::of(headers.text_bytes()),
            headers,
            bytes: Some(bytes),
        };
        let plans = Arc::clone(self);
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        // Without a thread the files stay unpatched.
        if !is_small {
            let _ = thread.spawn(move || {
                file.plan();
                plans.later.iter().for_each(|it| it.doorbells.ring());
            });
        } else if later.add(file)
            && thread
                .spawn(move || plans.later.iter().for_each(Later::plan_queue))
                .is_err()
        {
            later.give_up_queue();
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
        let waits = WaitsFor {
            text_left: 100.into(),
        };
        let included: Vec<bool> = [60, 50, 40, 1].map(|text| waits.include(text)).to_vec();
        assert_eq!(included, [true, false, true, false]);
        let is = |path: &str| is_c_library(Path::new(path));
        assert!(is("/lib/x86_64-linux-gnu/libc.so.6") && is("/lib/ld-musl-x86_64.so.1"));
        assert!(is("/lib/libpthread-2.31.so") && !is("/usr/lib/libcurl.so.4"));
    }
}
