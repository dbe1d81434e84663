//! Decides what to save around a loop, from its instructions and the bodies among them.

use iced_x86::{FlowControl, Instruction};

use super::LoopSaves;
use crate::flow::Analyst;
use crate::patch::body::SettledBody;
use crate::patch::relocate::Form;
use crate::patch::{Options, VectorLevel, Yield, YieldPart};
use crate::{Gpr, RegisterSet, VectorPart};

impl LoopSaves {
    /// Decides what to save around a loop of these instructions, moved in these forms and with these bodies
    /// before some of them. `None` if saving gains nothing: a loop whose yields seldom switch is entered more
    /// often than it switches, unless it runs for long.
    pub(in crate::patch) fn of(
        instructions: &[Instruction],
        forms: impl Iterator<Item = Option<Form>>,
        bodies: impl Iterator<Item = SettledBody>,
        options: &Options,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        if options.without.contains(&YieldPart::LoopSaves) {
            return None;
        }
        let mut live = RegisterSet::EMPTY;
        let mut red_zone = false;
        let mut passes = instructions.iter().any(|it| options.is_long_loop(it.ip()));
        for body in bodies {
            let (what, around) = body.yields()?;
            live = live.union(around.live);
            red_zone |= around.red_zone;
            passes |= matches!(what, Yield::Primary | Yield::Miss { .. });
        }
        let (mut reads, mut writes) = (RegisterSet::EMPTY, RegisterSet::EMPTY);
        for instruction in instructions {
            // An indirect branch leaves the loop, and no exit stub can be written for it.
            if instruction.flow_control() == FlowControl::IndirectBranch {
                return None;
            }
            let effects = analyst.effects(instruction);
            reads = reads.union(effects.reads);
            writes = writes.union(effects.writes);
        }
        let stack = RegisterSet::gpr(Gpr::RSP);
        let can_move = |form: Option<Form>| !matches!(form, None | Some(Form::CountJump(_)));
        if !passes || reads.union(writes).intersects(stack) || !forms.into_iter().all(can_move) {
            return None;
        }
        let touched = reads.union(writes);
        let unchanged = live
            .intersection(RegisterSet::GPRS)
            .without(writes)
            .without(stack);
        let rounds = RegisterSet::MXCSR.union(RegisterSet::X87);
        let saves = Self {
            red_zone,
            read: unchanged.intersection(reads),
            untouched: unchanged.without(reads),
            vectors: untouched_vectors(live, touched, options.vectors),
            level: options.vectors,
            rounding: !writes.intersects(rounds),
        };
        let wins = saves.untouched != RegisterSet::EMPTY || saves.vectors != 0 || red_zone;
        wins.then_some(saves)
    }
}

/// Bit n is set if of vector n only the lowest 16 bytes are `live`, and no part of it is `touched`.
fn untouched_vectors(live: RegisterSet, touched: RegisterSet, level: VectorLevel) -> u16 {
    use VectorPart::{Xmm, YmmHigh, ZmmHigh};
    let part = RegisterSet::vector;
    let is_free = |number: &u8| {
        let low = part(*number, Xmm);
        let wide = part(*number, YmmHigh).union(part(*number, ZmmHigh));
        let has_wide = level != VectorLevel::Sse && live.intersects(wide);
        live.intersects(low) && !has_wide && !touched.intersects(low.union(wide))
    };
    (0..16)
        .filter(is_free)
        .fold(0, |all, number| all | 1 << number)
}
