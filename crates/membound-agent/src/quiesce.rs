//! Quiescence: every other thread passes a point outside the text that is being changed, without all of
//! them having to stand still at one moment.
//!
//! A change of text is *closed* while no thread may make a child or block the signals of a change
//! ([`wait_for_change`]). It has two phases, and in each [`Change::gather`] sees every other thread once:
//!
//! 1. No text is changed yet. After this phase no thread is on its way from a check in the agent to the
//!    system call that the check was for.
//! 2. Traps stand on the instructions to be overwritten. A thread seen outside them now cannot get inside
//!    any more: it meets a trap, and continues in the trampoline. After this phase the bytes behind the
//!    traps may be written.
//!
//! A thread that sleeps in the kernel is seen through `/proc`, and is not woken. A running thread is
//! called by a signal and answers from the handler. It then stands for at most [`STAND_NS`]: threads that have
//! not answered may be waiting for its processor, and while traps stand in hot text it would meet one after the
//! other. A thread that is called inside the agent or a trampoline in the first phase stands until the change is
//! over. Where a thread has waited for [`WAIT_NS`] the change is abandoned, to be tried again later.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_sync::crossed;
use membound_wire::Refusal;

use crate::failure::Failure;
use crate::scavenger::table;
use crate::scheduler::page;
use crate::sys::{self, Errno, Scratch};
use crate::threads::{self, State};
use crate::{areas, own_signals};

/// Most threads that can be called.
const THREADS: usize = 16384;
/// Longest time that a thread which has answered stands.
const STAND_NS: u64 = 1_000_000;
/// Time after which a change is abandoned because a thread waits for its end.
const WAIT_NS: u64 = 1_500_000;
/// CPU time that the process may use during a phase for whose end no thread waits: busy threads answer
/// when they get a processor, and while other processes have all of them a phase costs nothing.
const PHASE_CPU_NS: u64 = 50_000_000;
/// Longest such phase.
const PHASE_NS: u64 = 2_000_000_000;
/// First pause between two polls of threads that have not answered; it doubles each time.
const FIRST_PAUSE_NS: u64 = 30_000;
/// Longest such pause.
const MAX_PAUSE_NS: u64 = 250_000;
/// How long a thread may sleep with the signals of a change blocked, or how much CPU time it may
/// use so, before it counts as one that always blocks them. Handlers are shorter.
const REACHABLE_NS: u64 = 2_000_000;
/// As `REACHABLE_NS`, for a thread that does not get a processor.
const REACHABLE_LIMIT_NS: u64 = 1_000_000_000;
/// Pause between two polls of such a thread.
const REACHABLE_POLL_NS: u64 = 500_000;
/// Flag in a roll entry: its thread was seen in this phase.
const OBSERVED: u32 = 1 << 31;

/// The thread that changes text, with its process in the upper half; 0: none.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Counter whose value modulo [`PHASES`] is the phase; a futex word. Threads wait for it to change.
static PHASE: AtomicU32 = AtomicU32::new(0);
const PHASES: u32 = 4;
/// Phase: no change is closed.
const OPEN: u32 = 0;
/// The first phase. A thread that waits for its end may revoke it; then the change is abandoned.
const BEFORE_TRAPS: u32 = 1;
/// The second phase, and the writing before and after it.
const TRAPPED: u32 = 2;
/// Number of answers so far; a futex word.
static ANSWERS: AtomicU32 = AtomicU32::new(0);
/// Threads that were called or seen in this phase, with [`OBSERVED`] once they were.
static ROLL: [AtomicU32; THREADS] = [const { AtomicU32::new(0) }; THREADS];
/// Number of entries in [`ROLL`].
static CALLED: AtomicU32 = AtomicU32::new(0);
/// When the first of the threads that wait for the end of the change began to; 0 without one.
static WAITING_SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// When the last change was over: threads that waited for it may run from then on.
static OPENED_NS: AtomicU64 = AtomicU64::new(0);
/// Longest time that a thread stood or waited since it was last asked for.
static MAX_STOP_NS: AtomicU64 = AtomicU64::new(0);
/// Time of all second phases since it was last asked for: threads stood, or met traps.
static CHANGING_NS: AtomicU64 = AtomicU64::new(0);
/// The process whose text is changed: a child of `vfork` shares this memory, but has a number of its own.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Signals that a thread must not block, to be called and to take a trap; as a mask.
const NEEDED: u64 = own_signals::mask(&own_signals::OF_CHANGES);

/// The right to change text while other threads run. The change is over when it is dropped.
#[derive(Debug)]
pub(crate) struct Change {
    room: Option<Scratch>,
    /// When the second phase began; 0 outside of it.
    committed_ns: u64,
}

impl Change {
    /// Takes the right, unless another thread has it.
    pub(crate) fn begin() -> Option<Self> {
        let process = u64::from(sys::process()) << 32;
        let own = process | u64::from(sys::thread());
        let found = OWNER.load(Ordering::Acquire);
        // In a child of fork, the right that its parent's thread had is free.
        if found != 0 && found & !0xffff_ffff == process {
            return None;
        }
        OWNER
            .compare_exchange(found, own, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        // A forked child may have copied a phase in progress.
        open();
        adopt_process();
        Some(Self {
            room: None,
            committed_ns: 0,
        })
    }

    /// Begins the first phase: from now on threads wait in [`wait_for_change`].
    pub(crate) fn close(&mut self) {
        CALLED.store(0, Ordering::Relaxed);
        // Crossed with the loader, which unmaps modules: see `loader::unmappings`.
        crossed::announce(&PHASE);
    }

    /// Begins the second phase, before the traps are written.
    ///
    /// # Errors
    /// [`Refusal::ThreadUnknown`] where a thread has revoked the first one.
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        let phase = PHASE.load(Ordering::Acquire);
        // The exchange fails if a waiting thread has opened the change meanwhile.
        let committed = phase % PHASES == BEFORE_TRAPS
            && PHASE
                .compare_exchange(phase, phase + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !committed {
            return Err(Failure::new(Errno::EBUSY, Refusal::ThreadUnknown));
        }
        // Answers to calls of the first phase say nothing of the second. Threads that have answered stand on.
        CALLED.store(0, Ordering::Release);
        self.committed_ns = sys::monotonic_ns();
        Ok(())
    }

    /// Ends the phases: no trap is left in the text.
    pub(crate) fn open(&mut self) {
        open();
        if self.committed_ns != 0 {
            let since_ns = sys::monotonic_ns().saturating_sub(self.committed_ns);
            CHANGING_NS.fetch_add(since_ns, Ordering::AcqRel);
            self.committed_ns = 0;
        }
    }

    /// Sees every other thread once: asleep at an instruction that `permitted` accepts, or answering
    /// a call.
    ///
    /// Home threads of scavengers are left out: they never execute text that changes, which is the
    /// program's, and where they run in idle time only, the program would wait for their answers.
    ///
    /// # Errors
    /// [`Refusal::ThreadUnknown`] where the change is to be abandoned for now.
    pub(crate) fn gather(&mut self, permitted: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let begin = Moment::now();
        let own = sys::thread();
        let process = sys::process();
        // A forked child has the numbers of its parent's home threads, but not these threads.
        let has_scavengers = page::has_run_queues();
        let mut pause_ns = FIRST_PAUSE_NS;
        loop {
            // Read before the threads are: an answer that comes meanwhile makes the wait below return at
            // once.
            let answers = ANSWERS.load(Ordering::Acquire);
            let mut waiting = false;
            let mut called = false;
            self.each(|thread| {
                if thread == own || (has_scavengers && table::is_own_thread(thread)) {
                    return Ok(());
                }
                let entry = entry_of(thread);
                if entry.is_some_and(|entry| entry.load(Ordering::Acquire) & OBSERVED != 0) {
                    return Ok(());
                }
                match threads::state(thread, process) {
                    State::Gone => {}
                    State::Blocked(ip) if permitted(ip) => enroll(entry, thread | OBSERVED)?,
                    State::Blocked(_) | State::BlocksTraps => waiting = true,
                    // The signal would stay pending, and a program that asks for pending signals would see
                    // it.
                    State::Running if entry.is_some() && threads::blocks(thread, NEEDED) => {
                        waiting = true;
                    }
                    State::Running => {
                        if entry.is_none() {
                            // Before the signal, whose handler finds the thread by this entry.
                            enroll(None, thread)?;
                            called = true;
                        }
                        sys::queue_signal(process, thread, own_signals::CALL as u32, magic());
                        waiting = true;
                    }
                }
                Ok(())
            })?;
            // A thread that was called may have made another one before it answered.
            if !waiting && !called {
                return Ok(());
            }
            if begin.is_too_long_ago() {
                return Err(Failure::new(Errno::EBUSY, Refusal::ThreadUnknown));
            }
            sys::wait_while(&ANSWERS, answers, pause_ns);
            pause_ns = (2 * pause_ns).min(MAX_PAUSE_NS);
        }
    }

    /// Calls `visit` with every thread's number.
    fn each(&mut self, visit: impl FnMut(u32) -> Result<(), Failure>) -> Result<(), Failure> {
        let room = match &mut self.room {
            Some(room) => room,
            none => none.insert(threads::room_for_threads()?),
        };
        threads::each(room, visit)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        open();
        // After the end of the phases: from here on another thread may begin a change.
        OWNER.store(0, Ordering::Release);
    }
}

fn open() {
    let phase = PHASE.load(Ordering::Acquire);
    if phase % PHASES != OPEN {
        open_from(phase);
    }
    WAITING_SINCE_NS.store(0, Ordering::Release);
}

/// Opens the change if it is still in `phase`.
fn open_from(phase: u32) {
    // Before the phase: a thread that finds the change open reads the time.
    OPENED_NS.store(sys::monotonic_ns(), Ordering::Release);
    let opened = (phase | (PHASES - 1)).wrapping_add(1);
    let _ = PHASE.compare_exchange(phase, opened, Ordering::AcqRel, Ordering::Relaxed);
    sys::wake_all(&PHASE);
}

/// Makes the calling process the one whose text is changed.
pub(crate) fn adopt_process() {
    PROCESS.store(sys::process(), Ordering::Release);
}

/// True if text may be changed in this process.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Acquire) == sys::process()
}

/// When a phase began, by the clock and by the process's CPU time.
struct Moment {
    clock_ns: u64,
    cpu_ns: u64,
}

impl Moment {
    fn now() -> Self {
        Self {
            clock_ns: sys::monotonic_ns(),
            cpu_ns: sys::process_cpu_ns(),
        }
    }

    /// True if the phase is to be abandoned now.
    fn is_too_long_ago(&self) -> bool {
        let now = Self::now();
        let since_ns = WAITING_SINCE_NS.load(Ordering::Acquire);
        PHASE.load(Ordering::Acquire) % PHASES == OPEN
            || now.clock_ns.saturating_sub(self.clock_ns) > PHASE_NS
            || now.cpu_ns.saturating_sub(self.cpu_ns) > PHASE_CPU_NS
            || since_ns != 0 && now.clock_ns.saturating_sub(since_ns) > WAIT_NS
    }
}

/// The longest time in nanoseconds that a thread stood or waited for a change since this was called last.
pub(crate) fn take_longest_stop_ns() -> u64 {
    MAX_STOP_NS.swap(0, Ordering::AcqRel)
}

/// The time in nanoseconds of all second phases since this was called last.
pub(crate) fn take_changing_ns() -> u64 {
    CHANGING_NS.swap(0, Ordering::AcqRel)
}

/// Value by which the signal of a call is recognised.
fn magic() -> u64 {
    (&raw const PHASE) as u64
}

/// Puts a thread on the roll, or marks the entry that it has.
fn enroll(entry: Option<&AtomicU32>, word: u32) -> Result<(), Failure> {
    if let Some(entry) = entry {
        entry.store(word, Ordering::Release);
        return Ok(());
    }
    let called = CALLED.load(Ordering::Relaxed);
    let free = ROLL
        .get(called as usize)
        .ok_or(Failure::new(Errno::ENOSPC, Refusal::ThreadUnknown))?;
    // The word before the count: a handler reads the count first, with Acquire.
    free.store(word, Ordering::Relaxed);
    CALLED.store(called + 1, Ordering::Release);
    Ok(())
}

fn entry_of(thread: u32) -> Option<&'static AtomicU32> {
    ROLL.iter()
        .take(CALLED.load(Ordering::Acquire) as usize)
        .find(|entry| entry.load(Ordering::Relaxed) & !OBSERVED == thread)
}

/// True if a signal with this information is a call.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// In the handler of a call: answers, and leaves the processor to threads that have not answered yet.
/// `mask` and `ip` are those of the interrupted thread.
pub(crate) fn answer(mask: u64, ip: u64) {
    let phase = PHASE.load(Ordering::Acquire);
    // The call came too late, or a trap would kill the thread now: without an answer, the change waits.
    if phase % PHASES == OPEN || mask & NEEDED != 0 {
        return;
    }
    let thread = sys::thread();
    let Some(entry) = entry_of(thread) else {
        return;
    };
    // The entry may belong to a later phase than the one just read: it is answered all the same.
    if entry
        .compare_exchange(
            thread,
            thread | OBSERVED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_err()
    {
        return;
    }
    ANSWERS.fetch_add(1, Ordering::AcqRel);
    sys::wake_all(&ANSWERS);
    if phase % PHASES == BEFORE_TRAPS && (threads::in_agent(ip) || areas::may_lead_to_call(ip)) {
        // It may be about to make a system call that must not be made now.
        wait_for_change();
    } else {
        let begin_ns = sys::monotonic_ns();
        sys::wait_while(&PHASE, phase, STAND_NS);
        note_stop(begin_ns, begin_ns + STAND_NS);
    }
}

/// Records a stop that began at `begin_ns` and could end at `end_ns`; after that the thread only waited for
/// a processor.
fn note_stop(begin_ns: u64, end_ns: u64) {
    let end_ns = sys::monotonic_ns().min(end_ns);
    MAX_STOP_NS.fetch_max(end_ns.saturating_sub(begin_ns), Ordering::AcqRel);
}

/// Waits until no change of text is closed in this process.
///
/// A thread that meets a trap must be able to take its signal, and a child would keep text with traps for
/// ever, since no thread restores it there. So threads call this before they block signals or make a child.
pub(crate) fn wait_for_change() {
    let mut begin_ns = 0;
    loop {
        // Crossed, as in `close`: see `loader::unmappings`.
        let phase = crossed::announced(&PHASE);
        // The parent's change does not concern a child. For one that shares the memory the change waits:
        // `threads::state` takes its parent for running, which does not answer meanwhile.
        let process = u64::from(sys::process());
        if phase % PHASES == OPEN || OWNER.load(Ordering::Acquire) >> 32 != process {
            break;
        }
        if begin_ns == 0 {
            begin_ns = sys::monotonic_ns();
        }
        // The first to wait sets it; it is lost only where the change is over.
        let _ = WAITING_SINCE_NS.compare_exchange(0, begin_ns, Ordering::AcqRel, Ordering::Relaxed);
        if phase % PHASES == TRAPPED {
            sys::wait_while(&PHASE, phase, u64::MAX);
            continue;
        }
        // Nothing is written yet, and the thread that changes text may be without a processor.
        sys::wait_while(&PHASE, phase, STAND_NS);
        if sys::monotonic_ns().saturating_sub(begin_ns) >= STAND_NS {
            open_from(phase);
        }
    }
    if begin_ns != 0 {
        note_stop(begin_ns, OPENED_NS.load(Ordering::Acquire));
    }
}

/// Waits until no thread of this process changes text, without revoking the change: no call is on its way to
/// the calling thread afterwards.
pub(crate) fn wait_until_idle() {
    const POLL_INTERVAL_NS: u64 = 100_000;
    while OWNER.load(Ordering::Acquire) >> 32 == u64::from(sys::process()) {
        sys::nap(POLL_INTERVAL_NS);
    }
}

/// Checks, before a change is closed, that every other thread can be seen: one that always blocks the
/// signals of a change (in `sigwait`, or a background thread of an allocator) would have every change
/// abandoned. No thread waits for this check.
///
/// # Errors
/// [`Refusal::TrapBlocked`] where a thread blocks them.
pub(crate) fn check_reachable() -> Result<(), Failure> {
    let own = sys::thread();
    let process = sys::process();
    // A forked child has the numbers of its parent's home threads, but not these threads.
    let has_scavengers = page::has_run_queues();
    let mut room = threads::room_for_threads()?;
    // Each thread by itself: of many threads one is always inside a handler for a moment.
    threads::each(&mut room, |thread| {
        if thread == own || (has_scavengers && table::is_own_thread(thread)) {
            return Ok(());
        }
        let begin_ns = sys::monotonic_ns();
        let cpu_begin_ns = sys::cpu_ns(thread);
        while let Some(blocking) = blocking(thread, process) {
            let waited_ns = sys::monotonic_ns().saturating_sub(begin_ns);
            let lasted_ns = match blocking {
                Blocking::Asleep => waited_ns,
                // A thread that lost its CPU inside a handler blocks them until it runs again.
                Blocking::Runnable => sys::cpu_ns(thread)
                    .zip(cpu_begin_ns)
                    .map_or(waited_ns, |(now, begin)| now.saturating_sub(begin)),
            };
            if lasted_ns > REACHABLE_NS || waited_ns > REACHABLE_LIMIT_NS {
                return Err(Failure::new(Errno::EBUSY, Refusal::TrapBlocked));
            }
            sys::nap(REACHABLE_POLL_NS);
        }
        Ok(())
    })
}

/// State of a thread that blocks the signals of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    Asleep,
    Runnable,
}

/// State of a thread that blocks the signals of a change, so that it can neither be called nor take a trap;
/// `None`: it does not block them.
fn blocking(thread: u32, process: u32) -> Option<Blocking> {
    match threads::state(thread, process) {
        State::BlocksTraps => Some(Blocking::Asleep),
        State::Running => threads::blocks(thread, NEEDED).then_some(Blocking::Runnable),
        State::Blocked(_) | State::Gone => None,
    }
}
