//! Programs with mishaps, filters and strangers in them under `membound profile`, and plans of
//! harvests of what was recorded. How true the figures are is the business of `cargo xtask bench
//! accuracy`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod floods;
mod harvest;
mod strangers;
mod suite;
mod unharmed;
