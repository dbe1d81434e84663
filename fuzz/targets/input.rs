//! Any file: a result that keeps its promises, or an error in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/membound-input/tests/it/invariants.rs"]
mod invariants;

fuzz_target!(|bytes: &[u8]| {
    let _ = invariants::checked(bytes);
});
