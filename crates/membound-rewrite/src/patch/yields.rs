//! Bodies at which a thread goes on as another context.
//!
//! A context that is away has everything that was alive on its own stack, below the red zone,
//! and where it goes on only the stack pointer means anything. So a switch saves what is alive
//! at one place and nothing else, and does not have to know what the other side saved.
//!
//! The order of stores is one that a signal may fall into (see [`membound_wire::Lane`]). Up to the
//! store of `current` a yield of the primary is begun anew, since what it has read of the ring may
//! not hold any more when a handler has returned. Behind it the thread counts as away until it has
//! cleared `current` itself. A context that leaves is parked as soon as it has a `resume`. Once the
//! stack pointer has gone over, nothing on the stack is this side's any more.
//!
//! Who leaves has the other side round as that did when it left: a comparison, as a rule. So does
//! whoever else goes on at a `resume`.

use std::mem::offset_of;

use iced_x86::{Code, FlowControl, Instruction};
use membound_wire::{
    CREDIT_UNITS_PER_NS, Context, Entry, LINE_BYTES, Lane, RECENT_FACTOR, RECENT_LINES,
    RECENT_OFFSET,
};

use super::body::Within;
use super::companions::Companions;
use super::cycle::{Beat, Cycle};
use super::emit::{Address, Condition, Emitter, Width};
use super::lane::{
    self, FS, GS, absolute, at, change_rounding, clear, compare_byte_with_zero, compare_with_zero,
    count_down, give_base_back, increment, increment_at, load, load_lane, set_selector, store,
    store_lane,
};
use super::loop_saves::LoopSaves;
use super::operand::Operand;
use super::options::Prefetch;
use super::surroundings::Surroundings;
use super::table::{FlagsKept, Frame, Resume};
use super::writer::{RED_ZONE, Writer};
use super::{Options, Refusal, VectorLevel, Yield, YieldPart, vectors};
use crate::flow::{Analyst, Segment};
use crate::{Gpr, RegisterSet};

/// Time in a loop that is counted at once, in nanoseconds.
const AT_ONCE_NS: i32 = 10;
/// Time for which a scavenger asks ahead, in nanoseconds: a turn's, about.
const AHEAD_NS: i32 = 100;
/// Where the thread that a lane belongs to has written down how it rounds.
const THREAD_ROUNDING: Address = absolute(offset_of!(Lane, rounding));

/// What a yield is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// What is about to be accessed.
    pub operand: Operand,
    /// What is likely to be, after it.
    pub companions: Companions,
    /// Where it is prefetched to.
    pub to: Prefetch,
    /// Whether there is no yield for a line that there was one for lately.
    pub recalls: bool,
}

/// A yield that can be written at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettledYield {
    what: Yield,
    /// What is prefetched.
    asked: Option<Asked>,
    /// Whether what is read next is asked for when a scavenger leaves a loop that it reads in steps.
    asks_ahead: bool,
    /// Whether a scavenger that goes on as the next one asks for what comes after that.
    asks_for_next: bool,
    vectors: VectorLevel,
    /// Whether control goes on elsewhere.
    passes: bool,
}

/// State that is alive by the rules and yet need not be kept in a function of these instructions:
/// where nothing touches the x87 stack it is empty, or holds a result on its way through, and where
/// nothing sets the direction flag it is clear, here as on the other side.
pub(super) fn untouched(instructions: &[Instruction], analyst: &mut Analyst) -> RegisterSet {
    let mut writes = RegisterSet::EMPTY;
    // Nothing runs after `ud2` and `hlt`, of which everything is assumed.
    let stops =
        |it: &&Instruction| it.flow_control() == FlowControl::Exception || it.code() == Code::Hlt;
    for instruction in instructions.iter().filter(|it| !stops(it)) {
        writes = writes.union(analyst.effects(instruction).writes);
    }
    dear().without(writes)
}

/// What a yield saves of what is `live`, where `untouched` and `unused` need not be.
pub(super) fn kept(
    live: RegisterSet,
    untouched: RegisterSet,
    unused: RegisterSet,
    options: &Options,
) -> RegisterSet {
    let live = if options.without.contains(&YieldPart::Liveness) {
        live.union(dear().complement())
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

/// What would have to be saved and costs more than a switch.
const fn dear() -> RegisterSet {
    RegisterSet::X87.union(RegisterSet::DIRECTION)
}

/// What a scavenger is charged at a yield.
#[derive(Clone, Debug)]
struct Charge {
    /// In [`CREDIT_UNITS_PER_NS`].
    units: u16,
    /// The laps that this is for, where it is for several. It is what they take when the loop is entered,
    /// and then each time that so many were made: never too late.
    beat: Option<Laps>,
    /// What is asked for whenever it is charged for several laps.
    ahead: Vec<Operand>,
    /// What is asked for when it leaves, for when it is back: what it stands before, and pages that were not
    /// read lately, which are looked up while the other side waits for something of its own. A turn would
    /// wait for them.
    leaving: Vec<Operand>,
}

/// Two to the power of `together` laps, of which one finds the bits above `beat`'s shift 0. Where it is only
/// asked every so many laps, two to the power of `apart`, the lowest of these bits are as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laps {
    beat: Beat,
    together: u32,
    apart: u32,
}

impl Laps {
    /// How many laps may stand one behind the other without being counted, as a power of two.
    pub(super) const fn most_copies(self) -> u32 {
        self.together - 1
    }

    const fn mask(self) -> u32 {
        ((1 << self.together) - (1 << self.apart)) << self.beat.shift
    }
}

impl Charge {
    const fn of(units: u16) -> Self {
        Self {
            units,
            beat: None,
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
        asked: Option<Asked>,
    ) -> Result<Self, Refusal> {
        if !around.stack {
            return Err(Refusal::NoStack);
        }
        if around.live.intersects(dear()) {
            return Err(Refusal::DearState);
        }
        let with = |part| !options.without.contains(&part);
        Ok(Self {
            what,
            asked: asked.filter(|_| with(YieldPart::Prefetch)),
            asks_ahead: with(YieldPart::Prefetch),
            asks_for_next: with(YieldPart::NextContext),
            vectors: options.vectors,
            passes: with(YieldPart::Passing),
        })
    }

    /// Returns where laps come in, as [`super::body::Settled::write`] does.
    pub(super) fn write(
        &self,
        around: &Surroundings,
        within: Within<'_>,
        writer: &mut Writer<'_>,
    ) -> Option<u32> {
        if let Some(asked) = self.asked
            && self.what.prefetches()
        {
            prefetch(asked.operand, asked.to, writer.out);
        }
        match self.what {
            _ if !self.passes => self.stay(around, writer),
            Yield::Primary => self.primary(around, writer),
            Yield::Miss { cost, .. } => {
                self.ask_for_companions(writer.out);
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

    /// The laps that are counted at once at the head of a loop, where it bounds the time in it; `None` where
    /// each is.
    pub(super) fn laps(&self, around: &Surroundings, cycle: &Cycle) -> Option<Laps> {
        let Yield::Bound { cost, .. } = self.what else {
            return None;
        };
        let at_once = AT_ONCE_NS * CREDIT_UNITS_PER_NS / i32::from(cost.max(1));
        let together = at_once.max(1).ilog2();
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        let tells = |beat: &Beat| self.passes && flags_dead && together > 0 && beat.shift < 16;
        Some(Laps {
            beat: cycle.beat.filter(tells)?,
            together,
            apart: cycle.copies,
        })
    }

    /// What is counted at a time: that of a lap, or of several where which lap it is can be told.
    fn charge(&self, around: &Surroundings, within: Within<'_>, cost: u16) -> Charge {
        let Some(cycle) = within.cycle else {
            return Charge {
                leaving: self.asked.map(|asked| asked.operand).into_iter().collect(),
                ..Charge::of(cost)
            };
        };
        let laps = i64::from(AHEAD_NS * CREDIT_UNITS_PER_NS) / i64::from(cost.max(1));
        let beat = self.laps(around, cycle).filter(|_| within.is_head);
        let (ahead, mut leaving) = match beat {
            _ if !self.asks_ahead => (Vec::new(), Vec::new()),
            None => (Vec::new(), cycle.ahead(laps)),
            Some(counted) => (cycle.behind(laps, 1 << counted.together), cycle.far(laps)),
        };
        // What is read in steps was asked for laps ago.
        let asked = self.asked.map(|asked| asked.operand);
        leaving
            .extend(asked.filter(|operand| !cycle.streams.iter().any(|it| it.operand == *operand)));
        Charge {
            units: beat.map_or(cost, |counted| cost << counted.together),
            beat,
            ahead,
            leaving,
        }
    }

    /// Saves and gives back what a yield does, and goes on here.
    fn stay(&self, around: &Surroundings, writer: &mut Writer<'_>) {
        let saved = Saved::save(around, writer);
        let room = vectors::save(around, self.vectors, writer);
        vectors::restore(around, self.vectors, room, writer);
        saved.restore(writer);
        writer.resume = Resume::Displaced;
        writer.mark();
    }

    /// Goes on as the next scavenger, if there is one.
    fn primary(&self, around: &Surroundings, writer: &mut Writer<'_>) {
        let flags_dead = around.is_dead(RegisterSet::ARITHMETIC_FLAGS);
        // With flags to spare, nobody there costs a comparison and a jump.
        let nobody = flags_dead.then(|| {
            compare_with_zero(writer.out, offset_of!(Lane, next));
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        let recent = flags_dead
            .then(|| self.pass_recent(around, writer))
            .flatten();
        self.ask_for_companions(writer.out);
        let saved = Saved::save(around, writer);
        load_lane(writer.out, Gpr::RAX, offset_of!(Lane, next));
        // Only the thread itself and who finds it in the kernel make this 0.
        let nobody_now = (!flags_dead).then(|| {
            writer.out.test(Gpr::RAX);
            writer.out.jump_if_ahead(Condition::ZERO)
        });
        // Whoever inherited the lane of the thread that made it has another thread pointer.
        writer
            .out
            .with_operand(FS, Width::Quad, &[0x8b], Gpr::RCX.number(), absolute(0));
        let owner = absolute(offset_of!(Lane, owner));
        writer
            .out
            .with_operand(GS, Width::Quad, &[0x3b], Gpr::RCX.number(), owner);
        let stranger = writer.out.jump_if_ahead(Condition::NOT_ZERO);
        // Who asked for the thread may have been late, and it has answered before: `cmp rax, ASK`.
        writer
            .out
            .raw(&[0x48, 0x83, 0xf8, membound_wire::ASK as u8]);
        let answered = writer.out.jump_if_ahead(Condition::ZERO);
        let room = vectors::save(around, self.vectors, writer);
        store_lane(writer.out, offset_of!(Lane, stack), Gpr::RSP);
        let resume = writer.out.address_ahead(Gpr::RCX);
        store_lane(writer.out, offset_of!(Lane, resume), Gpr::RCX);
        store_lane(writer.out, offset_of!(Lane, first), Gpr::RAX);
        store_rounding(around, writer, (GS, THREAD_ROUNDING));
        let span = absolute(offset_of!(Lane, span));
        let credit = absolute(offset_of!(Lane, credit));
        writer
            .out
            .with_operand(GS, Width::Default, &[0x8b], Gpr::RCX.number(), span);
        writer
            .out
            .with_operand(GS, Width::Default, &[0x89], Gpr::RCX.number(), credit);
        increment(writer.out, offset_of!(Lane, turns));
        store_lane(writer.out, offset_of!(Lane, current), Gpr::RAX);
        writer.resume = Resume::AsFound;
        writer.mark();
        set_selector(writer.out, 1);
        let of_context = at(Gpr::RAX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], of_context));
        go_on_as(writer, Gpr::RAX);
        writer.out.land(resume);
        // In this order: once it is back, handlers of the program run on it, which call the kernel.
        set_selector(writer.out, 0);
        clear(writer.out, offset_of!(Lane, current));
        vectors::restore(around, self.vectors, room, writer);
        let over = writer.out.jump_ahead();
        writer.out.land(stranger);
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

    /// Asks for what is likely to be accessed after what the yield is for.
    fn ask_for_companions(&self, out: &mut Emitter) {
        let Some(asked) = self.asked else { return };
        for operand in asked.companions.into_iter().flatten() {
            prefetch(operand, asked.to, out);
        }
    }

    /// Takes a jump, whose field is returned, where there was a yield for the line lately: it is in a cache
    /// still, or one that lies at its place is. `None` where there are no registers to look with. Changes
    /// flags.
    fn pass_recent(&self, around: &Surroundings, writer: &mut Writer<'_>) -> Option<u32> {
        let asked = self.asked.filter(|asked| asked.recalls)?;
        if asked.operand.segment.is_some() {
            return None;
        }
        let [line, place] = around.two_dead()?;
        let out = &mut *writer.out;
        out.address(line, asked.operand.address);
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

    /// Goes on as the primary when its time has come, or, at a miss, as the next one before. Returns where
    /// laps come in that may have been counted before.
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
            ask_for(&charge.ahead, writer.out);
            count_down(writer.out, cost);
            // From here on it is not to be counted again.
            writer.resume = Resume::Displaced;
            writer.mark();
            quick = Some(writer.out.jump_if_ahead(Condition::GREATER));
            ask_for(&charge.leaving, writer.out);
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
                // The stack pointer has moved, and flags may be in rax.
                let moved = [Gpr::RSP, Gpr::RAX];
                let mut still = charge.leaving.clone();
                still.retain(|operand| !moved.iter().any(|it| operand.address.uses(*it)));
                ask_for(&still, writer.out);
            }
        }
        // The state of the registers does not change up to the switch: what is marked stays.
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
            lane::borrow_base(writer.out);
        }
        if let Some(field) = slow {
            writer.out.land(field);
        }
        saved.restore(writer);
        writer.resume = Resume::Displaced;
        writer.mark();
        let again = charge.beat.map(|laps| {
            // Who comes back has counted these laps before.
            let counted = writer.out.jump_ahead();
            // Laps that do not count are all that a tight loop does: one more line takes some processors as
            // long as the lap itself.
            writer.out.begin_line();
            let again = writer.out.at();
            writer.out.test_bits(laps.beat.register, laps.mask());
            writer.out.jump_if_back(Condition::ZERO, entry);
            writer.out.land(counted);
            again
        });
        if let Some(field) = quick {
            writer.out.land(field);
        }
        again
    }

    /// Writes where the context in rax goes on, with its vectors on its stack. Changes rcx and leaves in rdx
    /// how it rounds.
    fn park(&self, around: &Surroundings, writer: &mut Writer<'_>) -> Parked {
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
        // From here on it is not this side alone whose state would have to be undone.
        writer.resume = Resume::AsFound;
        writer.mark();
        Parked { room, resume }
    }

    /// Leaves for the next context of the ring unless the turn began with that; then, parked
    /// already, it takes a jump whose field is returned. The ring is read only when the context is
    /// parked: up to there it may be sent home, where the next one is none of its own.
    fn leave_for_next(&self, around: &Surroundings, writer: &mut Writer<'_>) -> Ahead {
        load_lane(writer.out, Gpr::RAX, offset_of!(Lane, current));
        let parked = self.park(around, writer);
        load(
            writer.out,
            Gpr::RCX,
            at(Gpr::RAX, offset_of!(Context, next)),
        );
        let first = absolute(offset_of!(Lane, first));
        writer
            .out
            .with_operand(GS, Width::Quad, &[0x3b], Gpr::RCX.number(), first);
        let back = writer.out.jump_if_ahead(Condition::ZERO);
        store_lane(writer.out, offset_of!(Lane, current), Gpr::RCX);
        let of_next = at(Gpr::RCX, offset_of!(Context, rounding));
        change_rounding(writer.out, (&[], of_next));
        if self.asks_for_next {
            // Where there are several in a ring the lines of each grow cold; where there is one it is
            // not worth what it costs.
            let after = at(Gpr::RCX, offset_of!(Context, next));
            load(writer.out, Gpr::RAX, after);
            let stack = at(Gpr::RAX, offset_of!(Context, stack));
            load(writer.out, Gpr::RAX, stack);
            prefetch_at(&[], at(Gpr::RAX, 0), Prefetch::Everywhere, writer.out);
        }
        go_on_as(writer, Gpr::RCX);
        Ahead {
            back,
            resume: parked.resume,
        }
    }

    /// Leaves for the thread whose lane it is.
    fn leave_for_thread(
        &self,
        around: &Surroundings,
        writer: &mut Writer<'_>,
        ahead: Option<Ahead>,
    ) {
        load_lane(writer.out, Gpr::RAX, offset_of!(Lane, current));
        let parked = self.park(around, writer);
        if let Some(ahead) = &ahead {
            writer.out.land(ahead.back);
        }
        let leaves = writer.out.at();
        // The next turn begins with the one after this.
        load(
            writer.out,
            Gpr::RCX,
            at(Gpr::RAX, offset_of!(Context, next)),
        );
        store_lane(writer.out, offset_of!(Lane, next), Gpr::RCX);
        change_rounding(writer.out, (GS, THREAD_ROUNDING));
        give_base_back(writer.out);
        load_lane(writer.out, Gpr::RCX, offset_of!(Lane, resume));
        load_lane(writer.out, Gpr::RSP, offset_of!(Lane, stack));
        let here = gone_over(writer);
        writer.out.jump_to(Gpr::RCX);
        writer.frame = here;
        writer.mark();
        writer.out.land(parked.resume);
        if let Some(ahead) = &ahead {
            writer.out.land(ahead.resume);
        }
        // What was asked for may take longer than the other side's turn.
        if ahead.is_some() || self.asked.is_some() {
            skip(leaves, writer.out);
        }
        vectors::restore(around, self.vectors, parked.room, writer);
    }
}

/// Takes a jump, whose field is returned, where the scavenger has its own thread and nobody is to run instead.
/// Changes flags.
fn pass_alone(out: &mut Emitter) -> u32 {
    compare_byte_with_zero(out, offset_of!(Lane, alone));
    let in_company = out.jump_if_ahead(Condition::ZERO);
    increment(out, offset_of!(Lane, turns));
    let alone = out.jump_ahead();
    out.land(in_company);
    alone
}

/// Where a context goes on that has asked for something, and turns are to be skipped until it does: parks it
/// again, to go on right here, and has it leave at `leaves`, with the context in rax and in rdx how it rounds.
/// Changes rcx.
fn skip(leaves: u32, out: &mut Emitter) {
    let again = out.at();
    let skips = absolute(offset_of!(Lane, skips));
    // `cmp dword gs:[skips], 0`
    out.with_operand(GS, Width::Default, &[0x83], 7, skips);
    out.raw(&[0]);
    let none = out.jump_if_ahead(Condition::ZERO);
    load_lane(out, Gpr::RAX, offset_of!(Lane, current));
    let skipped = at(Gpr::RAX, offset_of!(Context, skipped));
    let rcx = Gpr::RCX.number();
    // `mov`, `inc`, `cmp skips, ecx`
    out.with_operand(&[], Width::Default, &[0x8b], rcx, skipped);
    out.with_operand(&[], Width::Default, &[0xff], 0, skipped);
    out.with_operand(GS, Width::Default, &[0x39], rcx, skips);
    let enough = out.jump_if_ahead(Condition::LESS_OR_EQUAL);
    // Where others had their turn before it is timed as theirs: `cmp gs:[first], rax`.
    let first = absolute(offset_of!(Lane, first));
    out.with_operand(GS, Width::Quad, &[0x39], Gpr::RAX.number(), first);
    let of_others = out.jump_if_ahead(Condition::NOT_ZERO);
    clear(out, offset_of!(Lane, begun));
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

/// One that is away.
#[derive(Clone, Copy, Debug)]
struct Parked {
    /// Bytes of its stack that vectors have.
    room: i32,
    /// Field that says where it goes on.
    resume: u32,
}

/// What [`SettledYield::leave_for_next`] leaves open.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Field of the jump that is taken when the next one is the first.
    back: u32,
    /// Field that says where it goes on when it is its turn again.
    resume: u32,
}

/// Asks for the operand, with the stack pointer where the program has it.
fn prefetch(operand: Operand, to: Prefetch, out: &mut Emitter) {
    let prefix = match operand.segment {
        None => &[],
        Some(Segment::Fs) => FS,
        Some(Segment::Gs) => GS,
    };
    prefetch_at(prefix, operand.address, to, out);
}

/// Asks for what a scavenger reads later.
fn ask_for(ahead: &[Operand], out: &mut Emitter) {
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

/// Lets the context that runs have its own base of `fs` from here on.
fn take_base(around: &Surroundings, writer: &mut Writer<'_>) {
    let used = RegisterSet::gpr(Gpr::RAX).union(RegisterSet::ARITHMETIC_FLAGS);
    let saved = Saved::save(
        &Surroundings {
            live: around.live.intersection(used),
            ..*around
        },
        writer,
    );
    // Begun anew in the middle, it would find that the base is its own already.
    writer.resume = Resume::AsFound;
    writer.mark();
    lane::borrow_base(writer.out);
    writer.resume = Resume::Displaced;
    writer.mark();
    saved.restore(writer);
}

/// Writes to a place, given with its segment's prefix, how this side rounds, and leaves it in rdx. Changes
/// rcx and flags.
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
            lane::store_rounding(writer.out, segment, place);
            lane::take_rounding(writer.out, segment, place);
        }
    }
}

/// Takes the place of the context at `context`, which from then on is parked no longer. Changes
/// rdx.
fn go_on_as(writer: &mut Writer<'_>, context: Gpr) {
    let resume = at(context, offset_of!(Context, resume));
    load(writer.out, Gpr::RDX, resume);
    let stack = at(context, offset_of!(Context, stack));
    load(writer.out, Gpr::RSP, stack);
    let here = gone_over(writer);
    writer
        .out
        .with_operand(&[], Width::Quad, &[0xc7], 0, resume);
    writer.out.raw(&[0; 4]);
    writer.out.jump_to(Gpr::RDX);
    writer.frame = here;
    writer.mark();
}

/// From here on the stack is the other side's: what was kept below the stack pointer is not to be
/// looked for there. Returns the frame of this side, for where it is left.
fn gone_over(writer: &mut Writer<'_>) -> Frame {
    let here = std::mem::take(&mut writer.frame);
    writer.resume = Resume::AsFound;
    writer.mark();
    here
}

/// What lies on the stack of one that is away.
#[derive(Debug)]
struct Saved {
    registers: Vec<Gpr>,
    flags: bool,
    red_zone: bool,
    around_loop: Option<LoopSaves>,
}

impl Saved {
    /// Puts what is alive on the stack, all but vectors: from there on rax, rcx and rdx are free.
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
            saves.let_go(writer);
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
            saves.take_back(writer);
        }
        if self.red_zone {
            writer.lower(-RED_ZONE);
        }
    }
}

#[cfg(test)]
mod tests;
