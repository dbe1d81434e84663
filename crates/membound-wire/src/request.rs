//! Request latencies of a program, counted by the agent in memory that both sides have mapped.
//!
//! Requests are recognised by the program's sockets ([`crate::WrapKind::Receive`] and those after it) or by
//! marks at functions ([`Mark`]). Both sides access every word atomically.

use crate::times::REQUEST_CLASSES;

/// Meaning of a mark in the program's text; the argument of [`crate::Entry::Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mark {
    /// A function whose calls are the requests is entered.
    Enter = 1,
    /// That function is left: the stack pointer is where it was at its entry.
    Leave = 2,
    /// A request of the calling thread begins; an earlier one is dropped.
    Begin = 3,
    /// The thread's request ends, if one has begun.
    End = 4,
}

/// What launcher and agent share about requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Requests {
    /// Ticks of the time stamp counter in 1024 ns; written by the launcher.
    pub ticks: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Requests that began in one phase and ended in another. This and all following counters are written
    /// by the agent.
    pub spanning: u64,
    /// Receives on descriptors above those that the agent follows.
    pub high: u64,
    /// Marks of threads for which the agent had no entry.
    pub homeless: u64,
    /// Requests that were begun and not ended when another one began.
    pub left: u64,
    /// Requests while contexts were admitted.
    pub with: RequestTimes,
    /// Requests while contexts were not admitted.
    pub without: RequestTimes,
}

/// Histogram of request durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RequestTimes {
    /// The longest duration, in nanoseconds.
    pub longest_ns: u64,
    /// Number of requests by [`crate::request_class`].
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
