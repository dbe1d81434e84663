//! The patches chosen for a file, and how often its sites are sampled.

use membound_rewrite::image::Identity;
use membound_rewrite::patch::{self, Hooks};

/// A file and the patches chosen for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Identity of the file.
    pub file: Identity,
    /// What is patched, where and how. Options for system calls and wrapped functions are ignored: the
    /// session's own plan decides these.
    pub options: patch::Options,
}

impl Choice {
    /// Removes the options that are ignored.
    pub(crate) fn plain(mut self) -> Self {
        self.options.hooks = Hooks::LeaveOut;
        self.options.wrapped.clear();
        self
    }
}

/// How a site is sampled while it is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Mean number of executions between two samples, at least 1.
    pub period: u32,
    /// Samples after which the site is only counted; 0: it is sampled once.
    pub samples: u32,
}

/// The paces of a choice's sites, by address.
#[derive(Debug)]
pub(crate) struct Paced {
    pub(crate) choice: Choice,
    pub(crate) paces: Vec<(u64, Pace)>,
}
