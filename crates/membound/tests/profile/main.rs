//! Programs that know where they wait, and what `membound profile` says of them.
//!
//! Each fixture measures itself by its own clock, so that the truth is that of the very run
//! that was profiled. The machine profile is measured once for the whole binary. Tests take
//! turns: figures depend on a quiet machine.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod figures;
mod floods;
mod harvest;
mod strangers;
mod suite;
mod unharmed;
