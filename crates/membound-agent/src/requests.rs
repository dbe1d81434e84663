//! Request latencies of the program: from a receive on a socket to the next send on it, or from mark to
//! mark, in histogram classes that the launcher reads ([`membound_wire::Requests`]).
//!
//! Each descriptor has a word of its own, since all threads share descriptors. The state of marks is kept
//! with the thread. A forked child finds neither, and counts nothing.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{Command, Mark, RequestTimes, Requests, WrapKind, request_class};

use crate::failure::Failure;
use crate::saved_registers::SavedRegisters;
use crate::sys::{self, Scratch, call, number};
use crate::thread_table::{self, Request};
use crate::words::{word32, word64};
use crate::wrap::frame::{Course, WrapFrame};
use crate::{assembly, memory, scheduler, syscall_filter};

/// Descriptors below this number are followed.
const DESCRIPTORS: usize = 1 << 16;
/// Bytes below the stack pointer that a mark must not overwrite.
const RED_ZONE: u64 = 128;

/// Values of a descriptor's word; any other value is the time stamp of the first receive of a request.
const UNKNOWN: u64 = 0;
const NO_SOCKET: u64 = 1;
const IDLE: u64 = 2;

/// Address of the [`Requests`]; 0 without.
static MEMORY: AtomicUsize = AtomicUsize::new(0);
/// Address of a word that is 1 if this process counts, followed by the descriptors' words. Forked children
/// find zeros there.
static TABLE: AtomicUsize = AtomicUsize::new(0);
/// The process that counts.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Highest descriptor with a word other than 0, plus one.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Starts counting in the memory that `command` describes.
pub(crate) fn begin(command: &Command) -> Result<(), Failure> {
    if command.length < size_of::<Requests>() as u64 || command.address == 0 {
        return Err(Failure::malformed());
    }
    thread_table::prepare()?;
    let table = Scratch::new((DESCRIPTORS + 1) * size_of::<u64>())?;
    // Without this, a child would count for its parent.
    table.wipe_on_fork()?;
    let address = table.keep();
    word64(address).store(1, Ordering::Relaxed);
    PROCESS.store(sys::process(), Ordering::Relaxed);
    MEMORY.store(command.address as usize, Ordering::Release);
    TABLE.store(address, Ordering::Release);
    Ok(())
}

/// The table, if this process counts. Behind a filter on system calls it does not, since the agent may not
/// ask the kernel for the kind of a descriptor.
fn table() -> Option<usize> {
    let table = TABLE.load(Ordering::Acquire);
    let counts = table != 0 && word64(table).load(Ordering::Relaxed) != 0;
    (counts && !syscall_filter::may_apply()).then_some(table)
}

/// The table's word for a file descriptor. Only the lower 32 bits of `descriptor` count, since system calls
/// take an `int`. `None` for descriptors from [`DESCRIPTORS`] on, whose requests are not measured.
fn word_of(table: usize, descriptor: u64) -> Option<&'static AtomicU64> {
    let index = descriptor as u32 as usize;
    (index < DESCRIPTORS).then(|| word64(table + (index + 1) * size_of::<u64>()))
}

/// Adds one to a counter in the launcher's memory.
fn count_event(offset: usize) {
    let memory = MEMORY.load(Ordering::Acquire);
    word64(memory + offset).fetch_add(1, Ordering::Relaxed);
}

/// A time stamp that differs from the constants of descriptors' words. It is taken after earlier loads, since
/// a request waits for loads above all: the processor, which runs ahead, would read the counter at the end of
/// a request while the request's loads are still on their way.
fn now() -> u64 {
    assembly::time_stamp_after_loads().max(IDLE + 1)
}

/// Counts a request that lasted from `begun` to `ended`, both time stamps.
fn count(begun: u64, ended: u64) {
    let phase = scheduler::phase();
    if begun < phase.since {
        return count_event(offset_of!(Requests, spanning));
    }
    let memory = MEMORY.load(Ordering::Acquire);
    let times = memory
        + if phase.are_admitted {
            offset_of!(Requests, with)
        } else {
            offset_of!(Requests, without)
        };
    let ticks = word32(memory + offset_of!(Requests, ticks)).load(Ordering::Relaxed);
    let ns = ended.saturating_sub(begun).saturating_mul(1024) / u64::from(ticks.max(1));
    word64(times + offset_of!(RequestTimes, longest_ns)).fetch_max(ns, Ordering::Relaxed);
    let class = offset_of!(RequestTimes, classes) + size_of::<u64>() * request_class(ns);
    word64(times + class).fetch_add(1, Ordering::Relaxed);
}

/// Runs before a wrapped function with this `number`.
pub(crate) fn before(frame: &mut WrapFrame, number: u32) -> Course {
    let Some(table) = table() else {
        return Course::Pass;
    };
    let after = match WrapKind::of_requests(number) {
        Some(WrapKind::Receive | WrapKind::ReceiveMany) => {
            begins_with(table, frame.rdi).then_some(frame.rdi)
        }
        Some(WrapKind::Open) => Some(frame.rdi),
        Some(WrapKind::OpenTwo) => Some(frame.rcx),
        Some(WrapKind::Send) => {
            send(table, frame.rdi);
            None
        }
        Some(WrapKind::SendThird) => {
            send(table, frame.rdx);
            None
        }
        Some(WrapKind::Close) => {
            forget(table, frame.rdi, frame.rdi);
            None
        }
        Some(WrapKind::Replace) => {
            forget(table, frame.rsi, frame.rsi);
            None
        }
        Some(WrapKind::CloseRange) => {
            forget(table, frame.rdi, frame.rsi);
            None
        }
        Some(WrapKind::CloseFrom) => {
            forget(table, frame.rdi, u64::from(u32::MAX));
            None
        }
        _ => None,
    };
    let Some(kept) = after else {
        return Course::Pass;
    };
    frame.kept.number = number;
    frame.kept.block = kept;
    Course::Around
}

/// Runs after the original function, whose result is in rax.
pub(crate) fn after(frame: &WrapFrame) {
    let Some(table) = table() else {
        return;
    };
    // The upper half of the register of an `int` is undefined.
    let int = frame.rax as u32 as i32;
    match WrapKind::of_requests(frame.kept.number) {
        Some(WrapKind::Receive) if frame.rax.cast_signed() > 0 => receive(table, frame.kept.block),
        Some(WrapKind::ReceiveMany) if int > 0 => receive(table, frame.kept.block),
        Some(WrapKind::Open) if int >= 0 => forget(table, frame.rax, frame.rax),
        Some(WrapKind::OpenTwo) if int == 0 => {
            // SAFETY: the original has just put two descriptors there.
            let made: [u32; 2] = unsafe { memory::get(frame.kept.block as usize) };
            for descriptor in made.map(u64::from) {
                forget(table, descriptor, descriptor);
            }
        }
        _ => {}
    }
}

/// True if a request may begin with data received now on a descriptor.
fn begins_with(table: usize, descriptor: u64) -> bool {
    let Some(word) = word_of(table, descriptor) else {
        // A negative one is no descriptor.
        if (descriptor as u32).cast_signed() >= 0 {
            count_event(offset_of!(Requests, high));
        }
        return false;
    };
    matches!(word.load(Ordering::Relaxed), UNKNOWN | IDLE)
}

/// Data was received: begins a request unless one is in progress.
fn receive(table: usize, descriptor: u64) {
    let Some(word) = word_of(table, descriptor) else {
        return;
    };
    let now = now();
    if word.load(Ordering::Relaxed) == UNKNOWN {
        HIGHEST.fetch_max((descriptor as u32).saturating_add(1), Ordering::Relaxed);
        let state = if is_socket(descriptor) {
            IDLE
        } else {
            NO_SOCKET
        };
        let _ = word.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
    }
    // Another thread may have begun the request first.
    let _ = word.compare_exchange(IDLE, now, Ordering::Relaxed, Ordering::Relaxed);
}

/// Data is about to be sent: ends the request, if one is in progress.
fn send(table: usize, descriptor: u64) {
    let Some(word) = word_of(table, descriptor) else {
        return;
    };
    let begun = word.load(Ordering::Relaxed);
    if begun > IDLE
        && word
            .compare_exchange(begun, IDLE, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    {
        count(begun, now());
    }
}

/// Forgets the state of the descriptors from `first` to `last`.
fn forget(table: usize, first: u64, last: u64) {
    let highest = HIGHEST.load(Ordering::Relaxed);
    let touched = first as u32..(last as u32).saturating_add(1).min(highest);
    let word = |descriptor: u32| word_of(table, u64::from(descriptor));
    let mut words = touched.filter_map(word);
    let is_known = |word: &&AtomicU64| word.load(Ordering::Relaxed) != UNKNOWN;
    let Some(found) = words.find(is_known) else {
        return;
    };
    // A child of vfork has descriptors of its own, but shares this memory.
    if PROCESS.load(Ordering::Relaxed) != sys::process() {
        return;
    }
    found.store(UNKNOWN, Ordering::Relaxed);
    for word in words {
        word.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// True if a descriptor is a socket for data (stream, datagram or sequenced packets).
fn is_socket(descriptor: u64) -> bool {
    const SOL_SOCKET: usize = 1;
    const SO_TYPE: usize = 3;
    const STREAM: u32 = 1;
    const DATAGRAM: u32 = 2;
    const SEQUENCED: u32 = 5;
    let (mut kind, mut length) = (0_u32, size_of::<u32>() as u32);
    // SAFETY: the kernel writes an `int` and its length.
    let result = unsafe {
        call(
            number::GETSOCKOPT,
            [
                descriptor as u32 as usize,
                SOL_SOCKET,
                SO_TYPE,
                (&raw mut kind) as usize,
                (&raw mut length) as usize,
                0,
            ],
        )
    };
    result == 0 && [STREAM, DATAGRAM, SEQUENCED].contains(&kind)
}

/// [`membound_wire::Entry::Mark`].
pub(crate) extern "C" fn on_mark(frame: &mut SavedRegisters) {
    // First, so that a request that ends does not include the following work.
    let now = now();
    if table().is_none() {
        return;
    }
    let [mark, above, ..] = &frame.arguments;
    let stack = (&raw const *above) as u64 + RED_ZONE;
    let Some(thread) = thread_table::own(stack) else {
        return count_event(offset_of!(Requests, homeless));
    };
    let request = &thread.request;
    let is = |kind: Mark| *mark as u32 == kind as u32;
    if is(Mark::Enter) {
        if !is_nested_call(thread, stack) {
            begin_at(request, stack);
        }
    } else if is(Mark::Begin) {
        begin_at(request, 0);
    } else if is(Mark::End) {
        end(request, now);
    } else if is(Mark::Leave) {
        let outermost = request.stack.load(Ordering::Relaxed);
        if stack == outermost {
            end(request, now);
        } else if stack > outermost {
            // The outer call of this mark's call has not returned to its end: the request was left, and is
            // dropped.
            request.begun.store(0, Ordering::Relaxed);
        }
    }
}

/// True if the call that began the thread's request is still in progress below the present one: on the same
/// stack, with its return address in place.
fn is_nested_call(thread: &thread_table::Thread, stack: u64) -> bool {
    let request = &thread.request;
    let outermost = request.stack.load(Ordering::Relaxed);
    request.begun.load(Ordering::Relaxed) != 0
        && stack < outermost
        && thread.on_one_stack(stack, outermost)
        && {
            // SAFETY: it is the thread's own stack, above the stack pointer.
            let back: u64 = unsafe { memory::get(outermost as usize) };
            back == request.back.load(Ordering::Relaxed)
        }
}

/// Begins a request, with the call whose return address is at `stack`, or with none (0).
fn begin_at(request: &Request, stack: u64) {
    if request.begun.load(Ordering::Relaxed) != 0 {
        count_event(offset_of!(Requests, left));
    }
    let back: u64 = if stack == 0 {
        0
    } else {
        // SAFETY: a function is entered with its return address there.
        unsafe { memory::get(stack as usize) }
    };
    request.stack.store(stack, Ordering::Relaxed);
    request.back.store(back, Ordering::Relaxed);
    // Last, so that the request does not include the work before.
    request.begun.store(now(), Ordering::Relaxed);
}

/// Ends the thread's request, if it has one.
fn end(request: &Request, now: u64) {
    let begun = request.begun.swap(0, Ordering::Relaxed);
    if begun != 0 {
        count(begun, now);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec;

    use super::*;

    /// The state is the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> (MutexGuard<'static, ()>, usize, &'static [AtomicU64]) {
        let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let words = size_of::<Requests>() / 8;
        let memory: Box<[u64]> = vec![0; words].into_boxed_slice();
        let memory = Box::leak(memory).as_mut_ptr();
        let command = Command {
            address: memory as u64,
            length: size_of::<Requests>() as u64,
            ..Command::default()
        };
        begin(&command).unwrap();
        word32(memory as usize).store(1024, Ordering::Relaxed);
        // SAFETY: the box was leaked, and all words of it are used as atomics from now on.
        let words = unsafe { std::slice::from_raw_parts(memory as *const AtomicU64, words) };
        (guard, table().unwrap(), words)
    }

    /// Number of requests by class.
    fn classes(words: &[AtomicU64]) -> std::vec::Vec<u64> {
        let all = |at: usize| {
            let first = (at + offset_of!(RequestTimes, classes)) / 8;
            words[first..first + membound_wire::REQUEST_CLASSES].iter()
        };
        let [with, without] = [offset_of!(Requests, with), offset_of!(Requests, without)].map(all);
        let both = with.zip(without);
        both.map(|(a, b)| a.load(Ordering::Relaxed) + b.load(Ordering::Relaxed))
            .collect()
    }

    fn counted(words: &[AtomicU64]) -> u64 {
        classes(words).iter().sum()
    }

    /// A new pair of sockets.
    fn sockets() -> [u64; 2] {
        let mut pair = [0_i32; 2];
        // SAFETY: two descriptors are written.
        let made = unsafe { call(53, [1, 1, 0, (&raw mut pair) as usize, 0, 0]) };
        assert_eq!(made, 0);
        pair.map(|descriptor| descriptor as u64)
    }

    #[test]
    fn a_request_is_from_the_first_receive_to_the_next_send() {
        let (_alone, table, words) = alone();
        let [socket, _] = sockets();
        assert!(begins_with(table, socket));
        receive(table, socket);
        assert!(!begins_with(table, socket));
        receive(table, socket);
        send(table, socket);
        send(table, socket);
        assert_eq!(counted(words), 1);
        receive(table, socket);
        forget(table, socket, socket);
        assert!(begins_with(table, socket));
    }

    #[test]
    fn a_request_lasts_until_its_loads_have_completed() {
        const LOADS: usize = 8;
        const ROUNDS: usize = 201;
        let (_alone, table, words) = alone();
        let [socket, _] = sockets();
        // Each line holds the address of the next one; they lie on pages of their own.
        let mut lines = vec![[0_usize; 512]; LOADS + 1];
        for index in 0..LOADS {
            lines[index][0] = (&raw const lines[index + 1][0]) as usize;
        }
        let flush = || {
            for line in &lines {
                // SAFETY: the line exists.
                unsafe { core::arch::x86_64::_mm_clflush((&raw const line[0]).cast()) };
            }
            // SAFETY: the instruction changes nothing. Without it, loads may be earlier than the flushes.
            unsafe { core::arch::x86_64::_mm_mfence() };
        };
        // In assembly, so that all loads and the next time stamp are in the processor at once.
        let chase = || {
            // SAFETY: each line but the last holds the address of the next one, and `LOADS` of them are followed.
            unsafe {
                core::arch::asm!(
                    ".rept {loads}",
                    "mov {at}, [{at}]",
                    ".endr",
                    loads = const LOADS,
                    at = inout(reg) &raw const lines[0][0] => _,
                    options(nostack, readonly, preserves_flags)
                );
            }
        };
        // SAFETY: the instruction changes nothing.
        let fence = || unsafe { core::arch::x86_64::_mm_lfence() };
        let ordered = || {
            fence();
            let ticks = assembly::time_stamp();
            fence();
            ticks
        };
        let mut truth: std::vec::Vec<u64> = (0..ROUNDS)
            .map(|_| {
                flush();
                let begun = ordered();
                chase();
                let took = ordered() - begun;
                flush();
                receive(table, socket);
                chase();
                send(table, socket);
                took
            })
            .collect();
        truth.sort_unstable();
        let classes = classes(words);
        assert_eq!(classes.iter().sum::<u64>(), ROUNDS as u64);
        let mut below = 0;
        let median = classes.iter().position(|count| {
            below += count;
            below > ROUNDS as u64 / 2
        });
        // One tick is a nanosecond to `alone`.
        let median = membound_wire::request_class_begin(median.unwrap());
        let truth = truth[ROUNDS / 2];
        assert!(median > truth / 2, "{median} ticks, in truth {truth}");
    }

    #[test]
    fn descriptors_other_than_sockets_have_no_requests() {
        let (_alone, table, words) = alone();
        let file = 0;
        forget(table, file, file);
        let descriptor = sys::open(c"/dev/null", sys::Open::Read).unwrap();
        let number = descriptor.raw() as u64;
        receive(table, number);
        assert!(!begins_with(table, number));
        send(table, number);
        assert_eq!(counted(words), 0);
        assert!(!begins_with(table, DESCRIPTORS as u64));
        let high = &words[offset_of!(Requests, high) / 8];
        assert_eq!(high.load(Ordering::Relaxed), 1);
    }
}
