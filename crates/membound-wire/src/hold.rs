//! Trials of contention for a cache line: the agent holds threads for a moment, and measures how much
//! faster another one makes progress meanwhile ([`crate::Action::Hold`]).
//!
//! Progress is measured without any patch: a call of the thread, at the start and at the end of a span,
//! copies its registers, some of its stack, and the line. Loops have words there that grow with every
//! iteration; the launcher finds out which ones.

/// Threads in one trial.
pub const HOLD_THREADS: usize = 8;
/// Spans in one trial.
pub const HOLD_SPANS: usize = 24;
/// Longest time for which a thread is held, in nanoseconds.
pub const HOLD_LIMIT_NS: u64 = 1_000_000;
/// Value of [`Span::runs`] for a span in which no thread is held.
pub const HOLD_NONE: u32 = u32::MAX;
/// Words of the cache line: the first of [`Progress::words`].
pub const HOLD_LINE_WORDS: usize = 8;
/// General registers, which follow these.
pub const HOLD_REGISTERS: usize = 16;
/// Words from the stack pointer at the start of the trial on, which follow these.
pub const HOLD_STACK_WORDS: usize = 64;
/// Words below the frame pointer at the start of the trial, if there was one, which follow these.
pub const HOLD_FRAME_WORDS: usize = 16;
/// Number of all these words.
pub const HOLD_WORDS: usize =
    HOLD_LINE_WORDS + HOLD_REGISTERS + HOLD_STACK_WORDS + HOLD_FRAME_WORDS;

/// Parameters and results of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Trial {
    /// Threads in `tids`.
    pub threads: u32,
    /// Number of spans wanted, at most [`HOLD_SPANS`].
    pub spans: u32,
    /// Length of a span in nanoseconds, well below [`HOLD_LIMIT_NS`].
    pub span_ns: u32,
    /// Seed of the random order of spans.
    pub seed: u32,
    /// Thread numbers.
    pub tids: [u32; HOLD_THREADS],
    /// Address of the cache line.
    pub line: u64,
    /// Spans that were measured, which follow the trial; written by the agent.
    pub done: u32,
    /// Spans that were given up because a thread slept, or did not arrive in time; written by the agent.
    pub given_up: u32,
}

/// One measured span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Time stamp counter at its end.
    pub tsc: u64,
    /// Index of the only thread that was not held; [`HOLD_NONE`]: none was held.
    pub runs: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Progress by thread; all 0 for a thread that was held.
    pub threads: [Progress; HOLD_THREADS],
}

/// What a thread did in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Progress {
    /// Time between its two calls, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time between its two calls, in nanoseconds.
    pub cpu_ns: u64,
    /// Growth of each word; 0 also for a word that could not be read.
    pub words: [u64; HOLD_WORDS],
}

impl Progress {
    /// No progress.
    pub const NONE: Self = Self {
        wall_ns: 0,
        cpu_ns: 0,
        words: [0; HOLD_WORDS],
    };
}

/// Bytes of a trial with all its spans.
pub const HOLD_BYTES: usize = size_of::<Trial>() + HOLD_SPANS * size_of::<Span>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_behind_a_trial_without_gaps() {
        assert!(size_of::<Trial>().is_multiple_of(8));
        assert_eq!(size_of::<Progress>(), 16 + 8 * HOLD_WORDS);
        assert_eq!(size_of::<Span>(), 16 + HOLD_THREADS * size_of::<Progress>());
    }
}
