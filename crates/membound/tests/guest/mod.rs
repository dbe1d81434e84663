//! A machine with several NUMA nodes for the tests, on any host machine.
//!
//! QEMU emulates it (TCG, no KVM needed), Debian's cloud kernel runs on it, and an
//! initramfs made here holds the command under test, the libraries it is linked with, and
//! `init.c`, which runs a list of commands and hands back what they said. Placement is
//! real there: the emulated firmware declares the nodes, and the kernel's allocator, mbind
//! and move_pages act on them. Timings mean nothing.

mod command;
mod cpio;
mod profile;
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Path of the command under test in the guest.
const MEMBOUND: &str = "/bin/membound";

/// Default time limit of a command in the guest, in seconds.
const COMMAND_LIMIT_S: u32 = 60;

/// Time for the guest beyond that of its commands.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// The nodes of a guest; each has 512 MiB unless it is said to have no memory.
#[derive(Clone, Copy)]
pub(crate) enum Machine {
    /// CPUs 0 and 1 on node 0, CPU 2 on node 1; distances 10 and 21.
    TwoNodes,
    /// The same, and CPU 3 on node 2, which has no memory.
    MemorylessThird,
}

/// A command or file access to run in the guest.
pub(crate) struct Command {
    words: Vec<String>,
    limit_s: u32,
}

impl Command {
    /// Runs the command under test.
    pub(crate) fn membound(arguments: &[&str]) -> Self {
        Self::new(MEMBOUND, arguments)
    }

    /// Writes `text` into the file at `path`, which must exist.
    pub(crate) fn write(path: &str, text: &str) -> Self {
        Self::new("@write", &[path, text])
    }

    /// Prints the contents of the file at `path`.
    pub(crate) fn read(path: &str) -> Self {
        Self::new("@read", &[path])
    }

    fn new(name: &str, arguments: &[&str]) -> Self {
        let words = std::iter::once(&name).chain(arguments);
        Self {
            words: words.map(|word| (*word).to_owned()).collect(),
            limit_s: COMMAND_LIMIT_S,
        }
    }

    /// Ends the command after `limit_s` seconds.
    pub(crate) const fn within(mut self, limit_s: u32) -> Self {
        self.limit_s = limit_s;
        self
    }

    /// The record that `init.c` reads.
    fn record(&self) -> Vec<u8> {
        let mut bytes = format!("{}\0", self.limit_s).into_bytes();
        for word in &self.words {
            assert!(!word.is_empty(), "an empty word would end the record");
            bytes.extend_from_slice(word.as_bytes());
            bytes.push(0);
        }
        bytes.push(0);
        bytes
    }
}

/// Additional files in the guest.
#[derive(Clone, Copy, Default)]
pub(crate) struct Luggage<'a> {
    /// Programs, which are placed in `/bin` under their names, with their libraries.
    pub(crate) programs: &'a [PathBuf],
    /// Other files: path and contents.
    pub(crate) files: &'a [(&'a str, &'a [u8])],
}

/// Output and status of a command in the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// Exit code, or 128 + the signal that ended it (142: the time limit).
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Why there can be no guest on this machine.
#[derive(Debug)]
pub(crate) struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no guest: {}", self.0)
    }
}

/// Boots `machine`, runs `commands` in it one after the other, and switches it off.
///
/// A guest that does not come to its end panics with the end of its console.
pub(crate) fn run(machine: Machine, commands: &[Command]) -> Result<Vec<Output>, Skip> {
    boot(machine, Luggage::default(), commands, Permit::take(1))
}

/// As [`run`], with additional files in the guest, while no other guest runs: for programs whose threads keep
/// all CPUs busy and are profiled.
pub(crate) fn run_alone(
    machine: Machine,
    luggage: Luggage<'_>,
    commands: &[Command],
) -> Result<Vec<Output>, Skip> {
    boot(machine, luggage, commands, Permit::take(MAX_GUESTS))
}

fn boot(
    machine: Machine,
    luggage: Luggage<'_>,
    commands: &[Command],
    _permit: Permit,
) -> Result<Vec<Output>, Skip> {
    let _busy = crate::command::busy();

    let tools = Tools::find()?;
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let initramfs = directory.path().join("initramfs");
    let archive = initramfs_of(luggage, commands)?;
    fs::write(&initramfs, archive).expect("the temporary directory is writable");

    let console = directory.path().join("console");
    let results = directory.path().join("results");
    let mut emulator = tools.emulator(machine, &initramfs, &console, &results);
    let child = emulator
        .spawn()
        .map_err(|error| Skip(format!("cannot start {}: {error}", tools.qemu.display())))?;
    let seconds = commands.iter().map(|command| command.limit_s).sum::<u32>();
    let finished = wait(child, BOOT_LIMIT + Duration::from_secs(seconds.into()));

    let text = fs::read(&results).unwrap_or_default();
    match outputs(&text) {
        Some(outputs) if outputs.len() == commands.len() => Ok(outputs),
        _ => panic!(
            "guest {}\nresults: {}\nconsole: {}",
            if finished { "ended early" } else { "hung" },
            tail(&text),
            tail(&fs::read(&console).unwrap_or_default())
        ),
    }
}

/// Number of guests that run at the same time. Most of their commands use one emulated CPU, which keeps a
/// real one busy, and no test checks a time.
const MAX_GUESTS: usize = 2;

/// The permission to run a guest, until it is dropped.
struct Permit {
    /// Number of guests that it counts as.
    guests: usize,
}

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

impl Permit {
    /// Waits until there is room for `guests` of [`MAX_GUESTS`].
    fn take(guests: usize) -> Self {
        let mut running = ENDED
            .wait_while(Self::running(), |running| *running + guests > MAX_GUESTS)
            .unwrap_or_else(PoisonError::into_inner);
        *running += guests;
        Self { guests }
    }

    fn running() -> MutexGuard<'static, usize> {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *Self::running() -= self.guests;
        ENDED.notify_all();
    }
}

/// Tools that the host must have.
struct Tools {
    qemu: PathBuf,
    kernel: PathBuf,
}

impl Tools {
    fn find() -> Result<Self, Skip> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Skip("the guest is x86-64, this machine is not".to_owned()));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let qemu = std::env::split_paths(&path)
            .map(|directory| directory.join("qemu-system-x86_64"))
            .find(|file| file.is_file())
            .ok_or_else(|| {
                Skip("qemu-system-x86_64 is not installed (cargo xtask test brings it)".to_owned())
            })?;
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest/boot");
        let kernel = fs::read_dir(&boot)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
            })
            .ok_or_else(|| {
                Skip("no kernel in target/guest/boot (cargo xtask test brings it)".to_owned())
            })?;
        Ok(Self { qemu, kernel })
    }

    fn emulator(
        &self,
        machine: Machine,
        initramfs: &Path,
        console: &Path,
        results: &Path,
    ) -> Process {
        let mut emulator = Process::new(&self.qemu);
        emulator
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .args([
                "-machine",
                "q35",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max",
            ])
            .args(["-m", "1024"])
            .args(["-object", "memory-backend-ram,id=m0,size=512M"])
            .args(["-object", "memory-backend-ram,id=m1,size=512M"])
            .args(["-numa", "node,nodeid=0,memdev=m0,cpus=0-1"])
            .args(["-numa", "node,nodeid=1,memdev=m1,cpus=2"])
            .args(["-numa", "dist,src=0,dst=1,val=21"]);
        match machine {
            Machine::TwoNodes => {
                emulator.args(["-smp", "3"]);
            }
            Machine::MemorylessThird => {
                emulator
                    .args(["-smp", "4"])
                    .args(["-numa", "node,nodeid=2,cpus=3"])
                    .args(["-numa", "dist,src=0,dst=2,val=31"])
                    .args(["-numa", "dist,src=1,dst=2,val=31"]);
            }
        }
        emulator
            .arg("-serial")
            .arg(prefixed("file:", console))
            .arg("-serial")
            .arg(prefixed("file:", results))
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", "console=ttyS0 panic=-1 quiet"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        emulator
    }
}

fn prefixed(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut word = std::ffi::OsString::from(prefix);
    word.push(path);
    word
}

/// Builds a source of this directory into `scratch`.
pub(crate) fn build(source: &str, words: &[&str], scratch: &Path) -> Result<PathBuf, Skip> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest");
    let program = scratch.join(Path::new(source).file_stem().unwrap_or_default());
    tool(
        Process::new("cc")
            .args(words)
            .args(["-Wall", "-o"])
            .args([&program, &directory.join(source)]),
    )?;
    Ok(program)
}

/// Files that every guest has, made once.
struct Basics {
    init: PathBuf,
    membound: PathBuf,
    /// The libraries of both.
    libraries: BTreeSet<PathBuf>,
}

impl Basics {
    fn get() -> Result<&'static Self, Skip> {
        static BASICS: LazyLock<Result<Basics, String>> =
            LazyLock::new(|| Basics::make().map_err(|Skip(reason)| reason));
        BASICS.as_ref().map_err(|reason| Skip(reason.clone()))
    }

    fn make() -> Result<Self, Skip> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest");
        fs::create_dir_all(&directory).expect("the target directory can be written");
        let init = build("init.c", &["-O1"], &directory)?;
        // Debug information is most of a test build, and the guest would have to unpack it.
        let membound = directory.join("membound");
        let built = Path::new(env!("CARGO_BIN_EXE_membound"));
        tool(Process::new("strip").arg("-o").args([&membound, built]))?;
        let mut libraries = libraries_of(&init)?;
        libraries.extend(libraries_of(&membound)?);
        Ok(Self {
            init,
            membound,
            libraries,
        })
    }
}

/// The initramfs: init, the command under test, the additional files, all their libraries, and the commands.
fn initramfs_of(luggage: Luggage<'_>, commands: &[Command]) -> Result<Vec<u8>, Skip> {
    let basics = Basics::get()?;
    let mut libraries = basics.libraries.clone();
    for program in luggage.programs {
        libraries.extend(libraries_of(program)?);
    }

    let mut archive = cpio::Archive::default();
    let mut add = |inside: &Path, outside: &Path| -> Result<(), Skip> {
        let content = fs::read(outside)
            .map_err(|error| Skip(format!("cannot read {}: {error}", outside.display())))?;
        archive.file(inside, &content);
        Ok(())
    };
    add(Path::new("/init"), &basics.init)?;
    add(Path::new(MEMBOUND), &basics.membound)?;
    for library in libraries {
        add(&library, &library)?;
    }
    for program in luggage.programs {
        let name = program.file_name().expect("a program has a name");
        add(&Path::new("/bin").join(name), program)?;
    }
    for (path, content) in luggage.files {
        archive.file(Path::new(path), content);
    }
    let list: Vec<u8> = commands.iter().flat_map(Command::record).collect();
    archive.file(Path::new("/commands"), &list);
    Ok(archive.finish())
}

/// The loader and the shared libraries that `program` is started with, by path.
fn libraries_of(program: &Path) -> Result<BTreeSet<PathBuf>, Skip> {
    let listed = tool(Process::new("ldd").arg(program))?;
    // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, `/lib64/ld-….so.2 (0x…)`, and the vdso.
    Ok(listed
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with('/'))
                .map(PathBuf::from)
        })
        .collect())
}

/// The stdout of a program of the host; without the program there can be no guest.
fn tool(command: &mut Process) -> Result<String, Skip> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Skip(format!("cannot start {name}: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(Skip(format!("{name} failed: {}", stderr.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for the emulator to end by itself, and kills it after `limit`.
fn wait(mut child: Child, limit: Duration) -> bool {
    let began = Instant::now();
    loop {
        if child
            .try_wait()
            .expect("the emulator is a child of this process")
            .is_some()
        {
            return true;
        }
        if began.elapsed() > limit {
            drop(child.kill());
            drop(child.wait());
            return false;
        }
        sleep(Duration::from_millis(20));
    }
}

/// The results on the second serial port; `None` when they are cut short.
fn outputs(mut bytes: &[u8]) -> Option<Vec<Output>> {
    let mut outputs = Vec::new();
    loop {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
        if line == "done" {
            return Some(outputs);
        }
        let mut words = line.strip_prefix("result ")?.split(' ');
        let status = words.next()?.parse().ok()?;
        let (stdout, rest) = rest.split_at_checked(words.next()?.parse().ok()?)?;
        let (stderr, rest) = rest.split_at_checked(words.next()?.parse().ok()?)?;
        outputs.push(Output {
            status,
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        });
        bytes = rest;
    }
}

/// The last lines of what the guest said.
fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(4000);
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

#[test]
fn results_are_read_by_length_and_a_cut_is_noticed() {
    let whole = b"result 0 3 0\na\nbresult 142 0 4\nbusydone\n";
    let read = outputs(whole).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!((read[0].status, read[0].stdout.as_str()), (0, "a\nb"));
    assert_eq!((read[1].status, read[1].stderr.as_str()), (142, "busy"));
    assert_eq!(outputs(&whole[..20]), None);
    assert_eq!(outputs(b""), None);
}
