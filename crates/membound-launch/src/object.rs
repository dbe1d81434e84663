//! Runs a shared object like a program: finds its `main` or `entry` and calls it.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;

/// Names of the called function, in order of preference.
const NAMES: [&CStr; 2] = [c"main", c"entry"];

/// Why a shared object cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An argument with a zero byte.
    #[error("an argument has a zero byte")]
    Argument,
    /// The loader's error message.
    #[error("{0}")]
    Loader(String),
    /// Neither `main` nor `entry`.
    #[error("{0} has neither `main` nor `entry`")]
    NoEntry(String),
}

/// Loads the shared object named by the first of `words` and calls its `main`, or its `entry`, with all
/// words and the environment. Ends the process with the function's result, as for a program's `main`.
///
/// # Errors
/// If there is no function to call.
pub fn run_object(words: Vec<OsString>) -> Result<std::convert::Infallible, ObjectError> {
    let words = words
        .into_iter()
        .map(|word| CString::new(word.into_vec()).map_err(|_| ObjectError::Argument))
        .collect::<Result<Vec<_>, _>>()?;
    let path = words.first().ok_or(ObjectError::Argument)?;
    // SAFETY: the path is a string. Initialisers of the object run as if it had been linked.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if object.is_null() {
        return Err(ObjectError::Loader(loader_error()));
    }
    let found = NAMES.iter().find_map(|name| {
        // SAFETY: the object is open, and the name a string.
        let found = unsafe { libc::dlsym(object, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    let found = found.ok_or_else(|| ObjectError::NoEntry(path.to_string_lossy().into_owned()))?;
    let mut pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let count = c_int::try_from(words.len()).map_err(|_| ObjectError::Argument)?;
    type Main = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) -> c_int;
    // SAFETY: a function of one of these names has this type by convention.
    let main: Main = unsafe { std::mem::transmute::<*mut c_void, Main>(found) };
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's variable of that name; no other thread runs in this process.
    let environment = unsafe { environ };
    // SAFETY: the arguments are those of a program's `main`.
    let code = unsafe { main(count, pointers.as_ptr(), environment) };
    // SAFETY: exit handlers run, and buffers are written.
    unsafe { libc::exit(code) }
}

/// The loader's last error message.
fn loader_error() -> String {
    // SAFETY: it takes nothing.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: the loader's text is a string until its next call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_says_why() {
        let run = |path: &str| run_object(vec![path.into()]).unwrap_err().to_string();
        assert!(run("/nowhere/x.so").contains("/nowhere/x.so"));
        assert_eq!(run("a\0b"), "an argument has a zero byte");
        let libraries = ["libm.so.6", "libc.musl-x86_64.so.1"];
        let outputs: Vec<String> = libraries.iter().map(|name| run(name)).collect();
        assert!(
            outputs
                .iter()
                .any(|output| output.ends_with("has neither `main` nor `entry`")),
            "{outputs:?}"
        );
    }
}
