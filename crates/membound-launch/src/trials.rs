//! Trials that are requested of processes, and their results.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use membound_wire::{HOLD_LINE_WORDS, HOLD_SPANS, HOLD_THREADS};
use rustc_hash::FxHashMap;

use crate::memory::Shared;
use crate::process_key::ProcessKey;

/// Parameters of a trial. Only the session's own patches should be in the text meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Number of the process.
    pub pid: u32,
    /// Numbers of the threads: at least two, at most [`HOLD_THREADS`].
    pub tids: Vec<u32>,
    /// First address of the cache line that they use.
    pub line: u64,
    /// Number of spans wanted, at most [`HOLD_SPANS`].
    pub spans: u32,
    /// Length of a span in nanoseconds, at most two thirds of a millisecond.
    pub span_ns: u32,
    /// Seed of the random order of spans.
    pub seed: u32,
}

/// Result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The measured spans, and the number of spans that were given up.
    Measured(Vec<HeldSpan>, u32),
    /// There was no trial, for this reason.
    Refused(String),
}

/// What one thread did in a span of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSpan {
    /// Time stamp counter at its end.
    pub tsc: u64,
    /// Index of the thread in [`Holding::tids`].
    pub thread: usize,
    /// True if all other threads were held.
    pub alone: bool,
    /// Length of the span, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of the thread in the span, in nanoseconds.
    pub cpu_ns: u64,
    /// Growth of the words that the thread uses: of the line, registers, of its stack. 0: no growth, or not
    /// known.
    pub words: Vec<u64>,
}

/// The trial that is requested, or was made, and the memory of processes for theirs.
#[derive(Debug, Default)]
pub(crate) struct Trials(Mutex<Trying>);

#[derive(Debug, Default)]
pub(crate) struct Trying {
    pub(crate) wanted: Option<Holding>,
    pub(crate) done: Option<Held>,
    pub(crate) memory: FxHashMap<ProcessKey, (Shared, u64)>,
}

impl Trials {
    pub(crate) fn state(&self) -> MutexGuard<'_, Trying> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result of the last trial.
    pub(crate) fn take(&self) -> Option<Held> {
        self.state().done.take()
    }
}
