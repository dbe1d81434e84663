//! The thread that reads perf's events: it follows processes and unwinds samples at once, since a sample's
//! stack bytes are not kept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use membound_launch::{Mapping, Remote};
use membound_run::{ProcessId, ThreadId};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::perf::{self, Bell, Mode, Named, PerfEvent};
use crate::rate::RateControl;
use crate::sampling::{RawSample, ResolvedSample};
use crate::world::World;

/// Poll interval of the rings while patches depend on samples.
const EVERY: Duration = Duration::from_millis(24);
/// The same while no program has an agent, programs serve requests, or their threads switch often: each poll delays
/// requests in progress, or threads that wait for each other.
pub(crate) const CALM_INTERVAL: Duration = Duration::from_millis(250);

/// What the thread sends to the driver after each poll.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) samples: Vec<ResolvedSample>,
    /// Time until which all samples have been sent, in nanoseconds since the run began.
    pub(crate) until_ns: u64,
    /// Records that were lost for lack of room.
    pub(crate) lost: u64,
    /// CPU time in nanoseconds that threads lost because the kernel sets the timer at each context switch.
    pub(crate) switching_ns: f64,
    /// Everything that was sampled has ended.
    pub(crate) over: bool,
}

/// Handle of the thread.
#[derive(Debug)]
pub(crate) struct Sampling {
    stop: Arc<AtomicBool>,
    serves: Arc<AtomicBool>,
    switches_often: Arc<AtomicBool>,
    bell: Arc<Bell>,
    thread: JoinHandle<u64>,
    /// The receiving end of its batches.
    pub(crate) batches: Receiver<Batch>,
}

impl Sampling {
    /// Starts the thread, which reads `sampler`.
    pub(crate) fn begin(
        sampler: perf::Sampler,
        clock: Clock,
        world: Arc<Mutex<World>>,
        remote: Option<Remote>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let bell = sampler.bell();
        let (sender, batches) = channel();
        let [serves, switches_often] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let reader = Reader {
            sampler,
            clock,
            world,
            remote,
            serves: Arc::clone(&serves),
            switches_often: Arc::clone(&switches_often),
            counted: FxHashMap::default(),
            rate: RateControl::default(),
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("samples".to_owned())
            .spawn(move || reader.run(&stopped, &sender))?;
        Ok(Self {
            stop,
            serves,
            switches_often,
            bell,
            thread,
            batches,
        })
    }

    /// Notes whether programs serve requests: if so, rings are polled rarely, and samples are rare where threads switch
    /// at all often.
    pub(crate) fn serves(&self, serves: bool) {
        self.serves.store(serves, Ordering::Relaxed);
    }

    /// Whether threads switch so often that they are sampled rarely: threads that wait for each other lose a fraction
    /// of a millisecond whenever another thread wakes up in between.
    pub(crate) fn switches_often(&self) -> bool {
        self.switches_often.load(Ordering::Relaxed)
    }

    /// Makes the thread read and send at once.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Ends the thread after a last reading. Returns the CPU time in nanoseconds that the kernel counted, and
    /// the batches that were not received yet.
    pub(crate) fn end(self) -> (u64, Vec<Batch>) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        let counted_ns = self.thread.join().unwrap_or(0);
        (counted_ns, self.batches.try_iter().collect())
    }
}

struct Reader {
    sampler: perf::Sampler,
    clock: Clock,
    world: Arc<Mutex<World>>,
    remote: Option<Remote>,
    serves: Arc<AtomicBool>,
    switches_often: Arc<AtomicBool>,
    /// CPU time of threads that have ended, summed over CPUs.
    counted: FxHashMap<ThreadId, u64>,
    rate: RateControl,
}

impl Reader {
    fn run(mut self, stop: &AtomicBool, batches: &Sender<Batch>) -> u64 {
        loop {
            let stopping = stop.load(Ordering::Acquire);
            let waited = if stopping {
                Ok(perf::Waited::Elapsed)
            } else {
                let is_calm = self.serves() || self.rate.is_rare();
                let every = if self.remote.is_none() || is_calm {
                    CALM_INTERVAL
                } else {
                    EVERY
                };
                // Until context switches are read first, threads that switch often lose a part of their time.
                self.sampler
                    .wait(every.min(self.rate.due_in(self.clock.now_ns())))
            };
            let over = !matches!(waited, Ok(perf::Waited::Filled | perf::Waited::Elapsed));
            let mut batch = self.read();
            self.change_rate();
            batch.over = over;
            let wanted = batches.send(batch).is_ok();
            if stopping || over || !wanted {
                return self.sampler.counted_ns();
            }
        }
    }

    fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }

    /// Changes the rate if that is due; to be called after reading the rings: samples at the former rate are
    /// dropped afterwards.
    fn change_rate(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.sampler.samples_processors() && self.rate.is_due(now_ns) {
            self.rate.counted(self.sampler.counted_ns());
        }
        let Some(rate) = self.rate.step(now_ns, self.serves()) else {
            return;
        };
        if self.sampler.sample(rate).is_err() {
            // The timers stay as they are, and cost no more than before.
            self.rate = RateControl::default();
        }
        self.switches_often
            .store(self.rate.is_rare(), Ordering::Relaxed);
    }

    fn read(&mut self) -> Batch {
        let Self {
            sampler,
            clock,
            world,
            remote,
            counted,
            rate,
            ..
        } = self;
        let mut batch = Batch {
            // Earlier samples are in the rings already: the kernel writes them as it takes them.
            until_ns: clock.now_ns(),
            ..Batch::default()
        };
        let mut world = crate::lock(world);
        let own = std::process::id();
        sampler.read(&mut |event| {
            let t_ns = |raw| clock.of_raw(raw);
            match event {
                PerfEvent::Lost(count) => {
                    batch.lost += count;
                    world.threads.events_were_lost();
                }
                // Later threads of membound inherit the events of the thread that started the program.
                other if other.pid() == Some(own) => {}
                PerfEvent::Sample(sample)
                    if rate.is_of_processors() && !world.ran(sample.pid, t_ns(sample.t_ns)) => {}
                PerfEvent::Sample(sample) => {
                    rate.sampled(sample.pid, sample.tid);
                    batch.switching_ns += sample.period_ns as f64 * rate.lost_part();
                    let sample = RawSample {
                        pid: sample.pid,
                        tid: sample.tid,
                        t_ns: t_ns(sample.t_ns),
                        cpu: u16::try_from(sample.cpu).ok(),
                        weight_ns: sample.period_ns,
                        registers: sample.registers,
                        ip: (sample.mode == Mode::User).then_some(sample.ip),
                        stack: sample.stack,
                        in_kernel: sample.mode == Mode::Kernel,
                    };
                    batch
                        .samples
                        .push(world.resolve_perf_sample(&sample, remote.as_ref()));
                }
                PerfEvent::Counted {
                    pid,
                    tid,
                    cpu_ns,
                    t_ns: at,
                } => {
                    rate.ended(pid, tid, cpu_ns);
                    let (_, thread) = met(&mut world, pid, tid, t_ns(at));
                    let sum = counted.entry(thread).or_default();
                    *sum += cpu_ns;
                    world.threads.ran(thread, *sum);
                }
                other => follow(&mut world, clock, &other),
            }
        });
        batch
    }
}

/// Updates processes, threads and mappings from an event.
fn follow(world: &mut World, clock: &Clock, event: &PerfEvent<'_>) {
    match *event {
        PerfEvent::Fork {
            pid,
            tid,
            parent_pid,
            parent_tid,
            t_ns,
        } => {
            let t_ns = clock.of_raw(t_ns);
            // membound itself is no process of the run.
            if parent_pid == std::process::id() {
                met(world, pid, tid, t_ns);
                return;
            }
            let (process, makers) = if pid == parent_pid {
                let process = world.image(pid, t_ns);
                (process, Some(process))
            } else {
                let process = world.forked(parent_pid, pid, t_ns);
                (process, world.forked_from(process))
            };
            let maker = makers.and_then(|it| world.threads.known(it, parent_tid));
            world.threads.made(process, (pid, tid), maker, t_ns);
        }
        PerfEvent::Exit { pid, tid, t_ns } => {
            let t_ns = clock.of_raw(t_ns);
            let (_, thread) = met(world, pid, tid, t_ns);
            world.threads.end(thread, t_ns);
        }
        PerfEvent::Comm {
            pid,
            tid,
            name,
            cause,
            t_ns,
        } => {
            let t_ns = clock.of_raw(t_ns);
            if cause == Named::Exec {
                world.executed(pid, t_ns);
            }
            let process = world.image(pid, t_ns);
            world.threads.named(process, tid, name, t_ns);
        }
        PerfEvent::Mmap(map) => {
            use std::os::unix::ffi::OsStrExt;
            let t_ns = clock.of_raw(map.t_ns);
            let process = world.image(map.pid, t_ns);
            let map = Mapping {
                range: map.start..map.start.saturating_add(map.length),
                readable: true,
                writable: false,
                executable: true,
                shared: false,
                offset: map.offset,
                device: (0, 0),
                inode: 0,
                name: std::ffi::OsStr::from_bytes(map.path).to_owned(),
            };
            world.map(process, &map, t_ns);
        }
        PerfEvent::Sample(_) | PerfEvent::Counted { .. } | PerfEvent::Lost(_) => {}
    }
}

fn met(world: &mut World, pid: u32, tid: u32, t_ns: u64) -> (ProcessId, ThreadId) {
    let process = world.image(pid, t_ns);
    (process, world.threads.of(process, pid, tid, t_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_followed_by_what_perf_tells() {
        let clock = Clock::begin(Some(1e9));
        let mut world = World::default();
        let at = |ns: u64| perf::now_ns() + ns;
        // Numbers above the largest that the kernel gives: nothing of this machine is met.
        let (parent, child) = (5_000_000, 5_000_001);
        let process = world.image(parent, 0);
        let fork = |pid, tid| PerfEvent::Fork {
            pid,
            tid,
            parent_pid: parent,
            parent_tid: parent,
            t_ns: at(0),
        };
        let named = PerfEvent::Comm {
            pid: parent,
            tid: parent,
            name: b"shell",
            cause: Named::Set,
            t_ns: at(0),
        };
        follow(&mut world, &clock, &named);
        let name = |world: &World, process, tid| {
            let thread = world.threads.known(process, tid).unwrap();
            world.threads.row(thread).unwrap().name.clone()
        };
        follow(&mut world, &clock, &fork(parent, parent + 7));
        assert_eq!(name(&world, process, parent + 7), "shell");
        follow(&mut world, &clock, &fork(child, child));
        let forked = world.known_image(child, u64::MAX).unwrap();
        assert_eq!(world.forked_from(forked), Some(process));
        assert_eq!(name(&world, forked, child), "shell");
        let exec = PerfEvent::Comm {
            pid: child,
            tid: child,
            name: b"tool",
            cause: Named::Exec,
            t_ns: at(1_000_000),
        };
        follow(&mut world, &clock, &exec);
        let executed = world.known_image(child, u64::MAX).unwrap();
        assert_ne!(executed, forked);
        assert_eq!(name(&world, executed, child), "tool");
        let thread = world.threads.known(executed, child).unwrap();
        let map = PerfEvent::Mmap(perf::Mmap {
            pid: child,
            tid: child,
            start: 0x1000,
            length: 0x1000,
            offset: 0,
            path: b"/no/such/tool",
            build_id: None,
            t_ns: at(2_000_000),
        });
        follow(&mut world, &clock, &map);
        let path = world.with_space(executed, 0, |space, _, _| {
            space.placed(0x1800).map(|it| it.module.path.clone())
        });
        assert_eq!(path.as_deref(), Some("/no/such/tool"));
        follow(
            &mut world,
            &clock,
            &PerfEvent::Exit {
                pid: child,
                tid: child,
                t_ns: at(3_000_000),
            },
        );
        assert!(world.threads.row(thread).unwrap().end_ns.is_some());
    }
}
