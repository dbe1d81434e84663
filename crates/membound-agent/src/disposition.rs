//! The kernel's dispositions of signals.

use crate::sys::{call, check, number};

/// Handler of a signal that is ignored (`SIG_IGN`).
pub(crate) const IGNORE: u64 = 1;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Disposition {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

impl Disposition {
    pub(crate) const DEFAULT: Self = Self {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };

    pub(crate) fn is_ignored(&self) -> bool {
        self.handler == IGNORE
    }
}

/// Reads or replaces the kernel's disposition of `signal`; returns the previous one.
pub(crate) fn disposition(signal: u64, new: Option<&Disposition>) -> Option<Disposition> {
    let mut old = Disposition::DEFAULT;
    let new = new.map_or(0, |new| (&raw const *new) as usize);
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let result = unsafe {
        call(
            number::RT_SIGACTION,
            [signal as usize, new, (&raw mut old) as usize, 8, 0, 0],
        )
    };
    check(result).ok().map(|_| old)
}
