//! One conversation with the launcher: connects, reports an event, and obeys commands until `Go`.
//!
//! Signals are blocked meanwhile, and the socket is closed at the end, so that a handler of the program
//! sees neither an open descriptor nor an unfinished conversation.
//!
//! The main functions of the control thread and of home threads are here too, since they hold conversations
//! and are started in one.

use core::sync::atomic::Ordering;

use membound_wire::{
    Action, CHAINED, Command, Event, HELLO_MAGIC, Hello, HelloFlags, PROTOCOL_VERSION, Refusal,
    Reply, TextMode,
};

use crate::conversation::{connect, receive, send, tries};
use crate::failure::Failure;
use crate::listen::{
    DOORBELL, Doorbell, ENDING, Heard, OWN_TABLE, STARTING, THREAD, mark, set_mark, shorten_slice,
};
use crate::memory::{self, bytes_of};
use crate::scheduler::page;
use crate::settings::{Settings, loader_state, settings};
use crate::sys::{Descriptor, Errno, Quiet, call, check, number};
use crate::{
    allocations, areas, assembly, handlers, inside, listen, live, loader, own_thread, quiesce,
    requests, sample_rings, scavenger, scheduler, sys, text, threads, tick, timers, trial, unwind,
};

const STACK_BYTES: usize = 256 << 10;
/// Nanoseconds between two checks whether only this thread is left: a program that ends its only thread by
/// the bare `exit` call, and not its process, expects the process to end.
const EXIT_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Nanoseconds from a change of the loader's list to its report.
const LOADER_PAUSE_NS: u64 = 2_000_000;

/// Reports `event` to the launcher and carries out its commands.
///
/// # Errors
///
/// The launcher could not be reached, or went away.
pub(crate) fn converse(event: Event, range: [u64; 2]) -> Result<(), Errno> {
    converse_with_flags(event, range, 0)
}

/// As [`converse`], with further [`HelloFlags`].
pub(crate) fn converse_with_flags(event: Event, range: [u64; 2], flags: u32) -> Result<(), Errno> {
    let settings = settings().ok_or(Errno::EINVAL)?;
    let mut quiet = Quiet::new();
    let socket = connect(settings.control_path())?;
    let hello = hello(event, range, flags, settings);
    send(&socket, bytes_of(&hello))?;
    let mut carried_out = true;
    let tries = tries();
    loop {
        let (command, descriptor) = receive(&socket, tries)?;
        let is_chained = command.action & CHAINED != 0;
        let action = Action::from_number(command.action & !CHAINED);
        if action == Some(Action::Go) {
            return Ok(());
        }
        let mut reply = Reply::default();
        let outcome = if is_chained && !carried_out {
            Err(Failure::from(Errno::ECANCELED))
        } else {
            obey(action, &command, descriptor.as_ref(), &mut quiet)
        };
        carried_out = outcome.is_ok();
        match outcome {
            Ok(count) => reply.count = count,
            Err(failure) => {
                reply.errno = failure.errno.0;
                reply.detail = failure.refusal as u32;
            }
        }
        reply.stop_ns = quiesce::take_longest_stop_ns();
        reply.changing_ns = quiesce::take_changing_ns();
        send(&socket, bytes_of(&reply))?;
    }
}

fn hello(event: Event, range: [u64; 2], flags: u32, settings: &Settings) -> Hello {
    let hook = loader_state(settings).hook;
    let mut loader_hook_bytes = [0; 16];
    if hook != 0 {
        // SAFETY: the loader's function is mapped readable, and in every loader text follows it, so that no
        // unmapped page begins within these bytes.
        loader_hook_bytes = unsafe { memory::get(hook as usize) };
    }
    Hello {
        magic: HELLO_MAGIC,
        version: PROTOCOL_VERSION,
        event: event as u32,
        flags: if threads::many_threads() {
            flags | HelloFlags::THREADS
        } else {
            flags
        },
        pid: sys::process(),
        tid: sys::thread(),
        loader_hook: hook,
        loader_hook_bytes,
        range,
        entries: inside::addresses(),
        agent: assembly::own_range(),
    }
}

fn obey(
    action: Option<Action>,
    command: &Command,
    descriptor: Option<&Descriptor>,
    quiet: &mut Quiet,
) -> Result<u64, Failure> {
    match action {
        // A number that is no action, or the one that ends the conversation.
        None | Some(Action::Go) => Err(Failure::malformed()),
        Some(Action::Map) => map(command, descriptor),
        Some(Action::Unmap) => unmap(command),
        Some(Action::Text) => {
            let file =
                descriptor.ok_or_else(|| Failure::new(Errno::EINVAL, Refusal::NoDescriptor))?;
            let batch = text::Batch::open(command, file)?;
            match TextMode::from_number(command.mode) {
                Some(TextMode::Quiet) => text::replace(&batch),
                Some(TextMode::Live) => live::replace(&batch),
                None => Err(Failure::malformed()),
            }
        }
        Some(Action::Register) => areas::register(command).map(|()| 0),
        Some(Action::Forget) => {
            areas::forget(command.address);
            Ok(0)
        }
        Some(Action::Listen) => {
            if command.mode != 0 {
                loader::report_from_control_thread();
            }
            start(command.address).map(|()| 0)
        }
        Some(Action::AdoptSignals) => Ok(handlers::adopt()),
        Some(Action::Unwind) => unwind::register(command).map(|()| 0),
        Some(Action::ForgetUnwind) => {
            unwind::forget(
                command.address,
                command.address.saturating_add(command.length),
            );
            Ok(0)
        }
        Some(Action::Allocations) => allocations::begin(command).map(|()| 0),
        Some(Action::Scavenger) => scavenger::start(command, live_home_thread).map(|()| 0),
        Some(Action::RunQueues) => scheduler::begin(command).map(|()| 0),
        Some(Action::Requests) => requests::begin(command).map(|()| 0),
        Some(Action::Hold) => trial::run(command.address),
        Some(Action::Timers) => timers::begin(command, quiet, tick::address()),
        Some(Action::Rings) => {
            sample_rings::use_rings(command.address);
            Ok(0)
        }
    }
}

fn map(command: &Command, descriptor: Option<&Descriptor>) -> Result<u64, Failure> {
    const PRIVATE: usize = 2;
    const SHARED: usize = 1;
    const ANONYMOUS: usize = 0x20;
    const FIXED_NOREPLACE: usize = 0x10_0000;
    let sharing = if command.mode & membound_wire::Protection::SHARED != 0 {
        SHARED
    } else {
        PRIVATE
    };
    let filled = command.mode & membound_wire::Protection::FILLED != 0;
    let (file, backing) = descriptor
        .filter(|_| !filled)
        .map_or((usize::MAX, ANONYMOUS), |file| (file.raw(), 0));
    let address = command.address as usize;
    let length = command.length as usize;
    // SAFETY: the flag makes the kernel refuse a place that is in use.
    let result = unsafe {
        call(
            number::MMAP,
            [
                address,
                length,
                (command.mode & 7) as usize,
                sharing | backing | FIXED_NOREPLACE,
                file,
                if filled { 0 } else { command.offset as usize },
            ],
        )
    };
    let got = check(result)?;
    if got != address {
        // Kernels before 4.17 do not know the flag and take the address as a hint.
        // SAFETY: the mapping is new and not used yet.
        let _ = unsafe { call(number::MUNMAP, [got, length, 0, 0, 0, 0]) };
        return Err(Failure::new(Errno::EEXIST, Refusal::Elsewhere));
    }
    sys::count_mapped(length.cast_signed());
    if filled {
        text::fill(command, descriptor).inspect_err(|_| {
            // The first error is the one to report.
            let _ = unmap(command);
        })?;
    }
    Ok(0)
}

fn unmap(command: &Command) -> Result<u64, Failure> {
    // SAFETY: the launcher names only mappings of its own in which no thread runs any more.
    let result = unsafe {
        call(
            number::MUNMAP,
            [
                command.address as usize,
                command.length as usize,
                0,
                0,
                0,
                0,
            ],
        )
    };
    check(result)?;
    sys::count_mapped(-(command.length as usize).cast_signed());
    Ok(0)
}

/// Main function of a scavenger's home thread.
extern "C" fn live_home_thread(scavenger: usize) -> ! {
    scavenger::live(scavenger, report_text)
}

/// Reports text to the launcher that a scavenger has mapped and does not execute yet.
pub(crate) fn report_text(span: [u64; 2]) {
    if page::control_page().is_some() {
        // Without a launcher the text has no yields, and the scavenger runs on its home thread.
        let _ = converse(Event::Scavenger, span);
    }
}

/// Starts the control thread in a forked child.
pub(crate) fn start_again() -> Result<(), Failure> {
    match DOORBELL.load(Ordering::Acquire) {
        0 => Ok(()),
        doorbell => start(doorbell),
    }
}

/// Starts the control thread in a forked child that was found to run in patched text, whose patches would
/// otherwise stay as they were at the fork.
pub(crate) fn start_in_forked_child() {
    let Some(mark) = mark() else { return };
    if mark.load(Ordering::Relaxed) != 0
        || mark
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    // If children are followed by timers, `THREAD` is this process's already.
    if !timers::active() {
        listen::after_fork();
    }
    // Without the control thread its patches stay, at their cost.
    let _ = start_again();
}

/// Starts the control thread. `doorbell` is the address of its futex word.
pub(crate) fn start(doorbell: u64) -> Result<(), Failure> {
    const AS_THREAD: usize = own_thread::THREAD | own_thread::SAME_DIRECTORY;
    DOORBELL.store(doorbell, Ordering::Release);
    quiesce::adopt_process();
    if THREAD
        .compare_exchange(0, STARTING, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return Ok(());
    }
    set_mark();
    // If it can close its copies of the program's descriptors, it has a table of its own: the program
    // relies on getting the lowest free number.
    let own_table = own_thread::close_from(usize::MAX >> 32).is_ok();
    OWN_TABLE.store(own_table, Ordering::Release);
    let flags = if own_table {
        AS_THREAD
    } else {
        AS_THREAD | own_thread::SAME_DESCRIPTORS
    };
    match own_thread::start(flags, STACK_BYTES, listen, doorbell as usize) {
        Ok(thread) => {
            // The new thread may not have run yet, and `thread` must know its number all the same.
            let order = Ordering::AcqRel;
            let _ = THREAD.compare_exchange(STARTING, thread, order, Ordering::Relaxed);
            Ok(())
        }
        Err(errno) => {
            THREAD.store(0, Ordering::Release);
            Err(Failure::new(errno, Refusal::NoThread))
        }
    }
}

/// Main function of the control thread.
extern "C" fn listen(doorbell: usize) -> ! {
    THREAD.store(sys::thread(), Ordering::Release);
    own_thread::name(c"membound-agent");
    shorten_slice();
    if OWN_TABLE.load(Ordering::Acquire) {
        // The descriptors are copies, which would keep open what the program closes.
        let _ = own_thread::close_from(0);
    }
    let mut room = if timers::active() {
        threads::room_for_threads().ok()
    } else {
        None
    };
    // The launcher counts up from 0, so that a doorbell rung before this thread ran is not missed.
    let mut heard = Heard::default();
    let doorbell = Doorbell::at(doorbell);
    let mut alone = false;
    loop {
        let pause = room.as_mut().and_then(timers::poll);
        if ENDING.load(Ordering::Acquire) || (pause.is_none() && alone) {
            own_thread::exit(0);
        }
        if threads::last() {
            own_thread::exit(threads::exit_code(sys::process()).unwrap_or(0));
        }
        let pause = pause.map_or(EXIT_CHECK_INTERVAL_NS, |pause| {
            pause.min(EXIT_CHECK_INTERVAL_NS)
        });
        if !doorbell.wait(heard, pause) {
            own_thread::exit(0);
        }
        let now = doorbell.heard();
        if loader::has_changed() {
            // Wait, so that a program that loads one plugin after another causes one report.
            sys::nap(LOADER_PAUSE_NS);
        }
        let flags = if loader::take_changed() {
            HelloFlags::MODULES
        } else {
            0
        };
        let is_wanted = now.is_for_us_since(heard);
        heard = now;
        if is_wanted || flags != 0 {
            // Without a launcher the doorbell will not ring again.
            alone = converse_with_flags(Event::Doorbell, [0; 2], flags).is_err();
        }
    }
}
