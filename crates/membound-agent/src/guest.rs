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

use membound_wire::{Command, Event, GuestPlace, GuestRequest, GuestState, Refusal};

use crate::control::Failure;
use crate::handlers::Registers;
use crate::lanes::Context;
use crate::lanes::berth::{self, Berth, Errand};
use crate::lanes::leave::Arrived;
use crate::sys::{self, Errno, Protection, Scratch, call, check, number};
use crate::{control, lanes, memory, own_thread, trap};

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
    // With the entry on the stack.
    ".globl membound_guest_begin",
    ".hidden membound_guest_begin",
    "membound_guest_begin:",
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
    fn membound_guest_begin();
}

/// How often a held guest looks whether it may go on.
const HELD_LOOK_NS: u64 = 1_000_000;

/// A guest as the agent knows it.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Its thread; 0: the place is free.
    thread: AtomicU32,
    /// Its request.
    request: AtomicUsize,
    /// The break: begin, present end, and end of what was set aside.
    heap: [AtomicU64; 3],
    /// What its calls are dispatched by, where there are no lanes: 1, to the agent.
    selector: AtomicU32,
    /// What its thread has of it, where there are.
    berth: Berth,
}

impl Guest {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            request: AtomicUsize::new(0),
            heap: [const { AtomicU64::new(0) }; 3],
            // Zeros take no room in the object.
            selector: AtomicU32::new(0),
            berth: Berth::new(),
        }
    }

    pub(crate) fn berth(&'static self) -> &'static Berth {
        &self.berth
    }

    fn request(&self) -> Request {
        Request(self.request.load(Ordering::Acquire))
    }

    /// The guest whose berth this is.
    pub(crate) fn of(berth: &'static Berth) -> &'static Self {
        let address = (&raw const *berth) as usize - offset_of!(Self, berth);
        // SAFETY: there are no berths but those of guests, which are static.
        unsafe { &*(address as *const Self) }
    }

    /// Where it is to be, as a number.
    fn place(&self) -> u32 {
        let request = self.request();
        // A place that is being filled has no request yet.
        if request.0 == 0 {
            return GuestPlace::Lanes as u32;
        }
        let word = request.word(offset_of!(GuestRequest, place));
        word.load(Ordering::Relaxed)
    }

    /// Whether it is to run on its own thread, and no lane is to have it.
    pub(crate) fn is_beside(&self) -> bool {
        self.place() == GuestPlace::Own as u32
    }

    /// Whether it is to wait.
    pub(crate) fn is_held(&self) -> bool {
        self.place() == GuestPlace::Held as u32
    }

    /// Waits for as long as it is held. Its own thread is between two turns of its own.
    pub(crate) fn wait_while_held(&self) {
        while self.is_held() && !lanes::ending::is_near() {
            sys::nap(HELD_LOOK_NS);
        }
    }

    /// Whether no lane is to have it.
    pub(crate) fn keeps_off_lanes(&'static self) -> bool {
        self.place() != GuestPlace::Lanes as u32 || self.berth.is_kept() || lanes::ending::is_near()
    }

    /// Adds one to a word of its request.
    pub(crate) fn count(&self, offset: usize) {
        self.request().long(offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to a word of its request.
    pub(crate) fn add(&self, offset: usize, more: u64) {
        self.request()
            .long(offset)
            .fetch_add(more, Ordering::Relaxed);
    }
}

static ALL: [Guest; GUESTS] = [const { Guest::new() }; GUESTS];
/// Places of it that were ever used: the first so many.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The places that were ever used: to look at all would take from the caches what the program has there.
fn used() -> &'static [Guest] {
    ALL.get(..USED.load(Ordering::Acquire)).unwrap_or(&ALL)
}
/// A place that somebody is filling.
const TAKEN: u32 = u32::MAX;

/// The guest whose thread calls.
fn own() -> Option<&'static Guest> {
    let thread = sys::thread();
    used()
        .iter()
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
    let (place, guest) = ALL
        .iter()
        .enumerate()
        .find(|(_, guest)| {
            let free = guest
                .thread
                .compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        })
        .ok_or_else(|| Failure::new(Errno::ENOSPC, Refusal::NoThread))?;
    USED.fetch_max(place + 1, Ordering::AcqRel);
    guest.request.store(request.0, Ordering::Release);
    // Descriptors, directory and mask of files are its own.
    let argument = (&raw const *guest) as usize;
    let started = own_thread::start(own_thread::THREAD, OWN_STACK_BYTES, live, argument);
    started.map(drop).map_err(|errno| {
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
    let request = guest.request();
    request
        .word(offset_of!(GuestRequest, thread))
        .store(thread, Ordering::Relaxed);
    match prepare(guest, request) {
        Ok(entered) => {
            request.set(GuestState::Runs, 0);
            if !entered.has_lanes {
                // SAFETY: loader and stack were made for this.
                unsafe { membound_guest_enter(entered.stack, entered.entry) }
            }
            let stack = entered.stack - 8;
            // SAFETY: the stack was made for this.
            unsafe { memory::put(stack, entered.entry) };
            let begin = membound_guest_begin as *const () as u64;
            berth::live(guest, stack as u64, begin)
        }
        Err(errno) => finish(guest, GuestState::Failed, errno.0),
    }
}

/// How a guest begins.
#[derive(Clone, Copy, Debug)]
struct Entered {
    stack: usize,
    entry: usize,
    has_lanes: bool,
}

fn prepare(guest: &'static Guest, request: Request) -> Result<Entered, Errno> {
    own_thread::name(c"membound-guest");
    let strings = stack::Strings::of(request).ok_or(Errno::EINVAL)?;
    let executable = image::load(strings.path())?;
    let loader = match &executable.loader {
        Some(path) => Some(image::load(path.as_c_str().ok_or(Errno::EINVAL)?)?),
        None => None,
    };
    // Before anything else is mapped near them: patches lie within reach of what they are for.
    for image in [Some(&executable), loader.as_ref()].into_iter().flatten() {
        tell_of_text(image.span);
    }
    descriptors(&strings)?;
    set_aside(guest, request)?;
    let number = (&raw const *guest as usize - (&raw const ALL) as usize) / size_of::<Guest>();
    let top = stack::make(request, number, &strings, &executable, loader.as_ref())?;
    // Where a guest that has overflown its stack is heard.
    let alternate = own_thread::set_alternate_stack(OWN_STACK_BYTES)?;
    guest.berth.set_alternate_stack(alternate, OWN_STACK_BYTES);
    let has_lanes = berth::settle(&guest.berth)?;
    if !has_lanes {
        guest.selector.store(1, Ordering::Relaxed);
        own_thread::dispatch_calls((&raw const guest.selector) as usize)?;
    }
    // What is sent to the process is for the program; of itself a guest is to hear.
    sys::set_mask(berth::MASK);
    Ok(Entered {
        has_lanes,
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
    // What is larger than this is for other mappings.
    const MOST: usize = 64 << 20;
    let length = (request.get().memory as usize).clamp(1 << 20, MOST) & !4095;
    let begin = Scratch::untouched(length, Protection::None)?.keep() as u64;
    let [first, now, end] = &guest.heap;
    first.store(begin, Ordering::Relaxed);
    now.store(begin, Ordering::Relaxed);
    end.store(begin + length as u64, Ordering::Relaxed);
    Ok(())
}

/// Lets the launcher see text that a guest has mapped and does not run yet.
fn tell_of_text(span: [u64; 2]) {
    if lanes::board().is_some() {
        // Without a launcher it has no yields, and runs on its own thread.
        let _ = control::converse(Event::Guest, span);
    }
}

/// The guest is over, and its thread with it. What it had mapped stays.
fn finish(guest: &Guest, state: GuestState, code: u32) -> ! {
    end(guest, || guest.request().set(state, code))
}

/// The guest whose thread this is has come as far as it could. What it had mapped stays.
pub(crate) fn leave(guest: &Guest) -> ! {
    end(guest, || {})
}

/// Ends the guest's thread, once the launcher has been told how.
fn end(guest: &Guest, tell: impl FnOnce()) -> ! {
    guest.berth.clear();
    guest
        .request()
        .long(offset_of!(GuestRequest, cpu_ns))
        .store(sys::thread_cpu_ns(), Ordering::Relaxed);
    tell();
    guest.thread.store(0, Ordering::Release);
    own_thread::exit(0)
}

/// A signal that has the guest end whose thread this is: not while a lane has it, which sends it home.
pub(crate) fn on_end() {
    if let Some(guest) = own().filter(|guest| guest.berth.stays_home()) {
        leave(guest);
    }
}

/// What became of a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// It is none of a guest's.
    No,
    /// The guest goes on with what its registers hold now.
    Yes,
    /// The handler is to go on there: the guest has left this thread.
    Left(u64),
}

/// A signal that came to the calling thread. A guest's call is made, and its result put into
/// `registers`; of a fault the guest has died.
pub(crate) fn on_signal(arrived: Arrived, code: i32, registers: &mut Registers) -> Heard {
    let signal = arrived.signal;
    let calls = signal == trap::SYS && code == DISPATCHED;
    let errand = if calls {
        Errand::Call
    } else {
        Errand::Die(signal as u32)
    };
    // What somebody sends is for the program.
    let left = if code > 0 {
        lanes::leave::on_trap(arrived, errand)
    } else {
        lanes::leave::on_signal(arrived)
    };
    if let Some(go_on) = left {
        return Heard::Left(go_on);
    }
    // What somebody sends may come to any thread, and is for the program.
    let Some(guest) = own().filter(|_| code > 0) else {
        return Heard::No;
    };
    if calls {
        // It may wait there for as long as it likes, and is yet to hear of its end.
        sys::set_mask(!trap::mask(&[trap::SYS]));
        calls::make(guest, registers);
        return Heard::Yes;
    }
    finish(guest, GuestState::Killed, signal as u32)
}

/// Makes a call for a guest whose thread this is.
pub(crate) fn make_call(guest: &'static Guest, registers: &mut Registers) {
    calls::make(guest, registers);
}

/// The guest whose thread this is, is over.
pub(crate) fn die(guest: &Guest, state: GuestState, code: u32) -> ! {
    finish(guest, state, code)
}

/// The context of a guest that lies ready, taken for a lane.
pub(crate) fn take_ready() -> Option<&'static Context> {
    used()
        .iter()
        .filter(|guest| guest.thread.load(Ordering::Relaxed) != 0 && !guest.keeps_off_lanes())
        .find_map(|guest| guest.berth.take())
}

/// Guests that lie ready.
pub(crate) fn count_ready() -> u32 {
    let mut count = 0;
    each_berth(|_, berth| count += u32::from(berth.is_ready()));
    count
}

/// Whether every guest has ended.
pub(crate) fn none_left() -> bool {
    used()
        .iter()
        .all(|guest| guest.thread.load(Ordering::Acquire) == 0)
}

/// Calls `visit` with the thread of every guest.
pub(crate) fn each_thread(mut visit: impl FnMut(u32)) {
    each_berth(|thread, _| visit(thread));
}

/// Whether there is a guest that is not over.
pub(crate) fn any_lives() -> bool {
    let thread = |guest: &Guest| guest.thread.load(Ordering::Relaxed);
    used().iter().any(|guest| thread(guest) != 0)
}

/// Calls `visit` with the own thread and the berth of every guest.
pub(crate) fn each_berth(mut visit: impl FnMut(u32, &'static Berth)) {
    for guest in used() {
        let thread = guest.thread.load(Ordering::Relaxed);
        if thread != 0 && thread != TAKEN {
            visit(thread, guest.berth());
        }
    }
}

/// Whether `thread` is a guest's.
pub(crate) fn is_own_thread(thread: u32) -> bool {
    used()
        .iter()
        .any(|guest| guest.thread.load(Ordering::Relaxed) == thread)
}
