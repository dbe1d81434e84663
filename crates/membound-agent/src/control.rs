//! One conversation with the launcher: connects, reports an event, and obeys commands until `Go`.
//!
//! Signals are blocked meanwhile, and the socket is closed at the end, so that a handler of the program
//! sees neither an open descriptor nor an unfinished conversation.

use membound_wire::{
    Action, CHAINED, Command, Entry, Event, HELLO_MAGIC, Hello, HelloFlags, PROTOCOL_VERSION,
    Refusal, Reply, TextMode,
};

use crate::memory::{self, bytes_of};
use crate::start::{self, settings};
use crate::sys::{Descriptor, Errno, Quiet, call, check, number};
use crate::{
    allocations, areas, assembly, entry, handlers, hold, listen, live, loader, quiesce, requests,
    sample, scavenger, scheduler, sys, text, timers, unwind,
};

/// Why a command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) refusal: Refusal,
}

impl Failure {
    pub(crate) fn new(errno: Errno, refusal: Refusal) -> Self {
        Self { errno, refusal }
    }

    pub(crate) fn malformed() -> Self {
        Self::new(Errno::EINVAL, Refusal::Malformed)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(errno, Refusal::None)
    }
}

/// Reports `event` to the launcher and carries out its commands.
///
/// # Errors
///
/// The launcher could not be reached, or went away.
pub(crate) fn converse(event: Event, range: [u64; 2]) -> Result<(), Errno> {
    tell(event, range, 0)
}

/// As [`converse`], with further [`HelloFlags`].
pub(crate) fn tell(event: Event, range: [u64; 2], flags: u32) -> Result<(), Errno> {
    let settings = settings().ok_or(Errno::EINVAL)?;
    let mut quiet = Quiet::new();
    let socket = connect(settings.control_path())?;
    let hello = hello(event, range, flags, settings);
    send(&socket, bytes_of(&hello))?;
    let mut carried_out = true;
    let tries = tries();
    loop {
        let (mut command, descriptor) = receive(&socket, tries)?;
        let is_chained = command.action & CHAINED != 0;
        command.action &= !CHAINED;
        if command.action == Action::Go as u32 {
            return Ok(());
        }
        let mut reply = Reply::default();
        let done = if is_chained && !carried_out {
            Err(Failure::from(Errno::ECANCELED))
        } else {
            obey(&command, descriptor.as_ref(), &mut quiet)
        };
        carried_out = done.is_ok();
        match done {
            Ok(count) => reply.count = count,
            Err(failure) => {
                reply.errno = failure.errno.0;
                reply.detail = failure.refusal as u32;
            }
        }
        reply.stop_ns = quiesce::take_longest_stop_ns();
        send(&socket, bytes_of(&reply))?;
    }
}

fn hello(event: Event, range: [u64; 2], flags: u32, settings: &start::Settings) -> Hello {
    let hook = start::loader_state(settings).hook;
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
        flags: if start::many_threads() {
            flags | HelloFlags::THREADS
        } else {
            flags
        },
        pid: sys::process(),
        tid: sys::thread(),
        loader_hook: hook,
        loader_hook_bytes,
        range,
        entries: entry::addresses(),
        agent: assembly::own_range(),
    }
}

/// A `sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

fn connect(path: &[u8]) -> Result<Descriptor, Errno> {
    const AF_UNIX: u16 = 1;
    const SEQPACKET_CLOEXEC: usize = 5 | 0o2_000_000;
    let mut address = Address {
        family: AF_UNIX,
        path: [0; 108],
    };
    address
        .path
        .get_mut(..path.len())
        .ok_or(Errno::EINVAL)?
        .copy_from_slice(path);
    // The usual notation: @ starts a name in the abstract namespace, where only the length ends a name.
    let mut length = 2 + path.len() + 1;
    if path.first() == Some(&b'@') {
        address.path[0] = 0;
        length -= 1;
    }
    // SAFETY: making a socket touches no memory.
    let result = unsafe {
        call(
            number::SOCKET,
            [usize::from(AF_UNIX), SEQPACKET_CLOEXEC, 0, 0, 0, 0],
        )
    };
    let socket = Descriptor::new(check(result)?);
    loop {
        // SAFETY: the address outlives the call and has `length` bytes.
        let result = unsafe {
            call(
                number::CONNECT,
                [socket.raw(), (&raw const address) as usize, length, 0, 0, 0],
            )
        };
        match check(result) {
            Ok(_) => return Ok(socket),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn send(socket: &Descriptor, packet: &[u8]) -> Result<(), Errno> {
    const NOSIGNAL: usize = 0x4000;
    loop {
        // SAFETY: the packet outlives the call.
        let result = unsafe {
            call(
                number::SENDTO,
                [
                    socket.raw(),
                    packet.as_ptr() as usize,
                    packet.len(),
                    NOSIGNAL,
                    0,
                    0,
                ],
            )
        };
        match check(result) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[repr(C)]
struct Vector {
    base: usize,
    length: usize,
}

#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: u64,
    vectors: usize,
    vector_count: usize,
    control: usize,
    control_length: usize,
    flags: u64,
}

/// Space for one descriptor: a `cmsghdr` and an int, rounded up.
#[repr(C)]
struct ControlMessage {
    length: usize,
    level: i32,
    kind: i32,
    descriptor: i32,
    padding: i32,
}

/// How often a command is polled for before the thread sleeps: the launcher answers in microseconds, while
/// a wake-up takes longer, tens of microseconds in a virtual machine. 0 if the launcher has no other
/// processor to run on.
fn tries() -> u32 {
    const TRIES: u32 = 100;
    let mut cpus = [0_u64; 16];
    // SAFETY: the call writes at most the bytes of `cpus`, which outlives it.
    let result = unsafe {
        call(
            number::SCHED_GETAFFINITY,
            [0, size_of_val(&cpus), (&raw mut cpus) as usize, 0, 0, 0],
        )
    };
    let count: u32 = cpus.iter().map(|word| word.count_ones()).sum();
    // A machine with more processors than the buffer holds has others in any case.
    if check(result).is_err() || count > 1 {
        TRIES
    } else {
        0
    }
}

fn receive(socket: &Descriptor, tries: u32) -> Result<(Command, Option<Descriptor>), Errno> {
    const CMSG_CLOEXEC: usize = 0x4000_0000;
    const DONT_WAIT: usize = 0x40;
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    const WITH_DESCRIPTOR: usize = 20;
    let mut command = Command::default();
    let mut control = ControlMessage {
        length: 0,
        level: 0,
        kind: 0,
        descriptor: -1,
        padding: 0,
    };
    let vector = Vector {
        base: (&raw mut command) as usize,
        length: size_of::<Command>(),
    };
    let mut header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: (&raw const vector) as usize,
        vector_count: 1,
        control: (&raw mut control) as usize,
        control_length: size_of::<ControlMessage>(),
        flags: 0,
    };
    let mut left = tries;
    let received = loop {
        let flags = if left > 0 {
            CMSG_CLOEXEC | DONT_WAIT
        } else {
            CMSG_CLOEXEC
        };
        // SAFETY: header, vector, command and control message outlive the call and have the
        // sizes given.
        let result = unsafe {
            call(
                number::RECVMSG,
                [socket.raw(), (&raw mut header) as usize, flags, 0, 0, 0],
            )
        };
        match check(result) {
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if left > 0 => left -= 1,
            other => break other?,
        }
    };
    let descriptor = (header.control_length >= WITH_DESCRIPTOR
        && control.length >= WITH_DESCRIPTOR
        && control.level == SOL_SOCKET
        && control.kind == SCM_RIGHTS
        && control.descriptor >= 0)
        .then(|| Descriptor::new(control.descriptor as usize));
    if received != size_of::<Command>() {
        return Err(Errno::EPROTO);
    }
    Ok((command, descriptor))
}

fn obey(
    command: &Command,
    descriptor: Option<&Descriptor>,
    quiet: &mut Quiet,
) -> Result<u64, Failure> {
    let is = |action: Action| command.action == action as u32;
    if is(Action::Map) {
        map(command, descriptor)
    } else if is(Action::Unmap) {
        unmap(command)
    } else if is(Action::Text) {
        let file = descriptor.ok_or_else(|| Failure::new(Errno::EINVAL, Refusal::NoDescriptor))?;
        let batch = text::Batch::open(command, file)?;
        if command.mode == TextMode::Quiet as u32 {
            text::replace(&batch)
        } else if command.mode == TextMode::Live as u32 {
            live::replace(&batch)
        } else {
            Err(Failure::malformed())
        }
    } else if is(Action::Register) {
        areas::register(command).map(|()| 0)
    } else if is(Action::Forget) {
        areas::forget(command.address);
        Ok(0)
    } else if is(Action::Listen) {
        if command.mode != 0 {
            loader::tell_by_control_thread();
        }
        listen::start(command.address).map(|()| 0)
    } else if is(Action::AdoptSignals) {
        Ok(handlers::adopt())
    } else if is(Action::Unwind) {
        unwind::register(command).map(|()| 0)
    } else if is(Action::ForgetUnwind) {
        unwind::forget(
            command.address,
            command.address.saturating_add(command.length),
        );
        Ok(0)
    } else if is(Action::Allocations) {
        allocations::begin(command).map(|()| 0)
    } else if is(Action::Scavenger) {
        scavenger::start(command).map(|()| 0)
    } else if is(Action::RunQueues) {
        scheduler::begin(command).map(|()| 0)
    } else if is(Action::Requests) {
        requests::begin(command).map(|()| 0)
    } else if is(Action::Hold) {
        hold::run(command.address)
    } else if is(Action::Timers) {
        timers::begin(command, quiet)
    } else if is(Action::Rings) {
        sample::use_rings(command.address);
        Ok(0)
    } else {
        Err(Failure::malformed())
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
    Ok(0)
}

/// The index of an entry point in `Hello::entries` and `Slots::entries`.
pub(crate) const fn entry_index(entry: Entry) -> usize {
    entry as usize
}
