//! Why unwinding ends at a frame, for the ways to find its caller.

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// This is the thread's first function.
    Outermost,
    /// Memory could not be read.
    Unread,
    /// A needed register or expression has no value.
    Unknown,
}
