//! Why there is no plan, or why it does not hold.

use membound_rewrite::image;

/// Why there is no plan, or why it does not hold. Every text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not the one that was profiled.
    #[error(
        "{path} is not the file that was profiled (then {then}, now {now}): profile it again with \
         `membound profile -- {command}` and plan anew"
    )]
    Changed {
        /// The file.
        path: String,
        /// What it was.
        then: String,
        /// What it is.
        now: String,
        /// What was profiled.
        command: String,
    },
    /// A file that the plan says nothing of.
    #[error("the plan is not for {path} ({now}): it is for {known}")]
    Unplanned {
        /// The file.
        path: String,
        /// What it is.
        now: String,
        /// Files that the plan is for.
        known: String,
    },
    /// A file that is no binary.
    #[error("{path}: {error}")]
    Image {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: image::Error,
    },
    /// The run has no samples, so that nothing is known of the program's time.
    #[error(
        "the run has no timer samples: profile the program again, for longer or with a shorter \
         `--period`"
    )]
    NoSamples,
    /// The run was not made with a launch that could look at accesses.
    #[error(
        "the run tells of no access to memory: profile the program again with `membound profile \
         -- COMMAND`, on a machine and a file that can be read"
    )]
    NoSites,
}
