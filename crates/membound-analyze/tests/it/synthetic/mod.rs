//! Synthetic runs with a known truth: latency, level and object of each access.

mod machine;

use std::ops::Range;

use membound_run::{
    Access, Attribution, Code, Executions, Frame, FrameId, Location, Mapping, Meta, Module,
    ModuleId, ModuleKind, Object, ObjectClass, ObjectId, Process, ProcessId, RunData, Sample, Site,
    SiteId, SiteKind, Stack, StackId, Thread, ThreadId,
};

pub(crate) use machine::{From, machine, machine_that_moves};
pub(crate) use membound_testkit::Random;

/// Sampling period of the timer.
const PERIOD_NS: u64 = 1_000_000;

/// Executions between two samples of the latency sampler. More than in a real run, where sites are sampled
/// in short windows instead of all the time.
const SITE_PERIOD: u32 = 50_000;

/// Properties of a site's accesses.
#[derive(Clone, Debug)]
pub(crate) struct Like {
    /// Levels that serve it, with weights.
    pub from: Vec<(From, f64)>,
    /// Share of the latency beyond a hit that is not overlapped, 0 to 1.
    pub exposed: f64,
    /// Other work per execution, in nanoseconds.
    pub work_ns: f64,
    /// Accessed memory, with weights.
    pub to: Vec<(Target, f64)>,
}

/// A stretch of memory.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub object: Option<ObjectId>,
    pub address: u64,
    pub bytes: u64,
    /// Distance between accessed addresses, in bytes.
    pub stride: u64,
    /// Level that serves accesses of this target, if it differs from the others.
    pub from: Option<From>,
}

impl Like {
    /// Accesses all served from one level, each fully waited for.
    pub(crate) fn chase(from: From, to: &[Target]) -> Self {
        Self {
            from: vec![(from, 1.0)],
            exposed: 1.0,
            work_ns: 0.0,
            to: to.iter().map(|target| (target.clone(), 1.0)).collect(),
        }
    }

    /// Average stall of an execution, in nanoseconds.
    pub(crate) fn stall_ns(&self) -> f64 {
        let whole: f64 = self.to.iter().map(|(_, weight)| weight).sum();
        let of = |from: From| from.latency_ns() - From::L1.latency_ns();
        let average = {
            let sum: f64 = self.from.iter().map(|(_, weight)| weight).sum();
            let beyond: f64 = self
                .from
                .iter()
                .map(|(from, weight)| of(*from) * weight)
                .sum();
            beyond / sum
        };
        let beyond: f64 = self
            .to
            .iter()
            .map(|(target, weight)| weight * target.from.map_or(average, of))
            .sum();
        self.exposed * beyond / whole
    }

    fn time_ns(&self) -> f64 {
        From::L1.latency_ns() + self.work_ns + self.stall_ns()
    }
}

/// A site with its frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessSite {
    pub site: SiteId,
    pub stack: StackId,
}

/// A run under construction.
pub(crate) struct Synthetic {
    pub run: RunData,
    random: Random,
    next_code: u64,
    next_heap: u64,
}

/// A source line: function, file, line.
pub(crate) type At = (&'static str, &'static str, u32);

impl Synthetic {
    /// An empty run of one process on `cpus` CPUs of one node, without threads.
    pub(crate) fn new(seconds: f64, cpus: u32) -> Self {
        let run = RunData {
            meta: Meta {
                membound_version: "0.1.0".to_owned(),
                command: vec!["./imagined".to_owned()],
                host: "never".to_owned(),
                date: "2026-01-01T00:00:00Z".to_owned(),
                complete: true,
                elapsed_ns: (seconds * 1e9) as u64,
                exit_code: Some(0),
                period_ns: PERIOD_NS,
                site_period: SITE_PERIOD,
                latencies: true,
                objects_from_bytes: Some(1),
                tsc_hz: machine::TICK_HZ,
                cpus,
                nodes: 1,
                cpu_nodes: vec![0; cpus as usize],
                machine: Some(Box::new(machine())),
                ..Meta::default()
            },
            processes: vec![Process {
                pid: 4000,
                path: "/bin/imagined".to_owned(),
                ..Process::default()
            }],
            modules: vec![Module {
                path: "/bin/imagined".to_owned(),
                build_id: None,
                text_hash: None,
                kind: ModuleKind::File,
            }],
            mappings: vec![Mapping {
                process: ProcessId(0),
                module: ModuleId(0),
                start: 0x40_0000,
                end: 0x80_0000,
                bias: 0,
                t_ns: 0,
            }],
            ..RunData::default()
        };
        Self {
            run,
            random: Random::new(1),
            next_code: 0x40_1000,
            next_heap: 0x7f00_0000_0000,
        }
    }

    pub(crate) fn thread(&mut self, name: &str) -> ThreadId {
        let id = ThreadId(self.run.threads.len() as u32);
        self.run.threads.push(Thread {
            process: ProcessId(0),
            tid: 4000 + id.0,
            name: name.to_owned(),
            start_ns: 0,
            end_ns: Some(self.run.meta.elapsed_ns),
            cpu_ns: Some(0),
        });
        id
    }

    pub(crate) fn frame(&mut self, at: &[At]) -> FrameId {
        let frame = FrameId(self.run.frames.len() as u32);
        self.run.frames.push(Frame {
            module: Some(ModuleId(0)),
            address: self.next_code,
        });
        self.next_code += 4;
        for (depth, (function, file, line)) in at.iter().enumerate() {
            self.run.locations.push(Location {
                frame,
                depth: depth as u32,
                function: (*function).to_owned(),
                function_start: None,
                function_size: None,
                file: Some((*file).to_owned()),
                line: Some(*line),
                column: None,
            });
        }
        frame
    }

    /// A call chain, innermost first; each frame has one function.
    pub(crate) fn stack(&mut self, chain: &[At]) -> StackId {
        let mut parent = None;
        for at in chain.iter().rev() {
            let frame = self.frame(&[*at]);
            parent = Some(self.push_stack(parent, frame));
        }
        parent.expect("a chain has frames")
    }

    pub(crate) fn push_stack(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        let id = StackId(self.run.stacks.len() as u32);
        self.run.stacks.push(Stack { parent, frame });
        id
    }

    /// Adds a site at `at`, and the following instruction, on which its samples lie.
    pub(crate) fn site(&mut self, at: At, kind: SiteKind, bytes: u32) -> AccessSite {
        let frame = self.frame(&[at]);
        let behind = self.frame(&[(at.0, at.1, at.2 + 1)]);
        let main = self.frame(&[("main", "main.c", 10)]);
        let site = SiteId(self.run.sites.len() as u32);
        self.run.sites.push(Site {
            frame,
            kind,
            bytes,
            text: format!("mov rax, [rdi+{}]", site.0),
            refused: None,
        });
        self.run.attributions.push(Attribution {
            frame: behind,
            site: Some(site),
            share: 1.0,
            confidence: 0.95,
        });
        let parent = self.push_stack(None, main);
        AccessSite {
            site,
            stack: self.push_stack(Some(parent), behind),
        }
    }

    pub(crate) fn heap(&mut self, chain: &[At], bytes: u64) -> Target {
        let stack = self.stack(chain);
        self.block(stack, bytes)
    }

    /// Adds another block of a chain.
    pub(crate) fn block(&mut self, stack: StackId, bytes: u64) -> Target {
        let address = self.next_heap;
        self.next_heap += bytes.next_multiple_of(4096) + 4096;
        self.object(
            Object {
                kind: ObjectClass::Heap,
                process: ProcessId(0),
                address,
                size_bytes: bytes,
                name: "malloc".to_owned(),
                stack: Some(stack),
                thread: None,
                allocated_ns: Some(0),
                freed_ns: None,
                weight: 1.0,
            },
            64,
        )
    }

    pub(crate) fn object(&mut self, object: Object, stride: u64) -> Target {
        let target = Target {
            object: Some(ObjectId(self.run.objects.len() as u32)),
            address: object.address,
            bytes: object.size_bytes,
            stride,
            from: None,
        };
        self.run.objects.push(object);
        target
    }

    pub(crate) fn global(&mut self, name: &str, bytes: u64) -> Target {
        let address = 0x60_0000 + 0x1_0000 * self.run.objects.len() as u64;
        self.object(
            Object {
                kind: ObjectClass::Global,
                process: ProcessId(0),
                address,
                size_bytes: bytes,
                name: name.to_owned(),
                stack: None,
                thread: None,
                allocated_ns: None,
                freed_ns: None,
                weight: 1.0,
            },
            64,
        )
    }

    /// `thread` executes only the access at `place` during `span`, in seconds, on `cpu`. All accesses are
    /// counted; those that the latency sampler selects are timed.
    pub(crate) fn access(
        &mut self,
        thread: ThreadId,
        cpu: u16,
        place: AccessSite,
        span: Range<f64>,
        like: &Like,
    ) {
        let seconds = span.end - span.start;
        let count = (seconds * 1e9 / like.time_ns()) as u64;
        let (from_ns, to_ns) = ((span.start * 1e9) as u64, (span.end * 1e9) as u64);
        let store = self.run.sites[place.site.index()].kind.stores();
        self.run.executions.push(Executions {
            site: place.site,
            from_ns,
            to_ns,
            count,
            cpu_ns: to_ns - from_ns,
            least_cpu_ns: None,
            most_cpu_ns: None,
        });
        for _ in 0..count / u64::from(SITE_PERIOD) {
            let (target, address) = self.target(like);
            let from = match target.from {
                Some(from) => from,
                None => *self.random.choose(&like.from),
            };
            let access = Access {
                t_ns: from_ns + self.random.below(to_ns - from_ns),
                thread,
                site: place.site,
                address,
                ticks: Some(from.ticks(&mut self.random)),
                hit: None,
                drain: None,
                store,
                object: target.object,
                cpu: Some(cpu),
                node: None,
            };
            self.run.accesses.push(access);
        }
        self.samples(thread, cpu, place.stack, span, |this| {
            let (target, address) = this.waited_for(like);
            (Some(address), target.object)
        });
    }

    /// `thread` executes other code during `span`, which was decoded: the recorder attributes to each such
    /// instruction that it waited for no memory.
    pub(crate) fn plain(&mut self, thread: ThreadId, stack: StackId, span: Range<f64>) {
        let frame = self.run.stacks[stack.index()].frame;
        if self.run.attributions.iter().all(|it| it.frame != frame) {
            self.run.attributions.push(Attribution {
                frame,
                site: None,
                share: 1.0,
                confidence: 0.9,
            });
        }
        self.unseen(thread, stack, span);
    }

    /// `thread` runs code that could not be decoded during `span`.
    pub(crate) fn unseen(&mut self, thread: ThreadId, stack: StackId, span: Range<f64>) {
        self.samples(thread, 0, stack, span, |_| (None, None));
    }

    fn target(&mut self, like: &Like) -> (Target, u64) {
        let target = self.random.choose(&like.to).clone();
        self.place_in(target)
    }

    /// Target and address that a timer sample hits: by duration of accesses rather than by number.
    fn waited_for(&mut self, like: &Like) -> (Target, u64) {
        let total: f64 = like.from.iter().map(|(_, share)| share).sum();
        let usual: f64 = like
            .from
            .iter()
            .map(|(from, share)| from.latency_ns() * share / total)
            .sum();
        let by_time: Vec<(Target, f64)> = like
            .to
            .iter()
            .map(|(target, share)| {
                let latency_ns = target.from.map_or(usual, From::latency_ns);
                (target.clone(), share * latency_ns)
            })
            .collect();
        let target = self.random.choose(&by_time).clone();
        self.place_in(target)
    }

    fn place_in(&mut self, target: Target) -> (Target, u64) {
        let places = (target.bytes / target.stride).max(1);
        let address = target.address + self.random.below(places) * target.stride;
        (target, address)
    }

    fn samples(
        &mut self,
        thread: ThreadId,
        cpu: u16,
        stack: StackId,
        span: Range<f64>,
        mut at: impl FnMut(&mut Self) -> (Option<u64>, Option<ObjectId>),
    ) {
        let from_ns = (span.start * 1e9) as u64;
        let count = ((span.end - span.start) * 1e9) as u64 / PERIOD_NS;
        for index in 0..count {
            let (address, object) = at(self);
            let sample = Sample {
                t_ns: from_ns + index * PERIOD_NS + self.random.below(PERIOD_NS),
                thread,
                cpu: Some(cpu),
                stack,
                weight_ns: PERIOD_NS,
                address,
                exact: address.is_some(),
                object,
            };
            self.run.samples.push(sample);
        }
        let cpu_ns = &mut self.run.threads[thread.index()].cpu_ns;
        *cpu_ns = cpu_ns.map(|cpu_ns| cpu_ns + count * PERIOD_NS);
    }

    /// The finished run: events sorted by time, and windows with the CPU time of all threads.
    pub(crate) fn finish(mut self) -> RunData {
        self.run.samples.sort_by_key(|sample| sample.t_ns);
        self.run.accesses.sort_by_key(|access| access.t_ns);
        let times: Vec<u64> = self.run.samples.iter().map(|sample| sample.t_ns).collect();
        // Threads that run a site at the same time are counted in one window.
        let mut windows: Vec<Executions> = Vec::new();
        for window in self.run.executions.drain(..) {
            let same = windows.iter_mut().find(|known| {
                (known.site, known.from_ns, known.to_ns)
                    == (window.site, window.from_ns, window.to_ns)
            });
            match same {
                Some(known) => known.count += window.count,
                None => windows.push(window),
            }
        }
        for window in &mut windows {
            let from = times.partition_point(|&t_ns| t_ns < window.from_ns);
            let to = times.partition_point(|&t_ns| t_ns < window.to_ns);
            window.cpu_ns = (to - from) as u64 * PERIOD_NS;
        }
        self.run.executions = windows;
        self.run
    }

    /// Adds machine code for everything that was created so far: instructions of four bytes.
    pub(crate) fn code(&mut self) {
        let bytes = (self.next_code - 0x40_1000) as usize;
        self.run.code.push(Code {
            module: ModuleId(0),
            address: 0x40_1000,
            // nop dword [rax+0]
            bytes: [0x0f, 0x1f, 0x40, 0x00].repeat(bytes / 4),
        });
    }
}
