//! Blocks that wrapped functions allocate and free.
//!
//! A function that allocates by calling another one counts once: inside the outermost, others
//! are let pass. What is told of a block is decided by its size and its address alone, so that
//! freeing it decides as allocating it did.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{AllocationKind, Allocations, Command, WrapKind, allocation_level};

use crate::control::Failure;
use crate::keep::{self, Thread};
use crate::tell::{self, Event, Shared};
use crate::unwind::{self, Begin, Registers, Walk};
use crate::wrap::{self, Course, WrapFrame};
use crate::{assembly, chains, large, memory};

/// Most return addresses of a chain.
const DEEPEST: usize = 64;
/// Frames between two wrapped calls that are looked at, when one may be inside the other.
const FRAMES: usize = 256;

/// Tells of allocations in the memory that `command` names.
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    if command.address != 0 {
        keep::prepare()?;
        large::prepare()?;
    }
    tell::set_memory(command.address);
    Ok(())
}

/// The function's number and kind, as the plan gave them.
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
}

/// Before the original of this `number`.
///
/// # Safety
///
/// The frame is that of the stub, which has called.
pub(crate) unsafe fn before(frame: &mut WrapFrame, number: u32) -> Course {
    let Some(shared) = Shared::get() else {
        return Course::Pass;
    };
    let Some(thread) = keep::own(frame.callers_stack()) else {
        shared
            .word(offset_of!(Allocations, homeless))
            .fetch_add(1, Ordering::Relaxed);
        return Course::Pass;
    };
    let outer = match around(thread, frame) {
        Around::Another => return Course::Pass,
        Around::OtherStack(outer) => outer,
        Around::Nothing => 0,
    };
    let wrapped = Wrapped::of(number);
    if wrapped.is(WrapKind::Free) {
        free(shared, thread, wrapped, frame.rdi, assembly::time_stamp);
        return Course::Pass;
    }
    if wrapped.is(WrapKind::FreeOuter) {
        free(shared, thread, wrapped, frame.rdi, assembly::time_stamp);
    }
    let frees = RESIZING
        .iter()
        .chain(&[WrapKind::Unmap, WrapKind::Remap])
        .any(|kind| wrapped.is(*kind));
    let kept = &mut frame.kept;
    kept.tsc = if frees { assembly::time_stamp() } else { 0 };
    kept.thread = (&raw const *thread) as u64;
    kept.outer = outer;
    kept.number = u64::from(number);
    kept.block = frame.rdi;
    kept.size = if wrapped.is(WrapKind::Sized) {
        frame.rdi
    } else if wrapped.is(WrapKind::Counted) {
        frame.rdi.saturating_mul(frame.rsi)
    } else if wrapped.is(WrapKind::ResizedCounted) {
        frame.rsi.saturating_mul(frame.rdx)
    } else if wrapped.is(WrapKind::AlignedInto) {
        frame.rdx
    } else {
        frame.rsi
    };
    kept.second_size = frame.rdx;
    thread.outer.store(frame.address(), Ordering::Relaxed);
    Course::Around
}

/// After the original, whose result is in rax.
///
/// # Safety
///
/// The frame is that of the stub, and [`before`] has filled it in.
pub(crate) unsafe fn after(frame: &mut WrapFrame) {
    // SAFETY: entries are never unmapped.
    let thread = unsafe { &*(frame.kept.thread as *const Thread) };
    thread.outer.store(frame.kept.outer, Ordering::Relaxed);
    let Some(shared) = Shared::get() else {
        return;
    };
    let frame = &*frame;
    let wrapped = Wrapped::of(frame.kept.number as u32);
    let told = Told {
        shared,
        thread,
        wrapped,
        frame,
    };
    if wrapped.is(WrapKind::FreeOuter) {
        // It was told of before.
    } else if wrapped.is(WrapKind::Map) {
        told.mapped();
    } else if wrapped.is(WrapKind::Unmap) {
        told.unmapped();
    } else if wrapped.is(WrapKind::Remap) {
        told.remapped();
    } else if wrapped.is(WrapKind::AlignedInto) {
        told.put();
    } else if RESIZING.iter().any(|kind| wrapped.is(*kind)) {
        told.resized();
    } else if frame.rax != 0 {
        told.allocated((frame.rax, frame.kept.size), Following::BySize);
    }
}

/// Kinds that free a block and allocate one.
const RESIZING: [WrapKind; 3] = [
    WrapKind::Resized,
    WrapKind::ResizedCounted,
    WrapKind::ResizedAligned,
];
/// What mapping functions return when they fail.
const FAILED: u64 = u64::MAX;

/// A wrapped call that is over.
#[derive(Clone, Copy)]
struct Told<'a> {
    shared: Shared,
    thread: &'a Thread,
    wrapped: Wrapped,
    frame: &'a WrapFrame,
}

impl Told<'_> {
    fn mapped(self) {
        if self.frame.rax != FAILED {
            self.allocated((self.frame.rax, self.frame.kept.size), Following::Always);
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
        self.allocated((self.frame.rax, size), Following::Always);
    }

    fn put(self) {
        if self.frame.rax as u32 == 0 {
            // SAFETY: the original has just put the block's address there.
            let address: u64 = unsafe { memory::get(self.frame.kept.block as usize) };
            self.allocated((address, self.frame.kept.size), Following::BySize);
        }
    }

    fn resized(self) {
        let kept = &self.frame.kept;
        let done = self.frame.rax != 0;
        // A size of 0 frees, in those libcs that give nothing back then.
        if done || kept.size == 0 {
            free(self.shared, self.thread, self.wrapped, kept.block, || {
                kept.tsc
            });
        }
        if done {
            self.allocated((self.frame.rax, kept.size), Following::BySize);
        }
    }

    fn mapping_freed(self) {
        let kept = &self.frame.kept;
        self.shared.tell(
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

    fn allocated(self, (address, size): (u64, u64), following: Following) {
        let level = level(self.shared);
        let every = self
            .shared
            .word(offset_of!(Allocations, every_from_bytes))
            .load(Ordering::Relaxed);
        let always = following == Following::Always || size >= every;
        if !always && allocation_level(address) < level {
            return;
        }
        if following == Following::BySize && always {
            large::insert(address);
        }
        let tsc = assembly::time_stamp();
        let chain = chain(self.shared, self.thread, self.frame);
        self.shared.tell(
            self.thread,
            &Event {
                tsc,
                address,
                size,
                chain,
                function: self.wrapped.function,
                kind: AllocationKind::Allocated,
                level: if always { 0 } else { level },
            },
        );
    }
}

/// Whether a block is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Following {
    /// Whatever its size.
    Always,
    /// Perhaps not if it is small.
    BySize,
}

fn level(shared: Shared) -> u32 {
    shared
        .half(offset_of!(Allocations, level))
        .load(Ordering::Relaxed)
}

fn free(
    shared: Shared,
    thread: &Thread,
    wrapped: Wrapped,
    address: u64,
    tsc: impl FnOnce() -> u64,
) {
    if address == 0 {
        return;
    }
    let level = level(shared);
    let known = large::remove(address);
    if !known && allocation_level(address) < level {
        return;
    }
    shared.tell(
        thread,
        &Event {
            tsc: tsc(),
            address,
            size: 0,
            chain: 0,
            function: wrapped.function,
            kind: AllocationKind::Freed,
            level: if known { 0 } else { level },
        },
    );
}

/// Registers of the caller, as they will be when the call has returned.
fn callers_registers(frame: &WrapFrame) -> Registers {
    Registers {
        ip: frame.return_address,
        sp: frame.callers_stack(),
        bp: frame.rbp,
    }
}

/// Number of the chain of calls that led to the wrapped one.
fn chain(shared: Shared, thread: &Thread, frame: &WrapFrame) -> u32 {
    let mut addresses = [0; DEEPEST];
    let depth = shared
        .half(offset_of!(Allocations, depth))
        .load(Ordering::Relaxed) as usize;
    let begin = callers_registers(frame);
    let [first, rest @ ..] = &mut addresses;
    *first = begin.ip;
    let wanted = depth.saturating_sub(1).min(rest.len());
    let rest = rest.get_mut(..wanted).unwrap_or_default();
    let stack = thread.stack(begin.sp);
    let found = unwind::unwind(begin, Begin::Return, stack, rest);
    chains::number(shared, addresses.get(..=found).unwrap_or_default())
}

/// What a wrapped call is inside of.
enum Around {
    Nothing,
    /// Another wrapped call.
    Another,
    /// A wrapped call on another stack, which is kept for afterwards.
    OtherStack(u64),
}

/// Whether the thread is in a wrapped call already. One that was left by a long jump or an
/// exception has left its traces, which are told from those of a living one.
fn around(thread: &Thread, frame: &WrapFrame) -> Around {
    let outer = thread.outer.load(Ordering::Relaxed);
    if outer == 0 {
        return Around::Nothing;
    }
    let here = frame.address();
    if !thread.on_one_stack(here.min(outer), here.max(outer)) {
        return Around::OtherStack(outer);
    }
    if outer <= here {
        return Around::Nothing;
    }
    // SAFETY: the place is between the thread's frame here and the end of its stack.
    let back: u64 = unsafe { memory::get(outer as usize - 8) };
    if back != wrap::back() {
        return Around::Nothing;
    }
    let begin = callers_registers(frame);
    let mut at = begin;
    let mut walk = Walk::new(begin, Begin::Return, thread.stack(begin.sp));
    for _ in 0..FRAMES {
        if at.sp >= outer {
            // The frame was passed by, or is the one that this call returns through.
            return if at.sp == outer && at.ip == wrap::back() {
                Around::Another
            } else {
                Around::Nothing
            };
        }
        match walk.step() {
            Some(caller) => at = caller,
            None => break,
        }
    }
    // Nobody can say who called: what stands at the place counts.
    Around::Another
}
