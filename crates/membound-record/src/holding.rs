//! Trials that measure how much threads slow each other down by using the same line: chooses lines, threads
//! and times, and judges how far each thread got.
//!
//! The spans are made inside the program (`agent/hold.rs`), while no window is open: a patch in a
//! loop would change what its threads cost each other.

use std::collections::{BTreeMap, BTreeSet};

use membound_launch::{HOLD_LINE_WORDS, Held, HeldSpan, Holding};
use membound_run::{Hold, ThreadId};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::gaps::Gaps;
use crate::patcher::Running;
use crate::windows::{Now, Windows};

/// Lines remembered at most.
const MAX_LINES: usize = 4096;
/// Threads in one trial at most.
const MAX_THREADS: usize = membound_launch::HOLD_THREADS;
/// A line is a candidate for a trial from this many accesses by each of two threads, and this many changes
/// from one thread to another between consecutive accesses.
const MIN_ACCESSES: u64 = 4;
const MIN_TURNS: u64 = 4;
/// Length of a span: below a millisecond, including the time in which threads arrive.
const SPAN_NS: u32 = 600_000;
/// Duration of a span, with all that goes with it.
const SPAN_TAKES_NS: u64 = 900_000;
/// Rounds in one trial. In each, every thread runs alone for one span, and all run together for one.
const ROUNDS: u32 = 8;
/// Share of the time for which a thread may be held.
const DUTY: f64 = 0.02;
/// The same in programs that serve requests.
const SERVED_DUTY: f64 = 0.005;
/// After this many trials with a result, further ones are made less and less often.
const ENOUGH_TRIALS: f64 = 6.0;
/// The pause after trials without a result doubles this many times at most.
const MAX_DOUBLINGS: u32 = 5;
/// How long a trial may take before it is given up.
const PROGRAM_TIMEOUT_NS: u64 = 3_000_000_000;
/// Spans of either kind needed to find a word that counts progress.
const MIN_SPANS: usize = 3;
/// A word counts progress only if the variation of its growth per CPU time, while the thread runs alone, is below this.
/// Another hardware thread of the core causes up to 0.33; random numbers have 0.58.
const STEADY: f64 = 0.35;
/// A word counts progress only if its mean growth in a span is at least this: then its step size does not matter.
const MIN_GROWTH: f64 = 30.0;
/// A word whose growth per nanosecond is this close to 1 is a clock.
const CLOCK: f64 = 0.01;

/// An access to a line, by a sample or a timed access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) thread: ThreadId,
    pub(crate) address: u64,
    pub(crate) stores: bool,
}

#[derive(Debug, Default)]
struct Line {
    turns: u64,
    last: Option<ThreadId>,
    threads: BTreeMap<ThreadId, User>,
}

#[derive(Debug, Default)]
struct User {
    tid: u32,
    accesses: u64,
    stores: u64,
}

/// A trial to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    pid: u32,
    line: u64,
    threads: Vec<(ThreadId, u32)>,
}

/// The trials that were made of a set of threads.
#[derive(Debug, Default)]
struct Tried {
    /// All of them; one without spans counts as four.
    number: u64,
    /// Trials that measured a thread's progress.
    with_result: u64,
    /// Trials since the last of them.
    in_vain: u32,
    /// No other trial before this.
    due_ns: u64,
}

impl Tried {
    /// Time from one trial to the next, as a multiple of the least that [`DUTY`] permits. Trials disturb the program and
    /// take the budget of the windows: where they show nothing, or enough of them were made, they become rare.
    fn pauses(&self) -> f64 {
        let in_vain = f64::from(1_u32 << self.in_vain.min(MAX_DOUBLINGS));
        in_vain.max(self.with_result as f64 / ENOUGH_TRIALS)
    }
}

/// Finds lines that threads contend for, and has the agent make trials with them.
#[derive(Debug)]
pub(crate) struct Trials {
    line_bytes: u64,
    lines: FxHashMap<(u32, u64), Line>,
    /// Keys of the lines that changed between threads often enough. Plans are made from these at every step:
    /// most programs have thousands of lines and none of these.
    disputed: BTreeSet<(u32, u64)>,
    /// The trials of each set of threads.
    tried: FxHashMap<Vec<ThreadId>, Tried>,
    /// The trial that is being made, and when it was requested.
    trying: Option<(Plan, u64)>,
    due_ns: u64,
    made: u32,
    given_up: u64,
    measured: u64,
}

impl Trials {
    /// No line yet; `line_bytes` is the size of a line (64 if unknown).
    pub(crate) fn new(line_bytes: Option<u64>) -> Self {
        const LINE_BYTES: u64 = 64;
        Self {
            line_bytes: line_bytes.unwrap_or(LINE_BYTES).next_power_of_two(),
            lines: FxHashMap::default(),
            disputed: BTreeSet::new(),
            tried: FxHashMap::default(),
            trying: None,
            due_ns: 0,
            made: 0,
            given_up: 0,
            measured: 0,
        }
    }

    /// Notes an access.
    pub(crate) fn note(&mut self, noted: Noted) {
        let key = (noted.pid, noted.address & !(self.line_bytes - 1));
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&key) {
            // Lines that several threads use stay.
            self.lines.retain(|_, line| line.turns > 0);
            if self.lines.len() >= MAX_LINES {
                return;
            }
        }
        let line = self.lines.entry(key).or_default();
        line.turns += u64::from(line.last.is_some_and(|last| last != noted.thread));
        line.last = Some(noted.thread);
        let user = line.threads.entry(noted.thread).or_default();
        user.tid = noted.tid;
        user.accesses += 1;
        user.stores += u64::from(noted.stores);
        if line.turns == MIN_TURNS {
            self.disputed.insert(key);
        }
    }

    /// True while a trial is made: any thread that wakes meanwhile takes a processor from it.
    pub(crate) const fn is_trying(&self) -> bool {
        self.trying.is_some()
    }

    /// Starts a trial, or ends it when it is finished or timed out; appends what was measured to `rows`.
    pub(crate) fn step(
        &mut self,
        running: &Running<'_>,
        windows: &mut Windows,
        now: Now,
        rows: &mut Vec<Hold>,
    ) {
        let Some((plan, since_ns)) = self.trying.take() else {
            self.begin(running, windows, now);
            return;
        };
        let held = running.remote.held();
        if held.is_none() && now.t_ns < since_ns.saturating_add(PROGRAM_TIMEOUT_NS) {
            self.trying = Some((plan, since_ns));
            return;
        }
        windows.give_back(now);
        let cost_ns = self.end((&plan, since_ns), held, &running.clock, rows);
        windows.spend(cost_ns);
    }

    /// Ends a trial that is being made, without a result.
    pub(crate) fn stop(&mut self, windows: &mut Windows, now: Now) {
        if self.trying.take().is_some() {
            windows.give_back(now);
        }
    }

    /// Reports trials without a result, if none gave one.
    pub(crate) fn report(&self, gaps: &mut Gaps) {
        if self.measured == 0 {
            let reason = "threads that use the same line slept, or did not come in time, whenever \
                          they were to be held";
            gaps.count("holds", reason, None, self.given_up);
        }
    }

    fn begin(&mut self, running: &Running<'_>, windows: &mut Windows, now: Now) {
        // Windows need not be charged first: holding threads is limited by a share of the time, and is charged
        // to the windows' budget after it.
        if now.t_ns < self.due_ns || !windows.is_clear() {
            return;
        }
        let Some(plan) = self.next_plan(now.t_ns) else {
            return;
        };
        let count = plan.threads.len() as u32;
        let spans = (ROUNDS * (count + 1)).min(membound_launch::HOLD_SPANS as u32);
        // In every round a thread is held while each of the others runs.
        let held_ns = u64::from(spans * (count - 1) / (count + 1)) * SPAN_TAKES_NS;
        let duty = match windows.is_limited() {
            true => SERVED_DUTY,
            false => DUTY,
        };
        windows.lend();
        self.due_ns = now.t_ns + (held_ns as f64 / duty) as u64;
        self.made += 1;
        running.remote.hold(Holding {
            pid: plan.pid,
            tids: plan.threads.iter().map(|(_, tid)| *tid).collect(),
            line: plan.line,
            spans,
            span_ns: SPAN_NS,
            seed: self.made.wrapping_mul(0x9e37_79b9) | 1,
        });
        self.trying = Some((plan, now.t_ns));
    }

    /// The line to be tried next: two or more threads use it alternately, one writes, and it has the most
    /// changes of threads per trial made so far.
    fn next_plan(&self, now_ns: u64) -> Option<Plan> {
        let mut best: Option<(f64, Plan)> = None;
        for &(pid, line) in &self.disputed {
            let Some(fought) = self.lines.get(&(pid, line)).filter(|it| it.is_fought()) else {
                continue;
            };
            let plan = Plan {
                pid,
                line,
                threads: fought.users(),
            };
            let tried = self.tried.get(&plan.key());
            if tried.is_some_and(|tried| now_ns < tried.due_ns) {
                continue;
            }
            let number = tried.map_or(0, |tried| tried.number);
            let score = fought.turns as f64 / (number + 1) as f64;
            let better = best.as_ref().is_none_or(|(known, other)| {
                score > *known || (score == *known && plan.line < other.line)
            });
            if better {
                best = Some((score, plan));
            }
        }
        best.map(|(_, plan)| plan)
    }

    /// Turns the result of a trial that began at `since_ns` into rows; returns what it cost, in nanoseconds.
    fn end(
        &mut self,
        (plan, since_ns): (&Plan, u64),
        held: Option<Held>,
        clock: &Clock,
        rows: &mut Vec<Hold>,
    ) -> f64 {
        let (spans, given_up) = match held {
            Some(Held::Measured(spans, given_up)) => (spans, given_up),
            Some(Held::Refused(_)) | None => (Vec::new(), 1),
        };
        self.given_up += u64::from(given_up);
        let counting: Vec<Option<Word>> = (0..plan.threads.len())
            .map(|thread| Word::that_counts(&spans, thread))
            .collect();
        let tried = self.tried.entry(plan.key()).or_default();
        // If there is none, the threads sleep or have ended: prefer other lines for a while.
        tried.number += if spans.is_empty() { 4 } else { 1 };
        if counting.iter().any(Option::is_some) {
            tried.with_result += 1;
            tried.in_vain = 0;
        } else {
            tried.in_vain += 1;
        }
        let pause_ns = self.due_ns.saturating_sub(since_ns) as f64;
        tried.due_ns = since_ns + (pause_ns * tried.pauses()) as u64;
        self.measured += spans.len() as u64;
        let mut cost_ns = 0.0;
        for span in &spans {
            let (Some(&(thread, _)), Some(word)) =
                (plan.threads.get(span.thread), counting.get(span.thread))
            else {
                continue;
            };
            if span.alone {
                cost_ns += span.wall_ns as f64;
            }
            rows.push(Hold {
                t_ns: clock.of_tsc(span.tsc),
                trial: self.made,
                thread,
                line: plan.line,
                alone: span.alone,
                wall_ns: span.wall_ns,
                cpu_ns: span.cpu_ns,
                progress: word.map_or(0, |word| word.growth(span).unsigned_abs()),
            });
        }
        cost_ns
    }
}

impl Plan {
    fn key(&self) -> Vec<ThreadId> {
        self.threads.iter().map(|(thread, _)| *thread).collect()
    }
}

impl Line {
    fn is_fought(&self) -> bool {
        let writes = self.threads.values().any(|user| user.stores > 0);
        self.turns >= MIN_TURNS && writes && self.users().len() >= 2
    }

    fn users(&self) -> Vec<(ThreadId, u32)> {
        let often = self
            .threads
            .iter()
            .filter(|it| it.1.accesses >= MIN_ACCESSES);
        let mut users: Vec<(&ThreadId, &User)> = often.collect();
        users.sort_by_key(|(thread, user)| (std::cmp::Reverse(user.accesses), **thread));
        users.truncate(MAX_THREADS);
        let mut users: Vec<(ThreadId, u32)> = users
            .into_iter()
            .map(|(thread, user)| (*thread, user.tid))
            .collect();
        users.sort_unstable();
        users
    }
}

/// A word of memory or registers whose growth shows a thread's progress: a loop counter, a pointer that
/// advances, a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    index: usize,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Low,
    High,
}

impl Word {
    /// Signed growth in a span.
    fn growth(self, span: &HeldSpan) -> i64 {
        let word = span.words.get(self.index).copied().unwrap_or(0);
        match self.part {
            Part::Whole => word.cast_signed(),
            Part::Low => i64::from((word as u32).cast_signed()),
            Part::High => i64::from(((word >> 32) as u32).cast_signed()),
        }
    }

    /// The word that grows most evenly with a thread's CPU time. The thread's own words come first, since a
    /// word of the line may count for several threads.
    fn that_counts(spans: &[HeldSpan], thread: usize) -> Option<Self> {
        let own = |alone: bool| {
            let of_thread = spans.iter().filter(move |it| it.thread == thread);
            of_thread
                .filter(move |it| it.alone == alone)
                .collect::<Vec<_>>()
        };
        let (alone, together) = (own(true), own(false));
        if alone.len() < MIN_SPANS || together.len() < MIN_SPANS {
            return None;
        }
        let count = spans.first()?.words.len();
        let parts = [Part::Whole, Part::Low, Part::High];
        let words = |range: std::ops::Range<usize>| {
            let words = range.flat_map(|index| parts.map(|part| Self { index, part }));
            let judged = words.filter_map(|word| Some((word.unevenness(&alone, &together)?, word)));
            let best = judged.min_by(|(one, _), (other, _)| one.total_cmp(other));
            best.map(|(_, word)| word)
        };
        words(HOLD_LINE_WORDS..count).or_else(|| {
            let word = words(0..HOLD_LINE_WORDS)?;
            let others = spans.iter().filter(|it| it.alone && it.thread != thread);
            let common = others
                .map(|span| word.growth(span))
                .any(|growth| growth != 0);
            (!common).then_some(word)
        })
    }

    /// How unevenly it grows with CPU time; `None` if it does not count progress.
    fn unevenness(self, alone: &[&HeldSpan], together: &[&HeldSpan]) -> Option<f64> {
        let all = || alone.iter().chain(together);
        let up = self.growth(alone.first()?) > 0;
        let counts = all().all(|span| {
            let growth = self.growth(span);
            growth != 0 && (growth > 0) == up
        });
        if !counts {
            return None;
        }
        let growths: Vec<f64> = all()
            .map(|it| self.growth(it).unsigned_abs() as f64)
            .collect();
        let mean = growths.iter().sum::<f64>() / growths.len() as f64;
        let by_clock: Vec<f64> = all()
            .zip(&growths)
            .map(|(span, growth)| growth / span.wall_ns.max(1) as f64)
            .collect();
        // A clock grows with time whatever the thread does.
        let is_clock = by_clock.iter().all(|rate| (rate - 1.0).abs() < CLOCK);
        if mean < MIN_GROWTH || is_clock {
            return None;
        }
        let uneven = |spans: &[&HeldSpan]| {
            let rates = spans
                .iter()
                .map(|span| self.growth(span).unsigned_abs() as f64 / span.cpu_ns.max(1) as f64);
            variation(&rates.collect::<Vec<f64>>())
        };
        let steady = uneven(alone);
        (steady < STEADY).then(|| steady + uneven(together) / 4.0)
    }
}

/// Coefficient of variation: standard deviation over mean.
fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / count).sqrt() / mean.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(thread: u32, address: u64, stores: bool) -> Noted {
        Noted {
            pid: 1,
            tid: 100 + thread,
            thread: ThreadId(thread),
            address,
            stores,
        }
    }

    #[test]
    fn a_line_is_fought_over_when_threads_take_turns_and_one_writes() {
        let fought = |accesses: &[(u32, u64, bool)]| {
            let mut trials = Trials::new(Some(64));
            for _ in 0..6 {
                for &(thread, address, stores) in accesses {
                    trials.note(noted(thread, address, stores));
                }
            }
            trials.next_plan(0).is_some()
        };
        assert!(fought(&[(1, 64, true), (2, 72, false)]));
        assert!(!fought(&[(1, 64, false), (2, 72, false)]), "none writes");
        assert!(!fought(&[(1, 64, true), (2, 128, true)]), "two lines");
        assert!(!fought(&[(1, 64, true), (1, 72, true)]), "one thread");
        let mut handed_over = Trials::new(Some(64));
        for thread in [1, 2] {
            for _ in 0..20 {
                handed_over.note(noted(thread, 64, true));
            }
        }
        assert_eq!(handed_over.next_plan(0), None);
    }

    #[test]
    fn lines_are_bounded_and_those_with_turns_stay() {
        let mut trials = Trials::new(None);
        for thread in [1, 2, 1, 2, 1, 2, 1, 2] {
            trials.note(noted(thread, 8, true));
        }
        for number in 1..2 * MAX_LINES as u64 {
            trials.note(noted(1, number * 64, true));
        }
        assert!(trials.lines.len() <= MAX_LINES);
        assert_eq!(trials.next_plan(0).map(|plan| plan.line), Some(0));
    }

    #[test]
    fn trials_without_a_result_become_rare_as_do_those_after_enough() {
        let tried = |with_result, in_vain| Tried {
            with_result,
            in_vain,
            ..Tried::default()
        };
        let pauses = |with_result, in_vain| tried(with_result, in_vain).pauses();
        assert!(pauses(0, 0) <= 1.0 && pauses(5, 0) <= 1.0);
        assert!((pauses(0, 3) - 8.0).abs() < 1e-9);
        assert!((pauses(60, 0) - 10.0).abs() < 1e-9);
        assert!(pauses(0, 100) < 40.0, "the program may change");
        let mut trials = Trials::new(None);
        for thread in [1, 2, 1, 2, 1, 2, 1, 2] {
            trials.note(noted(thread, 8, true));
        }
        let plan = trials.next_plan(0).unwrap();
        let rare = Tried {
            due_ns: 1000,
            ..tried(0, 4)
        };
        trials.tried.insert(plan.key(), rare);
        assert_eq!(trials.next_plan(999), None);
        assert_eq!(trials.next_plan(1000), Some(plan));
    }

    /// Spans of a thread: alone or not, with these words after those of the line.
    fn spans(words: impl Fn(u64, bool) -> [u64; 4], line: u64) -> Vec<HeldSpan> {
        let span = |number: u64| {
            let alone = number.is_multiple_of(2);
            let mut all = vec![0; HOLD_LINE_WORDS];
            all[0] = line * number;
            all.extend(words(number, alone));
            HeldSpan {
                tsc: number,
                thread: 0,
                alone,
                wall_ns: 700_000 + number,
                cpu_ns: 690_000 + 7 * number,
                words: all,
            }
        };
        (1..12).map(span).collect()
    }

    #[test]
    fn a_word_counts_that_grows_evenly_with_cpu_time() {
        let found = |words: &dyn Fn(u64, bool) -> [u64; 4]| {
            let word = Word::that_counts(&spans(words, 0), 0)?;
            Some((word.index - HOLD_LINE_WORDS, word.part))
        };
        // A random word, a clock, a constant, and a counter that is slower where all run.
        let counter = |alone: bool| if alone { 50_000 } else { 20_000_u64 };
        let mixed = |number: u64, alone: bool| {
            let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            [random, 700_000 + number, 0, counter(alone)]
        };
        assert_eq!(found(&mixed), Some((3, Part::Whole)));
        // Counting down, in the upper half of a word whose lower half is noise.
        let down = |number: u64, alone: bool| {
            let noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let high = (counter(alone) as u32).wrapping_neg();
            [u64::from(high) << 32 | noise, 0, 0, 0]
        };
        assert_eq!(found(&down).map(|it| it.0), Some(0));
        // A word that starts anew at every span and shows no progress.
        let again = |number: u64, _| [(number * 700) % 1024, 0, 0, 0];
        assert_eq!(found(&again), None);
        assert_eq!(found(&|_, _| [3, 0, 0, 0]), None, "too coarse");
    }

    #[test]
    fn a_word_of_the_line_counts_for_one_thread_only() {
        let mut spans: Vec<HeldSpan> = spans(|_, _| [0; 4], 0);
        for span in &mut spans {
            span.words[1] = 40_000;
        }
        assert!(Word::that_counts(&spans, 0).is_some());
        let mut others = spans.clone();
        for span in &mut others {
            span.thread = 1;
        }
        spans.extend(others);
        assert_eq!(Word::that_counts(&spans, 0), None);
    }
}
