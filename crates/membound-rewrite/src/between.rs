//! A hook that runs between two functions while a file is analysed.
//!
//! Analysing a large file takes seconds of CPU time; an analysis that runs next to a program which needs
//! every processor can pause or yield in this hook.

use std::sync::OnceLock;

static WHAT: OnceLock<fn()> = OnceLock::new();

/// Installs `what`, which every analysing thread then calls between two functions. Only the first call has an
/// effect.
pub fn between_functions(what: fn()) {
    let _ = WHAT.set(what);
}

/// Calls the installed hook; called when one function has been analysed.
pub(crate) fn pass() {
    if let Some(what) = WHAT.get() {
        what();
    }
}
