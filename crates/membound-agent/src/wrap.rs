//! The entry of wrapped functions: what is done before and after the original.
//!
//! A trampoline jumps here with everything as the caller left it but r11, which lies on the
//! stack. The stub saves what compiled code may change, although this is a function's entry: a
//! caller in the same module may know which registers the original leaves alone, and count
//! on it. Before the original runs, everything is put back; it runs on the stack as its
//! caller left it, or below the stub's frame, at the same alignment. Flags alone are lost, which
//! nobody keeps across a call. The frames are described for unwinders, so that exceptions
//! pass.
//!
//! A thread that a signal finds in the stub, or in what that calls, is shown where the program
//! would have it: at the function's entry before the original, behind the call after it.
//! [`Zone`]s say how its registers are had.

use core::arch::global_asm;
use core::mem::offset_of;

use membound_wire::{STACK_POINTER, State, WrapKind};

use crate::vectors::{restore_vectors, save_vectors};
use crate::{allocations, memory, requests};

/// What the stub keeps, lowest address first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WrapFrame {
    /// For what is to be known after the original.
    pub(crate) kept: Kept,
    // The callee-saved ones are here for signal handlers only (see [`below_stub`]).
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    /// After the original its result.
    pub(crate) rax: u64,
    /// Address of the original's displaced instructions.
    pub(crate) original: u64,
    pub(crate) rbp: u64,
    copied_return_address: u64,
    r11: u64,
    pub(crate) return_address: u64,
}

/// What [`allocations`] and [`requests`] keep between the two calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Kept {
    pub(crate) tsc: u64,
    /// Address of the thread's entry.
    pub(crate) thread: u64,
    /// The wrapped call around this one, 0 if there is none.
    pub(crate) outer: u64,
    pub(crate) number: u64,
    pub(crate) block: u64,
    pub(crate) size: u64,
    /// Another argument that may be a size.
    pub(crate) second_size: u64,
    rest: u64,
}

/// What the stub is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Course {
    /// Enter the original as if nothing had been.
    Pass = 0,
    /// Call the original, and [`after`] behind it.
    Around = 1,
}

// The offsets in the assembly below.
const _: () = assert!(size_of::<WrapFrame>() == 208);
const _: () = assert!(offset_of!(WrapFrame, rbp) == 176);
const _: () = assert!(offset_of!(WrapFrame, original) == 168);
const _: () = assert!(offset_of!(WrapFrame, r10) == 176 - 72);
const _: () = assert!(size_of::<Kept>() == 64);

impl WrapFrame {
    /// Where it lies.
    pub(crate) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }

    /// The caller's stack pointer when the call has returned.
    pub(crate) fn callers_stack(&self) -> u64 {
        self.address() + size_of::<Self>() as u64
    }
}

/// Where in the stub a thread is, or below which call of its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Zone {
    /// Nothing is pushed: the stack pointer is at r11.
    Entered = 0,
    /// One word is pushed.
    Copied = 1,
    /// Two words are pushed: the stack pointer is at rbp.
    Pushed = 2,
    /// rbp is at the place of its own, and the registers are kept below as far as the stack
    /// reaches; the original is still to come.
    Before = 3,
    /// The registers are back but for rbp, and the stack pointer is at the return address.
    Passing = 4,
    /// All of them are.
    Passed = 5,
    /// All registers are back, and the stack pointer is at the frame; the original is next.
    Calling = 6,
    /// The original has returned: the registers are the program's, the stack pointer is at the
    /// frame.
    Returned = 7,
    /// As before, but rbp is at the place of its own.
    Keeping = 8,
    /// The frame has the registers, and rbp is at the place of its own.
    After = 9,
    /// As [`Self::Passing`], to return.
    Leaving = 10,
    /// As [`Self::Passed`], to return.
    Left = 11,
}

impl Zone {
    const ALL: [Self; 12] = [
        Self::Entered,
        Self::Copied,
        Self::Pushed,
        Self::Before,
        Self::Passing,
        Self::Passed,
        Self::Calling,
        Self::Returned,
        Self::Keeping,
        Self::After,
        Self::Leaving,
        Self::Left,
    ];
}

/// A label at which a zone begins.
macro_rules! zone {
    ($number:literal) => {
        concat!(
            ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits\n",
            ".long 777f - membound_wrap_start, ",
            $number,
            "\n",
            ".popsection\n",
            "777:\n",
        )
    };
}

/// Gives the caller's registers back, but for rbp and the stack pointer.
macro_rules! restore_registers {
    () => {
        concat!(
            restore_vectors!(),
            "mov r10, [rbp - 72]\n",
            "mov r9, [rbp - 64]\n",
            "mov r8, [rbp - 56]\n",
            "mov rcx, [rbp - 48]\n",
            "mov rdx, [rbp - 40]\n",
            "mov rsi, [rbp - 32]\n",
            "mov rdi, [rbp - 24]\n",
            "mov rax, [rbp - 16]\n",
            "mov r11, [rbp + 16]\n",
        )
    };
}

global_asm!(
    ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits",
    ".p2align 2",
    ".globl membound_wrap_zones",
    ".hidden membound_wrap_zones",
    // Pairs in the order of addresses: where a zone begins, from the stub's start, and its
    // number.
    "membound_wrap_zones:",
    ".popsection",
    ".pushsection .text.membound_wrap, \"ax\", @progbits",
    ".globl membound_wrap_start",
    ".hidden membound_wrap_start",
    "membound_wrap_start:",
    ".globl membound_entry_wrap",
    ".hidden membound_entry_wrap",
    ".type membound_entry_wrap, @function",
    "membound_entry_wrap:",
    ".cfi_startproc",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset r11, -16",
    zone!(0),
    // Whoever follows frame pointers finds the caller behind them.
    "push [rsp + 8]",
    ".cfi_adjust_cfa_offset 8",
    zone!(1),
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbp, -32",
    zone!(2),
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    zone!(3),
    "push r11",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 64",
    save_vectors!(),
    "lea rdi, [rbp - 176]",
    "call {before}",
    "test eax, eax",
    restore_registers!(),
    "jnz 2f",
    "lea rsp, [rbp + 24]",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    zone!(4),
    "mov rbp, [rbp]",
    ".cfi_same_value rbp",
    ".cfi_same_value r11",
    zone!(5),
    // Below the stack pointer, where signals leave 128 bytes alone.
    "jmp [rsp - 32]",
    zone!(3),
    "2:",
    ".cfi_restore_state",
    "lea rsp, [rbp - 176]",
    ".cfi_def_cfa rsp, 208",
    "mov rbp, [rbp]",
    zone!(6),
    "call [rsp + 168]",
    ".globl membound_wrap_back",
    ".hidden membound_wrap_back",
    "membound_wrap_back:",
    zone!(7),
    "lea rbp, [rsp + 176]",
    ".cfi_def_cfa rbp, 32",
    zone!(8),
    "mov [rbp - 16], rax",
    "mov [rbp - 24], rdi",
    "mov [rbp - 32], rsi",
    "mov [rbp - 40], rdx",
    "mov [rbp - 48], rcx",
    "mov [rbp - 56], r8",
    "mov [rbp - 64], r9",
    "mov [rbp - 72], r10",
    "mov [rbp + 16], r11",
    zone!(9),
    save_vectors!(),
    "lea rdi, [rbp - 176]",
    "call {after}",
    restore_registers!(),
    "lea rsp, [rbp + 24]",
    ".cfi_def_cfa rsp, 8",
    zone!(10),
    "mov rbp, [rbp]",
    ".cfi_same_value rbp",
    ".cfi_same_value r11",
    zone!(11),
    "ret",
    ".cfi_endproc",
    ".size membound_entry_wrap, . - membound_entry_wrap",
    ".globl membound_wrap_end",
    ".hidden membound_wrap_end",
    "membound_wrap_end:",
    ".popsection",
    ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits",
    ".long -1, 0",
    ".popsection",
    before = sym before,
    after = sym after,
);

/// Before the original.
///
/// # Safety
///
/// Called by the stub with its frame.
unsafe extern "C" fn before(frame: &mut WrapFrame) -> Course {
    // SAFETY: the trampoline has the number before the displaced instructions.
    let number: u32 = unsafe { memory::get(frame.original as usize - 4) };
    if WrapKind::is_of_requests(number) {
        requests::before(frame, number)
    } else {
        // SAFETY: the frame is the stub's.
        unsafe { allocations::before(frame, number) }
    }
}

/// After the original, whose result is in rax.
///
/// # Safety
///
/// Called by the stub with the frame that [`before`] has filled in.
unsafe extern "C" fn after(frame: &mut WrapFrame) {
    if WrapKind::is_of_requests(frame.kept.number as u32) {
        requests::after(frame);
    } else {
        // SAFETY: the frame was filled in by the same module.
        unsafe { allocations::after(frame) }
    }
}

unsafe extern "C" {
    static membound_wrap_zones: u32;
    fn membound_wrap_start();
    fn membound_wrap_end();
    fn membound_wrap_back();
    fn membound_entry_wrap();
}

/// The stub.
pub(crate) fn address() -> u64 {
    membound_entry_wrap as *const () as u64
}

/// Where an original returns to that is called by the stub.
pub(crate) fn back() -> u64 {
    membound_wrap_back as *const () as u64
}

/// Whether an address lies in the stub.
pub(crate) fn contains(ip: u64) -> bool {
    let start = membound_wrap_start as *const () as u64;
    (start..membound_wrap_end as *const () as u64).contains(&ip)
}

/// The address of the frame of the stub whose frame pointer this is.
pub(crate) fn frame_of(rbp: u64) -> u64 {
    rbp.wrapping_sub(offset_of!(WrapFrame, rbp) as u64)
}

/// The zone of an address in the stub.
fn zone_of(ip: u64) -> Option<Zone> {
    let offset = ip.checked_sub(membound_wrap_start as *const () as u64)?;
    let mut at = (&raw const membound_wrap_zones) as usize;
    let mut zone = None;
    loop {
        // SAFETY: the table ends with an offset that none is above.
        let [start, number]: [u32; 2] = unsafe { memory::get(at) };
        if u64::from(start) > offset {
            break;
        }
        zone = Zone::ALL.get(number as usize).copied();
        at += 8;
    }
    zone
}

/// What the program would have for a thread that was found in the stub.
pub(crate) fn in_stub(found: &State) -> Option<State> {
    Some(original(found, zone_of(found.ip)?, &|address| {
        // SAFETY: it is stack that the stub has written, above the red zone's end of a thread
        // that goes on only when its handler, which is running now, has returned.
        unsafe { memory::get(address as usize) }
    }))
}

/// What the program would have for a thread that was found in what the stub has called, which
/// returns to `back`; `rbp` is the stub's.
pub(crate) fn below_stub(found: &State, back: u64, rbp: u64) -> Option<State> {
    let zone = zone_of(back)?;
    let mut stub = *found;
    stub.general[FRAME_POINTER] = rbp;
    Some(original(&stub, zone, &|address| {
        // SAFETY: it is stack above the stack pointer, where the stub's frame is whole.
        unsafe { memory::get(address as usize) }
    }))
}

/// Numbers of registers in the instruction set.
const FRAME_POINTER: usize = 5;
const R11: usize = 11;
/// Registers that the frame keeps, with their numbers.
const KEPT: [(usize, usize); 13] = [
    (0, offset_of!(WrapFrame, rax)),
    (1, offset_of!(WrapFrame, rcx)),
    (2, offset_of!(WrapFrame, rdx)),
    (3, offset_of!(WrapFrame, rbx)),
    (6, offset_of!(WrapFrame, rsi)),
    (7, offset_of!(WrapFrame, rdi)),
    (8, offset_of!(WrapFrame, r8)),
    (9, offset_of!(WrapFrame, r9)),
    (10, offset_of!(WrapFrame, r10)),
    (12, offset_of!(WrapFrame, r12)),
    (13, offset_of!(WrapFrame, r13)),
    (14, offset_of!(WrapFrame, r14)),
    (15, offset_of!(WrapFrame, r15)),
];

/// The state at the original's entry, where its displaced instructions are, or behind the call.
fn original(found: &State, zone: Zone, word: &dyn Fn(u64) -> u64) -> State {
    let sp = found.stack_pointer();
    let rbp = found.general[FRAME_POINTER];
    let slot = |offset: usize| offset as u64;
    let frame = match zone {
        Zone::Entered | Zone::Copied | Zone::Pushed => {
            (sp + 8 * u64::from(zone as u32)).wrapping_sub(slot(offset_of!(WrapFrame, r11)))
        }
        Zone::Before | Zone::Keeping | Zone::After => frame_of(rbp),
        Zone::Calling | Zone::Returned => sp,
        Zone::Passing | Zone::Passed | Zone::Leaving | Zone::Left => {
            sp.wrapping_sub(slot(offset_of!(WrapFrame, return_address)))
        }
    };
    let at = |offset: usize| frame.wrapping_add(slot(offset));
    // What is not kept yet is as it was found.
    let kept = |offset: usize, found: u64| {
        if at(offset) < sp {
            found
        } else {
            word(at(offset))
        }
    };
    let mut state = *found;
    if matches!(zone, Zone::Before | Zone::After) {
        for (register, offset) in KEPT {
            if let Some(place) = state.general.get_mut(register) {
                *place = kept(offset, *place);
            }
        }
    }
    let has_rbp = [
        Zone::Before,
        Zone::Passing,
        Zone::Keeping,
        Zone::After,
        Zone::Leaving,
    ];
    if has_rbp.contains(&zone) {
        state.general[FRAME_POINTER] = word(at(offset_of!(WrapFrame, rbp)));
    }
    let has_r11 = [
        Zone::Entered,
        Zone::Copied,
        Zone::Pushed,
        Zone::Before,
        Zone::After,
    ];
    if has_r11.contains(&zone) {
        state.general[R11] = word(at(offset_of!(WrapFrame, r11)));
    }
    let returns_to = at(offset_of!(WrapFrame, return_address));
    match zone {
        Zone::Entered | Zone::Copied | Zone::Pushed => {
            state.ip = found.general[R11];
            state.general[STACK_POINTER] = returns_to;
        }
        Zone::Before => {
            state.ip = kept(offset_of!(WrapFrame, original), found.general[R11]);
            state.general[STACK_POINTER] = returns_to;
        }
        Zone::Passing | Zone::Passed | Zone::Calling => {
            state.ip = word(at(offset_of!(WrapFrame, original)));
            state.general[STACK_POINTER] = returns_to;
        }
        Zone::Returned | Zone::Keeping | Zone::After | Zone::Leaving | Zone::Left => {
            state.ip = word(returns_to);
            state.general[STACK_POINTER] = returns_to + 8;
        }
    }
    state
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const FRAME: u64 = 0x8000;
    const RBP: u64 = FRAME + offset_of!(WrapFrame, rbp) as u64;
    const RETURN: u64 = FRAME + offset_of!(WrapFrame, return_address) as u64;
    const ORIGINAL: u64 = 0x4000;

    /// The program's registers, each its number; those of the caller behind the call the same.
    fn programs() -> State {
        let mut state = State::default();
        for (number, register) in state.general.iter_mut().enumerate() {
            *register = number as u64;
        }
        state
    }

    /// What the frame has at an address.
    fn word(address: u64) -> u64 {
        let offset = usize::try_from(address - FRAME).unwrap();
        let kept = KEPT.iter().find(|(_, at)| *at == offset);
        match offset {
            _ if let Some((number, _)) = kept => *number as u64,
            offset if offset == offset_of!(WrapFrame, rbp) => 5,
            offset if offset == offset_of!(WrapFrame, r11) => 11,
            offset if offset == offset_of!(WrapFrame, original) => ORIGINAL,
            offset if offset == offset_of!(WrapFrame, return_address) => 0x5000,
            _ => panic!("the stub has nothing at {offset}"),
        }
    }

    /// A thread in `zone` with some registers changed is shown as the program, with its stack
    /// pointer and instruction there.
    #[track_caller]
    fn check(zone: Zone, sp: u64, changed: &[(usize, u64)]) {
        let mut found = programs();
        found.general[STACK_POINTER] = sp;
        for (register, value) in changed {
            found.general[*register] = *value;
        }
        let mut expected = programs();
        let behind = zone as u32 >= Zone::Returned as u32;
        expected.ip = if behind { 0x5000 } else { ORIGINAL };
        expected.general[STACK_POINTER] = if behind { RETURN + 8 } else { RETURN };
        assert_eq!(original(&found, zone, &word), expected, "{zone:?}");
    }

    #[test]
    fn every_zone_leads_to_the_programs_registers() {
        const SPOILT: u64 = 0xdead;
        let spoilt: Vec<(usize, u64)> = KEPT.iter().map(|(number, _)| (*number, SPOILT)).collect();
        let with = |more: &[(usize, u64)]| [&spoilt[..], more].concat();
        let own_rbp = (FRAME_POINTER, RBP);
        check(Zone::Entered, RETURN - 8, &[(R11, ORIGINAL)]);
        check(Zone::Copied, RETURN - 16, &[(R11, ORIGINAL)]);
        check(Zone::Pushed, RBP, &[(R11, ORIGINAL)]);
        // Nothing is kept yet, then some, then all, which what is called has changed.
        check(Zone::Before, RBP, &[own_rbp, (R11, ORIGINAL)]);
        let low = FRAME + offset_of!(WrapFrame, rsi) as u64;
        check(Zone::Before, low, &[own_rbp, (R11, ORIGINAL), (7, SPOILT)]);
        check(Zone::Before, FRAME - 300, &with(&[own_rbp, (R11, SPOILT)]));
        check(Zone::Passing, RETURN, &[own_rbp]);
        check(Zone::Passed, RETURN, &[]);
        check(Zone::Calling, FRAME, &[]);
        check(Zone::Returned, FRAME, &[]);
        check(Zone::Keeping, FRAME, &[own_rbp]);
        check(Zone::After, FRAME - 300, &with(&[own_rbp, (R11, SPOILT)]));
        check(Zone::Leaving, RETURN, &[own_rbp]);
        check(Zone::Left, RETURN, &[]);
    }

    #[test]
    fn the_stub_is_made_of_zones_in_their_order() {
        let start = membound_wrap_start as *const () as u64;
        let end = membound_wrap_end as *const () as u64;
        let mut zones: Vec<Zone> = (start..end).filter_map(zone_of).collect();
        assert_eq!(zones.len() as u64, end - start);
        zones.dedup();
        use Zone::{
            After, Before, Calling, Copied, Entered, Keeping, Leaving, Left, Passed, Passing,
            Pushed, Returned,
        };
        let expected = [
            Entered, Copied, Pushed, Before, Passing, Passed, Before, Calling, Returned, Keeping,
            After, Leaving, Left,
        ];
        assert_eq!(zones, expected);
        assert_eq!(zone_of(back()), Some(Returned));
        for (number, zone) in Zone::ALL.into_iter().enumerate() {
            assert_eq!(zone as usize, number);
        }
    }
}
