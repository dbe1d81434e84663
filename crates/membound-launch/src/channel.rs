//! The control socket: packets of one structure each, with descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use membound_platform::affinity;
use membound_platform::stat::Stat;
use membound_wire::{Command, HELLO_MAGIC, Hello, PROTOCOL_VERSION, Reply};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    listen, recvmsg, sendmsg, socket_with, sockopt,
};

use crate::codec::{self, HELLO_BYTES, REPLY_BYTES};

/// How often an answer is polled for before the thread sleeps, as in the agent, since the program waits
/// meanwhile. 0 if the program has no other processor to run on.
fn tries() -> u32 {
    const TRIES: u32 = 100;
    static HERE: OnceLock<u32> = OnceLock::new();
    *HERE.get_or_init(|| match affinity::allowed() {
        Ok(cpus) if cpus.len() > 1 => TRIES,
        _ => 0,
    })
}

/// True if `ancestor` is among the parents of `pid`, their parents, and so on.
fn descends(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: &u32| Stat::of(*pid).ok()?.parent().filter(|parent| *parent != 0);
    std::iter::successors(parent(&pid), parent).any(|it| it == ancestor)
}

/// The socket that agents connect to.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    /// Binds `path`, which must not exist yet.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // A program with many processes may start them faster than conversations are served.
        listen(&socket, 4096)?;
        Ok(Self(socket))
    }

    /// Waits for the next conversation.
    pub(crate) fn accept(&self) -> io::Result<Channel> {
        loop {
            match accept_with(&self.0, SocketFlags::CLOEXEC) {
                Ok(socket) => return Ok(Channel(socket)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Wakes a thread that waits in [`Self::accept`], which fails from now on.
    pub(crate) fn close(&self) {
        // A listening socket can always be shut down.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// One conversation.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Process number of the other side, in this side's namespace; `None` if the other side is neither of this
    /// user nor a program that was started by this process and has become another user since.
    pub(crate) fn peer(&self) -> io::Result<Option<u32>> {
        let credentials = sockopt::socket_peercred(&self.0)?;
        let pid = credentials.pid.as_raw_nonzero().get().unsigned_abs();
        let is_ours = credentials.uid == rustix::process::geteuid();
        Ok((is_ours || descends(pid, std::process::id())).then_some(pid))
    }

    /// The agent's first message; `None` if its version differs.
    pub(crate) fn greeting(&self) -> io::Result<Option<Hello>> {
        let hello = codec::hello(&self.receive::<HELLO_BYTES>()?);
        Ok((hello.magic == HELLO_MAGIC && hello.version == PROTOCOL_VERSION).then_some(hello))
    }

    /// Sends `command` and waits for the answer.
    pub(crate) fn ask(
        &self,
        command: &Command,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<Reply> {
        self.send(command, descriptor)?;
        Ok(codec::reply(&self.receive::<REPLY_BYTES>()?))
    }

    /// Sends all of `commands` and then waits for all answers, so that the agent is woken once, not once
    /// for each. They must be few enough for a socket's buffer. The agent carries them out in order, each
    /// whatever the result of those before, unless the command says otherwise.
    pub(crate) fn ask_all(
        &self,
        commands: &[(Command, Option<BorrowedFd<'_>>)],
    ) -> io::Result<Vec<Reply>> {
        for (command, descriptor) in commands {
            self.send(command, *descriptor)?;
        }
        let replies = commands
            .iter()
            .map(|_| Ok(codec::reply(&self.receive::<REPLY_BYTES>()?)));
        replies.collect()
    }

    /// Sends `command`.
    pub(crate) fn send(
        &self,
        command: &Command,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = codec::command(command);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                beside.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            match sendmsg(
                self.0.as_fd(),
                &[IoSlice::new(&bytes)],
                &mut beside,
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One packet of exactly `N` bytes.
    fn receive<const N: usize>(&self) -> io::Result<[u8; N]> {
        // One byte more, so that a longer packet is detected.
        let mut packet = [0; 512];
        let mut beside = RecvAncillaryBuffer::default();
        let mut left = tries();
        let received = loop {
            let flags = match left {
                0 => RecvFlags::CMSG_CLOEXEC,
                _ => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            };
            match recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut packet)],
                &mut beside,
                flags,
            ) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if left > 0 => left -= 1,
                Err(error) => return Err(error.into()),
            }
        };
        if received.bytes != N || received.flags.contains(ReturnFlags::TRUNC) {
            return Err(if received.bytes == 0 {
                io::ErrorKind::UnexpectedEof.into()
            } else {
                io::ErrorKind::InvalidData.into()
            });
        }
        Ok(*packet.first_chunk().expect("no wire struct has 512 bytes"))
    }
}
