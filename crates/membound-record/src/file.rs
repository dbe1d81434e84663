//! The run file while the program runs: what fails is told once, and the program goes on.

use membound_run::{Gap, Meta, Writer};

/// The run file, or what became of it.
#[derive(Debug)]
pub(crate) struct RunFile {
    writer: Option<Writer>,
    /// Why nothing is written any more.
    failure: Option<String>,
}

impl RunFile {
    /// One that can be written to.
    pub(crate) const fn new(writer: Writer) -> Self {
        Self {
            writer: Some(writer),
            failure: None,
        }
    }

    /// Writes, unless that has failed before.
    pub(crate) fn put(&mut self, put: impl FnOnce(&mut Writer) -> Result<(), membound_run::Error>) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = put(writer)
        {
            self.failure = Some(error.to_string());
            self.writer = None;
        }
    }

    /// Completes it.
    pub(crate) fn finish(mut self, meta: &Meta, gaps: &[Gap]) -> Result<(), String> {
        self.put(|writer| writer.gaps(gaps));
        match (self.writer, self.failure) {
            (Some(writer), None) => writer.finish(meta).map_err(|error| error.to_string()),
            (_, failure) => Err(failure.unwrap_or_default()),
        }
    }
}
