//! Why a measurement could not be made.

use membound_types::{CpuId, NodePolicy, PageKind};

/// Why a measurement could not be made. Every message names the value and, where there is
/// one, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something of the machine could not be read or set.
    #[error(transparent)]
    Platform(#[from] membound_platform::Error),
    /// A kernel could not be emitted.
    #[error(transparent)]
    Emit(#[from] membound_jit::Error),
    /// More memory is needed than is available.
    #[error(
        "{needed_bytes} bytes are needed and {available_bytes} are available (smaller sizes or fewer copies fit)"
    )]
    Memory {
        /// Bytes that the measurement needs.
        needed_bytes: u64,
        /// Bytes that the machine and this process's limits leave.
        available_bytes: u64,
    },
    /// The run was cancelled before anything was measured.
    #[error("interrupted before it was measured")]
    Interrupted,
    /// The kernel refused to map a buffer.
    #[error("cannot map {bytes} bytes of {page} pages: {errno}{remedy}")]
    Map {
        /// Size of the buffer in bytes.
        bytes: usize,
        /// Requested page kind.
        page: PageKind,
        /// The kernel's error number; it is part of the message, so it is not also the source.
        errno: rustix::io::Errno,
        /// Remedy as ` (…)`, or empty.
        remedy: &'static str,
    },
    /// The kernel gave no page of the requested kind.
    #[error("the kernel gave none of the {page} pages that were asked for{remedy}")]
    Pages {
        /// Requested page kind.
        page: PageKind,
        /// Remedy as ` (…)`, or empty.
        remedy: &'static str,
    },
    /// Pages are not on the requested nodes.
    #[error(
        "only {percent:.0} % of the pages lie where `{node}` asked for them (is that node's memory used up?)"
    )]
    Placement {
        /// The requested policy.
        node: NodePolicy,
        /// Share of the pages on the requested nodes, in percent.
        percent: f64,
    },
    /// A value that this measurement cannot use.
    #[error("{0}")]
    Invalid(String),
    /// More copies were requested than there are CPUs that may be used.
    #[error("{threads} copies were asked for and there are {cpus} CPUs to pin them to")]
    TooManyThreads {
        /// Number of requested copies.
        threads: u32,
        /// CPUs that may be used.
        cpus: usize,
    },
    /// A helper thread of the measurement could not be started, pinned or synchronised.
    #[error("a copy on CPU {cpu} failed: {reason}")]
    Copy {
        /// CPU it should have run on.
        cpu: CpuId,
        /// Why it failed, as a lower-case fragment.
        reason: String,
    },
    /// The processor has no emitted kernels here yet, or may not run them.
    #[error(
        "the kernel must be emitted instruction by instruction, which is not to be had here ({0}): either membound has no emission for this processor yet, or the system forbids executable memory"
    )]
    Architecture(&'static str),
}
