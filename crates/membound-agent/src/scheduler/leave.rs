//! Ends a scavenger's time slice in the middle: for a system call, a fault, or a signal to the program.
//!
//! The kernel has put the signal's frame onto the scavenger's stack, and the scavenger is to resume on its
//! home thread by returning from that frame. So the handler first switches to the thread's own stack, where
//! nothing is alive below the parked stack pointer, and only then gives the scavenger away: from that
//! moment its home thread may use the scavenger's stack. A signal to the program is sent again and arrives,
//! on the thread's own stack, as soon as the thread's mask is restored.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::ControlPage;

use super::handover::{self, PendingRequest};
use super::leaving::Leaving;
use super::overdue;
use super::page::add_to_counter;
use super::thread_slot::{Context, ThreadSlot, set_fs};
use super::timing::between;
use crate::handlers::vectors::{AREA_OFFSET, MAGIC, MAGIC_OFFSET};
use crate::signal_frame::{Arrived, MASK_OFFSET, REGISTERS_OFFSET, Registers};
use crate::sys;
use crate::{alternate, assembly, memory};

/// Bytes of a `ucontext` up to the end of its mask.
const CONTEXT_BYTES: usize = MASK_OFFSET + 8;
/// Bytes below the stack pointer that a function may use (System V ABI).
const RED_ZONE: u64 = 128;

global_asm!(
    ".pushsection .text.membound_leave, \"ax\", @progbits",
    ".globl membound_run_queue_go",
    ".hidden membound_run_queue_go",
    "membound_run_queue_go:",
    "mov rdi, gs:[{itself}]",
    "mov rbx, [rdi + {stack}]",
    "mov r13, [rdi + {mask}]",
    "mov rsp, rbx",
    "and rsp, -16",
    "xor ebp, ebp",
    "cld",
    "call {hand_over}",
    "mov r12, rax",
    "mov rdi, r13",
    "call {unmask}",
    "mov rsp, rbx",
    "ldmxcsr gs:[{rounding}]",
    "fldcw gs:[{rounding} + 4]",
    "jmp r12",
    ".globl membound_run_queue_return",
    ".hidden membound_run_queue_return",
    "membound_run_queue_return:",
    "mov eax, 15",
    "syscall",
    ".popsection",
    itself = const offset_of!(ThreadSlot, itself),
    stack = const offset_of!(ThreadSlot, stack),
    rounding = const offset_of!(ThreadSlot, rounding),
    mask = const offset_of!(ThreadSlot, leaving) + offset_of!(Leaving, mask),
    hand_over = sym hand_over,
    unmask = sym unmask,
);

unsafe extern "C" {
    fn membound_run_queue_go();
}

/// Handles a signal to the program. If the calling thread runs a context, returns the address at which the
/// thread continues instead of in the program's handler; 0: the handler just returns.
pub(crate) fn on_signal(arrived: Arrived) -> Option<u64> {
    let slot = ThreadSlot::with_context()?;
    let ip = arrived.registers().rip;
    let [begin, end] = assembly::own_range();
    if (begin..end).contains(&ip) && !between(ip) {
        // The signal interrupted another signal's handler of the agent before that had blocked signals.
        // This handler returns through the program's restorer, whose system call must not be dispatched as
        // if it were the scavenger's: hence selector 0. All signals stay blocked in the interrupted
        // handler: with `SA_NODEFER` the signal that is sent again would otherwise interrupt it again and
        // again.
        sys::set_mask(u64::MAX);
        slot.selector.store(0, Ordering::Relaxed);
        // SAFETY: a handler may change its own frame.
        unsafe { memory::put(arrived.context + MASK_OFFSET, u64::MAX) };
        arrived.send_again();
        return Some(0);
    }
    sys::set_mask(u64::MAX);
    let leaving = &slot.leaving;
    leaving
        .signal
        .store(arrived.signal as u32, Ordering::Relaxed);
    for (index, word) in leaving.information.iter().enumerate() {
        // SAFETY: the kernel has filled in that many bytes.
        let value = unsafe { memory::get(arrived.information + 8 * index) };
        word.store(value, Ordering::Relaxed);
    }
    add_to_counter(offset_of!(ControlPage, interrupted), 1);
    Some(slot.leave(arrived, PendingRequest::Run))
}

/// Handles a system call or a fault, with all signals blocked. If the calling thread runs a context,
/// returns the address at which the thread continues.
pub(crate) fn on_trap(arrived: Arrived, pending_request: PendingRequest) -> Option<u64> {
    let slot = ThreadSlot::with_context()?;
    if slot.parked() {
        // The context is parked, so the call or fault is not a scavenger's.
        return None;
    }
    slot.leaving.signal.store(0, Ordering::Relaxed);
    if pending_request == PendingRequest::Call {
        add_to_counter(offset_of!(ControlPage, calls), 1);
    }
    Some(slot.leave(arrived, pending_request))
}

/// Ends a time slice that takes too long, with all signals blocked. If the thread is still in it, returns
/// the address at which the thread continues.
pub(crate) fn on_overdue(arrived: Arrived) -> Option<u64> {
    let slot = ThreadSlot::with_context()?;
    let ip = arrived.registers().rip;
    let [begin, end] = assembly::own_range();
    if slot.parked() || (begin..end).contains(&ip) {
        // The scavenger has ended the slice, or another signal's handler is about to end it.
        return None;
    }
    slot.leaving.signal.store(0, Ordering::Relaxed);
    add_to_counter(offset_of!(ControlPage, overdue), 1);
    Some(slot.leave(arrived, overdue::pending_request(slot)))
}

impl ThreadSlot {
    /// True if the context in `current` has not begun its slice, or has ended it: it has a `resume`.
    fn parked(&self) -> bool {
        let current = self.current.load(Ordering::Relaxed);
        !self.is_member(current) || Context::at(current).resume.load(Ordering::Relaxed) != 0
    }

    /// Fills `leaving` for `membound_run_queue_go`, and returns the address of that.
    fn leave(&self, arrived: Arrived, pending_request: PendingRequest) -> u64 {
        let leaving = &self.leaving;
        leaving.mask.store(arrived.mask(), Ordering::Relaxed);
        let mut frame = 0;
        let mut pending_request = pending_request;
        if !self.parked() {
            if matches!(pending_request, PendingRequest::Die(_)) {
                frame = arrived.context as u64;
            } else {
                frame = on_own_stack(arrived).unwrap_or_else(|| {
                    // The scavenger's stack has no room left for the frame.
                    const SEGV: u32 = 11;
                    pending_request = PendingRequest::Die(SEGV);
                    arrived.context as u64
                });
            }
        }
        leaving.frame.store(frame, Ordering::Relaxed);
        leaving
            .pending_request
            .store(pending_request.word(), Ordering::Relaxed);
        membound_run_queue_go as *const () as u64
    }
}

/// Address of the signal's `ucontext` on the interrupted stack. A frame on the alternate stack is copied
/// there, since the thread uses its alternate stack again. `None` if there is no room.
fn on_own_stack(arrived: Arrived) -> Option<u64> {
    const NEAR: u64 = 64 << 10;
    const PLAIN_BYTES: usize = 512;
    let stack = arrived.registers().state().stack_pointer();
    let context_address = arrived.context as u64;
    if context_address < stack && stack - context_address < NEAR {
        return Some(context_address);
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
    // Handlers on the home thread push below it.
    if !sys::readable(context.checked_sub(4096)?) {
        return None;
    }
    copy(vectors, place as usize, bytes);
    copy(arrived.context, context as usize, CONTEXT_BYTES);
    let pointer = if vectors == 0 { 0 } else { place };
    // SAFETY: this is the copy that was just made.
    unsafe { memory::put(context as usize + AREA_OFFSET, pointer) };
    Some(context)
}

/// Copies `bytes` bytes of a signal frame.
fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: the caller has checked both addresses; the ranges do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}

/// Gives the scavenger away and returns the address at which the thread continues. Runs on the thread's own
/// stack, with all signals blocked.
extern "C" fn hand_over(slot: &'static ThreadSlot) -> u64 {
    let leaving = &slot.leaving;
    let frame = leaving.frame.load(Ordering::Relaxed);
    let context = Context::at(slot.current.load(Ordering::Relaxed));
    if frame == 0 {
        slot.ask_at_once();
    } else {
        slot.unlink(context);
    }
    // In the order that `RunQueue` prescribes: the selector before `current`, since handlers of the program,
    // which make system calls, run once `current` is 0; `fs` before `borrowed`.
    slot.selector.store(0, Ordering::Relaxed);
    slot.current.store(0, Ordering::Relaxed);
    if slot.borrowed.load(Ordering::Relaxed) != 0 {
        set_fs(slot.base.load(Ordering::Relaxed));
        slot.borrowed.store(0, Ordering::Relaxed);
    }
    let resume = slot.untimed_resume();
    if frame != 0 {
        let pending_request =
            PendingRequest::of_word(leaving.pending_request.load(Ordering::Relaxed));
        if !matches!(pending_request, PendingRequest::Die(_)) {
            alternate::put_back(frame as usize, handover::alternate_stack(context));
            // SAFETY: no code runs on this frame any more: its handler was left.
            unsafe { memory::put(frame as usize + MASK_OFFSET, handover::MASK) };
        }
        // After all changes to the frame: from here on the home thread may resume from it.
        handover::return_home(context, frame, pending_request);
    }
    let signal = leaving.signal.swap(0, Ordering::Relaxed);
    if signal != 0 {
        sys::send_again(sys::thread(), signal, leaving.information.as_ptr() as usize);
    }
    resume
}

/// Restores the thread's signal mask; pending signals arrive here.
extern "C" fn unmask(mask: u64) {
    sys::set_mask(mask);
}

/// Makes the system call that a frame asks for, and puts its result into the frame.
pub(super) fn in_frame(frame: u64, make: impl FnOnce(&mut Registers)) {
    let place = frame as usize + REGISTERS_OFFSET;
    // SAFETY: the frame is the scavenger's own, and its home thread does not run the scavenger now.
    let mut registers: Registers = unsafe { memory::get(place) };
    make(&mut registers);
    // SAFETY: as above.
    unsafe { memory::put(place, registers) };
}
