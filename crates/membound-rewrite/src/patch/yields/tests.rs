//! The instructions emitted for yields, one per line.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use super::*;
use crate::patch::{Body, Hooks, Plan, Sites};

const TEXT: u64 = 0x1000;

/// The code emitted for `mov rax, [rdi]; ret`, one instruction per line.
fn written(kind: Yield) -> Vec<String> {
    let options = Options::new(Body::Yield(kind));
    written_for(&[0x48, 0x8b, 0x07, 0xc3, 0x90, 0x90, 0x90], options)
}

/// The code emitted for the loads in `code`, one instruction per line.
fn written_for(code: &[u8], options: Options) -> Vec<String> {
    let options = Options {
        hooks: Hooks::LeaveOut,
        vectors: VectorLevel::Sse,
        ..options
    };
    let plan = Plan::of_code(code, TEXT, &options);
    assert!(plan.sites().all(|site| site.number.is_ok()));
    let bytes = plan.part(crate::patch::format::Section::Code);
    let body = &bytes[crate::patch::assembly::PATTERN_BYTES..];
    let mut decoder = Decoder::with_ip(64, body, 0, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let mut lines = Vec::new();
    while decoder.can_decode() {
        let mut line = String::new();
        formatter.format(&decoder.decode(), &mut line);
        lines.push(line);
    }
    lines
}

/// The code emitted for a loop that sums an array, with a bound yield of `cost` per iteration.
fn sum(cost: u16, closes_loops: bool) -> Vec<String> {
    sum_in_long_loop(cost, closes_loops, false)
}

/// As [`sum`], for a loop that runs for long if `lasts`.
fn sum_in_long_loop(cost: u16, closes_loops: bool, lasts: bool) -> Vec<String> {
    // 1: add rax,[rdi]; add rdi,8; cmp rdi,rdx; jne 1b; ret
    let code = [
        0x48, 0x03, 0x07, 0x48, 0x83, 0xc7, 0x08, 0x48, 0x39, 0xd7, 0x75, 0xf4, 0xc3,
    ];
    let own_base = false;
    let options = Options {
        closes_loops,
        long_loops: if lasts { vec![TEXT] } else { Vec::new() },
        ..Options::new(Body::Yield(Yield::Bound { cost, own_base }))
    };
    written_for(&code, options)
}

fn count(lines: &[String], start: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(start)).count()
}

#[test]
fn iterations_of_a_tight_loop_are_charged_together_and_their_lines_prefetched() {
    let credit = offset_of!(RunQueue, credit);
    let lines = sum(4, true);
    // In one of 32 iterations, of a quarter of a nanosecond each, rdi is a multiple of 256. 400 iterations
    // read 50 lines, of which a core can have 16 outstanding, so the loop runs 16 lines ahead. Every charge
    // prefetches the next four lines.
    let prefetches = ["440", "480", "4C0", "500"].map(|at| format!("prefetcht0 [rdi+{at}h]"));
    assert_eq!(lines[..4], prefetches, "{lines:#?}");
    assert_eq!(lines[4], format!("sub dword ptr gs:[{credit:X}h],80h"));
    let iteration = position(&lines, "test edi,0F8h");
    assert!(lines[iteration + 1].starts_with("je "), "{lines:#?}");
    assert_eq!(lines[iteration + 2], "add rax,[rdi]");
    // When the context leaves, it also prefetches in the page that it will read the same distance further on.
    assert_eq!(count(&lines, "prefetcht0"), 5);
    assert_eq!(count(&lines, "prefetcht0 [rdi+1080h]"), 1, "{lines:#?}");
    // The code of such an iteration fits in one line of the instruction cache.
    let back = lines[iteration + 5].strip_prefix("jne ").unwrap();
    let begins = u64::from_str_radix(back.trim_end_matches('h'), 16).unwrap();
    assert!(
        begins.is_multiple_of(membound_wire::LINE_BYTES as u64),
        "{lines:#?}"
    );
}

#[test]
fn a_context_that_leaves_before_a_load_prefetches_it() {
    // The prefetches after the jump that a scavenger takes when it stays; before it there must be none.
    let bound = |code: &[u8]| -> Vec<String> {
        let kind = Yield::Bound {
            cost: 40,
            own_base: false,
        };
        let lines = written_for(code, Options::new(Body::Yield(kind)));
        let no_switch = lines.iter().position(|it| it.starts_with("jg ")).unwrap();
        let prefetches = |it: &&String| it.starts_with("prefetch");
        assert_eq!(
            lines[..no_switch].iter().filter(prefetches).count(),
            0,
            "{lines:#?}"
        );
        lines[no_switch..]
            .iter()
            .filter(prefetches)
            .cloned()
            .collect()
    };
    // mov rax,[rdi]; xor ecx,ecx; ret
    assert_eq!(
        bound(&[0x48, 0x8b, 0x07, 0x31, 0xc9, 0xc3]),
        ["prefetcht0 [rdi]"]
    );
    // mov rcx,[rdi]; adc rcx,0; ret: flags are alive.
    let alive = [0x48, 0x8b, 0x0f, 0x48, 0x83, 0xd1, 0x00, 0xc3];
    assert_eq!(bound(&alive), ["prefetcht0 [rdi]"]);
    // As before with [rax]; rax holds the flags by then.
    let nothing: [&str; 0] = [];
    assert_eq!(
        bound(&[0x48, 0x8b, 0x08, 0x48, 0x83, 0xd1, 0x00, 0xc3]),
        nothing
    );
    // mov [rdi],rax; ret
    assert_eq!(bound(&[0x48, 0x89, 0x07, 0xc3, 0x90, 0x90, 0x90]), nothing);
}

#[test]
fn iterations_of_a_long_loop_are_copied_in_a_row() {
    let lines = sum_in_long_loop(4, true, true);
    // Four copies of the iteration: only the first tests, for every eighth group of four.
    let iteration = position(&lines, "test edi,0E0h");
    assert!(lines[iteration + 1].starts_with("je "), "{lines:#?}");
    let body = ["add rax,[rdi]", "add rdi,8", "cmp rdi,rdx"];
    for copy in 0..4 {
        let first = iteration + 2 + 4 * copy;
        assert_eq!(lines[first..first + 3], body, "{lines:#?}");
        let end = if copy < 3 { "je " } else { "jne " };
        assert!(lines[first + 3].starts_with(end), "{lines:#?}");
    }
    assert_eq!(count(&lines, "add rax,[rdi]"), 4);
    // Never so many copies that the test would be left out.
    assert_eq!(count(&sum_in_long_loop(40, true, true), "add rax,[rdi]"), 2);
    assert_eq!(count(&sum_in_long_loop(80, true, true), "add rax,[rdi]"), 1);
}

#[test]
fn long_iterations_and_loops_outside_trampolines_are_charged_singly() {
    let credit = offset_of!(RunQueue, credit);
    let long = sum(100, true);
    assert_eq!(long[0], format!("sub dword ptr gs:[{credit:X}h],64h"));
    assert_eq!(
        (count(&long, "test edi"), count(&long, "prefetcht0")),
        (0, 2)
    );
    let open = sum(4, false);
    assert_eq!(open[0], format!("sub dword ptr gs:[{credit:X}h],4"));
    assert_eq!(
        (count(&open, "test edi"), count(&open, "prefetcht0")),
        (0, 1)
    );
}

#[test]
fn a_line_that_is_read_once_is_prefetched_non_temporally() {
    // mov rdi,[rdi]; ret
    let code = [0x48, 0x8b, 0x3f, 0xc3, 0x90, 0x90, 0x90];
    let prefetches = |non_temporal: &[u64], without: &[YieldPart]| {
        let lines = written_for(
            &code,
            Options {
                non_temporal: non_temporal.to_vec(),
                without: without.to_vec(),
                ..Options::new(Body::Yield(Yield::Primary))
            },
        );
        ["prefetcht0 [rdi]", "prefetchnta [rdi]"].map(|ask| count(&lines, ask))
    };
    assert_eq!(prefetches(&[TEXT], &[]), [0, 1]);
    assert_eq!(prefetches(&[TEXT + 1], &[]), [1, 0]);
    assert_eq!(prefetches(&[TEXT], &[YieldPart::NonTemporal]), [1, 0]);
    assert_eq!(prefetches(&[TEXT], &[YieldPart::Prefetch]), [0, 0]);
}

#[test]
fn yields_prefetch_other_lines_of_the_object() {
    // mov rax,[rdi]; mov rcx,[rdi+64]; cmp rax,rcx; ret
    let code = [
        0x48, 0x8b, 0x07, 0x48, 0x8b, 0x4f, 64, 0x48, 0x39, 0xc8, 0xc3,
    ];
    let (cost, own_base) = (1, false);
    for kind in [Yield::Primary, Yield::Miss { cost, own_base }] {
        let lines = |without: &[YieldPart]| {
            let options = Options {
                sites: Sites::Instructions(vec![TEXT]),
                without: without.to_vec(),
                ..Options::new(Body::Yield(kind))
            };
            written_for(&code, options)
        };
        let asking = lines(&[]);
        let [own, other, away] = ["prefetcht0 [rdi]", "prefetcht0 [rdi+40h]", "jmp r"]
            .map(|line| asking.iter().position(|it| it.starts_with(line)));
        assert!(own.is_some() && own < other && other < away, "{asking:#?}");
        for part in [YieldPart::Companions, YieldPart::Prefetch] {
            assert_eq!(
                count(&lines(&[part]), "prefetcht0 [rdi+40h]"),
                0,
                "{part:?}"
            );
        }
    }
}

#[test]
fn state_that_a_chase_does_not_touch_is_saved_around_it() {
    // 1: mov rdi,[rdi]; sub eax,1; jnz 1b; ret
    let code = [0x48, 0x8b, 0x3f, 0x83, 0xe8, 0x01, 0x75, 0xf8, 0xc3];
    let pushed = |without: &[YieldPart]| {
        let options = Options {
            closes_loops: true,
            without: without.to_vec(),
            ..Options::new(Body::Yield(Yield::Primary))
        };
        let lines = written_for(&code, options);
        let iteration = position(&lines, "prefetcht0 [rdi]");
        let load = position(&lines, "mov rdi,[rdi]");
        [&lines[..iteration], &lines[iteration..load]].map(|part| {
            let registers = part.iter().filter_map(|line| line.strip_prefix("push "));
            registers.map(str::to_owned).collect::<Vec<_>>()
        })
    };
    let [around, within] = pushed(&[]);
    assert_eq!(within, ["rax", "rdi"]);
    assert!(around.contains(&"rbx".to_owned()) && around.contains(&"r15".to_owned()));
    let [around, within] = pushed(&[YieldPart::LoopSaves]);
    assert_eq!(around, [""; 0]);
    assert!(within.contains(&"rbx".to_owned()));
}

fn position(lines: &[String], line: &str) -> usize {
    let found = lines.iter().position(|it| it == line);
    found.unwrap_or_else(|| panic!("no `{line}` in {lines:#?}"))
}

#[test]
fn a_trap_on_another_path_refuses_no_yield() {
    // test edi, edi; jz 2f; mov rax, [rdi]; ret; 2: ud2
    let code = [
        0x85, 0xff, 0x74, 0x06, 0x48, 0x8b, 0x07, 0xc3, 0x66, 0x90, 0x0f, 0x0b,
    ];
    let options = Options {
        hooks: Hooks::LeaveOut,
        ..Options::new(Body::Yield(Yield::Primary))
    };
    let plan = Plan::of_code(&code, 0x1000, &options);
    let numbers: Vec<_> = plan.sites().map(|site| site.number).collect();
    assert_eq!(numbers, [Ok(0)]);
}

#[test]
fn status_bits_cause_no_change_of_the_rounding_mode() {
    let (cost, own_base) = (1, false);
    let changes = [
        Yield::Primary,
        Yield::Bound { cost, own_base },
        Yield::Miss { cost, own_base },
    ];
    for kind in changes {
        let lines = written(kind);
        let compared = format!("test gs:[{:X}h],rdx", offset_of!(RunQueue, own_bits));
        let loads = lines.iter().enumerate();
        let loads: Vec<_> = loads.filter(|(_, it)| it.starts_with("ldmxcsr")).collect();
        assert!(!loads.is_empty(), "{lines:#?}");
        for (at, _) in loads {
            let [.., differ, test, jump] = &lines[..at] else {
                panic!("{lines:#?}");
            };
            assert!(differ.starts_with("xor rdx,"), "{lines:#?}");
            assert!(*test == compared && jump.starts_with("je "), "{lines:#?}");
        }
    }
}

#[test]
fn only_the_thread_clears_current() {
    let offset = offset_of!(RunQueue, current);
    let cleared = format!("mov qword ptr gs:[{offset:X}h],0");
    let (cost, own_base) = (1, false);
    for kind in [
        Yield::Bound { cost, own_base },
        Yield::Miss { cost, own_base },
    ] {
        let lines = written(kind);
        assert!(!lines.contains(&cleared), "{lines:#?}");
        let stack = position(
            &lines,
            &format!("mov rsp,gs:[{:X}h]", offset_of!(RunQueue, stack)),
        );
        assert_eq!(lines[stack + 1], "jmp rcx", "{lines:#?}");
    }
    let lines = written(Yield::Primary);
    let away = position(&lines, &format!("mov gs:[{offset:X}h],rax"));
    assert!(away < position(&lines, "jmp rdx"));
    assert!(position(&lines, "jmp rdx") < position(&lines, &cleared));
    let selector = offset_of!(RunQueue, selector);
    let own_calls = position(&lines, &format!("mov byte ptr gs:[{selector:X}h],0"));
    assert!(own_calls < position(&lines, &cleared));
}

#[test]
fn the_ring_is_read_after_parking() {
    let (cost, own_base) = (1, false);
    let lines = written(Yield::Miss { cost, own_base });
    let next = format!("mov rcx,[rax+{:X}h]", offset_of!(Context, next));
    let resume = format!("mov [rax+{}],rcx", offset_of!(Context, resume));
    let parks = lines.iter().filter(|line| **line == resume).count();
    // Once each for the next context, for the thread, and for a skipped time slice.
    assert_eq!(parks, 3, "{lines:#?}");
    assert!(
        position(&lines, &resume) < position(&lines, &next),
        "{lines:#?}"
    );
}

#[test]
fn a_resumed_context_is_no_longer_parked() {
    let lines = written(Yield::Primary);
    let offset = offset_of!(Context, resume);
    let reads_resume = position(&lines, &format!("mov rdx,[rax+{offset}]"));
    let stack = position(&lines, "mov rsp,[rax]");
    let clears_resume = position(&lines, &format!("mov qword ptr [rax+{offset}],0"));
    assert!(reads_resume < stack && stack < clears_resume);
    assert_eq!(lines[clears_resume + 1], "jmp rdx");
}

#[test]
fn the_thread_gets_its_own_base_for_any_owner() {
    let lines = written(Yield::Bound {
        cost: 1,
        own_base: false,
    });
    let base = position(
        &lines,
        &format!("mov rdx,gs:[{:X}h]", offset_of!(RunQueue, base)),
    );
    let borrowed = offset_of!(RunQueue, borrowed);
    assert_eq!(
        lines[base + 1..base + 3],
        [
            "wrfsbase rdx".to_owned(),
            format!("mov qword ptr gs:[{borrowed:X}h],0")
        ]
    );
}
