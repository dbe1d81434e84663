//! Trials that measure the cost of false sharing or contention for a cache line: all threads that write the
//! line but one are held in the handler of [`own_signals::CALL`] for less than a millisecond. What the
//! remaining thread executes in its CPU time is compared with what it executes when none is held.
//!
//! The control thread makes a trial from beginning to end. A held thread waits with a time limit of its
//! own, so that it continues if the control thread does not come back, or the launcher dies. Only running
//! threads are called: a call would wake one that sleeps in the kernel.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_wire::{
    HOLD_FRAME_WORDS, HOLD_LIMIT_NS, HOLD_LINE_WORDS, HOLD_NONE, HOLD_REGISTERS, HOLD_SPANS,
    HOLD_STACK_WORDS, HOLD_THREADS, HOLD_WORDS, Progress, Refusal, STACK_POINTER, Span, State,
    Trial,
};

use crate::failure::Failure;
use crate::memory;
use crate::sys::{self, Errno};
use crate::{assembly, own_signals, threads, trap};

/// Time that called threads may take to arrive in the handler, in nanoseconds.
const ARRIVAL_NS: u64 = 250_000;
/// Longest wait between two checks whether they have arrived, in nanoseconds.
const ARRIVAL_POLL_NS: u64 = 40_000;
/// Pause after a span, in nanoseconds: at least this, and about twice this on average.
const PAUSE_NS: u64 = 60_000;
/// Nanoseconds after the start of an `execve` during which no thread is called: the signal would end the
/// new program, which has no handler for it.
const EXEC_NS: u64 = 1_000_000_000;
/// Longest time that an `execve` waits for a call that is under way, in nanoseconds.
const CALL_NS: u64 = 2_000_000;
/// [`own_signals::CALL`] as a signal mask.
const CALLS: u64 = 1 << (own_signals::CALL - 1);
/// Most bytes that a frame pointer may lie above the stack pointer.
const FRAME_BYTES: u64 = 4096;
/// Bytes of a page of memory: a page can be read if its first byte can.
const PAGE_BYTES: u64 = 4096;
const FRAME_POINTER: usize = 5;

/// Number of the present call, which distinguishes it from earlier ones.
static CALL_NUMBER: AtomicU32 = AtomicU32::new(0);
/// Threads that are to be held, one bit for each seat; a futex word.
static HELD: AtomicU32 = AtomicU32::new(0);
/// Threads that have arrived in the handler for the present call; a futex word.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Threads that went on in this span because their time limit expired.
static LATE: AtomicU32 = AtomicU32::new(0);
/// 1 while signals are being sent; a futex word.
static CALLING: AtomicU32 = AtomicU32::new(0);
/// When a thread last began an `execve`, in nanoseconds; 0: never.
static EXEC: AtomicU64 = AtomicU64::new(0);
/// Address of the cache line.
static LINE: AtomicU64 = AtomicU64::new(0);
/// The threads of the trial.
static SEATS: [Seat; HOLD_THREADS] = [const { Seat::new() }; HOLD_THREADS];

/// A thread of the trial, and the progress that it last reported.
struct Seat {
    thread: AtomicU32,
    /// Value of [`CALL_NUMBER`] when it last arrived.
    answered_call: AtomicU32,
    /// Stack pointer when the trial began, from which words are copied; 0: not known yet.
    stack: AtomicU64,
    /// Frame pointer at that time; 0: the register held none.
    frame: AtomicU64,
    wall_ns: AtomicU64,
    cpu_ns: AtomicU64,
    words: [AtomicU64; HOLD_WORDS],
}

impl Seat {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            answered_call: AtomicU32::new(0),
            stack: AtomicU64::new(0),
            frame: AtomicU64::new(0),
            wall_ns: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; HOLD_WORDS],
        }
    }

    /// Stores the thread's times and words. Called in its signal handler.
    fn record_progress(&self, state: &State) {
        self.wall_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
        self.cpu_ns.store(sys::thread_cpu_ns(), Ordering::Relaxed);
        let stack = state.general[STACK_POINTER];
        if self.stack.load(Ordering::Relaxed) == 0 {
            self.stack.store(stack & !7, Ordering::Relaxed);
            let frame = state.general[FRAME_POINTER] & !7;
            let is_one = frame > stack && frame - stack <= FRAME_BYTES && sys::readable(frame);
            self.frame
                .store(if is_one { frame } else { 0 }, Ordering::Relaxed);
        }
        let (line, rest) = self.words.split_at(HOLD_LINE_WORDS);
        let (registers, rest) = rest.split_at(HOLD_REGISTERS);
        let (on_stack, in_frame) = rest.split_at(HOLD_STACK_WORDS);
        copy(line, LINE.load(Ordering::Relaxed));
        for (word, register) in registers.iter().zip(&state.general) {
            word.store(*register, Ordering::Relaxed);
        }
        copy(on_stack, self.stack.load(Ordering::Relaxed));
        let below = (HOLD_FRAME_WORDS * size_of::<u64>()) as u64;
        copy(
            in_frame,
            self.frame.load(Ordering::Relaxed).saturating_sub(below),
        );
    }
}

/// Copies words from an address on, up to the end of its page; the rest of `words` keeps its values.
fn copy(words: &[AtomicU64], from: u64) {
    if from == 0 || !sys::readable(from) {
        return;
    }
    let end = (from | (PAGE_BYTES - 1)).saturating_sub(7);
    let addresses = (from..=end).step_by(size_of::<u64>());
    for (word, address) in words.iter().zip(addresses) {
        // SAFETY: the page can be read, and the word ends on it.
        let value = unsafe { core::ptr::read_volatile(address as *const u64) };
        word.store(value, Ordering::Relaxed);
    }
}

/// Value by which a signal of a trial is recognised.
fn magic() -> u64 {
    (&raw const CALL_NUMBER) as u64
}

/// True if a signal with this information is a call of a trial.
pub(crate) fn is_call(code: i32, process: u32, value: u64) -> bool {
    sys::is_queued(code, process, value, magic())
}

/// Called in the signal handler: reports the thread's progress and, if the thread is to be held, waits
/// until the span is over, for [`HOLD_LIMIT_NS`] at most. `state` holds the thread's registers.
pub(crate) fn report_and_wait(state: &State) {
    let call_number = CALL_NUMBER.load(Ordering::Acquire);
    let own = sys::thread();
    let seats = SEATS.iter().zip(0_u32..);
    let mut seats = seats.filter(|(seat, _)| seat.thread.load(Ordering::Acquire) == own);
    let Some((seat, index)) = seats.next() else {
        // The signal came too late: the trial is over.
        return;
    };
    seat.record_progress(state);
    // The progress before `answered_call`, with Release: the control thread reads the progress once it sees
    // `answered_call`.
    seat.answered_call.store(call_number, Ordering::Release);
    ARRIVED.fetch_add(1, Ordering::AcqRel);
    sys::wake_all(&ARRIVED);
    let begin = sys::monotonic_ns();
    loop {
        let held = HELD.load(Ordering::Acquire);
        if held >> index & 1 == 0 {
            return;
        }
        let waited = sys::monotonic_ns().saturating_sub(begin);
        let Some(left_ns) = HOLD_LIMIT_NS
            .checked_sub(waited)
            .filter(|left_ns| *left_ns > 0)
        else {
            LATE.fetch_add(1, Ordering::AcqRel);
            return;
        };
        sys::wait_while(&HELD, held, left_ns);
    }
}

/// Called before an `execve`: afterwards no thread is called, and a call that was being sent has been sent.
pub(crate) fn before_exec() {
    // SeqCst, as the store of `CALLING` in `call`: either this thread sees the call, or the call sees
    // `EXEC`.
    EXEC.store(sys::monotonic_ns(), Ordering::SeqCst);
    // A wait with a limit and no lock: the caller may be a child of `vfork`, which never returns.
    if CALLING.load(Ordering::SeqCst) != 0 {
        sys::wait_while(&CALLING, 1, CALL_NS);
    }
}

/// Makes the [`Trial`] at `address`; returns the number of spans measured.
pub(crate) fn run(address: u64) -> Result<u64, Failure> {
    // SAFETY: the launcher has mapped it and changes nothing while it waits for the reply.
    let trial: Trial = unsafe { memory::get(address as usize) };
    let count = trial.threads as usize;
    if !(2..=HOLD_THREADS).contains(&count)
        || trial.spans as usize > HOLD_SPANS
        || u64::from(trial.span_ns) * 3 / 2 > HOLD_LIMIT_NS
    {
        return Err(Failure::malformed());
    }
    if threads::traced() {
        return Err(Failure::new(Errno::EBUSY, Refusal::Traced));
    }
    trap::install(&own_signals::OF_CHANGES)?;
    HELD.store(0, Ordering::Release);
    LINE.store(trial.line, Ordering::Release);
    for (seat, index) in SEATS.iter().zip(0..) {
        seat.stack.store(0, Ordering::Relaxed);
        let tid = trial.tids.get(index).copied().filter(|_| index < count);
        seat.thread.store(tid.unwrap_or(0), Ordering::Release);
    }
    let mut trying = TrialRun {
        trial,
        address: address as usize,
        random: trial.seed | 1,
        done: 0,
        given_up: 0,
    };
    let result = trying.all();
    for seat in &SEATS {
        seat.thread.store(0, Ordering::Release);
    }
    trying.put(offset_of!(Trial, done), trying.done);
    trying.put(offset_of!(Trial, given_up), trying.given_up);
    result.map(|()| u64::from(trying.done))
}

/// A trial in progress.
struct TrialRun {
    trial: Trial,
    address: usize,
    random: u32,
    done: u32,
    given_up: u32,
}

impl TrialRun {
    fn all(&mut self) -> Result<(), Failure> {
        let seats = SEATS.iter().take(self.trial.threads as usize);
        for seat in seats {
            if blocks_calls(seat.thread.load(Ordering::Relaxed)) {
                return Err(Failure::new(Errno::EBUSY, Refusal::TrapBlocked));
            }
        }
        // Each round has one span for every thread and one with none held, in random order, so that
        // periodic behaviour of the program does not look like an effect.
        let mut kinds = [HOLD_NONE; HOLD_THREADS + 1];
        for (kind, index) in kinds.iter_mut().zip(0..self.trial.threads) {
            *kind = index;
        }
        let kinds_count = self.trial.threads as usize + 1;
        while self.done + self.given_up < self.trial.spans {
            for last in (1..kinds_count).rev() {
                let swapped = self.below(last as u32 + 1) as usize;
                swap(&mut kinds, last, swapped);
            }
            for kind in kinds.into_iter().take(kinds_count) {
                if self.done + self.given_up >= self.trial.spans {
                    break;
                }
                if self.span(kind) {
                    self.done += 1;
                } else {
                    self.given_up += 1;
                }
                let pause = PAUSE_NS + u64::from(self.below(2 * PAUSE_NS as u32));
                sys::nap(pause);
            }
        }
        Ok(())
    }

    /// Measures one span in which only the thread `runs` runs, or all do; `false` if it was given up.
    fn span(&mut self, runs: u32) -> bool {
        let all = (1_u32 << self.trial.threads) - 1;
        let (held, measured_threads) = match runs {
            HOLD_NONE => (0, all),
            index => (all & !(1 << index), 1 << index),
        };
        let length = u64::from(self.trial.span_ns);
        let length = length + u64::from(self.below(self.trial.span_ns / 4 + 1));
        LATE.store(0, Ordering::Release);
        HELD.store(held, Ordering::Release);
        let measured = self.measure(runs, (held, measured_threads), length);
        if held != 0 {
            HELD.store(0, Ordering::Release);
            sys::wake_all(&HELD);
        }
        measured && LATE.load(Ordering::Acquire) == 0
    }

    fn measure(&self, runs: u32, (held, measured_threads): (u32, u32), length: u64) -> bool {
        let at = self.address + size_of::<Trial>() + self.done as usize * size_of::<Span>();
        if !self.call(held) || !self.call(measured_threads) {
            return false;
        }
        self.each(at, |place, seat| {
            let words = place + offset_of!(Progress, words);
            for (word, to) in seat.words.iter().zip((words..).step_by(size_of::<u64>())) {
                put64(to, word.load(Ordering::Relaxed));
            }
            put64(
                place + offset_of!(Progress, wall_ns),
                seat.wall_ns.load(Ordering::Relaxed),
            );
            put64(
                place + offset_of!(Progress, cpu_ns),
                seat.cpu_ns.load(Ordering::Relaxed),
            );
        });
        sys::nap(length);
        if !self.call(measured_threads) {
            return false;
        }
        self.each(at, |place, seat| {
            let grown = |to: usize, now: &AtomicU64| {
                // SAFETY: it is a word of this span.
                let before: u64 = unsafe { memory::get(to) };
                put64(to, now.load(Ordering::Relaxed).wrapping_sub(before));
            };
            let words = place + offset_of!(Progress, words);
            for (word, to) in seat.words.iter().zip((words..).step_by(size_of::<u64>())) {
                grown(to, word);
            }
            grown(place + offset_of!(Progress, wall_ns), &seat.wall_ns);
            grown(place + offset_of!(Progress, cpu_ns), &seat.cpu_ns);
        });
        put64(at + offset_of!(Span, tsc), assembly::time_stamp());
        put64(at + offset_of!(Span, runs), u64::from(runs));
        true
    }

    /// Calls `visit` with the address of each thread's progress in the span at `at`.
    fn each(&self, at: usize, visit: impl Fn(usize, &Seat)) {
        let places = (at + offset_of!(Span, threads)..).step_by(size_of::<Progress>());
        for (seat, place) in SEATS.iter().zip(places).take(self.trial.threads as usize) {
            visit(place, seat);
        }
    }

    /// Calls the threads in `mask`; true if all have arrived. Gives up if one of them is not running.
    fn call(&self, mask: u32) -> bool {
        if mask == 0 {
            return true;
        }
        let call_number = CALL_NUMBER.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        ARRIVED.store(0, Ordering::Release);
        CALLING.store(1, Ordering::SeqCst);
        let now = sys::monotonic_ns();
        let exec = EXEC.load(Ordering::SeqCst);
        let mut called = exec == 0 || now.saturating_sub(exec) > EXEC_NS;
        let seats = || {
            SEATS
                .iter()
                .zip(0_u32..)
                .filter(|(_, at)| mask >> at & 1 != 0)
        };
        for (seat, _) in seats() {
            let thread = seat.thread.load(Ordering::Relaxed);
            if !called || !threads::is_running(thread) {
                called = false;
                break;
            }
            sys::queue_signal(sys::process(), thread, own_signals::CALL as u32, magic());
        }
        CALLING.store(0, Ordering::SeqCst);
        sys::wake_all(&CALLING);
        while called {
            let arrived = ARRIVED.load(Ordering::Acquire);
            if seats().all(|(seat, _)| seat.answered_call.load(Ordering::Acquire) == call_number) {
                return true;
            }
            called = sys::monotonic_ns().saturating_sub(now) <= ARRIVAL_NS;
            sys::wait_while(&ARRIVED, arrived, ARRIVAL_POLL_NS);
        }
        false
    }

    fn put(&self, offset: usize, value: u32) {
        // SAFETY: the offset is of a field of the trial.
        unsafe { memory::put(self.address + offset, value) };
    }

    /// A random number below `limit`.
    fn below(&mut self, limit: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        ((u64::from(self.random) * u64::from(limit)) >> 32) as u32
    }
}

/// Swaps two elements; without indexing, which could panic.
fn swap(kinds: &mut [u32], one: usize, other: usize) {
    if let (Some(&first), Some(&second)) = (kinds.get(one), kinds.get(other)) {
        for (at, kind) in [(one, second), (other, first)] {
            if let Some(place) = kinds.get_mut(at) {
                *place = kind;
            }
        }
    }
}

/// Writes a word of a span.
fn put64(place: usize, value: u64) {
    // SAFETY: the launcher has mapped room for all spans.
    unsafe { memory::put(place, value) };
}

/// True if a thread blocks the signal that would call it, or if the kernel does not report its mask.
fn blocks_calls(thread: u32) -> bool {
    threads::blocked_signals(thread).is_none_or(|mask| mask & CALLS != 0)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::vec::Vec;

    use membound_wire::HOLD_BYTES;

    use super::*;

    #[test]
    fn threads_that_block_calls_or_are_in_system_calls_are_detected() {
        // The thread that is asked about is in a system call.
        assert!(!threads::is_running(sys::thread()));
        assert!(!blocks_calls(sys::thread()));
        assert!(!threads::is_running(u32::MAX), "there is no such thread");
        assert!(blocks_calls(u32::MAX));
    }

    #[test]
    fn words_are_copied_up_to_the_end_of_their_page() {
        let page = sys::Scratch::new(4096).unwrap();
        let words = [const { AtomicU64::new(7) }; 4];
        copy(&words, page.address() as u64 + 4096 - 16);
        let now = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!(now, [0, 0, 7, 7]);
        copy(&words, 0);
        assert_eq!(words[2].load(Ordering::Relaxed), 7);
    }

    /// Two threads increment words in one line, one of them held in turn: the other one continues counting.
    #[test]
    fn a_trial_holds_one_thread_while_the_other_counts() {
        const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);
        static STOP: AtomicBool = AtomicBool::new(false);
        #[repr(align(64))]
        struct Shared([AtomicU64; 8]);
        static SHARED: Shared = Shared([const { AtomicU64::new(0) }; 8]);
        let (tell, told) = mpsc::channel();
        let counters: Vec<_> = (0..2_usize)
            .map(|index| {
                let tell = tell.clone();
                std::thread::spawn(move || {
                    tell.send((index, sys::thread())).unwrap();
                    while !STOP.load(Ordering::Relaxed) {
                        SHARED.0[index].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut trial = Trial {
            threads: 2,
            spans: 12,
            span_ns: 600_000,
            seed: 7,
            line: (&raw const SHARED) as u64,
            ..Trial::default()
        };
        for _ in 0..2 {
            let (index, tid) = told.recv().unwrap();
            trial.tids[index] = tid;
        }
        let room = sys::Scratch::new(HOLD_BYTES).unwrap();
        let span = |number: usize| -> Span {
            let at = room.address() + size_of::<Trial>() + number * size_of::<Span>();
            // SAFETY: the trial has written it.
            unsafe { memory::get(at) }
        };
        // A thread that waits for a processor makes no progress, held or not.
        let ran = |it: &Progress| 2 * it.cpu_ns > it.wall_ns;
        // If one of them has no processor of its own for a while, spans are given up.
        let begun = std::time::Instant::now();
        let (mut measured, mut alone) = (0, 0);
        while (measured < 6 || alone == 0) && begun.elapsed() < TIMEOUT {
            // SAFETY: the room is ours, and large enough.
            unsafe { memory::put(room.address(), trial) };
            measured = run(room.address() as u64).unwrap_or(0) as usize;
            let spans = (0..measured).map(span);
            let held = spans.filter(|it| it.runs != HOLD_NONE);
            alone = held.filter(|it| ran(&it.threads[it.runs as usize])).count();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        STOP.store(true, Ordering::Relaxed);
        for counter in counters {
            counter.join().unwrap();
        }
        assert!(measured >= 6 && alone > 0, "{measured} spans, {alone}");
        for span in (0..measured).map(span) {
            if span.runs != HOLD_NONE {
                let (runs, held) = (span.runs as usize, 1 - span.runs as usize);
                let alone = &span.threads[runs];
                assert!(alone.words[runs] > 0 || !ran(alone), "{alone:?}");
                assert_eq!(alone.words[held], 0, "{alone:?}");
                assert!(alone.wall_ns < 2 * HOLD_LIMIT_NS, "{alone:?}");
            }
        }
        assert!(
            SEATS
                .iter()
                .all(|it| it.thread.load(Ordering::Relaxed) == 0)
        );
    }
}
