//! Installs the handler of the signals that the agent handles itself (see `own_signals`).
//!
//! Once installed the handler stays, since a thread that has met an `int3` may arrive late. From then on
//! this module keeps what the program installs for these signals, and gives the program all signals that
//! are not membound's.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::disposition::{Disposition, disposition};
use crate::failure::Failure;
use crate::own_signals::{FLAGS, ONSTACK, SIGNALS, SYS, address, mask, restorer};
use crate::sys::{self, Errno};

/// The disposition that the program has set for a signal.
pub(crate) struct Users {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

impl Users {
    const fn new() -> Self {
        Self {
            handler: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            restorer: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self) -> Disposition {
        Disposition {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Acquire),
            restorer: self.restorer.load(Ordering::Acquire),
            mask: self.mask.load(Ordering::Acquire),
        }
    }

    pub(crate) fn set(&self, disposition: &Disposition) {
        // The handler last, as `get` reads it first: a new handler is never paired with older values.
        self.mask.store(disposition.mask, Ordering::Release);
        self.restorer.store(disposition.restorer, Ordering::Release);
        self.flags.store(disposition.flags, Ordering::Release);
        self.handler.store(disposition.handler, Ordering::Release);
    }
}

static USERS: [Users; SIGNALS.len()] = [const { Users::new() }; SIGNALS.len()];
/// The process in which the handler was installed: a child of `vfork` shares this memory, but has
/// dispositions of its own until it executes another program.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The signals for which it was installed, as a mask.
static OWNED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn users(signal: u64) -> Option<&'static Users> {
    let index = SIGNALS.iter().position(|&kept| kept == signal)?;
    USERS.get(index)
}

/// Installs the handler for `signals` where it is not installed yet.
pub(crate) fn install(signals: &[u64]) -> Result<(), Failure> {
    let missing = || Failure::from(Errno::EINVAL);
    for signal in signals {
        let users = users(*signal).ok_or_else(missing)?;
        let mut found = disposition(*signal, None).ok_or_else(missing)?;
        if found.handler == address() {
            continue;
        }
        found.unwrap();
        // Before the handler is installed: from then on it gives signals to the disposition kept here.
        users.set(&found);
        // A scavenger's system call must leave its frame on the scavenger's own stack, whichever thread
        // runs it.
        let flags = if *signal == SYS {
            FLAGS & !ONSTACK
        } else {
            FLAGS
        };
        let ours = Disposition {
            handler: address(),
            flags,
            restorer: restorer(),
            mask: u64::MAX,
        };
        disposition(*signal, Some(&ours)).ok_or_else(missing)?;
    }
    OWNED.fetch_or(mask(signals), Ordering::AcqRel);
    PROCESS.store(sys::process(), Ordering::Release);
    Ok(())
}

/// As [`install`], unless all of `signals` were installed in this process already.
pub(crate) fn install_once(signals: &[u64]) -> Result<(), Failure> {
    if signals.iter().all(|signal| owns(*signal)) {
        return Ok(());
    }
    install(signals)
}

/// True if the agent handles `signal` in this process, so that the program's disposition is kept here.
pub(crate) fn owns(signal: u64) -> bool {
    let process = PROCESS.load(Ordering::Acquire);
    let known = SIGNALS.contains(&signal) && OWNED.load(Ordering::Acquire) & mask(&[signal]) != 0;
    known && process != 0 && process == sys::process()
}

/// Returns the program's disposition for `signal`, and replaces it by `new` if that is given.
pub(crate) fn exchange(signal: u64, new: Option<&Disposition>) -> Disposition {
    let Some(users) = users(signal) else {
        return Disposition::DEFAULT;
    };
    let old = users.get();
    if let Some(new) = new {
        users.set(new);
    }
    old
}
