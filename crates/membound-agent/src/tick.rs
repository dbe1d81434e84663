//! The handler of the timers' signal: samples its thread with the registers of the original program, and
//! returns as if the thread had not been interrupted.
//!
//! It never waits or allocates, and reads no memory that may be unmapped: pages of the stack are checked
//! before they are read. A system call that ended because of this signal is made again.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use membound_sync::ring::Positions;
use membound_wire::{
    STACK_POINTER, State, TICK_DEPTH, TICK_HEAD_WORDS, TICK_WORDS, TickHead, TickRing,
};

use crate::disposition::{Disposition, disposition};
use crate::signal_frame::{Arrived, Registers};
use crate::sys;
use crate::timers::{self, Ring, Use};
use crate::unwind::{Begin, Registers as UnwindRegisters, Stack, Walk};
use crate::{areas, assembly, beliefs, memory, original_state};

/// Most words of a sample.
const MAX_WORDS: usize = TICK_HEAD_WORDS + TICK_DEPTH;
/// Frames of the agent that may be skipped between frames that are kept.
const OWN_FRAMES: usize = 16;
/// Pages of a stack that are checked at a time.
const PAGES: u64 = 8;
/// Most pages that are checked for one sample.
const MAX_PAGES: u64 = 4096;
const PAGE: u64 = 4096;
/// Number of rbp among the general registers.
const FRAME_POINTER: usize = 5;
/// CPU time in nanoseconds after a handler's return within which a tick cannot have interrupted another
/// system call.
const JUST_NS: u64 = 50_000;
const EINTR: u64 = (-4_i64).cast_unsigned();
const RT_SIGTIMEDWAIT: u64 = 128;

// The one waiting system call that the agent makes for the program, at a known address so that it can be
// made again.
global_asm!(
    ".pushsection .text.membound_wait, \"ax\", @progbits",
    ".globl membound_wait",
    ".hidden membound_wait",
    ".type membound_wait, @function",
    "membound_wait:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov eax, 128",
    "syscall",
    ".globl membound_waited",
    ".hidden membound_waited",
    "membound_waited:",
    "ret",
    ".cfi_endproc",
    ".size membound_wait, . - membound_wait",
    ".popsection",
);

unsafe extern "C" {
    fn membound_wait(set: u64, information: u64, timeout: u64, size: u64) -> isize;
    fn membound_waited();
}

/// Address of the handler.
pub(crate) fn address() -> u64 {
    on_tick as *const () as u64
}

/// Makes `rt_sigtimedwait`.
pub(crate) fn wait_for_signals([set, information, timeout, size]: [u64; 4]) -> isize {
    // SAFETY: the arguments are the program's, but for a set that outlives the call.
    unsafe { membound_wait(set, information, timeout, size) }
}

/// # Safety
///
/// Called by the kernel with what it passes to a handler with SA_SIGINFO.
unsafe extern "C" fn on_tick(signal: u64, information: usize, context: usize) {
    let arrived = Arrived {
        signal,
        information,
        context,
    };
    let value = arrived.value();
    if !timers::is_tick(arrived.code(), value) {
        foreign(signal, information, context);
        return;
    }
    let registers = arrived.registers();
    let state = registers.state();
    if let Some(ring) = timers::ring_of(value) {
        sample(ring, signal, &state);
    }
    again(arrived.registers_place(), registers);
    // SAFETY: the context is the kernel's.
    unsafe { original_state::leave_overwritten_text(context) };
}

/// Makes a thread repeat the system call that a signal of the agent has interrupted. The kernel restores
/// `registers` from `place` when the handler returns.
pub(crate) fn again(place: usize, registers: Registers) {
    let state = registers.state();
    if state.general[0] == EINTR {
        make_again(place, registers, &state);
    }
}

/// Writes a sample, unless the launcher has stopped sampling.
fn sample(ring: Ring, signal: u64, state: &State) {
    let now = sys::thread_cpu_ns();
    let heartbeat = ring.word32(core::mem::offset_of!(TickRing, heartbeat));
    let heartbeat_ns = ring.word64(core::mem::offset_of!(TickRing, heartbeat_ns));
    if !timers::is_poll_due(heartbeat, heartbeat_ns, now) {
        timers::delete(ring);
        return;
    }
    let Some(room) = Room::find(ring) else {
        let lost = ring.word32(core::mem::offset_of!(TickRing, lost));
        lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let clock = ring.word64(core::mem::offset_of!(TickRing, clock_ns));
    let weight = now.saturating_sub(clock.swap(now, Ordering::Relaxed));
    let interrupted = original_state::find(signal, state);
    let mut original = interrupted.map_or(*state, |interrupted| interrupted.original);
    // SAFETY: the room has that many words behind the head, and the launcher reads none before `publish`.
    let callers = unsafe {
        core::slice::from_raw_parts_mut(room.word(TICK_HEAD_WORDS) as *mut u64, TICK_DEPTH)
    };
    let mut depth = chain(&original, callers);
    let [low, high] = assembly::own_range();
    let own = (low..high).contains(&original.ip);
    if own {
        // Inside the agent, only the callers show for which code it runs.
        original.ip = callers.first().copied().filter(|_| depth > 0).unwrap_or(0);
        callers.copy_within(1.., 0);
        depth = depth.saturating_sub(1);
    }
    let inside =
        own || interrupted.is_some_and(|interrupted| interrupted.is_in_added_code(state.ip));
    let head = TickHead {
        words: (TICK_HEAD_WORDS + depth) as u16,
        flags: if inside { TickHead::INSIDE } else { 0 },
        cpu: sys::cpu().unwrap_or(u16::MAX),
    };
    room.put(0, head.word());
    room.put(1, assembly::time_stamp());
    room.put(2, weight);
    for (index, register) in original.general.iter().enumerate() {
        room.put(3 + index, *register);
    }
    room.put(19, original.ip);
    room.publish(TICK_HEAD_WORDS + depth);
}

/// Position of the next sample in the ring.
struct Room {
    ring: Ring,
    head: u64,
}

impl Room {
    /// Finds room for a sample of full length; `None` if the launcher has not read enough yet.
    fn find(ring: Ring) -> Option<Self> {
        let (mut head, used) = positions(&ring).to_write();
        let to_end = TICK_WORDS - (head % TICK_WORDS as u64) as usize;
        let skipped = if to_end < MAX_WORDS { to_end } else { 0 };
        let needed = (skipped + MAX_WORDS) as u64;
        if used.wrapping_add(needed) > TICK_WORDS as u64 {
            return None;
        }
        if skipped > 0 {
            let filler = TickHead {
                words: skipped as u16,
                flags: TickHead::FILLER,
                cpu: 0,
            };
            let room = Self { ring, head };
            room.put(0, filler.word());
            head = head.wrapping_add(skipped as u64);
        }
        Some(Self { ring, head })
    }

    /// Address of the word at `index` of the sample.
    fn word(&self, index: usize) -> usize {
        let at = (self.head % TICK_WORDS as u64) as usize + index;
        self.ring.address() + core::mem::offset_of!(TickRing, words) + at * 8
    }

    fn put(&self, index: usize, value: u64) {
        // SAFETY: the word lies in the ring, where one sample has room before its end.
        unsafe { memory::put(self.word(index), value) }
    }

    /// Hands the sample to the launcher.
    fn publish(&self, words: usize) {
        positions(&self.ring).publish(self.head.wrapping_add(words as u64));
    }
}

fn positions(ring: &Ring) -> Positions<'static> {
    Positions {
        head: ring.word64(core::mem::offset_of!(TickRing, head)),
        tail: ring.word64(core::mem::offset_of!(TickRing, tail)),
    }
}

/// Fills `out` with the return addresses above `state`, innermost first, and returns their number. Pages of
/// the stack are checked before they are read.
fn chain(state: &State, out: &mut [u64]) -> usize {
    let sp = state.general[STACK_POINTER];
    let [low, high] = assembly::own_range();
    // Below the stack pointer only the red zone is in use.
    let mut reach = pages(sp, sp & !(PAGE - 1));
    let registers = UnwindRegisters {
        ip: state.ip,
        sp,
        bp: state.general[FRAME_POINTER],
    };
    let stack = Stack {
        low: sp,
        high: reach,
    };
    let mut walk = Walk::new(registers, Begin::Instruction, stack);
    let mut filled = 0;
    let limit = sp.saturating_add(MAX_PAGES * PAGE);
    for _ in 0..out.len() + OWN_FRAMES {
        let before = walk;
        let mut step = walk.step();
        // Extends the range only while a caller is still to be found there: a thread's last frame has no
        // caller, whatever lies above it.
        while step.is_none()
            && walk
                .beyond()
                .is_some_and(|word| (reach.saturating_sub(8)..limit).contains(&word))
        {
            let further = pages(sp, reach);
            if further == reach {
                break;
            }
            reach = further;
            walk = before;
            walk.reach(reach);
            step = walk.step();
        }
        let Some(caller) = step else {
            break;
        };
        if (low..high).contains(&caller.ip) {
            continue;
        }
        let Some(place) = out.get_mut(filled) else {
            break;
        };
        *place = caller.ip;
        filled += 1;
    }
    filled
}

/// End of the readable range that starts at `from`, the start of a page: some pages further, or where the
/// mapping ends.
fn pages(sp: u64, from: u64) -> u64 {
    let mut end = from;
    for _ in 0..PAGES {
        if !sys::readable(end.max(sp & !7)) {
            break;
        }
        end = end.saturating_add(PAGE);
    }
    end
}

/// A handler of the program that has returned to just behind a system call that it had interrupted.
struct Returned {
    thread: AtomicU64,
    ip: AtomicU64,
    stack: AtomicU64,
    cpu_ns: AtomicU64,
}

/// Indexed by thread number modulo the length. Threads that share an entry would have to return at the same
/// moment for one to be forgotten.
static RETURNED: [Returned; 256] = [const {
    Returned {
        thread: AtomicU64::new(0),
        ip: AtomicU64::new(0),
        stack: AtomicU64::new(0),
        cpu_ns: AtomicU64::new(0),
    }
}; 256];

fn returned_of(thread: u32) -> Option<&'static Returned> {
    RETURNED.get(thread as usize % RETURNED.len())
}

/// Records that a handler of the program returns to these registers: a system call that it has interrupted
/// there did fail for the program.
pub(crate) fn returned(state: &State) {
    if state.general[0] != EINTR {
        return;
    }
    let thread = sys::thread();
    if let Some(kept) = returned_of(thread) {
        kept.thread.store(u64::from(thread), Ordering::Relaxed);
        kept.ip.store(state.ip, Ordering::Relaxed);
        kept.stack.store(state.stack_pointer(), Ordering::Relaxed);
        kept.cpu_ns.store(sys::thread_cpu_ns(), Ordering::Relaxed);
    }
}

/// True if the program's own signal has just ended the system call before `state`.
fn is_genuine(state: &State) -> bool {
    let thread = sys::thread();
    returned_of(thread).is_some_and(|kept| {
        kept.thread.load(Ordering::Relaxed) == u64::from(thread)
            && kept.ip.load(Ordering::Relaxed) == state.ip
            && kept.stack.load(Ordering::Relaxed) == state.stack_pointer()
            && sys::thread_cpu_ns().saturating_sub(kept.cpu_ns.load(Ordering::Relaxed)) < JUST_NS
    })
}

/// Makes the thread repeat the system call that this signal has ended, if its number is known.
///
/// A CPU timer expires while its thread runs, so the call has waited for next to nothing. The exception is
/// a thread that was woken for nothing and was about to continue waiting: if it gave a duration and not a
/// point in time, it waits that much longer.
fn make_again(place: usize, mut registers: Registers, state: &State) {
    const SYSCALL: u16 = u16::from_le_bytes([0x0f, 0x05]);
    let Some(at) = state.ip.checked_sub(2).filter(|at| sys::readable(*at)) else {
        return;
    };
    // SAFETY: the kernel could read there.
    let code: u16 = unsafe { memory::get(at as usize) };
    if code != SYSCALL || is_genuine(state) {
        return;
    }
    let number = if state.ip == membound_waited as *const () as u64 {
        Some(RT_SIGTIMEDWAIT)
    } else {
        areas::call_at(at)
    };
    if let Some(number) = number {
        registers.call_again(at, number);
        // SAFETY: the kernel put the registers there, and takes them back from there.
        unsafe { memory::put(place, registers) };
    }
}

/// Handles a signal of the timers' number that the timers did not send.
fn foreign(signal: u64, information: usize, context: usize) {
    timers::give_up(signal, Use::Waits, address());
    if !beliefs::make_true(signal, information, context) {
        // Without a handler of the program it ends the process, as soon as this handler's mask is gone.
        disposition(signal, Some(&Disposition::DEFAULT));
        sys::send_signal(sys::process(), sys::thread(), signal as u32);
    }
}

/// True if a handler of the program is entered for a late tick of ours, sent before the program took the
/// signal number.
pub(crate) fn is_late(signal: u64, information: usize) -> bool {
    const SIGINFO: u64 = 4;
    // Without that flag the kernel leaves the bytes of the information as they were.
    let informed = || disposition(signal, None).is_some_and(|found| found.flags & SIGINFO != 0);
    if !timers::was_ours(signal) || !informed() {
        return false;
    }
    // SAFETY: the frame has room for a siginfo, filled or not.
    let code: i32 = unsafe { memory::get(information + 8) };
    // SAFETY: as above.
    let value: u64 = unsafe { memory::get(information + 24) };
    timers::is_tick(code, value)
}

const _: () = assert!(MAX_WORDS * 2 < TICK_WORDS);
