//! Run queues of threads, and the contexts that have time slices on them.
//!
//! The base of `gs` is the address of a thread's [`RunQueue`]; programs of x86-64 Linux have no use for it.
//! At a yield of the primary the thread goes on as the context in `next`; at a yield of a scavenger as the
//! next context of the ring, or as the primary again. The code of yields reads and writes these fields
//! itself, without a lock. Only the queue's own thread changes its ring, between slices. A thread that
//! offers a context stores 0 to `owner`, which makes the queue's thread enter the agent at its next yield.
//!
//! A signal may interrupt the stores anywhere, so they have this order:
//! - A context with a `resume` is parked, whatever the thread does: `current` may already or still name it.
//!   A context without one runs, and its registers are in the signal's frame.
//! - `current` is set after the thread's own `stack` and `resume` are complete, and cleared by the thread
//!   itself once it goes on.
//! - `borrowed` is set before `fs` is taken, and cleared after it was given back.
//!
//! Code that jumps to a `resume` has already set the rounding mode to the `rounding` beside it.

use crate::times::TIME_CLASSES;

/// A context: where it goes on, and which one follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// Stack pointer; everything that is alive lies above it.
    pub stack: u64,
    /// Address at which it goes on, with a defined stack pointer only; 0: it runs now.
    pub resume: u64,
    /// Address of the next context in its ring; its own when it is alone.
    pub next: u64,
    /// Base of `fs` of the thread that it belongs to.
    pub fs: u64,
    /// Rounding state while it does not run: MXCSR, and above it the x87 control word.
    pub rounding: u64,
    /// Skipped slices since its last prefetch, in which it returned to the thread at once: see
    /// [`RunQueue::skips`].
    pub skipped: u32,
    /// Reserved, 0.
    pub padding: u32,
    /// Miss yields that it has executed: a measure of its progress.
    pub yields: u64,
    /// Reserved, 0.
    pub rest: u64,
}

/// Value of [`RunQueue::next`] that names no context: the agent must be asked.
pub const ASK: u64 = 1;

/// The run queue of a thread, as its yields use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RunQueue {
    /// The context that runs at the next yield of the primary; 0: none.
    pub next: u64,
    /// Base of `fs` of the thread with this run queue, by which another thread recognises an inherited one;
    /// 0: the agent must be asked first.
    pub owner: u64,
    /// The context that runs; 0: the thread itself runs.
    pub current: u64,
    /// The first context of the present slice: the slice ends before it would run again.
    pub first: u64,
    /// Stack pointer of the thread while a context runs.
    pub stack: u64,
    /// Address at which the thread goes on.
    pub resume: u64,
    /// The context whose base is in `fs`; 0: the thread's own base is.
    pub borrowed: u64,
    /// Time until the primary must go on, in [`CREDIT_UNITS_PER_NS`]; scavengers subtract the time that
    /// they are estimated to have used.
    pub credit: i32,
    /// Value of `credit` at the start of a slice.
    pub span: i32,
    /// Whether system calls are dispatched to the agent (`PR_SET_SYSCALL_USER_DISPATCH`): 0 while the
    /// thread itself runs, 1 while a context does.
    pub selector: u8,
    /// 1: the context runs alone on its home thread. At its miss yields it adds to [`Self::turns`] and goes
    /// on.
    pub alone: u8,
    /// Reserved, 0.
    pub padding: [u8; 2],
    /// Number of skipped slices, in which a scavenger that left at a load returns to the thread at once, so
    /// that its own miss is served before it goes on. The first context of a slice then sets
    /// [`Self::begun`] to 0.
    pub skips: u32,
    /// Slices so far; of a home thread, loads at which the scavenger went on (see [`Self::alone`]).
    pub turns: u64,
    /// Base of `fs` of the thread with this run queue, at all times (`owner` may be 0).
    pub base: u64,
    /// Address of this run queue.
    pub itself: u64,
    /// Where the thread goes on after a timed slice.
    pub timed_resume: u64,
    /// Time stamp at the start of that slice; 0: it was skipped.
    pub begun: u64,
    /// Rounding state of the thread while a context runs: MXCSR, and above it the x87 control word.
    pub rounding: u64,
    /// Bits of [`Self::rounding`] that thread and contexts each keep for themselves; the other bits may
    /// leak from one to the other. [`EVERY_BIT`] or [`NO_EXCEPTIONS`].
    pub own_bits: u64,
}

/// Offset of the recent-miss filter behind the start of a [`RunQueue`]: [`RECENT_LINES`] entries of two bytes
/// each, for lines that the thread yielded for lately.
///
/// A line is its address divided by [`LINE_BYTES`], in 32 bits. The upper bits of its product with
/// [`RECENT_FACTOR`] select its entry, which holds its lower half until another line takes the entry.
pub const RECENT_OFFSET: usize = 4096;
/// Entries of the recent-miss filter: together their lines have 64 KiB. Of as many lines as a second-level
/// cache holds, scavengers evict many before they are read again: 16 times as many entries cost a store
/// three tenths of what was harvested of its stall, and did nothing for its latency.
pub const RECENT_LINES: usize = 1 << 10;
/// Multiplier that spreads neighbouring lines: two to the 32nd divided by the golden ratio.
pub const RECENT_FACTOR: u32 = 0x9e37_79b1;
/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Every bit of MXCSR and of the x87 control word.
pub const EVERY_BIT: u64 = 0xffff_ffff_ffff;
/// All of them except the bits of MXCSR that record floating-point exceptions. Loading MXCSR and then
/// storing it waits for everything before, misses too, so that a context switch which has to change it
/// takes the overlap of work with misses from a program.
pub const NO_EXCEPTIONS: u64 = EVERY_BIT & !0x3f;

/// Units of [`RunQueue::credit`] in a nanosecond.
pub const CREDIT_UNITS_PER_NS: i32 = 16;

/// Idle policy: what scavengers do that no run queue has room for, or whose queue's thread waits or has
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Idle {
    /// They run on their home threads, in idle time.
    Harvest = 0,
    /// They wait for another run queue.
    Steal = 1,
    /// They stay in their run queue until its thread goes on. If the thread has ended, they wait for
    /// another run queue.
    Stop = 2,
}

/// The shared control page: settings of the launcher and counters of the agent for all run queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ControlPage {
    /// Credit at the start of a slice; written by the launcher.
    pub span: i32,
    /// Most contexts of a run queue; written by the launcher.
    pub per_thread: u32,
    /// An [`Idle`] as its number; written by the launcher.
    pub idle: u32,
    /// Share of the time, in units of 1 / [`Self::SHARE_WHOLE`], in which contexts have slices; in the rest
    /// yields are counted and no context runs. Written by the launcher.
    pub share: u32,
    /// Ticks of the time stamp counter in 1024 ns; written by the launcher.
    pub ticks: u32,
    /// 1: when the program ends, its process stays until all scavengers have ended; written by the
    /// launcher.
    pub finish: u32,
    /// Length of a phase in which contexts are admitted, or not, in units of 2 ms; 0 means 1. Requests that
    /// last longer than a phase are counted in none. Written by the launcher.
    pub phase_looks: u32,
    /// 1: the program or a scavenger reads floating-point exception flags, so that each keeps its own (see
    /// [`RunQueue::own_bits`]); written by the launcher.
    pub own_exceptions: u32,
    /// Value for [`RunQueue::skips`]; written by the launcher.
    pub skips: u32,
    /// 1: memory that scavengers map may use huge pages; written by the launcher.
    pub huge_pages: u32,
    /// 1: there is no primary: the process exists only for its scavengers, which outside of run queues run
    /// like any other program. Written by the launcher.
    pub peers: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Bytes of writable memory that all scavengers together may map; 0: no limit. Written by the launcher.
    pub memory: u64,
    /// Each scavenger's own share of half of that, whatever the others use. Written by the launcher.
    pub memory_each: u64,
    /// Threads that got a run queue. This and all following counters are written by the agent.
    pub adopted: u64,
    /// Slices that began while contexts were admitted.
    pub turns_with: u64,
    /// CPU time of the threads in those phases, in nanoseconds.
    pub cpu_with_ns: u64,
    /// Slices (yields) while contexts were not admitted.
    pub turns_without: u64,
    /// CPU time of the threads in those phases, in nanoseconds.
    pub cpu_without_ns: u64,
    /// Contexts that were taken from a waiting thread.
    pub steals: u64,
    /// Contexts that were taken from a thread that had ended.
    pub reclaimed: u64,
    /// Contexts that went home for a system call.
    pub calls: u64,
    /// Contexts that a signal to the program sent home.
    pub interrupted: u64,
    /// Contexts that were sent home because they did not come back to a yield.
    pub overdue: u64,
    /// Slices in short waits of the program's threads, which are in no other count.
    pub wait_turns: u64,
    /// Duration of these waits, in nanoseconds.
    pub waited_ns: u64,
    /// Slices that were to be timed and were skipped.
    pub skipped: u64,
    /// Slices that were timed.
    pub timed: u64,
    /// Sum of their durations, in nanoseconds.
    pub timed_ns: u64,
    /// The longest of them, in nanoseconds.
    pub longest_ns: u64,
    /// Histogram of their durations, by [`crate::time_class`].
    pub times: [u64; TIME_CLASSES],
}

impl ControlPage {
    /// Value of [`Self::share`] that stands for all of the time.
    pub const SHARE_WHOLE: u32 = 1024;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_yield_touches_lies_in_two_lines() {
        assert_eq!(size_of::<Context>(), 64);
        assert_eq!(size_of::<RunQueue>(), 128);
    }
}
