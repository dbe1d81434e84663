//! Signals that the agent handles itself: SIGTRAP, by which a thread meets an `int3` in text that is being
//! changed; SIGSTKFLT, by which a thread is called; and the signals of scavengers' system calls and faults.
//! The kernel does not use SIGSTKFLT, and programs do not either. It cannot be SIGTRAP: while a call was
//! pending, the kernel would drop the signal of an `int3`.

/// The signals handled here; the index is that of `trap::USERS`.
pub(crate) const SIGNALS: [u64; 7] = [SIGTRAP, CALL, SYS, SEGV, BUS, FPE, ILL];
/// Signals that the agent uses while it changes text.
pub(crate) const OF_CHANGES: [u64; 2] = [SIGTRAP, CALL];
/// Those by which scavengers make system calls and fault. Other threads' are given to the program.
pub(crate) const OF_SCAVENGERS: [u64; 5] = [SYS, SEGV, BUS, FPE, ILL];
pub(crate) const SIGTRAP: u64 = 5;
/// SIGSYS: of a dispatched system call.
pub(crate) const SYS: u64 = 31;
/// SIGSEGV.
pub(crate) const SEGV: u64 = 11;
const BUS: u64 = 7;
const FPE: u64 = 8;
const ILL: u64 = 4;
/// SIGSTKFLT: calls a thread into the handler, to stand still, to be measured or to leave a slice.
pub(crate) const CALL: u64 = 16;
const SIGINFO: u64 = 4;
pub(crate) const ONSTACK: u64 = 0x0800_0000;
const RESTORER: u64 = 0x0400_0000;
const RESTART: u64 = 0x1000_0000;

unsafe extern "C" {
    fn membound_trap();
    fn membound_restorer();
}

/// Flags with which the agent's handlers are installed.
pub(crate) const FLAGS: u64 = SIGINFO | ONSTACK | RESTORER | RESTART;

/// Address to which they return.
pub(crate) fn restorer() -> u64 {
    membound_restorer as *const () as u64
}

/// Address of the handler.
pub(crate) fn address() -> u64 {
    membound_trap as *const () as u64
}

/// The signal mask with these signals.
pub(crate) const fn mask(signals: &[u64]) -> u64 {
    let mut mask = 0;
    let mut rest = signals;
    while let [signal, behind @ ..] = rest {
        mask |= 1 << (*signal - 1);
        rest = behind;
    }
    mask
}
