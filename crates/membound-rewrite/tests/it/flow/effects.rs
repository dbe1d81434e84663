//! Executes every encoding and compares what it does with its computed effects.
//!
//! Each instruction runs twice, the second time with all state scrambled that it does not read according to
//! the effects. State that it does not write must be unchanged, state that it kills must be equal in both
//! runs, and state that it may write must be either unchanged or equal.

use iced_x86::{Code, Encoder, Instruction, Mnemonic, OpKind};
use membound_rewrite::flow::{Analyst, Effects};
use membound_rewrite::{Gpr, RegisterSet};

use crate::generate::{self, Operands};
use crate::machine::{ARENA_BYTES, Arena, Machine, Random, State, Unit};

const VARIANTS: u32 = 8;
const STATES: u32 = 4;

/// Puts addresses inside the arena wherever the instruction addresses memory.
fn aim(state: &mut State, instruction: &Instruction, random: &mut Random, arena: &Arena) {
    let middle = arena.middle();
    let set = |state: &mut State, register: iced_x86::Register, value| {
        if register.is_gpr() {
            let number = register.full_register().number() as u8;
            state.set_gpr(Gpr::new(number), value);
        }
    };
    if instruction.is_string_instruction() {
        state.set_gpr(Gpr::RSI, middle + random.below(256));
        state.set_gpr(Gpr::RDI, middle + 1024 + random.below(256));
        if !random.once_in(8) {
            state.set_gpr(Gpr::RCX, random.below(6));
        }
    }
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Memory => {}
            OpKind::MemorySegRDI => state.set_gpr(Gpr::RDI, middle + random.below(64) * 16),
            _ => continue,
        }
        let index = instruction.memory_index();
        if index.is_vector_register() {
            let wide = instruction.is_vsib64();
            let number = index.number() as u8;
            let step = if wide { 8 } else { 4 };
            for lane in state.vector_mut(number).chunks_mut(step) {
                lane.fill(0);
                lane[0] = random.below(64) as u8;
            }
        } else {
            set(state, index, random.below(8) * 8);
        }
        set(state, instruction.memory_base(), middle);
        // Bits chosen by a register may lie anywhere.
        if matches!(
            instruction.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        ) && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register().full_register() != instruction.memory_base()
        {
            set(state, instruction.op1_register(), random.below(4096));
        }
    }
    match instruction.mnemonic() {
        Mnemonic::Leave | Mnemonic::Enter => state.set_gpr(Gpr::RBP, middle),
        Mnemonic::Clzero => state.set_gpr(Gpr::RAX, middle),
        _ => {}
    }
}

fn complaint(
    unit: Unit,
    effects: &Effects,
    instruction: &Instruction,
    before: [&State; 2],
    after: [&State; 2],
) -> Option<&'static str> {
    let set = unit.set();
    let old = before.map(|state| state.bytes(unit));
    let new = after.map(|state| state.bytes(unit));
    if !effects.writes.contains(set) {
        return (old != new).then_some("is written");
    }
    if effects.kills.contains(set) {
        return (new[0] != new[1]).then_some("depends on what is not read");
    }
    let undefined = instruction.rflags_undefined();
    if let Unit::Flag(..) = unit {
        let flags = iced_flag(unit);
        if undefined & flags != 0 {
            return None;
        }
    }
    let kept_or_same = (0..old[0].len()).all(|byte| {
        new[0][byte] == new[1][byte] || new[0][byte] == old[0][byte] && new[1][byte] == old[1][byte]
    });
    (!kept_or_same).then_some("is written from what is not read")
}

fn iced_flag(unit: Unit) -> u32 {
    use iced_x86::RflagsBits as F;
    use membound_rewrite::Flag;
    let Unit::Flag(flag, _) = unit else { return 0 };
    match flag {
        Flag::Carry => F::CF,
        Flag::Parity => F::PF,
        Flag::Adjust => F::AF,
        Flag::Zero => F::ZF,
        Flag::Sign => F::SF,
        Flag::Overflow => F::OF,
        Flag::Direction => F::DF,
    }
}

/// Runs one instruction in several states. Counts runs that did not fault.
fn check(
    instruction: &Instruction,
    machine: &mut Machine,
    analyst: &mut Analyst,
    random: &mut Random,
    complaints: &mut Vec<String>,
) -> u32 {
    let effects = analyst.effects(instruction);
    assert!(
        effects.writes.contains(effects.kills),
        "{instruction}: kills what it does not write"
    );
    let units = Unit::all();
    let mut encoder = Encoder::new(64);
    if encoder.encode(instruction, 0x1000).is_err() {
        return 0;
    }
    let bytes = encoder.take_buffer();
    machine.load(|a| a.db(&bytes).unwrap());
    let mut runs = 0;
    for _ in 0..STATES {
        let mut first = State::random(random, &machine.arena);
        aim(&mut first, instruction, random, &machine.arena);
        let mut second = first.clone();
        for &unit in &units {
            if !effects.reads.contains(unit.set()) {
                second.scramble(unit, random);
            }
        }
        let mut contents = Arena::random_contents(random);
        if matches!(instruction.mnemonic(), Mnemonic::Popf | Mnemonic::Popfq) {
            // Neither single steps nor alignment checks.
            contents[ARENA_BYTES / 2..][..8]
                .copy_from_slice(&(random.next() & 0xcd5).to_le_bytes());
        }
        machine.arena.fill(&contents);
        let one = machine.run(&first);
        let memory = machine.arena.contents().to_vec();
        machine.arena.fill(&contents);
        let two = machine.run(&second);
        let (one, two) = match (one, two) {
            (Ok(one), Ok(two)) => (one, two),
            (Err(one), Err(two)) if one == two => continue,
            (one, two) => {
                complaints.push(format!(
                    "{instruction} ({:?}): faults differ: {:?} {:?}",
                    instruction.code(),
                    one.err(),
                    two.err()
                ));
                continue;
            }
        };
        runs += 1;
        if memory != machine.arena.contents() {
            complaints.push(format!(
                "{instruction} ({:?}): memory depends on what is not read",
                instruction.code()
            ));
        }
        if effects
            .access
            .is_none_or(|access| !access.direction.stores())
            && memory != contents
            && !instruction.is_stack_instruction()
            && instruction.mnemonic() != Mnemonic::Clzero
        {
            complaints.push(format!(
                "{instruction} ({:?}): stores, and is not said to",
                instruction.code()
            ));
        }
        if generate::answers_differently(instruction.mnemonic()) {
            continue;
        }
        for &unit in &units {
            if let Some(why) =
                complaint(unit, &effects, instruction, [&first, &second], [&one, &two])
            {
                complaints.push(format!(
                    "{instruction} ({:?}): {} {why}; reads {:?} writes {:?} kills {:?}",
                    instruction.code(),
                    unit.set(),
                    effects.reads,
                    effects.writes,
                    effects.kills
                ));
            }
        }
    }
    runs
}

#[test]
fn every_encoding_has_the_listed_effects() {
    let mut machine = Machine::new();
    let mut analyst = Analyst::new();
    let mut random = Random::new(3);
    let mut complaints = Vec::new();
    let mut ran = 0;
    for code in Code::values() {
        let mut runs = 0;
        for _ in 0..VARIANTS {
            let Some(instruction) = generate::instruction(code, Operands::Any, &mut random) else {
                continue;
            };
            if generate::cannot_run(&instruction)
                || analyst.effects(&instruction).reads == RegisterSet::ALL
            {
                continue;
            }
            runs += check(
                &instruction,
                &mut machine,
                &mut analyst,
                &mut random,
                &mut complaints,
            );
        }
        if runs > 0 {
            ran += 1;
        }
    }
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints[..complaints.len().min(100)].join("\n")
    );
    assert!(ran > 1000, "only {ran} encodings ran");
}
