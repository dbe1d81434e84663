//! Predicts which program the kernel starts for a command, and whether the loader will load the agent into
//! it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use membound_platform::memory::Limits;

use crate::elf::Headers;
use crate::short_lived::ONE_IN;

/// Most nested interpreters that the kernel follows.
const DEEPEST: usize = 5;

/// Why a program runs without patches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpatched {
    /// No dynamic loader would load the agent.
    #[error("{} is statically linked: no loader would bring the agent in", .0.display())]
    Static(PathBuf),
    /// The loader ignores `LD_PRELOAD`.
    #[error("{} runs with other rights than its caller's, and the loader brings nothing into such programs", .0.display())]
    Privileged(PathBuf),
    /// Its code is not for this machine.
    #[error("{} is not an x86-64 ELF program", .0.display())]
    Foreign(PathBuf),
    /// The file cannot be read.
    #[error("{} cannot be read, only run", .0.display())]
    Unreadable(PathBuf),
    /// The executable must not be patched because of its kind (Go, writable text).
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The executable.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The agent runs in a program that this one emulates.
    #[error("{} emulates the program inside it (as valgrind does): patches would go into code that it translates", .0.display())]
    Emulator(PathBuf),
    /// The agent would take much of the memory that it may use.
    #[error("{} may use {mebibytes} MiB of memory only (RLIMIT_AS or RLIMIT_DATA), of which the agent would take a large part", path.display())]
    LimitedMemory {
        /// The executable.
        path: PathBuf,
        /// The limit.
        mebibytes: u64,
    },
    /// Processes of this executable end soon after their start, and this one was not drawn.
    #[error("{} ran for less than {} ms again and again: one process of it in {ONE_IN} was patched", path.display(), below.as_millis())]
    ShortLived {
        /// The executable.
        path: PathBuf,
        /// Run time below which its processes count as short-lived.
        below: Duration,
    },
    /// It ran, and no agent has connected.
    #[error("no agent spoke from {}: its loader did not bring it in, or it could not reach the control socket", .0.display())]
    Silent(PathBuf),
    /// Signal handlers would see trampolines.
    #[error("rt_sigaction cannot be hooked in {0}: signal handlers would see patched code")]
    NoSignalHook(String),
    /// The agent failed in a step that must come first.
    #[error("{0}")]
    Agent(String),
    /// This build has no agent for this machine.
    #[error("this build of membound has no agent: programs are patched on x86-64 Linux only")]
    NoAgent,
}

/// Part of a limit on memory that the agent may take.
const MAX_PART_OF_LIMIT: u64 = 10;

/// Why a process with the limits `of_process` is not patched, if the agent takes this much memory in it.
pub(crate) fn limited(path: &Path, of_process: Limits, agents: Limits) -> Option<Unpatched> {
    let is_small = |limit: Option<u64>, taken: Option<u64>| {
        limit.filter(|limit| limit / MAX_PART_OF_LIMIT < taken.unwrap_or(0))
    };
    let limit = is_small(of_process.address_space, agents.address_space)
        .or_else(|| is_small(of_process.data, agents.data))?;
    Some(Unpatched::LimitedMemory {
        path: path.to_owned(),
        mebibytes: limit >> 20,
    })
}

/// Why a command cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotRun {
    /// Not found; exit code 127.
    #[error("cannot run {}: not found", .0.display())]
    NotFound(PathBuf),
    /// Not executable; exit code 126.
    #[error("cannot run {}: {reason}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl CannotRun {
    /// The exit code that a shell would use.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
        }
    }
}

/// True for a 32-bit ELF file. Its loader would complain about the agent, in the program's own output.
pub(crate) fn is_32_bit(path: &Path) -> bool {
    const MAGIC: [u8; 5] = *b"\x7fELF\x01";
    let mut begin = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == MAGIC
}

/// The file of the command `name`: `name` itself if it has a slash, else the first executable file of that
/// name in `search` (the value of `PATH`).
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, CannotRun> {
    let given = Path::new(name);
    if name.as_bytes().contains(&b'/') {
        return executable(given).map(|()| given.to_owned());
    }
    let mut refused = None;
    if !name.is_empty() {
        let search = search.map_or_else(|| OsString::from("/bin:/usr/bin"), OsStr::to_owned);
        for directory in std::env::split_paths(&search) {
            let path = if directory.as_os_str().is_empty() {
                Path::new(".").join(given)
            } else {
                directory.join(given)
            };
            match executable(&path) {
                Ok(()) => return Ok(path),
                Err(error @ CannotRun::NotExecutable { .. }) => refused = Some(error),
                Err(CannotRun::NotFound(_)) => {}
            }
        }
    }
    Err(refused.unwrap_or_else(|| CannotRun::NotFound(given.to_owned())))
}

fn executable(path: &Path) -> Result<(), CannotRun> {
    let refused = |reason: &dyn ToString| CannotRun::NotExecutable {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(refused(&"it is a directory")),
        Ok(_) => rustix::fs::access(path, rustix::fs::Access::EXEC_OK)
            .map_err(|_| refused(&"it is not executable by this user")),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(CannotRun::NotFound(path.to_owned()))
        }
        Err(error) => Err(refused(&error)),
    }
}

/// Why the agent will not be in `path`, as far as that is known before it is started.
#[must_use]
pub fn examine(path: &Path) -> Option<Unpatched> {
    if crate::AGENT.is_empty() {
        return Some(Unpatched::NoAgent);
    }
    let mut path = path.to_owned();
    for _ in 0..DEEPEST {
        if privileged(&path) {
            return Some(Unpatched::Privileged(path));
        }
        const HEADERS_BYTES: usize = 1 << 16;
        let mut start = Vec::with_capacity(HEADERS_BYTES);
        let read = File::open(&path)
            .and_then(|file| file.take(HEADERS_BYTES as u64).read_to_end(&mut start));
        if read.is_err() {
            return Some(Unpatched::Unreadable(path));
        }
        if let Some(interpreter) = interpreter(&start) {
            path = interpreter;
            continue;
        }
        // `e_machine` 62 is x86-64. Files of the x32 ABI have it too, but are 32-bit files and do not
        // parse.
        return match Headers::parse(&start) {
            Some(headers) if start.get(18..20) == Some(&[62, 0]) => {
                (!headers.interpreter).then_some(Unpatched::Static(path))
            }
            _ => Some(Unpatched::Foreign(path)),
        };
    }
    None
}

/// Why a process with an agent must not be patched, if the kernel started it from `path`, an emulator. A
/// statically linked program has no loader that could have loaded the agent, so it must emulate a program
/// whose loader has. A loader that is started as a command is statically linked too, but is named like a
/// shared object.
pub(crate) fn emulator(path: &Path) -> Option<Unpatched> {
    let name = path.file_name()?.as_bytes();
    let is_loader = name.windows(3).any(|part| part == b".so");
    if is_loader || !matches!(examine(path), Some(Unpatched::Static(_))) {
        return None;
    }
    Some(Unpatched::Emulator(path.to_owned()))
}

/// The interpreter named in the first line of a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?;
    let line = &line[..line.len().min(254)];
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let name = line
        .split(|byte| matches!(byte, b' ' | b'\t' | 0))
        .next()
        .filter(|name| !name.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// True if running `path` would change the privileges of the process.
fn privileged(path: &Path) -> bool {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    let Ok(found) = fs::metadata(path) else {
        return false;
    };
    let user = found.mode() & SET_USER != 0 && found.uid() != rustix::process::geteuid().as_raw();
    let group =
        found.mode() & SET_GROUP == SET_GROUP && found.gid() != rustix::process::getegid().as_raw();
    let mut capabilities = [0_u8; 64];
    let capable = rustix::fs::getxattr(path, "security.capability", &mut capabilities[..]).is_ok()
        && !rustix::process::geteuid().is_root();
    user || group || capable
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(place: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = place.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_32_bit_program_is_told_by_its_first_bytes() {
        let place = tempfile::tempdir().unwrap();
        let is_32_bit = |text: &str| is_32_bit(&script(place.path(), "it", text, 0o755));
        assert!(is_32_bit("\x7fELF\x01\x01"));
        for other in ["\x7fELF\x02\x01", "#!/bin/sh\n", "\x7fEL", ""] {
            assert!(!is_32_bit(other), "{other}");
        }
        assert!(!super::is_32_bit(&place.path().join("missing")));
    }

    #[test]
    fn programs_of_which_the_agent_would_take_a_tenth_are_not_patched() {
        let of = |address_space, data| Limits {
            address_space,
            data,
        };
        let agents = of(Some(100), Some(10));
        let is_limited = |process| limited(Path::new("program"), process, agents).is_some();
        assert!(!is_limited(of(None, None)) && !is_limited(of(Some(1000), Some(100))));
        assert!(is_limited(of(Some(999), None)) && is_limited(of(Some(5000), Some(90))));
        let nothing = of(Some(0), None);
        assert_eq!(
            limited(Path::new("program"), of(Some(5), Some(5)), nothing),
            None
        );
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let place = tempfile::tempdir().unwrap();
        let here = place.path();
        let path = script(here, "tool", "#!/bin/sh\n", 0o755);
        script(here, "data", "", 0o644);
        let search = here.as_os_str();
        assert_eq!(find("tool".as_ref(), Some(search)), Ok(path.clone()));
        assert_eq!(find(path.as_os_str(), None), Ok(path));
        let code = |name: &OsStr| find(name, Some(search)).unwrap_err().code();
        assert_eq!(code("data".as_ref()), 126);
        assert_eq!(code("nothing".as_ref()), 127);
        assert_eq!(code("".as_ref()), 127);
        assert_eq!(code(here.as_os_str()), 126);
        assert_eq!(code(here.join("tool/x").as_os_str()), 127);
    }

    #[test]
    fn only_a_static_program_that_is_no_loader_is_an_emulator() {
        let place = tempfile::tempdir().unwrap();
        // The head of an x86-64 file without program headers.
        let mut head = [0_u8; 64];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (head[18], head[0x36]) = (62, 56);
        for (name, expected) in [
            ("memcheck-amd64-linux", true),
            ("ld-linux-x86-64.so.2", false),
        ] {
            let path = place.path().join(name);
            fs::write(&path, head).unwrap();
            let expected = expected.then(|| Unpatched::Emulator(path.clone()));
            assert_eq!(emulator(&path), expected);
        }
        assert_eq!(emulator(&std::env::current_exe().unwrap()), None);
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let place = tempfile::tempdir().unwrap();
        let here = place.path();
        let inner = script(here, "inner", "#! /proc/self/exe -x\n", 0o755);
        let outer = script(here, "outer", &format!("#!{}\n", inner.display()), 0o755);
        assert_eq!(examine(&outer), None, "this test has a loader");
        let text = script(here, "text", "echo\n", 0o755);
        assert_eq!(examine(&text), Some(Unpatched::Foreign(text)));
        let round = here.join("round");
        let round = script(here, "round", &format!("#!{}\n", round.display()), 0o755);
        assert_eq!(examine(&round), None, "the kernel will say what is wrong");
    }

    #[test]
    fn other_machines_are_told() {
        let place = tempfile::tempdir().unwrap();
        let mut file = fs::read("/proc/self/exe").unwrap();
        file.truncate(1 << 16);
        file[18] = 183;
        let path = place.path().join("arm");
        fs::write(&path, &file).unwrap();
        assert_eq!(examine(&path), Some(Unpatched::Foreign(path)));
    }
}
