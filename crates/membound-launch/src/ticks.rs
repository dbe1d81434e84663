//! Collects the samples that agents take by timers: drains rings every few milliseconds.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::{cpu_time, stat};
use rustc_hash::FxHashSet;

use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::process_key::ProcessKey;
use crate::tick_memory::{DrainedRing, Memory};
use crate::timers::{TimerReceiver, TimerSample, Timers};

/// Poll interval of the rings.
const POLL: Duration = Duration::from_millis(4);
/// Interval between two searches for threads that have ended.
const FREE_EVERY: Duration = Duration::from_millis(100);
/// Interval between two searches for programs that have ended, and between two reports of coverage.
const CLOSE_EVERY: Duration = Duration::from_secs(1);

/// All programs that are sampled by timers.
#[derive(Debug)]
pub(crate) struct Ticks {
    options: Timers,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    images: Vec<Image>,
    /// By process.
    processes: BTreeMap<u32, Process>,
}

/// One process image, and the children that it has forked.
#[derive(Debug)]
struct Image {
    key: ProcessKey,
    /// True if its process runs another program by now.
    left: bool,
    memory: Memory,
    reported: FxHashSet<(u32, u32)>,
}

/// State of a process.
#[derive(Debug, Default)]
struct Process {
    started: u64,
    /// CPU time that its samples represent.
    sampled_ns: u64,
    /// CPU time that it has used, as last read, without the agent's part.
    used_ns: u64,
    /// Both as they were last reported.
    reported: (u64, u64),
    samples: Vec<TimerSample>,
    lost: u64,
}

impl Ticks {
    pub(crate) fn new(options: Timers) -> Self {
        Self {
            options,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receiver(&self) -> &dyn TimerReceiver {
        &*self.options.receiver
    }

    /// Makes the program of this conversation sample itself. If that fails, it is reported, and the program
    /// runs without samples.
    pub(crate) fn begin(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), Failure> {
        let begun = Memory::make(conversation).map_err(Failure::from);
        let begun = begun.and_then(|memory| {
            let period = self.options.period.as_nanos();
            let period_ns = u64::try_from(period).unwrap_or(u64::MAX);
            memory.hang(conversation, maps, period_ns)?;
            Ok(memory)
        });
        let memory = match begun {
            Ok(memory) => memory,
            Err(gone @ Failure::Gone(_)) => return Err(gone),
            Err(refused) => {
                self.refuse(key.pid, &refused.to_string());
                return Ok(());
            }
        };
        let mut state = self.state();
        for image in state.images.iter_mut().filter(|image| image.key == key) {
            image.left = true;
        }
        state.images.push(Image {
            key,
            left: false,
            memory,
            reported: FxHashSet::default(),
        });
        let process = state.processes.entry(key.pid).or_default();
        process.started = key.started;
        Ok(())
    }

    /// Reports that no thread of a process is sampled, for this reason.
    pub(crate) fn refuse(&self, pid: u32, reason: &str) {
        self.receiver().refused(pid, None, reason);
    }

    /// Collects until `stopped` returns true; then ends the timers.
    pub(crate) fn run(&self, stopped: &dyn Fn(Duration) -> bool) {
        let mut freed = Instant::now();
        let mut closed = freed;
        loop {
            let stop = stopped(POLL);
            let now = Instant::now();
            let mut state = self.state();
            if stop {
                state.stop();
            }
            state.drain();
            state.report_refusals(self.receiver());
            if now - freed >= FREE_EVERY {
                freed = now;
                state.free();
            }
            state.read_clocks();
            state.pass_on(self.receiver());
            if stop || now - closed >= CLOSE_EVERY {
                closed = now;
                state.report_coverage(self.receiver());
                state.close(self.receiver());
            }
            if stop {
                return;
            }
        }
    }
}

impl State {
    fn stop(&mut self) {
        for image in &self.images {
            image.memory.stop();
        }
    }

    fn drain(&mut self) {
        self.each(|memory, each| memory.drain(each));
    }

    fn free(&mut self) {
        self.each(|memory, each| memory.free(each));
    }

    fn each(&mut self, take: impl Fn(&mut Memory, &mut dyn FnMut(DrainedRing))) {
        let Self { images, processes } = self;
        for image in images {
            take(&mut image.memory, &mut |taken| {
                let process = processes.entry(taken.process).or_default();
                process.lost += taken.lost;
                if let Some(sample) = taken.sample {
                    process.sampled_ns += sample.weight_ns;
                    process.samples.push(sample);
                }
            });
        }
    }

    fn pass_on(&mut self, receiver: &dyn TimerReceiver) {
        for (pid, process) in &mut self.processes {
            if process.lost > 0 {
                receiver.lost(*pid, std::mem::take(&mut process.lost));
            }
            if !process.samples.is_empty() {
                receiver.receive(*pid, &process.samples);
                process.samples.clear();
            }
        }
    }

    fn report_refusals(&mut self, receiver: &dyn TimerReceiver) {
        for image in &mut self.images {
            for (thread, errno) in image.memory.refusals() {
                if !image.reported.insert((thread, errno)) {
                    continue;
                }
                let all = thread == membound_wire::Refused::ALL;
                let reason = if errno == 0 {
                    "the program uses every real-time signal itself".to_owned()
                } else {
                    let errno = i32::try_from(errno).unwrap_or(0);
                    let error = std::io::Error::from_raw_os_error(errno);
                    format!("a timer could not be made: {error}")
                };
                receiver.refused(image.key.pid, (!all).then_some(thread), &reason);
            }
        }
    }

    /// Reads the CPU time of processes, as long as that is possible.
    fn read_clocks(&mut self) {
        let Self { images, processes } = self;
        for (pid, process) in processes {
            let Some(used) = cpu_time::of_process(*pid) else {
                continue;
            };
            let own: u64 = images
                .iter()
                .filter(|image| image.key.pid == *pid)
                .map(|image| image.memory.own_ns())
                .sum();
            process.used_ns = process.used_ns.max(used.saturating_sub(own));
        }
    }

    fn report_coverage(&mut self, receiver: &dyn TimerReceiver) {
        for (pid, process) in &mut self.processes {
            // The last samples include time after the clock was last read.
            process.used_ns = process.used_ns.max(process.sampled_ns);
            let now = (process.used_ns, process.sampled_ns);
            if now != process.reported {
                process.reported = now;
                receiver.covered(*pid, now.0, now.1);
            }
        }
    }

    /// Frees the rings of programs that have ended, once all children that share them have ended too.
    fn close(&mut self, receiver: &dyn TimerReceiver) {
        let over = |image: &Image| {
            image.left || stat::started(image.key.pid).ok() != Some(image.key.started)
        };
        if self.images.iter().any(over) {
            let used: FxHashSet<u64> = maps::used_inodes();
            // Samples written between the last poll and the end are drained first.
            self.drain();
            self.pass_on(receiver);
            self.report_coverage(receiver);
            self.images
                .retain(|image| !over(image) || used.contains(&image.memory.memory.inode));
        }
        self.processes
            .retain(|pid, _| cpu_time::of_process(*pid).is_some());
    }
}
