//! The run file while the program runs: what fails is told once, and the program goes on.

use membound_run::{Gap, Meta, RunData, Writer};

/// The run file, or what became of it.
#[derive(Debug)]
pub(crate) struct RunFile {
    writer: Option<Writer>,
    /// Gaps that are in it.
    gaps: usize,
    /// Why nothing is written any more.
    failure: Option<String>,
}

impl RunFile {
    /// One that can be written to.
    pub(crate) const fn new(writer: Writer) -> Self {
        Self {
            writer: Some(writer),
            gaps: 0,
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

    /// Writes the gaps that the file does not hold yet.
    fn put_gaps(&mut self, gaps: &[Gap]) {
        let new = gaps.get(self.gaps..).unwrap_or_default();
        self.put(|writer| writer.gaps(new));
        self.gaps = gaps.len();
    }

    /// The rows that the writer has kept, if it has and all could be written.
    pub(crate) fn take_rows(&mut self, meta: &Meta, gaps: &[Gap]) -> Option<RunData> {
        self.put_gaps(gaps);
        self.writer.as_mut()?.take_rows(meta)
    }

    /// Marks it complete although the program goes on: what ends it is said by [`Self::finish`].
    pub(crate) fn complete(&mut self, meta: &Meta, gaps: &[Gap]) {
        self.put_gaps(gaps);
        self.put(|writer| writer.complete(meta));
    }

    /// Completes it.
    pub(crate) fn finish(mut self, meta: &Meta, gaps: &[Gap]) -> Result<(), String> {
        self.put_gaps(gaps);
        match (self.writer, self.failure) {
            (Some(writer), None) => writer.finish(meta).map_err(|error| error.to_string()),
            (_, failure) => Err(failure.unwrap_or_default()),
        }
    }
}
