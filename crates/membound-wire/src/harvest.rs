//! What yields work on: a thread's lane, and the contexts that take turns on it.
//!
//! The base of `gs` is a thread's [`Lane`]; programs of x86-64 Linux have no use for it. At a
//! yield of the primary the thread goes on as the context that `next` names, and at a yield of
//! a scavenger as the next one of the ring or as the primary again. The code of yields reads and
//! writes these fields itself, with no lock. A ring is changed by its own thread alone, between
//! turns; who has a context to give puts it into the lane's inbox and sets `owner` to 0, which
//! makes the thread come to the agent at its next yield.
//!
//! The order of stores is one that a signal may fall into anywhere:
//! - A context with a `resume` is parked, whatever the thread does: entered or left, `current` may
//!   name it already or still. One without runs, and its registers are in the signal's frame.
//! - `current` is set after the thread's own place is complete, and cleared by the thread itself
//!   where it goes on.
//! - `borrowed` is set before `fs` is taken, and cleared after it was given back.
//!
//! Whoever goes on at a `resume` rounds already as the `rounding` beside it says.

use crate::times::TIME_CLASSES;

/// Where a context goes on, and which comes after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// Stack pointer, everything that was alive lying above it.
    pub stack: u64,
    /// Address at which it goes on, where only the stack pointer has a meaning; 0: it runs.
    pub resume: u64,
    /// The context after it in its ring; itself when it is alone.
    pub next: u64,
    /// Base of `fs` of the thread that it belongs to.
    pub fs: u64,
    /// How it rounds while it is away: MXCSR, and above it the x87 control word.
    pub rounding: u64,
    /// Turns since it last asked for something in which it gave way to the thread at once: see [`Lane::skips`].
    pub skipped: u32,
    /// Reserved, 0.
    pub padding: u32,
    /// Loads at which it left for others: how far its work has come.
    pub yields: u64,
    /// Reserved, 0.
    pub rest: u64,
}

/// Stands for a [`Lane::next`] of which nothing is known but that the agent is to be asked.
pub const ASK: u64 = 1;

/// What a thread's yields work on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Lane {
    /// The context that runs at the next yield of the primary; 0: none.
    pub next: u64,
    /// Base of `fs` of the thread whose lane this is. Another thread finds a lane that it has
    /// inherited by this; 0: the agent is to be asked before anything is done.
    pub owner: u64,
    /// The context that runs; 0: the thread itself.
    pub current: u64,
    /// The context that the present turn began with: the turn ends before it would come again.
    pub first: u64,
    /// Stack pointer of the thread while a context runs.
    pub stack: u64,
    /// Where it goes on.
    pub resume: u64,
    /// The context whose base `fs` has; 0: the thread's own.
    pub borrowed: u64,
    /// Time until the primary is to go on, in [`CREDIT_UNITS_PER_NS`]; scavengers count it down by
    /// what they are taken to have used.
    pub credit: i32,
    /// What it is set to when a turn begins.
    pub span: i32,
    /// Whether system calls are handed to the agent (`PR_SET_SYSCALL_USER_DISPATCH`): 0 while
    /// the thread itself runs, 1 while a context does.
    pub selector: u8,
    /// 1: the context that runs has its own thread, and nobody is to run instead: at its loads it adds to
    /// [`Self::turns`] and goes on.
    pub alone: u8,
    /// Reserved, 0.
    pub padding: [u8; 2],
    /// Turns in which a scavenger that left at a load gives way to the thread at once, so that what it
    /// has asked for is there when it goes on. The one that a turn began with sets [`Self::begun`] to 0.
    pub skips: u32,
    /// Turns that were begun; of a guest's own thread, loads at which it went on (see [`Self::alone`]).
    pub turns: u64,
    /// Base of `fs` of the thread whose lane this is, always.
    pub base: u64,
    /// Address of this lane.
    pub itself: u64,
    /// Where a thread goes on whose turn is timed.
    pub timed_resume: u64,
    /// Time stamp at which that turn began; 0: it was skipped.
    pub begun: u64,
    /// How the thread rounds while a context runs: MXCSR, and above it the x87 control word.
    pub rounding: u64,
    /// Bits of [`Self::rounding`] that both sides have as each left them; of others, one side may find what
    /// the other has set. One of [`EVERY_BIT`] and [`NO_EXCEPTIONS`].
    pub own_bits: u64,
}

/// Where the lines begin that a lane's thread yielded for lately, behind the beginning of its [`Lane`]:
/// [`RECENT_LINES`] of two bytes each.
///
/// A line is its address divided by [`LINE_BYTES`], of which 32 bits are looked at. It has the place that
/// the upper bits of its product with [`RECENT_FACTOR`] name, for as long as no other one takes it, and its
/// lower half lies there.
pub const RECENT_OFFSET: usize = 4096;
/// Lines that are kept in mind: together they have 64 KiB. Of as many as a second cache holds, a scavenger
/// has driven out many by the time that they are read again: 16 times as many cost a store three tenths of
/// what was harvested of its stall, and did nothing for its latency.
pub const RECENT_LINES: usize = 1 << 10;
/// Spreads neighbours: two to the 32nd divided by the golden ratio.
pub const RECENT_FACTOR: u32 = 0x9e37_79b1;
/// Bytes of a line.
pub const LINE_BYTES: usize = 64;

/// Every bit of MXCSR and of the x87 control word.
pub const EVERY_BIT: u64 = 0xffff_ffff_ffff;
/// All of them but the bits of MXCSR that say which exceptions there were since somebody cleared them. To load
/// MXCSR and then store it lets everything before come to an end, misses too, so that a switch which has
/// to change it takes from a program what it would have done beside its misses.
pub const NO_EXCEPTIONS: u64 = EVERY_BIT & !0x3f;

/// Units of [`Lane::credit`] in a nanosecond.
pub const CREDIT_UNITS_PER_NS: i32 = 16;

/// What becomes of scavengers that no lane has room for, or whose lane's thread waits or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Idle {
    /// They run on their own threads, in time that nobody else wants.
    Harvest = 0,
    /// They wait for another lane.
    Steal = 1,
    /// They stay where they are until their lane's thread goes on; those of one that ended wait
    /// for another lane.
    Stop = 2,
}

/// What launcher and agent tell each other about all lanes, in memory that both have mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Board {
    /// Credit with which turns begin; the launcher's.
    pub span: i32,
    /// Most contexts of a lane; the launcher's.
    pub per_thread: u32,
    /// An [`Idle`] as its number; the launcher's.
    pub idle: u32,
    /// Of 1024 parts of the time, those in which contexts take turns; in the others yields
    /// are counted and nobody runs. The launcher's.
    pub share: u32,
    /// Ticks of the time stamp counter in 1024 ns; the launcher's.
    pub ticks: u32,
    /// 1: when the program ends its process, that stays until all guests have ended; the launcher's.
    pub finish: u32,
    /// Spans of 2 ms for which it is the same: contexts are let in or nobody is; 0 as 1. What
    /// lasts for longer than such a phase is seen in none. The launcher's.
    pub phase_looks: u32,
    /// 1: somebody reads which floating-point exceptions there were, so that all have their own (see
    /// [`Lane::own_bits`]); the launcher's.
    pub own_exceptions: u32,
    /// What [`Lane::skips`] is to be; the launcher's.
    pub skips: u32,
    /// 1: what guests map may have huge pages; the launcher's.
    pub huge_pages: u32,
    /// 1: the process is there for its guests alone, who run as any other program where they have no
    /// lane; the launcher's.
    pub peers: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Bytes that all guests together may have mapped to be written; 0: any number. The launcher's.
    pub memory: u64,
    /// What each of them has of half of that for itself, whatever the others take. The launcher's.
    pub memory_each: u64,
    /// Threads that were given a lane; the agent's, as is all that follows.
    pub adopted: u64,
    /// Turns that were begun while contexts were let in, and CPU time of the threads meanwhile, in
    /// nanoseconds.
    pub turns_with: u64,
    /// See `turns_with`.
    pub cpu_with_ns: u64,
    /// The same while nobody was let in.
    pub turns_without: u64,
    /// See `turns_without`.
    pub cpu_without_ns: u64,
    /// Contexts that were taken away from a thread that waited.
    pub steals: u64,
    /// Those taken from one that had ended.
    pub reclaimed: u64,
    /// Contexts that went home for a system call.
    pub calls: u64,
    /// Those that a signal to the program sent home.
    pub interrupted: u64,
    /// Those that were sent home because they did not come back to a yield.
    pub overdue: u64,
    /// Turns in short waits of the program's threads, which are in no other count, and how long these waits
    /// were, in nanoseconds.
    pub wait_turns: u64,
    /// See `wait_turns`.
    pub waited_ns: u64,
    /// Turns that were to be timed and were skipped.
    pub skipped: u64,
    /// Turns that were timed.
    pub timed: u64,
    /// Their times, in nanoseconds together.
    pub timed_ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
    /// How many had which time, by [`crate::time_class`].
    pub times: [u64; TIME_CLASSES],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_yield_touches_lies_in_two_lines() {
        assert_eq!(size_of::<Context>(), 64);
        assert_eq!(size_of::<Lane>(), 128);
    }
}
