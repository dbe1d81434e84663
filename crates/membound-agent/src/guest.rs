//! Programs that run inside this process beside the one that it belongs to (see
//! [`membound_wire::GuestRequest`]).
//!
//! Each has a thread of the kernel's that no libc knows. On it the executable and its loader are
//! mapped, a first stack is laid out as the kernel would, and the loader is entered; the rest is the
//! guest's own. What it asks the kernel for comes here by SIGSYS, and what it does wrong by the
//! signals of faults: both end at most the guest.

mod calls;
mod image;
mod stack;

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{Command, GuestRequest, GuestState, Refusal};

use crate::control::Failure;
use crate::handlers::Registers;
use crate::sys::{self, Errno, Protection, Scratch, call, check, number};
use crate::{assembly, memory, own_thread, trap};

/// Guests at one time.
const GUESTS: usize = 1024;
/// Stack of the agent's own on a guest's thread, before the guest has one.
const OWN_STACK_BYTES: usize = 64 << 10;
/// What a signal's information says of a call that was dispatched to us.
const DISPATCHED: i32 = 2;

global_asm!(
    ".pushsection .text.membound_guest, \"ax\", @progbits",
    // rdi: stack pointer, rsi: entry. As the kernel enters a program, nothing is in a register.
    ".globl membound_guest_enter",
    ".hidden membound_guest_enter",
    ".type membound_guest_enter, @function",
    "membound_guest_enter:",
    "mov rsp, rdi",
    "push rsi",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor ebp, ebp",
    "xor esi, esi",
    "xor edi, edi",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "cld",
    "ret",
    ".size membound_guest_enter, . - membound_guest_enter",
    ".popsection",
);

unsafe extern "C" {
    fn membound_guest_enter(stack: usize, entry: usize) -> !;
}

/// A guest as the agent knows it.
#[derive(Debug)]
struct Guest {
    /// Its thread; 0: the place is free.
    thread: AtomicU32,
    /// Its request.
    request: AtomicUsize,
    /// The break: begin, present end, and end of what was set aside.
    heap: [AtomicU64; 3],
    /// What its calls are dispatched by: 1, to the agent.
    selector: AtomicU32,
}

impl Guest {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            request: AtomicUsize::new(0),
            heap: [const { AtomicU64::new(0) }; 3],
            selector: AtomicU32::new(1),
        }
    }
}

static ALL: [Guest; GUESTS] = [const { Guest::new() }; GUESTS];
/// A place that somebody is filling.
const TAKEN: u32 = u32::MAX;

/// The guest whose thread calls.
fn own() -> Option<&'static Guest> {
    let thread = sys::thread();
    ALL.iter()
        .find(|guest| guest.thread.load(Ordering::Acquire) == thread)
}

/// What launcher and agent share of a guest.
#[derive(Clone, Copy, Debug)]
struct Request(usize);

impl Request {
    fn get(self) -> GuestRequest {
        // SAFETY: the launcher has mapped it, and it stays mapped.
        unsafe { memory::get(self.0) }
    }

    fn word(self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above; both sides use what the agent writes as atomics.
        unsafe { &*((self.0 + offset) as *const AtomicU32) }
    }

    fn long(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: as above.
        unsafe { &*((self.0 + offset) as *const AtomicU64) }
    }

    fn set(self, state: GuestState, code: u32) {
        self.word(offset_of!(GuestRequest, code))
            .store(code, Ordering::Relaxed);
        let word = self.word(offset_of!(GuestRequest, state));
        word.store(state as u32, Ordering::Release);
        sys::wake_all(word);
    }

    /// Address of the first string.
    const fn strings(self) -> usize {
        self.0 + size_of::<GuestRequest>()
    }
}

/// Starts the guest whose [`GuestRequest`] `command` names.
pub(crate) fn start(command: &Command) -> Result<(), Failure> {
    let request = Request(command.address as usize);
    let whole = size_of::<GuestRequest>() as u64 + u64::from(request.get().strings);
    if command.address == 0 || whole > command.length {
        return Err(Failure::malformed());
    }
    trap::install(&trap::OF_GUESTS)?;
    let guest = ALL
        .iter()
        .find(|guest| {
            let free = guest
                .thread
                .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        })
        .ok_or_else(|| Failure::new(Errno::ENOSPC, Refusal::NoThread))?;
    guest.request.store(request.0, Ordering::Release);
    // Descriptors, directory and mask of files are its own.
    let argument = (&raw const *guest) as usize;
    own_thread::start(own_thread::THREAD, OWN_STACK_BYTES, live, argument).map_err(|errno| {
        guest.thread.store(0, Ordering::Release);
        Failure::new(errno, Refusal::NoThread)
    })
}

/// The life of a guest's thread up to its first instruction.
extern "C" fn live(guest: usize) -> ! {
    // SAFETY: it is the place of the guest that the thread was started for, which is static.
    let guest = unsafe { &*(guest as *const Guest) };
    let thread = sys::thread();
    guest.thread.store(thread, Ordering::Release);
    let request = Request(guest.request.load(Ordering::Acquire));
    request
        .word(offset_of!(GuestRequest, thread))
        .store(thread, Ordering::Relaxed);
    match prepare(guest, request) {
        Ok(entered) => {
            request.set(GuestState::Runs, 0);
            // SAFETY: loader and stack were made for this.
            unsafe { membound_guest_enter(entered.stack, entered.entry) }
        }
        Err(errno) => finish(guest, GuestState::Failed, errno.0),
    }
}

/// How a guest begins.
#[derive(Clone, Copy, Debug)]
struct Entered {
    stack: usize,
    entry: usize,
}

fn prepare(guest: &'static Guest, request: Request) -> Result<Entered, Errno> {
    own_thread::name(c"membound-guest");
    let strings = stack::Strings::of(request).ok_or(Errno::EINVAL)?;
    let executable = image::load(strings.path())?;
    let loader = match &executable.loader {
        Some(path) => Some(image::load(path.as_c_str().ok_or(Errno::EINVAL)?)?),
        None => None,
    };
    descriptors(&strings)?;
    set_aside(guest, request)?;
    let top = stack::make(request, &strings, &executable, loader.as_ref())?;
    alternate_stack()?;
    dispatch(guest)?;
    // What is sent to the process is for the program; of itself a guest is to hear.
    sys::set_mask(!trap::mask(&trap::OF_GUESTS) & !trap::mask(&trap::OF_CHANGES));
    Ok(Entered {
        stack: top,
        entry: loader.map_or(executable.entry, |loader| loader.entry),
    })
}

/// Descriptors of the guest's own: nothing to read, and what it writes goes where it was asked to.
fn descriptors(strings: &stack::Strings) -> Result<(), Errno> {
    const DUP2: usize = 33;
    const CREATE: usize = 0o1 | 0o100 | 0o1000;
    const READ_WRITE: usize = 2;
    // The table is this thread's own.
    own_thread::close_from(0)?;
    let open = |path: usize, flags: usize| {
        const AT_FDCWD: usize = usize::MAX - 99;
        const MODE: usize = 0o644;
        // SAFETY: the path is a string of the request's.
        let opened = unsafe { call(number::OPENAT, [AT_FDCWD, path, flags, MODE, 0, 0]) };
        check(opened)
    };
    let nowhere = c"/dev/null".as_ptr() as usize;
    open(nowhere, READ_WRITE)?;
    for (wanted, path) in [(1, strings.output), (2, strings.errors)] {
        // SAFETY: a string of the request's.
        let empty = unsafe { memory::c_string(path) }.is_empty();
        let same = wanted == 2 && !empty && {
            // SAFETY: as above.
            let [errors, output] =
                [strings.errors, strings.output].map(|it| unsafe { memory::c_string(it) });
            errors == output
        };
        let got = if same {
            // SAFETY: both are numbers of this thread's table.
            check(unsafe { call(DUP2, [1, 2, 0, 0, 0, 0]) })?
        } else if empty {
            open(nowhere, READ_WRITE)?
        } else {
            open(path, CREATE)?
        };
        if got != wanted {
            return Err(Errno::EIO);
        }
    }
    Ok(())
}

/// Sets addresses aside for the guest's break, which takes no memory before it is used.
fn set_aside(guest: &Guest, request: Request) -> Result<(), Errno> {
    let length = (request.get().memory as usize).max(1 << 20) & !4095;
    let begin = Scratch::untouched(length, Protection::None)?.keep() as u64;
    let [first, now, end] = &guest.heap;
    first.store(begin, Ordering::Relaxed);
    now.store(begin, Ordering::Relaxed);
    end.store(begin + length as u64, Ordering::Relaxed);
    Ok(())
}

/// Has every system call of the calling thread come to the agent, but those that it makes itself.
fn dispatch(guest: &'static Guest) -> Result<(), Errno> {
    const SET_DISPATCH: usize = 59;
    const ON: usize = 1;
    let [start, end] = assembly::own_range();
    let selector = (&raw const guest.selector) as usize;
    let length = (end - start) as usize;
    // SAFETY: the kernel reads a byte of the selector at each call, which is static.
    let set = unsafe {
        call(
            number::PRCTL,
            [SET_DISPATCH, ON, start as usize, length, selector, 0],
        )
    };
    check(set).map(drop)
}

/// Where a guest that has overflown its stack is heard.
fn alternate_stack() -> Result<(), Errno> {
    const SIGALTSTACK: usize = 131;
    let stack = Scratch::new(OWN_STACK_BYTES)?.keep();
    // The kernel's `stack_t`: begin, flags, length.
    let told = [stack, 0, OWN_STACK_BYTES];
    // SAFETY: the kernel reads the structure; the memory stays for as long as the thread lives.
    let set = unsafe { call(SIGALTSTACK, [(&raw const told) as usize, 0, 0, 0, 0, 0]) };
    check(set).map(drop)
}

/// The guest is over, and its thread with it. What it had mapped stays.
fn finish(guest: &Guest, state: GuestState, code: u32) -> ! {
    let request = Request(guest.request.load(Ordering::Acquire));
    request.set(state, code);
    guest.thread.store(0, Ordering::Release);
    own_thread::exit(0)
}

/// A signal that came to the calling thread: whether it was a guest's. A call is then made, and
/// its result put into `registers`; of a fault the guest has died.
pub(crate) fn on_signal(signal: u64, code: i32, registers: &mut Registers) -> bool {
    let Some(guest) = own() else {
        return false;
    };
    if signal == trap::SYS && code == DISPATCHED {
        calls::make(guest, registers);
        return true;
    }
    if trap::OF_GUESTS.contains(&signal) {
        finish(guest, GuestState::Killed, signal as u32);
    }
    false
}
