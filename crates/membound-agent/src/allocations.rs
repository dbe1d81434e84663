//! Blocks that wrapped functions allocate and free.
//!
//! A function that allocates by calling another wrapped one counts once: calls inside the outermost one
//! pass. Whether a block is reported is decided before the original runs ([`countdown`]). Most calls
//! already pass in the stub, which decides by the same rules. A free is reported for blocks that were
//! reported ([`reported_blocks`]).

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{
    AllocationKind, Allocations, Command, WrapKind, allocation_interval, certain_from_bytes,
};

use crate::allocation_rings::{self, Event, Shared};
use crate::countdown::{self, Counted, Mark};
use crate::failure::Failure;
use crate::thread_table::{self, Thread};
use crate::unwind::{self, Begin, Registers, Stack, Walk};
use crate::wrap::frame::{self as wrap_frame, Course, WrapFrame};
use crate::{assembly, chains, memory, reported_blocks, walked};

/// Most return addresses of a chain.
const DEEPEST: usize = 64;
/// Most frames walked between two wrapped calls, to decide whether one is inside the other.
const FRAMES: usize = 256;

/// Starts reporting allocations in the memory that `command` describes; address 0: stops.
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    if command.address != 0 {
        thread_table::prepare()?;
        reported_blocks::prepare()?;
    }
    walked::forget();
    allocation_rings::set_memory(command.address);
    countdown::certain_from_bytes(match Shared::get() {
        Some(shared) => certain_from(shared),
        None => 0,
    });
    Ok(())
}

/// Number and kind of a wrapped function, from the plan.
#[derive(Clone, Copy)]
struct Wrapped {
    function: u8,
    kind: u32,
}

impl Wrapped {
    fn of(number: u32) -> Self {
        Self {
            function: (number >> 16) as u8,
            kind: number & 0xffff,
        }
    }

    fn is(self, kind: WrapKind) -> bool {
        self.kind == kind as u32
    }

    /// Bytes that the call asks for.
    fn size(self, frame: &WrapFrame) -> u64 {
        if self.is(WrapKind::Sized) {
            frame.rdi
        } else if self.is(WrapKind::Counted) {
            frame.rdi.saturating_mul(frame.rsi)
        } else if self.is(WrapKind::ResizedCounted) {
            frame.rsi.saturating_mul(frame.rdx)
        } else if self.is(WrapKind::AlignedInto) {
            frame.rdx
        } else {
            frame.rsi
        }
    }
}

/// Runs before the original function with this `number`.
///
/// # Safety
///
/// The frame is that of the stub that makes this call.
pub(crate) unsafe fn before(frame: &mut WrapFrame, number: u32) -> Course {
    let Some(shared) = Shared::get() else {
        return Course::Pass;
    };
    let Some(thread) = thread_table::own(frame.callers_stack()) else {
        shared
            .word(offset_of!(Allocations, homeless))
            .fetch_add(1, Ordering::Relaxed);
        return Course::Pass;
    };
    let wrapped = Wrapped::of(number);
    if wrapped.is(WrapKind::Free) || wrapped.is(WrapKind::FreeOuter) {
        free(shared, thread, wrapped, frame.rdi);
        return Course::Pass;
    }
    let size = wrapped.size(frame);
    let resizes = RESIZING.iter().any(|kind| wrapped.is(*kind));
    let maps = MAPPING.iter().any(|kind| wrapped.is(*kind));
    // Also for a call inside another one: with a countdown that is used up, every call would come here.
    let report_level = match maps {
        true => Some(0),
        false => decide(shared, thread, wrapped, size),
    };
    let outer = match outer_call(thread, frame) {
        OuterCall::Another => return Course::Pass,
        OuterCall::OtherStack(outer) => outer,
        OuterCall::Nothing => 0,
    };
    // Before the original frees the block: another thread may get its address at once.
    let ends = resizes && reported_blocks::remove(frame.rdi);
    if report_level.is_none() && !ends {
        countdown::own().mark(own_mark(frame));
        return Course::Pass;
    }
    let kept = &mut frame.kept;
    kept.tsc = if resizes || maps {
        assembly::time_stamp()
    } else {
        0
    };
    kept.thread = (&raw const *thread) as u64;
    kept.outer = outer;
    kept.number = number;
    kept.block = match resizes && !ends {
        true => 0,
        false => frame.rdi,
    };
    kept.size = size;
    kept.second_size = frame.rdx;
    kept.level_plus_one = report_level.map_or(0, |level| level + 1);
    kept.timed = match countdown::own().is_timed() {
        true => assembly::time_stamp(),
        false => 0,
    };
    thread.outer.store(frame.address(), Ordering::Relaxed);
    Course::Around
}

/// Size in bytes from which every block is reported, at the level that the launcher has set.
fn certain_from(shared: Shared) -> u64 {
    let user_limit = shared.word(offset_of!(Allocations, every_from_bytes));
    let interval_bytes = allocation_interval(shared.set_level());
    certain_from_bytes(interval_bytes, user_limit.load(Ordering::Relaxed))
}

/// The level at which a block of this size is reported; `None`: it is not.
fn decide(shared: Shared, thread: &Thread, wrapped: Wrapped, size: u64) -> Option<u32> {
    if size >= countdown::certain_from_bytes(certain_from(shared)) {
        return Some(0);
    }
    let counted = match COUNTED_BY_STUB.iter().any(|kind| wrapped.is(*kind)) {
        true => Counted::Yes,
        false => Counted::No,
    };
    countdown::own().decide(size, counted, shared.level(thread))
}

/// Place and value of the return address of the frame's call.
fn own_mark(frame: &WrapFrame) -> Mark {
    Mark {
        slot: frame.callers_stack().wrapping_sub(8),
        back: frame.return_address,
    }
}

/// Adds the duration of a call to the timed ones. An interrupted call is left out, as it would distort the
/// mean.
fn end_timing(shared: Shared, begun: u64) {
    const MAX_TICKS: u64 = 20_000;
    let took = assembly::time_stamp().wrapping_sub(begun);
    if took > MAX_TICKS {
        return;
    }
    let add = |offset: usize, step: u64| shared.word(offset).fetch_add(step, Ordering::Relaxed);
    add(offset_of!(Allocations, timed_ticks), took);
    add(offset_of!(Allocations, timed), 1);
}

/// Runs after the original function, whose result is in rax.
///
/// # Safety
///
/// The frame is that of the stub that makes this call, and [`before`] has filled it in.
pub(crate) unsafe fn after(frame: &mut WrapFrame) {
    // SAFETY: entries are never unmapped.
    let thread = unsafe { &*(frame.kept.thread as *const Thread) };
    thread.outer.store(frame.kept.outer, Ordering::Relaxed);
    let Some(shared) = Shared::get() else {
        return;
    };
    let frame = &*frame;
    let wrapped = Wrapped::of(frame.kept.number);
    let returned = ReturnedCall {
        shared,
        thread,
        wrapped,
        frame,
    };
    if wrapped.is(WrapKind::Map) {
        returned.mapped();
    } else if wrapped.is(WrapKind::Unmap) {
        returned.unmapped();
    } else if wrapped.is(WrapKind::Remap) {
        returned.remapped();
    } else if wrapped.is(WrapKind::AlignedInto) {
        returned.put();
    } else if RESIZING.iter().any(|kind| wrapped.is(*kind)) {
        returned.resized();
    } else if frame.rax != 0 {
        returned.allocated((frame.rax, frame.kept.size));
    }
    if frame.kept.timed != 0 {
        end_timing(shared, frame.kept.timed);
    }
}

/// Kinds that free a block and allocate one.
const RESIZING: [WrapKind; 3] = [
    WrapKind::Resized,
    WrapKind::ResizedCounted,
    WrapKind::ResizedAligned,
];
/// Kinds that map or unmap.
const MAPPING: [WrapKind; 3] = [WrapKind::Map, WrapKind::Unmap, WrapKind::Remap];
/// Kinds whose bytes the stub has counted before it calls the agent, for sizes that the stub may decide.
const COUNTED_BY_STUB: [WrapKind; 3] = [WrapKind::Sized, WrapKind::Counted, WrapKind::Resized];
/// What mapping functions return when they fail.
const FAILED: u64 = u64::MAX;

/// A wrapped call whose original has returned.
#[derive(Clone, Copy)]
struct ReturnedCall<'a> {
    shared: Shared,
    thread: &'a Thread,
    wrapped: Wrapped,
    frame: &'a WrapFrame,
}

impl ReturnedCall<'_> {
    fn mapped(self) {
        if self.frame.rax != FAILED {
            self.mapping((self.frame.rax, self.frame.kept.size));
        }
    }

    fn unmapped(self) {
        if self.frame.rax as u32 == 0 {
            self.mapping_freed();
        }
    }

    fn remapped(self) {
        if self.frame.rax == FAILED {
            return;
        }
        // Without an old size, the old pages stay.
        if self.frame.kept.size != 0 {
            self.mapping_freed();
        }
        let size = self.frame.kept.second_size;
        self.mapping((self.frame.rax, size));
    }

    fn put(self) {
        if self.frame.rax as u32 == 0 {
            // SAFETY: the original has just put the block's address there.
            let address: u64 = unsafe { memory::get(self.frame.kept.block as usize) };
            self.allocated((address, self.frame.kept.size));
        }
    }

    fn resized(self) {
        let kept = &self.frame.kept;
        let succeeded = self.frame.rax != 0;
        // With a size of 0 the original frees the block, in libcs that then return null.
        if kept.block != 0 && (succeeded || kept.size == 0) {
            report_free(self.shared, self.thread, self.wrapped, kept.block, kept.tsc);
        } else if kept.block != 0 {
            self.follow(kept.block);
        }
        if succeeded {
            self.allocated((self.frame.rax, kept.size));
        }
    }

    /// Adds the block to the reported ones; `false` if there was no room.
    fn follow(self, address: u64) -> bool {
        let inserted = reported_blocks::insert(address);
        if !inserted {
            self.shared
                .word(offset_of!(Allocations, homeless))
                .fetch_add(1, Ordering::Relaxed);
        }
        inserted
    }

    fn mapping_freed(self) {
        let kept = &self.frame.kept;
        self.shared.report(
            self.thread,
            &Event {
                tsc: kept.tsc,
                address: kept.block,
                size: kept.size,
                chain: 0,
                function: self.wrapped.function,
                kind: AllocationKind::Freed,
                level: 0,
            },
        );
    }

    /// Reports a block if that was decided before.
    fn allocated(self, (address, size): (u64, u64)) {
        let Some(level) = self.frame.kept.level_plus_one.checked_sub(1) else {
            return;
        };
        if self.follow(address) && !self.report((address, size), level) {
            reported_blocks::remove(address);
        }
    }

    fn mapping(self, block: (u64, u64)) {
        self.report(block, 0);
    }

    fn report(self, (address, size): (u64, u64), level: u32) -> bool {
        let tsc = assembly::time_stamp();
        let chain = chain(self.shared, self.thread, self.frame);
        self.shared.report(
            self.thread,
            &Event {
                tsc,
                address,
                size,
                chain,
                function: self.wrapped.function,
                kind: AllocationKind::Allocated,
                level,
            },
        )
    }
}

/// Reports a free if the allocation was reported.
fn free(shared: Shared, thread: &Thread, wrapped: Wrapped, address: u64) {
    if address != 0 && reported_blocks::remove(address) {
        report_free(shared, thread, wrapped, address, assembly::time_stamp());
    }
}

/// Reports the free of a block whose allocation was reported.
fn report_free(shared: Shared, thread: &Thread, wrapped: Wrapped, address: u64, tsc: u64) {
    shared.report(
        thread,
        &Event {
            tsc,
            address,
            size: 0,
            chain: 0,
            function: wrapped.function,
            kind: AllocationKind::Freed,
            level: 0,
        },
    );
}

/// Registers of the caller after the call has returned.
fn callers_registers(frame: &WrapFrame) -> Registers {
    Registers {
        ip: frame.return_address,
        sp: frame.callers_stack(),
        bp: frame.rbp,
    }
}

/// Number of the call chain that led to the wrapped call; 0: no room for it.
fn chain(shared: Shared, thread: &Thread, frame: &WrapFrame) -> u32 {
    let begin = callers_registers(frame);
    let stack = thread.stack(begin.sp);
    match walked::number(&begin, stack) {
        Some(number) => number,
        None => walk(shared, begin, stack),
    }
}

/// Walks the call chain, and returns its number.
fn walk(shared: Shared, begin: Registers, stack: Stack) -> u32 {
    let mut addresses = [0; DEEPEST];
    let mut slots = [0; walked::MAX_CACHED_CHAIN];
    let depth = shared
        .half(offset_of!(Allocations, depth))
        .load(Ordering::Relaxed) as usize;
    let [first, rest @ ..] = &mut addresses;
    *first = begin.ip;
    let max_callers = depth.saturating_sub(1).min(rest.len());
    let rest = rest.get_mut(..max_callers).unwrap_or_default();
    let found = unwind::unwind(begin, Begin::Return, stack, rest, &mut slots);
    let addresses = addresses.get(..=found).unwrap_or_default();
    let number = chains::number(shared, addresses);
    // Number 0 means no room: there may be some at the next call, so it is not kept.
    if let (true, Some(slots), [_, callers @ ..]) = (number != 0, slots.get(..found), addresses) {
        walked::store(&begin, slots, callers, number);
    }
    number
}

/// Calls of the same thread that a wrapped call may be inside of.
enum OuterCall {
    Nothing,
    /// Another wrapped call.
    Another,
    /// A wrapped call on another stack, whose frame is kept for the end of this one.
    OtherStack(u64),
}

/// Finds out whether the thread is inside a wrapped call already. A call that was left by a long jump or an
/// exception leaves the same traces, which must be distinguished from those of a call in progress.
fn outer_call(thread: &Thread, frame: &WrapFrame) -> OuterCall {
    let outer = thread.outer.load(Ordering::Relaxed);
    if outer == 0 {
        return outer_call_of_mark(thread, frame);
    }
    let address = frame.address();
    if !thread.on_one_stack(address.min(outer), address.max(outer)) {
        return OuterCall::OtherStack(outer);
    }
    if outer <= address {
        return outer_call_of_mark(thread, frame);
    }
    // SAFETY: the place is between the thread's frame here and the end of its stack.
    let back: u64 = unsafe { memory::get(outer as usize - 8) };
    if back != wrap_frame::back() {
        return outer_call_of_mark(thread, frame);
    }
    match is_inside(thread, frame, (outer, wrap_frame::back())) {
        true => OuterCall::Another,
        false => outer_call_of_mark(thread, frame),
    }
}

/// As [`outer_call`], for a wrapped call that passed and left its mark.
fn outer_call_of_mark(thread: &Thread, frame: &WrapFrame) -> OuterCall {
    let own = own_mark(frame);
    let Some(mark) = countdown::own().marked() else {
        return OuterCall::Nothing;
    };
    if mark.slot <= own.slot || !thread.on_one_stack(own.slot, mark.slot) {
        return OuterCall::Nothing;
    }
    // SAFETY: the place is on the thread's stack, above the frame.
    let back: u64 = unsafe { memory::get(mark.slot as usize) };
    if back == mark.back && is_inside(thread, frame, (mark.slot + 8, mark.back)) {
        OuterCall::Another
    } else {
        OuterCall::Nothing
    }
}

/// True if the call that returns to `ip`, with the stack pointer at `sp`, has made the frame's call
/// directly or indirectly.
fn is_inside(thread: &Thread, frame: &WrapFrame, (sp, ip): (u64, u64)) -> bool {
    let begin = callers_registers(frame);
    let mut at = begin;
    let mut walk = Walk::new(begin, Begin::Return, thread.stack(begin.sp));
    for _ in 0..FRAMES {
        if at.sp >= sp {
            // The walk has passed that frame, or has reached the one that this call returns through.
            return at.sp == sp && at.ip == ip;
        }
        match walk.step() {
            Some(caller) => at = caller,
            None => break,
        }
    }
    // If the walk ends early, the return address on the stack decides.
    true
}
