//! What a scavenger is charged at a yield, and what it prefetches there.

use membound_wire::CREDIT_UNITS_PER_NS;

use crate::patch::cycle::{IterationCounter, TrampolineLoop};
use crate::patch::operand::Operand;

/// Iterations of a loop are charged together up to this time, in nanoseconds.
const MAX_NS_PER_CHARGE: i32 = 10;

/// How far ahead a scavenger prefetches, in nanoseconds: about one time slice.
const PREFETCH_DISTANCE_NS: i32 = 100;

/// What a scavenger is charged at a yield, and what it prefetches.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    /// Time charged, in [`CREDIT_UNITS_PER_NS`].
    pub units: u16,
    /// Set if the charge covers several iterations. It is made when the loop is entered and then again after
    /// each such number of iterations, so that the credit never runs out too late.
    pub iteration_counter: Option<CountedIterations>,
    /// Operands to prefetch whenever several iterations are charged.
    pub ahead: Vec<Operand>,
    /// Operands to prefetch when the context leaves, for when it resumes: the operand the yield stands
    /// before, and pages that were not read recently, whose translations are then found while the other side
    /// waits for its own miss. Looked up during the scavenger's own slice they would delay it.
    pub leaving: Vec<Operand>,
}

/// Iterations that are charged together, 2 to the power of `together`: the charge is made in the iteration in
/// which the tested bits above the counter's shift are 0. If 2 to the power of `apart` copies of the
/// iteration stand in a row, only the first of them tests, and the lowest `apart` bits are not tested.
#[derive(Clone, Copy, Debug)]
pub(in crate::patch) struct CountedIterations {
    pub iteration_counter: IterationCounter,
    together: u32,
    apart: u32,
}

impl CountedIterations {
    /// The iterations that a bound yield of `cost` at the head of a loop charges at once; `None` if it
    /// charges each by itself.
    pub(super) fn of_loop(
        cost: u16,
        flags_dead: bool,
        trampoline_loop: &TrampolineLoop,
    ) -> Option<Self> {
        let at_once = MAX_NS_PER_CHARGE * CREDIT_UNITS_PER_NS / i32::from(cost.max(1));
        let together = at_once.max(1).ilog2();
        let iteration_counter = trampoline_loop.iteration_counter?;
        (flags_dead && together > 0 && iteration_counter.shift < 16).then_some(Self {
            iteration_counter,
            together,
            apart: trampoline_loop.copies,
        })
    }

    /// How many copies of an iteration may stand in a row with one test among them, as a power of two.
    pub(in crate::patch) const fn max_copies_log2(self) -> u32 {
        self.together - 1
    }

    pub(super) const fn mask(self) -> u32 {
        ((1 << self.together) - (1 << self.apart)) << self.iteration_counter.shift
    }
}

impl Charge {
    pub(super) const fn of(units: u16) -> Self {
        Self {
            units,
            iteration_counter: None,
            ahead: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// The charge at a bound yield that costs `cost` and stands before the access to `target`. In a loop it
    /// covers the iterations that `iteration_counter` counts together, and prefetches the loop's streams.
    pub(super) fn of_bound_yield(
        cost: u16,
        iteration_counter: Option<CountedIterations>,
        trampoline_loop: Option<&TrampolineLoop>,
        target: Option<Operand>,
    ) -> Self {
        let units = iteration_counter.map_or(cost, |counted| cost << counted.together);
        let Some(trampoline_loop) = trampoline_loop else {
            return Self {
                units,
                iteration_counter,
                ahead: Vec::new(),
                leaving: target.into_iter().collect(),
            };
        };
        let iterations =
            i64::from(PREFETCH_DISTANCE_NS * CREDIT_UNITS_PER_NS) / i64::from(cost.max(1));
        let (ahead, mut leaving) = match iteration_counter {
            None => (Vec::new(), trampoline_loop.prefetch_window(iterations)),
            Some(counted) => (
                trampoline_loop.next_prefetches(iterations, 1 << counted.together),
                trampoline_loop.page_prefetches(iterations),
            ),
        };
        // Operands that are read in steps were prefetched iterations ago.
        let streams = &trampoline_loop.streams;
        leaving.extend(target.filter(|operand| !streams.iter().any(|it| it.operand == *operand)));
        Self {
            units,
            iteration_counter,
            ahead,
            leaving,
        }
    }
}
