//! What a yield has to save of the state that is alive, and the code that saves and restores it.

use iced_x86::{Code, FlowControl, Instruction};

use crate::flow::Analyst;
use crate::patch::loop_saves::LoopSaves;
use crate::patch::surroundings::Surroundings;
use crate::patch::table::FlagsKept;
use crate::patch::writer::{RED_ZONE, Writer};
use crate::patch::{Options, YieldPart};
use crate::{Gpr, RegisterSet};

/// State that the calling convention declares alive but that need not be saved in a function of these
/// instructions. If none of them writes the x87 stack, it is empty or only passes a result through; if none
/// sets the direction flag, it is clear, here as in the other context.
pub(in crate::patch) fn untouched_state(
    instructions: &[Instruction],
    analyst: &mut Analyst,
) -> RegisterSet {
    let mut writes = RegisterSet::EMPTY;
    // `ud2` and `hlt` are assumed to write everything, but nothing runs after them.
    let stops =
        |it: &&Instruction| it.flow_control() == FlowControl::Exception || it.code() == Code::Hlt;
    for instruction in instructions.iter().filter(|it| !stops(it)) {
        writes = writes.union(analyst.effects(instruction).writes);
    }
    expensive_state().without(writes)
}

/// The part of `live` that a yield saves; `untouched` and `unused` need not be saved.
pub(in crate::patch) fn state_to_save(
    live: RegisterSet,
    untouched: RegisterSet,
    unused: RegisterSet,
    options: &Options,
) -> RegisterSet {
    let live = if options.without.contains(&YieldPart::Liveness) {
        live.union(expensive_state().complement())
    } else {
        live
    };
    let unused = if options.without.contains(&YieldPart::UnusedVectors) {
        RegisterSet::EMPTY
    } else {
        unused
    };
    live.without(untouched).without(unused)
}

/// State whose saving would cost more than a context switch: yields are refused where it is alive.
pub(super) const fn expensive_state() -> RegisterSet {
    RegisterSet::X87.union(RegisterSet::DIRECTION)
}

/// What a suspended context has on its stack.
#[derive(Debug)]
pub(super) struct SavedState {
    registers: Vec<Gpr>,
    flags: bool,
    red_zone: bool,
    around_loop: Option<LoopSaves>,
}

impl SavedState {
    /// Pushes what is alive, except vectors; rax, rcx and rdx are free afterwards.
    pub(super) fn save(around: &Surroundings, writer: &mut Writer<'_>) -> Self {
        let registers: Vec<Gpr> = around
            .live
            .gprs()
            .filter(|register| *register != Gpr::RSP)
            .collect();
        let flags = around.live.intersects(RegisterSet::ARITHMETIC_FLAGS);
        if around.red_zone {
            writer.lower(RED_ZONE);
        }
        for register in &registers {
            writer.push(*register);
        }
        if let Some(saves) = around.saves {
            saves.mark_saved_only(writer);
        }
        if flags {
            writer.out.lahf();
            writer.out.seto_al();
            writer.frame.flags = Some(FlagsKept::InRax);
            writer.mark();
            writer.push(Gpr::RAX);
        }
        Self {
            registers,
            flags,
            red_zone: around.red_zone,
            around_loop: around.saves,
        }
    }

    pub(super) fn restore(&self, writer: &mut Writer<'_>) {
        if self.flags {
            writer.pop(Gpr::RAX);
            writer.restore_flags();
        }
        for register in self.registers.iter().rev() {
            writer.pop(*register);
        }
        if let Some(saves) = self.around_loop {
            saves.reload(writer);
        }
        if self.red_zone {
            writer.lower(-RED_ZONE);
        }
    }
}
