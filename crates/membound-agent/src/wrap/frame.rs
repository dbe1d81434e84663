//! The frame that the stub of wrapped functions makes, and the addresses of the stub.

use core::mem::offset_of;

/// The stub's frame, lowest address first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WrapFrame {
    /// Data that is needed after the original.
    pub(crate) kept: Kept,
    // The callee-saved ones are here for signal handlers only (see [`below_stub`]).
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) rbx: u64,
    pub(super) r10: u64,
    pub(super) r9: u64,
    pub(super) r8: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    /// Behind the original: its result.
    pub(crate) rax: u64,
    /// Address of the original's displaced instructions.
    pub(crate) original: u64,
    pub(crate) rbp: u64,
    copied_return_address: u64,
    pub(super) r11: u64,
    pub(crate) return_address: u64,
}

/// Data that `allocations` and `requests` keep between the two calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Kept {
    pub(crate) tsc: u64,
    /// Address of the thread's entry in `thread_table`.
    pub(crate) thread: u64,
    /// Frame of the wrapped call around this one; 0: none.
    pub(crate) outer: u64,
    /// Number of the wrapped function, from the plan.
    pub(crate) number: u32,
    /// Level at which the block is reported, plus one; 0: it is not.
    pub(crate) level_plus_one: u32,
    pub(crate) block: u64,
    pub(crate) size: u64,
    /// Another argument that may be a size.
    pub(crate) second_size: u64,
    /// Time stamp at the start of a call whose duration is measured, else 0.
    pub(crate) timed: u64,
}

/// What the stub does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Course {
    /// Enter the original without further work.
    Pass = 0,
    /// Call the original, and then `after`.
    Around = 1,
}

// The offsets in the assembly of `wrap`.
const _: () = assert!(size_of::<WrapFrame>() == 208);
const _: () = assert!(offset_of!(WrapFrame, rbp) == 176);
const _: () = assert!(offset_of!(WrapFrame, original) == 168);
const _: () = assert!(offset_of!(WrapFrame, r10) == 176 - 72);
const _: () = assert!(size_of::<Kept>() == 64);

impl WrapFrame {
    /// Address of the frame.
    pub(crate) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// The caller's stack pointer when the call has returned.
    pub(crate) fn callers_stack(&self) -> u64 {
        self.address() + size_of::<Self>() as u64
    }
}

unsafe extern "C" {
    pub(super) static membound_wrap_zones: u32;
    pub(super) fn membound_wrap_start();
    pub(super) fn membound_wrap_end();
    fn membound_wrap_back();
    fn membound_entry_wrap();
}

/// Address of the stub.
pub(crate) fn address() -> u64 {
    membound_entry_wrap as *const () as u64
}

/// Address that an original returns to when the stub has called it.
pub(crate) fn back() -> u64 {
    membound_wrap_back as *const () as u64
}

/// True if an address is in the stub.
pub(crate) fn contains(ip: u64) -> bool {
    let start = membound_wrap_start as *const () as u64;
    (start..membound_wrap_end as *const () as u64).contains(&ip)
}

/// Address of the stub's frame, from its frame pointer.
pub(crate) fn frame_of(rbp: u64) -> u64 {
    rbp.wrapping_sub(offset_of!(WrapFrame, rbp) as u64)
}
