//! Prefetches that yields emit, and the recent-miss filter.

use membound_wire::{LINE_BYTES, RECENT_FACTOR, RECENT_LINES, RECENT_OFFSET};

use crate::flow::Segment;
use crate::patch::companions::Companions;
use crate::patch::emit::{Address, Condition, Emitter, Width};
use crate::patch::operand::Operand;
use crate::patch::options::Prefetch;
use crate::patch::run_queue::{FS, GS};
use crate::patch::surroundings::Surroundings;

/// The access that a yield is installed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) struct PrefetchTarget {
    /// The operand that is about to be accessed.
    pub operand: Operand,
    /// Other lines of the same object that are likely to be accessed after it.
    pub companions: Companions,
    /// Cache levels that the line is prefetched into.
    pub to: Prefetch,
    /// True if the recent-miss filter applies: no yield for a line that the thread yielded for recently.
    pub filters_recent_misses: bool,
}

/// Prefetches the operand; the stack pointer must have the program's value.
pub(super) fn prefetch(operand: Operand, to: Prefetch, out: &mut Emitter) {
    let prefix = match operand.segment {
        None => &[],
        Some(Segment::Fs) => FS,
        Some(Segment::Gs) => GS,
    };
    prefetch_at(prefix, operand.address, to, out);
}

/// Prefetches operands that a scavenger reads later.
pub(super) fn prefetch_all(operands: &[Operand], out: &mut Emitter) {
    for operand in operands {
        prefetch(*operand, Prefetch::Everywhere, out);
    }
}

pub(super) fn prefetch_at(prefix: &[u8], address: Address, to: Prefetch, out: &mut Emitter) {
    let hint = match to {
        Prefetch::NonTemporal => 0,
        Prefetch::Everywhere => 1,
    };
    out.with_operand(prefix, Width::Default, &[0x0f, 0x18], hint, address);
}

impl PrefetchTarget {
    /// Prefetches the other lines of the object that the code is likely to access after the yield's operand.
    pub(super) fn prefetch_companions(&self, out: &mut Emitter) {
        for operand in self.companions.into_iter().flatten() {
            prefetch(operand, self.to, out);
        }
    }

    /// Emits the recent-miss filter: a jump, whose field is returned, that is taken if the thread yielded for
    /// this line recently. The line is then still in a cache, or another line is that shares its entry and
    /// its low 16 bits. `None` without two dead registers. Changes flags.
    pub(super) fn jump_if_recent(&self, around: &Surroundings, out: &mut Emitter) -> Option<u32> {
        if !self.filters_recent_misses || self.operand.segment.is_some() {
            return None;
        }
        let [line, slot] = around.two_dead()?;
        out.address(line, self.operand.address);
        out.shift_right(Width::Quad, line, LINE_BYTES.ilog2());
        out.multiply(slot, line, RECENT_FACTOR);
        out.shift_right(Width::Default, slot, u32::BITS - RECENT_LINES.ilog2());
        let entry = Address::Registers {
            base: None,
            index: Some((slot, 1)),
            displacement: RECENT_OFFSET as i32,
        };
        // `cmp` and `mov` of 16 bits.
        let prefixes = [&[0x66], GS].concat();
        out.with_operand(&prefixes, Width::Default, &[0x39], line.number(), entry);
        let recent = out.jump_if_ahead(Condition::ZERO);
        out.with_operand(&prefixes, Width::Default, &[0x89], line.number(), entry);
        Some(recent)
    }
}
