//! Starts a command as a shell would: with the environment in its order, and with the signal dispositions
//! that this process got.
//!
//! The standard library sorts the environment, empties the signal mask and always resets SIGPIPE to its
//! default; some programs can notice each of these.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if this process was started with SIGPIPE ignored. Read before `main`, since the standard library
/// then ignores it.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the loader calls every function of this section once, before any other code runs.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and the kernel fills the struct in.
    let result = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), found.as_mut_ptr()) };
    // SAFETY: a struct of integers, zeroed and perhaps filled in.
    let found = unsafe { found.assume_init() };
    let ignored = result == 0 && found.sa_sigaction == libc::SIG_IGN;
    PIPE_IGNORED.store(ignored, Ordering::Relaxed);
}

/// Starts `path`; returns its process number.
pub(crate) fn spawn(path: &Path, words: &[OsString], environment: &[OsString]) -> io::Result<u32> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let words = strings(words)?;
    let environment = strings(environment)?;
    let attributes = Attributes::new()?;
    let mut pid = 0;
    // SAFETY: strings end with zero bytes, lists with null, and all live until the call returns.
    let error = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            std::ptr::null(),
            &raw const attributes.0,
            pointers(&words).as_ptr(),
            pointers(&environment).as_ptr(),
        )
    };
    check(error)?;
    u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn strings(words: &[OsString]) -> io::Result<Vec<CString>> {
    let strings = words.iter().map(|word| CString::new(word.as_bytes()));
    Ok(strings.collect::<Result<_, _>>()?)
}

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr().cast_mut());
    pointers.chain([std::ptr::null_mut()]).collect()
}

fn check(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        // These functions return the error number instead of setting errno.
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Spawn attributes: the program inherits all dispositions, except SIGPIPE where it was not ignored.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initialises the attributes.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: it has just been made.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        if !PIPE_IGNORED.load(Ordering::Relaxed) {
            attributes.default_for_pipes()?;
        }
        Ok(attributes)
    }

    fn default_for_pipes(&mut self) -> io::Result<()> {
        let mut signals = MaybeUninit::uninit();
        // SAFETY: the call initialises the set.
        let made = unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
        // SAFETY: the set is initialised, and the signal number is valid.
        let added = unsafe { libc::sigaddset(signals.as_mut_ptr(), libc::SIGPIPE) };
        if made != 0 || added != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the attributes and the set have been made.
        let set = unsafe { libc::posix_spawnattr_setsigdefault(&raw mut self.0, signals.as_ptr()) };
        check(set)?;
        let flags = libc::POSIX_SPAWN_SETSIGDEF as libc::c_short;
        // SAFETY: the attributes have been made.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut self.0, flags) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the attributes are initialised and not used any more. The call cannot fail.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// The value of `name` in `environment`.
pub(crate) fn value<'a>(environment: &'a [OsString], name: &str) -> Option<&'a OsStr> {
    environment.iter().find_map(|entry| {
        let rest = entry.as_bytes().strip_prefix(name.as_bytes())?;
        rest.strip_prefix(b"=").map(OsStr::from_bytes)
    })
}

/// Sets the variable `name`: in its place, or behind all others.
pub(crate) fn set(environment: &mut Vec<OsString>, name: &str, value: &OsStr) {
    let mut entry = OsString::from(name);
    entry.push("=");
    let head = entry.as_bytes().to_vec();
    entry.push(value);
    let known = environment
        .iter_mut()
        .find(|known| known.as_bytes().starts_with(&head));
    match known {
        Some(known) => *known = entry,
        None => environment.push(entry),
    }
}

/// True if a command without an ELF header is to be run by the shell, by an old convention.
pub(crate) fn is_script_without_magic(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| io::Read::read(&mut file, &mut start));
    read.is_ok_and(|length| start[..length] != *b"\x7fELF")
}

/// The environment of this process as `NAME=value`, in its order, including entries that are no variables.
#[must_use]
pub fn environment() -> Vec<OsString> {
    let kept = std::fs::read("/proc/self/environ").unwrap_or_default();
    if kept.is_empty() {
        return std::env::vars_os()
            .map(|(mut entry, value)| {
                entry.push("=");
                entry.push(value);
                entry
            })
            .collect();
    }
    let kept = kept.strip_suffix(b"\0").unwrap_or(&kept);
    kept.split(|byte| *byte == 0)
        .map(|entry| OsString::from_vec(entry.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_set_where_it_stands() {
        let mut environment: Vec<OsString> = ["B=1", "A=", "odd", "AB=2"].map(Into::into).into();
        set(&mut environment, "A", "x".as_ref());
        set(&mut environment, "C", "y=z".as_ref());
        assert_eq!(environment, ["B=1", "A=x", "odd", "AB=2", "C=y=z"]);
        assert_eq!(value(&environment, "C"), Some("y=z".as_ref()));
        assert_eq!(value(&environment, "odd"), None);
        set(&mut environment, "B", "".as_ref());
        assert_eq!(value(&environment, "B"), Some("".as_ref()));
    }

    #[test]
    fn what_cannot_be_started_is_told() {
        let missing = spawn(Path::new("/no/such/program"), &[], &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let zero = spawn(Path::new("/bin/true"), &["a\0b".into()], &[]).unwrap_err();
        assert_eq!(zero.kind(), io::ErrorKind::InvalidInput);
    }
}
