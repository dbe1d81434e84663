//! What a fight for a line costs: the agent keeps threads from running for a moment, and sees how
//! much faster another one gets on meanwhile ([`crate::Action::Hold`]).
//!
//! How far a thread has got is seen without any patch: a call of the thread, at the beginning and
//! at the end of a span, copies its registers, some of its stack, and the line. Loops have words there
//! that grow with every turn; which ones do is for the launcher to find out.

/// Threads in one trial.
pub const HOLD_THREADS: usize = 8;
/// Spans in one trial.
pub const HOLD_SPANS: usize = 24;
/// The longest time that a thread is kept from running, in nanoseconds.
pub const HOLD_LIMIT_NS: u64 = 1_000_000;
/// [`Span::runs`] of a span in which no thread is held.
pub const HOLD_NONE: u32 = u32::MAX;
/// Words of a line that are looked at: the first of [`Progress::words`].
pub const HOLD_LINE_WORDS: usize = 8;
/// General registers, behind these.
pub const HOLD_REGISTERS: usize = 16;
/// Words from the stack pointer on that the thread had when the trial began, behind these.
pub const HOLD_STACK_WORDS: usize = 64;
/// Words below the frame pointer that it had then, if it was one, behind these.
pub const HOLD_FRAME_WORDS: usize = 16;
/// All of them.
pub const HOLD_WORDS: usize =
    HOLD_LINE_WORDS + HOLD_REGISTERS + HOLD_STACK_WORDS + HOLD_FRAME_WORDS;

/// What is to be tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Trial {
    /// Threads in `tids`.
    pub threads: u32,
    /// Spans that are wanted, at most [`HOLD_SPANS`].
    pub spans: u32,
    /// Length of a span in nanoseconds, well below [`HOLD_LIMIT_NS`].
    pub span_ns: u32,
    /// Where the random order of spans begins.
    pub seed: u32,
    /// Thread numbers.
    pub tids: [u32; HOLD_THREADS],
    /// Address of the line.
    pub line: u64,
    /// Spans that were measured, which lie behind the trial (by the agent).
    pub done: u32,
    /// Spans that were given up: a thread slept, or did not come in time (by the agent).
    pub given_up: u32,
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Time stamp counter at its end.
    pub tsc: u64,
    /// Index of the only thread that was not held; [`HOLD_NONE`]: none was held.
    pub runs: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// By thread. Of one that was held, all is 0.
    pub threads: [Progress; HOLD_THREADS],
}

/// What a thread did in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Progress {
    /// From one look at it to the other, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time that it took.
    pub cpu_ns: u64,
    /// By how much each word has grown; 0 also where one was not to be had.
    pub words: [u64; HOLD_WORDS],
}

impl Progress {
    /// Nothing.
    pub const NONE: Self = Self {
        wall_ns: 0,
        cpu_ns: 0,
        words: [0; HOLD_WORDS],
    };
}

/// Bytes of a trial and its spans.
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
