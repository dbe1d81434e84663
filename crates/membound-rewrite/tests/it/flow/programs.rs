//! Random programs: straight-line code, forward branches, and loops that end.

use iced_x86::code_asm::{AsmMemoryOperand, CodeAssembler, CodeLabel, qword_ptr, r15};
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Instruction};
use membound_rewrite::RegisterSet;
use membound_rewrite::code::Function;
use membound_rewrite::flow::{Addressing, Analyst};

use crate::generate::{self, Operands};
use crate::machine::{Machine, Random, State};

/// One step of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Any instruction without control flow.
    Plain(Instruction),
    /// A conditional jump with this condition number to the step with this index.
    Jump(u8, usize),
    /// An unconditional jump to the step with this index.
    Always(usize),
    /// Sets the counter of the loop at this depth.
    Count(u8, u32),
    /// Decrements the counter of the loop at this depth and jumps to the step with this index until it is
    /// zero: two instructions.
    Repeat(u8, usize),
}

/// A place in a program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodePosition {
    /// Before a step's instruction; jumps to the step skip this position.
    Before(usize, usize),
    /// After a step, on the path that continues with the next.
    After(usize),
}

/// A loop's counter, in memory that no other instruction of a program accesses.
fn counter(depth: u8) -> AsmMemoryOperand {
    qword_ptr(r15 + 1024 + 8 * i32::from(depth))
}

/// Steps; control leaves after the last.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
}

/// Encodings that do not fault whatever the registers contain.
#[derive(Debug)]
pub(crate) struct Pool {
    scalar: Vec<Code>,
    any: Vec<Code>,
}

impl Pool {
    /// Tries all encodings.
    pub(crate) fn find(machine: &mut Machine, random: &mut Random) -> Self {
        let mut analyst = Analyst::new();
        let mut pool = Self {
            scalar: Vec::new(),
            any: Vec::new(),
        };
        // In unreachable code a zero byte is taken for padding, and the instruction after it is then decoded
        // one byte off. Programs may jump over their steps, so exclude these encodings.
        let all = Code::values().filter(|code| *code != Code::Add_rm8_r8);
        for code in all {
            let tries: Vec<Instruction> = (0..12)
                .filter_map(|_| plain(code, &mut analyst, random))
                .take(4)
                .collect();
            let runs = tries.iter().all(|instruction| {
                let bytes = encode(instruction);
                machine.load(|a| a.db(&bytes).unwrap());
                let mut state = State::random(random, &machine.arena);
                aim(&mut state, machine);
                machine.run(&state).is_ok()
            });
            if tries.is_empty() || !runs {
                continue;
            }
            pool.any.push(code);
            let features = code.cpuid_features();
            if features.iter().all(|feature| {
                use iced_x86::CpuidFeature as F;
                matches!(
                    feature,
                    F::INTEL8086
                        | F::INTEL186
                        | F::INTEL386
                        | F::INTEL486
                        | F::X64
                        | F::CMOV
                        | F::BMI1
                        | F::BMI2
                        | F::ADX
                )
            }) {
                pool.scalar.push(code);
            }
        }
        assert!(pool.scalar.len() > 300, "{} scalar", pool.scalar.len());
        pool
    }
}

/// Registers with which programs address memory.
pub(crate) fn aim(state: &mut State, machine: &Machine) {
    use membound_rewrite::Gpr;
    state.set_gpr(Gpr::RSP, machine.arena.middle());
    state.set_gpr(Gpr::new(15), machine.arena.middle() + 2048);
}

pub(crate) fn encode(instruction: &Instruction) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, instruction.ip()).unwrap();
    encoder.take_buffer()
}

fn plain(code: Code, analyst: &mut Analyst, random: &mut Random) -> Option<Instruction> {
    let mut instruction = generate::instruction(code, Operands::Reserved, random)?;
    // The assembler takes addresses for names, and wants them to differ.
    instruction.set_ip(0);
    let runs = !generate::cannot_run(&instruction)
        && !generate::answers_differently(instruction.mnemonic())
        && !instruction.is_stack_instruction()
        && membound_rewrite::flow::access(&instruction)
            .is_none_or(|access| access.addressing == Addressing::Operand)
        && analyst.effects(&instruction).reads != RegisterSet::ALL;
    runs.then_some(instruction)
}

impl Program {
    /// A program of about `length` steps.
    pub(crate) fn random(length: usize, pool: &Pool, random: &mut Random) -> Self {
        let mut analyst = Analyst::new();
        let mut steps = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        while steps.len() < length {
            let step = match random.below(12) {
                0 => Step::Jump(
                    random.below(16) as u8,
                    steps.len() + 1 + random.below(8) as usize,
                ),
                1 if random.once_in(3) => Step::Always(steps.len() + 1 + random.below(4) as usize),
                2 if open.len() < 3 => {
                    open.push(steps.len() + 1);
                    Step::Count(open.len() as u8, 1 + random.below(4) as u32)
                }
                3 if open.last().is_some_and(|top| top + 2 < steps.len()) => {
                    let depth = open.len() as u8;
                    Step::Repeat(depth, open.pop().expect("just seen to be open"))
                }
                _ => {
                    let codes = if random.once_in(3) {
                        &pool.any
                    } else {
                        &pool.scalar
                    };
                    let Some(instruction) = plain(*random.pick(codes), &mut analyst, random) else {
                        continue;
                    };
                    Step::Plain(instruction)
                }
            };
            steps.push(step);
        }
        let mut program = Self { steps };
        program.keep_loops_whole();
        program
    }

    /// Redirects jumps that would leave a loop to its end, and jumps that would enter one after its counter is
    /// set to its beginning, so that counters stay right.
    fn keep_loops_whole(&mut self) {
        let end = self.steps.len();
        let loops: Vec<(usize, usize)> = self
            .steps
            .iter()
            .enumerate()
            .filter_map(|(at, step)| match step {
                Step::Repeat(_, top) => Some((*top - 1, at)),
                _ => None,
            })
            .collect();
        for at in 0..end {
            let (Step::Jump(_, target) | Step::Always(target)) = &mut self.steps[at] else {
                continue;
            };
            *target = (*target).min(end);
            for &(first, last) in &loops {
                let from_inside = (first..=last).contains(&at);
                if from_inside {
                    *target = (*target).min(last);
                } else if at < first && (first + 1..=last).contains(target) {
                    *target = first;
                }
            }
        }
    }

    /// Emits the program, with the code that `visit` adds at each position.
    pub(crate) fn emit(
        &self,
        a: &mut CodeAssembler,
        mut visit: impl FnMut(&mut CodeAssembler, CodePosition),
    ) {
        let mut labels: Vec<CodeLabel> = (0..=self.steps.len()).map(|_| a.create_label()).collect();
        for (at, step) in self.steps.iter().enumerate() {
            a.set_label(&mut labels[at]).unwrap();
            visit(a, CodePosition::Before(at, 0));
            match step {
                Step::Plain(instruction) => a.add_instruction(*instruction).unwrap(),
                Step::Always(target) => a.jmp(labels[*target]).unwrap(),
                Step::Jump(condition, target) => jump(a, *condition, labels[*target]),
                Step::Count(depth, count) => a.mov(counter(*depth), *count as i32).unwrap(),
                Step::Repeat(depth, top) => {
                    a.dec(counter(*depth)).unwrap();
                    visit(a, CodePosition::Before(at, 1));
                    a.jnz(labels[*top]).unwrap();
                }
            }
            visit(a, CodePosition::After(at));
        }
        a.set_label(&mut labels[self.steps.len()]).unwrap();
        visit(a, CodePosition::Before(self.steps.len(), 0));
    }

    /// The program as a function that ends with a return, and for each step the index of its first
    /// instruction in the function; `None` for unreachable steps. The return follows the last step.
    pub(crate) fn function(&self) -> (Function, Vec<Vec<Option<usize>>>) {
        const BASE: u64 = 0x10000;
        let mut a = CodeAssembler::new(64).unwrap();
        self.emit(&mut a, |_, _| {});
        a.ret().unwrap();
        let code = a.assemble(BASE).unwrap();
        let function = Function::from_code(&code, BASE);
        assert_eq!(function.unresolved, None, "{self:?} {code:x?}");
        let mut decoder = Decoder::with_ip(64, &code, BASE, DecoderOptions::NONE);
        let mut next = || {
            let ip = decoder.decode().ip();
            function
                .instructions
                .binary_search_by_key(&ip, Instruction::ip)
                .ok()
        };
        let places = (0..=self.steps.len())
            .map(|step| (0..self.instructions_of(step)).map(|_| next()).collect())
            .collect();
        (function, places)
    }

    /// Number of instructions of a step.
    fn instructions_of(&self, step: usize) -> usize {
        match self.steps.get(step) {
            Some(Step::Repeat(..)) => 2,
            _ => 1,
        }
    }
}

fn jump(a: &mut CodeAssembler, condition: u8, to: CodeLabel) {
    match condition & 15 {
        0 => a.jo(to),
        1 => a.jno(to),
        2 => a.jb(to),
        3 => a.jae(to),
        4 => a.je(to),
        5 => a.jne(to),
        6 => a.jbe(to),
        7 => a.ja(to),
        8 => a.js(to),
        9 => a.jns(to),
        10 => a.jp(to),
        11 => a.jnp(to),
        12 => a.jl(to),
        13 => a.jge(to),
        14 => a.jle(to),
        _ => a.jg(to),
    }
    .unwrap();
}
