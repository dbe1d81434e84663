//! Writes the run file of an import on its own thread: storing the rows in SQLite takes nearly as long as
//! producing them.

use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use membound_run::{Gap, Meta, RunData, Writer};

use crate::file::RunFile;

/// Jobs that are queued at most, about two batches, so that a slow disk does not fill the memory.
const MAX_WAITING: usize = 16;

/// A write to be done.
type Job = Box<dyn FnOnce(&mut Writer) -> Result<(), membound_run::Error> + Send>;

/// Handle of the thread.
pub(super) struct Output {
    writing: Writing,
    thread: JoinHandle<RunFile>,
}

/// Sending end of the queue. The file can be completed when no sending end is left.
#[derive(Clone)]
pub(super) struct Writing(SyncSender<Job>);

impl Writing {
    /// Queues a write; writes are done in order.
    pub(super) fn put(
        &self,
        job: impl FnOnce(&mut Writer) -> Result<(), membound_run::Error> + Send + 'static,
    ) {
        // The receiver is gone only if the thread has panicked, which `Output::finish` then propagates.
        let _ = self.0.send(Box::new(job));
    }
}

impl Output {
    /// Starts the thread, which writes with `writer`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn new(writer: Writer) -> std::io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(MAX_WAITING);
        let write = move || {
            let mut file = RunFile::new(writer);
            for job in waiting {
                file.put(job);
            }
            file
        };
        let thread = thread::Builder::new()
            .name("run file".to_owned())
            .spawn(write)?;
        let writing = Writing(jobs);
        Ok(Self { writing, thread })
    }

    /// Another sending end of the queue.
    pub(super) fn writing(&self) -> Writing {
        self.writing.clone()
    }

    /// See [`Writing::put`].
    pub(super) fn put(
        &self,
        job: impl FnOnce(&mut Writer) -> Result<(), membound_run::Error> + Send + 'static,
    ) {
        self.writing.put(job);
    }

    /// Completes the file after all queued writes. `rows` receives the rows that the writer has kept, before
    /// that.
    pub(super) fn finish(
        self,
        meta: &Meta,
        gaps: &[Gap],
        rows: Option<Sender<RunData>>,
    ) -> Result<(), String> {
        drop(self.writing);
        let mut file = self.thread.join().unwrap_or_else(|why| resume_unwind(why));
        if let (Some(rows), Some(run)) = (rows, file.take_rows(meta, gaps)) {
            // The receiver may be gone.
            let _ = rows.send(run);
        }
        file.finish(meta, gaps)
    }
}

#[cfg(test)]
mod tests {
    use membound_run::{Frame, FrameId, RunData};

    use super::*;

    #[test]
    fn rows_are_in_the_file_in_the_order_in_which_they_were_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.run");
        let output = Output::new(Writer::create(&path, &Meta::default()).unwrap()).unwrap();
        let frames: Vec<Frame> = (0..100)
            .map(|address| Frame {
                module: None,
                address,
            })
            .collect();
        for (first, frame) in (0..).zip(frames.clone()) {
            output.put(move |writer| writer.frames(FrameId(first), &[frame]));
        }
        output.finish(&Meta::default(), &[], None).unwrap();
        assert_eq!(RunData::open(&path).unwrap().frames, frames);
    }

    #[test]
    fn what_could_not_be_written_is_told_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.run");
        let output = Output::new(Writer::create(&path, &Meta::default()).unwrap()).unwrap();
        let full = membound_run::Error::Full { path };
        output.put(move |_| Err(full));
        output.put(|_| panic!("nothing is written after an error"));
        let reason = output.finish(&Meta::default(), &[], None).unwrap_err();
        assert!(reason.contains("no room"), "{reason}");
    }
}
