//! Whether scavengers are admitted at present, and since when.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{assembly, sys};

/// A phase: scavengers are admitted during all of it, or during none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) are_admitted: bool,
    /// Time stamp at which it began.
    pub(crate) since: u64,
}

/// 1 while scavengers are admitted; a futex word.
static ADMITTED: AtomicU32 = AtomicU32::new(1);
/// Time stamp of the last change of [`ADMITTED`]. Stored before the change, so that a reader of the new phase
/// does not see the time stamp of the phase before.
static CHANGED: AtomicU64 = AtomicU64::new(0);
/// 1: the first thread has come to a yield, and phases are to begin.
pub(super) static BEGINS: AtomicU32 = AtomicU32::new(0);

/// The present phase.
pub(super) fn phase() -> Phase {
    let are_admitted = are_admitted();
    Phase {
        are_admitted,
        since: CHANGED.load(Ordering::Acquire),
    }
}

/// Admits scavengers from now on, or stops admitting them.
pub(super) fn set_admission(admitted: bool) {
    if admitted != are_admitted() {
        CHANGED.store(assembly::time_stamp(), Ordering::Release);
        ADMITTED.store(u32::from(admitted), Ordering::Release);
        if admitted {
            sys::wake_all(&ADMITTED);
        }
    }
}

/// Waits until scavengers are admitted, but not for long: what the program does without them must be
/// measured.
pub(super) fn await_admission() {
    const ADMISSION_TIMEOUT_NS: u64 = 100_000_000;
    if !are_admitted() {
        sys::wait_while(&ADMITTED, 0, ADMISSION_TIMEOUT_NS);
    }
}

/// Starts the phases with one that admits scavengers, since a short program may see no other.
pub(super) fn begin_phases() {
    set_admission(true);
    BEGINS.store(1, Ordering::Release);
}

/// True if scavengers are admitted at present.
pub(super) fn are_admitted() -> bool {
    ADMITTED.load(Ordering::Acquire) != 0
}
