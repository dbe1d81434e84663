//! Functions and lines of frames, found by a thread of its own while the recording is still being read.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use super::output::Writing;
use crate::gaps::Gaps;
use crate::modules::Module;
use crate::names::{self, Places};

/// The thread, and the way to it.
pub(super) struct Naming {
    jobs: Sender<(Arc<Module>, Places)>,
    thread: JoinHandle<Gaps>,
}

impl Naming {
    /// Has locations written to `file`.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub(super) fn new(file: Writing) -> io::Result<Self> {
        let (jobs, waiting) = channel::<(Arc<Module>, Places)>();
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

    /// Has frames of a module named, which is none of code that was made at run time.
    pub(super) fn name(&self, module: Arc<Module>, frames: Places) {
        // Without a receiver the thread has panicked: so does `end` then.
        let _ = self.jobs.send((module, frames));
    }

    /// Waits until all are named; what could not be.
    pub(super) fn end(self) -> Gaps {
        drop(self.jobs);
        self.thread.join().unwrap_or_else(|why| resume_unwind(why))
    }
}
