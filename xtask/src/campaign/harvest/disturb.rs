//! Sends signals from outside to a process and to its threads, and examines what is left of it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use membound_platform::stat::Stat;

use super::draw::{Case, Storm};
use membound_testkit::Random;

/// The primary of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// Executable of the primary.
    pub(super) path: &'a Path,
    /// Process number of its parent.
    pub(super) parent: u32,
}

impl Target<'_> {
    /// The number of its process, if it has begun and not ended.
    pub(super) fn process(self) -> Option<u32> {
        children(self.parent).into_iter().find(|child| {
            std::fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe == self.path)
        })
    }
}

/// Numbers of all processes.
fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Children of a process.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let is_child =
        |process: &u32| Stat::of(*process).is_ok_and(|stat| stat.parent() == Some(parent));
    processes().filter(is_child).collect()
}

/// Whether a process handles and ignores the signals of `storm`: before that, a signal would end
/// it.
fn is_ready(process: u32, storm: &Storm) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let holds = |name: &str, signals: &[i32]| {
        let wanted = Storm::mask(signals);
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & wanted == wanted)
    };
    holds("SigCgt:", &storm.handled) && holds("SigIgn:", &storm.ignored)
}

/// Threads of a process without those of membound, which are visible in `/proc` too.
fn threads(process: u32) -> Vec<u32> {
    let directory = format!("/proc/{process}/task");
    std::fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|thread| {
            let name = std::fs::read_to_string(format!("{directory}/{thread}/comm"));
            name.is_ok_and(|name| !name.starts_with("membound"))
        })
        .collect()
}

fn number(id: u32) -> libc::pid_t {
    libc::pid_t::try_from(id).expect("the kernel's numbers fit")
}

/// Sends a signal to a process, or to one thread of it.
fn send(process: u32, thread: Option<u32>, signal: i32) {
    match thread {
        // SAFETY: it touches no memory; the process was just observed to be the primary.
        None => unsafe {
            libc::kill(number(process), signal);
        },
        // SAFETY: as above; a thread that has ended meanwhile causes an error, which is ignored.
        Some(thread) => unsafe {
            libc::syscall(libc::SYS_tgkill, number(process), number(thread), signal);
        },
    }
}

/// Kills a process and all of its group.
pub(super) fn end_group(leader: u32) {
    // SAFETY: it touches no memory; the leader is a child that has not been waited for.
    unsafe { libc::kill(-number(leader), libc::SIGKILL) };
}

/// Signals that were sent to a primary.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disturbed {
    /// Number of signals.
    pub(super) signals: u64,
    /// Whether the signal that kills the case's primary was sent; the primary may have ended
    /// before.
    pub(super) is_killed: bool,
}

/// Sends the signals of a case for as long as `goes_on` returns true.
pub(super) fn disturb(
    case: &Case,
    target: Target<'_>,
    mut goes_on: impl FnMut() -> bool,
) -> Disturbed {
    let mut random = Random::new(case.seed ^ 0x5157);
    let begun = Instant::now();
    let mut sent = Disturbed::default();
    while goes_on() {
        let mut pause = Duration::from_millis(2);
        if let Some(process) = target.process() {
            if let Some((after, signal)) = case.killed
                && !sent.is_killed
                && begun.elapsed() >= after
            {
                send(process, None, signal);
                sent.is_killed = true;
                sent.signals += 1;
            }
            if let (Some(mean), Some(storm)) = (case.signals, &case.primary.storm)
                && is_ready(process, storm)
            {
                // In bursts, because finding the process takes longer than a short pause.
                for _ in 0..20 {
                    sent.signals += send_one(process, storm, &mut random);
                    std::thread::sleep(mean.mul_f64(2.0 * random.below(1000) as f64 / 1000.0));
                }
                pause = Duration::ZERO;
            }
        }
        std::thread::sleep(pause);
    }
    sent
}

fn send_one(process: u32, storm: &Storm, random: &mut Random) -> u64 {
    if random.once_in(40) {
        // SIGCONT always follows, so that no process stays stopped.
        send(process, None, libc::SIGSTOP);
        std::thread::sleep(Duration::from_micros(random.below(5000)));
        send(process, None, libc::SIGCONT);
        return 2;
    }
    let safe: Vec<i32> = storm
        .handled
        .iter()
        .chain(&storm.ignored)
        .copied()
        .collect();
    let signal = *random.pick(&safe);
    let own = threads(process);
    let thread = (random.once_in(2) && !own.is_empty()).then(|| *random.pick(&own));
    send(process, thread, signal);
    1
}

/// Describes what hangs: the state and stack of each thread of a process and of its children.
pub(super) fn stacks(process: u32) -> String {
    let mut text = String::new();
    let mut wanted = vec![process];
    while let Some(process) = wanted.pop() {
        wanted.extend(children(process));
        text += &format!("== process {process}\n");
        let directory = format!("/proc/{process}/task");
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let thread = entry.path();
            text += &format!("thread {}", entry.file_name().to_string_lossy());
            for name in ["comm", "wchan", "syscall", "schedstat", "stat"] {
                let words = std::fs::read_to_string(thread.join(name)).unwrap_or_default();
                text += &format!("  {name}: {}", words.trim_end());
            }
            text.push('\n');
        }
        let mut debugger = Command::new("gdb");
        debugger.args([
            "-batch",
            "-nx",
            "-ex",
            "thread apply all -s bt",
            "-ex",
            "thread apply all -s info registers",
        ]);
        if let Ok(output) = debugger.arg("-p").arg(process.to_string()).output() {
            text += &String::from_utf8_lossy(&output.stdout);
        }
    }
    text
}
