//! Problems that are no job's fault: full disks, and readers that are gone.

use std::io;

use super::{Engine, Outcome};
use crate::harvest_batch::halt::Stop;
use crate::harvest_batch::joblog::Entry;

impl Engine {
    /// Accounts for the result of printing a job's output.
    pub(super) fn printed(&mut self, printed: io::Result<()>) {
        if self.batch.outputs.is_unread() {
            self.outcome.is_unread = true;
            self.batch.queue.stop(Stop::Soon);
        }
        if let Err(error) = printed {
            self.batch.queue.stop(Stop::Soon);
            if !self.outcome.is_troubled {
                self.report(format!(
                    "cannot print what a job wrote: {error}; no further jobs are started"
                ));
            }
            self.outcome.is_troubled = true;
        }
    }

    /// Accounts for output files that cannot be written: running jobs may lose some output.
    pub(super) fn cannot_write(&mut self, error: &io::Error) {
        self.batch.queue.stop(Stop::Soon);
        if !self.outcome.is_troubled {
            let place = self.batch.outputs.directory().display().to_string();
            self.report(format!(
                "cannot write to {place}: {error}; no further jobs are started, and the output of those \
                 that run may lack its end"
            ));
        }
        self.outcome.is_troubled = true;
    }

    /// Writes a line of the job log. A line that cannot be written is tried again with the next.
    pub(super) fn log(&mut self, entry: &Entry) {
        let Some((path, log)) = &mut self.batch.log else {
            return;
        };
        let was_complete = log.is_complete();
        if let Err(error) = log.add(entry)
            && was_complete
        {
            let line = format!(
                "cannot write {}: {error}; jobs go on, and it is tried again",
                path.display()
            );
            self.report(line);
        }
    }

    pub(super) fn stop_where_asked(&mut self) {
        let Outcome {
            failed, succeeded, ..
        } = self.outcome;
        match self
            .batch
            .halt
            .after(failed, succeeded, self.batch.listed.len())
        {
            None => {}
            Some(Stop::Soon) => self.batch.queue.stop(Stop::Soon),
            Some(Stop::Now) => self.end_running(),
        }
    }

    /// Prints a problem in one line, and keeps it for the document.
    pub(super) fn report(&mut self, line: String) {
        self.aside(&line);
        self.outcome.notes.push(line);
    }
}
