//! The programs of a harvest: found, and refused where they cannot run as they are asked to.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use membound_launch::{Headers, Unpatched};
use membound_rewrite::image::{Error, Image, Unsupported};

use super::args::RunArgs;

/// A scavenger as it was asked for: its executable, and the words that it is called with.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// What is executed.
    pub(super) path: PathBuf,
    /// What its plan must be for: the same, or the shared object that it runs.
    pub(super) code: PathBuf,
    pub(super) words: Vec<OsString>,
    /// Which of the scavengers it is, from 1; 0: none.
    pub(super) number: usize,
    /// Why it can run in no other program's process, where that is known: it runs as an ordinary process.
    pub(super) no_guest: Option<String>,
}

/// What a scavenger was asked to be.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) words: Vec<String>,
    pub(super) copy: u32,
    pub(super) output: Option<String>,
}

/// The program whose stalls are harvested.
pub(super) fn primary(args: &RunArgs) -> Result<Wanted, membound_launch::CannotRun> {
    if args.no_primary {
        let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("membound"));
        return Ok(Wanted {
            code: path.clone(),
            words: vec![path.clone().into_os_string(), "__harvest-host".into()],
            number: 0,
            no_guest: None,
            path,
        });
    }
    command(&args.command)
}

/// The program that `words` begin with, as a shell would find it.
pub(super) fn command(words: &[OsString]) -> Result<Wanted, membound_launch::CannotRun> {
    let name = words.first().cloned().unwrap_or_default();
    let path = membound_launch::find(&name, std::env::var_os("PATH").as_deref())?;
    Ok(Wanted {
        code: path.clone(),
        path,
        words: words.to_vec(),
        number: 0,
        no_guest: None,
    })
}

/// The programs that are to run in them.
pub(super) fn scavengers(commands: &[String]) -> Result<Vec<Wanted>, String> {
    if commands.is_empty() {
        return Err("there is no scavenger: name one with --scavenger \"CMD\"".to_owned());
    }
    (1..)
        .zip(commands)
        .map(|(number, command)| {
            let words = shlex::split(command)
                .filter(|words| !words.is_empty())
                .ok_or_else(|| {
                    format!("`{command}` is no command: a quote is open, or it is empty")
                })?;
            let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            let given = words[0].clone();
            let path = find(&given)?;
            let no_guest = why_no_guest(&path)?;
            if is_object(&path) {
                let host = std::env::current_exe().map_err(|error| error.to_string())?;
                let object = std::path::absolute(&path).map_err(|error| error.to_string())?;
                words[0] = object.clone().into_os_string();
                words.insert(0, "__run-object".into());
                words.insert(0, host.clone().into_os_string());
                return Ok(Wanted {
                    path: host,
                    code: object,
                    words,
                    number,
                    no_guest,
                });
            }
            Ok(Wanted {
                code: path.clone(),
                path,
                words,
                number,
                no_guest,
            })
        })
        .collect()
}

/// An executable by its name, or a shared object by its path.
fn find(name: &OsString) -> Result<PathBuf, String> {
    let path = Path::new(name);
    if path.components().count() > 1 && is_object(path) {
        return Ok(path.to_owned());
    }
    let found = membound_launch::find(name, std::env::var_os("PATH").as_deref());
    let found = found.map_err(|error| error.to_string())?;
    std::path::absolute(&found).map_err(|error| error.to_string())
}

/// Why a program can run in no other program's process, where its file tells: then the kernel runs it, and refuses
/// it where it is no program of this machine. A file that no kernel executes is an error.
fn why_no_guest(path: &Path) -> Result<Option<String>, String> {
    let refused = |why: &dyn Display| format!("{} cannot be a scavenger: {why}", path.display());
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Ok(Some("its file can be executed and not be read".to_owned()));
        }
        Err(error) => return Err(refused(&error)),
    };
    if bytes.starts_with(b"#!") {
        // What its interpreter executes is not the script's.
        let why = "it is a script (with its interpreter named before it, that can take turns)";
        return Ok(Some(why.to_owned()));
    }
    match Image::identify(&bytes) {
        Ok(_) => {}
        Err(Error::Unsupported(why @ (Unsupported::NotElf | Unsupported::Kind))) => {
            return Err(refused(&why));
        }
        Err(Error::Unsupported(Unsupported::Machine)) => {
            return Ok(Some("it is not x86-64 code".to_owned()));
        }
        Err(Error::Unsupported(Unsupported::Go)) => {
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
    Ok((has_mode || raises_rights()).then(|| "it runs with rights of its own file".to_owned()))
}

/// Bits of a file's mode by which a program gets the rights of the file's owner or group.
const SETUID_OR_SETGID: u32 = 0o6000;

/// Whether a file is a shared object that no loader would run.
fn is_object(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut start));
    // e_type 3: a shared object, or an executable without a fixed place.
    read.is_ok()
        && start.get(16..18) == Some(&[3, 0])
        && Headers::parse(&start).is_some_and(|headers| !headers.has_interpreter())
        && !is_static_executable(&start)
}

/// A static executable without a fixed place has an entry; a shared object begins nowhere.
fn is_static_executable(start: &[u8]) -> bool {
    start.get(24..32).is_some_and(|entry| entry != [0; 8])
}

/// Words as documents have them.
pub(super) fn texts(words: &[OsString]) -> Vec<String> {
    let texts = words.iter().map(|word| word.to_string_lossy());
    texts.map(std::borrow::Cow::into_owned).collect()
}
