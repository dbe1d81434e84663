//! What came of a harvest so far, and how far each guest has come.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_wire::{GuestRequest, GuestState};

use crate::memory::Shared;
use crate::requests::Requested;
use crate::withdraw::YieldPlace;

/// What came of a harvest so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Harvested {
    /// Why the command has no lanes, if it has none.
    pub refused: Option<String>,
    /// Threads that were given a lane.
    pub threads: u64,
    /// Yields of the command at which somebody could run, and CPU time of its threads meanwhile.
    pub with: Turns,
    /// The same while nobody was let in.
    pub without: Turns,
    /// Guests that were taken from a thread that waited, and from one that ended.
    pub steals: u64,
    /// See `steals`.
    pub reclaimed: u64,
    /// Guests that left a thread for a system call, and for a signal to the command.
    pub calls: u64,
    /// See `calls`.
    pub interrupted: u64,
    /// Guests that were called out of a turn that did not end.
    pub overdue: u64,
    /// Turns in short waits of the command's threads, and how long these were, in nanoseconds.
    pub waits: Turns,
    /// Turns that were to be timed, and that scavengers skipped to wait for what they had asked for.
    pub skipped: u64,
    /// Turns that were timed, their sum, and the longest, in nanoseconds.
    pub timed: u64,
    /// See `timed`.
    pub timed_ns: u64,
    /// See `timed`.
    pub longest_ns: u64,
    /// Of these, how many lasted from one nanosecond to another: (from, to, count).
    pub times: Vec<(u64, u64, u64)>,
    /// Its guests, in their order.
    pub guests: Vec<GuestStatus>,
    /// Yields that could not be had, and why.
    pub missed: Vec<String>,
    /// Requests of the command, where they are told.
    pub requested: Option<Requested>,
    /// Yields of the command that are out of its text.
    pub withdrawn: Vec<YieldPlace>,
}

/// Turns, and CPU time of the threads that took them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// How many.
    pub count: u64,
    /// In nanoseconds.
    pub cpu_ns: u64,
}

/// How far a guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestStatus {
    /// Its state; `None` before it was started.
    pub state: Option<GuestState>,
    /// Exit code, signal or error number, as the state says.
    pub code: u32,
    /// Its thread in the program's namespace.
    pub thread: u32,
    /// CPU time of its own thread when it ended, in nanoseconds; 0 before.
    pub cpu_ns: u64,
    /// System calls that it has made.
    pub calls: u64,
    /// Times that it left its own thread.
    pub parks: u64,
    /// Time that others' threads had it, in nanoseconds.
    pub away_ns: u64,
    /// Loads with a yield that it came by.
    pub progress: u64,
}

pub(super) fn status(request: Option<&Shared>) -> GuestStatus {
    let Some(request) = request else {
        return GuestStatus {
            state: None,
            code: 0,
            thread: 0,
            cpu_ns: 0,
            calls: 0,
            parks: 0,
            away_ns: 0,
            progress: 0,
        };
    };
    let word = |offset: usize| request.word32(offset).load(Ordering::Acquire);
    let long = |offset: usize| request.word64(offset).load(Ordering::Relaxed);
    let state = word(offset_of!(GuestRequest, state));
    GuestStatus {
        state: GuestState::from_number(state),
        code: word(offset_of!(GuestRequest, code)),
        thread: word(offset_of!(GuestRequest, thread)),
        cpu_ns: long(offset_of!(GuestRequest, cpu_ns)),
        calls: long(offset_of!(GuestRequest, calls)),
        parks: long(offset_of!(GuestRequest, parks)),
        away_ns: long(offset_of!(GuestRequest, away_ns)),
        progress: long(offset_of!(GuestRequest, progress)),
    }
}
