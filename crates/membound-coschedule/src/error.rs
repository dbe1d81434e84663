//! Errors of running programs together.

use std::io;

use membound_launch::CannotRun;

/// An error of the caller's own, from a function that it handed in.
pub type CallerError = Box<dyn std::error::Error + Send + Sync>;

/// Why programs were not run, or not to the end. [`one_line`] shows an error with its causes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request makes no sense on any machine.
    #[error("{0}")]
    Usage(String),
    /// The request cannot be carried out here.
    #[error("{0}")]
    Refused(String),
    /// The command cannot be started.
    #[error(transparent)]
    CannotRun(CannotRun),
    /// The program to explore fails without scavengers.
    #[error("{what}: nothing was explored")]
    FailsAlone {
        /// How it fails.
        what: String,
        /// Its exit code, if that can be passed on.
        code: Option<u8>,
    },
    /// The user ended an exploration before there was a result.
    #[error("interrupted: nothing was measured")]
    Interrupted,
    /// An error at the place that is described.
    #[error("{place}")]
    At {
        /// What was done to which path or process.
        place: String,
        /// The error.
        source: Box<Error>,
    },
    /// A file could not be read or written, or a process not be started.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A document is no JSON of its kind.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The machine could not be read or changed, or a file not be written.
    #[error(transparent)]
    Platform(#[from] membound_platform::Error),
    /// A file is no binary that can be patched.
    #[error(transparent)]
    Image(#[from] membound_rewrite::image::Error),
    /// A run file cannot be read.
    #[error(transparent)]
    Run(#[from] membound_run::Error),
    /// There is no plan, or a plan is not valid for a file.
    #[error(transparent)]
    Plan(#[from] membound_harvest::Error),
    /// A session cannot be started.
    #[error(transparent)]
    Launch(membound_launch::Error),
    /// A program cannot be recorded.
    #[error(transparent)]
    Record(membound_record::Error),
    /// A function that the caller handed in failed.
    #[error(transparent)]
    Caller(#[from] CallerError),
}

impl From<membound_launch::Error> for Error {
    fn from(error: membound_launch::Error) -> Self {
        match error {
            membound_launch::Error::CannotRun(error) => Self::CannotRun(error),
            other => Self::Launch(other),
        }
    }
}

impl From<membound_record::Error> for Error {
    fn from(error: membound_record::Error) -> Self {
        match error {
            membound_record::Error::Launch(error) => error.into(),
            other => Self::Record(other),
        }
    }
}

/// Says at which place an error occurred.
pub(crate) trait At<T> {
    /// Adds the text of `place`, a lower-case fragment with path and value.
    fn at(self, place: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<Error>> At<T> for Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::At {
            place: place(),
            source: Box::new(error.into()),
        })
    }
}

/// An error and its causes in one line, separated by colons.
#[must_use]
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_after_the_places_where_it_occurred() {
        let failed: Result<(), _> = Err(io::Error::other("no\nroom"));
        let failed = failed.at(|| "cannot write a".to_owned());
        let failed = failed.at(|| "the list".to_owned()).unwrap_err();
        assert_eq!(one_line(&failed), "the list: cannot write a: no room");
        let usage = Error::Usage("name one".to_owned());
        assert_eq!(one_line(&usage), "name one");
    }
}
