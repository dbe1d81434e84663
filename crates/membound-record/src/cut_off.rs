//! Ends a recording for good while its program goes on, as when its purpose is fulfilled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The recording goes on.
const GOES_ON: u32 = 0;
/// The recording is to end.
const WANTED: u32 = 1;
/// The recording has ended.
const DONE: u32 = 2;

/// Ends a recording from any thread. Nothing more is written to its run file, which stays incomplete.
#[derive(Clone, Debug, Default)]
pub struct CutOff(Arc<AtomicU32>);

impl CutOff {
    /// Makes the recording end soon.
    pub fn cut(&self) {
        // A recording that has ended keeps its state.
        let _ = self
            .0
            .compare_exchange(GOES_ON, WANTED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// True once it has ended: nothing is sampled any more, and the removal of its patches was requested.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == DONE
    }

    /// True if it is to end and has not ended yet.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire) == WANTED
    }

    /// Notes that it has ended.
    pub(crate) fn is_done(&self) {
        self.0.store(DONE, Ordering::Release);
    }
}
