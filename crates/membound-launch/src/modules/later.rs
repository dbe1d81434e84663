//! Plans large files while their programs run, so that no program waits for them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use membound_rewrite::image::{Identity, Image};
use memmap2::Mmap;

use super::{FileKey, Later, Plans, Slot};
use crate::background::{self, Planning};
use crate::elf::Headers;
use crate::live::Doorbells;

/// When dropped, removes a file from those being planned, however planning ended.
struct Ended<'a> {
    later: &'a Later,
    key: FileKey,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.later.pending().remove(&self.key);
        self.later.changed.notify_all();
        self.later.doorbells.ring();
    }
}

impl Plans {
    /// Sets that files with more text than this, if they were never planned, are planned while their
    /// programs run, and that `doorbells` is rung afterwards.
    pub(crate) fn deferring(self, large_text_bytes: u64, doorbells: Arc<Doorbells>) -> Self {
        let later = Later {
            large_text_bytes,
            doorbells,
            pending: Mutex::default(),
            changed: Condvar::new(),
            done: AtomicUsize::new(0),
        };
        Self {
            later: Some(later),
            ..self
        }
    }

    /// True if programs would wait too long for the file: it is large, and results that it needs are not on
    /// disk.
    pub(super) fn is_for_later(&self, path: &Path, headers: &Headers, bytes: &[u8]) -> bool {
        let Some(later) = &self.later else {
            return false;
        };
        if headers.text_bytes() <= later.large_text_bytes {
            return false;
        }
        match Image::build_id(bytes) {
            Ok(Some(identity)) => {
                self.around_in(&identity).is_empty() && !self.keeps(path, &identity)
            }
            // Without a build id its text would have to be hashed, which takes long as well.
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
            pending.insert(key, Image::build_id(&bytes).ok().flatten());
        }
        let plans = Arc::clone(self);
        let planning = Planning::of(headers.text_bytes());
        let work = move || {
            planning.wait();
            let Some(later) = &plans.later else { return };
            let _ended = Ended { later, key };
            let identity = Image::identify(&bytes);
            later.pending().insert(key, identity.as_ref().ok().cloned());
            later.changed.notify_all();
            background::run_short(|| {
                let module =
                    slot.get_or_init(|| plans.module(&path, headers, bytes, identity, true));
                // It is needed at once, and is stored on disk.
                plans.unwind_table(module);
            });
            later.done.fetch_add(1, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        if let (Err(_), Some(later)) = (thread.spawn(work), &self.later) {
            // Without a thread the file stays unpatched.
            later.pending().remove(&key);
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
