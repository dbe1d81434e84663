//! Any text as a topology: one that can be used, or an error in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match membound_model::hierarchy::parse_topology("x", text) {
        Ok(topology) => assert!(!topology.levels.is_empty()),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(['\n', '\r']), "{message:?}");
        }
    }
});
