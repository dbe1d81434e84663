//! Accesses that a processor sampled itself, from recordings of other profilers.

pub use membound_types::{AccessSampler, Operation, ServedBy, Snoop, Translation};

use crate::record::record;
use crate::{StackId, ThreadId};

record! { "hardware_accesses", Order, missing "hardware" =>
    /// An access that a processor sampled itself. `None` means not known.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HardwareAccess {
        /// Time of the access.
        pub t_ns: u64,
        /// Thread that accessed.
        pub thread: ThreadId,
        /// CPU on which the thread ran.
        pub cpu: Option<u16>,
        /// Call chain; its innermost frame is the access.
        pub stack: StackId,
        /// Unit of the processor that sampled the access.
        pub sampler: AccessSampler,
        /// Kind of access.
        pub operation: Option<Operation>,
        /// Where the line came from.
        pub served: Option<ServedBy>,
        /// The outermost cache known to have missed, where `served` is not known.
        pub missed: Option<ServedBy>,
        /// Result of the snoop of other caches.
        pub snoop: Option<Snoop>,
        /// Where the address translation was found.
        pub translation: Option<Translation>,
        /// Whether the access was atomic.
        pub locked: Option<bool>,
        /// Latency in core clock cycles.
        pub latency_cycles: Option<u32>,
        /// Virtual address that was accessed.
        pub address: Option<u64>,
        /// Physical address that was accessed.
        pub physical_address: Option<u64>,
        /// Number of events that the sample represents.
        pub period: u64,
    }
}
