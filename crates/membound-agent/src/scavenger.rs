//! Scavengers: programs that run inside this process beside the program that it belongs to (see
//! [`membound_wire::ScavengerRequest`]).
//!
//! Each has a kernel thread that no libc knows. On it the agent maps the executable and its loader, lays
//! out a first stack as the kernel would, and enters the loader; from then on the scavenger runs by itself.
//! Its system calls come to the agent by SIGSYS, its faults by their signals: both end at most the
//! scavenger.

mod calls;
pub(crate) mod end;
mod image;
mod stack;
pub(crate) mod table;

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{Command, Refusal, ScavengerProcessState, ScavengerRequest};

use crate::failure::Failure;
use crate::scheduler::handover::{self, PendingRequest};
use crate::scheduler::home_thread;
use crate::signal_frame::{Arrived, Registers};
use crate::sys::{self, Errno, Protection, Scratch, call, check, number};
use crate::{memory, own_signals, own_thread, scheduler, trap};

use end::{finish, leave};
use table::{ALL, RESERVED, Request, Scavenger, USED, own};

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

/// Reports text that a scavenger has mapped and does not execute yet. The callers of this module give it,
/// since it holds a conversation, and a conversation may start a scavenger.
pub(crate) type ReportText = fn([u64; 2]);

/// Starts the scavenger whose [`ScavengerRequest`] is at `command.address`. `home_thread` is the main
/// function of its home thread, which calls [`live`].
pub(crate) fn start(
    command: &Command,
    home_thread: extern "C" fn(usize) -> !,
) -> Result<(), Failure> {
    let request = Request(command.address as usize);
    let whole = size_of::<ScavengerRequest>() as u64 + u64::from(request.get().strings);
    if command.address == 0 || whole > command.length {
        return Err(Failure::malformed());
    }
    trap::install(&own_signals::OF_SCAVENGERS)?;
    let (place, scavenger) = ALL
        .iter()
        .enumerate()
        .find(|(_, scavenger)| {
            let free =
                scavenger
                    .thread
                    .compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        })
        .ok_or_else(|| Failure::new(Errno::ENOSPC, Refusal::NoThread))?;
    USED.fetch_max(place + 1, Ordering::AcqRel);
    scavenger.request.store(request.0, Ordering::Release);
    // The thread has its own descriptors, working directory and file mode mask.
    let argument = (&raw const *scavenger) as usize;
    let started = own_thread::start(own_thread::THREAD, OWN_STACK_BYTES, home_thread, argument);
    started.map(drop).map_err(|errno| {
        scavenger.thread.store(0, Ordering::Release);
        Failure::new(errno, Refusal::NoThread)
    })
}

/// Runs on the home thread, whose argument is `scavenger`, up to the scavenger's first instruction.
pub(crate) fn live(scavenger: usize, report_text: ReportText) -> ! {
    // SAFETY: the argument is the entry of this thread's scavenger, which is static.
    let scavenger = unsafe { &*(scavenger as *const Scavenger) };
    let thread = sys::thread();
    scavenger.thread.store(thread, Ordering::Release);
    let request = scavenger.request();
    request
        .word(offset_of!(ScavengerRequest, thread))
        .store(thread, Ordering::Relaxed);
    match prepare(scavenger, request, report_text) {
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
            home_thread::live(scavenger, stack as u64, begin, |scavenger, registers| {
                calls::make(scavenger, registers, report_text);
            })
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

fn prepare(
    scavenger: &'static Scavenger,
    request: Request,
    report_text: ReportText,
) -> Result<Entered, Errno> {
    own_thread::name(c"membound-guest");
    let strings = stack::Strings::of(request).ok_or(Errno::EINVAL)?;
    let executable = image::load(strings.path())?;
    let loader = match &executable.loader {
        Some(path) => Some(image::load(path.as_c_str().ok_or(Errno::EINVAL)?)?),
        None => None,
    };
    // Before any other mapping is made near them: patches must lie within reach of their text.
    for image in [Some(&executable), loader.as_ref()].into_iter().flatten() {
        report_text(image.span);
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
    sys::set_mask(handover::MASK);
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

/// Handles the signal that ends scavengers, unless a run queue has this one, which will send it home.
pub(crate) fn on_end() {
    if let Some(scavenger) = own().filter(|scavenger| scavenger.home_thread.keep_at_home()) {
        leave(scavenger);
    }
}

/// Result of [`on_signal`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// The signal is not for a scavenger.
    No,
    /// The scavenger continues with the registers as they are now.
    Yes,
    /// The handler continues at this address: the scavenger has left this thread.
    Left(u64),
}

/// Handles a signal of the calling thread if it concerns a scavenger: makes its system call and puts the
/// result into `registers`, or ends it for a fault.
pub(crate) fn on_signal(
    arrived: Arrived,
    code: i32,
    registers: &mut Registers,
    report_text: ReportText,
) -> Heard {
    let signal = arrived.signal;
    let calls = signal == own_signals::SYS && code == DISPATCHED;
    let pending_request = if calls {
        PendingRequest::Call
    } else {
        PendingRequest::Die(signal as u32)
    };
    // Signals that a process has sent (`code` not positive) are for the program.
    let resume = if code > 0 {
        scheduler::leave::on_trap(arrived, pending_request)
    } else {
        scheduler::leave::on_signal(arrived)
    };
    if let Some(go_on) = resume {
        return Heard::Left(go_on);
    }
    // Such a signal may arrive at any thread, and is for the program.
    let Some(scavenger) = own().filter(|_| code > 0) else {
        return Heard::No;
    };
    if calls {
        // The call may wait for any time, and must still be ended by SIGSYS.
        sys::set_mask(!own_signals::mask(&[own_signals::SYS]));
        calls::make(scavenger, registers, report_text);
        return Heard::Yes;
    }
    finish(scavenger, ScavengerProcessState::Killed, signal as u32)
}
