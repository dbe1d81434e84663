//! Overwriting state considered dead does not change any result.

use iced_x86::Register;
use iced_x86::code_asm::{
    AsmRegisterK, CodeAssembler, get_gpr64, get_xmm, get_ymm, get_zmm, k0, k1, k2, k3, k4, k5, k6,
    k7, ptr, qword_ptr, rax, rsp,
};
use membound_rewrite::flow::{Analyst, Conventions, Liveness, Summaries};
use membound_rewrite::image::Convention;
use membound_rewrite::{Gpr, RegisterSet, VectorPart};

use super::programs::{self, CodePosition, Pool, Program};
use crate::machine::{Arena, FLAGS, Machine, Random, State, Unit, Width, load_rax, store_rax};

/// Holds the arbitrary values, and keeps rax in the meantime.
#[repr(C, align(64))]
struct Rubbish {
    bytes: [u8; 64],
    mxcsr: u32,
    saved_rax: u64,
}

impl Rubbish {
    fn new(random: &mut Random) -> Box<Self> {
        let mut bytes = [0; 64];
        for byte in &mut bytes {
            *byte = random.next() as u8;
        }
        Box::new(Self {
            bytes,
            mxcsr: 0x1f80 | random.next() as u32 & 0xe07f,
            saved_rax: 0,
        })
    }

    fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Overwrites every unit in `dead` and nothing else.
    fn write(&self, a: &mut CodeAssembler, dead: RegisterSet, random: &mut Random) {
        let saved_rax = self.address() + std::mem::offset_of!(Self, saved_rax) as u64;
        store_rax(a, saved_rax);
        let flags: u64 = FLAGS
            .iter()
            .filter(|(flag, _)| dead.contains(RegisterSet::flag(*flag)))
            .map(|(_, bit)| 1 << bit & random.next())
            .sum();
        if flags != 0 {
            // The other flags are changed through memory.
            a.pushfq().unwrap();
            a.xor(qword_ptr(rsp), flags as i32).unwrap();
            a.popfq().unwrap();
        }
        a.mov(rax, self.address()).unwrap();
        self.vectors(a, dead);
        if dead.contains(RegisterSet::MXCSR) {
            a.ldmxcsr(ptr(rax + std::mem::offset_of!(Self, mxcsr)))
                .unwrap();
        }
        for register in Gpr::all().skip(1) {
            if dead.contains(RegisterSet::gpr(register)) {
                let register = Register::RAX + u32::from(register.number());
                a.mov(get_gpr64(register).unwrap(), random.next()).unwrap();
            }
        }
        if dead.contains(RegisterSet::gpr(Gpr::RAX)) {
            a.mov(rax, random.next()).unwrap();
        } else {
            load_rax(a, saved_rax);
        }
    }

    fn vectors(&self, a: &mut CodeAssembler, dead: RegisterSet) {
        let width = Width::of_machine();
        let count = if width == Width::Zmm { 32 } else { 16 };
        for number in 0..count {
            let is_dead = |part| dead.contains(RegisterSet::vector(number, part));
            let number = u32::from(number);
            let xmm = get_xmm(Register::XMM0 + number).unwrap();
            let ymm = get_ymm(Register::YMM0 + number).unwrap();
            let zmm = get_zmm(Register::ZMM0 + number).unwrap();
            if is_dead(VectorPart::Xmm) {
                // Each of these leaves the other parts as they are.
                match width {
                    Width::Zmm => a.vinserti64x2(zmm, zmm, ptr(rax), 0).unwrap(),
                    _ => a.movups(xmm, ptr(rax)).unwrap(),
                }
            }
            if is_dead(VectorPart::YmmHigh) {
                match width {
                    Width::Zmm => a.vinserti64x2(zmm, zmm, ptr(rax + 16), 1).unwrap(),
                    Width::Ymm => a.vinsertf128(ymm, ymm, ptr(rax + 16), 1).unwrap(),
                    Width::Xmm => {}
                }
            }
            if is_dead(VectorPart::ZmmHigh) && width == Width::Zmm {
                a.vinserti64x4(zmm, zmm, ptr(rax + 32), 1).unwrap();
            }
        }
        if width == Width::Zmm {
            let masks: [AsmRegisterK; 8] = [k0, k1, k2, k3, k4, k5, k6, k7];
            for (number, mask) in masks.into_iter().enumerate() {
                if dead.contains(RegisterSet::mask(number as u8)) {
                    a.kmovq(mask, qword_ptr(rax + 8 * number as i32)).unwrap();
                }
            }
        }
    }
}

/// Liveness of a program, by step and instruction within the step. Any answer is right for steps that are
/// never executed.
fn liveness(program: &Program, convention: Convention) -> Vec<Vec<RegisterSet>> {
    let (function, places) = program.function();
    let summaries = Summaries::default();
    let conventions = Conventions {
        convention,
        summaries: &summaries,
    };
    let liveness = Liveness::of(&function, &conventions, &mut Analyst::new());
    let before = |index: &Option<usize>| index.map_or(RegisterSet::ALL, |at| liveness.before(at));
    places
        .iter()
        .map(|step| step.iter().map(before).collect())
        .collect()
}

/// Runs a program unchanged, and with dead state overwritten before every instruction.
fn check(
    program: &Program,
    convention: Convention,
    machine: &mut Machine,
    random: &mut Random,
) -> Option<RegisterSet> {
    let alive = liveness(program, convention);
    let at_end = alive.last()?[0];
    let rubbish = Rubbish::new(random);
    let mut state = State::random(random, &machine.arena);
    programs::aim(&mut state, machine);
    let contents = Arena::random_contents(random);
    machine.load(|a| program.emit(a, |_, _| {}));
    machine.arena.fill(&contents);
    let plain = machine.run(&state).ok()?;
    let memory = machine.arena.contents().to_vec();
    let mut written = RegisterSet::EMPTY;
    machine.load(|a| {
        program.emit(a, |a, place| {
            let CodePosition::Before(step, instruction) = place else {
                return;
            };
            let dead = alive[step][instruction].complement();
            written = written.union(dead);
            rubbish.write(a, dead, random);
        });
    });
    machine.arena.fill(&contents);
    let rubbished = machine.run(&state).expect("it did not fault before");
    let shown = || {
        let mut text = String::new();
        for (index, step) in program.steps.iter().enumerate() {
            let step = match step {
                programs::Step::Plain(instruction) => instruction.to_string(),
                step => format!("{step:?}"),
            };
            text += &format!("{index:3} {step:50} {:?}\n", alive[index]);
        }
        text
    };
    for unit in Unit::all() {
        if at_end.contains(unit.set()) {
            assert_eq!(
                plain.bytes(unit),
                rubbished.bytes(unit),
                "{} at the end of\n{}",
                unit.set(),
                shown()
            );
        }
    }
    // rubbish itself pushes flags below rsp
    let below = crate::machine::ARENA_BYTES / 2 - 8..crate::machine::ARENA_BYTES / 2;
    let rubbished = machine.arena.contents();
    assert!(
        memory[..below.start] == rubbished[..below.start]
            && memory[below.end..] == rubbished[below.end..],
        "memory differs after\n{}",
        shown()
    );
    Some(written)
}

fn many(convention: Convention, seed: u64) -> RegisterSet {
    let mut machine = Machine::new();
    let mut random = Random::new(seed);
    let pool = Pool::find(&mut machine, &mut random);
    let mut written = RegisterSet::EMPTY;
    let mut ran = 0;
    for _ in 0..1500 {
        let length = 4 + random.below(30) as usize;
        let program = Program::random(length, &pool, &mut random);
        if let Some(dead) = check(&program, convention, &mut machine, &mut random) {
            written = written.union(dead);
            ran += 1;
        }
    }
    assert!(ran > 1000, "only {ran} programs ran to their end");
    written
}

#[test]
fn garbage_in_dead_state_has_no_effect() {
    let written = many(Convention::SystemV, 11);
    for set in [
        RegisterSet::ARITHMETIC_FLAGS,
        RegisterSet::MASKS,
        RegisterSet::GPRS.without(RegisterSet::gpr(Gpr::RSP).union(RegisterSet::gpr(Gpr::new(15)))),
    ] {
        if Width::of_machine() == Width::Zmm {
            assert!(
                written.contains(set),
                "never dead: {:?}",
                set.without(written)
            );
        }
    }
}

#[test]
fn garbage_in_dead_state_has_no_effect_where_everything_is_returned() {
    many(Convention::Unknown, 12);
}
