//! Programs that require or expect a single thread in their process: the agent's control thread would be
//! one too many.
//!
//! The kernel gives a user namespace only to processes with one thread, and the sandbox of Chromium ends
//! its process if `/proc/self/task` has more than one entry.

use crate::memory;
use crate::sys::{self, number};

/// A system call of the program.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: usize,
    pub(crate) arguments: [usize; 6],
}

impl Call {
    fn make(self) -> isize {
        // SAFETY: the program asked for this call.
        unsafe { sys::call(self.number, self.arguments) }
    }
}

/// Makes `unshare` or `setns` without the control thread, if the program has one thread: `pause` ends the
/// control thread if it runs, and `start_again` restarts it. `None`: the trampoline is to make the call
/// itself.
pub(crate) fn without_control_thread(
    call: Call,
    pause: impl FnOnce() -> bool,
    start_again: impl FnOnce(),
) -> Option<isize> {
    /// `CLONE_VM`, `CLONE_SIGHAND`, `CLONE_THREAD` and `CLONE_NEWUSER`.
    const UNSHARED_ALONE: u64 = 0x100 | 0x800 | 0x1_0000 | 0x1000_0000;
    /// `CLONE_NEWUSER`, and `CLONE_NEWNS`, for which no other thread may share the root directory.
    const ENTERED_ALONE: u64 = 0x1000_0000 | 0x2_0000;
    const WITH_CONTROL_THREAD: u64 = 2;
    let [first, second, ..] = call.arguments.map(|it| it as u64);
    let needed = match (call.number, second) {
        (number::UNSHARE, _) => first & UNSHARED_ALONE != 0,
        // 0: for a descriptor of any kind.
        (_, kinds) => kinds == 0 || kinds & ENTERED_ALONE != 0,
    };
    if !needed || sys::threads() != WITH_CONTROL_THREAD || !pause() {
        return None;
    }
    let result = call.make();
    start_again();
    Some(result)
}

/// Makes `newfstatat`. For the directory of the process's threads it reports one link fewer, since the
/// kernel counts the control thread.
pub(crate) fn stat(call: Call) -> isize {
    /// Offset of `st_nlink` in `struct stat`.
    const LINKS_OFFSET: usize = 16;
    let result = call.make();
    if result != 0 {
        return result;
    }
    let [_, path, place, ..] = call.arguments;
    // SAFETY: the kernel has just read the path.
    let path: &[u8] = unsafe { memory::c_string(path) };
    if names_own_threads(path, sys::process()) {
        let place = place + LINKS_OFFSET;
        // SAFETY: the kernel has just written the structure there.
        let links: u64 = unsafe { memory::get(place) };
        // SAFETY: as above.
        unsafe { memory::put(place, links.saturating_sub(1)) };
    }
    result
}

/// True if `path`, absolute or relative to `/proc`, is the thread directory of `process`, the calling one.
fn names_own_threads(path: &[u8], process: u32) -> bool {
    let mut parts = path
        .rsplit(|&byte| byte == b'/')
        .filter(|part| !part.is_empty());
    if parts.next() != Some(b"task") {
        return false;
    }
    parts.next().is_some_and(|owner| {
        owner == b"self"
            || (owner.iter().all(u8::is_ascii_digit)
                && memory::number(owner) == Some(u64::from(process)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_s_own_threads_match() {
        for (path, expected) in [
            ("/proc/self/task", true),
            ("self/task/", true),
            ("/proc/17/task", true),
            ("/proc/18/task", false),
            ("/proc/self/task/17", false),
            ("task", false),
            ("/proc/self", false),
            ("", false),
        ] {
            assert_eq!(names_own_threads(path.as_bytes(), 17), expected, "{path}");
        }
    }
}
