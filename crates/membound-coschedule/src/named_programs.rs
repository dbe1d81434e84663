//! Finds the programs of a harvest, and refuses those that cannot run as requested.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use membound_launch::{Headers, Unpatched};
use membound_rewrite::image::{Error as ImageError, Image, Unsupported};

use crate::error::Error;

/// A program of the harvest: its executable, and the words with which it is called.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) path: PathBuf,
    /// The file that its plan must be for: the executable itself, or the shared object that it runs.
    pub(crate) code: PathBuf,
    pub(crate) words: Vec<OsString>,
    /// Number of the scavenger, from 1; 0: no scavenger.
    pub(crate) number: usize,
    /// Why it cannot run in another program's process, where its file shows it; it then runs as an ordinary
    /// process.
    pub(crate) no_scavenger: Option<String>,
}

/// The request for one copy of a scavenger, as the document records it.
#[derive(Clone, Debug)]
pub(crate) struct CopyRequest {
    pub(crate) words: Vec<String>,
    pub(crate) copy: u32,
    pub(crate) output: Option<String>,
}

/// membound's own host program, whose stalls are harvested where there is no command.
pub(crate) fn host() -> Program {
    let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("membound"));
    Program {
        code: path.clone(),
        words: vec![path.clone().into_os_string(), "__harvest-host".into()],
        number: 0,
        no_scavenger: None,
        path,
    }
}

/// The program named by the first of `words`, found in `search` as a shell would find it.
pub(crate) fn command(words: &[OsString], search: Option<&OsStr>) -> Result<Program, Error> {
    let name = words.first().cloned().unwrap_or_default();
    let path = membound_launch::find(&name, search).map_err(Error::CannotRun)?;
    Ok(Program {
        code: path.clone(),
        path,
        words: words.to_vec(),
        number: 0,
        no_scavenger: None,
    })
}

/// The scavengers named by the command lines `commands`.
pub(crate) fn scavengers(
    commands: &[String],
    search: Option<&OsStr>,
) -> Result<Vec<Program>, String> {
    if commands.is_empty() {
        return Err("there is no scavenger: name one with --scavenger \"CMD\"".to_owned());
    }
    (1..)
        .zip(commands)
        .map(|(number, command)| {
            let words = shlex::split(command)
                .filter(|words| !words.is_empty())
                .ok_or_else(|| {
                    format!("`{command}` is not a command: a quote is open, or it is empty")
                })?;
            let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            let given = words[0].clone();
            let path = find(&given, search)?;
            let no_scavenger = why_no_scavenger(&path)?;
            if is_object(&path) {
                let host = std::env::current_exe().map_err(|error| error.to_string())?;
                let object = std::path::absolute(&path).map_err(|error| error.to_string())?;
                words[0] = object.clone().into_os_string();
                words.insert(0, "__run-object".into());
                words.insert(0, host.clone().into_os_string());
                return Ok(Program {
                    path: host,
                    code: object,
                    words,
                    number,
                    no_scavenger,
                });
            }
            Ok(Program {
                code: path.clone(),
                path,
                words,
                number,
                no_scavenger,
            })
        })
        .collect()
}

/// An executable by its name, or a shared object by its path.
fn find(name: &OsString, search: Option<&OsStr>) -> Result<PathBuf, String> {
    let path = Path::new(name);
    if path.components().count() > 1 && is_object(path) {
        return Ok(path.to_owned());
    }
    let found = membound_launch::find(name, search);
    let found = found.map_err(|error| error.to_string())?;
    std::path::absolute(&found).map_err(|error| error.to_string())
}

/// Why a program cannot run in another program's process, as far as its file shows: then it runs as an
/// ordinary process, and the kernel refuses it if it is no program for this machine. A file that no kernel
/// executes is an error.
fn why_no_scavenger(path: &Path) -> Result<Option<String>, String> {
    let refused = |why: &dyn Display| format!("{} cannot be a scavenger: {why}", path.display());
    let bytes = match membound_launch::map_file(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Ok(Some("its file can be executed but not read".to_owned()));
        }
        Err(error) => return Err(refused(&error)),
    };
    if bytes.starts_with(b"#!") {
        // The program that executes is the interpreter, not the script's file.
        let why =
            "it is a script (name its interpreter as the program, and that can be a scavenger)";
        return Ok(Some(why.to_owned()));
    }
    match Image::identify(&bytes) {
        Ok(_) => {}
        Err(ImageError::Unsupported(why @ (Unsupported::NotElf | Unsupported::Kind))) => {
            return Err(refused(&why));
        }
        Err(ImageError::Unsupported(Unsupported::Machine)) => {
            return Ok(Some("it is not x86-64 code".to_owned()));
        }
        Err(ImageError::Unsupported(Unsupported::Go)) => {
            return Ok(Some(
                "it is a Go program, whose runtime moves stacks and starts threads".to_owned(),
            ));
        }
        Err(why) => return Ok(Some(why.to_string())),
    }
    let has_mode = std::fs::metadata(path).is_ok_and(|it| it.mode() & SETUID_OR_SETGID != 0);
    let raises_rights = || {
        matches!(
            membound_launch::examine(path),
            Some(Unpatched::Privileged(_))
        )
    };
    Ok((has_mode || raises_rights())
        .then(|| "its file gives it other rights (setuid, setgid or capabilities)".to_owned()))
}

/// Mode bits (set-user-ID, set-group-ID) that give a program the rights of its file's owner or group.
const SETUID_OR_SETGID: u32 = 0o6000;

/// Whether a file is a shared object without an interpreter, which the kernel cannot run as a program.
fn is_object(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut start));
    // `e_type` 3: a shared object or a position-independent executable.
    read.is_ok()
        && start.get(16..18) == Some(&[3, 0])
        && Headers::parse(&start).is_some_and(|headers| !headers.has_interpreter())
        && !is_static_executable(&start)
}

/// Whether the ELF entry point is set: a static position-independent executable has one, a shared object has
/// none.
fn is_static_executable(start: &[u8]) -> bool {
    start.get(24..32).is_some_and(|entry| entry != [0; 8])
}

/// Words in the form of the document.
pub(crate) fn texts(words: &[OsString]) -> Vec<String> {
    let texts = words.iter().map(|word| word.to_string_lossy());
    texts.map(std::borrow::Cow::into_owned).collect()
}
