//! Whether a part of `measure` is shown in brief or in full, for the files that write parts.

/// Extent in which a part is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// A few lines, as part of the whole profile.
    Brief,
    /// Everything that fits a terminal.
    Full,
}
