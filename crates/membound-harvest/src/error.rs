//! Errors of planning and of checking a plan.

use membound_rewrite::image;

/// Why there is no plan, or why a plan is not valid for a file. Every text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not the one that was profiled.
    #[error(
        "{path} is not the file that was profiled (then {then}, now {now}): profile it again with \
         `membound profile -- {command}` and plan anew"
    )]
    Changed {
        /// Path of the file.
        path: String,
        /// Its identity when it was profiled.
        then: String,
        /// Its identity now.
        now: String,
        /// The profiled command.
        command: String,
    },
    /// The plan is not for this file.
    #[error("the plan is not for {path} ({now}): it is for {known}")]
    Unplanned {
        /// Path of the file.
        path: String,
        /// Its identity now.
        now: String,
        /// Paths of the plan's files.
        known: String,
    },
    /// A file is no binary.
    #[error("{path}: {error}")]
    Image {
        /// Path of the file.
        path: String,
        /// Why it cannot be read as a binary.
        error: image::Error,
    },
    /// The run has no timer samples, so the program's CPU time is not known.
    #[error(
        "the run has no timer samples: profile the program again, for longer or with a shorter \
         `--period`"
    )]
    NoSamples,
    /// The run was recorded by a method that does not observe accesses.
    #[error(
        "the run has no memory accesses: profile the program again with `membound profile \
         -- COMMAND`, on a machine and a file that can be read"
    )]
    NoSites,
}
