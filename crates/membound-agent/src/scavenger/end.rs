//! The end of a scavenger and its home thread.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{ScavengerProcessState, ScavengerRequest};

use super::table::Scavenger;
use crate::{own_thread, sys};

/// Ends the scavenger and its home thread with this state and code. Its mappings stay.
pub(super) fn finish(scavenger: &Scavenger, state: ScavengerProcessState, code: u32) -> ! {
    end(scavenger, || scavenger.request().set(state, code))
}

/// Ends the scavenger's home thread without a result: there was no time to finish. Its mappings stay.
pub(crate) fn leave(scavenger: &Scavenger) -> ! {
    end(scavenger, || {})
}

/// Ends the home thread, after `report` has reported the result to the launcher.
fn end(scavenger: &Scavenger, report: impl FnOnce()) -> ! {
    scavenger.home_thread.clear();
    scavenger
        .request()
        .long(offset_of!(ScavengerRequest, cpu_ns))
        .store(sys::thread_cpu_ns(), Ordering::Relaxed);
    report();
    scavenger.thread.store(0, Ordering::Release);
    own_thread::exit(0)
}

/// Ends the scavenger of the calling home thread.
pub(crate) fn die(scavenger: &Scavenger, state: ScavengerProcessState, code: u32) -> ! {
    finish(scavenger, state, code)
}
