//! What yields work on: a thread's lane, and the contexts that take turns on it.
//!
//! The base of `gs` is a thread's [`Lane`]; programs of x86-64 Linux have no use for it. At a
//! yield of the primary the thread goes on as the context that `next` names, and at a yield of
//! a scavenger as the next one of the ring or as the primary again. The code of yields reads and
//! writes these fields itself, with no lock: a lane is its thread's own, and whoever else changes
//! one does so while it is closed, or by a single store that the thread may see at any time.

/// Where a context goes on, and which comes after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// Stack pointer, everything that was alive lying above it.
    pub stack: u64,
    /// Address at which it goes on, where only the stack pointer has a meaning.
    pub resume: u64,
    /// The context after it in its ring; itself when it is alone.
    pub next: u64,
    /// Base of `fs` of the thread that it belongs to.
    pub fs: u64,
    /// Address of its [`Lane`] at home, where it has a thread of its own.
    pub home: u64,
    /// Its number, from 0.
    pub number: u32,
    /// A [`ContextState`] as its number.
    pub state: u32,
    /// Reserved, 0.
    pub rest: [u64; 2],
}

/// Who has a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ContextState {
    /// Its own thread, which runs it or waits in the kernel on its behalf.
    Home = 0,
    /// Nobody: it can go on where it left off, on any lane.
    Ready = 1,
    /// It is in the ring of a lane.
    InRing = 2,
    /// It was left for ever: ended, failed, or abandoned by a jump out of a signal handler.
    Over = 3,
}

/// What a thread's yields work on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Lane {
    /// The context that runs at the next yield of the primary; 0: none.
    pub next: u64,
    /// Base of `fs` of the thread whose lane this is. Another thread finds a lane that it has
    /// inherited by this; 0, which anybody may write at any time: the agent is to be asked before
    /// anything is done.
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
    /// Reserved, 0.
    pub padding: [u8; 7],
    /// Turns that were begun.
    pub turns: u64,
    /// Base of `fs` of the thread whose lane this is, for as long as the lane exists: what the
    /// thread gets back, whatever [`Self::owner`] says at that moment.
    pub base: u64,
    /// Reserved, 0.
    pub rest: [u64; 5],
}

/// Units of [`Lane::credit`] in a nanosecond.
pub const CREDIT_UNITS_PER_NS: i32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_yield_touches_lies_in_two_lines() {
        assert_eq!(size_of::<Context>(), 64);
        assert_eq!(size_of::<Lane>(), 128);
    }
}
