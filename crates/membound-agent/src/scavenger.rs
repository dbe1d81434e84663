//! Scavengers: programs that run inside this process beside the program that it belongs to (see
//! [`membound_wire::ScavengerRequest`]).
//!
//! Each has a kernel thread that no libc knows. On it the agent maps the executable and its loader, lays
//! out a first stack as the kernel would, and enters the loader; from then on the scavenger runs by itself.
//! Its system calls come to the agent by SIGSYS, its faults by their signals: both end at most the
//! scavenger.

mod calls;
mod image;
mod stack;

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{
    Command, Event, Refusal, ScavengerPlacement, ScavengerProcessState, ScavengerRequest,
};

use crate::failure::Failure;
use crate::handlers::Registers;
use crate::scheduler::Context;
use crate::scheduler::home_thread::{self, HomeThread, PendingRequest};
use crate::scheduler::leave::Arrived;
use crate::sys::{self, Errno, Protection, Scratch, call, check, number};
use crate::{control, memory, own_thread, scheduler, trap};

/// Most scavengers at one time.
const MAX_SCAVENGERS: usize = 1024;
/// Bytes of the agent's stack on a home thread, used before the scavenger has its own.
const OWN_STACK_BYTES: usize = 64 << 10;
/// `si_code` of a system call that was dispatched to the agent (`SYS_USER_DISPATCH`).
const DISPATCHED: i32 = 2;

global_asm!(
    ".pushsection .text.membound_scavenger, \"ax\", @progbits",
    // rdi: stack pointer, rsi: entry. All registers are zero, as when the kernel enters a program.
    ".globl membound_scavenger_enter",
    ".hidden membound_scavenger_enter",
    ".type membound_scavenger_enter, @function",
    "membound_scavenger_enter:",
    "mov rsp, rdi",
    "push rsi",
    // Entered with the entry address on the stack.
    ".globl membound_scavenger_begin",
    ".hidden membound_scavenger_begin",
    "membound_scavenger_begin:",
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
    ".size membound_scavenger_enter, . - membound_scavenger_enter",
    ".popsection",
);

unsafe extern "C" {
    fn membound_scavenger_enter(stack: usize, entry: usize) -> !;
    fn membound_scavenger_begin();
}

/// Nanoseconds between two checks of a held scavenger whether it may go on.
const HELD_POLL_INTERVAL_NS: u64 = 1_000_000;

/// A scavenger, as the agent knows it.
#[derive(Debug)]
pub(crate) struct Scavenger {
    /// Its home thread; 0: the entry is free; [`TAKEN`]: it is being filled.
    thread: AtomicU32,
    /// Address of its [`ScavengerRequest`]; 0: none yet.
    request: AtomicUsize,
    /// The break: start, present end, and end of the reserved addresses.
    heap: [AtomicU64; 3],
    /// Dispatch selector of its thread in a process without run queues: 1, all calls go to the agent.
    selector: AtomicU32,
    /// State for handing it over, in a process with run queues.
    home_thread: HomeThread,
}

impl Scavenger {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            request: AtomicUsize::new(0),
            heap: [const { AtomicU64::new(0) }; 3],
            // Zeros take no room in the object file.
            selector: AtomicU32::new(0),
            home_thread: HomeThread::new(),
        }
    }

    pub(crate) fn home_thread(&'static self) -> &'static HomeThread {
        &self.home_thread
    }

    fn request(&self) -> Request {
        Request(self.request.load(Ordering::Acquire))
    }

    /// The scavenger that this `HomeThread` is part of.
    pub(crate) fn of(home_thread: &'static HomeThread) -> &'static Self {
        let address = (&raw const *home_thread) as usize - offset_of!(Self, home_thread);
        // SAFETY: every `HomeThread` is part of a `Scavenger`, and these are static.
        unsafe { &*(address as *const Self) }
    }

    /// Where it is to run: a [`ScavengerPlacement`] as its number.
    fn place(&self) -> u32 {
        let request = self.request();
        // An entry that is being filled has no request yet.
        if request.0 == 0 {
            return ScavengerPlacement::RunQueues as u32;
        }
        let word = request.word(offset_of!(ScavengerRequest, place));
        word.load(Ordering::Relaxed)
    }

    /// True if it is to run on its home thread, and no run queue may have it.
    pub(crate) fn is_beside(&self) -> bool {
        self.place() == ScavengerPlacement::Own as u32
    }

    /// True if it is to wait.
    pub(crate) fn is_held(&self) -> bool {
        self.place() == ScavengerPlacement::Held as u32
    }

    /// Waits while it is held. Called on its home thread, between two slices there.
    pub(crate) fn wait_while_held(&self) {
        while self.is_held() && !scheduler::ending::is_near() {
            sys::nap(HELD_POLL_INTERVAL_NS);
        }
    }

    /// True if no run queue may have it.
    pub(crate) fn keeps_off_run_queues(&'static self) -> bool {
        self.place() != ScavengerPlacement::RunQueues as u32
            || self.home_thread.is_kept()
            || scheduler::ending::is_near()
    }

    /// Adds one to a counter of its request.
    pub(crate) fn count(&self, offset: usize) {
        self.request().long(offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to a counter of its request.
    pub(crate) fn add(&self, offset: usize, more: u64) {
        self.request()
            .long(offset)
            .fetch_add(more, Ordering::Relaxed);
    }
}

static ALL: [Scavenger; MAX_SCAVENGERS] = [const { Scavenger::new() }; MAX_SCAVENGERS];
/// Number of entries of [`ALL`] that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The entries that were ever used: reading all of them would evict the program's lines from the caches.
fn used() -> &'static [Scavenger] {
    ALL.get(..USED.load(Ordering::Acquire)).unwrap_or(&ALL)
}
/// Thread number of an entry that is being filled.
const TAKEN: u32 = u32::MAX;

/// The scavenger whose home thread is the calling one.
fn own() -> Option<&'static Scavenger> {
    let thread = sys::thread();
    used()
        .iter()
        .find(|scavenger| scavenger.thread.load(Ordering::Acquire) == thread)
}

/// Memory that launcher and agent share for one scavenger, by its address.
#[derive(Clone, Copy, Debug)]
struct Request(usize);

impl Request {
    fn get(self) -> ScavengerRequest {
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

    fn set(self, state: ScavengerProcessState, code: u32) {
        // The code before the state: a reader that sees the state sees its code.
        self.word(offset_of!(ScavengerRequest, code))
            .store(code, Ordering::Relaxed);
        let word = self.word(offset_of!(ScavengerRequest, state));
        word.store(state as u32, Ordering::Release);
        sys::wake_all(word);
    }

    /// Address of the first string.
    const fn strings(self) -> usize {
        self.0 + size_of::<ScavengerRequest>()
    }
}

/// Starts the scavenger whose [`ScavengerRequest`] is at `command.address`.
pub(crate) fn start(command: &Command) -> Result<(), Failure> {
    let request = Request(command.address as usize);
    let whole = size_of::<ScavengerRequest>() as u64 + u64::from(request.get().strings);
    if command.address == 0 || whole > command.length {
        return Err(Failure::malformed());
    }
    trap::install(&trap::OF_SCAVENGERS)?;
    let (place, scavenger) = ALL
        .iter()
        .enumerate()
        .find(|(_, scavenger)| {
            let free =
                scavenger
                    .thread
                    .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        })
        .ok_or_else(|| Failure::new(Errno::ENOSPC, Refusal::NoThread))?;
    USED.fetch_max(place + 1, Ordering::AcqRel);
    scavenger.request.store(request.0, Ordering::Release);
    // The thread has its own descriptors, working directory and file mode mask.
    let argument = (&raw const *scavenger) as usize;
    let started = own_thread::start(own_thread::THREAD, OWN_STACK_BYTES, live, argument);
    started.map(drop).map_err(|errno| {
        scavenger.thread.store(0, Ordering::Release);
        Failure::new(errno, Refusal::NoThread)
    })
}

/// Runs on the home thread, up to the scavenger's first instruction.
extern "C" fn live(scavenger: usize) -> ! {
    // SAFETY: the argument is the entry of this thread's scavenger, which is static.
    let scavenger = unsafe { &*(scavenger as *const Scavenger) };
    let thread = sys::thread();
    scavenger.thread.store(thread, Ordering::Release);
    let request = scavenger.request();
    request
        .word(offset_of!(ScavengerRequest, thread))
        .store(thread, Ordering::Relaxed);
    match prepare(scavenger, request) {
        Ok(entered) => {
            request.set(ScavengerProcessState::Runs, 0);
            if !entered.has_run_queues {
                // SAFETY: loader and stack were made for this.
                unsafe { membound_scavenger_enter(entered.stack, entered.entry) }
            }
            let stack = entered.stack - 8;
            // SAFETY: the stack was made for this.
            unsafe { memory::put(stack, entered.entry) };
            let begin = membound_scavenger_begin as *const () as u64;
            home_thread::live(scavenger, stack as u64, begin)
        }
        Err(errno) => finish(scavenger, ScavengerProcessState::Failed, errno.0),
    }
}

/// How a scavenger starts.
#[derive(Clone, Copy, Debug)]
struct Entered {
    stack: usize,
    entry: usize,
    has_run_queues: bool,
}

fn prepare(scavenger: &'static Scavenger, request: Request) -> Result<Entered, Errno> {
    own_thread::name(c"membound-guest");
    let strings = stack::Strings::of(request).ok_or(Errno::EINVAL)?;
    let executable = image::load(strings.path())?;
    let loader = match &executable.loader {
        Some(path) => Some(image::load(path.as_c_str().ok_or(Errno::EINVAL)?)?),
        None => None,
    };
    // Before any other mapping is made near them: patches must lie within reach of their text.
    for image in [Some(&executable), loader.as_ref()].into_iter().flatten() {
        tell_of_text(image.span);
    }
    descriptors(&strings)?;
    set_aside(scavenger, request)?;
    let number =
        (&raw const *scavenger as usize - (&raw const ALL) as usize) / size_of::<Scavenger>();
    let top = stack::make(request, number, &strings, &executable, loader.as_ref())?;
    // Faults of a scavenger whose stack has overflown are handled on the alternate stack.
    let alternate = own_thread::set_alternate_stack(OWN_STACK_BYTES)?;
    scavenger
        .home_thread
        .set_alternate_stack(alternate, OWN_STACK_BYTES);
    let has_run_queues = home_thread::settle(&scavenger.home_thread)?;
    if !has_run_queues {
        scavenger.selector.store(1, Ordering::Relaxed);
        own_thread::dispatch_calls((&raw const scavenger.selector) as usize)?;
    }
    // Signals sent to the process are for the program; the scavenger's own faults must arrive here.
    sys::set_mask(home_thread::MASK);
    Ok(Entered {
        has_run_queues,
        stack: top,
        entry: loader.map_or(executable.entry, |loader| loader.entry),
    })
}

/// Opens the scavenger's descriptors: nothing to read, and its output goes to the paths of the request.
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

/// Reserves addresses for the scavenger's break, which take no memory before they are used.
fn set_aside(scavenger: &Scavenger, request: Request) -> Result<(), Errno> {
    // Larger requests leave the rest for other mappings.
    const MAX_BREAK_BYTES: usize = 64 << 20;
    let length = (request.get().memory as usize).clamp(1 << 20, MAX_BREAK_BYTES) & !4095;
    let begin = Scratch::untouched(length, Protection::None)?.keep() as u64;
    let [first, now, end] = &scavenger.heap;
    first.store(begin, Ordering::Relaxed);
    now.store(begin, Ordering::Relaxed);
    end.store(begin + length as u64, Ordering::Relaxed);
    Ok(())
}

/// Reports text to the launcher that a scavenger has mapped and does not execute yet.
fn tell_of_text(span: [u64; 2]) {
    if scheduler::control_page().is_some() {
        // Without a launcher the text has no yields, and the scavenger runs on its home thread.
        let _ = control::converse(Event::Scavenger, span);
    }
}

/// Ends the scavenger and its home thread with this state and code. Its mappings stay.
fn finish(scavenger: &Scavenger, state: ScavengerProcessState, code: u32) -> ! {
    end(scavenger, || scavenger.request().set(state, code))
}

/// Ends the scavenger's home thread without a result: there was no time to finish. Its mappings stay.
pub(crate) fn leave(scavenger: &Scavenger) -> ! {
    end(scavenger, || {})
}

/// Ends the home thread, after `tell` has reported the result to the launcher.
fn end(scavenger: &Scavenger, tell: impl FnOnce()) -> ! {
    scavenger.home_thread.clear();
    scavenger
        .request()
        .long(offset_of!(ScavengerRequest, cpu_ns))
        .store(sys::thread_cpu_ns(), Ordering::Relaxed);
    tell();
    scavenger.thread.store(0, Ordering::Release);
    own_thread::exit(0)
}

/// Handles the signal that ends scavengers, unless a run queue has this one, which will send it home.
pub(crate) fn on_end() {
    if let Some(scavenger) = own().filter(|scavenger| scavenger.home_thread.stays_home()) {
        leave(scavenger);
    }
}

/// Result of [`on_signal`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// The signal is not for a scavenger.
    No,
    /// The scavenger goes on with the registers as they are now.
    Yes,
    /// The handler continues at this address: the scavenger has left this thread.
    Left(u64),
}

/// Handles a signal of the calling thread if it concerns a scavenger: makes its system call and puts the
/// result into `registers`, or ends it for a fault.
pub(crate) fn on_signal(arrived: Arrived, code: i32, registers: &mut Registers) -> Heard {
    let signal = arrived.signal;
    let calls = signal == trap::SYS && code == DISPATCHED;
    let pending_request = if calls {
        PendingRequest::Call
    } else {
        PendingRequest::Die(signal as u32)
    };
    // Signals that a process has sent (`code` not positive) are for the program.
    let left = if code > 0 {
        scheduler::leave::on_trap(arrived, pending_request)
    } else {
        scheduler::leave::on_signal(arrived)
    };
    if let Some(go_on) = left {
        return Heard::Left(go_on);
    }
    // Such a signal may arrive at any thread, and is for the program.
    let Some(scavenger) = own().filter(|_| code > 0) else {
        return Heard::No;
    };
    if calls {
        // The call may wait for any time, and must still be ended by SIGSYS.
        sys::set_mask(!trap::mask(&[trap::SYS]));
        calls::make(scavenger, registers);
        return Heard::Yes;
    }
    finish(scavenger, ScavengerProcessState::Killed, signal as u32)
}

/// Makes the system call in `registers` for the scavenger of the calling home thread.
pub(crate) fn make_call(scavenger: &'static Scavenger, registers: &mut Registers) {
    calls::make(scavenger, registers);
}

/// Ends the scavenger of the calling home thread.
pub(crate) fn die(scavenger: &Scavenger, state: ScavengerProcessState, code: u32) -> ! {
    finish(scavenger, state, code)
}

/// Takes the context of a scavenger that lies ready, for a run queue; `None`: none lies ready.
pub(crate) fn take_ready() -> Option<&'static Context> {
    used()
        .iter()
        .filter(|scavenger| {
            scavenger.thread.load(Ordering::Relaxed) != 0 && !scavenger.keeps_off_run_queues()
        })
        .find_map(|scavenger| scavenger.home_thread.take())
}

/// Number of scavengers that lie ready.
pub(crate) fn count_ready() -> u32 {
    let mut count = 0;
    each_home_thread(|_, home_thread| count += u32::from(home_thread.is_ready()));
    count
}

/// True if every scavenger has ended.
pub(crate) fn none_left() -> bool {
    used()
        .iter()
        .all(|scavenger| scavenger.thread.load(Ordering::Acquire) == 0)
}

/// Calls `visit` with the number of every home thread.
pub(crate) fn each_thread(mut visit: impl FnMut(u32)) {
    each_home_thread(|thread, _| visit(thread));
}

/// True if any scavenger has not ended.
pub(crate) fn any_lives() -> bool {
    let thread = |scavenger: &Scavenger| scavenger.thread.load(Ordering::Relaxed);
    used().iter().any(|scavenger| thread(scavenger) != 0)
}

/// Calls `visit` with every scavenger's home thread and `HomeThread`.
pub(crate) fn each_home_thread(mut visit: impl FnMut(u32, &'static HomeThread)) {
    for scavenger in used() {
        let thread = scavenger.thread.load(Ordering::Relaxed);
        if thread != 0 && thread != TAKEN {
            visit(thread, scavenger.home_thread());
        }
    }
}

/// True if `thread` is a home thread.
pub(crate) fn is_own_thread(thread: u32) -> bool {
    used()
        .iter()
        .any(|scavenger| scavenger.thread.load(Ordering::Relaxed) == thread)
}
