//! Export to `pprof`: the protocol buffers of github.com/google/pprof, `proto/profile.proto`.
//!
//! Written without gzip, which readers recognise. A sample has three values (number of samples, CPU time,
//! stalled CPU time) and labels for thread, process, object and level. Accesses that the processor sampled
//! are samples too, with two more values: the number of events that they represent, and the cycles of
//! these.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use membound_types::{Detail, Profile};

use super::chains::{Chains, nanoseconds};
use super::proto::Message;
use crate::facts::run;

/// Field numbers, by the names of the schema.
mod field {
    /// Fields of `Profile`.
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Values of every sample.
const SAMPLE_TYPES: [(&str, &str); 3] = [
    ("samples", "count"),
    ("cpu", "nanoseconds"),
    ("stall", "nanoseconds"),
];
/// Additional values if the processor sampled accesses.
const ACCESS_TYPES: [(&str, &str); 2] = [("accesses", "count"), ("access_latency", "cycles")];

/// Accesses with equal keys are added up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AccessKey {
    thread: u32,
    stack: u32,
    level: u32,
}

/// Events and their cycles, by key.
fn access_sums(detail: &Detail) -> BTreeMap<AccessKey, (u64, u64)> {
    let mut sums: BTreeMap<AccessKey, (u64, u64)> = BTreeMap::new();
    for access in &detail.accesses {
        let key = AccessKey {
            thread: access.thread,
            stack: access.stack,
            level: access.level,
        };
        let latency_cycles = u64::from(access.latency_cycles.unwrap_or(0));
        let (events, cycles) = sums.entry(key).or_default();
        *events = events.saturating_add(access.events);
        *cycles = cycles.saturating_add(latency_cycles.saturating_mul(access.events));
    }
    sums
}

/// Writes a profile as pprof's protocol buffers, uncompressed.
#[must_use]
pub fn pprof(profile: &Profile, detail: &Detail) -> Vec<u8> {
    let chains = Chains::new(detail);
    let mut tables = Tables::new(chains);
    let mut out = Message::new();
    let accesses = if detail.accesses.is_empty() {
        &[][..]
    } else {
        &ACCESS_TYPES
    };
    for (kind, unit) in SAMPLE_TYPES.iter().chain(accesses) {
        let mut kind_and_unit = Message::new();
        kind_and_unit.number(1, tables.string(kind));
        kind_and_unit.number(2, tables.string(unit));
        out.message(field::SAMPLE_TYPE, &kind_and_unit);
    }
    for (key, sum) in chains.sums() {
        let locations = tables.locations(key.stack);
        let mut sample = Message::new();
        sample.numbers(1, &locations);
        let mut values = vec![sum.samples, sum.cpu_ns, sum.stall_ns];
        values.resize(values.len() + accesses.len(), 0);
        sample.numbers(2, &values);
        tables.thread(&mut sample, profile, key.thread);
        if let Some(object) = key
            .object
            .and_then(|object| profile.objects.get(object as usize))
        {
            tables.label(&mut sample, "object", Label::Text(&object.name));
        }
        if let Some(level) = key
            .level
            .and_then(|level| profile.levels.get(usize::from(level)))
        {
            tables.label(&mut sample, "level", Label::Text(&level.name));
        }
        out.message(field::SAMPLE, &sample);
    }
    for (key, (events, cycles)) in access_sums(detail) {
        let locations = tables.locations(key.stack);
        let mut sample = Message::new();
        sample.numbers(1, &locations);
        sample.numbers(2, &[0, 0, 0, events, cycles]);
        tables.thread(&mut sample, profile, key.thread);
        let view = profile.hardware.as_ref();
        if let Some(level) = view.and_then(|view| view.levels.get(key.level as usize)) {
            tables.label(&mut sample, "line from", Label::Text(&level.name));
        }
        out.message(field::SAMPLE, &sample);
    }
    if let Some(seconds) = run::epoch_s(&profile.run.date) {
        out.number(field::TIME_NANOS, seconds.saturating_mul(1_000_000_000));
    }
    out.number(field::DURATION_NANOS, nanoseconds(profile.elapsed_s));
    for remark in run::evidence_and_cost(profile) {
        let comment = tables.string(&remark);
        out.numbers(field::COMMENT, &[comment]);
    }
    let shown = if detail.samples.is_empty() && !accesses.is_empty() {
        "access_latency"
    } else {
        "stall"
    };
    let shown = tables.string(shown);
    out.number(field::DEFAULT_SAMPLE_TYPE, shown);
    tables.main_first(profile);
    tables.write(&mut out);
    out.finish()
}

/// Similarity of a module's file name to the command's: `python3` matches the beginning of `python3.11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    Same,
    Begins,
    Other,
}

fn likeness(path: &str, command: &str) -> Likeness {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let (module, command) = (name(path), name(command));
    if module == command {
        Likeness::Same
    } else if !command.is_empty() && module.starts_with(&command) {
        Likeness::Begins
    } else {
        Likeness::Other
    }
}

enum Label<'a> {
    Text(&'a str),
    Number(u32),
}

/// Tables that samples refer to.
struct Tables<'a> {
    chains: Chains<'a>,
    strings: IndexSet<String>,
    /// By module: its highest address in the profile.
    mappings: Vec<(u32, u64)>,
    /// By name and file of the function.
    functions: BTreeMap<(u32, Option<u32>), u64>,
    /// By the frames at one address, innermost first.
    locations: BTreeMap<Vec<u32>, u64>,
    /// Locations of each chain that was already added.
    known: BTreeMap<u32, Vec<u64>>,
}

impl<'a> Tables<'a> {
    fn new(chains: Chains<'a>) -> Self {
        Self {
            chains,
            // The schema requires the empty string first.
            strings: [String::new()].into(),
            mappings: Vec::new(),
            functions: BTreeMap::new(),
            locations: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    fn string(&mut self, text: &str) -> u64 {
        self.strings.insert_full(text.to_owned()).0 as u64
    }

    fn thread(&mut self, sample: &mut Message, profile: &Profile, thread: u32) {
        if let Some(thread) = profile.threads.get(thread as usize) {
            self.label(sample, "thread", Label::Text(&thread.name));
            self.label(sample, "tid", Label::Number(thread.tid));
            self.label(sample, "pid", Label::Number(thread.pid));
        }
    }

    fn label(&mut self, sample: &mut Message, name: &str, value: Label<'_>) {
        let mut label = Message::new();
        label.number(1, self.string(name));
        match value {
            Label::Text(text) => label.number(2, self.string(text)),
            Label::Number(number) => label.number(3, number.into()),
        }
        sample.message(3, &label);
    }

    /// Locations of a chain, innermost first; inlined functions share one with the function that they were
    /// inlined into.
    fn locations(&mut self, stack: u32) -> Vec<u64> {
        if let Some(known) = self.known.get(&stack) {
            return known.clone();
        }
        let frames_by_address = self.chains.frames_by_address(stack).into_iter();
        let out: Vec<u64> = frames_by_address
            .map(|frames| self.location(frames))
            .collect();
        self.known.insert(stack, out.clone());
        out
    }

    fn location(&mut self, frames: Vec<u32>) -> u64 {
        let next = self.locations.len() as u64 + 1;
        let id = *self.locations.entry(frames.clone()).or_insert(next);
        if id == next {
            for frame in frames {
                let Some(frame) = self.chains.frame(frame) else {
                    continue;
                };
                let next = self.functions.len() as u64 + 1;
                self.functions
                    .entry((frame.function, frame.file))
                    .or_insert(next);
                match self
                    .mappings
                    .iter_mut()
                    .find(|(module, _)| *module == frame.module)
                {
                    Some((_, highest)) => *highest = (*highest).max(frame.address),
                    None => self.mappings.push((frame.module, frame.address)),
                }
            }
        }
        id
    }

    /// The schema requires the program's own mapping first; readers name a profile after it.
    fn main_first(&mut self, profile: &Profile) {
        let command = profile.run.command.first().map_or("", String::as_str);
        let chains = &self.chains;
        self.mappings
            .sort_by_key(|&(module, _)| likeness(chains.name(module), command));
    }

    fn write(mut self, out: &mut Message) {
        let mappings = std::mem::take(&mut self.mappings);
        for (index, &(module, highest)) in mappings.iter().enumerate() {
            let mut mapping = Message::new();
            mapping.number(1, index as u64 + 1);
            mapping.number(3, highest.saturating_add(1));
            mapping.number(5, self.string(self.chains.name(module)));
            // Names, files, lines and inlined functions are included, so readers need not look them up.
            for known in 7..=10 {
                mapping.number(known, 1);
            }
            out.message(field::MAPPING, &mapping);
        }
        for (frames, id) in std::mem::take(&mut self.locations) {
            let mut location = Message::new();
            location.number(1, id);
            let outermost = frames.last().and_then(|&frame| self.chains.frame(frame));
            if let Some(frame) = outermost {
                let mapping = mappings.iter().position(|it| it.0 == frame.module);
                location.number(2, mapping.map_or(0, |index| index as u64 + 1));
                location.number(3, frame.address);
            }
            for frame in frames {
                let Some(frame) = self.chains.frame(frame) else {
                    continue;
                };
                let mut line = Message::new();
                let function = self.functions.get(&(frame.function, frame.file));
                line.number(1, function.copied().unwrap_or(0));
                line.number(2, frame.line.unwrap_or(0).into());
                location.message(4, &line);
            }
            out.message(field::LOCATION, &location);
        }
        for ((name, file), id) in std::mem::take(&mut self.functions) {
            let name = self.string(self.chains.name(name));
            let file = file.map_or(0, |file| self.string(self.chains.name(file)));
            let mut function = Message::new();
            function.number(1, id);
            function.number(2, name);
            function.number(3, name);
            function.number(4, file);
            out.message(field::FUNCTION, &function);
        }
        for text in &self.strings {
            out.text(field::STRING_TABLE, text);
        }
    }
}
