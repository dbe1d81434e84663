//! Where a guest's turn ends in the middle: a system call, a fault, or a signal to the program.
//!
//! The kernel has put the signal's frame onto the guest's stack, on which the guest is to go on at
//! home by returning from it. So the handler first leaves that stack for the thread's own, where
//! nothing is alive below its parked place, and only then gives the guest away. A signal to the
//! program is sent again and comes as soon as the thread's mask is back, on the thread's own stack.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_wire::Board;

use super::alternate;
use super::berth::{self, Errand};
use super::block::{Block, Context, set_fs};
use super::timing::between;
use super::{overdue, tell};
use crate::handlers::vectors::{AREA_OFFSET, MAGIC, MAGIC_OFFSET};
use crate::handlers::{MASK_OFFSET, REGISTERS_OFFSET, Registers};
use crate::sys;
use crate::{assembly, memory};

/// Bytes of a signal's information that are kept.
const INFORMATION_BYTES: usize = 128;
/// Bytes of a `ucontext` up to the end of its mask.
const CONTEXT_BYTES: usize = MASK_OFFSET + 8;
const RED_ZONE: u64 = 128;

global_asm!(
    ".pushsection .text.membound_leave, \"ax\", @progbits",
    ".globl membound_lane_go",
    ".hidden membound_lane_go",
    "membound_lane_go:",
    "mov rdi, gs:[{itself}]",
    "mov rbx, [rdi + {stack}]",
    "mov r13, [rdi + {mask}]",
    "mov rsp, rbx",
    "and rsp, -16",
    "xor ebp, ebp",
    "cld",
    "call {left}",
    "mov r12, rax",
    "mov rdi, r13",
    "call {unmask}",
    "mov rsp, rbx",
    "ldmxcsr gs:[{rounding}]",
    "fldcw gs:[{rounding} + 4]",
    "jmp r12",
    ".globl membound_lane_return",
    ".hidden membound_lane_return",
    "membound_lane_return:",
    "mov eax, 15",
    "syscall",
    ".popsection",
    itself = const offset_of!(Block, itself),
    stack = const offset_of!(Block, stack),
    rounding = const offset_of!(Block, rounding),
    mask = const offset_of!(Block, leaving) + offset_of!(Leaving, mask),
    left = sym left,
    unmask = sym unmask,
);

unsafe extern "C" {
    fn membound_lane_go();
}

/// What is kept from the handler to the thread's own stack.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Leaving {
    /// The mask that the thread is to have again.
    mask: AtomicU64,
    /// Address of the `ucontext` with which the guest goes on; 0: it stays parked, in the ring.
    frame: AtomicU64,
    /// An [`Errand`] as its word.
    errand: AtomicU32,
    /// The signal that is to be sent again; 0: none.
    signal: AtomicU32,
    information: [AtomicU64; INFORMATION_BYTES / 8],
}

/// A signal as the kernel brings it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: u64,
    /// Address of its information.
    pub(crate) information: usize,
    /// Address of the `ucontext`.
    pub(crate) context: usize,
}

impl Arrived {
    fn registers(self) -> Registers {
        // SAFETY: the kernel put the registers there.
        unsafe { memory::get(self.context + REGISTERS_OFFSET) }
    }

    fn mask(self) -> u64 {
        // SAFETY: the mask lies behind the registers and what belongs to them.
        unsafe { memory::get(self.context + MASK_OFFSET) }
    }

    /// Sends it to the calling thread again.
    fn send_again(self) {
        sys::send_again(sys::thread(), self.signal as u32, self.information);
    }
}

/// A signal to the program. Where the calling thread runs a context: what the handler is to go on
/// to in place of the program's own, 0 for nothing.
pub(crate) fn on_signal(arrived: Arrived) -> Option<u64> {
    let block = Block::with_context()?;
    let ip = arrived.registers().rip;
    let [begin, end] = assembly::own_range();
    if (begin..end).contains(&ip) && !between(ip) {
        // It came between another one and this very question. The program's restorer calls the
        // kernel itself, which is none of the guest's. With `SA_NODEFER` it would come again at once
        // where it was not blocked, and again.
        sys::set_mask(u64::MAX);
        block.selector.store(0, Ordering::Relaxed);
        // SAFETY: the frame is the handler's to change.
        unsafe { memory::put(arrived.context + MASK_OFFSET, u64::MAX) };
        arrived.send_again();
        return Some(0);
    }
    sys::set_mask(u64::MAX);
    let leaving = &block.leaving;
    leaving
        .signal
        .store(arrived.signal as u32, Ordering::Relaxed);
    for (index, word) in leaving.information.iter().enumerate() {
        // SAFETY: the kernel has filled in as many bytes.
        let value = unsafe { memory::get(arrived.information + 8 * index) };
        word.store(value, Ordering::Relaxed);
    }
    tell(offset_of!(Board, interrupted), 1);
    Some(block.leave(arrived, Errand::Run))
}

/// A system call or a fault, with all signals blocked. Where the calling thread runs a context:
/// what the handler is to go on to.
pub(crate) fn on_trap(arrived: Arrived, errand: Errand) -> Option<u64> {
    let block = Block::with_context()?;
    if block.parked() {
        // It is none of a guest's.
        return None;
    }
    block.leaving.signal.store(0, Ordering::Relaxed);
    if errand == Errand::Call {
        tell(offset_of!(Board, calls), 1);
    }
    Some(block.leave(arrived, errand))
}

/// A turn that takes too long, with all signals blocked. Where the calling thread is still in it: what
/// the handler is to go on to.
pub(crate) fn on_overdue(arrived: Arrived) -> Option<u64> {
    let block = Block::with_context()?;
    let ip = arrived.registers().rip;
    let [begin, end] = assembly::own_range();
    if block.parked() || (begin..end).contains(&ip) {
        // It has ended it, or another signal is about to.
        return None;
    }
    block.leaving.signal.store(0, Ordering::Relaxed);
    tell(offset_of!(Board, overdue), 1);
    Some(block.leave(arrived, overdue::errand(block)))
}

impl Block {
    /// Whether what `current` names has not begun its turn, or has ended it.
    fn parked(&self) -> bool {
        let current = self.current.load(Ordering::Relaxed);
        !self.is_member(current) || Context::at(current).resume.load(Ordering::Relaxed) != 0
    }

    /// Prepares for `membound_lane_go`, and returns its address.
    fn leave(&self, arrived: Arrived, errand: Errand) -> u64 {
        let leaving = &self.leaving;
        leaving.mask.store(arrived.mask(), Ordering::Relaxed);
        let mut frame = 0;
        let mut errand = errand;
        if !self.parked() {
            if matches!(errand, Errand::Die(_)) {
                frame = arrived.context as u64;
            } else {
                frame = on_own_stack(arrived).unwrap_or_else(|| {
                    // There is no room left on its stack.
                    const SEGV: u32 = 11;
                    errand = Errand::Die(SEGV);
                    arrived.context as u64
                });
            }
        }
        leaving.frame.store(frame, Ordering::Relaxed);
        leaving.errand.store(errand.word(), Ordering::Relaxed);
        membound_lane_go as *const () as u64
    }
}

/// The `ucontext` on the stack that it is about: a frame on an alternate stack is the thread's, and
/// is used again. `None` where there is no room.
fn on_own_stack(arrived: Arrived) -> Option<u64> {
    const NEAR: u64 = 64 << 10;
    const PLAIN_BYTES: usize = 512;
    let stack = arrived.registers().state().stack_pointer();
    let here = arrived.context as u64;
    if here < stack && stack - here < NEAR {
        return Some(here);
    }
    // SAFETY: the kernel put a pointer there.
    let vectors: usize = unsafe { memory::get(arrived.context + AREA_OFFSET) };
    let mut bytes = 0;
    if vectors != 0 {
        // SAFETY: the kernel says there how much it has put there.
        let [magic, length]: [u32; 2] = unsafe { memory::get(vectors + MAGIC_OFFSET) };
        bytes = if magic == MAGIC {
            length as usize
        } else {
            PLAIN_BYTES
        };
    }
    let place = (stack.checked_sub(RED_ZONE)?.checked_sub(bytes as u64)?) & !63;
    let context = place.checked_sub(CONTEXT_BYTES as u64)? & !15;
    // What handlers at home push lies below it.
    if !sys::readable(context.checked_sub(4096)?) {
        return None;
    }
    copy(vectors, place as usize, bytes);
    copy(arrived.context, context as usize, CONTEXT_BYTES);
    let pointer = if vectors == 0 { 0 } else { place };
    // SAFETY: it is the copy.
    unsafe { memory::put(context as usize + AREA_OFFSET, pointer) };
    Some(context)
}

/// Copies bytes of a frame to where there is none yet.
fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: the caller knows both places, which do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// On the thread's own stack, with all signals blocked: gives the guest away, and returns where the
/// thread goes on.
extern "C" fn left(block: &'static Block) -> u64 {
    let leaving = &block.leaving;
    let frame = leaving.frame.load(Ordering::Relaxed);
    let context = Context::at(block.current.load(Ordering::Relaxed));
    if frame == 0 {
        block.ask_at_once();
    } else {
        block.unlink(context);
    }
    block.selector.store(0, Ordering::Relaxed);
    block.current.store(0, Ordering::Relaxed);
    if block.borrowed.load(Ordering::Relaxed) != 0 {
        set_fs(block.base.load(Ordering::Relaxed));
        block.borrowed.store(0, Ordering::Relaxed);
    }
    let resume = block.untimed_resume();
    if frame != 0 {
        let errand = Errand::of_word(leaving.errand.load(Ordering::Relaxed));
        if !matches!(errand, Errand::Die(_)) {
            alternate::put_back(frame as usize, berth::alternate_stack(context));
            // SAFETY: it is the frame of a handler that has been left.
            unsafe { memory::put(frame as usize + MASK_OFFSET, berth::MASK) };
        }
        berth::send_home(context, frame, errand);
    }
    let signal = leaving.signal.swap(0, Ordering::Relaxed);
    if signal != 0 {
        sys::send_again(sys::thread(), signal, leaving.information.as_ptr() as usize);
    }
    resume
}

/// Gives the thread its mask again: what was waiting comes now.
extern "C" fn unmask(mask: u64) {
    sys::set_mask(mask);
}

/// Makes a call that a frame asks for, and puts its result there.
pub(super) fn in_frame(frame: u64, make: impl FnOnce(&mut Registers)) {
    let place = frame as usize + REGISTERS_OFFSET;
    // SAFETY: the frame is the guest's own by now.
    let mut registers: Registers = unsafe { memory::get(place) };
    make(&mut registers);
    // SAFETY: as above.
    unsafe { memory::put(place, registers) };
}
