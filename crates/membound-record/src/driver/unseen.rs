//! Samples whose accesses are not found yet.
//!
//! What a sample waited for is found by decoding the function that it lies in. That takes a millisecond for the first
//! one in a function, and a hundred for the first one in a large library. A program that has all processors would pay
//! for it: where nothing is patched, samples wait until the recording may cost that much, or the program has ended.

use std::collections::VecDeque;

use crate::sampling::Taken;

/// Samples that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Each with the moment since when no patch stood in the text, where none did.
    samples: VecDeque<(Taken, Option<u64>)>,
    /// CPU time in all samples that came.
    pub(super) came_ns: u64,
}

impl Unseen {
    pub(super) fn push(&mut self, taken: Taken, clear_since_ns: Option<u64>) {
        self.came_ns += taken.weight_ns;
        self.samples.push_back((taken, clear_since_ns));
    }

    /// When the first was taken that waits.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.samples.front().map(|(taken, _)| taken.t_ns)
    }

    /// Takes out the first.
    pub(super) fn pop(&mut self) -> Option<(Taken, Option<u64>)> {
        self.samples.pop_front()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }
}
