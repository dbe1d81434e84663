//! Collects the accesses of threads to each cache line.

use std::ops::Range;

use membound_run::{ObjectId, ProcessId, RunData, SiteId, SiteKind, ThreadId};
use rustc_hash::FxHashMap;

use crate::decoding::{Functions, is_stored_back};
use crate::machine::Machine;
use crate::recorded_accesses::RecordedAccesses;
use crate::tally::Waits;

/// Access to a line, recorded by the latency sampler or by a timer sample whose registers gave the address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    pub t_ns: u64,
    pub thread: ThreadId,
    pub site: SiteId,
    /// Offset of the first byte in the line.
    pub from: u32,
    /// Offset behind the last byte.
    pub to: u32,
    pub loads: bool,
    /// True also of a load where the thread always stores next: samples seldom meet the store.
    pub stores: bool,
    pub object: Option<ObjectId>,
    pub basis: Basis,
}

impl Observation {
    /// True if it accesses some of these bytes of the line.
    pub(crate) fn meets(&self, bytes: &Range<u32>) -> bool {
        self.from < bytes.end && bytes.start < self.to
    }
}

/// Source of an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Basis {
    /// Access recorded by the latency sampler.
    Access {
        /// Position in the run's accesses.
        position: u32,
        /// Latency in ticks, plus the ticks by which earlier stores took longer than usual to drain.
        ticks: Option<f64>,
        /// Executions that the access represents.
        weight: f64,
    },
    /// Timer sample, with its time in nanoseconds.
    Sample { weight_ns: u64 },
}

/// Inputs for observations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    pub run: &'a RunData,
    pub machine: &'a Machine<'a>,
    pub waits: &'a Waits,
    pub touches: &'a RecordedAccesses<'a>,
}

/// Observations on one cache line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub process: ProcessId,
    pub address: u64,
    /// Observations in order of time.
    pub observations: Vec<Observation>,
}

/// Lines with at least `threshold` accesses by each of at least two threads.
pub(crate) fn lines(sources: &Sources<'_>, threshold: u64) -> Vec<Line> {
    let run = sources.run;
    let mut stores_back = StoresBack::new(run);
    let line_bytes = u64::from(sources.machine.line_bytes);
    let accesses = run.accesses.iter().zip(0_u32..).map(|(access, index)| {
        let process = run.threads[access.thread.index()].process;
        (
            process,
            access.address & !(line_bytes - 1),
            index,
            Source::Access,
        )
    });
    let samples = run
        .samples
        .iter()
        .zip(0_u32..)
        .filter(|(sample, _)| sample.exact)
        .filter_map(|(sample, index)| {
            let process = run.threads[sample.thread.index()].process;
            let address = sample.address?;
            Some((process, address & !(line_bytes - 1), index, Source::Sample))
        });
    let mut places: Vec<(ProcessId, u64, u32, Source)> = accesses.chain(samples).collect();
    places.sort_unstable();
    places
        .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
        .filter(|of_line| of_line.len() as u64 >= 2 * threshold.max(1))
        .filter_map(|of_line| {
            let (process, address, ..) = of_line[0];
            let mut observations: Vec<Observation> = of_line
                .iter()
                .filter_map(|&(_, _, index, source)| observation(sources, address, index, source))
                .collect();
            let mut threads: Vec<ThreadId> = observations.iter().map(|one| one.thread).collect();
            threads.sort_unstable();
            let often = threads
                .chunk_by(|a, b| a == b)
                .filter(|of_thread| of_thread.len() as u64 >= threshold)
                .count();
            (often >= 2).then(|| {
                for one in &mut observations {
                    one.stores = one.stores || stores_back.at(one.site);
                }
                observations.sort_by_key(|one| (one.t_ns, one.thread, one.site, one.from));
                Line {
                    process,
                    address,
                    observations,
                }
            })
        })
        .collect()
}

/// Sites whose loaded value is stored back.
struct StoresBack<'a> {
    run: &'a RunData,
    functions: Functions<'a>,
    known: FxHashMap<SiteId, bool>,
}

impl<'a> StoresBack<'a> {
    fn new(run: &'a RunData) -> Self {
        Self {
            run,
            functions: Functions::new(run),
            known: FxHashMap::default(),
        }
    }

    fn at(&mut self, site: SiteId) -> bool {
        *self.known.entry(site).or_insert_with(|| {
            let frame = &self.run.frames[self.run.sites[site.index()].frame.index()];
            let module = frame.module;
            module.is_some_and(|module| is_stored_back(&self.functions, module, frame.address))
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Access,
    Sample,
}

fn observation(
    sources: &Sources<'_>,
    line: u64,
    index: u32,
    source: Source,
) -> Option<Observation> {
    let run = sources.run;
    let at = index as usize;
    let (t_ns, thread, site, address, object, basis) = match source {
        Source::Access => {
            let access = &run.accesses[at];
            let drain = sources.machine.drain_beyond(access.drain);
            let ticks = sources.touches.ticks(index);
            let basis = Basis::Access {
                position: index,
                ticks: ticks.map(|ticks| (ticks + drain).max(0.0)),
                weight: sources.touches.weight(index),
            };
            (
                access.t_ns,
                access.thread,
                access.site,
                access.address,
                access.object,
                basis,
            )
        }
        Source::Sample => {
            let sample = &run.samples[at];
            let frame = run.stacks[sample.stack.index()].frame;
            // An address belongs to one access: the one that most samples there waited for.
            let waits = sources.waits.of(frame);
            let wait = waits.iter().max_by(|a, b| a.share.total_cmp(&b.share))?;
            let basis = Basis::Sample {
                weight_ns: sample.weight_ns,
            };
            (
                sample.t_ns,
                sample.thread,
                wait.site,
                sample.address?,
                sample.object,
                basis,
            )
        }
    };
    let place = &run.sites[site.index()];
    let from = (address - line) as u32;
    let to = from.saturating_add(place.bytes.max(1));
    let both = matches!(place.kind, SiteKind::Both | SiteKind::Locked);
    let stores = match source {
        Source::Access => both || run.accesses[at].store,
        Source::Sample => place.kind.stores(),
    };
    Some(Observation {
        t_ns,
        thread,
        site,
        from,
        to: to.min(sources.machine.line_bytes),
        loads: both || !stores,
        stores,
        object,
        basis,
    })
}
