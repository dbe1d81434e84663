//! The socket of a conversation with the launcher: connects, sends packets, and receives commands.

use membound_wire::Command;

use crate::sys::{Descriptor, Errno, call, check, number};

/// A `sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

pub(crate) fn connect(path: &[u8]) -> Result<Descriptor, Errno> {
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

pub(crate) fn send(socket: &Descriptor, packet: &[u8]) -> Result<(), Errno> {
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
pub(crate) fn tries() -> u32 {
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

pub(crate) fn receive(
    socket: &Descriptor,
    tries: u32,
) -> Result<(Command, Option<Descriptor>), Errno> {
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
    let mut tries_left = tries;
    let received = loop {
        let flags = if tries_left > 0 {
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
            Err(Errno::EAGAIN) if tries_left > 0 => tries_left -= 1,
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
