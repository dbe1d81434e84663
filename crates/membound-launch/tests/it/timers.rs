//! Programs that are sampled by timers: what is reported, and that they do not notice it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use membound_launch::{Live, Options, TimerReceiver, TimerSample, Timers};
use membound_rewrite::patch::{self, Accesses, Body, Hooks};
use membound_testkit::inconclusive;

use crate::fixture::{Fixture, busy, could_be_patched};

/// Keeps all reports.
#[derive(Debug, Default)]
struct Keep(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    samples: Vec<(u32, TimerSample)>,
    lost: u64,
    refused: Vec<(Option<u32>, String)>,
    /// CPU time used and sampled, by process.
    covered: BTreeMap<u32, (u64, u64)>,
}

impl Keep {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimerReceiver for Keep {
    fn receive(&self, pid: u32, samples: &[TimerSample]) {
        let samples = samples.iter().map(|sample| (pid, sample.clone()));
        self.kept().samples.extend(samples);
    }

    fn lost(&self, _pid: u32, samples: u64) {
        self.kept().lost += samples;
    }

    fn covered(&self, pid: u32, cpu_ns: u64, sampled_ns: u64) {
        self.kept().covered.insert(pid, (cpu_ns, sampled_ns));
    }

    fn refused(&self, _pid: u32, thread: Option<u32>, reason: &str) {
        self.kept().refused.push((thread, reason.to_owned()));
    }
}

/// What a program printed: CPU time by thread or child.
struct Printed {
    threads: BTreeMap<u32, u64>,
    /// CPU time of the first thread before the program began.
    before: BTreeMap<u32, u64>,
    children: BTreeMap<u32, u64>,
    /// Time for which threads were runnable and had no processor.
    waited: BTreeMap<u32, u64>,
}

impl Printed {
    fn of(out: &str) -> Self {
        let of = |kind: &str| {
            let lines = out.lines().filter_map(|line| line.strip_prefix(kind));
            let parsed = lines.filter_map(|line| {
                let (number, time) = line.trim().split_once(' ')?;
                Some((number.parse().ok()?, time.parse().ok()?))
            });
            parsed.collect()
        };
        Self {
            threads: of("thread "),
            before: of("before "),
            children: of("child "),
            waited: of("waited "),
        }
    }

    /// Whether a thread had no processor for longer than it ran. The kernel checks a timer when a clock
    /// tick meets its thread; where threads compete, ticks miss one of 400 ms for up to 114 ms.
    fn is_crowded(&self) -> bool {
        let used = |thread| self.threads.get(thread).or(self.children.get(thread));
        let mut waits = self.waited.iter();
        waits.any(|(thread, waited)| used(thread).is_some_and(|used| waited > used))
    }
}

fn options(fixture: &Fixture, keep: &Arc<Keep>, plan: patch::Options) -> Options {
    let mut options = fixture.options(plan);
    options.timers = Some(Timers {
        period: Duration::from_millis(1),
        receiver: Arc::clone(keep) as Arc<dyn TimerReceiver>,
    });
    options
}

/// Options with only the agent's own patches.
fn bare() -> patch::Options {
    patch::Options::bare(Hooks::Plant)
}

/// Runs a mode of the program to its successful end; `None` if it cannot be patched.
fn run(plan: patch::Options, live: Live, words: &[&str]) -> Option<(Fixture, Kept, Printed)> {
    let fixture = Fixture::build("ticked.c")?;
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = options(&fixture, &keep, plan);
    options.live = live;
    let (session, path) = fixture.start(options, words);
    let ended = session.wait().expect("it is a child");
    let out = std::fs::read_to_string(path).expect("the shell made it");
    let report = session.finish();
    assert!(out.ends_with("failures 0\n"), "{ended:?}: {out}");
    if !could_be_patched(&report) {
        return None;
    }
    assert_eq!(report.missed, [""; 0]);
    let kept = std::mem::take(&mut *keep.kept());
    Some((fixture, kept, Printed::of(&out)))
}

/// Sum of the weights of a thread's samples.
fn weight(kept: &Kept, thread: u32) -> u64 {
    let samples = kept.samples.iter();
    let of_thread = samples.filter(|(_, sample)| sample.thread == thread);
    of_thread.map(|(_, sample)| sample.weight_ns).sum()
}

/// Largest age of a thread's last tick: the kernel checks timers once in a clock tick, and where threads
/// compete many ticks hit others.
fn tail(kept: &Kept) -> u64 {
    let weights = kept.samples.iter().map(|(_, sample)| sample.weight_ns);
    12_000_000 + 2 * weights.max().unwrap_or(0)
}

/// A thread's samples represent its CPU time, except the time after the last sample and before the program
/// began.
#[track_caller]
fn assert_covered(kept: &Kept, printed: &Printed, thread: u32, used: u64) {
    let weight = weight(kept, thread);
    let before = printed.before.get(&thread).copied().unwrap_or(0);
    // A thread reads its own clock some moments before its last sample.
    assert!(weight <= used + 5_000_000, "{weight} of {used}");
    if printed.is_crowded() {
        inconclusive("others had the processors: ticks missed threads");
        return;
    }
    assert!(
        weight + tail(kept) + before >= used,
        "{weight} of {used}, {before} before, {} samples lost",
        kept.lost
    );
}

#[test]
fn weights_add_up_to_the_time_of_each_thread() {
    let Some((fixture, kept, printed)) = run(bare(), Live::Off, &["burn", "400", "3"]) else {
        return;
    };
    assert_eq!(
        (kept.lost, kept.refused.len()),
        (0, 0),
        "{:?}",
        kept.refused
    );
    assert_eq!(printed.threads.len(), 4);
    for (thread, used) in &printed.threads {
        assert_covered(&kept, &printed, *thread, *used);
    }
    let (used, sampled) = kept.covered.values().max().copied().expect("it is told");
    assert!(sampled <= used);
    assert!(sampled + 4 * tail(&kept) >= used || printed.is_crowded());
    // Nearly all of it is spent in one function, called through two others.
    let whole: u64 = kept
        .samples
        .iter()
        .map(|(_, sample)| sample.weight_ns)
        .sum();
    let names = ["ruled", "inner", "middle", "outer", "burn"];
    let functions = names.map(|name| fixture.function(name).range);
    let bias = |sample: &TimerSample| {
        // The program is loaded at a multiple of the page size.
        sample.registers.ip.wrapping_sub(functions[0].start) & !0xfff
    };
    let in_order = kept.samples.iter().filter(|(_, sample)| {
        let bias = bias(sample);
        let frames = std::iter::once(&sample.registers.ip).chain(&sample.callers);
        frames
            .zip(&functions)
            .all(|(address, function)| function.contains(&address.wrapping_sub(bias)))
            && sample.callers.len() > names.len()
    });
    let in_order: u64 = in_order.map(|(_, sample)| sample.weight_ns).sum();
    assert!(in_order * 4 > whole * 3, "{in_order} of {whole}");
}

/// Assertions that hold at every instruction of `ruled` between its beginning and its end.
fn keeps_to_its_rule(general: &[u64]) -> bool {
    let [rbx, r12, r13, r14] = [3, 12, 13, 14].map(|register| general[register]);
    rbx == 0x0123_4567 && r12 == 2 * rbx && r13 == !rbx && r14 == 0x5a5a_5a5a
}

#[test]
fn registers_are_the_programs_own_whatever_stands_in_its_text() {
    for body in [Body::Sample, Body::Count { exact: false }, Body::Record] {
        let mut plan = patch::Options::new(body);
        plan.accesses = Accesses::All;
        let Some((fixture, kept, printed)) = run(plan, Live::Off, &["burn", "600", "2"]) else {
            return;
        };
        let ruled = fixture.function("ruled").range;
        // Behind the prologue, before the first register is restored.
        let loop_ = ruled.start + 39..ruled.end - 8;
        let offset = |sample: &TimerSample| sample.registers.ip & 0xfff;
        let of_loop = kept.samples.iter().filter(|(_, sample)| {
            let page = loop_.start & !0xfff;
            loop_.contains(&(page + offset(sample))) && sample.callers.len() > 3
        });
        let mut looked_at = 0;
        let mut beside = 0;
        for (_, sample) in of_loop {
            let general = &sample.registers.general;
            assert!(keeps_to_its_rule(general), "{body:?}: {sample:x?}");
            looked_at += 1;
            beside += usize::from(sample.inside);
        }
        let all = kept.samples.len();
        assert!(looked_at * 2 > all, "{body:?}: {looked_at} of {all}");
        let elsewhere = body == Body::Sample;
        assert!(
            beside > 0 || !elsewhere,
            "{body:?}: some time is spent in patches"
        );
        for (thread, used) in &printed.threads {
            assert_covered(&kept, &printed, *thread, *used);
        }
    }
}

#[test]
fn no_call_is_interrupted_that_was_not() {
    let Some((_, kept, printed)) = run(bare(), Live::On, &["calls", "400"]) else {
        return;
    };
    assert_eq!(kept.refused, []);
    for (thread, used) in &printed.threads {
        assert_covered(&kept, &printed, *thread, *used);
    }
}

#[test]
fn masks_sets_and_every_signal_stay_the_programs() {
    let Some((_, kept, printed)) = run(bare(), Live::Off, &["masks", "100"]) else {
        return;
    };
    // In the end it uses every number itself.
    let all_used = (
        None,
        "the program uses every real-time signal itself".to_owned(),
    );
    assert_eq!(kept.refused, [all_used]);
    let (thread, _) = printed.threads.first_key_value().expect("it says");
    // Samples were also taken while all signals were blocked, and after it had begun to wait for each
    // number: if they had really been blocked, one sample would represent most of the time.
    if printed.is_crowded() {
        inconclusive("others had the processors: ticks missed threads");
        return;
    }
    let samples = kept.samples.iter().filter(|(_, it)| it.thread == *thread);
    let longest = samples.map(|(_, sample)| sample.weight_ns).max();
    let whole = weight(&kept, *thread);
    assert!(
        longest.is_some_and(|longest| longest * 2 < whole),
        "{longest:?} of {whole}"
    );
}

#[test]
fn stacks_and_jumps_stay_the_programs() {
    let Some((_, kept, printed)) = run(bare(), Live::Off, &["stacks", "1"]) else {
        return;
    };
    for (thread, used) in &printed.threads {
        assert_covered(&kept, &printed, *thread, *used);
    }
}

#[test]
fn children_are_sampled_with_their_threads() {
    let Some((_, kept, printed)) = run(bare(), Live::Off, &["children", "200", "3"]) else {
        return;
    };
    assert_eq!(kept.refused, []);
    assert_eq!(printed.children.len(), 3);
    for (child, used) in &printed.children {
        let of_child = kept.samples.iter().filter(|(pid, _)| pid == child);
        let weight: u64 = of_child.map(|(_, sample)| sample.weight_ns).sum();
        // A child reads its own clock a moment before its last sample.
        assert!(weight <= used + 1_000_000, "{weight} of {used}");
        if printed.is_crowded() {
            inconclusive("others had the processors: ticks missed threads");
            continue;
        }
        // Three threads at most.
        assert!(
            weight + 3 * tail(&kept) >= *used,
            "{weight} of {used}, {} samples lost",
            kept.lost
        );
        let covered = kept.covered.get(child).expect("it is told");
        assert!(covered.1 <= covered.0);
    }
}

#[test]
fn a_thousand_threads_come_and_go() {
    let Some((_, kept, _)) = run(bare(), Live::On, &["many", "1"]) else {
        return;
    };
    assert_eq!(kept.refused, []);
}

#[test]
fn the_next_program_is_sampled_and_blocks_what_it_should() {
    let Some((_, kept, printed)) = run(bare(), Live::Off, &["exec", "200"]) else {
        return;
    };
    assert_eq!(kept.refused, []);
    for (thread, used) in &printed.threads {
        // Both have the same number; the clock goes on.
        assert_covered(&kept, &printed, *thread, *used);
    }
}

#[test]
fn a_program_that_outlives_its_session_has_no_timers_left() {
    let Some(fixture) = Fixture::build("ticked.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let (session, _) = fixture.start(options(&fixture, &keep, bare()), &["burn", "60000", "2"]);
    let pid = session.pid();
    let timers = || std::fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    let begun = Instant::now();
    let wait = |until: &dyn Fn() -> bool| {
        while !until() && begun.elapsed() < Duration::from_secs(60) {
            sleep(Duration::from_millis(10));
        }
    };
    let count = || {
        timers()
            .lines()
            .filter(|line| line.starts_with("ID: "))
            .count()
    };
    // The shell has one, and then the program's first thread and the other two.
    wait(&|| count() == 3 || !keep.kept().refused.is_empty());
    let had = count();
    let report = session.finish();
    wait(&|| count() == 0);
    let left = timers();
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("it has a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    if could_be_patched(&report) {
        assert_eq!((had, left.as_str()), (3, ""));
    }
}
