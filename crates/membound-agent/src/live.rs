//! Replacing text that threads may be running in.

use crate::Refusal;
use crate::control::Failure;
use crate::sys::Errno;
use crate::text::Batch;

pub(crate) fn replace(batch: &Batch) -> Result<u64, Failure> {
    let _ = batch.len();
    Err(Failure::new(Errno::EBUSY, Refusal::ThreadUnknown))
}

pub(crate) fn trap_sigaction(_signal: u64, _new: usize, _old: usize) -> Option<isize> {
    None
}
