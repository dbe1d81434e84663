//! How long requests of a program take, counted by the agent in memory that both sides have mapped.
//!
//! Requests are told by the program's sockets ([`crate::WrapKind::Receive`] and those after it) or
//! by marks at functions ([`Mark`]). Both sides use atomics on every word.

use crate::times::REQUEST_CLASSES;

/// What a mark in the program's text says; the argument of [`crate::Entry::Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mark {
    /// A function is entered whose calls are the requests.
    Enter = 1,
    /// It is left: the stack pointer is where it was when it was entered.
    Leave = 2,
    /// A request of the calling thread begins, whatever was before.
    Begin = 3,
    /// It ends, if one has begun.
    End = 4,
}

/// What launcher and agent tell each other of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Requests {
    /// Ticks of the time stamp counter in 1024 ns; the launcher's.
    pub ticks: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Requests that began in one phase and ended in another; the agent's, as is all that follows.
    pub spanning: u64,
    /// Receives on descriptors above those that the agent follows.
    pub high: u64,
    /// Marks of threads that the agent had no place for.
    pub homeless: u64,
    /// Requests that were begun and not ended when another one began.
    pub left: u64,
    /// Requests while contexts were let in.
    pub with: RequestTimes,
    /// Requests while nobody was.
    pub without: RequestTimes,
}

/// Durations of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RequestTimes {
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
    /// How many had which duration, by [`crate::request_class`].
    pub classes: [u64; REQUEST_CLASSES],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_without_holes() {
        let times = 8 + 8 * REQUEST_CLASSES;
        assert_eq!(size_of::<RequestTimes>(), times);
        assert_eq!(size_of::<Requests>(), 40 + 2 * times);
    }
}
