//! Programs with yields that change every register, with state saved and restored at the save points, compute
//! the same result as without yields.

use iced_x86::Register;
use iced_x86::code_asm::{CodeAssembler, get_gpr64, qword_ptr, rax};
use membound_rewrite::code::{BlockId, Function};
use membound_rewrite::flow::{
    Analyst, Conventions, Definition, Dominators, Liveness, LoopId, LoopUse, Loops, Reaching,
    SavePoints, Summaries,
};
use membound_rewrite::image::Convention;
use membound_rewrite::{Gpr, RegisterSet};

use super::programs::{self, CodePosition, Pool, Program, Shape};
use crate::machine::{Arena, Machine, Random, State, Unit, load_rax, store_rax};

/// One slot for each general register; rax is kept separately while others are moved.
#[derive(Default)]
struct Slots {
    registers: [u64; 16],
    rax: u64,
}

impl Slots {
    fn of(&self, register: Gpr) -> u64 {
        std::ptr::from_ref(&self.registers[usize::from(register.number())]) as u64
    }

    /// Moves registers to their slots or back, and changes nothing else, not even flags.
    fn move_registers(&self, a: &mut CodeAssembler, set: RegisterSet, direction: Direction) {
        let rax_slot = std::ptr::from_ref(&self.rax) as u64;
        store_rax(a, rax_slot);
        for register in set.gprs() {
            if register == Gpr::RAX || register == Gpr::RSP {
                continue;
            }
            a.mov(rax, self.of(register)).unwrap();
            let name = native(register);
            match direction {
                Direction::Save => a.mov(qword_ptr(rax), name).unwrap(),
                Direction::Restore => a.mov(name, qword_ptr(rax)).unwrap(),
            }
        }
        load_rax(a, rax_slot);
        if set.contains(RegisterSet::gpr(Gpr::RAX)) {
            match direction {
                Direction::Save => store_rax(a, self.of(Gpr::RAX)),
                Direction::Restore => load_rax(a, self.of(Gpr::RAX)),
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Save,
    Restore,
}

fn native(register: Gpr) -> iced_x86::code_asm::AsmRegister64 {
    get_gpr64(Register::RAX + u32::from(register.number())).unwrap()
}

fn block_of(function: &Function, index: usize) -> BlockId {
    let at = function
        .blocks
        .iter()
        .position(|block| (block.first as usize..block.end as usize).contains(&index))
        .unwrap();
    BlockId(at as u32)
}

/// The saves, yields and restores at each position of the code.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    save: RegisterSet,
    scramble: bool,
    restore: RegisterSet,
}

struct Planned {
    before: Vec<Work>,
    after: Vec<Work>,
    at_end: RegisterSet,
    hoisted: u32,
    given_back_at_exits: u32,
}

fn plan(program: &Program, random: &mut Random) -> Planned {
    let (function, places) = program.function();
    let summaries = Summaries::default();
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    let mut analyst = Analyst::new();
    let liveness = Liveness::of(&function, &conventions, &mut analyst);
    let loops = Loops::of(&function);
    let uses = LoopUse::of(&function, &loops, &mut analyst);
    let steps = program.steps.len();
    let mut planned = Planned {
        before: vec![Work::default(); steps + 1],
        after: vec![Work::default(); steps],
        at_end: places[steps][0].map_or(RegisterSet::ALL, |at| liveness.before(at)),
        hoisted: 0,
        given_back_at_exits: 0,
    };
    let step_of = |index: usize| {
        places
            .iter()
            .position(|step| step.contains(&Some(index)))
            .unwrap()
    };
    for (step, indices) in places.iter().enumerate().take(steps) {
        let Some(index) = indices[0] else {
            continue;
        };
        if !random.one_in(4) {
            continue;
        }
        let block = block_of(&function, index);
        let points = SavePoints::of(&function, block, index, &liveness, &loops, &uses);
        planned.before[step].save = points.save;
        planned.before[step].scramble = true;
        planned.before[step].restore = points.restore;
        for around in &points.around {
            let edges = loops.get(around.edges_of);
            assert!(!edges.is_irreducible());
            planned.hoisted += around.saved.gprs().count() as u32;
            planned.given_back_at_exits += around.restored.gprs().count() as u32;
            // In these programs all edges into or out of loops lead from a step to the next.
            for edge in &edges.entered_by {
                let from = function.blocks[edge.from.index()].end as usize - 1;
                let work = &mut planned.after[step_of(from)];
                work.save = work.save.union(around.saved);
            }
            for edge in &edges.left_by {
                let from = function.blocks[edge.from.index()].end as usize - 1;
                let to = function.blocks[edge.to.index()].first as usize;
                let work = &mut planned.after[step_of(from)];
                let alive = around.restored.intersection(liveness.before(to));
                work.restore = work.restore.union(alive);
            }
        }
    }
    planned
}

fn check(program: &Program, machine: &mut Machine, random: &mut Random) -> Option<(u32, u32)> {
    let planned = plan(program, random);
    let slots = Box::new(Slots::default());
    let mut state = State::random(random, &machine.arena);
    programs::aim(&mut state, machine);
    let contents = Arena::random_contents(random);
    machine.load(|a| program.emit(a, |_, _| {}));
    machine.arena.fill(&contents);
    let plain = machine.run(&state).ok()?;
    let memory = machine.arena.contents().to_vec();
    machine.load(|a| {
        program.emit(a, |a, place| {
            let work = match place {
                CodePosition::Before(step, 0) => planned.before[step],
                CodePosition::Before(..) => return,
                CodePosition::After(step) => planned.after[step],
            };
            // Where one loop ends and the next begins, the exit comes first.
            if !work.scramble {
                slots.move_registers(a, work.restore, Direction::Restore);
                slots.move_registers(a, work.save, Direction::Save);
                return;
            }
            slots.move_registers(a, work.save, Direction::Save);
            for register in Gpr::all().filter(|register| *register != Gpr::RSP) {
                a.mov(native(register), random.next()).unwrap();
            }
            slots.move_registers(a, work.restore, Direction::Restore);
        });
    });
    machine.arena.fill(&contents);
    let yielded = machine.run(&state).expect("it did not fault before");
    for unit in Unit::all() {
        if planned.at_end.contains(unit.set()) {
            let (plain, yielded) = (plain.bytes(unit), yielded.bytes(unit));
            assert_eq!(plain, yielded, "{} after {program:#?}", unit.set());
        }
    }
    assert!(
        memory == machine.arena.contents(),
        "memory after {program:#?}"
    );
    Some((planned.hoisted, planned.given_back_at_exits))
}

#[test]
fn yields_keep_what_is_alive() {
    let mut machine = Machine::new();
    let mut random = Random::new(21);
    let pool = Pool::find(&mut machine, &mut random);
    let (mut ran, mut hoisted, mut given_back) = (0, 0, 0);
    for _ in 0..1500 {
        let length = 8 + random.below(30) as usize;
        let program = Program::random(length, Shape::Connected, &pool, &mut random);
        if let Some((saved, restored)) = check(&program, &mut machine, &mut random) {
            ran += 1;
            hoisted += saved;
            given_back += restored;
        }
    }
    assert!(ran > 1000, "only {ran} programs ran to their end");
    assert!(
        hoisted > 1000 && given_back > 1000,
        "{hoisted} and {given_back}"
    );
}

/// Reaching definitions by the textbook: sets propagated forward to a fixpoint.
fn forward(function: &Function, analyst: &mut Analyst, register: Gpr) -> Vec<Vec<Definition>> {
    let set = RegisterSet::gpr(register);
    let count = function.blocks.len();
    let mut into: Vec<Vec<Definition>> = vec![Vec::new(); count];
    for (index, block) in function.blocks.iter().enumerate() {
        if block.entered_from_outside || index == 0 {
            into[index].push(Definition::Outside);
        }
    }
    let mut before = vec![Vec::new(); function.instructions.len()];
    loop {
        let mut changed = false;
        for index in 0..count {
            let block = &function.blocks[index];
            let mut found = into[index].clone();
            for (at, instruction) in
                (block.first as usize..).zip(function.block_instructions(block))
            {
                before[at].clone_from(&found);
                let effects = analyst.effects(instruction);
                if effects.kills.contains(set) {
                    found.clear();
                }
                if effects.writes.contains(set) && !found.contains(&Definition::Instruction(at)) {
                    found.push(Definition::Instruction(at));
                }
            }
            for next in &block.successors {
                for definition in &found {
                    if !into[next.index()].contains(definition) {
                        into[next.index()].push(*definition);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    for found in &mut before {
        found.sort_unstable();
    }
    before
}

#[test]
fn definitions_are_those_that_flow_forward() {
    let mut machine = Machine::new();
    let mut random = Random::new(22);
    let pool = Pool::find(&mut machine, &mut random);
    let mut analyst = Analyst::new();
    let summaries = Summaries::default();
    let conventions = Conventions {
        convention: Convention::SystemV,
        summaries: &summaries,
    };
    for _ in 0..150 {
        let program = Program::random(30, Shape::Any, &pool, &mut random);
        let (function, _) = program.function();
        let reaching = Reaching::of(&function, &conventions);
        for register in Gpr::all() {
            let expected = forward(&function, &mut analyst, register);
            for (index, expected) in expected.iter().enumerate() {
                assert_eq!(&reaching.definitions(index, register), expected);
            }
        }
    }
}

#[test]
fn headers_of_a_programs_loops_dominate_them() {
    let mut machine = Machine::new();
    let mut random = Random::new(23);
    let pool = Pool::find(&mut machine, &mut random);
    let mut nested = 0;
    for _ in 0..200 {
        let program = Program::random(40, Shape::Connected, &pool, &mut random);
        let (function, _) = program.function();
        let dominators = Dominators::of(&function);
        let loops = Loops::of(&function);
        for (index, found) in loops.all().iter().enumerate() {
            let header = found.header().expect("counted loops have one entry");
            assert!(
                found
                    .blocks
                    .iter()
                    .all(|block| dominators.dominates(header, *block))
            );
            assert!(loops.around(header).any(|id| id == LoopId(index as u32)));
            nested += found.depth;
        }
    }
    assert!(nested > 50, "{nested}");
}
