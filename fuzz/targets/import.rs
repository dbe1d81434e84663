//! Any file as another profiler's recording: one that keeps its promises, or an error in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/membound-import/tests/it/invariants.rs"]
mod invariants;

fuzz_target!(|bytes: &[u8]| {
    let _ = invariants::checked(bytes);
});
