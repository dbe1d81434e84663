//! Events on all threads of a process, and what they write.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use membound_platform::{Root, affinity};

use super::open::{refused, refused_of};
use super::parse::{Record, SAMPLE};
use super::{Attr, Config, Error, Event, Layout, PerfEvent, RegisterSet, Ring, Target};

/// The smallest ring that is of use: some samples of each size.
const LEAST_RING_BYTES: usize = 64 << 10;
/// The number by which a thread asks for events of its own.
const CALLING_THREAD: u32 = 0;
/// More than there are in a few milliseconds.
const SAMPLES_WITHOUT_END: u32 = 1 << 20;
/// Memory of the rings of all processors.
const MOST_RINGS_BYTES: usize = 64 << 20;
/// How often a thread is looked for in what its parent's events have told.
const LOOKS: u32 = 5;
/// How long between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether time in the kernel gives samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// It does.
    Seen,
    /// It is not permitted; it is counted only.
    Unseen,
}

/// Samples all threads of a process and of the processes that they start.
#[derive(Debug)]
pub struct Sampler {
    layout: Layout,
    kernel: Kernel,
    cpus: Vec<PerCpu>,
    threads: FxHashSet<u32>,
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

    /// Ends a waiting that goes on, or else the next one. Where the kernel gave no eventfd, they last as long as they
    /// would have.
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
    /// Before the events, since it is unmapped first.
    ring: Option<Ring>,
    /// What tells of threads and counts their time.
    news: Vec<Event>,
    /// What takes samples.
    timers: Vec<Event>,
}

/// Records of all rings, to be told in the order of their times.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Time, and where the record begins.
    order: Vec<(u64, usize)>,
    /// Where to go on in each ring.
    heads: Vec<u64>,
}

impl Sampler {
    /// Begins to sample process `pid` as it runs.
    ///
    /// # Errors
    /// Each says what would help. Nothing is left open.
    pub fn attach(pid: u32, config: &Config) -> Result<Self, Error> {
        let (attrs, kernel) = permitted(config)?;
        Self::begin(pid, config, attrs, kernel, |sampler, ring_bytes| {
            // Threads that are started meanwhile are inherited if their parent was there
            // already, and else found when looking again.
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

    /// Begins to sample what the calling thread starts from now on: each process from its first
    /// `execve`, of which the kernel tells. The thread itself and others that it makes are not sampled.
    ///
    /// # Errors
    /// Each says what would help. Nothing is left open.
    pub fn for_children(config: &Config) -> Result<Self, Error> {
        let (attrs, kernel) = permitted(config)?;
        let attrs = attrs.each(Attr::after_exec);
        let pid = std::process::id();
        Self::begin(pid, config, attrs, kernel, |sampler, ring_bytes| {
            sampler.follow(pid, CALLING_THREAD, &attrs, ring_bytes)
        })
    }

    /// Has `follow` put events on the first threads, with rings as large as are permitted: all processors'
    /// alike, since the first would take what may be locked for all.
    fn begin(
        pid: u32,
        config: &Config,
        attrs: Attrs,
        kernel: Kernel,
        follow: impl Fn(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut sampler = Self::new(&attrs, kernel);
        let mut ring_bytes = sampler.ring_bytes(config);
        loop {
            match follow(&mut sampler, ring_bytes) {
                Err(Error::Locked) if ring_bytes > LEAST_RING_BYTES => {
                    ring_bytes = (ring_bytes / 2).max(LEAST_RING_BYTES);
                    sampler = Self::new(&attrs, kernel);
                }
                Err(error) => return Err(error),
                Ok(()) if sampler.cpus.iter().all(|cpu| cpu.news.is_empty()) => {
                    return Err(Error::Gone { pid });
                }
                Ok(()) => return Ok(sampler),
            }
        }
    }

    fn ring_bytes(&self, config: &Config) -> usize {
        let most = MOST_RINGS_BYTES / self.cpus.len().max(1);
        config.ring_bytes.min(most).max(LEAST_RING_BYTES)
    }

    fn new(attrs: &Attrs, kernel: Kernel) -> Self {
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
                })
                .collect(),
            threads: FxHashSet::default(),
            batch: Batch::default(),
            bell: Arc::new(Bell::new()),
        }
    }

    /// What ends [`Self::wait`] from elsewhere.
    #[must_use]
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Whether time in the kernel gives samples.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// CPU time of all that is followed, in nanoseconds, in the kernel and out of it. Of
    /// threads that were inherited and still run it is what had been counted when they were
    /// last switched out or read.
    #[must_use]
    pub fn counted_ns(&self) -> u64 {
        let events = self.cpus.iter().flat_map(|cpu| &cpu.news);
        events.filter_map(|event| event.count().ok()).sum()
    }

    /// Lets timers run, or not: threads' ends and their CPU time are told all the same. Where they do not, switching
    /// between threads costs next to nothing.
    ///
    /// # Errors
    /// What ioctl(2) says.
    pub fn run_timers(&self, run: bool) -> io::Result<()> {
        let timers = self.cpus.iter().flat_map(|cpu| &cpu.timers);
        timers.into_iter().try_for_each(|timer| timer.run(run))
    }

    /// Waits until a ring is filled to a part, everything that is followed has ended, its bell rings, or `timeout` is
    /// over.
    ///
    /// # Errors
    /// What poll(2) says.
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
            // An event whose thread and heirs have all ended says so at once each time.
            let mut ended = fds.iter().map(|fd| fd.revents().contains(PollFlags::HUP));
            wanted.retain(|_| !ended.next().unwrap_or(false));
            if wanted.is_empty() {
                return Ok(Waited::Over);
            }
        }
    }

    /// Tells what was written since the last time, in the order of time as far as that was
    /// written when it was called. Returns how many.
    pub fn read(&mut self, tell: &mut dyn FnMut(PerfEvent<'_>)) -> usize {
        self.batch.fill(&self.cpus, self.layout);
        self.batch.free(&self.cpus);
        self.batch.tell(self.layout, tell)
    }

    /// Threads of `pid` that no event is on.
    fn unseen(&mut self, pid: u32) -> Result<Vec<u32>, Error> {
        let mut unseen = Vec::new();
        for _ in 0..LOOKS {
            unseen = threads(pid)?;
            unseen.retain(|tid| !self.threads.contains(tid));
            if unseen.is_empty() || self.threads.is_empty() {
                return Ok(unseen);
            }
            // Those that were inherited are told of by their parents' events, a moment after
            // they can be seen.
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

    /// Puts events on a thread. One that has ended meanwhile is left out.
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
                    // It was switched off since.
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

/// CPU time that each sample takes of a thread, in nanoseconds, as far as it shows here and now: the
/// calling thread counts how far it gets in a millisecond while it is sampled, and while it is not.
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
    // So that samples are written as others are. A small one: others have what may be locked.
    let _ring = Ring::map(&event, LEAST_RING_BYTES).ok()?;
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
    /// There is much to be read.
    Filled,
    /// The time is over, or the bell was rung.
    Elapsed,
    /// Everything that was followed has ended; what it wrote last can be read.
    Over,
}

impl Batch {
    /// Copies what all rings hold.
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

    /// Lets the kernel write again where that was.
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

/// How the events of a thread are opened.
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

/// The most that this kernel gives to this user.
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
        Ok(_) => Ok((attrs, Kernel::Seen)),
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

/// Threads of a process.
fn threads(pid: u32) -> Result<Vec<u32>, Error> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Error::Gone { pid })?;
    Ok(listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}
