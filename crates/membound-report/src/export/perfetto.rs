//! Export to Perfetto: a trace in protocol buffers for its viewer and `trace_processor`.
//!
//! A sample is a `PerfSample` with its call chain. Its time is in counters that grow over the run: a clock
//! shared by all samples, and tracks of each thread for CPU time and for the stall on each level, in
//! nanoseconds. A stalled sample is also an instant event of its thread, with the object that it waited
//! for. Times are nanoseconds since the run began; a clock snapshot relates them to the time of day.

use std::collections::BTreeMap;

use membound_types::{BandwidthDomain, BandwidthMoment, Detail, DetailSample, Profile};

use super::chains::{Chains, Sum, by_time, nanoseconds};
use super::proto::Message;
use crate::facts::run;
use crate::units::positive;

/// Fields of `TracePacket`.
mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const DEFAULTS: u32 = 59;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const PERF_SAMPLE: u32 = 66;
    pub(super) const FIRST: u32 = 87;
}

/// Fields of `InternedData`.
mod interned {
    pub(super) const EVENT_NAMES: u32 = 2;
    pub(super) const FUNCTION_NAMES: u32 = 5;
    pub(super) const FRAMES: u32 = 6;
    pub(super) const CALLSTACKS: u32 = 7;
    pub(super) const MAPPING_PATHS: u32 = 17;
    pub(super) const SOURCE_PATHS: u32 = 18;
    pub(super) const MAPPINGS: u32 = 19;
    pub(super) const ANNOTATION_STRINGS: u32 = 29;
}

/// Identifier of the only packet sequence.
const SEQUENCE: u64 = 1;
/// Flags of a sequence: interned data is reset here, or is referred to.
const BEGINS: u64 = 1;
const REFERS: u64 = 2;
/// Identifiers of clocks.
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;
/// Types of a track event.
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;
/// Units of a counter.
const UNIT_TIME_NS: u64 = 1;
/// `PerfEvents.Counter` of the CPU clock.
const SW_CPU_CLOCK: u64 = 1;
/// `Profiling.CpuMode` of user code.
const MODE_USER: u64 = 2;
/// Text for an unknown call chain, function or file.
const UNKNOWN: &str = "[unknown]";

/// Writes a trace for Perfetto as protocol buffers.
#[must_use]
pub fn perfetto(profile: &Profile, detail: &Detail) -> Vec<u8> {
    let mut tracks = Tracks::default();
    let mut names = Names::new(Chains::new(detail));
    let mut events = Vec::new();
    let mut clock = Sum::default();
    for sample in by_time(detail) {
        let sum = Sum::of(sample);
        clock.add(sum);
        let t_ns = nanoseconds(sample.t_s);
        let thread = tracks.thread(profile, sample.thread);
        let callstack = names.callstack(sample.stack);
        events.push(at(
            t_ns,
            packet::PERF_SAMPLE,
            &perf_sample(thread, clock, callstack),
        ));
        let cpu_ns = tracks.grow(sample.thread, None, sum.cpu_ns);
        events.push(count(t_ns, cpu_ns));
        if sum.stall_ns > 0 {
            let level = sample
                .level
                .filter(|&it| usize::from(it) < profile.levels.len());
            let stall_ns = tracks.grow(sample.thread, Some(level), sum.stall_ns);
            events.push(count(t_ns, stall_ns));
            let event = names.stall(profile, thread, sample, sum.stall_ns);
            events.push(at(t_ns, packet::TRACK_EVENT, &event));
        }
    }
    for domain in &profile.bandwidth {
        events.extend(tracks.bandwidth(domain));
    }
    let mut out = Message::new();
    out.message(1, &beginning(profile, names));
    for track in tracks.descriptors(profile) {
        out.message(1, &track);
    }
    for event in &events {
        out.message(1, event);
    }
    out.finish()
}

/// First packet: clocks, defaults of all samples, and interned data.
fn beginning(profile: &Profile, names: Names<'_>) -> Message {
    let mut out = Message::new();
    out.varint_always(packet::TIMESTAMP, 0);
    out.number(packet::SEQUENCE, SEQUENCE);
    out.number(packet::SEQUENCE_FLAGS, BEGINS);
    out.number(packet::FIRST, 1);
    let mut snapshot = Message::new();
    let start_ns = run::epoch_s(&profile.run.date)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000);
    for (id, time_ns) in [(BOOTTIME, 0), (REALTIME, start_ns)] {
        let mut clock = Message::new();
        clock.number(1, id);
        clock.varint_always(2, time_ns);
        snapshot.message(1, &clock);
    }
    snapshot.number(2, BOOTTIME);
    out.message(packet::CLOCK_SNAPSHOT, &snapshot);
    let mut timebase = Message::new();
    timebase.number(4, SW_CPU_CLOCK);
    timebase.text(10, "CPU time (ns)");
    let mut follower = Message::new();
    follower.text(4, "stalled (ns)");
    let mut samples = Message::new();
    samples.message(1, &timebase);
    samples.message(4, &follower);
    let mut defaults = Message::new();
    defaults.message(12, &samples);
    out.message(packet::DEFAULTS, &defaults);
    out.message(packet::INTERNED_DATA, &names.data);
    out
}

/// Packet that refers to interned data.
fn at(t_ns: u64, field: u32, what: &Message) -> Message {
    let mut out = Message::new();
    out.varint_always(packet::TIMESTAMP, t_ns);
    out.number(packet::SEQUENCE, SEQUENCE);
    out.number(packet::SEQUENCE_FLAGS, REFERS);
    out.message(field, what);
    out
}

fn perf_sample(thread: Thread, clock: Sum, callstack: u64) -> Message {
    let mut out = Message::new();
    out.number(2, thread.pid);
    out.number(3, thread.tid);
    out.number(4, callstack);
    out.number(5, MODE_USER);
    out.varint_always(6, clock.cpu_ns);
    // Not packed: the schema uses the older syntax, and the viewer's parser accepts no other encoding.
    out.varint_always(7, clock.stall_ns);
    out
}

/// Packet with the value of a counter.
fn count(t_ns: u64, (track, value): (u64, u64)) -> Message {
    let mut event = Message::new();
    event.number(9, COUNTER);
    event.number(11, track);
    event.varint_always(30, value);
    at(t_ns, packet::TRACK_EVENT, &event)
}

/// Thread and its track.
#[derive(Clone, Copy, Debug)]
struct Thread {
    track: u64,
    pid: u64,
    tid: u64,
}

/// Quantity of a thread's counter: CPU time (`None`), or the time stalled on a level.
type Counted = Option<Option<u8>>;

/// Tracks by content; their numbers begin at 1.
#[derive(Default)]
struct Tracks {
    last: u64,
    threads: BTreeMap<u32, Thread>,
    /// Track and current value of each counter.
    counters: BTreeMap<(u32, Counted), (u64, u64)>,
    bandwidth: Vec<Message>,
}

impl Tracks {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn thread(&mut self, profile: &Profile, index: u32) -> Thread {
        if let Some(&known) = self.threads.get(&index) {
            return known;
        }
        let row = profile.threads.get(index as usize);
        let (pid, tid) = row.map_or((0, index), |row| (row.pid, row.tid));
        let thread = Thread {
            track: self.next(),
            pid: pid.into(),
            tid: tid.into(),
        };
        self.threads.insert(index, thread);
        thread
    }

    /// Adds to a counter of a thread; returns its track and its new value.
    fn grow(&mut self, thread: u32, counted: Counted, by_ns: u64) -> (u64, u64) {
        let track = self.counters.get(&(thread, counted)).map(|it| it.0);
        let track = track.unwrap_or_else(|| self.next());
        let counter = self.counters.entry((thread, counted)).or_insert((track, 0));
        counter.1 = counter.1.saturating_add(by_ns);
        *counter
    }

    /// Adds the counters of a domain's traffic; returns their values over time.
    fn bandwidth(&mut self, domain: &BandwidthDomain) -> Vec<Message> {
        type Read = fn(&BandwidthMoment) -> f64;
        let kinds: [(&str, Read); 2] = [
            ("read", |moment| moment.read_gb_s),
            ("written", |moment| moment.write_gb_s),
        ];
        let mut out = Vec::new();
        for (what, read) in kinds {
            let id = self.next();
            let mut unit = Message::new();
            unit.text(6, "GB/s");
            let mut track = Message::new();
            track.number(1, id);
            track.text(
                2,
                &format!("{} {what} (GB/s, {})", domain.domain, domain.basis),
            );
            track.message(8, &unit);
            self.bandwidth.push(described(&track));
            for moment in &domain.timeline {
                let mut event = Message::new();
                event.number(9, COUNTER);
                event.number(11, id);
                event.double(44, positive(read(moment)));
                out.push(at(nanoseconds(moment.t_s), packet::TRACK_EVENT, &event));
            }
        }
        out
    }

    /// Packets that describe all tracks: processes, then threads, then counters.
    fn descriptors(&mut self, profile: &Profile) -> Vec<Message> {
        let mut out = Vec::new();
        let mut processes: BTreeMap<u64, u64> = BTreeMap::new();
        for thread in self.threads.clone().into_values() {
            if processes.contains_key(&thread.pid) {
                continue;
            }
            let id = self.next();
            processes.insert(thread.pid, id);
            let mut process = Message::new();
            process.varint_always(1, thread.pid);
            process.text(6, &run::command(&profile.run));
            let mut track = Message::new();
            track.number(1, id);
            track.message(3, &process);
            out.push(described(&track));
        }
        for (&index, thread) in &self.threads {
            let row = profile.threads.get(index as usize);
            let mut about = Message::new();
            about.varint_always(1, thread.pid);
            about.varint_always(2, thread.tid);
            about.text(5, row.map_or(UNKNOWN, |row| row.name.as_str()));
            let mut track = Message::new();
            track.number(1, thread.track);
            track.number(5, processes.get(&thread.pid).copied().unwrap_or(0));
            track.message(4, &about);
            out.push(described(&track));
        }
        for (&(thread, counted), &(id, _)) in &self.counters {
            let name = match counted {
                None => "CPU time (ns)".to_owned(),
                Some(level) => format!("stalled on {} (ns)", level_name(profile, level)),
            };
            let mut unit = Message::new();
            unit.number(3, UNIT_TIME_NS);
            let mut track = Message::new();
            track.number(1, id);
            track.text(2, &name);
            track.number(5, self.threads.get(&thread).map_or(0, |it| it.track));
            track.message(8, &unit);
            out.push(described(&track));
        }
        out.append(&mut self.bandwidth);
        out
    }
}

fn described(track: &Message) -> Message {
    let mut out = Message::new();
    out.number(packet::SEQUENCE, SEQUENCE);
    out.message(packet::TRACK_DESCRIPTOR, track);
    out
}

fn level_name(profile: &Profile, level: Option<u8>) -> &str {
    level
        .and_then(|level| profile.levels.get(usize::from(level)))
        .map_or("unknown", |level| level.name.as_str())
}

/// Interned data by kind, and by text or position; numbers begin at 1 in each kind.
struct Names<'a> {
    chains: Chains<'a>,
    data: Message,
    limits: BTreeMap<u32, u64>,
    texts: BTreeMap<(u32, String), u64>,
    mappings: BTreeMap<u32, u64>,
    /// By position; the placeholder for an unknown frame has none.
    frames: BTreeMap<Option<u32>, u64>,
    callstacks: BTreeMap<u32, u64>,
    last: BTreeMap<u32, u64>,
}

impl<'a> Names<'a> {
    fn new(chains: Chains<'a>) -> Self {
        Self {
            chains,
            data: Message::new(),
            limits: chains.limits(),
            texts: BTreeMap::new(),
            mappings: BTreeMap::new(),
            frames: BTreeMap::new(),
            callstacks: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    fn next(&mut self, kind: u32) -> u64 {
        let last = self.last.entry(kind).or_default();
        *last += 1;
        *last
    }

    fn text(&mut self, kind: u32, text: &str) -> u64 {
        if let Some(&known) = self.texts.get(&(kind, text.to_owned())) {
            return known;
        }
        let id = self.next(kind);
        let mut entry = Message::new();
        entry.number(1, id);
        entry.text(2, text);
        self.data.message(kind, &entry);
        self.texts.insert((kind, text.to_owned()), id);
        id
    }

    fn mapping(&mut self, module: u32) -> u64 {
        if let Some(&known) = self.mappings.get(&module) {
            return known;
        }
        let path = self.text(interned::MAPPING_PATHS, self.chains.name(module));
        let id = self.next(interned::MAPPINGS);
        let mut entry = Message::new();
        entry.number(1, id);
        entry.number(5, self.limits.get(&module).copied().unwrap_or(0));
        entry.number(7, path);
        self.data.message(interned::MAPPINGS, &entry);
        self.mappings.insert(module, id);
        id
    }

    fn frame(&mut self, position: Option<u32>) -> u64 {
        if let Some(&known) = self.frames.get(&position) {
            return known;
        }
        let frame = position.and_then(|position| self.chains.frame(position));
        let (function, module) = frame.map_or((UNKNOWN, u32::MAX), |frame| {
            (self.chains.name(frame.function), frame.module)
        });
        let function = self.text(interned::FUNCTION_NAMES, function);
        let mapping = self.mapping(module);
        let mut entry = Message::new();
        entry.number(2, function);
        entry.number(3, mapping);
        if let Some(frame) = frame {
            entry.varint_always(4, frame.address);
            if let Some(file) = frame.file {
                entry.number(5, self.text(interned::SOURCE_PATHS, self.chains.name(file)));
                entry.number(6, frame.line.unwrap_or(0).into());
            }
        }
        let id = self.next(interned::FRAMES);
        entry.number(1, id);
        self.data.message(interned::FRAMES, &entry);
        self.frames.insert(position, id);
        id
    }

    fn callstack(&mut self, stack: u32) -> u64 {
        if let Some(&known) = self.callstacks.get(&stack) {
            return known;
        }
        let positions = self.chains.frames(stack);
        // Perfetto expects the outermost frame first.
        let mut frames: Vec<u64> = positions
            .iter()
            .rev()
            .map(|&it| self.frame(Some(it)))
            .collect();
        if frames.is_empty() {
            frames.push(self.frame(None));
        }
        let id = self.next(interned::CALLSTACKS);
        let mut entry = Message::new();
        entry.number(1, id);
        for frame in frames {
            entry.number(2, frame);
        }
        self.data.message(interned::CALLSTACKS, &entry);
        self.callstacks.insert(stack, id);
        id
    }

    /// Event of a thread for a stalled sample.
    fn stall(
        &mut self,
        profile: &Profile,
        thread: Thread,
        sample: &DetailSample,
        stall_ns: u64,
    ) -> Message {
        let name = format!("waiting for {}", level_name(profile, sample.level));
        let mut out = Message::new();
        out.number(9, INSTANT);
        out.number(10, self.text(interned::EVENT_NAMES, &name));
        out.number(11, thread.track);
        out.text(22, "stall");
        let mut annotation = Message::new();
        annotation.text(10, "stall_ns");
        annotation.number(3, stall_ns);
        out.message(4, &annotation);
        let object = sample
            .object
            .and_then(|at| profile.objects.get(at as usize));
        if let Some(object) = object {
            let mut annotation = Message::new();
            annotation.text(10, "object");
            annotation.number(17, self.text(interned::ANNOTATION_STRINGS, &object.name));
            out.message(4, &annotation);
        }
        out
    }
}
