//! The code before a displaced instruction.
//!
//! A body first chooses how it gets the flags, registers and stack that it needs from what is dead. Then it
//! writes its code and, for every instruction boundary, how to undo it there. Code that seldom runs is
//! written separately, before the trampoline's first place (`SettledBody::slow_path`).

use membound_wire::{Entry, LEAD_IN, Mark, Slots};

use super::body_context::{BodyContext, Draft, SlowPath};
use super::companions::Companions;
use super::cycle::TrampolineLoop;
use super::emit::{Address, Condition, Emitter, Increment, Width};
use super::operand::Operand;
use super::rubbish;
use super::surroundings::Surroundings;
use super::table::{DraftStep, FlagsKept, Kept, RegisterOffsets, Resume, Tables};
use super::writer::{Keep, Marker, Quiet, RED_ZONE, Writer};
use super::yields::{CountedIterations, PrefetchTarget, SettledYield};
use super::{Body, Options, Refusal, VectorLevel, Yield, YieldPart};
use crate::flow::{Access, Segment};
use crate::{Flag, Gpr, RegisterSet};

/// How the body's code gets flags and registers that it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScratchMethod {
    /// The body needs none, or does not exist.
    Free,
    /// The flags are dead.
    DeadFlags,
    /// Goes through this register, without touching flags.
    Through(Gpr, Keep),
    /// The flags are saved in rax.
    SavedFlags(Keep),
}

/// What a body does, with all choices made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Displace,
    Count(Increment),
    CountByStack([Gpr; 2]),
    Rubbish(VectorLevel),
    Sample(Operand),
    Record(Operand),
    PrefetchYield(Operand),
    Yield(SettledYield),
    Syscall,
    Wait(SettledYield),
    Modules,
    Mark(Mark),
}

/// A body that can be written at its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettledBody {
    action: Action,
    method: ScratchMethod,
    around: Surroundings,
}

/// Cost of getting what a body needs; see [`SettledBody::cost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost(u8);

impl Cost {
    /// A cost above that of any body.
    pub(super) const MAX: Self = Self(u8::MAX);
}

impl SettledBody {
    /// The body before a system call that the agent must see.
    pub(super) fn syscall(mut around: Surroundings) -> Result<Self, Refusal> {
        if !around.stack {
            return Err(Refusal::NoStack);
        }
        // System calls are rare: the red zone is always spared, so that a wrong result of the liveness
        // analysis cannot do harm here.
        around.red_zone = true;
        Ok(Self {
            action: Action::Syscall,
            method: ScratchMethod::Free,
            around,
        })
    }

    /// The body before a system call that may wait.
    pub(super) fn wait(around: Surroundings, options: &Options) -> Result<Self, Refusal> {
        let around = Surroundings {
            red_zone: true,
            ..around
        };
        let settled = SettledYield::settle(Yield::Primary, options, &around, None)?;
        Ok(Self {
            action: Action::Wait(settled),
            method: ScratchMethod::Free,
            around,
        })
    }

    /// The body at the function that the dynamic loader calls when its list of modules has changed.
    pub(super) fn modules() -> Self {
        Self {
            action: Action::Modules,
            method: ScratchMethod::Free,
            around: Surroundings {
                live: RegisterSet::ALL,
                red_zone: true,
                stack: true,
                saves: None,
            },
        }
    }

    /// Chooses how `body` is written before `instruction`, which performs `access`, if any; `companions`
    /// gives the other lines that are accessed after an operand.
    pub(super) fn settle(
        body: Body,
        options: &Options,
        around: Surroundings,
        instruction: &iced_x86::Instruction,
        access: Option<&Access>,
        companions: impl FnOnce(Operand) -> Companions,
    ) -> Result<Self, Refusal> {
        let operand = || {
            let access = access.ok_or(Refusal::Operand)?;
            Operand::of(instruction, access).ok_or(Refusal::Operand)
        };
        let plain_operand = || {
            operand()
                .ok()
                .filter(|operand| operand.segment.is_none())
                .filter(|operand| operand.bytes > 0)
                .ok_or(Refusal::Operand)
        };
        let (action, method) = match body {
            Body::Displace => (Action::Displace, ScratchMethod::Free),
            Body::Count { exact } => {
                let form = if exact {
                    Increment::Locked
                } else {
                    Increment::Plain
                };
                (Action::Count(form), counting(&around, form)?)
            }
            Body::CountByStack => {
                let method = with_call(&around)?;
                (Action::CountByStack(two_registers(&around, method)), method)
            }
            Body::Rubbish => (Action::Rubbish(options.vectors), ScratchMethod::Free),
            Body::Sample => (Action::Sample(plain_operand()?), with_call(&around)?),
            Body::Record => (Action::Record(plain_operand()?), with_call(&around)?),
            Body::PrefetchYield => {
                let operand = operand()?;
                if !around.stack {
                    return Err(Refusal::NoStack);
                }
                (Action::PrefetchYield(operand), ScratchMethod::Free)
            }
            Body::Yield(what) => {
                let reads = |operand: &Operand| !operand.stores && operand.segment.is_none();
                let target = operand()
                    .ok()
                    .filter(|operand| what.prefetches() || reads(operand));
                let target = target.map(|operand| PrefetchTarget {
                    operand,
                    companions: if options.without.contains(&YieldPart::Companions) {
                        Companions::default()
                    } else {
                        companions(operand)
                    },
                    to: options.prefetch_of(instruction.ip()),
                    filters_recent_misses: options.filters_recent_misses(instruction.ip()),
                });
                let settled = SettledYield::settle(what, options, &around, target)?;
                (Action::Yield(settled), ScratchMethod::Free)
            }
            Body::Mark(mark) => {
                if !around.stack {
                    return Err(Refusal::NoStack);
                }
                (Action::Mark(mark), ScratchMethod::Free)
            }
        };
        Ok(Self {
            action,
            method,
            around,
        })
    }

    /// The yield that this body is, if it is one, and the state around it.
    pub(super) const fn yields(&self) -> Option<(Yield, Surroundings)> {
        match self.action {
            Action::Yield(settled) => Some((settled.kind(), self.around)),
            _ => None,
        }
    }

    /// The iterations that a yield at a loop's head charges at once.
    pub(super) fn iterations(&self, trampoline_loop: &TrampolineLoop) -> Option<CountedIterations> {
        match self.action {
            Action::Yield(what) => what.iterations(&self.around, trampoline_loop),
            _ => None,
        }
    }

    /// Cost of the fast path beyond its work, in instructions.
    pub(super) const fn cost(&self) -> Cost {
        Cost(match self.method {
            ScratchMethod::Free | ScratchMethod::DeadFlags => 0,
            ScratchMethod::Through(_, Keep::Nowhere | Keep::In(_)) => 2,
            ScratchMethod::Through(_, Keep::OnStack) => 4,
            ScratchMethod::SavedFlags(Keep::Nowhere) => 5,
            ScratchMethod::SavedFlags(Keep::In(_)) => 6,
            ScratchMethod::SavedFlags(Keep::OnStack) => 7,
        })
    }

    /// Writes the part of the body that seldom runs, before the trampoline's first place.
    pub(super) fn slow_path(
        &self,
        site: u32,
        out: &mut Emitter,
        tables: &mut Tables,
        draft: &mut Draft,
    ) -> Option<SlowPath> {
        if !matches!(self.action, Action::Sample(_) | Action::Record(_)) {
            return None;
        }
        let start = out.at();
        let first = draft.slow_steps.len();
        let mut frame = RegisterOffsets::default();
        self.enter(&mut Quiet, &mut frame);
        let mut writer = Writer {
            out,
            tables,
            steps: &mut draft.slow_steps,
            frame,
            resume: Resume::Start,
        };
        if matches!(self.action, Action::Sample(_)) {
            // The execution has been counted already: do not count it again after a signal.
            writer.resume = Resume::Displaced;
        }
        if matches!(self.method, ScratchMethod::SavedFlags(_)) {
            writer.frame.flags = Some(FlagsKept::InRax);
        }
        writer.begin();
        let led_in = matches!(self.action, Action::Sample(_)).then(|| lead_in(site, writer.out));
        self.report(site, &mut writer);
        if let Some(field) = led_in {
            writer.out.land(field);
        }
        let back = writer.out.jump_ahead();
        Some(SlowPath {
            start,
            back,
            steps: (first, draft.slow_steps.len()),
        })
    }

    /// Writes the body; the displaced instruction must follow.
    ///
    /// At the head of a loop, returns the offset at which later iterations enter, if that is not the body's
    /// beginning.
    pub(super) fn write(
        &self,
        within: BodyContext<'_>,
        out: &mut Emitter,
        tables: &mut Tables,
        draft: &mut Draft,
    ) -> Option<u32> {
        let BodyContext { site, slow, .. } = within;
        let mut writer = within.begin(out, tables, &mut draft.steps);
        let begins = within.saves().map(|_| writer.out.at());
        match self.action {
            Action::Displace => {}
            Action::Count(form) => self.count(site, form, &mut writer),
            Action::CountByStack(registers) => self.count_by_stack(site, registers, &mut writer),
            Action::Rubbish(vectors) => {
                let seed = u64::from(writer.out.at()) << 20 ^ u64::from(site);
                rubbish::write(&self.around, vectors, seed, writer.out);
            }
            Action::Sample(_) | Action::Record(_) => {
                let slow = slow.expect("a body that reports has a slow path");
                self.guard(site, slow, &mut writer);
            }
            Action::PrefetchYield(operand) => self.prefetch(operand, &mut writer),
            Action::Yield(what) => {
                let around = match within.saves() {
                    Some(saves) => saves.within(&self.around),
                    None => self.around,
                };
                return what.write(&around, within, &mut writer).or(begins);
            }
            Action::Syscall => {
                call_agent(Entry::Syscall, &mut writer);
                writer.out.skip_if(Condition::CARRY, 2);
                writer.resume = Resume::Displaced;
                writer.mark();
            }
            Action::Wait(what) => {
                let again = writer.out.at();
                call_agent(Entry::Wait, &mut writer);
                let calls = writer.out.jump_if_ahead(Condition::NOT_CARRY);
                writer.resume = Resume::Start;
                writer.mark();
                what.write(&self.around, within, &mut writer);
                writer.out.jump_back(again);
                writer.out.land(calls);
                writer.out.skip_if(Condition::ZERO, 2);
                writer.resume = Resume::Displaced;
                writer.mark();
            }
            Action::Modules => {
                writer.lower(RED_ZONE);
                writer.out.call_entry(Entry::Modules);
                writer.resume = Resume::Displaced;
                writer.mark();
                writer.lower(-RED_ZONE);
            }
            Action::Mark(mark) => {
                writer.lower(RED_ZONE);
                writer.out.push_constant(mark as u32);
                writer.moved(8);
                writer.out.call_entry(Entry::Mark);
                writer.resume = Resume::Displaced;
                writer.mark();
                writer.lower(-RED_ZONE - 8);
            }
        }
        None
    }

    /// Adds the table entry of the place that [`Self::write`] has written, and that of its slow path.
    pub(super) fn close(
        code: u32,
        original: u32,
        displaced: u32,
        slow: Option<SlowPath>,
        tables: &mut Tables,
        draft: &Draft,
    ) -> Option<membound_wire::TrampolineEntry> {
        tables.place(code, original, displaced, &draft.steps);
        let slow = slow?;
        let steps = &draft.slow_steps[slow.steps.0..slow.steps.1];
        // The main place lies just before `displaced`; a thread in the slow path that has not done anything
        // yet continues at its start.
        let steps: Vec<DraftStep> = steps.iter().map(|step| step.started_at(code)).collect();
        tables.place(slow.start, original, displaced, &steps);
        tables.places.pop()
    }

    /// Writes the code before the test: saves the flags if they are needed.
    fn enter(&self, out: &mut impl Marker, frame: &mut RegisterOffsets) {
        if let ScratchMethod::SavedFlags(keep) = self.method {
            match keep {
                Keep::Nowhere => {}
                Keep::In(register) => {
                    out.emit(|out| out.copy(register, Gpr::RAX));
                    frame.keep(Gpr::RAX, Kept::In(register));
                    out.mark(frame);
                }
                Keep::OnStack => {
                    if self.around.red_zone {
                        out.emit(|out| out.move_stack(-RED_ZONE));
                        frame.lowered += RED_ZONE;
                        out.mark(frame);
                    }
                    out.emit(|out| out.push(Gpr::RAX));
                    frame.lowered += 8;
                    frame.keep(Gpr::RAX, Kept::Below(frame.lowered));
                    out.mark(frame);
                }
            }
            out.emit(Emitter::lahf);
            out.emit(Emitter::seto_al);
        }
    }

    fn guard(&self, site: u32, slow: SlowPath, writer: &mut Writer<'_>) {
        let mut frame = writer.frame;
        self.enter(writer, &mut frame);
        writer.frame = frame;
        if matches!(self.method, ScratchMethod::SavedFlags(_)) {
            // Whatever happens to the flags from here on, rax has them.
            writer.frame.flags = Some(FlagsKept::InRax);
            writer.mark();
        }
        let condition = if let Action::Sample(_) = self.action {
            writer.out.count_down(site);
            writer.resume = Resume::Displaced;
            writer.mark();
            Condition::LESS_OR_EQUAL
        } else {
            let burst = std::mem::offset_of!(Slots, burst);
            writer
                .out
                .test_slot(u32::try_from(burst).expect("slots are small"));
            Condition::NOT_ZERO
        };
        writer.out.jump_if_back(condition, slow.start);
        writer.out.land(slow.back);
        // Fast and slow path join here: from now on nothing may be repeated.
        writer.resume = Resume::Displaced;
        writer.mark();
        if let ScratchMethod::SavedFlags(keep) = self.method {
            writer.restore_flags();
            writer.restore_rax(keep, self.around.red_zone);
        }
    }

    fn count(&self, site: u32, form: Increment, writer: &mut Writer<'_>) {
        match self.method {
            ScratchMethod::Free | ScratchMethod::DeadFlags => {
                writer.out.increment(site, form);
                writer.resume = Resume::Displaced;
                writer.mark();
            }
            ScratchMethod::Through(register, keep) => {
                if keep == Keep::OnStack {
                    if self.around.red_zone {
                        writer.lower(RED_ZONE);
                    }
                    writer.push(register);
                }
                writer.out.load_word(register, site);
                writer.out.add_one(register);
                writer.out.store_word(register, site);
                writer.resume = Resume::Displaced;
                writer.mark();
                if keep == Keep::OnStack {
                    writer.pop(register);
                    if self.around.red_zone {
                        writer.lower(-RED_ZONE);
                    }
                }
            }
            ScratchMethod::SavedFlags(keep) => {
                let mut frame = writer.frame;
                self.enter(writer, &mut frame);
                writer.frame = frame;
                writer.frame.flags = Some(FlagsKept::InRax);
                writer.mark();
                writer.out.increment(site, form);
                writer.resume = Resume::Displaced;
                writer.mark();
                writer.restore_flags();
                writer.restore_rax(keep, self.around.red_zone);
            }
        }
    }

    fn count_by_stack(&self, site: u32, registers: [Gpr; 2], writer: &mut Writer<'_>) {
        let mut frame = writer.frame;
        self.enter(writer, &mut frame);
        writer.frame = frame;
        if matches!(self.method, ScratchMethod::SavedFlags(_)) {
            writer.frame.flags = Some(FlagsKept::InRax);
            writer.mark();
        }
        let alive = |register: &Gpr| !self.around.is_dead(RegisterSet::gpr(*register));
        let pushed: Vec<Gpr> = registers.into_iter().filter(alive).collect();
        let lowers = !pushed.is_empty() && self.around.red_zone && writer.frame.lowered == 0;
        if lowers {
            writer.lower(RED_ZONE);
        }
        for register in &pushed {
            writer.push(*register);
        }
        let [address, scratch] = registers;
        writer.out.word_of_stack(address, scratch, site);
        let word = Address::Registers {
            base: Some(address),
            index: Some((scratch, 0)),
            displacement: 0,
        };
        writer
            .out
            .with_operand(&[0xf0], Width::Quad, &[0xff], 0, word);
        writer.resume = Resume::Displaced;
        writer.mark();
        for register in pushed.iter().rev() {
            writer.pop(*register);
        }
        if lowers {
            writer.lower(-RED_ZONE);
        }
        if let ScratchMethod::SavedFlags(keep) = self.method {
            writer.restore_flags();
            writer.restore_rax(keep, self.around.red_zone);
        }
    }

    fn prefetch(&self, operand: Operand, writer: &mut Writer<'_>) {
        let mut address = operand.address;
        if self.around.red_zone {
            writer.lower(RED_ZONE);
            // A displacement that leaves its range here does not occur in practice; prefetching another
            // address is harmless.
            address = address.below(RED_ZONE).unwrap_or(address);
        }
        let prefix: &[u8] = match operand.segment {
            None => &[],
            Some(Segment::Fs) => &[0x64],
            Some(Segment::Gs) => &[0x65],
        };
        writer
            .out
            .with_operand(prefix, Width::Default, &[0x0f, 0x18], 1, address);
        writer.out.call_entry(Entry::Yield);
        writer.resume = Resume::Displaced;
        writer.mark();
        if self.around.red_zone {
            writer.lower(-RED_ZONE);
        }
    }

    /// Writes the slow path itself; it restores all registers to their values at its start.
    ///
    /// A store is timed by a load of the bytes it is about to write. The store itself retires before it has
    /// its line; the load takes as long as the line is away, and its latency is comparable with the
    /// calibration, which uses loads.
    fn report(&self, site: u32, writer: &mut Writer<'_>) {
        let (operand, timed) = match self.action {
            Action::Sample(operand) => (operand, true),
            Action::Record(operand) => (operand, false),
            _ => return,
        };
        let lowers = self.around.red_zone && writer.frame.lowered == 0;
        if lowers {
            writer.lower(RED_ZONE);
        }
        let [address, ticks, hit, drain] = self.scratch(operand.address);
        let pushed: &[Gpr] = if timed {
            &[Gpr::RAX, Gpr::RDX, address, ticks, hit, drain]
        } else {
            &[address]
        };
        for register in pushed {
            writer.push(*register);
        }
        writer.load_address(address, operand.address);
        if timed {
            drained(writer.out, drain);
            let top_of_stack = Address::Registers {
                base: Some(Gpr::RSP),
                index: None,
                displacement: 0,
            };
            timed_load(writer.out, hit, Width::Quad, &[0x8b], top_of_stack);
            let at_address = Address::Registers {
                base: Some(address),
                index: None,
                displacement: 0,
            };
            let (width, opcode): (Width, &[u8]) = match operand.bytes {
                1 => (Width::Default, &[0x0f, 0xb6]),
                2 | 3 => (Width::Default, &[0x0f, 0xb7]),
                4..=7 => (Width::Default, &[0x8b]),
                _ => (Width::Quad, &[0x8b]),
            };
            timed_load(writer.out, ticks, width, opcode, at_address);
        }
        let mut arguments = 2;
        if timed {
            for register in [drain, hit, ticks] {
                writer.out.push(register);
                writer.moved(8);
                arguments += 1;
            }
        }
        writer.out.push(address);
        writer.moved(8);
        let mark = if operand.stores { STORE_BIT } else { 0 };
        writer.out.push_site_number(site, mark);
        writer.moved(8);
        writer
            .out
            .call_entry(if timed { Entry::Sample } else { Entry::Record });
        writer.resume = Resume::Displaced;
        writer.mark();
        writer.lower(-8 * arguments);
        for register in pushed.iter().rev() {
            writer.pop(*register);
        }
        if lowers {
            writer.lower(-RED_ZONE);
        }
    }

    /// Scratch registers for the address and the ticks: none of rax and rdx, none that the operand uses, none
    /// in which the fast path keeps a value.
    fn scratch(&self, operand: Address) -> [Gpr; 4] {
        let keeps_flags = |register: Gpr| matches!(self.method, ScratchMethod::SavedFlags(Keep::In(other)) if other == register);
        let mut free = Gpr::all().filter(|register| {
            ![Gpr::RAX, Gpr::RDX, Gpr::RSP, Gpr::RBP].contains(register)
                && !operand.uses(*register)
                && !keeps_flags(*register)
        });
        let mut next = || free.next().expect("twelve registers less three are enough");
        [next(), next(), next(), next()]
    }
}

/// Makes the last executions before a sample wait at a fence instead (see [`LEAD_IN`]). Returns the field of
/// the jump with which they skip the sample.
fn lead_in(site: u32, out: &mut Emitter) -> u32 {
    out.compare_countdown(site, -LEAD_IN);
    let expired = out.jump_if_ahead(Condition::LESS_OR_EQUAL);
    out.raw(LFENCE);
    let over = out.jump_ahead();
    out.land(expired);
    over
}

/// Leaves in `ticks` the time that outstanding stores took to complete.
fn drained(out: &mut Emitter, ticks: Gpr) {
    out.raw(LFENCE);
    out.raw(RDTSC);
    out.copy_low(ticks, Gpr::RAX);
    out.raw(MFENCE);
    out.raw(LFENCE);
    out.raw(RDTSC);
    out.subtract_low(Gpr::RAX, ticks);
    out.copy_low(ticks, Gpr::RAX);
}

/// Loads from `address` into rdx and leaves in `ticks` the time of the load, fences included.
fn timed_load(out: &mut Emitter, ticks: Gpr, width: Width, opcode: &[u8], address: Address) {
    out.raw(LFENCE);
    out.raw(RDTSC);
    out.copy_low(ticks, Gpr::RAX);
    // Without this fence the load runs while the counter is being read, which takes longer than a hit in the
    // first cache levels.
    out.raw(LFENCE);
    out.with_operand(&[], width, opcode, Gpr::RDX.number(), address);
    out.raw(LFENCE);
    out.raw(RDTSC);
    out.subtract_low(Gpr::RAX, ticks);
    out.copy_low(ticks, Gpr::RAX);
}

/// Bit of a site number on the stack: the access is a store.
const STORE_BIT: u32 = 1 << 31;
const LFENCE: &[u8] = &[0x0f, 0xae, 0xe8];
const MFENCE: &[u8] = &[0x0f, 0xae, 0xf0];
const RDTSC: &[u8] = &[0x0f, 0x31];

fn counting(around: &Surroundings, form: Increment) -> Result<ScratchMethod, Refusal> {
    // `inc` leaves the carry flag alone.
    let changed = RegisterSet::ARITHMETIC_FLAGS.without(RegisterSet::flag(Flag::Carry));
    if around.is_dead(changed) {
        return Ok(ScratchMethod::DeadFlags);
    }
    if form == Increment::Locked {
        return saving_flags(around);
    }
    match around.dead_registers().next() {
        Some(register) => Ok(ScratchMethod::Through(register, Keep::Nowhere)),
        None if around.stack => Ok(ScratchMethod::Through(Gpr::RAX, Keep::OnStack)),
        None => Err(Refusal::NoStack),
    }
}

fn with_call(around: &Surroundings) -> Result<ScratchMethod, Refusal> {
    if !around.stack {
        return Err(Refusal::NoStack);
    }
    if around.is_dead(RegisterSet::ARITHMETIC_FLAGS) {
        return Ok(ScratchMethod::DeadFlags);
    }
    saving_flags(around)
}

/// Two registers besides rax and those `method` uses, preferably dead ones.
fn two_registers(around: &Surroundings, method: ScratchMethod) -> [Gpr; 2] {
    let mut but = vec![Gpr::RSP, Gpr::RAX];
    if let ScratchMethod::SavedFlags(Keep::In(register)) = method {
        but.push(register);
    }
    let mut next = || {
        let mut candidates = around.dead_registers().chain(Gpr::all());
        let found = candidates.find(|register| !but.contains(register));
        let found = found.expect("there are sixteen registers");
        but.push(found);
        found
    };
    [next(), next()]
}

fn saving_flags(around: &Surroundings) -> Result<ScratchMethod, Refusal> {
    if around.is_dead(RegisterSet::gpr(Gpr::RAX)) {
        return Ok(ScratchMethod::SavedFlags(Keep::Nowhere));
    }
    // Slow paths use rdx for timing, so it must not hold a value that the tables expect there.
    let usable = |it: &Gpr| ![Gpr::RAX, Gpr::RDX].contains(it);
    match around.dead_registers().find(usable) {
        Some(register) => Ok(ScratchMethod::SavedFlags(Keep::In(register))),
        None if around.stack => Ok(ScratchMethod::SavedFlags(Keep::OnStack)),
        None => Err(Refusal::NoStack),
    }
}

/// Asks the agent about a system call. The flags say whether the agent has executed it, with the result in
/// rax, so even after a signal the thread must continue right behind this code.
fn call_agent(entry: Entry, writer: &mut Writer<'_>) {
    writer.lower(RED_ZONE);
    writer.out.call_entry(entry);
    let lowered = writer.out.at();
    writer.resume = Resume::At(lowered + 8);
    writer.mark();
    writer.lower(-RED_ZONE);
    debug_assert_eq!(writer.out.at(), lowered + 8, "the length of the lea");
}
