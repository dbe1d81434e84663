//! Bodies that switch from one context to another.
//!
//! A suspended context has all its live state on its own stack, below the red zone; at the address where it
//! resumes only the stack pointer has a defined value. So a switch saves what is alive at its own place and
//! nothing else, and need not know what the other side saved.
//!
//! A signal may arrive between any two stores (see [`membound_wire::RunQueue`]), so their order matters.
//! Before the store of `current`, a yield of the primary is restarted after the signal, because the values it
//! read from the ring may be out of date when the handler returns. After that store the thread counts as
//! suspended until it clears `current` itself. A scavenger's context is parked as soon as its `resume` is
//! set. Once the stack pointer has been exchanged, nothing on the stack belongs to the context that left.
//!
//! The side that leaves restores the rounding mode the resumed context had when it yielded; usually the modes
//! are equal and this costs one comparison. Every other piece of code that continues at a `resume` must
//! restore it too.

use std::mem::offset_of;

use iced_x86::{Code, FlowControl, Instruction};
use membound_wire::{
    CREDIT_UNITS_PER_NS, Context, Entry, LINE_BYTES, RECENT_FACTOR, RECENT_LINES, RECENT_OFFSET,
    RunQueue,
};

use super::body_context::BodyContext;
use super::companions::Companions;
use super::cycle::{IterationCounter, TrampolineLoop};
use super::emit::{Address, Condition, Emitter, Width};
use super::loop_saves::LoopSaves;
use super::operand::Operand;
use super::options::Prefetch;
use super::run_queue::{
    self, FS, GS, absolute, at, change_rounding, clear, compare_byte_with_zero, compare_with_zero,
    count_down, give_base_back, increment, increment_at, load, load_run_queue, set_selector, store,
    store_run_queue,
};
use super::surroundings::Surroundings;
use super::table::{FlagsKept, RegisterOffsets, Resume};
use super::writer::{RED_ZONE, Writer};
use super::{Options, Refusal, VectorLevel, Yield, YieldPart, vectors};
use crate::flow::{Analyst, Segment};
use crate::{Gpr, RegisterSet};

/// Iterations of a loop are charged together up to this time, in nanoseconds.
const MAX_NS_PER_CHARGE: i32 = 10;
/// How far ahead a scavenger prefetches, in nanoseconds: about one time slice.
const PREFETCH_DISTANCE_NS: i32 = 100;
/// Where the thread that owns the run queue has stored its rounding mode.
const THREAD_ROUNDING: Address = absolute(offset_of!(RunQueue, rounding));

/// The access that a yield is installed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefetchTarget {
    /// The operand that is about to be accessed.
    pub operand: Operand,
    /// Other lines of the same object that are likely to be accessed after it.
    pub companions: Companions,
    /// Cache levels that the line is prefetched into.
    pub to: Prefetch,
    /// True if the recent-miss filter applies: no yield for a line that the thread yielded for recently.
    pub recalls: bool,
}

/// A yield that has been checked and can be written at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledYield {
    what: Yield,
    /// The access to prefetch, if any.
    target: Option<PrefetchTarget>,
    /// True if a scavenger that leaves a loop prefetches the next lines of the streams it reads there.
    prefetches_streams: bool,
    /// True if a scavenger that continues as the next context prefetches the stack of the context after that.
    prefetches_next_stack: bool,
    vectors: VectorLevel,
    /// True if control passes to another context; false if the yield only saves and restores.
    passes: bool,
}

/// State that the calling convention declares alive but that need not be saved in a function of these
/// instructions. If none of them writes the x87 stack, it is empty or only passes a result through; if none
/// sets the direction flag, it is clear, here as in the other context.
pub(super) fn untouched(instructions: &[Instruction], analyst: &mut Analyst) -> RegisterSet {
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
pub(super) fn kept(
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
const fn expensive_state() -> RegisterSet {
    RegisterSet::X87.union(RegisterSet::DIRECTION)
}

/// What a scavenger is charged at a yield, and what it prefetches.
#[derive(Clone, Debug)]
struct Charge {
    /// Time charged, in [`CREDIT_UNITS_PER_NS`].
    units: u16,
    /// Set if the charge covers several iterations. It is made when the loop is entered and then again after
    /// each such number of iterations, so that the credit never runs out too late.
    iteration_counter: Option<CountedIterations>,
    /// Operands to prefetch whenever several iterations are charged.
    ahead: Vec<Operand>,
    /// Operands to prefetch when the context leaves, for when it resumes: the operand the yield stands
    /// before, and pages that were not read recently, whose translations are then found while the other side
    /// waits for its own miss. Looked up during the scavenger's own slice they would delay it.
    leaving: Vec<Operand>,
}

/// Iterations that are charged together, 2 to the power of `together`: the charge is made in the iteration in
/// which the tested bits above the counter's shift are 0. If 2 to the power of `apart` copies of the
/// iteration stand in a row, only the first of them tests, and the lowest `apart` bits are not tested.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedIterations {
    iteration_counter: IterationCounter,
    together: u32,
    apart: u32,
}

impl CountedIterations {
    /// How many copies of an iteration may stand in a row with one test among them, as a power of two.
    pub(super) const fn most_copies(self) -> u32 {
        self.together - 1
    }

    const fn mask(self) -> u32 {
        ((1 << self.together) - (1 << self.apart)) << self.iteration_counter.shift
    }
}

impl Charge {
    const fn of(units: u16) -> Self {
        Self {
            units,
            iteration_counter: None,
            ahead: Vec::new(),
            leaving: Vec::new(),
        }
    }
}

impl SettledYield {
    pub(super) const fn what(&self) -> Yield {
        self.what
    }

    pub(super) fn settle(
        what: Yield,
        options: &Options,
        around: &Surroundings,
        target: Option<PrefetchTarget>,
    ) -> Result<Self, Refusal> {
        if !around.stack {
            return Err(Refusal::NoStack);
        }
        if around.live.intersects(expensive_state()) {
            return Err(Refusal::DearState);
        }
        let with = |part| !options.without.contains(&part);
        Ok(Self {
            what,
            target: target.filter(|_| with(YieldPart::Prefetch)),
            prefetches_streams: with(YieldPart::Prefetch),
            prefetches_next_stack: with(YieldPart::NextContext),
            vectors: options.vectors,
            passes: with(YieldPart::Passing),
        })
    }

    /// Writes the yield. Returns what [`super::body::SettledBody::write`] returns.
    pub(super) fn write(
        &self,
        around: &Surroundings,
        within: BodyContext<'_>,
        writer: &mut Writer<'_>,
    ) -> Option<u32> {
        if let Some(target) = self.target
            && self.what.prefetches()
        {
            prefetch(target.operand, target.to, writer.out);
        }
        match self.what {
            _ if !self.passes => self.save_and_restore(around, writer),
            Yield::Primary => self.primary(around, writer),
            Yield::Miss { cost, .. } => {
                self.prefetch_adjacent(writer.out);
                self.scavenger(around, &Charge::of(cost), writer);
            }
            Yield::Bound { cost, .. } => {
                let charge = self.charge(around, within, cost);
                return self.scavenger(around, &charge, writer);
            }
            Yield::Base => take_base(around, writer),
        }
        None
    }

    /// The iterations that a bound yield at the head of a loop charges at once; `None` if it charges each by
    /// itself.
    pub(super) fn iterations(
        &self,
        around: &Surroundings,
        trampoline_loop: &TrampolineLoop,
    ) -> Option<CountedIterations> {
        let Yield::Bound { cost, .. } = self.what else {
            return None;
        };
        let at_once = MAX_NS_PER_CHARGE * CREDIT_UNITS_PER_NS / i32::from(cost.max(1));
        let together = at_once.max(1).ilog2();
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        let tells = |iteration_counter: &IterationCounter| {
            self.passes && flags_dead && together > 0 && iteration_counter.shift < 16
        };
        Some(CountedIterations {
            iteration_counter: trampoline_loop.iteration_counter.filter(tells)?,
            together,
            apart: trampoline_loop.copies,
        })
    }

    /// The charge of one iteration, or of several where an iteration counter distinguishes them.
    fn charge(&self, around: &Surroundings, within: BodyContext<'_>, cost: u16) -> Charge {
        let Some(trampoline_loop) = within.trampoline_loop else {
            return Charge {
                leaving: self
                    .target
                    .map(|target| target.operand)
                    .into_iter()
                    .collect(),
                ..Charge::of(cost)
            };
        };
        let iterations =
            i64::from(PREFETCH_DISTANCE_NS * CREDIT_UNITS_PER_NS) / i64::from(cost.max(1));
        let iteration_counter = self
            .iterations(around, trampoline_loop)
            .filter(|_| within.is_head);
        let (ahead, mut leaving) = match iteration_counter {
            _ if !self.prefetches_streams => (Vec::new(), Vec::new()),
            None => (Vec::new(), trampoline_loop.prefetch_window(iterations)),
            Some(counted) => (
                trampoline_loop.next_prefetches(iterations, 1 << counted.together),
                trampoline_loop.page_prefetches(iterations),
            ),
        };
        // Operands that are read in steps were prefetched iterations ago.
        let target = self.target.map(|target| target.operand);
        leaving.extend(target.filter(|operand| {
            !trampoline_loop
                .streams
                .iter()
                .any(|it| it.operand == *operand)
        }));
        Charge {
            units: iteration_counter.map_or(cost, |counted| cost << counted.together),
            iteration_counter,
            ahead,
            leaving,
        }
    }

    /// Saves and restores what a yield does, and continues in the same context.
    fn save_and_restore(&self, around: &Surroundings, writer: &mut Writer<'_>) {
        let saved = Saved::save(around, writer);
        let room = vectors::save(around, self.vectors, writer);
        vectors::restore(around, self.vectors, room, writer);
        saved.restore(writer);
        writer.resume = Resume::Displaced;
        writer.mark();
    }

    /// Yield of the primary: continues as the next scavenger, if there is one.
    fn primary(&self, around: &Surroundings, writer: &mut Writer<'_>) {
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        // With dead flags, an empty run queue costs only a comparison and a jump.
        let nobody = flags_dead.then(|| {
            compare_with_zero(writer.out, offset_of!(RunQueue, next));
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        let recent = flags_dead
            .then(|| self.pass_recent(around, writer))
            .flatten();
        self.prefetch_adjacent(writer.out);
        let saved = Saved::save(around, writer);
        load_run_queue(writer.out, Gpr::RAX, offset_of!(RunQueue, next));
        // No second test is needed where the flags are dead: only the thread itself, and the agent while it
        // finds the thread in the kernel, set `next` to 0.
        let nobody_now = (!flags_dead).then(|| {
            writer.out.test(Gpr::RAX);
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        // `owner` differs from the thread pointer in a new thread, which has inherited `gs` from the thread
        // that created it, and when the agent has set `owner` to 0 to be called.
        writer
            .out
            .with_operand(FS, Width::Quad, &[0x8b], Gpr::RCX.number(), absolute(0));
        let owner = absolute(offset_of!(RunQueue, owner));
        writer
            .out
            .with_operand(GS, Width::Quad, &[0x3b], Gpr::RCX.number(), owner);
        let foreign = writer.out.jump_if_ahead(Condition::NOT_ZERO);
        // A late request may leave `ASK` in `next` after the thread has answered it: `cmp rax, ASK`.
        writer
            .out
            .raw(&[0x48, 0x83, 0xf8, membound_wire::ASK as u8]);
        let answered = writer.out.jump_if_ahead(Condition::ZERO);
        let room = vectors::save(around, self.vectors, writer);
        store_run_queue(writer.out, offset_of!(RunQueue, stack), Gpr::RSP);
        let resume = writer.out.address_ahead(Gpr::RCX);
        store_run_queue(writer.out, offset_of!(RunQueue, resume), Gpr::RCX);
        store_run_queue(writer.out, offset_of!(RunQueue, first), Gpr::RAX);
        store_rounding(around, writer, (GS, THREAD_ROUNDING));
        let span = absolute(offset_of!(RunQueue, span));
        let credit = absolute(offset_of!(RunQueue, credit));
        writer
            .out
            .with_operand(GS, Width::Default, &[0x8b], Gpr::RCX.number(), span);
        writer
            .out
            .with_operand(GS, Width::Default, &[0x89], Gpr::RCX.number(), credit);
        increment(writer.out, offset_of!(RunQueue, turns));
        store_run_queue(writer.out, offset_of!(RunQueue, current), Gpr::RAX);
        writer.resume = Resume::AsFound;
        writer.mark();
        set_selector(writer.out, 1);
        let of_context = at(Gpr::RAX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], of_context));
        resume_context(writer, Gpr::RAX);
        writer.out.land(resume);
        // The selector is cleared first: once `current` is 0, the program's signal handlers run on this
        // thread, and their system calls must reach the kernel.
        set_selector(writer.out, 0);
        clear(writer.out, offset_of!(RunQueue, current));
        vectors::restore(around, self.vectors, room, writer);
        let over = writer.out.jump_ahead();
        writer.out.land(foreign);
        writer.resume = Resume::Start;
        writer.mark();
        writer.out.call_entry(Entry::Yield);
        writer.out.land(over);
        writer.out.land(answered);
        if let Some(field) = nobody_now {
            writer.out.land(field);
        }
        writer.resume = Resume::AsFound;
        writer.mark();
        saved.restore(writer);
        for field in nobody.into_iter().chain(recent) {
            writer.out.land(field);
        }
        writer.resume = Resume::Displaced;
        writer.mark();
    }

    /// Prefetches the other lines of the object that the code is likely to access after the yield's operand.
    fn prefetch_adjacent(&self, out: &mut Emitter) {
        let Some(target) = self.target else { return };
        for operand in target.companions.into_iter().flatten() {
            prefetch(operand, target.to, out);
        }
    }

    /// Emits the recent-miss filter: a jump, whose field is returned, that is taken if the thread yielded for
    /// this line recently. The line is then still in a cache, or another line is that shares its entry and
    /// its low 16 bits. `None` without two dead registers. Changes flags.
    fn pass_recent(&self, around: &Surroundings, writer: &mut Writer<'_>) -> Option<u32> {
        let target = self.target.filter(|target| target.recalls)?;
        if target.operand.segment.is_some() {
            return None;
        }
        let [line, place] = around.two_dead()?;
        let out = &mut *writer.out;
        out.address(line, target.operand.address);
        out.shift_right(Width::Quad, line, LINE_BYTES.ilog2());
        out.multiply(place, line, RECENT_FACTOR);
        out.shift_right(Width::Default, place, u32::BITS - RECENT_LINES.ilog2());
        let at = Address::Registers {
            base: None,
            index: Some((place, 1)),
            displacement: RECENT_OFFSET as i32,
        };
        // `cmp` and `mov` of 16 bits.
        let prefixes = [&[0x66], GS].concat();
        out.with_operand(&prefixes, Width::Default, &[0x39], line.number(), at);
        let recent = out.jump_if_ahead(Condition::ZERO);
        out.with_operand(&prefixes, Width::Default, &[0x89], line.number(), at);
        Some(recent)
    }

    /// Yield of a scavenger: continues as the primary when the credit is used up, and at a miss yield
    /// otherwise as the next context. Returns the offset at which iterations enter that an earlier charge may
    /// cover.
    fn scavenger(
        &self,
        around: &Surroundings,
        charge: &Charge,
        writer: &mut Writer<'_>,
    ) -> Option<u32> {
        let cost = charge.units;
        let entry = writer.out.at();
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        let misses = matches!(self.what, Yield::Miss { .. });
        let mut quick = None;
        if flags_dead && misses {
            quick = Some(pass_alone(writer.out));
        }
        if flags_dead && !misses {
            prefetch_all(&charge.ahead, writer.out);
            count_down(writer.out, cost);
            // The charge is made: a signal after this must not make the thread repeat it.
            writer.resume = Resume::Displaced;
            writer.mark();
            quick = Some(writer.out.jump_if_ahead(Condition::GREATER));
            prefetch_all(&charge.leaving, writer.out);
        }
        let saved = Saved::save(around, writer);
        let mut slow = None;
        let mut due = None;
        if misses || !flags_dead {
            if misses && !flags_dead {
                slow = Some(pass_alone(writer.out));
            }
            count_down(writer.out, cost);
            writer.resume = Resume::Displaced;
            writer.mark();
            if misses {
                due = Some(writer.out.jump_if_ahead(Condition::LESS_OR_EQUAL));
            } else {
                slow = Some(writer.out.jump_if_ahead(Condition::GREATER));
                // The stack pointer has moved, and rax may hold the flags: operands that use either cannot be
                // computed here.
                let moved = [Gpr::RSP, Gpr::RAX];
                let mut still = charge.leaving.clone();
                still.retain(|operand| !moved.iter().any(|it| operand.address.uses(*it)));
                prefetch_all(&still, writer.out);
            }
        }
        // The state of the registers does not change up to the switch, so the marks stay valid.
        let ahead = due.map(|due| {
            let before = writer.frame;
            let ahead = self.leave_for_next(around, writer);
            writer.frame = before;
            writer.out.land(due);
            writer.resume = Resume::Displaced;
            writer.mark();
            ahead
        });
        self.leave_for_thread(around, writer, ahead);
        writer.resume = Resume::AsFound;
        writer.mark();
        if self.what.gives_base() {
            run_queue::borrow_base(writer.out);
        }
        if let Some(field) = slow {
            writer.out.land(field);
        }
        saved.restore(writer);
        writer.resume = Resume::Displaced;
        writer.mark();
        let again = charge.iteration_counter.map(|iterations| {
            // A context that resumes has been charged for these iterations before: skip the test.
            let counted = writer.out.jump_ahead();
            // Nearly all iterations of a tight loop consist of this test and the loop's instructions alone:
            // one more cache line takes some processors as long as the iteration itself.
            writer.out.begin_line();
            let again = writer.out.at();
            writer
                .out
                .test_bits(iterations.iteration_counter.register, iterations.mask());
            writer.out.jump_if_back(Condition::ZERO, entry);
            writer.out.land(counted);
            again
        });
        if let Some(field) = quick {
            writer.out.land(field);
        }
        again
    }

    /// Parks the context in rax: saves its vectors on its stack and stores where it resumes. Changes rcx and
    /// leaves the rounding mode of the context in rdx.
    fn park(&self, around: &Surroundings, writer: &mut Writer<'_>) -> ParkedContext {
        let room = vectors::save(around, self.vectors, writer);
        let rounding = at(Gpr::RAX, offset_of!(Context, rounding));
        store_rounding(around, writer, (&[], rounding));
        let stack = at(Gpr::RAX, offset_of!(Context, stack));
        store(writer.out, stack, Gpr::RSP);
        if matches!(self.what, Yield::Miss { .. }) {
            increment_at(writer.out, at(Gpr::RAX, offset_of!(Context, yields)));
        }
        let resume = writer.out.address_ahead(Gpr::RCX);
        let there = at(Gpr::RAX, offset_of!(Context, resume));
        store(writer.out, there, Gpr::RCX);
        // The context is parked from here on and others may resume it: its state can no longer be undone here
        // alone.
        writer.resume = Resume::AsFound;
        writer.mark();
        ParkedContext { room, resume }
    }

    /// Leaves for the next context of the ring unless the time slice began with that one; then the context,
    /// already parked, takes a jump whose field is returned. The ring is read only after parking: before that
    /// the context may be moved to its home thread, where `next` is not the next of this ring.
    fn leave_for_next(&self, around: &Surroundings, writer: &mut Writer<'_>) -> PendingJumps {
        load_run_queue(writer.out, Gpr::RAX, offset_of!(RunQueue, current));
        let parked = self.park(around, writer);
        load(
            writer.out,
            Gpr::RCX,
            at(Gpr::RAX, offset_of!(Context, next)),
        );
        let first = absolute(offset_of!(RunQueue, first));
        writer
            .out
            .with_operand(GS, Width::Quad, &[0x3b], Gpr::RCX.number(), first);
        let back = writer.out.jump_if_ahead(Condition::ZERO);
        store_run_queue(writer.out, offset_of!(RunQueue, current), Gpr::RCX);
        let of_next = at(Gpr::RCX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], of_next));
        if self.prefetches_next_stack {
            // With several contexts in a ring the lines of each grow cold meanwhile; with only one, this
            // prefetch costs more than it gains.
            let after = at(Gpr::RCX, offset_of!(Context, next));
            load(writer.out, Gpr::RAX, after);
            let stack = at(Gpr::RAX, offset_of!(Context, stack));
            load(writer.out, Gpr::RAX, stack);
            prefetch_at(&[], at(Gpr::RAX, 0), Prefetch::Everywhere, writer.out);
        }
        resume_context(writer, Gpr::RCX);
        PendingJumps {
            back,
            resume: parked.resume,
        }
    }

    /// Leaves for the thread that owns the run queue.
    fn leave_for_thread(
        &self,
        around: &Surroundings,
        writer: &mut Writer<'_>,
        ahead: Option<PendingJumps>,
    ) {
        load_run_queue(writer.out, Gpr::RAX, offset_of!(RunQueue, current));
        let parked = self.park(around, writer);
        if let Some(ahead) = &ahead {
            writer.out.land(ahead.back);
        }
        let leaves = writer.out.at();
        // The next time slice begins with the context after this one.
        load(
            writer.out,
            Gpr::RCX,
            at(Gpr::RAX, offset_of!(Context, next)),
        );
        store_run_queue(writer.out, offset_of!(RunQueue, next), Gpr::RCX);
        change_rounding(writer.out, (GS, THREAD_ROUNDING));
        give_base_back(writer.out);
        load_run_queue(writer.out, Gpr::RCX, offset_of!(RunQueue, resume));
        load_run_queue(writer.out, Gpr::RSP, offset_of!(RunQueue, stack));
        let here = mark_stack_switched(writer);
        writer.out.jump_to(Gpr::RCX);
        writer.frame = here;
        writer.mark();
        writer.out.land(parked.resume);
        if let Some(ahead) = &ahead {
            writer.out.land(ahead.resume);
        }
        // The prefetched line may take longer to arrive than the time slice of the other side.
        if ahead.is_some() || self.target.is_some() {
            skip(leaves, writer.out);
        }
        vectors::restore(around, self.vectors, parked.room, writer);
    }
}

/// Emits a jump, whose field is returned, that is taken if the scavenger runs on its home thread and no other
/// context is to run instead. Changes flags.
fn pass_alone(out: &mut Emitter) -> u32 {
    compare_byte_with_zero(out, offset_of!(RunQueue, alone));
    let in_company = out.jump_if_ahead(Condition::ZERO);
    increment(out, offset_of!(RunQueue, turns));
    let alone = out.jump_ahead();
    out.land(in_company);
    alone
}

/// Emitted where a context resumes after it has prefetched: while slices are to be skipped
/// ([`RunQueue::skips`]), parks the context again, to resume right here, and leaves at `leaves` with the
/// context in rax and its rounding mode in rdx. Changes rcx.
fn skip(leaves: u32, out: &mut Emitter) {
    let again = out.at();
    let skips = absolute(offset_of!(RunQueue, skips));
    // `cmp dword gs:[skips], 0`
    out.with_operand(GS, Width::Default, &[0x83], 7, skips);
    out.raw(&[0]);
    let none = out.jump_if_ahead(Condition::ZERO);
    load_run_queue(out, Gpr::RAX, offset_of!(RunQueue, current));
    let skipped = at(Gpr::RAX, offset_of!(Context, skipped));
    let rcx = Gpr::RCX.number();
    // `mov`, `inc`, `cmp skips, ecx`
    out.with_operand(&[], Width::Default, &[0x8b], rcx, skipped);
    out.with_operand(&[], Width::Default, &[0xff], 0, skipped);
    out.with_operand(GS, Width::Default, &[0x39], rcx, skips);
    let enough = out.jump_if_ahead(Condition::LESS_OR_EQUAL);
    // If other contexts ran earlier in this time slice, it is timed as theirs: `cmp gs:[first], rax`.
    let first = absolute(offset_of!(RunQueue, first));
    out.with_operand(GS, Width::Quad, &[0x39], Gpr::RAX.number(), first);
    let of_others = out.jump_if_ahead(Condition::NOT_ZERO);
    clear(out, offset_of!(RunQueue, begun));
    out.land(of_others);
    let rounding = at(Gpr::RAX, offset_of!(Context, rounding));
    load(out, Gpr::RDX, rounding);
    out.address_back(Gpr::RCX, again);
    store(out, at(Gpr::RAX, offset_of!(Context, resume)), Gpr::RCX);
    out.jump_back(leaves);
    out.land(enough);
    // `mov dword skipped, 0`
    out.with_operand(&[], Width::Default, &[0xc7], 0, skipped);
    out.raw(&[0; 4]);
    out.land(none);
}

/// A context that has been parked by emitted code.
#[derive(Clone, Copy, Debug)]
struct ParkedContext {
    /// Bytes of its stack that hold vector registers.
    room: i32,
    /// Field of the `lea` that takes the address at which the context resumes.
    resume: u32,
}

/// Fields that [`SettledYield::leave_for_next`] leaves for its caller to resolve.
#[derive(Clone, Copy, Debug)]
struct PendingJumps {
    /// Field of the jump taken if the next context is the one that the time slice began with.
    back: u32,
    /// Field of the `lea` that takes the address at which the context resumes.
    resume: u32,
}

/// Prefetches the operand; the stack pointer must have the program's value.
fn prefetch(operand: Operand, to: Prefetch, out: &mut Emitter) {
    let prefix = match operand.segment {
        None => &[],
        Some(Segment::Fs) => FS,
        Some(Segment::Gs) => GS,
    };
    prefetch_at(prefix, operand.address, to, out);
}

/// Prefetches operands that a scavenger reads later.
fn prefetch_all(ahead: &[Operand], out: &mut Emitter) {
    for operand in ahead {
        prefetch(*operand, Prefetch::Everywhere, out);
    }
}

fn prefetch_at(prefix: &[u8], address: Address, to: Prefetch, out: &mut Emitter) {
    let hint = match to {
        Prefetch::NonTemporal => 0,
        Prefetch::Everywhere => 1,
    };
    out.with_operand(prefix, Width::Default, &[0x0f, 0x18], hint, address);
}

/// Gives the running context its own `fs` base from here on.
fn take_base(around: &Surroundings, writer: &mut Writer<'_>) {
    let used = RegisterSet::gpr(Gpr::RAX).union(RegisterSet::ARITHMETIC_FLAGS);
    let saved = Saved::save(
        &Surroundings {
            live: around.live.intersection(used),
            ..*around
        },
        writer,
    );
    // Not restarted after a signal: between the store of `borrowed` and the change of `fs`, a second run
    // would conclude that `fs` has the context's base already.
    writer.resume = Resume::AsFound;
    writer.mark();
    run_queue::borrow_base(writer.out);
    writer.resume = Resume::Displaced;
    writer.mark();
    saved.restore(writer);
}

/// Stores the rounding mode of the running context at `place`, an address with its segment prefix, and leaves
/// it in rdx. Changes rcx and flags.
fn store_rounding(
    around: &Surroundings,
    writer: &mut Writer<'_>,
    (segment, place): (&[u8], Address),
) {
    match around.saves.and_then(|saves| saves.rounding(&writer.frame)) {
        Some(known) => {
            load(writer.out, Gpr::RDX, known);
            let rdx = Gpr::RDX.number();
            writer
                .out
                .with_operand(segment, Width::Quad, &[0x89], rdx, place);
        }
        None => {
            run_queue::store_rounding(writer.out, segment, place);
            run_queue::take_rounding(writer.out, segment, place);
        }
    }
}

/// Resumes the context whose address is in `context`, which from then on is not parked. Changes rdx.
fn resume_context(writer: &mut Writer<'_>, context: Gpr) {
    let resume = at(context, offset_of!(Context, resume));
    load(writer.out, Gpr::RDX, resume);
    let stack = at(context, offset_of!(Context, stack));
    load(writer.out, Gpr::RSP, stack);
    let here = mark_stack_switched(writer);
    writer
        .out
        .with_operand(&[], Width::Quad, &[0xc7], 0, resume);
    writer.out.raw(&[0; 4]);
    writer.out.jump_to(Gpr::RDX);
    writer.frame = here;
    writer.mark();
}

/// Marks that the stack is the other side's from here on, so that saved values are no longer looked for below
/// the stack pointer. Returns the frame of this side, for code that follows the switch.
fn mark_stack_switched(writer: &mut Writer<'_>) -> RegisterOffsets {
    let here = std::mem::take(&mut writer.frame);
    writer.resume = Resume::AsFound;
    writer.mark();
    here
}

/// What a suspended context has on its stack.
#[derive(Debug)]
struct Saved {
    registers: Vec<Gpr>,
    flags: bool,
    red_zone: bool,
    around_loop: Option<LoopSaves>,
}

impl Saved {
    /// Pushes what is alive, except vectors; rax, rcx and rdx are free afterwards.
    fn save(around: &Surroundings, writer: &mut Writer<'_>) -> Self {
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

    fn restore(&self, writer: &mut Writer<'_>) {
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

#[cfg(test)]
mod tests;
