//! What is found at an address: functions with their names, and lines.

use std::sync::Arc;

/// A function at an address: an inlined one, or the outermost one.
#[derive(Clone, Debug, Default)]
pub(crate) struct InlineFrame {
    pub(crate) name: Option<Name>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The demangled name.
    pub(crate) shown: Arc<str>,
    /// True if it includes parameters or scopes: a linkage name, or a language that has no more.
    pub(crate) full: bool,
}

/// Functions and lines at an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Located {
    /// Innermost first; empty if nothing is known.
    pub(crate) frames: Vec<InlineFrame>,
    /// The part of the outermost function that contains the address.
    pub(crate) function: Option<std::ops::Range<u64>>,
}
