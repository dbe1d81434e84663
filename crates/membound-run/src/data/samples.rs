//! Timer samples, and the accesses that the sampled instructions waited for.

use crate::record::record;
use crate::{FrameId, ObjectId, SiteId, StackId, ThreadId};

record! { "samples", Order, missing "samples" =>
    /// A timer sample.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Sample {
        /// Time at which the timer expired.
        pub t_ns: u64,
        /// Thread that was running.
        pub thread: ThreadId,
        /// CPU that it ran on, where known.
        pub cpu: Option<u16>,
        /// Call chain. Its innermost frame is the sampled instruction; [`Attribution`] says which access that
        /// waited for.
        pub stack: StackId,
        /// CPU time that it represents, in nanoseconds.
        pub weight_ns: u64,
        /// Address accessed by the instruction that was waited for, where registers show it.
        pub address: Option<u64>,
        /// True if `address` is what was accessed; false if it is only near it (a pointer that was loaded).
        pub exact: bool,
        /// Object at `address`.
        pub object: Option<ObjectId>,
    }
}

record! { "attributions", Order, missing "samples" =>
    /// An access that a sampled instruction waited for.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Attribution {
        /// The sampled instruction.
        pub frame: FrameId,
        /// The access; `None` if it waited for no memory.
        pub site: Option<SiteId>,
        /// Share of the frame's samples that waited for this access; the shares of a frame sum to 1.
        pub share: f64,
        /// Confidence in the attribution, from 0 to 1.
        pub confidence: f64,
    }
}
