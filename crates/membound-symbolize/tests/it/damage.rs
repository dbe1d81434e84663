//! Damaged files: lookups find something or nothing, and do not panic.

use std::fs;

use membound_symbolize::{DebugPaths, Frames, Registers, Symbols, Unwinder};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::build::Workshop;

/// Calls every lookup on a file.
fn ask(bytes: &[u8]) {
    if let Ok(symbols) = Symbols::of_bytes(bytes.to_vec(), "damaged") {
        for address in (0..0x6000).step_by(0x35).chain([u64::MAX - 1, u64::MAX]) {
            for place in symbols.locate(address) {
                assert!(place.line != Some(0));
            }
            let function = symbols.function(address);
            assert!(function.is_none_or(|f| f.start <= address && address - f.start < f.size));
            let variable = symbols.variable(address);
            assert!(variable.is_none_or(|v| v.address <= address && address - v.address < v.size));
        }
        for note in symbols.notes() {
            assert!(!note.contains(['\n', '\r']), "{note}");
        }
        let _ = symbols.build_id();
    }
    if let Ok(frames) = Frames::of_bytes(bytes.to_vec(), "damaged") {
        let mut unwinder = Unwinder::new();
        unwinder.add(0x10_0000..0x20_0000, 0x10_0000, &frames);
        for ip in (0x10_0000..0x10_6000).step_by(0x11) {
            let registers = Registers {
                general: [0x7000_0000; 32],
                ip,
            };
            // A stack of which every word leads back into the file.
            let mut read = |address: u64| Some(0x10_1000 + address.wrapping_mul(37) % 0x3000);
            let mut out = Vec::new();
            let chain = unwinder.unwind(&registers, &mut read, &mut out);
            assert!(out.len() <= 256 && chain.certain <= out.len());
        }
    }
}

fn check(fixture: &str, compiler: &str, flags: &str, cases: u32) {
    let workshop = Workshop::new();
    let Some(program) = workshop.compile(compiler, flags, fixture, "whole") else {
        return;
    };
    let whole = fs::read(program).expect("it was just compiled");
    ask(&whole);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let changes = prop::collection::vec((0..whole.len(), any::<u8>()), 1..40);
    let end = prop_oneof![4 => Just(whole.len()), 1 => 0..whole.len()];
    let run = TestRunner::new(config).run(&(changes, end), |(changes, end)| {
        let mut bytes = whole.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(end);
        ask(&bytes);
        Ok(())
    });
    if let Err(error) = run {
        panic!("{fixture}: {error}");
    }
}

#[test]
fn any_bytes_of_a_file_may_be_wrong() {
    check("inlined.c", "gcc", "-O2 -g", 150);
    check("templates.cpp", "g++", "-O2 -gdwarf-4 -gz=zlib", 100);
    check("chains.c", "musl-gcc", "-O2 -static -s", 60);
}

#[test]
fn damaged_split_units_do_not_affect_the_program() {
    let workshop = Workshop::new();
    let Some(program) = workshop.compile("gcc", "-O2 -g -gsplit-dwarf", "inlined.c", "inlined")
    else {
        return;
    };
    // The halves of units are damaged, the program is not.
    for entry in fs::read_dir(workshop.path("")).expect("the workshop is there") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_some_and(|extension| extension == "dwo") {
            let mut bytes = fs::read(&path).expect("it was just made");
            let middle = bytes.len() / 3;
            bytes[64..middle].fill(0xff);
            fs::write(&path, bytes).expect("it can be replaced");
        }
    }
    let places = DebugPaths { roots: Vec::new() };
    let symbols = Symbols::open_with(&program, &places).expect("it was just compiled");
    for address in (0..0x6000).step_by(3) {
        let _ = symbols.locate(address);
    }
}
