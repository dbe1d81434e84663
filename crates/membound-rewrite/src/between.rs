//! What is done between two functions of a file that is studied. To study a large file takes seconds of CPU time: who does
//! that beside a program that needs every processor gives way here.

use std::sync::OnceLock;

static WHAT: OnceLock<fn()> = OnceLock::new();

/// Has `what` be called by every thread that studies a file, between two functions. The first call of this decides.
pub fn between_functions(what: fn()) {
    let _ = WHAT.set(what);
}

/// One function is done with.
pub(crate) fn pass() {
    if let Some(what) = WHAT.get() {
        what();
    }
}
