//! Known answers for small pieces of code and compiled fixtures.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use membound_rewrite::code::{BlockEnd, Function, ImageFacts, Tables, Unresolved};
use membound_rewrite::image::{
    Convention, Error, FunctionBounds, Identity, Image, Kind, Unsupported,
};

use super::executed::compile;

/// Decodes bytes at 0x1000 and compares the blocks: their ranges, their ends, their successors.
#[track_caller]
fn check(bytes: &[u8], blocks: &[(Range<u64>, BlockEnd, &[u32])], unresolved: Option<Unresolved>) {
    let function = Function::from_code(bytes, 0x1000);
    let found: Vec<(Range<u64>, BlockEnd, Vec<u32>)> = function
        .blocks
        .iter()
        .map(|block| {
            let instructions = function.block_instructions(block);
            let range = instructions[0].ip()..instructions[instructions.len() - 1].next_ip();
            let successors = block.successors.iter().map(|block| block.0).collect();
            (range, block.leaves_by, successors)
        })
        .collect();
    let expected: Vec<(Range<u64>, BlockEnd, Vec<u32>)> = blocks
        .iter()
        .map(|(range, end, successors)| (range.clone(), *end, successors.to_vec()))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(function.unresolved, unresolved);
}

#[test]
fn a_call_and_a_system_call_end_blocks() {
    // push rbp; call +0x100; syscall; pop rbp; ret; nop
    check(
        &[
            0x55, 0xe8, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x05, 0x5d, 0xc3, 0x90,
        ],
        &[
            (
                0x1000..0x1006,
                BlockEnd::Call {
                    target: Some(0x1106),
                    returns: true,
                },
                &[1],
            ),
            (0x1006..0x1008, BlockEnd::FallsThrough, &[2]),
            (0x1008..0x100a, BlockEnd::Return, &[]),
        ],
        None,
    );
}

#[test]
fn branches_cut_blocks_where_they_lead() {
    // 0: inc eax; 2: dec ecx; 4: jne 2; 6: je outside; 12: jmp outside
    check(
        &[
            0xff, 0xc0, 0xff, 0xc9, 0x75, 0xfc, 0x0f, 0x84, 0xf4, 0x0f, 0x00, 0x00, 0xe9, 0xef,
            0x1f, 0x00, 0x00,
        ],
        &[
            (0x1000..0x1002, BlockEnd::FallsThrough, &[1]),
            (0x1002..0x1006, BlockEnd::Jump, &[2, 1]),
            (
                0x1006..0x100c,
                BlockEnd::Leaves {
                    target: 0x2000,
                    conditional: true,
                },
                &[3],
            ),
            (
                0x100c..0x1011,
                BlockEnd::Leaves {
                    target: 0x3000,
                    conditional: false,
                },
                &[],
            ),
        ],
        None,
    );
}

#[test]
fn a_jump_into_an_instruction_is_detected() {
    // 0: je 3 (into the next instruction's displacement); 2: mov eax, imm; ret
    check(
        &[0x74, 0x01, 0xb8, 0x90, 0x90, 0x90, 0x90, 0xc3],
        &[
            // One of the two targets is in no block, so it counts as leaving the function.
            (
                0x1000..0x1002,
                BlockEnd::Leaves {
                    target: 0x1003,
                    conditional: true,
                },
                &[1],
            ),
            (0x1002..0x1008, BlockEnd::Return, &[]),
        ],
        Some(Unresolved::EnteredInside(0x1003)),
    );
}

#[test]
fn invalid_instructions_are_detected() {
    // je +1; ret; (06 is no instruction in 64-bit code)
    check(
        &[0x74, 0x01, 0xc3, 0x06],
        &[
            (
                0x1000..0x1002,
                BlockEnd::Leaves {
                    target: 0x1003,
                    conditional: true,
                },
                &[1],
            ),
            (0x1002..0x1003, BlockEnd::Return, &[]),
        ],
        Some(Unresolved::Undecodable(0x1003)),
    );
}

#[test]
fn unreached_code_is_entered_from_outside() {
    // ret; nop; inc eax; ret
    let function = Function::from_code(&[0xc3, 0x90, 0xff, 0xc0, 0xc3, 0xcc, 0xcc], 0x1000);
    let entered: Vec<bool> = function
        .blocks
        .iter()
        .map(|block| block.entered_from_outside)
        .collect();
    assert_eq!(entered, [true, true]);
    assert_eq!(function.unresolved, None);
}

#[test]
fn an_indirect_jump_with_a_frame_is_unresolved_and_without_one_a_tail_call() {
    // push rbx; jmp rax
    check(
        &[0x53, 0xff, 0xe0],
        &[(0x1000..0x1003, BlockEnd::Unresolved, &[])],
        Some(Unresolved::IndirectJump(0x1001)),
    );
    // push rbx; pop rbx; jmp [rdi+8]
    check(
        &[0x53, 0x5b, 0xff, 0x67, 0x08],
        &[(0x1000..0x1005, BlockEnd::TailCall, &[])],
        None,
    );
}

#[test]
fn a_jump_whose_only_target_is_no_code_is_unresolved() {
    // lea rdx, [rip+2]; jmp rdx; (06 is no instruction in 64-bit code)
    check(
        &[0x48, 0x8d, 0x15, 2, 0, 0, 0, 0xff, 0xe2, 0x06],
        &[(0x1000..0x1009, BlockEnd::Unresolved, &[])],
        Some(Unresolved::Undecodable(0x1009)),
    );
}

#[test]
fn a_table_jump_behind_another_is_resolved() {
    // jmp [rdi+8]: a tail call. Then unreachable code: jmp [rdi+16], and push rbx; jmp rax.
    check(
        &[0xff, 0x67, 0x08, 0xff, 0x67, 0x10, 0x53, 0xff, 0xe0],
        &[
            (0x1000..0x1003, BlockEnd::TailCall, &[]),
            (0x1003..0x1006, BlockEnd::Unresolved, &[]),
            (0x1006..0x1009, BlockEnd::Unresolved, &[]),
        ],
        Some(Unresolved::IndirectJump(0x1003)),
    );
}

/// A compiled fixture with its image and knowledge.
fn with_fixture(command: &[&str], source: &str, ask: impl FnOnce(&Image<'_>, &Path)) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), command, source) else {
        return;
    };
    let data = std::fs::read(&program).unwrap();
    ask(&Image::parse(&data).unwrap(), &program);
}

#[track_caller]
fn named(image: &Image<'_>, knowledge: &ImageFacts, name: &str) -> Function {
    let index = image
        .functions()
        .iter()
        .position(|function| {
            let own = function.name.as_deref().unwrap_or_default();
            own.contains(name) && !own.contains(".cold")
        })
        .unwrap();
    Function::decode(image, knowledge, index)
}

#[test]
fn a_table_has_exactly_its_cases() {
    with_fixture(&["gcc", "-O2"], "switches.c", |image, _| {
        let knowledge = ImageFacts::gather(image, Tables::Resolve);
        let dense = named(image, &knowledge, "dense");
        assert_eq!(dense.unresolved, None);
        let table = dense
            .blocks
            .iter()
            .find(|block| block.leaves_by == BlockEnd::Table)
            .unwrap();
        assert_eq!(table.successors.len(), 10, "ten cases that all differ");

        let knowledge = ImageFacts::gather(image, Tables::Ignore);
        let ignored = named(image, &knowledge, "dense");
        assert!(matches!(
            ignored.unresolved,
            Some(Unresolved::IndirectJump(_))
        ));
        assert_eq!(
            ignored.instructions.len(),
            dense.instructions.len(),
            "cases are decoded all the same"
        );
        let methods = named(image, &knowledge, "through_object");
        assert_eq!(methods.unresolved, None, "a tail call is no table");
    });
}

#[test]
fn functions_that_never_return_are_found_by_name_and_code() {
    with_fixture(&["gcc", "-O1"], "switches.c", |image, _| {
        let knowledge = ImageFacts::gather(image, Tables::Resolve);
        let ends = |name| {
            let function = named(image, &knowledge, name);
            let calls = function
                .blocks
                .iter()
                .filter_map(|block| match block.leaves_by {
                    BlockEnd::Call { returns, .. } => Some(returns),
                    _ => None,
                });
            calls.collect::<Vec<_>>()
        };
        assert_eq!(
            ends("checked"),
            [false],
            "it calls leave, which calls longjmp"
        );
        assert_eq!(ends("finish").last(), Some(&false), "it calls exit");
        assert_eq!(ends("main").last(), Some(&false), "it calls finish");
        assert!(ends("main")[0]);
    });
}

#[test]
fn a_return_behind_data_among_the_code_is_found() {
    with_fixture(&["gcc", "-O1"], "data_in_code.c", |image, program| {
        let knowledge = ImageFacts::gather(image, Tables::Resolve);
        assert!(!knowledge.never_returns(symbol(program, "behind_data")));
        assert!(knowledge.never_returns(symbol(program, "main")));
    });
}

/// An interpreter in assembly computes where it jumps to: the one address that data show is not all.
#[test]
fn labels_in_data_are_the_targets_only_if_they_reach_all_code() {
    with_fixture(&["gcc", "-O2"], "interpreter.c", |image, _| {
        let knowledge = ImageFacts::gather(image, Tables::Resolve);
        let unresolved = |name| named(image, &knowledge, name).unresolved;
        assert_eq!(unresolved("interpret_all"), None);
        let exactly = |it: &FunctionBounds| it.name.as_deref() == Some("interpret");
        let index = image.functions().iter().position(exactly).unwrap();
        let interpreter = Function::decode(image, &knowledge, index);
        assert!(matches!(
            interpreter.unresolved,
            Some(Unresolved::IndirectJump(_))
        ));
        let jumps = interpreter.blocks.iter();
        let unknown = jumps.filter(|block| block.leaves_by == BlockEnd::Unresolved);
        assert_eq!(unknown.count(), 3);
    });
}

#[test]
fn text_with_tables_before_its_functions_is_not_taken_for_code() {
    // The code between the functions has 41 returns.
    let undescribed = |options: &[&str]| {
        let mut longest = None;
        with_fixture(options, "tables_in_text.c", |image, _| {
            let functions = image.functions().iter().filter(|it| it.name.is_none());
            let bytes = functions.filter_map(|it| image.bytes(it.range.clone()));
            longest = bytes
                .map(|bytes| bytes.iter().filter(|byte| **byte == 0xc3).count())
                .max();
        });
        longest
    };
    let Some(plain) = undescribed(&["gcc", "-O2"]) else {
        return;
    };
    assert_eq!(plain, 41);
    let with_tables = undescribed(&["gcc", "-O2", "-DTABLES"]).unwrap_or(0);
    assert!(with_tables < 41, "{with_tables}");
}

#[test]
fn calls_have_the_landing_pads_of_the_exception_table() {
    with_fixture(&["g++", "-O1"], "exceptions.cpp", |image, _| {
        let knowledge = ImageFacts::gather(image, Tables::Resolve);
        let between = named(image, &knowledge, "between");
        let pads: Vec<_> = between
            .blocks
            .iter()
            .filter_map(|block| block.landing_pad)
            .collect();
        assert!(!pads.is_empty());
        for pad in pads {
            assert!(between.blocks[pad.index()].entered_from_outside);
        }
    });
}

#[test]
fn restartable_sequences_are_left_alone() {
    for options in [
        &["gcc", "-O2"][..],
        &["gcc", "-O2", "-fno-pie", "-no-pie"],
        &["gcc", "-O2", "-static"],
    ] {
        with_fixture(options, "rseq.c", |image, program| {
            let check = |image: &Image<'_>, begins: u64, ends: u64, aborts: u64| {
                let knowledge = ImageFacts::gather(image, Tables::Resolve);
                let at = |address| {
                    Function::decode(image, &knowledge, image.function_at(address).unwrap())
                };
                assert!(
                    at(begins).untouchable.contains(&(begins..ends)),
                    "{options:?}"
                );
                let handler = at(aborts);
                // The signature may lie before the address at which symbols begin the function.
                let signature = aborts - 4..aborts;
                assert!(
                    handler.untouchable.contains(&signature)
                        || !handler.bounds.range.contains(&signature.start),
                    "{options:?}"
                );
                let block = handler
                    .blocks
                    .iter()
                    .find(|block| handler.block_instructions(block)[0].ip() == aborts)
                    .unwrap();
                assert!(block.entered_from_outside);
            };
            let symbol = |name| symbol(program, name);
            let (begins, ends, aborts) = (
                symbol("sequence_begins"),
                symbol("sequence_ends"),
                symbol("sequence_aborts"),
            );
            check(image, begins, ends, aborts);
            // Without section headers, the descriptor is found by the signature its abort address follows.
            let mut data = std::fs::read(program).unwrap();
            data[0x28..0x30].fill(0);
            data[0x3c..0x40].fill(0);
            check(&Image::parse(&data).unwrap(), begins, ends, aborts);
        });
    }
}

/// A symbol's address, from binutils.
fn symbol(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.split_whitespace().nth(2) == Some(name))
        .unwrap();
    u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
}

#[test]
fn functions_are_found_without_symbols_and_sections() {
    for options in [
        &["gcc", "-O2"][..],
        &["gcc", "-O2", "-fno-pie", "-no-pie"],
        &["clang", "-O2"],
    ] {
        with_fixture(options, "switches.c", |image, program| {
            let mut data = std::fs::read(program).unwrap();
            data[0x28..0x30].fill(0);
            data[0x3c..0x40].fill(0);
            let stripped = Image::parse(&data).unwrap();
            for function in image.functions() {
                let Some(name) = &function.name else {
                    continue;
                };
                if !function.assembly {
                    assert!(
                        stripped
                            .functions()
                            .iter()
                            .any(|other| other.range == function.range),
                        "{options:?}: {name}"
                    );
                }
            }
            assert_eq!(stripped.kind(), image.kind());
            assert_eq!(stripped.identity(), image.identity());
        });
    }
}

#[test]
fn kinds_of_files_are_distinguished() {
    for (options, kind) in [
        (&["gcc"][..], Kind::PositionIndependentExecutable),
        (&["gcc", "-fno-pie", "-no-pie"], Kind::Executable),
        (&["gcc", "-static"], Kind::Static),
        (&["gcc", "-static-pie"], Kind::Static),
        (&["gcc", "-shared", "-fPIC"], Kind::SharedObject),
    ] {
        with_fixture(options, "switches.c", |image, _| {
            assert_eq!(image.kind(), kind, "{options:?}");
            assert_eq!(image.convention(), Convention::SystemV);
            assert!(matches!(
                image.identity(),
                Identity::BuildId(_) | Identity::TextHash(_)
            ));
        });
    }
}

#[test]
fn files_that_are_not_patched_are_named() {
    let refused = |data: &[u8]| Image::parse(data).unwrap_err();
    assert_eq!(
        refused(b"#!/bin/sh"),
        Error::Unsupported(Unsupported::NotElf)
    );
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    header[16] = 3;
    header[18] = 183;
    assert_eq!(refused(&header), Error::Unsupported(Unsupported::Machine));
    header[18] = 62;
    assert!(matches!(refused(&header), Error::Malformed(_)));
    header[16] = 1;
    assert_eq!(refused(&header), Error::Unsupported(Unsupported::Kind));
    let directory = tempfile::tempdir().unwrap();
    let command = ["gcc", "-shared", "-fPIC", "-DMONO"];
    let Some(library) = compile(directory.path(), &command, "tables_in_text.c") else {
        return;
    };
    let library = std::fs::read(library).unwrap();
    assert_eq!(refused(&library), Error::Unsupported(Unsupported::Mono));
}

#[test]
fn functions_that_may_read_floating_point_exceptions_are_found() {
    for (options, reads) in [
        (&["-O2"][..], false),
        // Its startup code sets flushing of denormals to zero.
        (&["-Ofast"], false),
        (&["-O2", "-DTESTS", "-Wl,--no-as-needed", "-lm"], true),
        (&["-O2", "-DSTORES"], true),
    ] {
        let command = [&["gcc"], options].concat();
        with_fixture(&command, "float_exceptions.c", |image, _| {
            assert_eq!(image.reads_exceptions(), reads, "{options:?}");
        });
    }
}
