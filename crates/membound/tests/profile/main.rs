//! Programs with crashes, filters and foreign modules under `membound profile`, and harvest plans made from
//! the recordings. `cargo xtask bench accuracy` checks how true the figures are.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod floods;
mod harvest;
mod strangers;
mod suite;
mod unharmed;

#[path = "../machine_profile/mod.rs"]
mod machine_profile;
