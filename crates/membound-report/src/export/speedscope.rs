//! Export to speedscope: its own file format, "evented or sampled profiles over shared frames".
//!
//! The format gives a sample one weight, so each thread has two sampled profiles, stalled time and CPU
//! time, both in nanoseconds. Frames are functions rather than lines, because speedscope lists every frame
//! separately and would list a function once per line.

use std::collections::BTreeMap;

use membound_types::{Detail, Profile};
use serde_json::{Value, json};

use super::chains::{Chains, Sum};
use crate::facts::run;

/// Schema URL by which speedscope recognises the format.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";
/// Frame of a sample with an unknown call chain.
const UNKNOWN: &str = "[unknown]";

/// Writes JSON for speedscope (`speedscope.app`, or the npm package).
#[must_use]
pub fn speedscope(profile: &Profile, detail: &Detail) -> String {
    let mut frames = Frames::new(Chains::new(detail));
    let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
    for sample in &detail.samples {
        let stack = frames.chain(sample.stack);
        let sum = Sum::of(sample);
        let thread = threads.entry(sample.thread).or_default();
        thread.stall.add(&stack, sum.stall_ns);
        thread.cpu.add(&stack, sum.cpu_ns);
    }
    let mut profiles = Vec::new();
    let (mut most_ns, mut active) = (0, 0);
    for (index, thread) in threads {
        let name = profile.threads.get(index as usize).map_or_else(
            || format!("thread {index}"),
            |row| format!("{} (tid {})", row.name, row.tid),
        );
        if thread.stall.total_ns > most_ns {
            (most_ns, active) = (thread.stall.total_ns, profiles.len());
        }
        for (what, track) in [("stalled", thread.stall), ("CPU time", thread.cpu)] {
            if !track.weights.is_empty() {
                profiles.push(track.value(&format!("{name}: {what}")));
            }
        }
    }
    if profiles.is_empty() {
        // speedscope refuses a file without a profile.
        profiles.push(Track::default().value("no samples"));
    }
    json!({
        "$schema": SCHEMA,
        "exporter": format!("membound {}", profile.run.membound_version),
        "name": run::command(&profile.run),
        "activeProfileIndex": active,
        "shared": { "frames": frames.values },
        "profiles": profiles,
    })
    .to_string()
}

/// Profiles of one thread.
#[derive(Default)]
struct Thread {
    stall: Track,
    cpu: Track,
}

/// Samples with their weights.
#[derive(Default)]
struct Track {
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
    total_ns: u64,
}

impl Track {
    fn add(&mut self, stack: &[usize], weight_ns: u64) {
        if weight_ns > 0 {
            self.samples.push(stack.to_vec());
            self.weights.push(weight_ns);
            self.total_ns = self.total_ns.saturating_add(weight_ns);
        }
    }

    fn value(self, name: &str) -> Value {
        json!({
            "type": "sampled",
            "name": name,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": self.total_ns,
            "samples": self.samples,
            "weights": self.weights,
        })
    }
}

/// Functions as frames.
struct Frames<'a> {
    chains: Chains<'a>,
    values: Vec<Value>,
    /// By name, file and module of the function.
    ids: BTreeMap<(u32, Option<u32>, u32), usize>,
    unknown: Option<usize>,
    /// Frames of each chain that was already added, outermost first.
    known: BTreeMap<u32, Vec<usize>>,
}

impl<'a> Frames<'a> {
    fn new(chains: Chains<'a>) -> Self {
        Self {
            chains,
            values: Vec::new(),
            ids: BTreeMap::new(),
            unknown: None,
            known: BTreeMap::new(),
        }
    }

    fn chain(&mut self, stack: u32) -> Vec<usize> {
        if let Some(known) = self.known.get(&stack) {
            return known.clone();
        }
        let mut out = Vec::new();
        for position in self.chains.frames(stack).into_iter().rev() {
            out.extend(self.frame(position));
        }
        if out.is_empty() {
            out.push(self.unknown());
        }
        self.known.insert(stack, out.clone());
        out
    }

    fn frame(&mut self, position: u32) -> Option<usize> {
        let frame = self.chains.frame(position)?;
        let key = (frame.function, frame.file, frame.module);
        if let Some(&known) = self.ids.get(&key) {
            return Some(known);
        }
        let file = self.chains.name(frame.file.unwrap_or(frame.module));
        let id = self.values.len();
        self.values
            .push(json!({ "name": self.chains.name(frame.function), "file": file }));
        self.ids.insert(key, id);
        Some(id)
    }

    fn unknown(&mut self) -> usize {
        *self.unknown.get_or_insert_with(|| {
            self.values.push(json!({ "name": UNKNOWN }));
            self.values.len() - 1
        })
    }
}
