//! Programs that must be alone in their process, or count on it: the agent's control thread is one thread too many.
//!
//! The kernel gives a user namespace to processes of one thread only, and the sandbox of Chromium ends its
//! process where `/proc/self/task` has more than one entry.

use crate::entry::Frame;
use crate::sys::{self, call, number};
use crate::{listen, memory};

/// `unshare` and `setns`, without the control thread where the program has one thread. `None`: the trampoline is
/// to make the call as it stands.
pub(crate) fn without_control_thread(frame: &Frame) -> Option<isize> {
    /// `CLONE_VM`, `CLONE_SIGHAND`, `CLONE_THREAD` and `CLONE_NEWUSER`.
    const UNSHARED_ALONE: u64 = 0x100 | 0x800 | 0x1_0000 | 0x1000_0000;
    /// `CLONE_NEWUSER`, and `CLONE_NEWNS`, for which no other thread may share the root directory.
    const ENTERED_ALONE: u64 = 0x1000_0000 | 0x2_0000;
    const WITH_CONTROL_THREAD: u64 = 2;
    let needed = match (frame.rax as usize, frame.rsi) {
        (number::UNSHARE, _) => frame.rdi & UNSHARED_ALONE != 0,
        // 0: of whatever kind the descriptor is.
        (_, kinds) => kinds == 0 || kinds & ENTERED_ALONE != 0,
    };
    if !needed {
        return None;
    }
    listen::thread()?;
    if sys::threads() != WITH_CONTROL_THREAD || !listen::pause() {
        return None;
    }
    let result = as_it_stands(frame);
    // A process whose children are to have another namespace of processes can start no thread: its patches stay.
    let _ = listen::start_again();
    Some(result)
}

/// `newfstatat`: the directory of the process's threads has one link fewer than the kernel says. `None`: the
/// trampoline is to make the call as it stands.
pub(crate) fn stat(frame: &Frame) -> Option<isize> {
    /// Of `st_nlink` in `struct stat`.
    const LINKS_OFFSET: usize = 16;
    listen::thread()?;
    let result = as_it_stands(frame);
    if result != 0 {
        return Some(result);
    }
    // SAFETY: the kernel has just read the path.
    let path: &[u8] = unsafe { memory::c_string(frame.rsi as usize) };
    if names_own_threads(path, sys::process()) {
        let place = frame.rdx as usize + LINKS_OFFSET;
        // SAFETY: the kernel has just written the structure there.
        let links: u64 = unsafe { memory::get(place) };
        // SAFETY: as above.
        unsafe { memory::put(place, links.saturating_sub(1)) };
    }
    Some(result)
}

/// Makes the call as the program has it.
fn as_it_stands(frame: &Frame) -> isize {
    let arguments = [
        frame.rdi as usize,
        frame.rsi as usize,
        frame.rdx as usize,
        frame.r10 as usize,
        frame.r8 as usize,
        frame.r9 as usize,
    ];
    // SAFETY: the program asked for this call.
    unsafe { call(frame.rax as usize, arguments) }
}

/// Whether `path`, perhaps relative to `/proc`, is the directory of the threads of `process`, the calling one.
fn names_own_threads(path: &[u8], process: u32) -> bool {
    let mut parts = path
        .rsplit(|&byte| byte == b'/')
        .filter(|part| !part.is_empty());
    if parts.next() != Some(b"task") {
        return false;
    }
    parts.next().is_some_and(|whose| {
        whose == b"self"
            || (whose.iter().all(u8::is_ascii_digit)
                && memory::number(whose) == Some(u64::from(process)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_s_own_threads_are_meant() {
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
