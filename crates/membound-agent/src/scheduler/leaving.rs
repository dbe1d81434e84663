//! What the handler that ends a slice passes on to the code on the thread's own stack.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a signal's information (`siginfo_t`) that are kept.
const INFORMATION_BYTES: usize = 128;

/// What the handler passes on to the code that runs on the thread's own stack.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Leaving {
    /// The signal mask that is restored at the end.
    pub(super) mask: AtomicU64,
    /// Address of the `ucontext` from which the scavenger resumes; 0: it stays parked, in the ring.
    pub(super) frame: AtomicU64,
    /// The scavenger's pending request, a `PendingRequest` as its word.
    pub(super) pending_request: AtomicU32,
    /// The signal that is sent to the thread again; 0: none.
    pub(super) signal: AtomicU32,
    pub(super) information: [AtomicU64; INFORMATION_BYTES / 8],
}
