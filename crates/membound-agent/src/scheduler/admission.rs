//! Whether scavengers are admitted at present, and since when.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{assembly, sys};

/// A phase: scavengers are admitted during all of it, or during none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) lets_in: bool,
    /// Time stamp at which it began.
    pub(crate) since: u64,
}

/// 1 while scavengers are admitted; a futex word.
static LET_IN: AtomicU32 = AtomicU32::new(1);
/// Time stamp of the last change of [`LET_IN`]. Stored before the change, so that a reader of the new phase
/// does not see the time stamp of the phase before.
static CHANGED: AtomicU64 = AtomicU64::new(0);
/// 1: the first thread has come to a yield, and phases are to begin.
pub(super) static BEGINS: AtomicU32 = AtomicU32::new(0);

/// The present phase.
pub(super) fn phase() -> Phase {
    let lets_in = lets_in();
    Phase {
        lets_in,
        since: CHANGED.load(Ordering::Acquire),
    }
}

/// Admits scavengers from now on, or stops admitting them.
pub(super) fn let_in(others: bool) {
    if others != lets_in() {
        CHANGED.store(assembly::time_stamp(), Ordering::Release);
        LET_IN.store(u32::from(others), Ordering::Release);
        if others {
            sys::wake_all(&LET_IN);
        }
    }
}

/// Waits until scavengers are admitted, but not for long: what the program does without them must be
/// measured.
pub(super) fn await_let_in() {
    const LET_IN_TIMEOUT_NS: u64 = 100_000_000;
    if !lets_in() {
        sys::wait_while(&LET_IN, 0, LET_IN_TIMEOUT_NS);
    }
}

/// Starts the phases with one that admits scavengers, since a short program may see no other.
pub(super) fn begin_phases() {
    let_in(true);
    BEGINS.store(1, Ordering::Release);
}

/// True if scavengers are admitted at present.
pub(super) fn lets_in() -> bool {
    LET_IN.load(Ordering::Acquire) != 0
}
