//! Loops around which state is saved: it is preserved whatever other contexts do in the meantime, and
//! wherever in the loop a thread is moved.

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, get_gpr64, qword_ptr, r15, xmm0, xmm1};
use iced_x86::{Decoder, DecoderOptions, OpKind, Register};
use membound_rewrite::patch::{Accesses, Body, Options, VectorLevel, Yield, YieldPart};
use membound_wire::{TableHeader, UndoKind};

use super::lab::{Jumps, Lab};
use super::stepping::{Alive, Beginning, Case, moved_in, undone};
use super::yields::{COST, ClobberingCode, RunQueueHarness, as_context, as_thread};
use crate::machine::{Machine, Random};

/// A loop with loads, sometimes with an early exit, followed by code that reads every register.
fn program(text: u64, random: &mut Random) -> Vec<u8> {
    let mut free: Vec<AsmRegister64> = (0..15)
        .map(|number| Register::RAX + number)
        .filter(|register| *register != Register::RSP)
        .map(|register| get_gpr64(register).unwrap())
        .collect();
    let mut draw = || free.swap_remove(random.below(free.len() as u64) as usize);
    let [counter, sum, read, given] = [draw(), draw(), draw(), draw()];
    let mut a = CodeAssembler::new(64).unwrap();
    let mut iteration = a.create_label();
    let mut out = a.create_label();
    a.mov(counter, 1 + random.below(6)).unwrap();
    a.set_label(&mut iteration).unwrap();
    if random.once_in(2) {
        a.add(sum, given).unwrap();
    }
    a.mov(sum, qword_ptr(r15 + counter * 8)).unwrap();
    if random.once_in(2) {
        a.xor(sum, read).unwrap();
    }
    // Sets sticky exception bits, so that MXCSR changes during the loop.
    if random.once_in(3) {
        a.cvtsi2sd(xmm0, sum).unwrap();
        a.sqrtsd(xmm1, xmm0).unwrap();
    }
    if random.once_in(2) {
        a.test(sum, 1).unwrap();
        a.jnz(out).unwrap();
    }
    if random.once_in(2) {
        a.add(sum, qword_ptr(r15 + counter * 8 + 64)).unwrap();
    }
    if random.once_in(3) {
        a.sub(counter, 1).unwrap();
    } else {
        a.dec(counter).unwrap();
    }
    a.jnz(iteration).unwrap();
    if random.once_in(2) {
        a.neg(sum).unwrap();
    }
    a.set_label(&mut out).unwrap();
    // From here on, only the lowest 16 bytes of vector registers are alive.
    if VectorLevel::detect() != VectorLevel::Sse && random.once_in(2) {
        a.vzeroupper().unwrap();
    }
    for (slot, register) in free.iter().chain(&[counter, sum, read, given]).enumerate() {
        a.add(qword_ptr(r15 + 128 + 8 * slot as i32), *register)
            .unwrap();
    }
    // A leaf function may use the red zone if it has nothing else on the stack.
    if random.once_in(2) {
        a.mov(qword_ptr(iced_x86::code_asm::rsp - 8), sum).unwrap();
    }
    a.ret().unwrap();
    a.assemble(text).unwrap()
}

/// Options with saves around every loop, unless `without` contains them.
fn options(body: Body, without: &[YieldPart], code: &[u8], text: u64) -> Options {
    let instructions = Decoder::with_ip(64, code, text, DecoderOptions::NONE);
    Options {
        long_loops: instructions.into_iter().map(|it| it.ip()).collect(),
        accesses: Accesses::Loads,
        closes_loops: true,
        without: without.to_vec(),
        ..Options::new(body)
    }
}

/// Numbers of programs with certain properties.
#[derive(Default)]
struct Counts {
    /// Programs whose patched code differs because of saves around loops.
    saved: usize,
    /// Of those, programs with code after the loop in the loop's trampoline.
    jumps_back: usize,
    /// Of those, programs in which vector registers are saved.
    vectors: usize,
    /// Of those, programs in which iterations are copied.
    copied: usize,
}

/// Patches a program and counts its properties.
fn look(lab: &mut Lab, code: &[u8], body: Body, counts: &mut Counts) {
    let mut placed = |without: &[YieldPart]| {
        let options = options(body, without, code, lab.text());
        lab.patch(code, &options, Jumps::LeftOut);
        lab.placed.take().unwrap()
    };
    let (with, without) = (placed(&[]), placed(&[YieldPart::LoopSaves]));
    if with.code == without.code {
        return;
    }
    counts.saved += 1;
    let header = TableHeader::read(&with.tables).unwrap();
    let undos = &with.tables[header.undos_offset as usize..][..8 * header.undos as usize];
    let of_vector = |undo: &[u8]| undo[0] == UndoKind::Vector as u8;
    counts.vectors += usize::from(undos.chunks(8).any(of_vector));
    let instructions = || Decoder::with_ip(64, code, lab.text(), DecoderOptions::NONE).into_iter();
    let loaded = instructions().find(|it| it.op_count() > 1 && it.op1_kind() == OpKind::Memory);
    counts.copied += usize::from(loaded.is_some_and(|load| {
        let at = (load.ip() - lab.text()) as usize;
        let load = &code[at..at + load.len()];
        with.code
            .windows(load.len())
            .filter(|it| *it == load)
            .count()
            > 1
    }));
    let iterations = instructions().filter(|instruction| instruction.is_jcc_short_or_near());
    let jumps_back = iterations.into_iter().any(|iteration| {
        let head = iteration.near_branch_target();
        let of_loop = with.edits.iter().find(|edit| edit.address == head);
        of_loop.is_some_and(|edit| {
            iteration.ip() > head && iteration.next_ip() < head + u64::from(edit.group)
        })
    });
    counts.jumps_back += usize::from(jumps_back);
}

/// Steps through such programs with yields of `body`, on a run queue that `prepare` sets up.
fn step_through(body: Body, seed: u64, prepare: impl Fn(&mut RunQueueHarness)) -> Option<Counts> {
    let mut harness = RunQueueHarness::new()?;
    prepare(&mut harness);
    let mut machine = Machine::new();
    let mut random = Random::new(seed);
    let mut lab = Lab::new();
    let (run_queue, contexts) = (*harness.run_queue, *harness.contexts);
    let (mut inside, mut entered, mut counts) = (0, 0, Counts::default());
    for round in 0..24 {
        let code = program(lab.text(), &mut random);
        let beginning = Beginning::of(&code, &mut lab, &machine, &mut random);
        let truth = beginning.truth(&mut machine);
        let alive = Alive::of(&code, lab.text());
        let case = Case {
            beginning: &beginning,
            truth: &truth,
            alive: &alive,
            code: &code,
            body,
            round,
        };
        let mut without = vec![YieldPart::NextContext];
        without.retain(|_| random.once_in(3));
        let mut options = options(body, &without, &code, lab.text());
        look(&mut lab, &code, body, &mut counts);
        if random.once_in(2) {
            let sites = lab.plan.as_ref().unwrap().sites();
            options.recalled = sites.map(|site| site.address).collect();
        }
        *harness.run_queue = run_queue;
        *harness.contexts = contexts;
        harness.forget();
        harness.on_run_queue(|| {
            inside += undone(&case, &options, &mut machine, &mut lab, &mut random);
            entered += moved_in(&case, &options, &mut machine, &mut lab, &mut random);
        });
    }
    let Counts {
        saved,
        jumps_back,
        vectors,
        ..
    } = counts;
    assert!(saved > 20, "{saved} loops with saves around them");
    assert!(
        jumps_back > 4,
        "{jumps_back} trampolines that go on behind a loop"
    );
    assert!(
        vectors > 4,
        "{vectors} loops around which vectors are saved"
    );
    assert!(inside > 800, "{inside} places inside trampolines");
    assert!(entered > 8, "{entered} threads moved into trampolines");
    assert!(harness.visits() > 200, "{} visits", harness.visits());
    Some(counts)
}

#[test]
fn every_boundary_of_a_loop_with_saves_around_it_leads_back() {
    step_through(Body::Yield(Yield::Primary), 0x6c6f_6f70, |harness| {
        let resume = harness.clobbering_code(ClobberingCode::Context);
        as_thread(harness, resume);
    });
}

#[test]
fn every_boundary_of_a_scavenger_s_loop_leads_back() {
    let miss = Body::Yield(Yield::Miss {
        cost: COST,
        own_base: false,
    });
    for (credit, skips) in [(0, 0), (i32::MAX / 2, 0), (0, 1), (i32::MAX / 2, 2)] {
        step_through(miss, 0x6d69_7373, |harness| {
            as_context(harness, credit);
            harness.run_queue.skips = skips;
        });
    }
}

/// The cost lets few iterations be charged together.
#[test]
fn every_boundary_of_a_bound_yield_s_loop_leads_back() {
    let bound = Body::Yield(Yield::Bound {
        cost: COST / 4,
        own_base: false,
    });
    step_through(bound, 0x626f_756e, |harness| as_context(harness, 0));
}

/// The cost lets many iterations be charged together, so iterations are copied.
#[test]
fn every_boundary_of_copied_iterations_leads_back() {
    let (cost, own_base) = (4, false);
    let bound = Body::Yield(Yield::Bound { cost, own_base });
    if let Some(counts) = step_through(bound, 0x636f_7079, |harness| as_context(harness, 0)) {
        let copied = counts.copied;
        assert!(copied > 3, "{copied} loops with laps behind each other");
    }
}
