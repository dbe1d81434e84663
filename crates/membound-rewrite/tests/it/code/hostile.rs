//! Truncated, damaged or malicious files are rejected, or read only as far as they are consistent.

use membound_rewrite::code::{Function, ImageFacts, Tables};
use membound_rewrite::image::Image;
use proptest::prelude::*;

use super::executed::compile;

/// Reads a file to the last instruction; the test is that this returns and that the invariants hold.
fn read_all(data: &[u8]) {
    let Ok(image) = Image::parse(data) else {
        return;
    };
    let mut end = 0;
    for function in image.functions() {
        assert!(end <= function.range.start && function.range.start < function.range.end);
        assert!(image.bytes(function.range.clone()).is_some());
        end = function.range.end;
    }
    for tables in [Tables::Resolve, Tables::Ignore] {
        let knowledge = ImageFacts::gather(&image, tables);
        for index in 0..image.functions().len() {
            let function = Function::decode(&image, &knowledge, index);
            check(&function);
        }
    }
}

/// The invariants of a decoded function.
fn check(function: &Function) {
    let range = &function.bounds.range;
    let mut at = range.start;
    for instruction in &function.instructions {
        assert!(at <= instruction.ip() && instruction.next_ip() <= range.end);
        at = instruction.next_ip();
    }
    let mut first = 0;
    for block in &function.blocks {
        assert!(block.first == first && block.first < block.end);
        first = block.end;
        let instructions = function.block_instructions(block);
        for pair in instructions.windows(2) {
            assert_eq!(pair[0].next_ip(), pair[1].ip());
        }
        let targets = block.successors.iter().chain(&block.landing_pad);
        for target in targets {
            assert!(target.index() < function.blocks.len());
        }
    }
    assert_eq!(first as usize, function.instructions.len());
}

/// A small program with switches and exceptions.
fn program() -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let command = ["g++", "-O2", "-x", "c++", "-fpermissive", "-w"];
    let program = compile(directory.path(), &command, "exceptions.cpp")?;
    Some(std::fs::read(program).unwrap())
}

#[test]
fn every_prefix_of_a_file_is_read_or_refused() {
    let Some(data) = program() else { return };
    for length in (0..data.len()).step_by(97) {
        read_all(&data[..length]);
    }
}

#[test]
fn fields_of_all_ones_and_of_zeros_are_read_or_refused() {
    let Some(data) = program() else { return };
    // The file header and the program headers, word by word.
    for at in (0..64 + 14 * 56).step_by(2) {
        for value in [0_u8, 0xff, 0x7f] {
            let mut damaged = data.clone();
            damaged[at..at + 2].fill(value);
            read_all(&damaged);
        }
    }
}

#[test]
fn damaged_files_are_read_or_refused() {
    let Some(data) = program() else { return };
    let length = data.len();
    let damage = proptest::collection::vec((0..length, any::<u8>()), 1..40);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&damage, |damage| {
            let mut data = data.clone();
            for (at, byte) in damage {
                data[at] = byte;
            }
            read_all(&data);
            Ok(())
        })
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check(&Function::from_code(&bytes, 0x40_0000));
    }
}
