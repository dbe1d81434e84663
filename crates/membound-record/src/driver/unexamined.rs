//! Holds samples back whose accesses are not found yet.
//!
//! What a sample waited for is found by decoding its function. That takes a millisecond for the first sample
//! in a function, and a hundred for the first one in a large library, whose code a background thread reads
//! meanwhile. A program that uses all processors would pay for that: where nothing is patched, samples are
//! held until the recording may cost that much, or the program has ended.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::modules::CodeModule;
use crate::sampling::ResolvedSample;

/// Held samples, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Unexamined {
    /// Each with the time since when no patch had been in the text (`None`: one was).
    samples: VecDeque<(ResolvedSample, Option<u64>)>,
    /// CPU time in all samples that have arrived.
    pub(super) came_ns: u64,
    /// CPU time that examining samples took while it was limited.
    pub(super) examined_ns: u64,
}

impl Unexamined {
    pub(super) fn push(&mut self, sample: ResolvedSample, clear_since_ns: Option<u64>) {
        self.came_ns += sample.weight_ns;
        self.samples.push_back((sample, clear_since_ns));
    }

    /// Time of the first held sample.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.samples.front().map(|(sample, _)| sample.t_ns)
    }

    /// Module of the code that the first held sample was in.
    pub(super) fn first_module(&self) -> Option<&Arc<CodeModule>> {
        let (sample, _) = self.samples.front()?;
        sample.code.as_ref().map(|(module, ..)| module)
    }

    /// Removes the first held sample.
    pub(super) fn pop(&mut self) -> Option<(ResolvedSample, Option<u64>)> {
        self.samples.pop_front()
    }

    /// Number of held samples.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }
}
