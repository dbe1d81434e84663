//! Opens events on all threads of a process, and reads their records.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use membound_platform::{Root, affinity};

use crate::rate::Rate;

use super::open::{refused, refused_of};
use super::parse::{Record, SAMPLE};
use super::{Attr, Config, Error, Event, Layout, PerfEvent, RegisterSet, Ring, Target};

/// Smallest useful ring, in bytes: it has room for some samples of each size.
const MIN_RING_BYTES: usize = 64 << 10;
/// The thread number that means the calling thread.
const CALLING_THREAD: u32 = 0;
/// More samples than the probe can take, so that the event stays enabled.
const SAMPLES_WITHOUT_END: u32 = 1 << 20;
/// Most processors on which all that runs is sampled.
const MAX_SAMPLED_CPUS: usize = 64;
/// Bytes of the rings of all processors together, at most.
const MAX_RINGS_BYTES: usize = 64 << 20;
/// How often a new thread is searched for among the events of its parent.
const THREAD_SEARCHES: u32 = 5;
/// Pause between two such searches.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether time in the kernel gives samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The kernel permits samples of itself.
    Sampled,
    /// Not permitted; time in the kernel is only counted.
    Unseen,
}

/// Samples all threads of a process and of the processes that it starts.
#[derive(Debug)]
pub struct Sampler {
    layout: Layout,
    kernel: Kernel,
    cpus: Vec<PerCpu>,
    threads: FxHashSet<u32>,
    rate: Rate,
    periods: Periods,
    batch: Batch,
    bell: Arc<Bell>,
}

/// Ends [`Sampler::wait`] from another thread.
#[derive(Debug)]
pub struct Bell(Option<OwnedFd>);

impl Bell {
    fn new() -> Self {
        Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok())
    }

    /// Ends a wait in progress, or else the next one. Without an eventfd this does nothing, and waits end at
    /// their timeout.
    pub fn ring(&self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    fn still(&self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::io::read(fd, &mut [0_u8; 8]);
        }
    }
}

/// The events that write into one ring.
#[derive(Debug)]
struct PerCpu {
    cpu: u32,
    /// Declared before the events, since it must be unmapped first.
    ring: Option<Ring>,
    /// Events that report threads, count their CPU time and sample them rarely.
    news: Vec<Event>,
    /// Events that sample them at the usual rate.
    timers: Vec<Event>,
    /// Samples whatever runs on the CPU, where that is permitted.
    clock: Option<Event>,
}

/// The periods of the timers, in nanoseconds, which all differ.
#[derive(Clone, Copy, Debug)]
struct Periods {
    usual_ns: u64,
    rare_ns: u64,
    of_cpus_ns: u64,
}

/// Records of all rings, to be read in time order.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Time and offset in `bytes` of each record.
    order: Vec<(u64, usize)>,
    /// For each ring, the position up to which it was read.
    heads: Vec<u64>,
}

impl Sampler {
    /// Samples the running process `pid` from now on.
    ///
    /// # Errors
    /// The event is not available; the error says what would help. No event is left open.
    pub fn attach(pid: u32, config: &Config) -> Result<Self, Error> {
        let (attrs, kernel) = permitted(config)?;
        Self::begin(pid, config, attrs, kernel, |sampler, ring_bytes| {
            // A thread that is started meanwhile inherits the events if its parent had them already;
            // otherwise the next iteration finds it.
            loop {
                let unseen = sampler.unseen(pid)?;
                if unseen.is_empty() {
                    return Ok(());
                }
                for tid in unseen {
                    sampler.follow(pid, tid, &attrs, ring_bytes)?;
                }
            }
        })
    }

    /// Samples processes that the calling thread starts from now on: each from its first `execve`, which the
    /// kernel reports. The calling thread and other threads that it starts are not sampled.
    ///
    /// # Errors
    /// The event is not available; the error says what would help. No event is left open.
    pub fn for_children(config: &Config) -> Result<Self, Error> {
        let (attrs, kernel) = permitted(config)?;
        let attrs = attrs.each(Attr::after_exec);
        let pid = std::process::id();
        Self::begin(pid, config, attrs, kernel, |sampler, ring_bytes| {
            sampler.follow(pid, CALLING_THREAD, &attrs, ring_bytes)
        })
    }

    /// Lets `follow` open events on the first threads, with rings as large as permitted. All processors'
    /// rings have the same size, since the first would otherwise use up the limit on locked memory.
    fn begin(
        pid: u32,
        config: &Config,
        attrs: Attrs,
        kernel: Kernel,
        follow: impl Fn(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut sampler = Self::new(config, &attrs, kernel);
        let mut ring_bytes = sampler.ring_bytes(config);
        loop {
            match follow(&mut sampler, ring_bytes) {
                Err(Error::Locked) if ring_bytes > MIN_RING_BYTES => {
                    ring_bytes = (ring_bytes / 2).max(MIN_RING_BYTES);
                    sampler = Self::new(config, &attrs, kernel);
                }
                Err(error) => return Err(error),
                Ok(()) if sampler.cpus.iter().all(|cpu| cpu.news.is_empty()) => {
                    return Err(Error::Gone { pid });
                }
                Ok(()) => {
                    sampler.open_clocks(attrs.timer);
                    return Ok(sampler);
                }
            }
        }
    }

    /// Opens the events that sample whatever runs on the processors, if that is permitted and there are few.
    fn open_clocks(&mut self, timer: Attr) {
        let attr = timer.on_cpu(self.periods.of_cpus_ns);
        let is_open = self.cpus.len() <= MAX_SAMPLED_CPUS
            && self.cpus.iter_mut().all(|at| {
                let clock = Event::open_on_cpu(&attr, at.cpu).ok();
                at.clock = clock.filter(|clock| {
                    let first = at.news.first();
                    first.is_some_and(|first| clock.write_into(first).is_ok())
                });
                at.clock.is_some()
            });
        if !is_open {
            self.cpus.iter_mut().for_each(|at| at.clock = None);
        }
    }

    /// Whether processors can be sampled, in all their time: that needs privileges (`perf_event_paranoid` of 0, or
    /// `CAP_PERFMON`), and few processors.
    #[must_use]
    pub fn samples_processors(&self) -> bool {
        self.kernel == Kernel::Sampled && self.cpus.iter().any(|at| at.clock.is_some())
    }

    fn ring_bytes(&self, config: &Config) -> usize {
        let most = MAX_RINGS_BYTES / self.cpus.len().max(1);
        config.ring_bytes.min(most).max(MIN_RING_BYTES)
    }

    fn new(config: &Config, attrs: &Attrs, kernel: Kernel) -> Self {
        let cpus = affinity::online(&Root::system());
        Self {
            layout: Layout {
                sample_type: attrs.timer.sample_type,
                registers: RegisterSet::native_or_any(),
            },
            kernel,
            cpus: cpus
                .into_iter()
                .map(|cpu| PerCpu {
                    cpu: cpu.0,
                    ring: None,
                    news: Vec::new(),
                    timers: Vec::new(),
                    clock: None,
                })
                .collect(),
            threads: FxHashSet::default(),
            rate: Rate::Usual,
            periods: Periods {
                usual_ns: config.period_ns.max(1),
                rare_ns: config.rare_period_ns(),
                of_cpus_ns: config.cpus_period_ns(),
            },
            batch: Batch::default(),
            bell: Arc::new(Bell::new()),
        }
    }

    /// A handle that ends [`Self::wait`] from another thread.
    #[must_use]
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Whether time in the kernel gives samples.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// CPU time of all sampled threads, in nanoseconds, time in the kernel included. For inherited threads
    /// that still run, it is the count at their last context switch or reading.
    #[must_use]
    pub fn counted_ns(&self) -> u64 {
        let events = self.cpus.iter().flat_map(|cpu| &cpu.news);
        events.filter_map(|event| event.count().ok()).sum()
    }

    /// Samples at this rate from now on. Except for the usual one, a context switch costs next to nothing.
    /// [`Rate::Processors`] is only for where [`Self::samples_processors`]; its samples are of all processes.
    ///
    /// # Errors
    /// The error of ioctl(2).
    pub(crate) fn sample(&mut self, rate: Rate) -> io::Result<()> {
        let timers = self.cpus.iter().flat_map(|cpu| &cpu.timers);
        for timer in timers {
            timer.run(rate == Rate::Usual)?;
        }
        for clock in self.cpus.iter().filter_map(|cpu| cpu.clock.as_ref()) {
            clock.run(rate == Rate::Processors)?;
        }
        self.rate = rate;
        Ok(())
    }

    /// Waits until a ring is filled to its watermark, all sampled threads have ended, the bell rings, or
    /// `timeout` is over.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&self, timeout: Duration) -> io::Result<Waited> {
        let bell = self.bell.0.as_ref().map(AsFd::as_fd);
        let events = self.cpus.iter().flat_map(|cpu| &cpu.news);
        let mut wanted: Vec<BorrowedFd<'_>> = events.map(Event::as_fd).collect();
        let until = super::now_ns() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(super::now_ns()));
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut fds: Vec<PollFd<'_>> = wanted
                .iter()
                .chain(&bell)
                .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(Waited::Elapsed),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let (fds, bell) = fds.split_at(wanted.len());
            if bell
                .iter()
                .any(|bell| bell.revents().contains(PollFlags::IN))
            {
                self.bell.still();
                return Ok(Waited::Elapsed);
            }
            if fds.iter().any(|fd| fd.revents().contains(PollFlags::IN)) {
                return Ok(Waited::Filled);
            }
            // An event whose threads have all ended makes `poll` return at once: do not wait for it any more.
            let mut ended = fds.iter().map(|fd| fd.revents().contains(PollFlags::HUP));
            wanted.retain(|_| !ended.next().unwrap_or(false));
            if wanted.is_empty() {
                return Ok(Waited::Over);
            }
        }
    }

    /// Passes the records since the last call to `tell`, in time order as far as they were written when this
    /// was called. Returns their number.
    pub fn read(&mut self, tell: &mut dyn FnMut(PerfEvent<'_>)) -> usize {
        self.batch.fill(&self.cpus, self.layout);
        self.batch.free(&self.cpus);
        let wanted_ns = match self.rate {
            Rate::Usual => self.periods.usual_ns,
            Rate::Rare => self.periods.rare_ns,
            Rate::Processors => self.periods.of_cpus_ns,
        };
        let is_wanted = |event: &PerfEvent<'_>| match event {
            PerfEvent::Sample(sample) => sample.period_ns == wanted_ns,
            _ => true,
        };
        self.batch.tell(self.layout, &mut |event| {
            if is_wanted(&event) {
                tell(event);
            }
        })
    }

    /// Threads of `pid` that have no event.
    fn unseen(&mut self, pid: u32) -> Result<Vec<u32>, Error> {
        let mut unseen = Vec::new();
        for _ in 0..THREAD_SEARCHES {
            unseen = threads(pid)?;
            unseen.retain(|tid| !self.threads.contains(tid));
            if unseen.is_empty() || self.threads.is_empty() {
                return Ok(unseen);
            }
            // Threads with inherited events are reported by their parents' events, a moment after they appear
            // in `/proc`.
            self.batch.fill(&self.cpus, self.layout);
            let inherited = &mut self.threads;
            self.batch.tell(self.layout, &mut |event| {
                if let PerfEvent::Fork { tid, .. } = event {
                    inherited.insert(tid);
                }
            });
            unseen.retain(|tid| !self.threads.contains(tid));
            if unseen.is_empty() {
                return Ok(unseen);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(unseen)
    }

    /// Opens the events of a thread. A thread that has ended meanwhile is left out.
    fn follow(
        &mut self,
        pid: u32,
        tid: u32,
        attrs: &Attrs,
        ring_bytes: usize,
    ) -> Result<(), Error> {
        let count = self.cpus.len();
        let open: usize = self
            .cpus
            .iter()
            .map(|cpu| cpu.news.len() + cpu.timers.len())
            .sum();
        for at in &mut self.cpus {
            let target = Target {
                tid,
                cpu: Some(at.cpu),
            };
            let events = Event::open(&attrs.news, target)
                .and_then(|news| Ok((news, Event::open(&attrs.timer, target)?)));
            let (news, timer) = match events {
                Ok(events) => events,
                Err(error) => match error.raw_os_error() {
                    // The CPU was switched off since.
                    Some(libc::ENODEV) => continue,
                    Some(libc::ESRCH) if tid != pid => break,
                    Some(libc::EMFILE | libc::ENFILE) => {
                        let threads = threads(pid).map_or(1, |threads| threads.len());
                        return Err(Error::TooManyFiles {
                            needed: (threads * 2 * count).max(open + 2 * count),
                        });
                    }
                    _ => return Err(refused_of(error, pid)),
                },
            };
            let ring_of = |event: &Event, first: &Event| {
                event.write_into(first).map_err(|error| Error::System {
                    call: "ioctl(PERF_EVENT_IOC_SET_OUTPUT)",
                    error,
                })
            };
            match at.news.first() {
                Some(first) => ring_of(&news, first)?,
                None => at.ring = Some(map(&news, ring_bytes)?),
            }
            ring_of(&timer, at.news.first().unwrap_or(&news))?;
            at.news.push(news);
            at.timers.push(timer);
        }
        self.threads.insert(tid);
        Ok(())
    }
}

/// CPU time in nanoseconds that a sample costs the sampled thread, measured here: the calling thread counts
/// loop iterations in a millisecond with and without being sampled. `None` if it cannot be sampled.
pub fn sample_cost_ns(config: &Config) -> Option<f64> {
    const SPAN_NS: u64 = 1_000_000;
    const PERIOD_NS: u64 = 50_000;
    let config = Config {
        period_ns: PERIOD_NS,
        ..*config
    };
    let attr = permitted(&config).ok()?.0.timer;
    let own = Target {
        tid: CALLING_THREAD,
        cpu: None,
    };
    let event = Event::open(&attr.probe(), own).ok()?;
    // A ring, so that samples are written as usual; a small one, as locked memory is limited.
    let _ring = Ring::map(&event, MIN_RING_BYTES).ok()?;
    let progress = || {
        let begun_ns = super::now_ns();
        let mut steps = 0_u32;
        while super::now_ns().saturating_sub(begun_ns) < SPAN_NS {
            steps += 1;
        }
        f64::from(steps)
    };
    let before = progress();
    event.enable_for(SAMPLES_WITHOUT_END).ok()?;
    let sampled = progress();
    drop(event);
    let free = progress().max(before);
    let part = (1.0 - sampled / free).clamp(0.0, 1.0);
    Some(part * PERIOD_NS as f64)
}

/// Why [`Sampler::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A ring is filled to its watermark.
    Filled,
    /// The timeout is over, or the bell was rung.
    Elapsed,
    /// All sampled threads have ended; their last records can be read.
    Over,
}

impl Batch {
    /// Copies the records of all rings, and sorts them by time.
    fn fill(&mut self, cpus: &[PerCpu], layout: Layout) {
        self.bytes.clear();
        self.order.clear();
        self.heads.clear();
        for cpu in cpus {
            let begin = self.bytes.len();
            let head = cpu
                .ring
                .as_ref()
                .map_or(0, |ring| ring.copy(&mut self.bytes));
            self.heads.push(head);
            let mut rest = &self.bytes[begin..];
            let mut latest = 0;
            loop {
                let at = self.bytes.len() - rest.len();
                let Some(record) = Record::next(&mut rest) else {
                    break;
                };
                latest = layout.time(&record).unwrap_or(latest);
                self.order.push((latest, at));
            }
        }
        self.order.sort_unstable();
    }

    /// Lets the kernel overwrite the records that were copied.
    fn free(&self, cpus: &[PerCpu]) {
        for (cpu, &head) in cpus.iter().zip(&self.heads) {
            if let Some(ring) = &cpu.ring {
                ring.taken(head);
            }
        }
    }

    fn tell(&self, layout: Layout, tell: &mut dyn FnMut(PerfEvent<'_>)) -> usize {
        let mut told = 0;
        for &(_, at) in &self.order {
            let record = Record::next(&mut &self.bytes[at..]);
            let record = record.expect("a record was found there");
            if let Some(event) = layout.event(&record) {
                tell(event);
                told += 1;
            } else if record.kind == SAMPLE {
                tell(PerfEvent::Lost(1));
            }
        }
        told
    }
}

/// Attributes of the two events of a thread.
#[derive(Clone, Copy, Debug)]
struct Attrs {
    news: Attr,
    timer: Attr,
}

impl Attrs {
    fn each(self, change: impl Fn(Attr) -> Attr) -> Self {
        Self {
            news: change(self.news),
            timer: change(self.timer),
        }
    }
}

/// The attributes with the most data that the kernel permits this user.
fn permitted(config: &Config) -> Result<(Attrs, Kernel), Error> {
    if RegisterSet::native().is_none() {
        return Err(Error::Unsupported {
            reason: "registers are read on x86-64 and aarch64 only".to_owned(),
        });
    }
    let own = Target { tid: 0, cpu: None };
    let mut attrs = Attrs {
        news: Attr::news(config),
        timer: Attr::clock(config),
    };
    let probe = |attrs: Attrs| {
        Event::open(&attrs.news.probe(), own).and_then(|_| Event::open(&attrs.timer.probe(), own))
    };
    let mut result = probe(attrs);
    if result
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
    {
        attrs = attrs.each(Attr::without_build_ids);
        result = probe(attrs);
    }
    match result {
        Ok(_) => Ok((attrs, Kernel::Sampled)),
        Err(_) => {
            let attrs = attrs.each(Attr::without_kernel);
            probe(attrs).map_err(refused)?;
            Ok((attrs, Kernel::Unseen))
        }
    }
}

/// Maps a ring of `bytes`.
fn map(event: &Event, bytes: usize) -> Result<Ring, Error> {
    Ring::map(event, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOMEM | libc::EAGAIN) => Error::Locked,
        _ => Error::System {
            call: "mmap of a perf event",
            error,
        },
    })
}

/// Numbers of a process's threads.
fn threads(pid: u32) -> Result<Vec<u32>, Error> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Error::Gone { pid })?;
    Ok(listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_ring_smaller_than_configured_wakes_its_reader_before_it_is_full() {
        let config = Config::default();
        let Ok((attrs, kernel)) = permitted(&config) else {
            membound_testkit::skipped("perf events are not permitted");
            return;
        };
        let pid = std::process::id();
        let sampler = Sampler::begin(pid, &config, attrs, kernel, |sampler, _| {
            sampler.follow(pid, CALLING_THREAD, &attrs, MIN_RING_BYTES)
        });
        let sampler = sampler.unwrap();
        // A sample takes 8 KiB of the 64.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        let waited = sampler.wait(Duration::from_secs(10)).unwrap();
        assert_eq!(waited, Waited::Filled);
    }
}
