//! Imports the text output of `perf script`.
//!
//! The text has names but no code, so samples cannot be attributed to accesses.

use membound_import::{EventKind, Script, ScriptFrame, ScriptSample};
use membound_run::{
    Frame, FrameId, Location, Meta, ModuleId, ModuleKind, Sample, StackId, TimerKind,
};
use rustc_hash::FxHashMap;

use super::images::number;
use super::rate::ASSUMED_PERIOD_NS;
use super::{ImportOptions, Imported, Importer, access, cpu};
use crate::Error;
use crate::names::nameless;

/// Writes a run with the contents of the text.
///
/// # Errors
/// When the run file cannot be written.
pub fn script(script: &Script<'_>, options: ImportOptions) -> Result<Imported, Error> {
    let samples = script.samples();
    let base_ns = samples.first().map_or(0, |sample| sample.t_ns);
    let last_ns = samples.last().map_or(0, |sample| sample.t_ns);
    let timer = Timer::of(samples);
    let mut events: Vec<&str> = samples.iter().map(|sample| sample.event).collect();
    events.sort_unstable();
    events.dedup();
    let meta = Meta {
        host: script.host().unwrap_or_default().to_owned(),
        date: options.date.clone(),
        timer: timer.kind,
        imported: Some(format!("text of perf script: {}", events.join(", "))),
        period_ns: timer.event.map_or(0, |_| ASSUMED_PERIOD_NS),
        site_period: 1,
        elapsed_ns: last_ns - base_ns,
        ..Meta::default()
    };
    let mut reader = Reader {
        importer: Importer::begin(options, meta)?,
        timer,
        base_ns,
        located: FxHashMap::default(),
        functions: FxHashMap::default(),
        locations: Vec::new(),
        left_out: FxHashMap::default(),
        without_period: 0,
    };
    for sample in samples {
        reader.sample(sample, script.frames(sample));
    }
    reader.end(script)
}

/// Offset between addresses of functions that were printed with one address in different processes: larger
/// than the address space of programs.
const OTHER_PROCESS: u64 = (1 << 56) + 1;

/// The event whose samples represent CPU time.
struct Timer<'a> {
    kind: TimerKind,
    /// Name of the event.
    event: Option<&'a str>,
}

impl<'a> Timer<'a> {
    fn of(samples: &[ScriptSample<'a>]) -> Self {
        let first = |kind: EventKind| {
            let mut samples = samples.iter().filter(|sample| sample.access.is_none());
            samples.find(|sample| sample.kind() == kind)
        };
        let (kind, found) = match first(EventKind::CpuTime) {
            Some(found) => (TimerKind::CpuClock, Some(found)),
            None => match first(EventKind::Cycles) {
                Some(found) => (TimerKind::Cycles, Some(found)),
                None => (TimerKind::None, None),
            },
        };
        Self {
            kind,
            event: found.map(|sample| sample.event),
        }
    }
}

struct Reader<'a> {
    importer: Importer,
    timer: Timer<'a>,
    base_ns: u64,
    /// Frames by file, address and function: other processes may have other functions at an address.
    located: FxHashMap<(Option<&'a str>, u64, Option<&'a str>), FrameId>,
    /// Number of different functions printed with one address so far.
    functions: FxHashMap<(Option<ModuleId>, u64), u64>,
    locations: Vec<Location>,
    left_out: FxHashMap<&'a str, u64>,
    without_period: u64,
}

impl<'a> Reader<'a> {
    fn sample(&mut self, sample: &ScriptSample<'a>, frames: &[ScriptFrame<'a>]) {
        let t_ns = sample.t_ns - self.base_ns;
        let is_time = self.timer.event == Some(sample.event);
        if sample.access.is_none() && !is_time {
            *self.left_out.entry(sample.event).or_default() += 1;
            return;
        }
        let pid = sample.pid.unwrap_or(sample.tid);
        let (image, _) = self.importer.images.sampled(pid, t_ns);
        let threads = &mut self.importer.threads;
        let thread = threads.of(image, 0, number(sample.tid), t_ns);
        threads.name(thread, sample.name.as_bytes());
        let stack = self.stack(frames);
        if let Some(found) = &sample.access {
            let at = access::At {
                t_ns,
                thread,
                cpu: cpu(sample.cpu),
                stack,
                period: sample.period.unwrap_or(1),
            };
            let row = access::row(at, sample.sampler(), found);
            return self.importer.add_access(row);
        }
        let weight_ns = match (self.timer.kind, sample.period) {
            (TimerKind::CpuClock | TimerKind::Cycles, Some(period)) => period,
            _ => {
                self.without_period += 1;
                ASSUMED_PERIOD_NS
            }
        };
        self.importer.add_sample(Sample {
            t_ns,
            thread,
            cpu: cpu(sample.cpu),
            stack,
            weight_ns,
            address: None,
            exact: false,
            object: None,
        });
    }

    /// A call chain; all kernel frames become one, at the innermost end.
    fn stack(&mut self, frames: &[ScriptFrame<'a>]) -> StackId {
        let mut ids: Vec<FrameId> = Vec::with_capacity(frames.len() + 1);
        let mut inlined: Vec<&ScriptFrame<'a>> = Vec::new();
        for frame in frames {
            if frame.is_inlined {
                inlined.push(frame);
            } else if frame.is_kernel() {
                inlined.clear();
            } else if frame.address != 0 || frame.function.is_some() {
                ids.push(self.frame(frame, &inlined));
                inlined.clear();
            }
        }
        if ids.is_empty() || frames.first().is_some_and(ScriptFrame::is_kernel) {
            ids.insert(0, self.kernel());
        }
        let stack = self.importer.interner.stack(&ids);
        stack.expect("a chain with a leaf is not empty")
    }

    fn kernel(&mut self) -> FrameId {
        let modules = &mut self.importer.modules;
        let module = modules.special("[kernel]", ModuleKind::Kernel).id;
        self.importer.interner.frame(Frame {
            module: Some(module),
            address: 0,
        })
    }

    fn frame(&mut self, frame: &ScriptFrame<'a>, inlined: &[&ScriptFrame<'a>]) -> FrameId {
        let key = (frame.file, frame.address, frame.function);
        if let Some(known) = self.located.get(&key) {
            return *known;
        }
        let module = frame.file.map(|file| self.module(file));
        // In different processes, one address may belong to different functions.
        let before = self.functions.entry((module, frame.address)).or_default();
        let address = frame
            .address
            .wrapping_add(before.wrapping_mul(OTHER_PROCESS));
        *before += 1;
        let id = self.importer.interner.frame(Frame { module, address });
        self.located.insert(key, id);
        let all = inlined.iter().copied().chain([frame]);
        for (depth, found) in (0..).zip(all) {
            self.locations.push(Location {
                depth,
                function: found.function.unwrap_or_default().to_owned(),
                ..nameless(id)
            });
        }
        id
    }

    fn module(&mut self, file: &str) -> ModuleId {
        self.importer.modules.named(file.as_bytes()).id
    }

    fn end(mut self, script: &Script<'_>) -> Result<Imported, Error> {
        let gaps = &mut self.importer.gaps;
        let remedy = "import the perf.data itself, where the program's files are";
        gaps.note(
            "names",
            "the text of perf script has no source lines",
            Some(remedy),
        );
        if self.timer.kind == TimerKind::Cycles {
            let note = "CPU time is counted in cycles, of which 1 stands for 1 ns: the text does \
                        not tell the core clock";
            gaps.note("events", note, Some(remedy));
        }
        let reason = "samples were printed without their periods and count as 1 ms each";
        let remedy = "print with -F +period";
        gaps.count("events", reason, Some(remedy), self.without_period);
        let mut left_out: Vec<(&str, u64)> = self.left_out.into_iter().collect();
        left_out.sort_unstable();
        for (event, count) in left_out {
            let reason = format!("samples of {event} stand neither for time nor for an access");
            gaps.count("events", &reason, None, count);
        }
        for skipped in script.skipped() {
            gaps.count("events", &skipped.what, None, skipped.count);
        }
        let mut importer = self.importer;
        importer.write();
        let locations = self.locations;
        importer
            .file
            .put(move |writer| writer.locations(&locations));
        importer.name(ModuleKind::Kernel);
        importer.end()
    }
}
