//! The run file while the program runs: after the first failed write nothing more is written, the program
//! goes on, and [`RunFile::finish`] returns the error.

use membound_run::{Gap, Meta, RunData, Writer};

/// The run file, or why it cannot be written any more.
#[derive(Debug)]
pub(crate) struct RunFile {
    writer: Option<Writer>,
    /// Number of gaps that are in the file.
    gaps: usize,
    /// The first error.
    failure: Option<String>,
}

impl RunFile {
    /// Wraps a writer that has not failed.
    pub(crate) const fn new(writer: Writer) -> Self {
        Self {
            writer: Some(writer),
            gaps: 0,
            failure: None,
        }
    }

    /// Writes, unless an earlier write failed.
    pub(crate) fn put(&mut self, put: impl FnOnce(&mut Writer) -> Result<(), membound_run::Error>) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = put(writer)
        {
            self.failure = Some(error.to_string());
            self.writer = None;
        }
    }

    /// Writes the gaps that the file does not hold yet.
    fn put_gaps(&mut self, gaps: &[Gap]) {
        let new = gaps.get(self.gaps..).unwrap_or_default();
        self.put(|writer| writer.gaps(new));
        self.gaps = gaps.len();
    }

    /// The rows that the writer has kept, if it keeps them and no write failed.
    pub(crate) fn take_rows(&mut self, meta: &Meta, gaps: &[Gap]) -> Option<RunData> {
        self.put_gaps(gaps);
        self.writer.as_mut()?.take_rows(meta)
    }

    /// Marks the file complete although the program goes on; [`Self::finish`] adds how the program ended.
    pub(crate) fn complete(&mut self, meta: &Meta, gaps: &[Gap]) {
        self.put_gaps(gaps);
        self.put(|writer| writer.complete(meta));
    }

    /// Completes the file; returns the first error of all writes.
    pub(crate) fn finish(mut self, meta: &Meta, gaps: &[Gap]) -> Result<(), String> {
        self.put_gaps(gaps);
        match (self.writer, self.failure) {
            (Some(writer), None) => writer.finish(meta).map_err(|error| error.to_string()),
            (_, failure) => Err(failure.unwrap_or_default()),
        }
    }
}
