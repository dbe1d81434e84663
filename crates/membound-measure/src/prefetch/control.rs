//! What switches prefetchers, as this part needs it.
//!
//! The command passes the machine's controls; tests pass a register that remembers.

use membound_types::NotMeasured;

/// Prefetchers that can be switched.
pub trait PrefetchControl {
    /// Their names, as documents show them.
    fn names(&self) -> Vec<String>;

    /// Switches the prefetchers named in `which` off on the measuring CPU until the result
    /// is restored or dropped.
    ///
    /// # Errors
    /// Why they could not be switched, or did not stay off. Everything is as it was then.
    fn switch_off(&self, which: &[&str]) -> Result<Box<dyn SwitchedOff>, NotMeasured>;
}

/// Prefetchers that are off. Dropping it puts them back too, on whatever way out.
pub trait SwitchedOff {
    /// Puts the prefetchers back and says how that went.
    ///
    /// # Errors
    /// Why they could not be put back.
    fn restore(self: Box<Self>) -> Result<(), NotMeasured>;
}
