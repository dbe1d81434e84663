//! Where a batch shows what its jobs print, and how far it is. The caller implements it.

use std::fs::File;
use std::io;

/// One of a job's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStream {
    /// What the job wrote to stdout.
    Stdout,
    /// What the job wrote to stderr.
    Stderr,
}

/// The caller's stdout and stderr, and a line of progress on a terminal.
pub trait BatchDisplay {
    /// Whether there is a line of progress.
    fn is_shown(&self) -> bool;

    /// Updates the line: `ended` of `jobs` jobs have ended, and `message` says more.
    fn at(&self, ended: usize, jobs: usize, message: &str);

    /// Hides the line while `act` writes to the terminal.
    fn aside(&self, act: &mut dyn FnMut());

    /// Removes the line.
    fn finish(&self);

    /// Copies what a job wrote to the caller's own stream.
    ///
    /// # Errors
    /// If the stream cannot be written; [`io::ErrorKind::BrokenPipe`] if its reader is gone.
    fn print(&self, stream: JobStream, output: &mut File) -> io::Result<()>;
}

/// Hides the line while `act` writes to the terminal, and returns its result.
pub(super) fn aside<T>(display: &dyn BatchDisplay, act: impl FnOnce() -> T) -> T {
    let (mut act, mut done) = (Some(act), None);
    display.aside(&mut || done = act.take().map(|act| act()));
    done.expect("a display calls the function that is to write")
}
