//! The backend for this machine, for sessions and tests.

use super::{Backend, Portable};

/// The backend for this machine: emitted kernels where this architecture has them and the system
/// allows emitted code, otherwise the portable ones.
#[must_use]
pub fn native() -> Box<dyn Backend> {
    native_or_why_not().0
}

/// Like [`native`]; if the kernels are the portable ones, also returns the reason.
#[must_use]
pub fn native_or_why_not() -> (Box<dyn Backend>, Option<String>) {
    #[cfg(target_arch = "aarch64")]
    let emitted = super::aarch64::Emitted;
    #[cfg(target_arch = "x86_64")]
    let emitted = super::x86_64::Emitted;
    #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
    let why = match emitted.add_chain() {
        Ok(_) => return (Box::new(emitted), None),
        Err(error) => error.to_string(),
    };
    #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
    let why = format!(
        "kernels are emitted for x86-64 and aarch64, not for {}",
        std::env::consts::ARCH
    );
    (Box::new(Portable), Some(why))
}
