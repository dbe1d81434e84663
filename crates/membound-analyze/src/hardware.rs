//! Accesses that the processor sampled itself (imported runs).
//!
//! Each access is measured on its own: level and latency come from the processor. An access counts with the
//! number of events that it represents. Such samples do not show which share of the time the accesses cost.

use std::collections::{BTreeMap, BTreeSet};

use membound_run::{
    AccessSampler, HardwareAccess, Operation, ServedBy, Snoop, StackId, ThreadId, Translation,
};
use membound_types::{
    Basis, ChangedLineRow, DetailAccess, HardwareCodeRow, HardwareLevelRow, HardwareView,
};

use crate::context::Context;
use crate::info;
use crate::names;
use crate::places::FunctionId;

/// Most rows of the tables of functions and of lines.
const ROWS: usize = 100;

/// Most functions that are named for one line.
const FUNCTIONS: usize = 5;

/// Sums over a set of accesses.
#[derive(Clone, Debug, Default)]
struct Count {
    number: u64,
    /// Events that the accesses represent.
    weight: f64,
    /// Accesses with a measured latency: sum of cycles weighted by events, and number of events.
    cycles: f64,
    timed: f64,
}

impl Count {
    fn add(&mut self, access: &HardwareAccess) {
        let weight = events(access) as f64;
        self.number += 1;
        self.weight += weight;
        if let Some(cycles) = access.latency_cycles {
            self.cycles += f64::from(cycles) * weight;
            self.timed += weight;
        }
    }

    fn latency_cycles(&self) -> Option<f64> {
        (self.timed > 0.0).then(|| self.cycles / self.timed)
    }

    fn share(&self, all: &Self) -> f64 {
        if all.weight > 0.0 {
            self.weight / all.weight
        } else {
            0.0
        }
    }
}

/// Where the data of an access came from, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Served(ServedBy),
    Beyond(ServedBy),
    Unknown,
}

impl Source {
    fn of(access: &HardwareAccess) -> Self {
        match (access.served, access.missed) {
            (Some(served), _) => Self::Served(served),
            (None, Some(missed)) => Self::Beyond(missed),
            (None, None) => Self::Unknown,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Served(served) => name(served).to_owned(),
            Self::Beyond(missed) => format!("beyond {}", name(missed)),
            Self::Unknown => "unknown".to_owned(),
        }
    }
}

const fn name(served: ServedBy) -> &'static str {
    match served {
        ServedBy::L1 => "L1",
        ServedBy::LineFill => "line-fill",
        ServedBy::L2 => "L2",
        ServedBy::L3 => "L3",
        ServedBy::L4 => "L4",
        ServedBy::Cache => "cache",
        ServedBy::RemoteCache => "remote-cache",
        ServedBy::Dram => "DRAM",
        ServedBy::RemoteDram => "remote-DRAM",
        ServedBy::Persistent => "persistent",
        ServedBy::Cxl => "CXL",
        ServedBy::Device => "device",
        ServedBy::Uncached => "uncached",
    }
}

const fn sampler(sampler: AccessSampler) -> &'static str {
    match sampler {
        AccessSampler::Pebs => "PEBS",
        AccessSampler::Ibs => "IBS",
        AccessSampler::Spe => "SPE",
        AccessSampler::Other => "the processor",
    }
}

/// Accesses to one cache line of memory.
#[derive(Debug, Default)]
struct Line {
    accesses: u64,
    changed: u64,
    threads: BTreeSet<ThreadId>,
    functions: BTreeMap<FunctionId, u64>,
}

/// Number of events that an access represents.
fn events(access: &HardwareAccess) -> u64 {
    access.period.max(1)
}

/// Accesses of the selected threads.
fn selected<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'a HardwareAccess> {
    let all = context.run.hardware_accesses.iter();
    all.filter(|access| context.is_selected(access.thread))
}

fn function_of(context: &Context<'_>, access: &HardwareAccess) -> FunctionId {
    let frame = context.run.stacks[access.stack.index()].frame;
    context.places.function_of(frame)
}

/// Accesses of the view with their positions in tables; `thread` and `stack` map identifiers to positions.
pub(crate) fn accesses(
    context: &Context<'_>,
    view: &HardwareView,
    thread: impl Fn(ThreadId) -> u32,
    mut stack: impl FnMut(StackId) -> u32,
) -> Vec<DetailAccess> {
    let mut positions = BTreeMap::new();
    let mut position = |source: Source| {
        *positions.entry(source).or_insert_with(|| {
            let name = source.name();
            let found = view.levels.iter().position(|row| row.name == name);
            found.expect("every access was counted under its source") as u32
        })
    };
    let mut found: Vec<DetailAccess> = selected(context)
        .map(|access| DetailAccess {
            t_s: info::seconds(access.t_ns),
            thread: thread(access.thread),
            stack: stack(access.stack),
            level: position(Source::of(access)),
            latency_cycles: access.latency_cycles,
            address: access.address,
            events: events(access),
        })
        .collect();
    found.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
    found
}

/// View of hardware-sampled accesses; `None` if the run has none.
pub(crate) fn hardware(context: &Context<'_>) -> Option<HardwareView> {
    let mut all = Count::default();
    let (mut loads, mut stores) = (0, 0);
    let (mut walked, mut translated) = (0.0, 0.0);
    let mut samplers = BTreeSet::new();
    let mut levels: BTreeMap<Source, Count> = BTreeMap::new();
    for access in selected(context) {
        all.add(access);
        samplers.insert(access.sampler);
        let operation = access.operation;
        loads += u64::from(matches!(
            operation,
            Some(Operation::Load | Operation::LoadStore)
        ));
        stores += u64::from(matches!(
            operation,
            Some(Operation::Store | Operation::LoadStore)
        ));
        if let Some(translation) = access.translation {
            let weight = events(access) as f64;
            translated += weight;
            walked += if translation == Translation::Walk {
                weight
            } else {
                0.0
            };
        }
        levels.entry(Source::of(access)).or_default().add(access);
    }
    if all.number == 0 {
        return None;
    }
    Some(HardwareView {
        basis: Basis::Measured,
        samplers: samplers
            .into_iter()
            .map(|it| sampler(it).to_owned())
            .collect(),
        accesses: all.number,
        loads,
        stores,
        latency_cycles: all.latency_cycles(),
        walked_fraction: (translated > 0.0).then(|| walked / translated),
        levels: levels
            .iter()
            .map(|(source, count)| HardwareLevelRow {
                name: source.name(),
                accesses: count.number,
                fraction: count.share(&all),
                latency_cycles: count.latency_cycles(),
            })
            .collect(),
        functions: function_rows(context, &all),
        changed_lines: changed_lines(context),
    })
}

fn function_rows(context: &Context<'_>, all: &Count) -> Vec<HardwareCodeRow> {
    let mut functions: BTreeMap<FunctionId, (Count, BTreeMap<Source, f64>)> = BTreeMap::new();
    for access in selected(context) {
        let of_function = functions.entry(function_of(context, access)).or_default();
        of_function.0.add(access);
        *of_function.1.entry(Source::of(access)).or_default() += events(access) as f64;
    }
    let mut rows: Vec<(f64, HardwareCodeRow)> = functions
        .into_iter()
        .map(|(function, (count, sources))| {
            let place = context.places.function(function);
            let most = sources.iter().max_by(|a, b| a.1.total_cmp(b.1));
            let row = HardwareCodeRow {
                name: place.name.clone(),
                module: names::file_name(context.places.module_path(place.module)).to_owned(),
                accesses: count.number,
                fraction: count.share(all),
                cycles_fraction: (all.cycles > 0.0).then(|| count.cycles / all.cycles),
                latency_cycles: count.latency_cycles(),
                level: most.map_or_else(String::new, |(source, _)| source.name()),
            };
            (count.cycles, row)
        })
        .collect();
    rows.sort_by(|(a_cycles, a), (b_cycles, b)| {
        b_cycles
            .total_cmp(a_cycles)
            .then(b.accesses.cmp(&a.accesses))
            .then(a.name.cmp(&b.name))
    });
    rows.truncate(ROWS);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn changed_lines(context: &Context<'_>) -> Vec<ChangedLineRow> {
    let run = context.run;
    let line_bytes = u64::from(context.machine.line_bytes);
    let mut lines: BTreeMap<(u32, u64), Line> = BTreeMap::new();
    for access in selected(context) {
        let Some(address) = access.address else {
            continue;
        };
        let process = run.threads[access.thread.index()].process;
        let pid = run.processes[process.index()].pid;
        let key = (pid, address / line_bytes * line_bytes);
        let line = lines.entry(key).or_default();
        line.accesses += 1;
        line.changed += u64::from(access.snoop == Some(Snoop::Modified));
        line.threads.insert(access.thread);
        let function = function_of(context, access);
        *line.functions.entry(function).or_default() += 1;
    }
    let mut rows: Vec<ChangedLineRow> = lines
        .into_iter()
        .filter(|(_, line)| line.changed > 0)
        .map(|((pid, address), line)| {
            let mut functions: Vec<(FunctionId, u64)> = line.functions.into_iter().collect();
            functions.sort_by_key(|(function, number)| (std::cmp::Reverse(*number), *function));
            let named = functions.iter().take(FUNCTIONS);
            ChangedLineRow {
                pid,
                address,
                accesses: line.accesses,
                changed: line.changed,
                threads: line.threads.len() as u32,
                functions: named
                    .map(|(function, _)| context.places.function(*function).name.clone())
                    .collect(),
            }
        })
        .collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.changed), row.pid, row.address));
    rows.truncate(ROWS);
    rows
}
