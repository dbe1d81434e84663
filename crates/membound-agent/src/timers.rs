//! Timers by which threads are sampled: one for each thread, on the CPU time of that thread, with a signal
//! of their own.
//!
//! The kernel lets any thread of a process make a timer on another thread's CPU clock. So the control
//! thread polls for new threads ([`poll`]), and the program's threads need not do anything. A forked child
//! has no control thread; it makes its own timer when it starts (see `children`).
//!
//! The signal is one of the highest that the program does not use. The program does not see it (`masks` and
//! [`owns`]). When the program uses the number itself, it gets it, and the timers change to another one
//! ([`give_up`]).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_sync::ring;
use membound_wire::{Command, Refused, TICK_ORPHAN, TICK_REFUSALS, TickRing, TickSet};

use crate::disposition::{Disposition, disposition};
use crate::failure::Failure;
use crate::sys::{self, Errno, Quiet, Scratch, call, check};
use crate::{beliefs, listen, own_signals, threads};

const TIMER_CREATE: usize = 222;
const TIMER_SETTIME: usize = 223;
const TIMER_GETTIME: usize = 224;
const TIMER_DELETE: usize = 226;

/// Most rings, and so most threads with a timer.
const MAX_RINGS: usize = 4096;
/// Signals that are tried, from `FIRST` down to `LAST`; the first free one is used. Programs use the low
/// real-time signals, and debuggers often the last one.
const FIRST: u32 = 61;
const LAST: u32 = 40;
/// Time in nanoseconds without a heartbeat after which the launcher counts as gone.
const SILENCE_NS: u64 = 10_000_000_000;
/// Poll interval for new threads, in nanoseconds.
const THREAD_SCAN_INTERVAL_NS: u64 = 10_000_000;
/// Poll interval while the launcher is silent or the timers are off, in nanoseconds.
const SILENT_LAUNCHER_POLL_INTERVAL_NS: u64 = 1_000_000_000;
/// Every how many polls all threads are compared, even if their number has not changed.
const SCANS_PER_FULL_SCAN: u32 = 8;
/// Timers that are checked in each comparison for whether their thread has been replaced.
const PROBED: usize = 32;

/// Address of the [`TickSet`]; 0 without one.
static SET: AtomicUsize = AtomicUsize::new(0);
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
/// The timers' signal; 0: none.
static SIGNAL: AtomicU32 = AtomicU32::new(0);
/// Signals that were given up while the program had no handler for them: our handler stays for ticks that
/// are still pending. Bit n − 1 for signal n.
static RETIRED: AtomicU64 = AtomicU64::new(0);
/// Signals that the program uses itself.
static USED: AtomicU64 = AtomicU64::new(0);
/// The process with these timers: a child of `vfork` shares this memory, but has signals of its own.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Set when all timers must be made again, with another signal.
static ANEW: AtomicBool = AtomicBool::new(false);
/// Threads of this process that have a timer, by the index of their ring.
static THREADS: [AtomicU32; MAX_RINGS] = [const { AtomicU32::new(0) }; MAX_RINGS];
/// True if the thread of this ring was found by the last comparison.
static FOUND: [AtomicBool; MAX_RINGS] = [const { AtomicBool::new(false) }; MAX_RINGS];
/// Number of threads at the last poll.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Polls so far.
static POLLS: AtomicU32 = AtomicU32::new(0);
/// The next ring whose timer is checked.
static PROBE: AtomicUsize = AtomicUsize::new(0);
/// The launcher's heartbeat at the last poll.
static HEARTBEAT: AtomicU32 = AtomicU32::new(0);
/// When it last changed, in nanoseconds.
static HEARTBEAT_NS: AtomicU64 = AtomicU64::new(0);
/// CPU time of the control thread that was reported to the launcher.
static OWN_NS: AtomicU64 = AtomicU64::new(0);

const fn bit(signal: u32) -> u64 {
    1_u64 << (signal - 1)
}

/// True if threads of this process are sampled.
pub(crate) fn active() -> bool {
    SIGNAL.load(Ordering::Acquire) != 0
}

/// True if the program has taken this signal over from the timers.
pub(crate) fn was_ours(signal: u64) -> bool {
    let Ok(number @ 1..=64) = u32::try_from(signal) else {
        return false;
    };
    USED.load(Ordering::Acquire) & bit(number) != 0
}

/// The timers' signal as a mask; 0 without one.
pub(crate) fn signal_bit() -> u64 {
    match SIGNAL.load(Ordering::Acquire) {
        0 => 0,
        signal => bit(signal),
    }
}

/// True if this is the process that the timers belong to.
pub(crate) fn own_process() -> bool {
    PROCESS.load(Ordering::Acquire) == sys::process()
}

/// True if the program must not see the handler of `signal`, which is the agent's.
pub(crate) fn owns(signal: u64) -> bool {
    let Ok(number @ 1..=64) = u32::try_from(signal) else {
        return false;
    };
    (signal_bit() | RETIRED.load(Ordering::Acquire)) & bit(number) != 0 && own_process()
}

fn set_word(offset: usize) -> Option<&'static AtomicU32> {
    let set = SET.load(Ordering::Acquire);
    // SAFETY: the rings stay mapped for the session, and both sides use atomics.
    (set != 0).then(|| unsafe { &*((set + offset) as *const AtomicU32) })
}

/// Starts sampling this process: the calling thread at once, other threads as they are found. `quiet` holds
/// the mask that the calling thread gets back, and `handler` is the address of the timers' handler.
pub(crate) fn begin(command: &Command, quiet: &mut Quiet, handler: u64) -> Result<u64, Failure> {
    SET.store(command.address as usize, Ordering::Release);
    PERIOD_NS.store(command.count.max(1), Ordering::Release);
    PROCESS.store(sys::process(), Ordering::Release);
    let blocked = quiet.before();
    let signal = choose(blocked, handler).ok_or(Failure::from(Errno::EBUSY))?;
    SIGNAL.store(signal, Ordering::Release);
    if blocked & bit(signal) != 0 && beliefs::note_blocked(bit(signal)) {
        quiet.unblock(bit(signal));
    }
    let thread = sys::thread();
    arm_new(thread).map_err(Failure::from)?;
    if let Some(ring) = ring_of_thread(thread) {
        // CPU time of this thread before the program started is not the program's.
        ring.word64(core::mem::offset_of!(TickRing, clock_ns))
            .store(sys::thread_cpu_ns(), Ordering::Relaxed);
    }
    Ok(u64::from(signal))
}

/// Chooses a free signal, one that is not in `blocked` if possible, and installs the handler. `None`: all
/// are used.
fn choose(blocked: u64, handler: u64) -> Option<u32> {
    let all = || (LAST..=FIRST).rev().chain([62, 63, 64]);
    let in_use = RETIRED.load(Ordering::Acquire) | USED.load(Ordering::Acquire);
    let free = |signal: &u32| {
        in_use & bit(*signal) == 0
            && disposition(u64::from(*signal), None)
                .is_some_and(|found| found.handler == Disposition::DEFAULT.handler)
    };
    let unblocked = |signal: &u32| blocked & bit(*signal) == 0;
    let signal = all()
        .filter(unblocked)
        .find(free)
        .or_else(|| all().find(free))?;
    let ours = Disposition {
        handler,
        flags: own_signals::FLAGS,
        restorer: own_signals::restorer(),
        mask: u64::MAX,
    };
    disposition(u64::from(signal), Some(&ours))?;
    Some(signal)
}

/// Value of a timer's signal: recognises our timers, and names the ring.
fn value_of(ring: usize) -> u64 {
    ((&raw const SET) as u64) << 16 | ring as u64
}

/// The ring that a signal with this value belongs to.
pub(crate) fn ring_of(value: u64) -> Option<Ring> {
    let index = (value & 0xffff) as usize;
    (index < MAX_RINGS && value == value_of(index))
        .then(|| ring(index))
        .flatten()
}

/// True if a signal with this code and value was sent by one of our timers.
pub(crate) fn is_tick(code: i32, value: u64) -> bool {
    const SI_TIMER: i32 = -2;
    code == SI_TIMER && value >> 16 == value_of(0) >> 16
}

/// A ring, by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    address: usize,
    index: usize,
}

impl Ring {
    pub(crate) fn word32(self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: the rings stay mapped for the session, and both sides use atomics.
        unsafe { &*((self.address + offset) as *const AtomicU32) }
    }

    pub(crate) fn word64(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: as for 32 bits.
        unsafe { &*((self.address + offset) as *const AtomicU64) }
    }

    pub(crate) fn address(self) -> usize {
        self.address
    }

    fn owner(self) -> &'static AtomicU32 {
        self.word32(core::mem::offset_of!(TickRing, owner))
    }

    fn timer(self) -> &'static AtomicU32 {
        self.word32(core::mem::offset_of!(TickRing, timer))
    }
}

fn rings() -> usize {
    let count = set_word(core::mem::offset_of!(TickSet, rings));
    count.map_or(0, |count| {
        (count.load(Ordering::Relaxed) as usize).min(MAX_RINGS)
    })
}

fn ring(index: usize) -> Option<Ring> {
    let set = SET.load(Ordering::Acquire);
    (set != 0 && index < rings()).then(|| Ring {
        address: set + size_of::<TickSet>() + index * size_of::<TickRing>(),
        index,
    })
}

/// The ring of a thread of this process; `None` without one.
pub(crate) fn ring_of_thread(thread: u32) -> Option<Ring> {
    let count = rings();
    let start = (thread as usize).checked_rem(count)?;
    (start..count)
        .chain(0..start)
        .find(|index| {
            let owner = THREADS.get(*index);
            owner.is_some_and(|owner| owner.load(Ordering::Relaxed) == thread)
        })
        .and_then(ring)
}

/// Claims a free ring for `thread`; `None` if all are in use.
fn claim(thread: u32) -> Option<Ring> {
    let count = rings();
    let start = (thread as usize).checked_rem(count)?;
    let claimed = (start..count)
        .chain(0..start)
        .filter_map(ring)
        .find(|ring| ring::claim(ring.owner(), 0, thread))?;
    claimed.timer().store(NO_TIMER, Ordering::Relaxed);
    for offset in [
        core::mem::offset_of!(TickRing, clock_ns),
        core::mem::offset_of!(TickRing, heartbeat_ns),
    ] {
        claimed.word64(offset).store(0, Ordering::Relaxed);
    }
    if let Some(owner) = THREADS.get(claimed.index) {
        owner.store(thread, Ordering::Release);
    }
    Some(claimed)
}

/// Gives a thread a ring and a timer.
fn arm_new(thread: u32) -> Result<(), Errno> {
    let armed = claim(thread).ok_or(Errno::ENOSPC).and_then(|ring| {
        arm(ring, thread).inspect_err(|_| {
            if let Some(owner) = THREADS.get(ring.index) {
                owner.store(0, Ordering::Relaxed);
            }
            ring::disown(ring.owner());
        })
    });
    if let Err(errno) = armed {
        // A thread that has ended meanwhile needs no timer.
        if sys::thread_exists(sys::process(), thread) {
            refuse(thread, errno.0);
        }
    }
    armed
}

/// Makes and starts the timer of a thread that has a ring.
fn arm(ring: Ring, thread: u32) -> Result<(), Errno> {
    const THREAD_ID: u32 = 4;
    // The clock of a thread's CPU time, as the kernel counts it for scheduling.
    let clock = !(thread.cast_signed()) << 3 | 6;
    let signal = SIGNAL.load(Ordering::Acquire);
    if signal == 0 {
        return Err(Errno::EINVAL);
    }
    // A `sigevent`: value, signal, how to notify, thread.
    let mut event = [0_u32; 16];
    let value = value_of(ring.index);
    event[0] = value as u32;
    event[1] = (value >> 32) as u32;
    event[2] = signal;
    event[3] = THREAD_ID;
    event[4] = thread;
    let mut timer = 0_u32;
    // SAFETY: event and identifier have the kernel's layout and outlive the call.
    let created = unsafe {
        call(
            TIMER_CREATE,
            [
                clock as usize,
                (&raw const event) as usize,
                (&raw mut timer) as usize,
                0,
                0,
                0,
            ],
        )
    };
    check(created)?;
    ring.timer().store(timer, Ordering::Relaxed);
    let period = PERIOD_NS.load(Ordering::Relaxed);
    let (seconds, nanoseconds) = (period / 1_000_000_000, period % 1_000_000_000);
    let times = [seconds, nanoseconds, seconds, nanoseconds];
    // SAFETY: the times have the kernel's layout and outlive the call.
    let set = unsafe {
        call(
            TIMER_SETTIME,
            [timer as usize, 0, (&raw const times) as usize, 0, 0, 0],
        )
    };
    check(set).map(drop).inspect_err(|_| delete(ring))
}

/// Deletes the timer of a ring. The exchange makes sure that it happens once: the kernel may give its
/// number to another timer.
pub(crate) fn delete(ring: Ring) {
    let timer = ring.timer().swap(NO_TIMER, Ordering::AcqRel);
    if timer != NO_TIMER {
        // SAFETY: it touches no memory, and the timer is ours.
        let _ = unsafe { call(TIMER_DELETE, [timer as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Marks a ring without a timer; the kernel's numbers are below 2³¹.
const NO_TIMER: u32 = u32::MAX;

/// True if the timer still runs: that of a thread that has ended does not.
fn is_timer_running(ring: Ring) -> bool {
    let mut times = [0_u64; 4];
    let timer = ring.timer().load(Ordering::Relaxed);
    if timer == NO_TIMER {
        return false;
    }
    // SAFETY: the kernel writes four words, for which there is room.
    let result = unsafe {
        call(
            TIMER_GETTIME,
            [timer as usize, (&raw mut times) as usize, 0, 0, 0, 0],
        )
    };
    result == 0 && (times[2], times[3]) != (0, 0)
}

/// Reports to the launcher, once, that a thread has no timer ([`Refused::ALL`]: no thread has one any
/// more).
fn refuse(thread: u32, errno: u32) {
    let entry = |index: usize, field: usize| {
        let first = core::mem::offset_of!(TickSet, refused);
        set_word(first + index * size_of::<Refused>() + field)
    };
    for index in 0..TICK_REFUSALS {
        let (Some(name), Some(number)) = (
            entry(index, core::mem::offset_of!(Refused, thread)),
            entry(index, core::mem::offset_of!(Refused, errno)),
        ) else {
            return;
        };
        let exchanged = name.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
        match exchanged {
            Ok(_) => return number.store(errno, Ordering::Release),
            Err(named) if named == thread => return,
            Err(_) => {}
        }
    }
}

/// True if timers are to run: the launcher has not stopped them and has not been silent for [`SILENCE_NS`].
/// `heartbeat` and `last_ns` keep the launcher's last heartbeat and when the caller saw it, by the clock of
/// `now_ns`.
pub(crate) fn is_poll_due(heartbeat: &AtomicU32, last_ns: &AtomicU64, now_ns: u64) -> bool {
    let (Some(stopped), Some(launchers)) = (
        set_word(core::mem::offset_of!(TickSet, stopped)),
        set_word(core::mem::offset_of!(TickSet, heartbeat)),
    ) else {
        return false;
    };
    let heard = launchers.load(Ordering::Relaxed);
    if heartbeat.swap(heard, Ordering::Relaxed) != heard || last_ns.load(Ordering::Relaxed) == 0 {
        last_ns.store(now_ns, Ordering::Relaxed);
    }
    let silent = now_ns.saturating_sub(last_ns.load(Ordering::Relaxed));
    stopped.load(Ordering::Relaxed) == 0 && silent < SILENCE_NS
}

/// Poll of the control thread: finds new threads, and frees the rings of those that have ended. Returns the
/// nanoseconds until the next poll; `None`: no more polls.
pub(crate) fn poll(room: &mut Scratch) -> Option<u64> {
    let stopped = set_word(core::mem::offset_of!(TickSet, stopped))?;
    report_own_time();
    if !active() || !is_poll_due(&HEARTBEAT, &HEARTBEAT_NS, sys::monotonic_ns()) {
        disarm_all();
        let over = !active() || stopped.load(Ordering::Relaxed) != 0;
        return (!over).then_some(SILENT_LAUNCHER_POLL_INTERVAL_NS);
    }
    if ANEW.swap(false, Ordering::AcqRel) {
        arm_all_anew();
    }
    let count = sys::threads();
    let polls = POLLS.fetch_add(1, Ordering::Relaxed);
    if COUNT.swap(count, Ordering::Relaxed) != count || polls.is_multiple_of(SCANS_PER_FULL_SCAN) {
        update_rings(room);
    }
    Some(THREAD_SCAN_INTERVAL_NS)
}

fn report_own_time() {
    let now = sys::thread_cpu_ns();
    let new = now.saturating_sub(OWN_NS.swap(now, Ordering::Relaxed));
    let set = SET.load(Ordering::Acquire);
    // SAFETY: the set is mapped for the session, and both sides use atomics.
    let own = unsafe { &*((set + core::mem::offset_of!(TickSet, own_ns)) as *const AtomicU64) };
    own.fetch_add(new, Ordering::Relaxed);
}

/// Compares the process's threads with those that have timers.
fn update_rings(room: &mut Scratch) {
    for found in FOUND.iter().take(rings()) {
        found.store(false, Ordering::Relaxed);
    }
    let listed = threads::each(room, |thread| {
        if listen::is_own(thread) {
            return Ok(());
        }
        let ring = match ring_of_thread(thread) {
            Some(ring) => Some(ring),
            // `arm_new` reports an error to the launcher.
            None => arm_new(thread).ok().and_then(|()| ring_of_thread(thread)),
        };
        if let Some(found) = ring.and_then(|ring| FOUND.get(ring.index)) {
            found.store(true, Ordering::Relaxed);
        }
        Ok(())
    });
    if listed.is_err() {
        return;
    }
    let probe = PROBE.load(Ordering::Relaxed);
    PROBE.store(
        (probe + PROBED).checked_rem(rings()).unwrap_or(0),
        Ordering::Relaxed,
    );
    for (index, (owner, found)) in THREADS.iter().zip(&FOUND).enumerate().take(rings()) {
        if owner.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(ring) = ring(index) else { continue };
        let has_ended = !found.load(Ordering::Relaxed);
        if has_ended {
            beliefs::forget(owner.load(Ordering::Relaxed));
        }
        // Another thread may have got the number meanwhile; the timer of the old one has stopped.
        let changed = (probe..probe + PROBED).contains(&index) && !is_timer_running(ring);
        if has_ended || changed {
            drop_ring(ring);
        }
    }
}

/// Frees the ring of a thread that has ended.
fn drop_ring(ring: Ring) {
    delete(ring);
    if let Some(owner) = THREADS.get(ring.index) {
        owner.store(0, Ordering::Relaxed);
    }
    // The launcher reads what is left in the ring, and then frees it.
    ring::leave(ring.owner(), TICK_ORPHAN);
}

fn mine() -> impl Iterator<Item = (Ring, u32)> {
    THREADS
        .iter()
        .take(rings())
        .enumerate()
        .filter_map(|(index, owner)| {
            let thread = owner.load(Ordering::Relaxed);
            (thread != 0).then_some((ring(index)?, thread))
        })
}

fn disarm_all() {
    for (ring, _) in mine() {
        drop_ring(ring);
    }
}

fn arm_all_anew() {
    for (ring, thread) in mine() {
        delete(ring);
        if arm(ring, thread).is_err() {
            drop_ring(ring);
        }
    }
}

/// How a program uses a signal itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The program installs a handler, or ignores the signal.
    Handles,
    /// The program blocks the signal, waits for it, or sends it.
    Waits,
}

/// Leaves `signal` to the program, and continues with another one, whose handler is at `handler`.
pub(crate) fn give_up(signal: u64, how: Use, handler: u64) {
    let Ok(number @ 1..=64) = u32::try_from(signal) else {
        return;
    };
    USED.fetch_or(bit(number), Ordering::AcqRel);
    match how {
        Use::Handles => RETIRED.fetch_and(!bit(number), Ordering::AcqRel),
        // A tick may be pending for a thread, and would end the program without a handler.
        Use::Waits => RETIRED.fetch_or(bit(number), Ordering::AcqRel),
    };
    let next = choose(0, handler).unwrap_or(0);
    if SIGNAL
        .compare_exchange(number, next, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        // Another thread has given it up already.
        return;
    }
    if next == 0 {
        refuse(Refused::ALL, 0);
    }
    // From now on no tick is sent any more; some may still be pending.
    for (ring, _) in mine() {
        delete(ring);
    }
    if listen::has_control_thread() {
        ANEW.store(true, Ordering::Release);
    } else {
        arm_all_anew();
    }
}

/// Ends all timers of this process, for good. The control thread must have ended.
pub(crate) fn end() {
    if !own_process() || SIGNAL.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    for (ring, _) in mine() {
        delete(ring);
    }
}

/// In a forked child: forgets the parent's timers, which are not inherited.
pub(crate) fn after_fork() {
    if !active() {
        return;
    }
    for owner in THREADS.iter().take(rings()) {
        owner.store(0, Ordering::Relaxed);
    }
    PROCESS.store(sys::process(), Ordering::Release);
    ANEW.store(false, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
    OWN_NS.store(0, Ordering::Relaxed);
    HEARTBEAT_NS.store(0, Ordering::Relaxed);
    // `arm_new` reports an error to the launcher.
    let _ = arm_new(sys::thread());
}
