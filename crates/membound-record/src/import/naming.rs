//! Finds functions and lines of frames on its own thread, while the recording is still being read.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use super::output::Writing;
use crate::gaps::Gaps;
use crate::modules::CodeModule;
use crate::names::{self, Places};

/// Handle of the thread.
pub(super) struct Naming {
    jobs: Sender<(Arc<CodeModule>, Places)>,
    thread: JoinHandle<Gaps>,
}

impl Naming {
    /// Starts the thread, which writes locations to `file`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn new(file: Writing) -> io::Result<Self> {
        let (jobs, waiting) = channel::<(Arc<CodeModule>, Places)>();
        let find = move || {
            let mut gaps = Gaps::default();
            for (module, frames) in waiting {
                names::locate(&module, &frames, || None, &mut gaps, &mut |locations| {
                    file.put(move |writer| writer.locations(&locations));
                });
            }
            gaps
        };
        let thread = thread::Builder::new().name("names".to_owned());
        let thread = thread.spawn(find)?;
        Ok(Self { jobs, thread })
    }

    /// Queues frames of a module to be named; not for code that was made at run time.
    pub(super) fn name(&self, module: Arc<CodeModule>, frames: Places) {
        // The receiver is gone only if the thread has panicked, which `end` then propagates.
        let _ = self.jobs.send((module, frames));
    }

    /// Waits until all frames are named; returns what could not be named, as gaps.
    pub(super) fn end(self) -> Gaps {
        drop(self.jobs);
        self.thread.join().unwrap_or_else(|why| resume_unwind(why))
    }
}
