//! Loads the effects of a function's instructions for an analysis, and determines which state the function
//! writes.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::Scratch;
use crate::code::{BlockEnd, Function};
use crate::flow::effects::Analyst;
use crate::flow::state::State;
use crate::{Gpr, RegisterSet};

/// State that a function writes by its own instructions.
#[derive(Clone, Copy, Debug)]
pub(in crate::flow) struct Written {
    /// All state that it writes.
    pub(in crate::flow) any: RegisterSet,
    /// Without state that it may restore: registers that it pops, or loads from the slot where it saved them.
    pub(in crate::flow) clobbered: RegisterSet,
}

/// Direction of a move between a register and the frame.
enum OnStack {
    Stored,
    Loaded,
}

/// If `instruction` moves a whole register to or from the function's frame: the direction, the register, and
/// base and displacement of the slot.
fn on_stack(instruction: &Instruction) -> Option<(OnStack, Gpr, (Register, u64))> {
    let (direction, register) = match instruction.code() {
        Code::Mov_rm64_r64 => (OnStack::Stored, instruction.op1_register()),
        Code::Mov_r64_rm64 => (OnStack::Loaded, instruction.op0_register()),
        _ => return None,
    };
    let base = instruction.memory_base();
    let in_frame = matches!(base, Register::RSP | Register::RBP)
        && instruction.memory_index() == Register::None;
    let number = u8::try_from(register.number()).ok()?;
    let place = (base, instruction.memory_displacement64());
    in_frame.then(|| (direction, Gpr::new(number), place))
}

impl Scratch {
    /// Loads the effects of `function`'s instructions.
    pub(in crate::flow) fn load(&mut self, function: &Function, analyst: &mut Analyst) -> Written {
        let mut any = RegisterSet::EMPTY;
        let mut written = RegisterSet::EMPTY;
        let mut put_back = RegisterSet::EMPTY;
        let mut saved = [None; 16];
        self.states.clear();
        self.states.reserve(function.instructions.len());
        for instruction in &function.instructions {
            let mut state = analyst.state(instruction);
            any = any.union(state.writes);
            // The actual writes of such an instruction are unknown.
            if state != State::EVERYTHING {
                written = written.union(state.writes);
            }
            // Inside an rseq critical section control may go to the abort handler at any instruction.
            let ip = instruction.ip();
            if function.untouchable.iter().any(|range| range.contains(&ip)) {
                state.reads = RegisterSet::ALL;
            }
            if instruction.mnemonic() == Mnemonic::Pop && instruction.op0_kind() == OpKind::Register
            {
                put_back = put_back.union(state.writes);
            }
            // `mcount` preserves even the arguments of the function that calls it, by moves to its own frame.
            match on_stack(instruction) {
                Some((OnStack::Stored, register, place))
                    if !written.intersects(RegisterSet::gpr(register)) =>
                {
                    saved[register.number() as usize] = Some(place);
                }
                Some((OnStack::Loaded, register, place))
                    if saved[register.number() as usize] == Some(place) =>
                {
                    put_back = put_back.union(state.writes);
                }
                _ => {}
            }
            self.states.push(state);
        }
        // What is read behind an instruction that stops is for the boundary to say.
        for block in &function.blocks {
            if block.leaves_by == BlockEnd::Stops {
                let last = &mut self.states[block.end as usize - 1];
                if *last == State::EVERYTHING {
                    last.reads = RegisterSet::EMPTY;
                }
            }
        }
        Written {
            any,
            clobbered: written.without(put_back),
        }
    }
}
