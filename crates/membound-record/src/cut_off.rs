//! Ends a recording for good while its program goes on: what it was for is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A recording that goes on.
const GOES_ON: u32 = 0;
/// It is to end.
const WANTED: u32 = 1;
/// It has.
const DONE: u32 = 2;

/// Ends a recording from any thread. Nothing more is written to its run file, which stays incomplete.
#[derive(Clone, Debug, Default)]
pub struct CutOff(Arc<AtomicU32>);

impl CutOff {
    /// Has the recording end soon.
    pub fn cut(&self) {
        // One that has ended stays so.
        let _ = self
            .0
            .compare_exchange(GOES_ON, WANTED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether it has ended: nothing is sampled any more, and its patches have been asked out of the text.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == DONE
    }

    /// Whether it is to end.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire) == WANTED
    }

    /// Says that it has ended.
    pub(crate) fn is_done(&self) {
        self.0.store(DONE, Ordering::Release);
    }
}
