//! What is patched in a file, and how often its sites are sampled.

use membound_rewrite::image::Identity;
use membound_rewrite::patch::{self, Hooks};

/// A file and what is to be patched in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The file.
    pub file: Identity,
    /// What, where and how. System calls and wrapped functions are not its business: whatever
    /// is said of them here, they are the session's own plan's.
    pub options: patch::Options,
}

impl Choice {
    /// Without what is not its business.
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
    /// Samples after which it is only counted; 0: it is sampled once.
    pub samples: u32,
}
