//! OTLP profiles: the protocol buffers of OpenTelemetry's profiles signal, package
//! `opentelemetry.proto.profiles.v1development`, as one `ProfilesData`.
//!
//! A profile of that schema has one type of value, so there are two profiles: `stall` (first, because
//! viewers show the first by default) and `cpu`. Observations of one call chain, thread, object and level
//! form one sample, with a value and a time for each observation.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use membound_types::{Detail, Profile};

use super::chains::{Chains, Key, Sum, nanoseconds};
use super::proto::Message;
use crate::facts::run;

/// Writes a profile of OpenTelemetry's profiles signal as protocol buffers.
#[must_use]
pub fn otlp(profile: &Profile, detail: &Detail) -> Vec<u8> {
    let mut tables = Tables::new(Chains::new(detail));
    let start_ns = run::epoch_s(&profile.run.date)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000);
    let observations = observations(detail, start_ns);
    let mut scope = Message::new();
    let mut about = Message::new();
    about.text(1, "membound");
    about.text(2, &profile.run.membound_version);
    scope.message(1, &about);
    type Value = fn(&Sum) -> u64;
    let kinds: [(&str, Value); 2] = [("stall", |sum| sum.stall_ns), ("cpu", |sum| sum.cpu_ns)];
    for (kind, value) in kinds {
        let mut one = Message::new();
        one.message(1, &tables.value_type(kind, "nanoseconds"));
        for (key, moments) in &observations {
            let nonzero = moments.iter().filter(|(_, sum)| value(sum) > 0);
            let (times, values): (Vec<u64>, Vec<u64>) =
                nonzero.map(|(t_ns, sum)| (*t_ns, value(sum))).unzip();
            if !values.is_empty() {
                one.message(2, &tables.sample(profile, *key, &values, &times));
            }
        }
        one.fixed64(3, start_ns);
        one.number(4, nanoseconds(profile.elapsed_s));
        scope.message(2, &one);
    }
    let mut resource = Message::new();
    resource.message(1, &resource_of(profile));
    resource.message(2, &scope);
    let mut out = Message::new();
    out.message(1, &resource);
    out.message(2, &tables.dictionary());
    out.finish()
}

/// Samples by key, each with its time in nanoseconds since the epoch and its values.
fn observations(detail: &Detail, start_ns: u64) -> BTreeMap<Key, Vec<(u64, Sum)>> {
    let mut out: BTreeMap<Key, Vec<(u64, Sum)>> = BTreeMap::new();
    for sample in &detail.samples {
        let t_ns = start_ns.saturating_add(nanoseconds(sample.t_s));
        out.entry(Key::of(sample))
            .or_default()
            .push((t_ns, Sum::of(sample)));
    }
    out
}

/// Describes the program with the names of OpenTelemetry's semantic conventions.
fn resource_of(profile: &Profile) -> Message {
    let words = &profile.run.command;
    let program = words.first().map_or("", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut out = Message::new();
    for (key, value) in [
        ("service.name", name),
        ("process.executable.name", name),
        ("process.command_line", &run::command(&profile.run)),
        ("host.name", &profile.run.host),
        ("host.cpu.model.name", &profile.run.cpu),
    ] {
        if !value.is_empty() {
            let mut attribute = Message::new();
            attribute.text(1, key);
            attribute.message(2, &Value::Text(value).message());
            out.message(1, &attribute);
        }
    }
    out
}

/// Value of an attribute.
#[derive(Clone, Copy)]
enum Value<'a> {
    Text(&'a str),
    Number(u64),
}

impl Value<'_> {
    /// Encodes the value as the schema's `AnyValue`.
    fn message(self) -> Message {
        let mut out = Message::new();
        match self {
            Self::Text(text) => out.text(1, text),
            Self::Number(number) => out.varint_always(3, number),
        }
        out
    }
}

/// Distinct messages of one kind, by position; the first is the one without fields.
struct Table(IndexSet<Vec<u8>>);

impl Table {
    fn new() -> Self {
        Self([Vec::new()].into())
    }

    fn id(&mut self, entry: Vec<u8>) -> u64 {
        self.0.insert_full(entry).0 as u64
    }
}

/// Tables that samples refer to.
struct Tables<'a> {
    chains: Chains<'a>,
    mappings: Table,
    locations: Table,
    functions: Table,
    strings: Table,
    attributes: Table,
    stacks: Table,
    /// Index of each chain that was already added.
    known: BTreeMap<u32, u64>,
    /// By module: the address behind the highest frame.
    limits: BTreeMap<u32, u64>,
}

impl<'a> Tables<'a> {
    fn new(chains: Chains<'a>) -> Self {
        Self {
            chains,
            mappings: Table::new(),
            locations: Table::new(),
            functions: Table::new(),
            strings: Table::new(),
            attributes: Table::new(),
            stacks: Table::new(),
            known: BTreeMap::new(),
            limits: chains.limits(),
        }
    }

    fn string(&mut self, text: &str) -> u64 {
        self.strings.id(text.as_bytes().to_vec())
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Message {
        let mut out = Message::new();
        out.number(1, self.string(kind));
        out.number(2, self.string(unit));
        out
    }

    fn sample(&mut self, profile: &Profile, key: Key, values: &[u64], times: &[u64]) -> Message {
        let mut out = Message::new();
        out.number(1, self.stack(key.stack));
        out.numbers(2, &self.attributes_of(profile, key));
        out.numbers(4, values);
        out.fixed64s(5, times);
        out
    }

    fn attributes_of(&mut self, profile: &Profile, key: Key) -> Vec<u64> {
        let mut out = Vec::new();
        if let Some(thread) = profile.threads.get(key.thread as usize) {
            out.push(self.attribute("thread.name", Value::Text(&thread.name)));
            out.push(self.attribute("thread.id", Value::Number(thread.tid.into())));
            out.push(self.attribute("process.pid", Value::Number(thread.pid.into())));
        }
        let object = key.object.and_then(|at| profile.objects.get(at as usize));
        if let Some(object) = object {
            out.push(self.attribute("membound.object", Value::Text(&object.name)));
        }
        let level = key.level.and_then(|at| profile.levels.get(usize::from(at)));
        if let Some(level) = level {
            out.push(self.attribute("membound.level", Value::Text(&level.name)));
        }
        out
    }

    fn attribute(&mut self, key: &str, value: Value<'_>) -> u64 {
        let mut out = Message::new();
        out.number(1, self.string(key));
        out.message(2, &value.message());
        self.attributes.id(out.finish())
    }

    /// Adds a chain, innermost first; inlined functions share a location with the function that they were
    /// inlined into. Returns its index.
    fn stack(&mut self, stack: u32) -> u64 {
        if let Some(&known) = self.known.get(&stack) {
            return known;
        }
        let frames_by_address = self.chains.frames_by_address(stack);
        let locations: Vec<u64> = frames_by_address
            .iter()
            .map(|it| self.location(it))
            .collect();
        let mut out = Message::new();
        if !locations.is_empty() {
            out.numbers(1, &locations);
        }
        let id = self.stacks.id(out.finish());
        self.known.insert(stack, id);
        id
    }

    fn location(&mut self, frames: &[u32]) -> u64 {
        let mut out = Message::new();
        let outermost = frames.last().and_then(|&frame| self.chains.frame(frame));
        if let Some(frame) = outermost {
            out.number(1, self.mapping(frame.module));
            out.number(2, frame.address);
        }
        for &position in frames {
            let Some(frame) = self.chains.frame(position) else {
                continue;
            };
            let name = self.string(self.chains.name(frame.function));
            let file = frame
                .file
                .map_or(0, |file| self.string(self.chains.name(file)));
            let mut function = Message::new();
            function.number(1, name);
            function.number(2, name);
            function.number(3, file);
            let mut line = Message::new();
            line.number(1, self.functions.id(function.finish()));
            line.number(2, frame.line.unwrap_or(0).into());
            out.message(3, &line);
        }
        self.locations.id(out.finish())
    }

    fn mapping(&mut self, module: u32) -> u64 {
        let mut out = Message::new();
        out.number(2, self.limits.get(&module).copied().unwrap_or(0));
        out.number(4, self.string(self.chains.name(module)));
        self.mappings.id(out.finish())
    }

    fn dictionary(self) -> Message {
        let mut out = Message::new();
        for (field, table) in [
            (1, self.mappings),
            (2, self.locations),
            (3, self.functions),
            (4, Table::new()),
            (5, self.strings),
            (6, self.attributes),
            (7, self.stacks),
        ] {
            for entry in &table.0 {
                out.bytes(field, entry);
            }
        }
        out
    }
}
