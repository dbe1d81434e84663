//! Work that no program waits for, on threads that give way to programs.
//!
//! On a machine whose processors are all busy such a thread gets about a twentieth of one, which is what a
//! recording may cost by default. With the lowest priority of all, plans would never be made there, and
//! conversations that need one would wait.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use membound_platform::cpu_time;
use membound_rewrite::between_functions;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Nice value of the threads. The kernel gives it the weight 56, and an ordinary thread 1024.
const NICE: i32 = 13;
/// CPU time that a thread may use before it is held: enough to plan small programs.
const NEVER_HELD_NS: u64 = 25_000_000;
/// Longest single pause.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// CPU time that the plan of a large file takes for each mebibyte of its text, or the outline from which others are made:
/// to parse the file, and to search it.
const PLAN_A_MEBIBYTE: Duration = Duration::from_millis(5);
/// Part of the time that a plan takes for which it is delayed: most programs end before, and need no plan.
const DELAYED_PART: u32 = 5;
/// The same while programs lack processors, as a multiple. Each millisecond of planning then delays the program by as
/// much, so it pays only in a program that runs longer.
const DELAY_WHERE_SHORT: u32 = 2;
/// Longest delay. Exchanges that need the plan wait for it too, for some seconds before they are given
/// up.
const MAX_WAIT_WHERE_SHORT: Duration = Duration::from_secs(2);
/// Run time of a program after which work begins for which it was not held. Many programs end before.
pub(crate) const BEGINS_AFTER: Duration = Duration::from_millis(50);
/// Interval between two checks whether programs still lack processors.
const SHORTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Time for which plans are finished after programs have ended, besides a part of the time that these ran:
/// together what a recording may add to a short program.
const MIN_FINISHING_TIME: Duration = Duration::from_millis(50);
const FINISHING_PART: u32 = 20;
/// A plan is finished if it takes at most this many times as long: a part of it was done before.
const MAX_UNDONE: u32 = 2;

/// Plans that are being made or wait for their begin.
static UNFINISHED: Unfinished = Unfinished {
    state: Mutex::new(State {
        files: Vec::new(),
        programs_ended: false,
    }),
    changed: Condvar::new(),
};

/// True if programs lack processors.
static SHORT: AtomicBool = AtomicBool::new(false);
/// How much work is held: a [`Hold`], or [`STOPPED`].
static HELD: AtomicU32 = AtomicU32::new(Hold::Not as u32);
/// Value of [`HELD`] while planning stops: no program needs the plan in progress.
const STOPPED: u32 = 0;

thread_local! {
    /// CPU time of the thread when it last went on; `None` on threads outside of the pool.
    static WENT_ON_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// How much of a processor work in the background gets. Without any, a program that needs all processors for as
/// long as it runs would never be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hold {
    /// All that programs leave.
    Not = 1,
    /// A part that fits into what a recording may cost by default.
    Partly = 32,
    /// So little that fewer than one in a hundred of a program's requests meets it.
    Nearly = 200,
}

/// Holds the work in the background, or lets it go on. A low priority alone does not keep it away from
/// threads that wait for one another and need all processors at once.
pub fn hold_planning(hold: Hold) {
    HELD.store(hold as u32, Ordering::Relaxed);
}

/// To be called when all programs of this process, which ran for `elapsed`, have ended. A plan in progress that
/// [`finish_plans`] would not wait for stops then, so that it does not take a processor from what is left to do.
pub fn programs_ended(elapsed: Duration) {
    let limit = finishing_time(elapsed);
    let held = match UNFINISHED.state().is_long_in_progress(limit) {
        true => STOPPED,
        false => Hold::Not as u32,
    };
    HELD.store(held, Ordering::Relaxed);
}

fn finishing_time(elapsed: Duration) -> Duration {
    MIN_FINISHING_TIME + elapsed / FINISHING_PART
}

/// Sets whether programs lack processors: while they do, planning of large files begins later.
pub fn lack_processors(short: bool) {
    SHORT.store(short, Ordering::Relaxed);
}

struct Unfinished {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Files whose plans are being made or wait.
    files: Vec<Arc<UnfinishedFile>>,
    /// Nothing delays planning any more.
    programs_ended: bool,
}

#[derive(Debug)]
struct UnfinishedFile {
    text_mib: u32,
    has_begun: AtomicBool,
}

impl State {
    /// Whether a plan is being made that takes longer than there is time.
    fn is_long_in_progress(&self, limit: Duration) -> bool {
        let mut files = self.files.iter();
        files.any(|file| file.has_begun() && file.outlasts(limit))
    }
}

impl UnfinishedFile {
    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Whether planning it takes longer than there is time.
    fn outlasts(&self, limit: Duration) -> bool {
        planning_time(self.text_mib) > limit * MAX_UNDONE
    }
}

impl Unfinished {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps for `time`, or until programs have ended.
    fn sleep(&self, time: Duration) {
        let wait = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.programs_ended);
        drop(wait);
    }
}

/// Sleeps for `time`, or until programs have ended.
pub(crate) fn sleep(time: Duration) {
    UNFINISHED.sleep(time);
}

/// A plan that is being made in the background.
#[derive(Debug)]
pub(crate) struct Planning(Arc<UnfinishedFile>);

impl Planning {
    /// For a file with this much text.
    pub(crate) fn of(text_bytes: u64) -> Self {
        let file = Arc::new(UnfinishedFile {
            text_mib: u32::try_from(text_bytes >> 20).unwrap_or(u32::MAX),
            has_begun: AtomicBool::new(false),
        });
        UNFINISHED.state().files.push(Arc::clone(&file));
        Self(file)
    }

    /// Waits until the planning may begin.
    pub(crate) fn wait(&self) {
        let is_short = || SHORT.load(Ordering::Relaxed);
        wait_by(self.0.text_mib, is_short, |time| UNFINISHED.sleep(time));
        self.0.has_begun.store(true, Ordering::Relaxed);
    }
}

impl Drop for Planning {
    fn drop(&mut self) {
        let is_other = |file: &Arc<UnfinishedFile>| !Arc::ptr_eq(file, &self.0);
        UNFINISHED.state().files.retain(is_other);
        UNFINISHED.changed.notify_all();
    }
}

/// To be called when all programs of this process, which ran for `elapsed`, have ended: waits a small part of that
/// until plans are finished and on disk, so that the next run of the same programs has them from its start. Plans
/// that would take longer are not waited for. While such a plan is being made, no plan is waited for.
pub fn finish_plans(elapsed: Duration) {
    let limit = finishing_time(elapsed);
    let mut state = UNFINISHED.state();
    state.programs_ended = true;
    UNFINISHED.changed.notify_all();
    let wait = UNFINISHED
        .changed
        .wait_timeout_while(state, limit, |state| {
            let mut files = state.files.iter();
            files.any(|file| !file.outlasts(limit)) && !state.is_long_in_progress(limit)
        });
    let (mut state, _) = wait.unwrap_or_else(PoisonError::into_inner);
    state.programs_ended = false;
    let _ = HELD.compare_exchange(
        STOPPED,
        Hold::Not as u32,
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// CPU time that a plan takes about, for a file with this much text.
fn planning_time(text_mib: u32) -> Duration {
    PLAN_A_MEBIBYTE.saturating_mul(text_mib)
}

/// Waits until the plan of a file may begin: when a program has run for a part of the time that it takes.
fn wait_by(text_mib: u32, is_short: impl Fn() -> bool, mut sleep: impl FnMut(Duration)) {
    let takes = planning_time(text_mib);
    let mut waited = takes / DELAYED_PART;
    sleep(waited);
    let most = takes
        .saturating_mul(DELAY_WHERE_SHORT)
        .min(MAX_WAIT_WHERE_SHORT);
    while waited < most && is_short() {
        sleep(SHORTAGE_CHECK_INTERVAL);
        waited += SHORTAGE_CHECK_INTERVAL;
    }
}

/// Called between two functions: pauses while work is held, and waits while it is stopped.
fn give_way_for_long() {
    let Some(went_on_ns) = WENT_ON_NS.get() else {
        return;
    };
    let divisor = loop {
        match HELD.load(Ordering::Relaxed) {
            STOPPED => std::thread::sleep(MAX_PAUSE),
            divisor => break divisor,
        }
    };
    if divisor == Hold::Not as u32 {
        return;
    }
    let now_ns = cpu_time::of_this_thread();
    if now_ns < NEVER_HELD_NS {
        return;
    }
    let took = Duration::from_nanos(now_ns.saturating_sub(went_on_ns));
    std::thread::sleep((took * divisor).min(MAX_PAUSE));
    WENT_ON_NS.set(Some(cpu_time::of_this_thread()));
}

/// Runs `work`, including its parallel parts, on background threads, and waits for it.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match pool() {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// Runs `work` that takes milliseconds on a separate thread with the same low priority, so that it is not
/// delayed by work of [`run`], which can take minutes while it is held.
pub(crate) fn run_short<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    match POOL.get_or_init(|| build_pool("choosing", 1, lower_priority)) {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// Runs `work` on a separate background thread after what was given to it before, without waiting for it.
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    match POOL.get_or_init(|| build_pool("reading", 1, lower_priority)) {
        Some(pool) => pool.spawn(work),
        None => work(),
    }
}

/// Runs `work` on a thread of its own in idle time (`SCHED_IDLE`), without waiting for it. If the thread
/// cannot be made nothing is done.
pub fn spawn_idle(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let _ = thread.spawn(move || {
        // The kernel's `sched_param`: a priority. musl's structure has more fields, and its function
        // refuses.
        let none: libc::c_int = 0;
        let call = libc::SYS_sched_setscheduler;
        // SAFETY: the kernel reads the parameters; 0 means the calling thread. A refusal changes nothing.
        let _ = unsafe { libc::syscall(call, 0, libc::SCHED_IDLE, &raw const none) };
        work();
    });
}

/// The pool of background threads; `None` if the system permits no more threads.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        between_functions(give_way_for_long);
        build_pool("planning", threads(), give_way)
    })
    .as_ref()
}

/// Builds a pool of `threads` threads. Each thread calls `on_start` first. Returns `None` if the system refuses to start
/// the threads.
fn build_pool(name: &'static str, threads: usize, on_start: fn()) -> Option<ThreadPool> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(move |_| name.to_owned())
        .start_handler(move |_| on_start())
        .build()
        .ok()
}

/// Number of threads: one fewer than processors, so that a program with one busy thread has one to itself.
fn threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cpus - 1).max(1)
}

/// Makes the calling thread give way, from now on.
fn give_way() {
    WENT_ON_NS.set(Some(cpu_time::of_this_thread()));
    lower_priority();
}

/// Sets the nice value of the calling thread to [`NICE`].
fn lower_priority() {
    // The kernel takes process 0 for the calling thread. A refusal changes nothing.
    let _ = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_held_pauses_in_the_pool_and_nowhere_else() {
        let spent = || {
            while cpu_time::of_this_thread() < NEVER_HELD_NS {
                std::hint::spin_loop();
            }
            let begun = std::time::Instant::now();
            give_way_for_long();
            (WENT_ON_NS.get().is_some(), begun.elapsed())
        };
        hold_planning(Hold::Partly);
        let (there, here) = (run(spent), spent());
        hold_planning(Hold::Not);
        assert!(there.0 && !here.0);
        // A sleep is never shorter than asked for.
        assert!(there.1 >= MAX_PAUSE, "{there:?}");
    }

    #[test]
    fn large_files_wait_longer_for_their_plans_while_processors_are_short() {
        let waits = |mebibytes: u32, short_ms: u128| {
            let waited = Cell::new(Duration::ZERO);
            wait_by(
                mebibytes,
                || waited.get().as_millis() < short_ms,
                |time| waited.set(waited.get() + time),
            );
            waited.get().as_millis()
        };
        assert_eq!(waits(20, 0), 20);
        assert_eq!(waits(20, u128::MAX), 200);
        // The shortage ends.
        assert_eq!(waits(20, 100), 100);
        assert_eq!(waits(400, u128::MAX), 2000);
        // A file this large has to wait in any case.
        assert_eq!(waits(3000, u128::MAX), 3000);
        assert_eq!(waits(0, u128::MAX), 0);
    }

    #[test]
    fn plans_of_smaller_files_are_finished_after_programs_have_ended() {
        static IS_FINISHED: AtomicBool = AtomicBool::new(false);
        let (small, large) = (Planning::of(1 << 20), Planning::of(10_000_000 << 20));
        let planner = std::thread::spawn(move || {
            // Ends long before an hour is over, since the programs end.
            UNFINISHED.sleep(Duration::from_secs(3600));
            IS_FINISHED.store(true, Ordering::Release);
            drop(small);
        });
        // The large file, which would take almost fourteen hours, is not waited for.
        let hours = Duration::from_secs(20 * 3600);
        programs_ended(hours);
        assert!(
            !UNFINISHED
                .state()
                .is_long_in_progress(finishing_time(hours))
        );
        finish_plans(hours);
        assert!(IS_FINISHED.load(Ordering::Acquire));
        planner.join().expect("it only sleeps");
        // Nor is a small one behind it: this ends long before an hour is over.
        large.0.has_begun.store(true, Ordering::Relaxed);
        let _small = Planning::of(1 << 20);
        programs_ended(hours);
        assert!(
            UNFINISHED
                .state()
                .is_long_in_progress(finishing_time(hours))
        );
        let planner = std::thread::spawn(|| run(give_way_for_long));
        finish_plans(hours);
        // It goes on when another program may need the plan.
        planner.join().expect("it only sleeps");
        drop(large);
    }

    #[test]
    fn work_in_the_background_gives_way_and_its_caller_does_not() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        let there = run(|| (own(), std::thread::current().name().map(str::to_owned)));
        assert_eq!(there.1.as_deref(), Some("planning"));
        const LOWEST: i32 = 19;
        assert!(
            there.0 >= (before + NICE).min(LOWEST),
            "{} after {before}",
            there.0
        );
        assert_eq!(own(), before);
    }
}
