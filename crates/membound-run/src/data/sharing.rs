//! Evidence that threads share lines: watchpoints, and trials in which threads were held.

use crate::record::record;
use crate::{FrameId, ThreadId};

record! { "watched", Order, missing "watchpoints" =>
    /// A hit of a watchpoint.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Watched {
        /// Time of the hit.
        pub t_ns: u64,
        /// Thread that hit the watchpoint.
        pub thread: ThreadId,
        /// First watched address.
        pub address: u64,
        /// Number of watched bytes.
        pub bytes: u8,
        /// The instruction after the one that made the access.
        pub frame: FrameId,
    }
}

record! { "holds", Order, missing "holds" =>
    /// Progress of a thread in a span of a trial: either all other threads that use a line were held, or
    /// none was.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Hold {
        /// End of the span.
        pub t_ns: u64,
        /// Number of the trial that it belongs to.
        pub trial: u32,
        /// The thread.
        pub thread: ThreadId,
        /// First address of the line that the trial is about.
        pub line: u64,
        /// True if the other threads were held.
        pub alone: bool,
        /// Length of the span in nanoseconds.
        pub wall_ns: u64,
        /// CPU time of the thread in the span, in nanoseconds.
        pub cpu_ns: u64,
        /// Growth of a word that shows the thread's progress. Its unit is constant for a thread within one trial,
        /// and differs otherwise. 0: no such word is known, or the thread made no progress.
        pub progress: u64,
    }
}
