//! Any file as a module: names, lines and rules for unwinding that keep their promises, or an
//! error in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use membound_symbolize::{Frames, Registers, Symbols, Unwinder};

/// Addresses that seeds have code and data at.
const SPAN: u64 = 0x6000;

fuzz_target!(|bytes: &[u8]| {
    let symbols = match Symbols::of_bytes(bytes.to_vec(), "fuzzed") {
        Ok(symbols) => symbols,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(['\n', '\r']), "{message:?}");
            return;
        }
    };
    let addresses = (0..SPAN).step_by(61);
    for address in addresses.chain((0x40_0000..0x40_0000 + SPAN).step_by(61)) {
        for place in symbols.locate(address) {
            assert_ne!(place.line, Some(0), "lines begin at 1");
        }
        if let Some(function) = symbols.function(address) {
            let inside = function.start <= address && address - function.start < function.size;
            assert!(inside, "a function elsewhere");
        }
        if let Some(variable) = symbols.variable(address) {
            let inside = variable.address <= address && address - variable.address < variable.size;
            assert!(inside, "a variable elsewhere");
        }
    }
    for note in symbols.notes() {
        assert!(!note.contains(['\n', '\r']), "{note:?}");
    }
    let Ok(frames) = Frames::of_bytes(bytes.to_vec(), "fuzzed") else {
        return;
    };
    let mut unwinder = Unwinder::new();
    unwinder.add(0x1000_0000..0x2000_0000, 0x1000_0000, &frames);
    for ip in (0x1000_0000..0x1000_0000 + SPAN).step_by(61) {
        let registers = Registers {
            general: [0x7000_0000; _],
            ip,
        };
        let mut read = |address: u64| Some(0x1000_1000 + address.wrapping_mul(37) % 0x3000);
        let mut out = Vec::new();
        let chain = unwinder.unwind(&registers, &mut read, &mut out);
        assert!(out.len() <= 256 && chain.certain <= out.len(), "{chain:?}");
    }
});
