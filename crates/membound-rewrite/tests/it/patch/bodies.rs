//! Random programs do the same with every body before every access.

use iced_x86::Register;
use iced_x86::code_asm::{CodeAssembler, get_gpr64, qword_ptr, r15};
use membound_rewrite::code::Tables;
use membound_rewrite::flow::access;
use membound_rewrite::patch::{Body, Mark, Options, YieldPart};
use membound_wire::LEAD_IN;

use super::lab::{self, Jumps, Lab};
use crate::flow::programs::{CodePosition, Pool, Program, Step};
use crate::machine::{Machine, Random};

/// A program's code with short accesses inserted.
pub(crate) fn code_of(program: &Program, at: u64, random: &mut Random) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut word = a.create_label();
    program.emit(&mut a, |a, place| {
        // Not between a loop's countdown and its jump.
        if matches!(place, CodePosition::Before(_, 0)) {
            strew(a, word, random);
        }
    });
    a.ret().unwrap();
    for _ in 0..5 {
        a.nop().unwrap();
    }
    a.set_label(&mut word).unwrap();
    // Part of the function, and behind its padding: read only.
    a.int3().unwrap();
    a.db(&[0x55; 8]).unwrap();
    a.assemble(at).unwrap()
}

/// A program that can be single-stepped: without instructions that the kernel emulates, after which no trap
/// follows.
pub(crate) fn program(length: usize, pool: &Pool, random: &mut Random) -> Program {
    use iced_x86::Mnemonic as M;
    loop {
        let program = Program::random(length, pool, random);
        let emulated = program.steps.iter().any(|step| match step {
            Step::Plain(instruction) => matches!(
                instruction.mnemonic(),
                M::Str | M::Sldt | M::Smsw | M::Sgdt | M::Sidt
            ),
            _ => false,
        });
        if !emulated {
            return program;
        }
    }
}

/// Short loads and stores, and rip-relative operands, which random encodings rarely contain.
fn strew(a: &mut CodeAssembler, word: iced_x86::code_asm::CodeLabel, random: &mut Random) {
    let register = loop {
        let register = Register::RAX + random.below(14) as u32;
        if register != Register::RSP {
            break get_gpr64(register).unwrap();
        }
    };
    let slot = qword_ptr(r15 + 8 * random.below(8) as i32);
    match random.below(14) {
        0 => a.mov(register, slot).unwrap(),
        1 => a.mov(slot, register).unwrap(),
        2 => a.add(register, slot).unwrap(),
        3 => a.add(slot, register).unwrap(),
        4 => a.mov(register, qword_ptr(r15)).unwrap(),
        5 => a.cmp(register, qword_ptr(r15)).unwrap(),
        6 => a.adc(register, qword_ptr(word)).unwrap(),
        7 => a.adc(qword_ptr(r15), register).unwrap(),
        8 => a.push(register).and_then(|()| a.pop(slot)).unwrap(),
        _ => {}
    }
}

pub(crate) const BODIES: [Body; 9] = [
    Body::Displace,
    Body::Count { exact: false },
    Body::Count { exact: true },
    Body::CountByStack,
    Body::Rubbish,
    Body::Sample,
    Body::Record,
    Body::PrefetchYield,
    Body::Mark(Mark::Enter),
];

pub(crate) fn options(body: Body, random: &mut Random) -> Options {
    let mut options = Options::new(body);
    options.tables = if random.once_in(2) {
        Tables::Resolve
    } else {
        Tables::Ignore
    };
    // Leaving out parts of yields does not change what the program computes.
    let parts = [
        YieldPart::Liveness,
        YieldPart::UnusedVectors,
        YieldPart::Prefetch,
        YieldPart::LoopSaves,
        YieldPart::NextContext,
    ];
    options.without = parts.into_iter().filter(|_| random.once_in(4)).collect();
    options.closes_loops = random.once_in(2);
    options
}

#[test]
fn patched_programs_do_the_same() {
    let mut machine = Machine::new();
    let mut random = Random::new(0x7061_7463);
    let pool = Pool::find(&mut machine, &mut random);
    let mut lab = Lab::new();
    let mut planted = 0;
    let mut reported = 0;
    for round in 0..150 {
        let length = 5 + random.below(40) as usize;
        let program = program(length, &pool, &mut random);
        let code = code_of(&program, lab.text(), &mut random);
        let (state, memory) = lab::beginning(&machine, &mut random);
        lab.load(&code);
        let expected = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
        for body in BODIES {
            let options = options(body, &mut random);
            lab.patch(&code, &options, Jumps::Planted);
            if body == Body::Sample {
                lab.arm(random.below(3) as u32);
            }
            if body == Body::Record && random.once_in(2) {
                lab.burst();
            }
            planted += lab.planted().iter().filter(|planted| **planted).count();
            let after = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
            reported += lab.log().calls;
            lab::assert_same(&expected, &after, &format!("{round} {body:?} {program:?}"));
        }
    }
    assert!(planted > 10_000, "{planted} sites");
    assert!(reported > 1000, "{reported} calls");
}

#[test]
fn counts_are_the_executions() {
    let mut machine = Machine::new();
    let mut random = Random::new(0x636f_756e);
    let pool = Pool::find(&mut machine, &mut random);
    let mut lab = Lab::new();
    let mut counted = 0;
    for round in 0..60 {
        let program = program(20, &pool, &mut random);
        let code = code_of(&program, lab.text(), &mut random);
        let (state, memory) = lab::beginning(&machine, &mut random);
        lab.load(&code);
        let (runs, _) = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
        if runs.is_err() {
            continue;
        }
        // The reference: all instructions executed in single steps.
        let text = lab.text()..lab.text() + code.len() as u64;
        let steps = super::stepping::trace(&mut machine, text, &state, &memory);
        let counting = [false, true].map(|exact| Body::Count { exact });
        for body in counting.into_iter().chain([Body::CountByStack]) {
            let options = options(body, &mut random);
            lab.patch(&code, &options, Jumps::Planted);
            let (after, _) = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
            after.unwrap();
            let planted = lab.planted();
            for site in lab.plan.as_ref().unwrap().sites() {
                let Ok(number) = site.number else { continue };
                if !planted[number as usize] {
                    continue;
                }
                let truth = steps.iter().filter(|step| step.ip == site.address).count() as u64;
                let count = lab.counted(number);
                assert_eq!(count, truth, "{round} {:#x}", site.address);
                counted += count;
            }
        }
    }
    assert!(counted > 1000, "{counted}");
}

#[test]
fn samples_and_records_say_what_was_accessed() {
    use iced_x86::code_asm::{dword_ptr, eax, rbx, rdi};
    let mut machine = Machine::new();
    let mut random = Random::new(0x7361_6d70);
    let mut lab = Lab::new();
    let place = dword_ptr(r15 + rbx * 4 + 0x120);
    type Write = fn(&mut CodeAssembler, iced_x86::code_asm::AsmMemoryOperand);
    let accesses: [(Write, u64); 3] = [
        (|a, place| a.mov(eax, place).unwrap(), 0),
        (|a, place| a.mov(place, eax).unwrap(), 1 << 31),
        (|a, place| a.add(place, eax).unwrap(), 1 << 31),
    ];
    for (write, mark) in accesses {
        let mut a = CodeAssembler::new(64).unwrap();
        a.mov(rbx, rdi).unwrap();
        write(&mut a, place);
        a.ret().unwrap();
        let code = a.assemble(lab.text()).unwrap();
        let (mut state, memory) = lab::beginning(&machine, &mut random);
        state.set_gpr(membound_rewrite::Gpr::RDI, 7);
        let address = machine.arena.middle() + 2048 + 7 * 4 + 0x120;
        for body in [Body::Sample, Body::Record] {
            lab.patch(&code, &Options::new(body), Jumps::Planted);
            // A countdown of zero makes the sample due after the lead-in; without a burst nothing is
            // recorded.
            for run in 1..=LEAD_IN {
                let (after, _) = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
                after.unwrap();
                let expected = u64::from(body == Body::Sample && run == LEAD_IN);
                assert_eq!(lab.log().calls, expected, "{body:?}, run {run}");
            }
            if body == Body::Record {
                lab.burst();
                let (after, _) = lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly);
                after.unwrap();
            }
            let log = lab.log();
            assert_eq!(log.calls, 1);
            assert_eq!(log.site & 0xffff_ffff, mark);
            assert_eq!(log.address, address);
            if body == Body::Sample {
                for ticks in [log.ticks, log.hit, log.drain] {
                    assert!((1..10_000_000).contains(&ticks), "{log:?}");
                }
                let probe = lab.words(0);
                assert_eq!(i32::from_le_bytes(probe[..4].try_into().unwrap()), -LEAD_IN);
            }
        }
    }
    let access = access(&iced_x86::Instruction::default());
    assert_eq!(access, None, "no instruction, no access");
}
