//! Why a command of the launcher failed, for every module that carries one out.

use membound_wire::Refusal;

use crate::sys::Errno;

/// Why a command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) refusal: Refusal,
}

impl Failure {
    pub(crate) fn new(errno: Errno, refusal: Refusal) -> Self {
        Self { errno, refusal }
    }

    pub(crate) fn malformed() -> Self {
        Self::new(Errno::EINVAL, Refusal::Malformed)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(errno, Refusal::None)
    }
}
