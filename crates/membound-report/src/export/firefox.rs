//! Export to Firefox Profiler: its processed profile format, version 48, which the profiler upgrades to its
//! current one.
//!
//! A partly stalled sample is written as two: the stalled part in the category of its level, the rest as
//! computing. So the categories show over time what each thread waited for, and every view can be
//! restricted to one of them.

use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};
use membound_types::{BandwidthDomain, Detail, DetailSample, Profile, ThreadRow};
use serde_json::{Value, json};

use super::chains::{Chains, Sum, by_time};
use crate::facts::run;
use crate::units::positive;

const VERSION: u32 = 48;
/// Version of the raw profiles that Firefox records, of the same time as [`VERSION`].
const GECKO_VERSION: u32 = 29;
/// Resource type of a library.
const LIBRARY: u32 = 1;
/// Empty debug identifier: nothing can be looked up on a symbol server.
const NO_IDENTIFIER: &str = "000000000000000000000000000000000";
/// From this value on, JavaScript numbers cannot represent every address.
const EXACT: u64 = 1 << 53;
/// Index of the computing category, and of the first level's.
const COMPUTING: usize = 1;
const LEVELS: usize = 2;

/// Writes JSON for Firefox Profiler (`profiler.firefox.com`, "load a profile from file").
#[must_use]
pub fn firefox(profile: &Profile, detail: &Detail) -> String {
    let chains = Chains::new(detail);
    let modules = Modules::of(detail);
    let mut by_thread: BTreeMap<u32, Vec<&DetailSample>> = BTreeMap::new();
    for sample in by_time(detail) {
        by_thread.entry(sample.thread).or_default().push(sample);
    }
    let process = profile
        .run
        .command
        .first()
        .map_or("process", |word| word.rsplit('/').next().unwrap_or(word));
    if by_thread.is_empty() {
        // The profiler cannot open a profile without threads.
        by_thread.insert(0, Vec::new());
    }
    let threads: Vec<Value> = by_thread
        .into_iter()
        .map(|(index, samples)| {
            let row = profile.threads.get(index as usize);
            Thread::new(chains, &modules, profile.levels.len()).value(index, row, process, samples)
        })
        .collect();
    let pid = profile.threads.first().map_or(0, |thread| thread.pid);
    let counters: Vec<Value> = profile
        .bandwidth
        .iter()
        .flat_map(|domain| counters(domain, pid))
        .collect();
    json!({
        "meta": meta(profile, detail),
        "libs": modules.libraries(chains),
        "pages": [],
        "counters": counters,
        "profilerOverhead": [],
        "threads": threads,
    })
    .to_string()
}

fn meta(profile: &Profile, detail: &Detail) -> Value {
    let start_ms = run::epoch_s(&profile.run.date).unwrap_or(0) as f64 * 1e3;
    let total: f64 = detail.samples.iter().map(|s| positive(s.weight_s)).sum();
    let interval_ms = if detail.samples.is_empty() {
        1.0
    } else {
        total / detail.samples.len() as f64 * 1e3
    };
    let mut categories = vec![category("Other", "grey"), category("Computing", "blue")];
    categories.extend(profile.levels.iter().map(|level| {
        let color = ["lightblue", "green", "yellow", "red", "purple", "darkgrey"]
            [run::level_color(&level.name)];
        category(&format!("Waiting for {}", level.name), color)
    }));
    json!({
        "preprocessedProfileVersion": VERSION,
        "version": GECKO_VERSION,
        "product": run::command(&profile.run),
        "importedFrom": format!("membound {}", profile.run.membound_version),
        "interval": interval_ms,
        "startTime": start_ms,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "symbolicated": true,
        "categories": categories,
        "markerSchema": [],
        "extensions": { "id": [], "name": [], "baseURL": [], "length": 0 },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "oscpu": profile.run.cpu,
        "CPUName": profile.run.cpu,
        "doesNotUseFrameImplementation": true,
        "usesOnlyOneStackType": true,
    })
}

fn category(name: &str, color: &str) -> Value {
    json!({ "name": name, "color": color, "subcategories": ["Other"] })
}

/// Counters of a domain: bytes read and written per moment.
fn counters(domain: &BandwidthDomain, pid: u32) -> Vec<Value> {
    type Read = fn(&membound_types::BandwidthMoment) -> f64;
    let kinds: [(&str, Read); 2] = [
        ("read", |moment| moment.read_gb_s),
        ("written", |moment| moment.write_gb_s),
    ];
    let timeline = &domain.timeline;
    kinds
        .into_iter()
        .map(|(what, read)| {
            let times: Vec<f64> = timeline.iter().map(|m| m.t_s * 1e3).collect();
            let counts: Vec<f64> = timeline
                .iter()
                .enumerate()
                .map(|(index, moment)| {
                    let next = timeline.get(index + 1).map(|next| next.t_s - moment.t_s);
                    let last = index.checked_sub(1).map(|at| moment.t_s - timeline[at].t_s);
                    (positive(read(moment)) * 1e9 * positive(next.or(last).unwrap_or(0.0))).round()
                })
                .collect();
            json!({
                "name": format!("{} {what}", domain.domain),
                "category": "Bandwidth",
                "description": format!("Bytes {what}, {}", domain.basis),
                "pid": pid.to_string(),
                "mainThreadIndex": 0,
                "samples": { "length": timeline.len(), "time": times, "count": counts },
            })
        })
        .collect()
}

/// Modules in the order in which frames first name them.
struct Modules {
    names: IndexSet<u32>,
}

impl Modules {
    fn of(detail: &Detail) -> Self {
        let names = detail.frames.iter().map(|frame| frame.module).collect();
        Self { names }
    }

    fn place(&self, module: u32) -> Option<usize> {
        self.names.get_index_of(&module)
    }

    fn libraries(&self, chains: Chains<'_>) -> Vec<Value> {
        self.names
            .iter()
            .map(|&name| {
                let path = chains.name(name);
                let file = path.rsplit('/').next().unwrap_or(path);
                json!({
                    "name": file,
                    "path": path,
                    "debugName": file,
                    "debugPath": path,
                    "breakpadId": NO_IDENTIFIER,
                    "codeId": null,
                    "arch": null,
                })
            })
            .collect()
    }
}

/// Name, file and module of a function, as positions in the names.
type Function = (u32, Option<u32>, u32);
/// Position of a frame, its category, and its depth among inlined frames.
type FrameKey = (u32, usize, u32);

/// Tables of one thread.
struct Thread<'a> {
    chains: Chains<'a>,
    modules: &'a Modules,
    levels: usize,
    strings: IndexSet<&'a str>,
    functions: IndexSet<Function>,
    /// Index of the function of each frame.
    frames: IndexMap<FrameKey, usize>,
    /// Index of the outer stack, and of the frame.
    stacks: IndexSet<(Option<usize>, usize)>,
    known: BTreeMap<(u32, usize), Option<usize>>,
}

impl<'a> Thread<'a> {
    fn new(chains: Chains<'a>, modules: &'a Modules, levels: usize) -> Self {
        Self {
            chains,
            modules,
            levels,
            strings: IndexSet::new(),
            functions: IndexSet::new(),
            frames: IndexMap::new(),
            stacks: IndexSet::new(),
            known: BTreeMap::new(),
        }
    }

    fn string(&mut self, text: &'a str) -> usize {
        self.strings.insert_full(text).0
    }

    /// Index of the chain `stack` in the thread's tables, with its innermost frame in `category`.
    fn stack(&mut self, stack: u32, category: usize) -> Option<usize> {
        if let Some(&known) = self.known.get(&(stack, category)) {
            return known;
        }
        let mut prefix = None;
        let mut depth = 0;
        let positions = self.chains.frames(stack);
        for (from_inside, position) in positions.into_iter().enumerate().rev() {
            let Some(frame) = self.chains.frame(position) else {
                continue;
            };
            depth = if frame.inlined { depth + 1 } else { 0 };
            let category = if from_inside == 0 { category } else { 0 };
            let frame = self.frame((position, category, depth));
            prefix = Some(self.stacks.insert_full((prefix, frame)).0);
        }
        self.known.insert((stack, category), prefix);
        prefix
    }

    fn frame(&mut self, frame: FrameKey) -> usize {
        if let Some(known) = self.frames.get_index_of(&frame) {
            return known;
        }
        let function = self
            .chains
            .frame(frame.0)
            .map_or((u32::MAX, None, u32::MAX), |it| {
                (it.function, it.file, it.module)
            });
        let (function, _) = self.functions.insert_full(function);
        self.frames.insert_full(frame, function).0
    }

    fn value(
        mut self,
        index: u32,
        row: Option<&'a ThreadRow>,
        process: &str,
        samples: Vec<&DetailSample>,
    ) -> Value {
        let (mut stacks, mut times, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            let Sum {
                cpu_ns, stall_ns, ..
            } = Sum::of(sample);
            let level = sample
                .level
                .map(usize::from)
                .filter(|&level| level < self.levels)
                .map_or(0, |level| LEVELS + level);
            for (ns, category) in [(stall_ns, level), (cpu_ns - stall_ns, COMPUTING)] {
                if ns > 0 {
                    stacks.push(self.stack(sample.stack, category));
                    times.push(positive(sample.t_s) * 1e3);
                    weights.push(ns as f64 / 1e6);
                }
            }
        }
        let functions = self.function_table();
        let (pid, tid) = row.map_or((0, index), |row| (row.pid, row.tid));
        json!({
            "name": row.map_or("thread", |row| row.name.as_str()),
            "isMainThread": pid == tid,
            "processName": process,
            "processType": "default",
            "processStartupTime": 0,
            "processShutdownTime": null,
            "registerTime": 0,
            "unregisterTime": null,
            "pausedRanges": [],
            "pid": pid.to_string(),
            "tid": tid,
            "samples": {
                "length": stacks.len(),
                "stack": stacks,
                "time": times,
                "weight": weights,
                "weightType": "tracing-ms",
            },
            "stackTable": self.stack_table(),
            "frameTable": self.frame_table(),
            "funcTable": functions.0,
            "resourceTable": functions.1,
            "nativeSymbols": { "length": 0, "libIndex": [], "address": [], "name": [], "functionSize": [] },
            "markers": { "length": 0, "data": [], "name": [], "startTime": [], "endTime": [], "phase": [], "category": [] },
            "stringArray": self.strings.iter().collect::<Vec<_>>(),
        })
    }

    fn stack_table(&self) -> Value {
        let category: Vec<usize> = self
            .stacks
            .iter()
            .map(|&(_, frame)| self.frames.get_index(frame).map_or(0, |(frame, _)| frame.1))
            .collect();
        json!({
            "length": self.stacks.len(),
            "prefix": self.stacks.iter().map(|it| it.0).collect::<Vec<_>>(),
            "frame": self.stacks.iter().map(|it| it.1).collect::<Vec<_>>(),
            "category": category,
            "subcategory": vec![0; self.stacks.len()],
        })
    }

    fn frame_table(&self) -> Value {
        let length = self.frames.len();
        let of = |position: u32| self.chains.frame(position);
        let address: Vec<i64> = self
            .frames
            .keys()
            .map(|(position, ..)| {
                of(*position)
                    .filter(|frame| frame.address < EXACT)
                    .map_or(-1, |frame| frame.address as i64)
            })
            .collect();
        let line: Vec<Option<u32>> = self
            .frames
            .keys()
            .map(|(position, ..)| of(*position).and_then(|frame| frame.line))
            .collect();
        let nothing = vec![Value::Null; length];
        json!({
            "length": length,
            "address": address,
            "inlineDepth": self.frames.keys().map(|frame| frame.2).collect::<Vec<_>>(),
            "category": self.frames.keys().map(|frame| frame.1).collect::<Vec<_>>(),
            "subcategory": vec![0; length],
            "func": self.frames.values().collect::<Vec<_>>(),
            "nativeSymbol": nothing,
            "innerWindowID": vec![0; length],
            "implementation": nothing,
            "line": line,
            "column": nothing,
        })
    }

    /// Tables of functions and of the libraries that contain them.
    fn function_table(&mut self) -> (Value, Value) {
        let functions = self.functions.clone();
        let mut resources: IndexSet<u32> = IndexSet::new();
        let (mut names, mut files, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (name, file, module) in functions {
            names.push(self.string(self.chains.name(name)));
            files.push(file.map(|file| self.string(self.chains.name(file))));
            places.push(resources.insert_full(module).0);
        }
        let length = names.len();
        let nothing = vec![Value::Null; length];
        let table = json!({
            "length": length,
            "name": names,
            "isJS": vec![false; length],
            "relevantForJS": vec![false; length],
            "resource": places,
            "fileName": files,
            "lineNumber": nothing,
            "columnNumber": nothing,
        });
        let modules: Vec<usize> = resources
            .iter()
            .map(|&module| self.string(self.chains.name(module)))
            .collect();
        let libraries: Vec<Option<usize>> = resources
            .iter()
            .map(|&module| self.modules.place(module))
            .collect();
        let resources = json!({
            "length": modules.len(),
            "name": modules,
            "lib": libraries,
            "host": vec![Value::Null; modules.len()],
            "type": vec![LIBRARY; modules.len()],
        });
        (table, resources)
    }
}
