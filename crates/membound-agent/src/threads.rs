//! State of the process's threads as `/proc` reports it: where they are, which signals they block, whether
//! they live.

use membound_wire::Refusal;

use crate::failure::Failure;
use crate::memory::{self, Line, number};
use crate::sys::{self, Errno, Open, Scratch};

/// SIGTRAP as a mask: the kernel kills a thread that traps while it blocks this signal.
const TRAPS: u64 = 1 << 4;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs, or may be about to.
    Running,
    /// Blocked in the kernel, with this instruction pointer.
    Blocked(u64),
    /// As `Blocked`, but it blocks SIGTRAP: a trap would kill it when it is woken.
    BlocksTraps,
    /// It has ended.
    Gone,
}

/// Gives a signal that has arrived at one of membound's threads (`is_agents`) to a thread of the program,
/// if possible one that does not block it, as the kernel would have.
///
/// The kernel lets no process send a signal as if by `kill` to one thread: the program sees a signal of
/// `sigqueue` by the same sender.
pub(crate) fn pass_on(signal: u32, information: usize, is_agents: impl Fn(u32) -> bool) {
    let Ok(mut room) = room_for_threads() else {
        return;
    };
    const CODE_OFFSET: usize = 8;
    // SAFETY: it is the `siginfo_t` that the kernel passed with a signal that a process has sent.
    unsafe { memory::put(information + CODE_OFFSET, sys::SI_QUEUE) };
    let (mut blocking, mut ready) = (None, None);
    let visited = each(&mut room, |thread| {
        if ready.is_none() && !is_agents(thread) && !ended(thread) {
            let to = if blocks(thread, 1 << (signal - 1)) {
                &mut blocking
            } else {
                &mut ready
            };
            *to = Some(thread);
        }
        Ok(())
    });
    if visited.is_ok()
        && let Some(thread) = ready.or(blocking)
    {
        sys::send_again(thread, signal, information);
    }
}

fn hidden(errno: Errno) -> Failure {
    Failure::new(errno, Refusal::ThreadsHidden)
}

/// Allocates the buffer that [`each`] needs.
pub(crate) fn room_for_threads() -> Result<Scratch, Failure> {
    const DIRECTORY_BUFFER_BYTES: usize = 32 << 10;
    Scratch::new(DIRECTORY_BUFFER_BYTES).map_err(hidden)
}

/// Calls `visit` with the number of every thread of the process.
pub(crate) fn each(
    room: &mut Scratch,
    mut visit: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<(), Failure> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let directory = sys::open(c"/proc/self/task", Open::Directory).map_err(hidden)?;
    loop {
        let filled = sys::directory_entries(&directory, room.bytes()).map_err(hidden)?;
        if filled == 0 {
            return Ok(());
        }
        let mut rest = room.bytes().get(..filled).unwrap_or_default();
        while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let name = rest.get(NAME..length).unwrap_or_default();
            if let Some(thread) = number(name) {
                visit(thread as u32)?;
            }
            match rest.get(length..) {
                Some(next) if length > 0 => rest = next,
                _ => break,
            }
        }
    }
}

/// True if a thread waits in a system call that the program has made.
pub(crate) fn waits_in_call(thread: u32) -> bool {
    let mut text = [0_u8; 512];
    let Some(text) = read_of(thread, b"/syscall", &mut text) else {
        return false;
    };
    // Outside of system calls the file begins with -1 or `running`.
    text.first().is_some_and(u8::is_ascii_digit)
        && matches!(blocked(text), State::Blocked(ip) if ip != 0 && !in_agent(ip))
}

/// True if a thread is past the few instructions of the agent that it may have executed when its CPU time
/// was `since_ns`: it has run for far longer since, waits in a system call of its own, or has ended.
pub(crate) fn has_moved_on(thread: u32, since_ns: u64) -> bool {
    const MIN_PROGRESS_NS: u64 = 1_000_000;
    sys::cpu_ns(thread).is_none_or(|now| now.saturating_sub(since_ns) >= MIN_PROGRESS_NS)
        || waits_in_call(thread)
        || ended(thread)
}

/// Exit code for the process if no thread is left but membound's and those for which `beside` is true.
pub(crate) fn exit_code_without_others(is_exempt: impl Fn(u32) -> bool) -> Option<u32> {
    let own = sys::thread();
    if !ended(sys::process()) {
        return None;
    }
    let mut room = room_for_threads().ok()?;
    let mut any_other = false;
    each(&mut room, |thread| {
        let is_own = thread == own || crate::listen::is_own(thread) || is_exempt(thread);
        any_other |= !is_own && thread != sys::process();
        Ok(())
    })
    .ok()?;
    if any_other {
        return None;
    }
    exit_code(sys::process())
}

/// Where a thread of this process is.
pub(crate) fn state(thread: u32, process: u32) -> State {
    let mut text = [0_u8; 512];
    let Some(text) = read_of(thread, b"/syscall", &mut text) else {
        // The file can be read for every thread that lives; check that.
        return if sys::thread_exists(process, thread) {
            State::Running
        } else {
            State::Gone
        };
    };
    let state = blocked(text);
    match state {
        // The kernel's own worker threads never execute code of the program.
        State::Blocked(0) => state,
        // With a system call: the thread talks to the launcher with all signals blocked, and may be waiting
        // for this very change to end. It restores its mask before it leaves the agent's text, which is
        // never changed. Without a system call: the kernel reads a page for the thread, which may be in a
        // handler that has already decided where the thread continues.
        State::Blocked(ip) if in_agent(ip) && text.starts_with(b"-1") => State::Running,
        State::Blocked(ip) if in_agent(ip) => state,
        State::Blocked(_) if blocks(thread, TRAPS) => State::BlocksTraps,
        other => other,
    }
}

/// True if `ip` is in the agent's text.
pub(crate) fn in_agent(ip: u64) -> bool {
    let [start, end] = crate::assembly::own_range();
    (start..end).contains(&ip)
}

/// Parses `/proc/…/syscall`: `running`, or the number of the system call (-1 for none), six arguments,
/// stack pointer and instruction pointer.
fn blocked(text: &[u8]) -> State {
    // The parent is blocked in one of these calls while a child runs that shares its memory. A parent that
    // makes a child with a copy may not have copied the text yet.
    const MAKES_PROCESSES: [&[u8]; 4] = [b"56", b"57", b"58", b"435"];
    let text = text.trim_ascii_end();
    let mut words = text.split(|&byte| byte == b' ');
    let first = words.next().unwrap_or_default();
    if MAKES_PROCESSES.contains(&first) {
        return State::Running;
    }
    words
        .next_back()
        .and_then(number)
        .map_or(State::Running, State::Blocked)
}

/// True if the thread blocks one of `signals`. The control thread blocks all of them, but it executes no
/// patched text, so it counts as blocking none.
pub(crate) fn blocks(thread: u32, signals: u64) -> bool {
    !crate::listen::is_own(thread)
        && blocked_signals(thread).is_some_and(|mask| mask & signals != 0)
}

/// Signal mask of a thread; `None` if it cannot be read.
pub(crate) fn blocked_signals(thread: u32) -> Option<u64> {
    let mut text = [0_u8; 2048];
    field(read_of(thread, b"/status", &mut text)?, b"SigBlk:")
}

/// True if a thread runs or is ready to run, outside of system calls.
pub(crate) fn is_running(thread: u32) -> bool {
    let mut text = [0_u8; 512];
    read_of(thread, b"/syscall", &mut text).is_some_and(|text| text.starts_with(b"running"))
}

/// True if the calling thread is the only one left: the first thread of a process stays as a zombie until
/// the last one ends.
pub(crate) fn last() -> bool {
    const EITHER: u64 = 2;
    sys::threads() <= EITHER && ended(sys::process())
}

/// True if a thread of this process has ended.
pub(crate) fn has_ended(thread: u32) -> bool {
    ended(thread)
}

/// True if the thread is a zombie.
fn ended(thread: u32) -> bool {
    let mut text = [0_u8; 512];
    // The state follows the name, which may hold any characters.
    read_of(thread, b"/stat", &mut text).is_some_and(|text| {
        let name_end = text.iter().rposition(|&byte| byte == b')');
        name_end.is_some_and(|at| text.get(at + 1..at + 3) == Some(b" Z"))
    })
}

/// Minor page faults of a thread so far (no I/O needed); `None` if `stat` cannot be read.
pub(crate) fn minor_faults(thread: u32) -> Option<u64> {
    let mut text = [0_u8; 512];
    minor_faults_in(read_of(thread, b"/stat", &mut text)?)
}

/// The eighth field behind the name of a `stat`.
fn minor_faults_in(text: &[u8]) -> Option<u64> {
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text.get(name_end + 2..)?.split(|&byte| byte == b' ');
    number(fields.nth(7)?)
}

/// Exit code of a thread that is a zombie.
pub(crate) fn exit_code(thread: u32) -> Option<u32> {
    let mut text = [0_u8; 1024];
    exit_code_in(read_of(thread, b"/stat", &mut text)?)
}

/// The last field of a `stat`: the exit code as `wait` encodes it.
fn exit_code_in(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_end();
    let at = text.iter().rposition(|&byte| byte == b' ')?;
    let status = u32::try_from(number(text.get(at + 1..)?)?).ok()?;
    Some(status >> 8 & 0xff)
}

/// True if a debugger is attached to this process.
pub(crate) fn traced() -> bool {
    let mut text = [0_u8; 2048];
    read_of(sys::thread(), b"/status", &mut text)
        .and_then(|text| {
            let at = text
                .windows(b"TracerPid:".len())
                .position(|window| window == b"TracerPid:")?;
            number(text.get(at + b"TracerPid:".len()..)?.trim_ascii_start())
        })
        .is_some_and(|tracer| tracer != 0)
}

/// The hexadecimal field `name` of a status file.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = text.windows(name.len()).position(|window| window == name)?;
    let value = text.get(at + name.len()..)?.trim_ascii_start();
    let mut result = 0_u64;
    for &byte in value {
        let Some(digit) = char::from(byte).to_digit(16) else {
            break;
        };
        result = result << 4 | u64::from(digit);
    }
    Some(result)
}

/// Time that a thread has waited for a processor so far, in nanoseconds; `None` if the kernel does not
/// report it.
pub(crate) fn delay_ns(thread: u32) -> Option<u64> {
    let mut text = [0_u8; 96];
    second_number(read_of(thread, b"/schedstat", &mut text)?)
}

/// The second decimal number of a line.
fn second_number(text: &[u8]) -> Option<u64> {
    let mut words = text.split(|byte| !byte.is_ascii_digit());
    let word = words.nth(1).filter(|word| !word.is_empty())?;
    word.iter().try_fold(0_u64, |number, digit| {
        number
            .checked_mul(10)?
            .checked_add(u64::from(*digit - b'0'))
    })
}

fn read_of<'a>(thread: u32, name: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = Line::<48>::new();
    path.push(b"/proc/self/task/")?;
    path.push_number(thread)?;
    path.push(name)?;
    let file = sys::open(path.as_c_str()?, Open::Read).ok()?;
    let length = sys::read(&file, room).ok()?;
    room.get(..length).filter(|text| !text.is_empty())
}

/// True if the process has, or may have, more than one thread.
pub(crate) fn many_threads() -> bool {
    sys::threads() != 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn faults_are_parsed_behind_any_name() {
        let text = b"17 (a) 1 (b) R 1 17 17 34816 17 4194304 4711 0 1 0 3 2 0 0 20 0\n";
        assert_eq!(minor_faults_in(text), Some(4711));
        for text in [&b"17 (a) R 1"[..], b"", b"17 (a"] {
            assert_eq!(minor_faults_in(text), None);
        }
        let before = minor_faults(sys::thread()).unwrap();
        let touched = std::vec![1_u8; 16 << 20];
        assert!(std::hint::black_box(touched).len() > 1);
        assert!(minor_faults(sys::thread()).unwrap() > before);
    }

    #[test]
    fn the_time_that_a_thread_waited_for_a_processor_is_the_second_number() {
        assert_eq!(second_number(b"123456 789 12\n"), Some(789));
        for text in [&b"123"[..], b"", b"1  2", b"5 99999999999999999999 1"] {
            assert_eq!(second_number(text), None);
        }
    }

    #[test]
    fn an_exit_code_is_parsed() {
        assert_eq!(exit_code_in(b"7 (a b) Z 1 7 7 0 0 1792\n"), Some(7));
        assert_eq!(exit_code_in(b"7 (a b) Z 1 7 7 0 0 0\n"), Some(0));
        assert_eq!(exit_code_in(b""), None);
    }

    #[test]
    fn the_state_of_a_thread_is_parsed() {
        assert_eq!(blocked(b"running\n"), State::Running);
        assert_eq!(
            blocked(b"202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffe 0x401122\n"),
            State::Blocked(0x40_1122)
        );
        assert_eq!(blocked(b"-1 0x7ffe 0x401000\n"), State::Blocked(0x40_1000));
        assert_eq!(
            blocked(b"58 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffe 0x401122\n"),
            State::Running
        );
    }

    #[test]
    fn masks_are_read_from_status() {
        let text = b"Name:\tx\nSigBlk:\t0000000000000010\nSigIgn:\t0000000000000000\n";
        assert_eq!(field(text, b"SigBlk:"), Some(0x10));
    }
}
