//! A launcher for tests: builds programs, starts them with the agent, and converses with it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use membound_wire::{
    Action, CONTROL_VARIABLE, Command, Entry, Event, HELLO_MAGIC, Hello, PADDING_VARIABLE,
    Protection, Reply, SLOTS_BYTES, Slots, TextEdit, TextMode, fingerprint,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};
use tempfile::TempDir;

#[path = "../../build/object.rs"]
mod object;

/// Where tests place patches: within reach of a jump from a program that is not relocated, and beyond its heap,
/// which begins up to 1 GiB above its text.
pub(crate) const AREA: u64 = 0x6000_0000;

/// The agent's object, built once.
pub(crate) fn agent() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("agent");
        object::build(&manifest, &directory, "x86_64-unknown-linux-gnu").unwrap()
    })
}

/// The C library that a program is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

pub(crate) const LIBCS: [Libc; 2] = [Libc::Glibc, Libc::Musl];

/// A program built from `programs/NAME.c`, with the addresses of its symbols.
#[derive(Debug)]
pub(crate) struct Program {
    directory: TempDir,
    path: PathBuf,
    symbols: HashMap<String, u64>,
}

impl Program {
    /// Builds the program; `None`, with a message, without a compiler.
    pub(crate) fn build(name: &str, libc: Libc) -> Option<Self> {
        let compiler = match libc {
            Libc::Glibc => "gcc",
            Libc::Musl => "musl-gcc",
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/programs")
            .join(format!("{name}.c"));
        let built = Process::new(compiler)
            .args([
                "-O1",
                "-no-pie",
                "-fno-pie",
                "-Wall",
                "-fno-omit-frame-pointer",
            ])
            .args(["-rdynamic", "-pthread", "-o"])
            .arg(&path)
            .arg(&source)
            .output();
        let output = match built {
            Ok(output) => output,
            Err(error) => {
                membound_testkit::skipped(format!("no {compiler}: {error}"));
                return None;
            }
        };
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {name}: {words}");
        let listing = Process::new("nm").arg(&path).output().unwrap();
        let symbols = String::from_utf8(listing.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                Some((words.nth(1)?.to_owned(), address))
            })
            .collect();
        Some(Self {
            directory,
            path,
            symbols,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn symbol(&self, name: &str) -> u64 {
        self.symbols[name]
    }

    /// Bytes of the program's text.
    pub(crate) fn text(&self, address: u64, length: usize) -> Vec<u8> {
        use ::object::{Object as _, ObjectSegment as _};
        let file = std::fs::read(&self.path).unwrap();
        let elf = ::object::File::parse(&*file).unwrap();
        elf.segments()
            .find_map(|segment| segment.data_range(address, length as u64).ok().flatten())
            .unwrap()
            .to_vec()
    }

    /// The edit that replaces the first five bytes of `symbol` by a jump to `target`.
    pub(crate) fn jump(&self, symbol: &str, starts: u8, target: u64) -> TextEdit {
        self.jump_at(self.symbol(symbol), 5, starts, target)
    }

    pub(crate) fn jump_at(&self, address: u64, group: u16, starts: u8, target: u64) -> TextEdit {
        let text = self.text(address, usize::from(group));
        let mut old = [0; 8];
        old[..5].copy_from_slice(&text[..5]);
        let mut new = [0; 8];
        new[..5].copy_from_slice(&jump_bytes(address, target));
        TextEdit {
            address,
            target,
            fingerprint: fingerprint(&text),
            group,
            length: 5,
            starts,
            old,
            new,
        }
    }
}

/// `jmp rel32` at `from`.
pub(crate) fn jump_bytes(from: u64, to: u64) -> [u8; 5] {
    let displacement = i32::try_from(to.cast_signed() - (from.cast_signed() + 5)).unwrap();
    let mut bytes = [0xe9, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&displacement.to_le_bytes());
    bytes
}

/// The edit that undoes `edit`.
pub(crate) fn reverse(edit: &TextEdit) -> TextEdit {
    let mut group = edit.new[..usize::from(edit.length)].to_vec();
    assert_eq!(
        usize::from(edit.group),
        group.len(),
        "only for groups of one jump"
    );
    group.truncate(usize::from(edit.group));
    TextEdit {
        target: edit.address,
        fingerprint: fingerprint(&group),
        old: edit.new,
        new: edit.old,
        ..*edit
    }
}

/// The socket and the process started with it.
#[derive(Debug)]
pub(crate) struct Session {
    socket: Option<OwnedFd>,
    pub(crate) child: Child,
    _directory: TempDir,
}

impl Session {
    /// Starts `program` with the agent, and the user's own `preload` behind it.
    pub(crate) fn start(program: &Path, arguments: &[&str], preload: Option<&str>) -> Self {
        Self::prepared(|control| {
            let mut process = process(program, control.as_os_str(), preload);
            process.args(arguments);
            process
        })
    }

    /// Starts the command that `prepare` makes for the control socket's path.
    pub(crate) fn prepared(prepare: impl FnOnce(&Path) -> Process) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 16).unwrap();
        let child = prepare(&path).spawn().unwrap();
        Self {
            socket: Some(socket),
            child,
            _directory: directory,
        }
    }

    /// Disappears like a launcher that died.
    pub(crate) fn close(&mut self) {
        self.socket = None;
    }

    /// The next conversation.
    pub(crate) fn accept(&self) -> Conversation {
        let listener = self.socket.as_ref().unwrap();
        wait(listener);
        let socket = accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        let mut packet = [0; size_of::<Hello>()];
        wait(&socket);
        let (length, _) = recv(&socket, &mut packet[..], RecvFlags::empty()).unwrap();
        assert_eq!(length, packet.len());
        let conversation = Conversation { socket, packet };
        assert_eq!(conversation.word(0), HELLO_MAGIC);
        conversation
    }

    /// The next conversation, which must be about `event`.
    pub(crate) fn expect(&self, event: Event) -> Conversation {
        let conversation = self.accept();
        assert_eq!(conversation.word(8), event as u32);
        conversation
    }

    /// Lets the program run to its end; returns its output and exit code.
    pub(crate) fn finish(mut self) -> (String, Option<i32>) {
        let mut output = String::new();
        let mut pipe = self.child.stdout.take().unwrap();
        pipe.read_to_string(&mut output).unwrap();
        let status = self.child.wait().unwrap();
        (output, status.code())
    }

    /// Writes a line to the program.
    pub(crate) fn write_line(&mut self, line: &str) {
        let pipe = self.child.stdin.as_mut().unwrap();
        // In one piece: the program may end as soon as it has read the first byte.
        pipe.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // If it has ended, there is nothing to kill; that of a failed test must not go on.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Closes in the child what this process was started with besides its streams: the programs report the
/// lowest free descriptor.
fn keep_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            if number > 2 {
                // SAFETY: the descriptor was open a moment ago; if not, the kernel returns an error.
                let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
                let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
            }
        }
    });
}

/// The process that the launcher would start, with a clean environment.
pub(crate) fn process(program: &Path, control: &OsStr, preload: Option<&str>) -> Process {
    keep_descriptors();
    let mut list = agent().as_os_str().to_owned();
    let mut process = Process::new(program);
    process
        .env_clear()
        .env("FIRST", "1")
        .env("ZLAST", "with = and spaces");
    if let Some(users) = preload {
        list.push(":");
        list.push(users);
        process.env(PADDING_VARIABLE, "");
    }
    process
        .env("LD_PRELOAD", list)
        .env(CONTROL_VARIABLE, control)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // A failed test must not leave programs behind that spin. The limit is far above what any of them
    // needs.
    let _ = process.process_group(0);
    process
}

fn wait(socket: &OwnedFd) {
    let limit = rustix::time::Timespec::try_from(Duration::from_secs(60)).unwrap();
    let mut descriptors = [PollFd::new(socket, PollFlags::IN)];
    assert_eq!(
        poll(&mut descriptors, Some(&limit)).unwrap(),
        1,
        "the agent is silent"
    );
}

/// One conversation with the agent.
#[derive(Debug)]
pub(crate) struct Conversation {
    socket: OwnedFd,
    packet: [u8; size_of::<Hello>()],
}

const ENTRIES: usize = std::mem::offset_of!(Hello, entries);

impl Conversation {
    pub(crate) fn word(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.packet[offset..offset + 4].try_into().unwrap())
    }

    pub(crate) fn long(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.packet[offset..offset + 8].try_into().unwrap())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&self, command: &Command, file: Option<&OwnedFd>) -> Reply {
        self.send(command, file);
        let mut packet = [0; size_of::<Reply>()];
        wait(&self.socket);
        let (length, _) = recv(&self.socket, &mut packet[..], RecvFlags::empty()).unwrap();
        assert_eq!(length, packet.len(), "the agent went away");
        let word = |at: usize| u32::from_ne_bytes(packet[at..at + 4].try_into().unwrap());
        Reply {
            errno: word(0),
            detail: word(4),
            count: u64::from_ne_bytes(packet[8..16].try_into().unwrap()),
            stop_ns: u64::from_ne_bytes(packet[16..24].try_into().unwrap()),
            changing_ns: u64::from_ne_bytes(packet[24..32].try_into().unwrap()),
        }
    }

    fn send(&self, command: &Command, file: Option<&OwnedFd>) {
        let packet = command_bytes(command);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = file.map(|file| [file.as_fd()]);
        if let Some(descriptors) = &descriptors {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(&packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
    }

    /// A command that must succeed.
    pub(crate) fn done(&self, command: &Command, file: Option<&OwnedFd>) -> u64 {
        let reply = self.ask(command, file);
        assert_eq!((reply.errno, reply.detail), (0, 0), "{command:?}");
        reply.count
    }

    /// Lets the program go on.
    pub(crate) fn go(self) {
        let command = Command {
            action: Action::Go as u32,
            ..Command::default()
        };
        self.send(&command, None);
        // The agent closes its end; afterwards the program runs.
        let mut rest = [0; 16];
        wait(&self.socket);
        let (length, _) = recv(&self.socket, &mut rest[..], RecvFlags::empty()).unwrap();
        assert_eq!(length, 0);
    }

    /// Maps an area: `code`, then `table` on the next page, then slots with the entries and one page
    /// of data, and registers it.
    pub(crate) fn place(&self, area: &Area) -> OwnedFd {
        let map = |mode: u32, address: u64, file: &OwnedFd, length: usize| {
            let command = Command {
                action: Action::Map as u32,
                mode,
                address,
                length: length.next_multiple_of(PAGE) as u64,
                ..Command::default()
            };
            self.done(&command, Some(file));
        };
        let code = memory_file(&area.code);
        map(
            Protection::READ_EXECUTE,
            area.address,
            &code,
            area.code.len(),
        );
        let mut data = vec![0; PAGE];
        for index in 0..8 {
            let entry = self.long(ENTRIES + index * 8);
            data[index * 8..][..8].copy_from_slice(&entry.to_ne_bytes());
        }
        let period = std::mem::offset_of!(Slots, period);
        data[period..][..4].copy_from_slice(&area.period.to_ne_bytes());
        data[std::mem::offset_of!(Slots, module)..][..4].copy_from_slice(&7_u32.to_ne_bytes());
        data[SLOTS_BYTES..][..4].copy_from_slice(&1_i32.to_ne_bytes());
        data[SLOTS_BYTES + 4..][..4].copy_from_slice(&1_i32.to_ne_bytes());
        let data = memory_file(&data);
        let data_mode = Protection::READ_WRITE | Protection::SHARED;
        map(data_mode, area.address + DATA, &data, PAGE);
        let table = memory_file(&area.table);
        map(
            Protection::READ,
            area.address + TABLE,
            &table,
            area.table.len(),
        );
        let command = Command {
            action: Action::Register as u32,
            address: area.address,
            length: area.code.len() as u64,
            extra: area.address + TABLE,
            base: area.base,
            ..Command::default()
        };
        self.done(&command, None);
        data
    }

    /// Sends edits; returns the reply and the indices of those left out.
    pub(crate) fn edit(&self, edits: &[TextEdit], mode: TextMode) -> (Reply, Vec<u32>) {
        let mut bytes: Vec<u8> = edits.iter().flat_map(edit_bytes).collect();
        let skips = bytes.len();
        bytes.resize(skips + edits.len() * 4, 0xff);
        let file = memory_file(&bytes);
        let command = Command {
            action: Action::Text as u32,
            mode: mode as u32,
            count: edits.len() as u64,
            extra: skips as u64,
            ..Command::default()
        };
        let reply = self.ask(&command, Some(&file));
        let mut after = vec![0; bytes.len()];
        let length = rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut after)], 0).unwrap();
        assert_eq!(length, bytes.len());
        let left_out = after[skips..]
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .take_while(|&index| index != u32::MAX)
            .collect();
        (reply, left_out)
    }
}

const PAGE: usize = 4096;
/// Offsets of the parts of an area from its start.
pub(crate) const TABLE: u64 = 0x2000;
pub(crate) const DATA: u64 = 0x1000;

/// A hand-written area of trampolines.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) address: u64,
    pub(crate) base: u64,
    pub(crate) code: Vec<u8>,
    pub(crate) table: Vec<u8>,
    pub(crate) period: u32,
}

/// `call [slot]` for an instruction at `at`.
pub(crate) fn call_entry(area: u64, at: u64, entry: Entry) -> [u8; 6] {
    let slot = area + DATA + entry as u64 * 8;
    let displacement = i32::try_from(slot.cast_signed() - (at.cast_signed() + 6)).unwrap();
    let mut bytes = [0xff, 0x15, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&displacement.to_le_bytes());
    bytes
}

/// A file in memory with these bytes, filled up to a page.
pub(crate) fn memory_file(bytes: &[u8]) -> OwnedFd {
    let file = memfd_create("agent-test", MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).unwrap();
    OwnedFd::from(file)
}

fn command_bytes(command: &Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(command.action.to_ne_bytes());
    bytes.extend(command.mode.to_ne_bytes());
    for word in [
        command.address,
        command.length,
        command.offset,
        command.count,
        command.extra,
        command.base,
    ] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn edit_bytes(edit: &TextEdit) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(edit.address.to_ne_bytes());
    bytes.extend(edit.target.to_ne_bytes());
    bytes.extend(edit.fingerprint.to_ne_bytes());
    bytes.extend(edit.group.to_ne_bytes());
    bytes.extend([edit.length, edit.starts]);
    bytes.extend(edit.old);
    bytes.extend(edit.new);
    bytes
}
