//! Progress of each scavenger, read from its request.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_wire::{ScavengerProcessState, ScavengerRequest};

use crate::memory::Shared;

/// Progress of a scavenger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScavengerStatus {
    /// Its state; `None` before it was started.
    pub state: Option<ScavengerProcessState>,
    /// Exit code, signal or error number, depending on the state.
    pub code: u32,
    /// Number of its home thread in the program's namespace.
    pub thread: u32,
    /// CPU time of its home thread when it ended, in nanoseconds; 0 before.
    pub cpu_ns: u64,
    /// System calls that it has made.
    pub calls: u64,
    /// Times that it yielded on its home thread.
    pub parks: u64,
    /// Time for which run queues have had it, in nanoseconds.
    pub away_ns: u64,
    /// Loads with a yield that it has executed.
    pub progress: u64,
}

pub(super) fn status(request: Option<&Shared>) -> ScavengerStatus {
    let Some(request) = request else {
        return ScavengerStatus {
            state: None,
            code: 0,
            thread: 0,
            cpu_ns: 0,
            calls: 0,
            parks: 0,
            away_ns: 0,
            progress: 0,
        };
    };
    let word = |offset: usize| request.word32(offset).load(Ordering::Acquire);
    let long = |offset: usize| request.word64(offset).load(Ordering::Relaxed);
    let state = word(offset_of!(ScavengerRequest, state));
    ScavengerStatus {
        state: ScavengerProcessState::from_number(state),
        code: word(offset_of!(ScavengerRequest, code)),
        thread: word(offset_of!(ScavengerRequest, thread)),
        cpu_ns: long(offset_of!(ScavengerRequest, cpu_ns)),
        calls: long(offset_of!(ScavengerRequest, calls)),
        parks: long(offset_of!(ScavengerRequest, parks)),
        away_ns: long(offset_of!(ScavengerRequest, away_ns)),
        progress: long(offset_of!(ScavengerRequest, progress)),
    }
}
