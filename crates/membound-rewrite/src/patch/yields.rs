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

mod charge;
mod prefetch;
mod saved_state;

use std::mem::offset_of;

use membound_wire::{Context, Entry, RunQueue};

use self::charge::Charge;
pub(super) use self::charge::CountedIterations;
pub(super) use self::prefetch::PrefetchTarget;
use self::prefetch::{prefetch, prefetch_all, prefetch_at};
use self::saved_state::{SavedState, expensive_state};
pub(super) use self::saved_state::{state_to_save, untouched_state};
use super::body_context::BodyContext;
use super::cycle::TrampolineLoop;
use super::emit::{Address, Condition, Emitter, Width};
use super::options::Prefetch;
use super::run_queue::{
    self, FS, GS, absolute, at, change_rounding, clear, compare_byte_with_zero, compare_with_zero,
    count_down, give_base_back, increment, increment_at, load, load_run_queue, set_selector, store,
    store_run_queue,
};
use super::surroundings::Surroundings;
use super::table::{RegisterOffsets, Resume};
use super::writer::Writer;
use super::{Options, Refusal, VectorLevel, Yield, YieldPart, vectors};
use crate::{Gpr, RegisterSet};

/// The field in which the thread that owns the run queue has stored its rounding mode.
const THREAD_ROUNDING: Address = absolute(offset_of!(RunQueue, rounding));

/// A yield that has been checked and can be written at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledYield {
    kind: Yield,
    /// The access to prefetch, if any.
    target: Option<PrefetchTarget>,
    /// True if a scavenger that leaves a loop prefetches the next lines of the streams it reads there.
    prefetches_streams: bool,
    /// True if a scavenger that continues as the next context prefetches the stack of the context after that.
    prefetches_next_stack: bool,
    vectors: VectorLevel,
    /// True if control passes to another context; false if the yield only saves and restores.
    switches: bool,
}

impl SettledYield {
    pub(super) const fn kind(&self) -> Yield {
        self.kind
    }

    pub(super) fn settle(
        kind: Yield,
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
            kind,
            target: target.filter(|_| with(YieldPart::Prefetch)),
            prefetches_streams: with(YieldPart::Prefetch),
            prefetches_next_stack: with(YieldPart::NextContext),
            vectors: options.vectors,
            switches: with(YieldPart::Passing),
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
            && self.kind.prefetches()
        {
            prefetch(target.operand, target.to, writer.out);
        }
        match self.kind {
            _ if !self.switches => self.save_and_restore(around, writer),
            Yield::Primary => self.primary(around, writer),
            Yield::Miss { cost, .. } => {
                self.prefetch_companions(writer.out);
                self.scavenger(around, &Charge::of(cost), writer);
            }
            Yield::Bound { cost, .. } => {
                let trampoline_loop = within.trampoline_loop;
                let iterations = trampoline_loop
                    .filter(|_| within.is_head)
                    .and_then(|it| self.iterations(around, it));
                let streams_of = trampoline_loop.filter(|_| self.prefetches_streams);
                let target = self.target.map(|target| target.operand);
                let charge = Charge::of_bound_yield(cost, iterations, streams_of, target);
                return self.scavenger(around, &charge, writer);
            }
            Yield::Base => take_base(around, writer),
        }
        None
    }

    /// The iterations that the yield charges at once at the head of a loop; `None` if it charges each by
    /// itself.
    pub(super) fn iterations(
        &self,
        around: &Surroundings,
        trampoline_loop: &TrampolineLoop,
    ) -> Option<CountedIterations> {
        let Yield::Bound { cost, .. } = self.kind else {
            return None;
        };
        let flags_dead = self.switches && around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        CountedIterations::of_loop(cost, flags_dead, trampoline_loop)
    }

    /// Saves and restores what a yield does, and continues in the same context.
    fn save_and_restore(&self, around: &Surroundings, writer: &mut Writer<'_>) {
        let saved = SavedState::save(around, writer);
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
        let queue_empty = flags_dead.then(|| {
            compare_with_zero(writer.out, offset_of!(RunQueue, next));
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        let recent = flags_dead
            .then_some(self.target)
            .flatten()
            .and_then(|target| target.jump_if_recent(around, writer.out));
        self.prefetch_companions(writer.out);
        let saved = SavedState::save(around, writer);
        load_run_queue(writer.out, Gpr::RAX, offset_of!(RunQueue, next));
        // No second test is needed where the flags are dead: only the thread itself, and the agent while it
        // finds the thread in the kernel, set `next` to 0.
        let found_empty = (!flags_dead).then(|| {
            writer.out.test(Gpr::RAX);
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        let not_owner = jump_unless_owner(writer.out);
        // A late request may leave `ASK` in `next` after the thread has answered it: `cmp rax, ASK`.
        writer
            .out
            .raw(&[0x48, 0x83, 0xf8, membound_wire::ASK as u8]);
        let answered = writer.out.jump_if_ahead(Condition::ZERO);
        self.leave_for_scavenger(around, writer);
        let resumed = writer.out.jump_ahead();
        writer.out.land(not_owner);
        writer.resume = Resume::Start;
        writer.mark();
        writer.out.call_entry(Entry::Yield);
        writer.out.land(resumed);
        writer.out.land(answered);
        if let Some(field) = found_empty {
            writer.out.land(field);
        }
        writer.resume = Resume::AsFound;
        writer.mark();
        saved.restore(writer);
        for field in queue_empty.into_iter().chain(recent) {
            writer.out.land(field);
        }
        writer.resume = Resume::Displaced;
        writer.mark();
    }

    /// Leaves the thread that owns the run queue for the context in rax, and writes where the thread resumes.
    fn leave_for_scavenger(&self, around: &Surroundings, writer: &mut Writer<'_>) {
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
        let context_rounding = at(Gpr::RAX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], context_rounding));
        resume_context(writer, Gpr::RAX);
        writer.out.land(resume);
        // The selector is cleared first: once `current` is 0, the program's signal handlers run on this
        // thread, and their system calls must reach the kernel.
        set_selector(writer.out, 0);
        clear(writer.out, offset_of!(RunQueue, current));
        vectors::restore(around, self.vectors, room, writer);
    }

    fn prefetch_companions(&self, out: &mut Emitter) {
        if let Some(target) = self.target {
            target.prefetch_companions(out);
        }
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
        let entry = writer.out.at();
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        let nothing_to_restore = flags_dead.then(|| self.stay_without_saving(charge, writer));
        let saved = SavedState::save(around, writer);
        let (no_switch, credit_used_up) = self.stay_after_saving(around, charge, writer);
        // The state of the registers does not change up to the switch, so the marks stay valid.
        let ahead = credit_used_up.map(|field| {
            let before = writer.frame;
            let ahead = self.leave_for_next(around, writer);
            writer.frame = before;
            writer.out.land(field);
            writer.resume = Resume::Displaced;
            writer.mark();
            ahead
        });
        self.leave_for_thread(around, writer, ahead);
        writer.resume = Resume::AsFound;
        writer.mark();
        if self.kind.gives_base() {
            run_queue::borrow_base(writer.out);
        }
        if let Some(field) = no_switch {
            writer.out.land(field);
        }
        saved.restore(writer);
        writer.resume = Resume::Displaced;
        writer.mark();
        let again = charge
            .iteration_counter
            .map(|iterations| skip_counted_iterations(iterations, entry, writer.out));
        if let Some(field) = nothing_to_restore {
            writer.out.land(field);
        }
        again
    }

    /// Where the flags are dead: charges a bound yield. Returns the field of a jump that is taken if the
    /// context goes on.
    fn stay_without_saving(&self, charge: &Charge, writer: &mut Writer<'_>) -> u32 {
        if self.is_miss() {
            return jump_if_alone(writer.out);
        }
        prefetch_all(&charge.ahead, writer.out);
        count_down(writer.out, charge.units);
        // The charge is made: a signal after this must not make the thread repeat it.
        writer.resume = Resume::Displaced;
        writer.mark();
        let field = writer.out.jump_if_ahead(Condition::GREATER);
        prefetch_all(&charge.leaving, writer.out);
        field
    }

    /// After the state has been saved: charges what [`Self::stay_without_saving`] has not charged. Returns the
    /// field of a jump that is taken if the context goes on, and that of a jump that is taken if its credit is
    /// used up.
    fn stay_after_saving(
        &self,
        around: &Surroundings,
        charge: &Charge,
        writer: &mut Writer<'_>,
    ) -> (Option<u32>, Option<u32>) {
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        if !self.is_miss() && flags_dead {
            return (None, None);
        }
        let alone = (!flags_dead && self.is_miss()).then(|| jump_if_alone(writer.out));
        count_down(writer.out, charge.units);
        writer.resume = Resume::Displaced;
        writer.mark();
        if self.is_miss() {
            return (
                alone,
                Some(writer.out.jump_if_ahead(Condition::LESS_OR_EQUAL)),
            );
        }
        let enough_credit = writer.out.jump_if_ahead(Condition::GREATER);
        // The stack pointer has moved, and rax may hold the flags: operands that use either cannot be computed
        // here.
        let moved = [Gpr::RSP, Gpr::RAX];
        let mut computable = charge.leaving.clone();
        computable.retain(|operand| !moved.iter().any(|it| operand.address.uses(*it)));
        prefetch_all(&computable, writer.out);
        (Some(enough_credit), None)
    }

    const fn is_miss(&self) -> bool {
        matches!(self.kind, Yield::Miss { .. })
    }

    /// Parks the context in rax: saves its vectors on its stack and stores where it resumes. Changes rcx and
    /// leaves the rounding mode of the context in rdx.
    fn park(&self, around: &Surroundings, writer: &mut Writer<'_>) -> ParkedContext {
        let room = vectors::save(around, self.vectors, writer);
        let rounding = at(Gpr::RAX, offset_of!(Context, rounding));
        store_rounding(around, writer, (&[], rounding));
        let stack = at(Gpr::RAX, offset_of!(Context, stack));
        store(writer.out, stack, Gpr::RSP);
        if self.is_miss() {
            increment_at(writer.out, at(Gpr::RAX, offset_of!(Context, yields)));
        }
        let resume = writer.out.address_ahead(Gpr::RCX);
        let resume_field = at(Gpr::RAX, offset_of!(Context, resume));
        store(writer.out, resume_field, Gpr::RCX);
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
        let next_rounding = at(Gpr::RCX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], next_rounding));
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
        let leave = writer.out.at();
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
        let own_frame = mark_stack_switched(writer);
        writer.out.jump_to(Gpr::RCX);
        writer.frame = own_frame;
        writer.mark();
        writer.out.land(parked.resume);
        if let Some(ahead) = &ahead {
            writer.out.land(ahead.resume);
        }
        // The prefetched line may take longer to arrive than the time slice of the other side.
        if ahead.is_some() || self.target.is_some() {
            skip_slices(leave, writer.out);
        }
        vectors::restore(around, self.vectors, parked.room, writer);
    }
}

/// Emits a jump, whose field is returned, that is taken if the thread does not own the run queue. Changes rcx
/// and flags.
fn jump_unless_owner(out: &mut Emitter) -> u32 {
    // `owner` differs from the thread pointer in a new thread, which has inherited `gs` from the thread
    // that created it, and when the agent has set `owner` to 0 to be called.
    out.with_operand(FS, Width::Quad, &[0x8b], Gpr::RCX.number(), absolute(0));
    let owner = absolute(offset_of!(RunQueue, owner));
    out.with_operand(GS, Width::Quad, &[0x3b], Gpr::RCX.number(), owner);
    out.jump_if_ahead(Condition::NOT_ZERO)
}

/// Emits a jump, whose field is returned, that is taken if the scavenger runs on its home thread and no other
/// context is to run instead. Changes flags.
fn jump_if_alone(out: &mut Emitter) -> u32 {
    compare_byte_with_zero(out, offset_of!(RunQueue, alone));
    let not_alone = out.jump_if_ahead(Condition::ZERO);
    increment(out, offset_of!(RunQueue, turns));
    let alone = out.jump_ahead();
    out.land(not_alone);
    alone
}

/// Emits the test with which an iteration of a tight loop begins: it goes to `entry` only if no earlier charge
/// covers it. Returns the test's offset.
fn skip_counted_iterations(iterations: CountedIterations, entry: u32, out: &mut Emitter) -> u32 {
    // A context that resumes has been charged for these iterations before: skip the test.
    let counted = out.jump_ahead();
    // Nearly all iterations of a tight loop consist of this test and the loop's instructions alone: one more
    // cache line takes some processors as long as the iteration itself.
    out.begin_line();
    let again = out.at();
    out.test_bits(iterations.iteration_counter.register, iterations.mask());
    out.jump_if_back(Condition::ZERO, entry);
    out.land(counted);
    again
}

/// Emitted where a context resumes after it has prefetched: while slices are to be skipped
/// ([`RunQueue::skips`]), parks the context again, to resume right here, and leaves at `leave` with the
/// context in rax and its rounding mode in rdx. Changes rcx.
fn skip_slices(leave: u32, out: &mut Emitter) {
    let again = out.at();
    let skips = absolute(offset_of!(RunQueue, skips));
    // `cmp dword gs:[skips], 0`
    out.with_operand(GS, Width::Default, &[0x83], 7, skips);
    out.raw(&[0]);
    let no_skips = out.jump_if_ahead(Condition::ZERO);
    load_run_queue(out, Gpr::RAX, offset_of!(RunQueue, current));
    let skipped = at(Gpr::RAX, offset_of!(Context, skipped));
    let rcx = Gpr::RCX.number();
    // `mov`, `inc`, `cmp skips, ecx`
    out.with_operand(&[], Width::Default, &[0x8b], rcx, skipped);
    out.with_operand(&[], Width::Default, &[0xff], 0, skipped);
    out.with_operand(GS, Width::Default, &[0x39], rcx, skips);
    let all_skipped = out.jump_if_ahead(Condition::LESS_OR_EQUAL);
    // If other contexts ran earlier in this time slice, it is timed as theirs: `cmp gs:[first], rax`.
    let first = absolute(offset_of!(RunQueue, first));
    out.with_operand(GS, Width::Quad, &[0x39], Gpr::RAX.number(), first);
    let other_slice = out.jump_if_ahead(Condition::NOT_ZERO);
    clear(out, offset_of!(RunQueue, begun));
    out.land(other_slice);
    let rounding = at(Gpr::RAX, offset_of!(Context, rounding));
    load(out, Gpr::RDX, rounding);
    out.address_back(Gpr::RCX, again);
    store(out, at(Gpr::RAX, offset_of!(Context, resume)), Gpr::RCX);
    out.jump_back(leave);
    out.land(all_skipped);
    // `mov dword skipped, 0`
    out.with_operand(&[], Width::Default, &[0xc7], 0, skipped);
    out.raw(&[0; 4]);
    out.land(no_skips);
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

/// Gives the running context its own `fs` base from here on.
fn take_base(around: &Surroundings, writer: &mut Writer<'_>) {
    let used = RegisterSet::gpr(Gpr::RAX).union(RegisterSet::ARITHMETIC_FLAGS);
    let saved = SavedState::save(
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
    let own_frame = mark_stack_switched(writer);
    writer
        .out
        .with_operand(&[], Width::Quad, &[0xc7], 0, resume);
    writer.out.raw(&[0; 4]);
    writer.out.jump_to(Gpr::RDX);
    writer.frame = own_frame;
    writer.mark();
}

/// Marks that the stack is the other side's from here on, so that saved values are no longer looked for below
/// the stack pointer. Returns the frame of this side, for code that follows the switch.
fn mark_stack_switched(writer: &mut Writer<'_>) -> RegisterOffsets {
    let own_frame = std::mem::take(&mut writer.frame);
    writer.resume = Resume::AsFound;
    writer.mark();
    own_frame
}

#[cfg(test)]
mod tests;
