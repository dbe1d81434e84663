//! Calibrates the latency sampler with a program that loads from known levels, patched like any other.
//!
//! The program is a process of the command's own; it runs `membound_measure::calibration`. Its one load gets
//! the same body that samples latencies in a profile. The recorded latencies are sorted by the time at which
//! the program reported to be in each level. Both sides meet in a directory: the
//! program waits for the file `GO`, and then writes one [`Stretch`] after another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use membound_launch::{
    Access, Cache, Change, Choice, Live, Options, Program, Receiver, Recording, Session,
    ShortLived, Source,
};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{self, Accesses, Body, Hooks, Sites};
use membound_rewrite::stall::{Code, SiteKind};
use membound_types::{CalibratedLevel, Calibration, TickCount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Name of the file that the program waits for.
const GO: &str = "go";
/// Name of the file that the program writes.
const STRETCHES: &str = "stretches";
/// Mean number of loads per timed load. So the fastest chain does not overflow the rings of records between
/// two polls, and the slowest gives some thousands of timed loads in a quarter of a second.
const PERIOD: u32 = 400;
/// How long patching may take.
const PATCH_TIMEOUT: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time after a request at which an exchange that has settled without the patch is requested again.
const AGAIN: Duration = Duration::from_secs(2);
/// Share of a stretch that is left out at its beginning, while caches are being filled.
const WARMING: f64 = 0.05;
/// Timed loads below which a level is not calibrated.
const MIN_TIMED_LOADS: u64 = 100;

/// The request: what is to be calibrated, and how.
#[derive(Debug)]
pub struct Calibrate {
    /// The command that chases pointers. The directory is appended to its arguments.
    pub program: Program,
    /// The command's executable, which contains `load`.
    pub executable: PathBuf,
    /// Address of the load, as an offset in bytes from the executable's lowest address.
    pub load: u64,
    /// Name and area in bytes of each level, in the order in which the program visits them.
    pub levels: Vec<(String, u64)>,
    /// How long the program may run.
    pub limit: Duration,
    /// Where plans are cached, if anywhere.
    pub cache: Option<Cache>,
    /// Distinguishes cached plans of different builds.
    pub revision: String,
    /// Directory in which the session's socket and the meeting directory are made.
    pub directory: PathBuf,
    /// Ticks of the time stamp counter per second.
    pub tick_hz: f64,
}

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The program cannot be started.
    #[error(transparent)]
    Launch(#[from] membound_launch::Error),
    /// A file that both sides use cannot be read or written.
    #[error("cannot use {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system reported.
        error: io::Error,
    },
    /// The load cannot be patched, or is no 8-byte load.
    #[error("the command's own load cannot be patched: {0}")]
    Unpatched(String),
    /// The calibrating program failed.
    #[error("the calibrating process {0}")]
    Failed(String),
    /// The caller cancelled.
    #[error("interrupted before it was measured")]
    Interrupted,
}

/// A span of time in which all loads were served from one level, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Stretch {
    /// The program stayed in the level.
    Stayed {
        /// Name of the level.
        name: String,
        /// Latency of its chase without a patch, in nanoseconds.
        latency_ns: f64,
        /// Time stamp counter at the beginning.
        from_tsc: u64,
        /// Time stamp counter at the end.
        to_tsc: u64,
    },
    /// The program left the level out.
    Skipped {
        /// Name of the level.
        name: String,
        /// Why it was left out.
        reason: String,
    },
}

impl Stretch {
    /// Formats it as a line of the file, with `\n`.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = String::new();
        let written = match self {
            Self::Stayed {
                name,
                latency_ns,
                from_tsc,
                to_tsc,
            } => writeln!(line, "stayed\t{name}\t{latency_ns}\t{from_tsc}\t{to_tsc}"),
            Self::Skipped { name, reason } => {
                let reason = reason.replace(['\n', '\t'], " ");
                writeln!(line, "skipped\t{name}\t{reason}")
            }
        };
        written.expect("a string takes everything");
        line
    }
}

impl FromStr for Stretch {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["stayed", name, latency, from, to] => Ok(Self::Stayed {
                name: name.to_owned(),
                latency_ns: latency.parse().map_err(drop)?,
                from_tsc: from.parse().map_err(drop)?,
                to_tsc: to.parse().map_err(drop)?,
            }),
            ["skipped", name, reason] => Ok(Self::Skipped {
                name: name.to_owned(),
                reason: reason.to_owned(),
            }),
            _ => Err(()),
        }
    }
}

/// The program's side of the meeting directory.
#[derive(Debug)]
pub struct Meeting {
    directory: PathBuf,
}

impl Meeting {
    /// Uses the directory that the program was given as its argument.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Waits until the load is patched. False if the directory is gone or the wait timed out.
    #[must_use]
    pub fn wait(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < 2 * PATCH_TIMEOUT && self.directory.exists() {
            if self.directory.join(GO).exists() {
                return true;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }

    /// Appends a stretch to the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn report(&self, stretch: &Stretch) -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join(STRETCHES))?;
        io::Write::write_all(&mut file, stretch.line().as_bytes())
    }
}

/// Collects timed loads as they arrive.
#[derive(Debug, Default)]
struct Timed(Mutex<Vec<TimedLoad>>);

/// One timed load; latencies in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimedLoad {
    tsc: u64,
    ticks: u32,
    hit: Option<u32>,
    drain: Option<u32>,
}

impl Receiver for Timed {
    fn receive(&self, _: &[Source], accesses: &[Access]) {
        let mut timed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        timed.extend(accesses.iter().filter_map(|access| {
            Some(TimedLoad {
                tsc: access.tsc,
                ticks: access.ticks?,
                hit: access.hit,
                drain: access.drain,
            })
        }));
    }
}

/// Runs the patched program, and sorts the latencies of its load by level.
///
/// # Errors
/// When the program cannot be run or patched, or does not run to its end. `cancelled` is polled every few
/// milliseconds; if it returns true, the program is killed.
pub fn calibrate(
    request: Calibrate,
    cancelled: &dyn Fn() -> bool,
) -> Result<Calibration, CalibrateError> {
    let begun = Instant::now();
    let choice = choice(&request.executable, request.load)?;
    let directory = tempfile::Builder::new()
        .prefix("membound-")
        .tempdir_in(&request.directory)
        .map_err(unusable(&request.directory))?;
    let mut program = request.program;
    program.arguments.push(directory.path().into());
    let timed = Arc::new(Timed::default());
    let options = Options {
        plan: patch::Options::bare(Hooks::Plant),
        cache: request.cache,
        revision: request.revision,
        live: Live::On,
        text_at_start: None,
        short_lived: ShortLived::All,
        period: PERIOD,
        recording: Some(Recording {
            receiver: Some(Arc::clone(&timed) as Arc<dyn Receiver>),
            ..Recording::default()
        }),
        objects: None,
        timers: None,
        harvest: None,
        directory: request.directory,
        perf_maps: None,
    };
    let session = Session::start_self_loading(&program, options)?;
    let mut run = Running {
        process: handle(session.pid()),
        session: Some(session),
        cancelled,
    };
    run.patch(choice)?;
    let go = directory.path().join(GO);
    fs::write(&go, []).map_err(unusable(&go))?;
    run.wait(request.limit)?;
    let written = directory.path().join(STRETCHES);
    let stretches = fs::read_to_string(&written).map_err(unusable(&written))?;
    let stretches: Vec<Stretch> = stretches
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    let mut timed = timed.0.lock().unwrap_or_else(PoisonError::into_inner);
    timed.sort_unstable();
    let mut calibration = by_level(request.tick_hz, &request.levels, &stretches, &timed)?;
    calibration.elapsed_s = begun.elapsed().as_secs_f64();
    Ok(calibration)
}

/// For `map_err` where the file at `path` cannot be used.
fn unusable(path: &Path) -> impl FnOnce(io::Error) -> CalibrateError {
    |error| CalibrateError::File {
        path: path.to_owned(),
        error,
    }
}

/// Sorts the latencies of `timed` by level. `levels` has the name and the area in bytes of each.
fn by_level(
    tick_hz: f64,
    levels: &[(String, u64)],
    stretches: &[Stretch],
    timed: &[TimedLoad],
) -> Result<Calibration, CalibrateError> {
    let mut calibration = Calibration {
        tick_hz,
        patch: patch::sampler_identity(),
        ..Calibration::default()
    };
    for (name, bytes) in levels {
        match level(name, *bytes, stretches, timed) {
            Ok(level) => calibration.levels.push(level),
            Err(reason) => calibration.skipped.push(format!("{name}: {reason}")),
        }
    }
    leave_out_evicted(&mut calibration);
    leave_out_hits(&mut calibration);
    if calibration.levels.is_empty() {
        let why = calibration.skipped.join("; ");
        return Err(CalibrateError::Failed(format!(
            "calibrated no level: {why}"
        )));
    }
    Ok(calibration)
}

/// The choice of patches that contains only the load.
fn choice(executable: &Path, load: u64) -> Result<Choice, CalibrateError> {
    let bytes = fs::read(executable).map_err(unusable(executable))?;
    let unpatched = |reason: String| CalibrateError::Unpatched(reason);
    let image = Image::parse(&bytes).map_err(|error| unpatched(error.to_string()))?;
    let address = image.span().start + load;
    let file = image.identity().clone();
    let code = Code::of(bytes).map_err(|error| unpatched(error.to_string()))?;
    let is_load = code
        .site(address)
        .is_some_and(|site| site.kind == SiteKind::Load && site.bytes == 8);
    if !is_load {
        return Err(unpatched(format!("there is no load at {address:#x}")));
    }
    let mut options = patch::Options::new(Body::Sample);
    options.accesses = Accesses::Loads;
    options.sites = Sites::At(vec![address]);
    Ok(Choice { file, options })
}

/// The running program; it is killed when this is dropped before its end.
struct Running<'a> {
    /// A handle that stays valid for this process when its number is reused.
    process: Option<OwnedFd>,
    session: Option<Session>,
    cancelled: &'a dyn Fn() -> bool,
}

impl Running<'_> {
    fn session(&self) -> &Session {
        self.session
            .as_ref()
            .expect("it is taken when this is dropped")
    }

    fn patch(&self, choice: Choice) -> Result<(), CalibrateError> {
        let session = self.session();
        if let Some(obstacle) = session.obstacle() {
            return Err(CalibrateError::Unpatched(obstacle.to_string()));
        }
        let remote = session.remote();
        let mut number = remote.exchange(vec![choice.clone()]);
        let begun = Instant::now();
        let mut asked = begun;
        while !(remote.settled(number) && remote.executed(&choice).is_some()) {
            if (self.cancelled)() {
                return Err(CalibrateError::Interrupted);
            }
            if let Some(reason) = remote.given_up() {
                return Err(CalibrateError::Unpatched(reason));
            }
            if self.has_ended() {
                let reason = "ended before its load was patched".to_owned();
                return Err(CalibrateError::Failed(reason));
            }
            if begun.elapsed() > PATCH_TIMEOUT {
                return Err(CalibrateError::Unpatched(format!(
                    "it was not done within {} s",
                    PATCH_TIMEOUT.as_secs()
                )));
            }
            // The launcher does not repeat an exchange that found the program at the wrong moment.
            if remote.settled(number) && asked.elapsed() > AGAIN {
                number = remote.exchange(vec![choice.clone()]);
                asked = Instant::now();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        match remote.refused(&choice).as_deref() {
            Some([(_, refusal), ..]) => Err(CalibrateError::Unpatched(refusal.to_string())),
            _ => Ok(()),
        }
    }

    /// Whether the program has ended. Does not reap it: [`Self::wait`] does.
    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let mut watched = [PollFd::new(process, PollFlags::IN)];
            poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
        })
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            // Signalling a process that has just ended fails, which does no harm.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Waits for the program's end.
    fn wait(&mut self, limit: Duration) -> Result<(), CalibrateError> {
        let begun = Instant::now();
        let ended = std::thread::scope(|scope| {
            let session = self.session();
            let waiting = scope.spawn(|| session.wait());
            while !waiting.is_finished() {
                if (self.cancelled)() || begun.elapsed() > limit {
                    self.kill();
                }
                std::thread::sleep(LOOK_EVERY);
            }
            waiting
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // The program is over in any case: nothing is left to be killed.
        if let Some(session) = self.session.take() {
            drop(session.finish());
        }
        if (self.cancelled)() {
            return Err(CalibrateError::Interrupted);
        }
        match ended {
            Ok(Change::Ended(status)) if status.success() => Ok(()),
            Ok(Change::Ended(_)) if begun.elapsed() > limit => Err(CalibrateError::Failed(
                format!("took longer than {} s", limit.as_secs()),
            )),
            Ok(Change::Ended(status)) => Err(CalibrateError::Failed(format!("ended: {status}"))),
            Ok(Change::Stopped(signal)) => Err(CalibrateError::Failed(format!(
                "was stopped by signal {signal}"
            ))),
            Err(error) => Err(CalibrateError::Failed(format!("was lost: {error}"))),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.kill();
            // The exit status is not needed any more.
            let _ = session.wait();
            drop(session.finish());
        }
    }
}

/// A handle of a child that has not been waited for; `None` where the kernel does not support it.
fn handle(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Histogram of the loads that were timed while the program was in one level.
fn level(
    name: &str,
    area_bytes: u64,
    stretches: &[Stretch],
    timed: &[TimedLoad],
) -> Result<CalibratedLevel, String> {
    let found = stretches.iter().find(|stretch| {
        let (Stretch::Stayed { name: it, .. } | Stretch::Skipped { name: it, .. }) = stretch;
        it == name
    });
    let (latency_ns, from, to) = match found {
        None => return Err("it was not come to".to_owned()),
        Some(Stretch::Skipped { reason, .. }) => return Err(reason.clone()),
        Some(Stretch::Stayed {
            latency_ns,
            from_tsc,
            to_tsc,
            ..
        }) => (*latency_ns, *from_tsc, *to_tsc),
    };
    let from = from + ((to.saturating_sub(from)) as f64 * WARMING) as u64;
    let first = timed.partition_point(|load| load.tsc < from);
    let behind = timed.partition_point(|load| load.tsc <= to);
    let timed = timed.get(first..behind).unwrap_or_default();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for load in timed {
        *counts.entry(load.ticks).or_default() += 1;
    }
    let count = counts.values().sum();
    if count < MIN_TIMED_LOADS {
        return Err(format!("only {count} loads were timed"));
    }
    let ticks = counts
        .into_iter()
        .map(|(ticks, count)| TickCount { ticks, count })
        .collect();
    Ok(CalibratedLevel {
        name: name.to_owned(),
        area_bytes,
        latency_ns,
        count,
        ticks,
        hit_ticks: undisturbed_mean(timed.iter().filter_map(|load| load.hit)),
        drain_ticks: undisturbed_mean(timed.iter().filter_map(|load| load.drain)),
    })
}

/// Mean of the values up to four times the median: longer ones were interrupted. `None` of no values.
fn undisturbed_mean(ticks: impl Iterator<Item = u32>) -> Option<f64> {
    const INTERRUPTED: u32 = 4;
    let mut ticks: Vec<u32> = ticks.collect();
    ticks.sort_unstable();
    let limit = ticks.get(ticks.len() / 2)?.saturating_mul(INTERRUPTED);
    ticks.truncate(ticks.partition_point(|one| *one <= limit));
    let sum: f64 = ticks.iter().map(|one| f64::from(*one)).sum();
    Some(sum / ticks.len() as f64)
}

/// Leaves out what others had evicted: loads of a cache that took as long as memory's. A
/// cache that holds less than half of its area is none to calibrate with.
fn leave_out_evicted(calibration: &mut Calibration) {
    let is_memory = |level: &CalibratedLevel| level.name.starts_with("DRAM");
    let Some(memory) = calibration.levels.iter().find(|level| is_memory(level)) else {
        return;
    };
    let (from, to) = (quantile(memory, 0.02), quantile(memory, 0.999));
    let skipped = &mut calibration.skipped;
    calibration.levels.retain_mut(|level| {
        if !level.name.starts_with('L') {
            return true;
        }
        let before = level.count;
        level.ticks.retain(|bin| !(from..=to).contains(&bin.ticks));
        level.count = level.ticks.iter().map(|bin| bin.count).sum();
        let held = 2 * level.count >= before && level.count >= MIN_TIMED_LOADS;
        if !held {
            skipped.push(format!(
                "{}: of {before} loads, {} took as long as memory's (other programs use the cache)",
                level.name,
                before - level.count
            ));
        }
        held
    });
}

/// Removes loads of lines that another core modifies if they were hits all the same: the line had been
/// brought back before the load.
fn leave_out_hits(calibration: &mut Calibration) {
    let near = calibration.levels.iter();
    let near = near.filter(|level| ["L1", "L2"].contains(&level.name.as_str()));
    let Some(longest) = near.map(|level| quantile(level, 0.99)).max() else {
        return;
    };
    let skipped = &mut calibration.skipped;
    calibration.levels.retain_mut(|level| {
        if level.name != "core" {
            return true;
        }
        let before = level.count;
        level.ticks.retain(|bin| bin.ticks > longest);
        level.count = level.ticks.iter().map(|bin| bin.count).sum();
        let kept = 4 * level.count >= before && level.count >= MIN_TIMED_LOADS;
        if !kept {
            skipped.push(format!(
                "core: of {before} loads, {} were hits before the other core's change was seen",
                before - level.count
            ));
        }
        kept
    });
}

/// The smallest number of ticks that at least `share` of a level's loads do not exceed.
fn quantile(level: &CalibratedLevel, share: f64) -> u32 {
    let mut seen = 0;
    let found = level.ticks.iter().find(|bin| {
        seen += bin.count;
        seen as f64 >= share * level.count as f64
    });
    found.or(level.ticks.last()).map_or(0, |bin| bin.ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stayed(name: &str, from_tsc: u64, to_tsc: u64) -> Stretch {
        Stretch::Stayed {
            name: name.to_owned(),
            latency_ns: 1.5,
            from_tsc,
            to_tsc,
        }
    }

    #[test]
    fn a_program_that_was_killed_is_known_to_have_ended_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("it runs");
        let running = Running {
            process: handle(child.id()),
            session: None,
            cancelled: &|| false,
        };
        assert!(running.process.is_some());
        assert!(!running.has_ended());
        child.kill().expect("it runs");
        while !running.has_ended() {
            std::thread::yield_now();
        }
        child.wait().expect("it was not waited for");
    }

    #[test]
    fn stretches_survive_a_file() {
        let skipped = Stretch::Skipped {
            name: "node 1".to_owned(),
            reason: "no\tmemory\nthere".to_owned(),
        };
        assert_eq!(
            stayed("L1", 5, 10).line().trim_end().parse(),
            Ok(stayed("L1", 5, 10))
        );
        let read: Stretch = skipped.line().trim_end().parse().unwrap();
        assert!(matches!(read, Stretch::Skipped { reason, .. } if reason == "no memory there"));
        for wrong in ["", "stayed\tL1", "stayed\tL1\tx\t1\t2", "else\tL1\tx"] {
            assert_eq!(wrong.parse::<Stretch>(), Err(()));
        }
    }

    #[test]
    fn loads_count_where_the_program_was_when_they_were_timed() {
        let stretches = [stayed("L1", 1000, 3000), stayed("L2", 3000, 5000)];
        let timed: Vec<TimedLoad> = (0..6000)
            .map(|tsc| TimedLoad {
                tsc,
                ticks: if tsc < 3000 { 52 } else { 78 },
                // One in a hundred was interrupted.
                hit: Some(if tsc % 100 == 0 {
                    9000
                } else {
                    26 * (1 + tsc as u32 % 2)
                }),
                drain: None,
            })
            .collect();
        let l1 = level("L1", 16, &stretches, &timed).unwrap();
        // The first twentieth is left out, the last load belongs to both.
        assert_eq!(l1.count, 1901);
        assert_eq!(l1.ticks.len(), 2);
        assert_eq!(l1.ticks[0].count, 1900);
        assert!(
            (l1.hit_ticks.unwrap() - 39.1).abs() < 0.2,
            "{:?}",
            l1.hit_ticks
        );
        assert_eq!(l1.drain_ticks, None);
        let l2 = level("L2", 16, &stretches, &timed).unwrap();
        assert_eq!(
            l2.ticks,
            [TickCount {
                ticks: 78,
                count: 1901
            }]
        );
        assert!(level("L3", 16, &stretches, &timed).is_err());

        assert!(level("L1", 16, &stretches, &timed[..1050]).is_err());
    }

    #[test]
    fn loads_that_others_evicted_calibrate_nothing() {
        let level = |name: &str, ticks: &[(u32, u64)]| CalibratedLevel {
            name: name.to_owned(),
            count: ticks.iter().map(|(_, count)| count).sum(),
            ticks: ticks
                .iter()
                .map(|&(ticks, count)| TickCount { ticks, count })
                .collect(),
            ..CalibratedLevel::default()
        };
        let mut calibration = Calibration {
            levels: vec![
                level("L1", &[(52, 900), (390, 30), (9000, 1)]),
                level("L3", &[(104, 300), (338, 500), (390, 200)]),
                level("DRAM", &[(104, 1), (338, 300), (390, 600), (442, 99)]),
                level("core", &[(52, 300), (338, 200)]),
            ],
            ..Calibration::default()
        };
        leave_out_evicted(&mut calibration);
        leave_out_hits(&mut calibration);
        let names: Vec<&str> = calibration
            .levels
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        assert_eq!(names, ["L1", "DRAM", "core"]);
        let l1 = &calibration.levels[0];
        assert_eq!(
            (l1.count, l1.ticks.len()),
            (901, 2),
            "an interrupted load stays"
        );
        assert_eq!(
            calibration.levels[2].count, 200,
            "what was a hit is left out"
        );
        assert!(calibration.skipped[0].starts_with("L3: of 1000 loads, 700"));
    }
}
