//! Stopping the process's other threads for a moment.
//!
//! A running thread is called by a signal and stands in the handler ([`stand_still`]) until it is
//! let go; one that the kernel has blocked stays where it is, and is known by its
//! instruction pointer. Nothing here waits for a lock of the program's.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_wire::Refusal;

use crate::control::Failure;
use crate::memory::{self, Line, number};
use crate::sys::{self, Errno, Open, Scratch};
use crate::{guest, lanes, trap};

/// Most threads that can be stopped.
const THREADS: usize = 16384;
/// How long the other threads stand still at most while one that was called has not come. It is
/// long only because a busy machine may leave a runnable thread without a CPU for that time.
const LIMIT_NS: u64 = 1_000_000_000;
/// How long a thread may sleep with the signals of a change blocked, or how much CPU time it may
/// use so, before it counts as one that always blocks them. Handlers are shorter.
const REACHABLE_NS: u64 = 2_000_000;
/// Pause between two looks at such a thread.
const REACHABLE_POLL_NS: u64 = 500_000;
/// How long one waits for threads before looking again.
const PATIENCE_NS: u64 = 5_000_000;
/// The first time that is looked again without that anybody has come; each is twice as long as
/// the one before.
const FIRST_PATIENCE_NS: u64 = 30_000;
/// Marks a thread's entry once it stands still.
const STANDING: u32 = 1 << 31;
/// SIGTRAP in a mask: the kernel kills a thread that traps while it blocks that.
const TRAPS: u64 = 1 << 4;
/// [`trap::CALL`] in a mask.
const CALLS: u64 = 1 << (trap::CALL - 1);

/// Process and thread that stops the others; 0: nobody.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Odd while threads are to stand still: they wait for it to change.
static TURN: AtomicU32 = AtomicU32::new(0);
/// Counts the threads that came to stand.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Threads that were called, with [`STANDING`] once they came.
static ROLL: [AtomicU32; THREADS] = [const { AtomicU32::new(0) }; THREADS];
static CALLED: AtomicU32 = AtomicU32::new(0);

/// The right to stop threads, and those stopped by it. They run on when it is dropped.
#[derive(Debug)]
pub(crate) struct Lineup {
    room: Option<Scratch>,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It came and stands.
    Standing,
    /// It runs, or may be about to.
    Running,
    /// The kernel has it, with this instruction pointer.
    Blocked(u64),
    /// As `Blocked`, but a trap would kill it when it is woken.
    Deaf,
    /// It has ended.
    Gone,
}

impl Lineup {
    /// Takes the right to stop threads, unless another thread has it.
    pub(crate) fn take() -> Option<Self> {
        let process = u64::from(sys::process()) << 32;
        let own = process | u64::from(sys::thread());
        let found = OWNER.load(Ordering::Acquire);
        // In a child of fork, what its parent's thread left is nobody's.
        if found != 0 && found & !0xffff_ffff == process {
            return None;
        }
        OWNER
            .compare_exchange(found, own, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        CALLED.store(0, Ordering::Relaxed);
        // Odd also if that thread of the parent's had stopped others.
        let turn = TURN.load(Ordering::Relaxed);
        TURN.store((turn | 1).wrapping_add((turn & 1) << 1), Ordering::Release);
        Some(Self { room: None })
    }

    /// Stops every other thread, until each stands still or is blocked at an instruction
    /// that `permitted` accepts.
    ///
    /// Guests' own threads run on: they are never in text that changes, which is the program's, and
    /// where they get idle time only, the program would wait for them to come.
    pub(crate) fn stop(&mut self, permitted: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let begin = sys::monotonic_ns();
        let own = sys::thread();
        let process = sys::process();
        // A forked child has their numbers and not them.
        let guests = lanes::here();
        let mut patience = FIRST_PATIENCE_NS;
        loop {
            let arrived = ARRIVED.load(Ordering::Acquire);
            let mut waiting = None;
            let mut new = false;
            self.each(|thread| {
                if thread == own || (guests && guest::is_own_thread(thread)) {
                    return Ok(());
                }
                match state(thread, process) {
                    State::Standing | State::Gone => {}
                    State::Blocked(ip) if permitted(ip) => {}
                    // A call would wait for it, and be seen by the program that asks what waits.
                    State::Running if blocks(thread, TRAPS | CALLS) => {
                        waiting = Some(Refusal::TrapBlocked)
                    }
                    State::Running => {
                        new |= call(thread)?;
                        sys::queue_signal(process, thread, trap::CALL as u32, magic());
                        waiting = Some(Refusal::ThreadUnknown);
                    }
                    State::Blocked(_) => waiting = Some(Refusal::ThreadUnknown),
                    State::Deaf => waiting = Some(Refusal::TrapBlocked),
                }
                Ok(())
            })?;
            // A thread that was called may have made another one before it came.
            if waiting.is_none() && !new {
                return Ok(());
            }
            if let Some(refusal) = waiting
                && sys::monotonic_ns().saturating_sub(begin) > LIMIT_NS
            {
                return Err(Failure::new(Errno::EBUSY, refusal));
            }
            // Who has just left a handler of ours, with all signals blocked in it, can be called
            // a moment later: others that stand already are not to wait for long.
            sys::wait_while(&ARRIVED, arrived, patience);
            patience = (2 * patience).min(PATIENCE_NS);
        }
    }

    /// Calls `visit` with every thread's number.
    fn each(&mut self, visit: impl FnMut(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        let room = match &mut self.room {
            Some(room) => room,
            none => none.insert(room_for_threads()?),
        };
        each(room, visit)
    }
}

/// Gives a signal that has come to a thread of the agent's to one of the program's: one that does not
/// block it, if there is one, as the kernel would have. Of others `is_agents` is said.
///
/// The kernel lets nobody pretend `kill` to another thread: the program sees a signal of `sigqueue`, by
/// the same sender.
pub(crate) fn pass_on(signal: u32, information: usize, is_agents: impl Fn(u32) -> bool) {
    let Ok(mut room) = room_for_threads() else {
        return;
    };
    const CODE_OFFSET: usize = 8;
    // SAFETY: it is the information that the kernel gave with a signal that somebody has sent.
    unsafe { memory::put(information + CODE_OFFSET, sys::SI_QUEUE) };
    let (mut deaf, mut ready) = (None, None);
    let seen = each(&mut room, |thread| {
        if ready.is_none() && !is_agents(thread) && !ended(thread) {
            let to = if blocks(thread, 1 << (signal - 1)) {
                &mut deaf
            } else {
                &mut ready
            };
            *to = Some(thread);
        }
        Ok(())
    });
    if seen.is_ok()
        && let Some(thread) = ready.or(deaf)
    {
        sys::send_again(thread, signal, information);
    }
}

fn hidden(errno: Errno) -> Failure {
    Failure::new(errno, Refusal::ThreadsHidden)
}

/// Room for [`each`].
pub(crate) fn room_for_threads() -> Result<Scratch, Failure> {
    const ROOM: usize = 32 << 10;
    Scratch::new(ROOM).map_err(hidden)
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

impl Drop for Lineup {
    fn drop(&mut self) {
        TURN.fetch_add(1, Ordering::AcqRel);
        sys::wake_all(&TURN);
        OWNER.store(0, Ordering::Release);
    }
}

/// What a signal of ours carries.
fn magic() -> u64 {
    (&raw const TURN) as u64
}

/// Puts `thread` on the roll; whether it was not there yet.
fn call(thread: u32) -> Result<bool, Failure> {
    let called = CALLED.load(Ordering::Relaxed) as usize;
    let known = ROLL
        .iter()
        .take(called)
        .any(|entry| entry.load(Ordering::Relaxed) & !STANDING == thread);
    if known {
        return Ok(false);
    }
    let entry = ROLL
        .get(called)
        .ok_or(Failure::new(Errno::ENOSPC, Refusal::ThreadUnknown))?;
    entry.store(thread, Ordering::Relaxed);
    CALLED.store(called as u32 + 1, Ordering::Release);
    Ok(true)
}

fn entry_of(thread: u32) -> Option<&'static AtomicU32> {
    ROLL.iter()
        .take(CALLED.load(Ordering::Acquire) as usize)
        .find(|entry| entry.load(Ordering::Relaxed) & !STANDING == thread)
}

/// Whether a signal with this information is a call to stand still.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// In the signal handler: stands still until the owner lets go.
pub(crate) fn stand_still() {
    if TURN.load(Ordering::Acquire) & 1 == 0 {
        // It came too late, and nobody waits.
        return;
    }
    let thread = sys::thread();
    let Some(entry) = entry_of(thread) else {
        return;
    };
    if entry
        .compare_exchange(
            thread,
            thread | STANDING,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_err()
    {
        return;
    }
    // Read only now: the entry belongs to this turn, whatever went before.
    let turn = TURN.load(Ordering::Acquire);
    if turn & 1 == 0 {
        return;
    }
    ARRIVED.fetch_add(1, Ordering::AcqRel);
    sys::wake_all(&ARRIVED);
    while TURN.load(Ordering::Acquire) == turn {
        sys::wait_while(&TURN, turn, u64::MAX);
    }
}

/// Whether the kernel has a thread in a system call that the program has made, and that waits.
pub(crate) fn waits_in_call(thread: u32) -> bool {
    let mut text = [0_u8; 512];
    let Some(text) = read_of(thread, b"/syscall", &mut text) else {
        return false;
    };
    // Outside of calls it begins with -1.
    text.first().is_some_and(u8::is_ascii_digit)
        && matches!(blocked(text), State::Blocked(ip) if ip != 0 && !in_agent(ip))
}

/// Whether a thread has left what it was in when it had had this CPU time, if that was a few instructions of
/// ours: it has run for far longer since, waits in a call of its own, or is no more.
pub(crate) fn has_moved_on(thread: u32, since_ns: u64) -> bool {
    const LONG_NS: u64 = 1_000_000;
    sys::cpu_ns(thread).is_none_or(|now| now.saturating_sub(since_ns) >= LONG_NS)
        || waits_in_call(thread)
        || ended(thread)
}

/// The code that the process is to end with, where no thread is left but the agent's and those
/// that `beside` names.
pub(crate) fn left_with(beside: impl Fn(u32) -> bool) -> Option<u32> {
    let own = sys::thread();
    if !ended(sys::process()) {
        return None;
    }
    let mut room = room_for_threads().ok()?;
    let mut others = false;
    each(&mut room, |thread| {
        let is_own = thread == own || crate::listen::is_own(thread) || beside(thread);
        others |= !is_own && thread != sys::process();
        Ok(())
    })
    .ok()?;
    if others {
        return None;
    }
    exit_code(sys::process())
}

/// Waits until nobody changes text in this process.
///
/// While text is being changed, a thread that the kernel has woken meanwhile runs on, and may
/// meet an `int3`. It must not do so with the signal of that blocked, nor leave a copy of the
/// process with such text to a child, which nobody would ever mend: before it blocks signals
/// or makes a child it comes here. All other threads stand still or have been called before
/// the first `int3` is written, so that none of them can be behind this when it is.
pub(crate) fn wait_for_change() {
    loop {
        let turn = TURN.load(Ordering::Acquire);
        // In a child the parent's change is nobody's, also in one that shares its memory: for
        // that one the change waits.
        if turn & 1 == 0 || OWNER.load(Ordering::Acquire) >> 32 != u64::from(sys::process()) {
            return;
        }
        sys::wait_while(&TURN, turn, u64::MAX);
    }
}

/// Checks, before any thread is stopped, that every other thread can be: one that blocks the
/// signals of a change (a thread in `sigwait`, a background thread of an allocator) would keep
/// all the others standing until the limit, at every change. No thread waits for this check.
///
/// # Errors
/// [`Refusal::TrapBlocked`] where a thread blocks them.
pub(crate) fn check_reachable() -> Result<(), Failure> {
    let own = sys::thread();
    let process = sys::process();
    // A forked child has the numbers of its parent's guests, and not their threads.
    let guests = lanes::here();
    let mut room = room_for_threads()?;
    // Each thread by itself: of many threads one is always inside a handler for a moment.
    each(&mut room, |thread| {
        if thread == own || (guests && guest::is_own_thread(thread)) {
            return Ok(());
        }
        let begin = sys::monotonic_ns();
        let cpu_begin = sys::cpu_ns(thread);
        while let Some(blocking) = blocking(thread, process) {
            let waited = sys::monotonic_ns().saturating_sub(begin);
            let lasted = match blocking {
                Blocking::Asleep => waited,
                // A thread that lost its CPU inside a handler blocks them until it runs again.
                Blocking::Runnable => sys::cpu_ns(thread)
                    .zip(cpu_begin)
                    .map_or(waited, |(now, begin)| now.saturating_sub(begin)),
            };
            if lasted > REACHABLE_NS || waited > LIMIT_NS {
                return Err(Failure::new(Errno::EBUSY, Refusal::TrapBlocked));
            }
            sys::nap(REACHABLE_POLL_NS);
        }
        Ok(())
    })
}

/// How a thread is that blocks the signals of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    Asleep,
    Runnable,
}

/// Whether a thread blocks the signals of a change: it can neither be called nor be let into a trap.
fn blocking(thread: u32, process: u32) -> Option<Blocking> {
    match state(thread, process) {
        State::Deaf => Some(Blocking::Asleep),
        State::Running => blocks(thread, TRAPS | CALLS).then_some(Blocking::Runnable),
        State::Standing | State::Blocked(_) | State::Gone => None,
    }
}

fn state(thread: u32, process: u32) -> State {
    if entry_of(thread).is_some_and(|entry| entry.load(Ordering::Acquire) & STANDING != 0) {
        return State::Standing;
    }
    let mut text = [0_u8; 512];
    let Some(text) = read_of(thread, b"/syscall", &mut text) else {
        // The file of a thread that lives can be read; make sure of it.
        return if sys::thread_exists(process, thread) {
            State::Running
        } else {
            State::Gone
        };
    };
    let state = blocked(text);
    match state {
        // The kernel's own workers have no place in the program, and never will.
        State::Blocked(0) => state,
        // It talks to the launcher, with all signals blocked as long as it does: it may be
        // waiting for this very change to end. The mask that it had comes back before it
        // leaves the agent's text, which nobody changes.
        State::Blocked(ip) if in_agent(ip) => state,
        State::Blocked(_) if blocks(thread, TRAPS) => State::Deaf,
        other => other,
    }
}

/// Whether an instruction is the agent's own.
fn in_agent(ip: u64) -> bool {
    let [start, end] = crate::assembly::own_range();
    (start..end).contains(&ip)
}

/// What the kernel says of a thread: `running`, or the number of its system call (-1 for
/// none) and six arguments, and at the end stack pointer and instruction pointer.
fn blocked(text: &[u8]) -> State {
    // While a child that shares our memory runs, its parent is blocked in one of these.
    // And one that makes a child with a copy has not been seen to be past the copying.
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

/// Whether the thread blocks one of `signals`.
fn blocks(thread: u32, signals: u64) -> bool {
    let mut text = [0_u8; 2048];
    let Some(text) = read_of(thread, b"/status", &mut text) else {
        return false;
    };
    // The agent's own thread blocks everything, and runs nothing that is patched.
    if crate::listen::is_own(thread) {
        return false;
    }
    field(text, b"SigBlk:").is_some_and(|mask| mask & signals != 0)
}

/// Whether the calling thread is the only one that is left: the first thread of a process
/// stays as a zombie until the last one ends.
pub(crate) fn last() -> bool {
    const EITHER: u64 = 2;
    sys::threads() <= EITHER && ended(sys::process())
}

/// Whether a thread of the process has ended.
pub(crate) fn has_ended(thread: u32) -> bool {
    ended(thread)
}

/// Whether the thread has ended, and nobody has taken notice of that.
fn ended(thread: u32) -> bool {
    let mut text = [0_u8; 512];
    // Behind the name, which may hold anything, comes the state.
    read_of(thread, b"/stat", &mut text).is_some_and(|text| {
        let name_end = text.iter().rposition(|&byte| byte == b')');
        name_end.is_some_and(|at| text.get(at + 1..at + 3) == Some(b" Z"))
    })
}

/// The code that a thread has ended with, as long as nobody has taken notice of it.
pub(crate) fn exit_code(thread: u32) -> Option<u32> {
    let mut text = [0_u8; 1024];
    exit_code_in(read_of(thread, b"/stat", &mut text)?)
}

/// The last field of a `stat`, as `wait` would give it.
fn exit_code_in(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii_end();
    let at = text.iter().rposition(|&byte| byte == b' ')?;
    let status = u32::try_from(number(text.get(at + 1..)?)?).ok()?;
    Some(status >> 8 & 0xff)
}

/// Whether a debugger is attached to this thread's process.
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

/// How long a thread has waited for a processor so far, in nanoseconds; `None` where the kernel does not say.
pub(crate) fn delay_ns(thread: u32) -> Option<u64> {
    let mut text = [0_u8; 96];
    second_number(read_of(thread, b"/schedstat", &mut text)?)
}

/// The second of the numbers of a line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_thread_waited_for_a_processor_is_the_second_number() {
        assert_eq!(second_number(b"123456 789 12\n"), Some(789));
        for text in [&b"123"[..], b"", b"1  2", b"5 99999999999999999999 1"] {
            assert_eq!(second_number(text), None);
        }
    }

    #[test]
    fn a_code_is_read_out_of_the_status() {
        assert_eq!(exit_code_in(b"7 (a b) Z 1 7 7 0 0 1792\n"), Some(7));
        assert_eq!(exit_code_in(b"7 (a b) Z 1 7 7 0 0 0\n"), Some(0));
        assert_eq!(exit_code_in(b""), None);
    }

    #[test]
    fn the_kernels_words_on_a_thread_are_understood() {
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
