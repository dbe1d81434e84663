//! Imports recordings of other profilers as runs.
//!
//! A recording goes through the same code as membound's own data: modules, call chains, attribution of
//! sampled instructions to accesses, names. No process of this machine is read. Files with code are read if
//! they exist here, unless something shows that they differ from the recorded ones (`identity.rs`).

mod access;
mod identity;
mod images;
mod leaves;
mod naming;
mod output;
mod perf_data;
mod rate;
mod script;

use std::collections::BTreeMap;
use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use membound_run::{
    Frame, FrameId, Gap, HardwareAccess, LoopAround, Mapping, Meta, ModuleId, ModuleKind, RunData,
    Sample, Writer,
};
use membound_types::MachineProfile;

use crate::Error;
use crate::gaps::Gaps;
use crate::intern::Interner;
use crate::modules::{CodeModule, Modules};
use crate::names;
use crate::sites::Sites;
use crate::threads::Threads;
use images::Images;
use leaves::OfFunction;
use naming::Naming;
use output::Output;

pub use perf_data::perf_data;
pub use script::script;

/// Rows in one transaction.
const AT_ONCE: usize = 100_000;
/// Functions whose rows are written in one transaction.
const FUNCTIONS_AT_ONCE: usize = 1000;

/// Output and metadata of an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Path of the run file; an existing file is replaced.
    pub output: PathBuf,
    /// membound's version, for the metadata.
    pub membound_version: String,
    /// Date of the recording, if the recording itself has none: RFC 3339 in UTC.
    pub date: String,
    /// The machine profile that levels and latencies are taken from.
    pub machine: Option<MachineProfile>,
    /// Receives the run once all of it is known, some time before its file is complete.
    pub rows: Option<Sender<RunData>>,
    /// The process ends soon after the import: memory is not freed one piece at a time.
    pub ends_soon: bool,
}

/// Totals of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Number of samples that represent CPU time.
    pub samples: u64,
    /// Number of accesses that a processor sampled.
    pub accesses: u64,
    /// What was left out, and why.
    pub gaps: Vec<Gap>,
}

/// A run in the making.
struct Importer {
    file: Output,
    meta: Meta,
    gaps: Gaps,
    modules: Modules,
    interner: Interner,
    threads: Threads,
    sites: Sites,
    images: Images,
    /// Functions that were sampled.
    functions: names::Functions,
    /// First addresses of the loops around each instruction, innermost first.
    loops: BTreeMap<FrameId, Vec<u64>>,
    mappings: Vec<Mapping>,
    samples: Vec<Sample>,
    accesses: Vec<HardwareAccess>,
    imported: Imported,
    modules_written: usize,
    /// Finds functions and lines, where the recording has none.
    naming: Option<Naming>,
    output: PathBuf,
    rows: Option<Sender<RunData>>,
    ends_soon: bool,
}

impl Importer {
    /// Creates the run file.
    fn begin(options: ImportOptions, meta: Meta) -> Result<Self, Error> {
        let meta = Meta {
            membound_version: options.membound_version,
            machine: options.machine.map(Box::new),
            ..meta
        };
        let failed = |reason| Error::Output {
            path: options.output.clone(),
            reason,
        };
        let writer = Writer::create(&options.output, &meta);
        let mut writer = writer.map_err(|error| failed(error.to_string()))?;
        if options.rows.is_some() {
            writer.keep_rows();
        }
        let file = Output::new(writer).map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            file,
            meta,
            gaps: Gaps::default(),
            modules: Modules::default(),
            interner: Interner::default(),
            threads: Threads::default(),
            sites: Sites::default(),
            images: Images::default(),
            functions: names::Functions::new(),
            loops: BTreeMap::new(),
            mappings: Vec::new(),
            samples: Vec::new(),
            accesses: Vec::new(),
            imported: Imported {
                samples: 0,
                accesses: 0,
                gaps: Vec::new(),
            },
            modules_written: 0,
            naming: None,
            output: options.output,
            rows: options.rows,
            ends_soon: options.ends_soon,
        })
    }

    /// Starts the thread that names frames as they are added.
    fn name_frames(&mut self) -> Result<(), Error> {
        let naming = Naming::new(self.file.writing());
        self.naming = Some(naming.map_err(|error| Error::Output {
            path: self.output.clone(),
            reason: error.to_string(),
        })?);
        Ok(())
    }

    fn add_sample(&mut self, sample: Sample) {
        self.imported.samples += 1;
        self.samples.push(sample);
        if self.samples.len() >= AT_ONCE {
            self.write();
        }
    }

    fn add_access(&mut self, access: HardwareAccess) {
        self.imported.accesses += 1;
        self.accesses.push(access);
        if self.accesses.len() >= AT_ONCE {
            self.write();
        }
    }

    /// Adds the results of decoding a function.
    fn add_function(&mut self, found: OfFunction) {
        let Self {
            sites, interner, ..
        } = self;
        let module = &found.module;
        for (frame, address, studied) in found.leaves {
            let intern = |frame| interner.frame(frame);
            sites.waits_by(frame, module, address, intern, || Some(studied));
        }
        for (address, starts) in found.loops {
            let frame = interner.frame(Frame {
                module: Some(module.id),
                address,
            });
            self.loops.insert(frame, starts);
        }
        let bytes = found.range.end - found.range.start;
        let known = self.functions.insert((module.id, found.range.start), bytes);
        if known.is_none() && self.functions.len().is_multiple_of(FUNCTIONS_AT_ONCE) {
            self.write();
        }
    }

    /// Hands all new rows to the thread that writes the file.
    fn write(&mut self) {
        let file = &self.file;
        let modules = self.modules.all();
        let new = modules[self.modules_written..].iter();
        let new: Vec<_> = new.map(|module| module.row()).collect();
        let first = module_id(self.modules_written);
        self.modules_written = modules.len();
        let processes = self.images.rows();
        let threads = self.threads.take_changed();
        let mappings = take(&mut self.mappings);
        file.put(move |writer| {
            writer.modules(first, &new)?;
            writer.processes(membound_run::ProcessId(0), &processes)?;
            writer.threads_at(threads)?;
            writer.mappings(&mappings)
        });
        let (first, frames) = self.interner.take_frames();
        if let Some(naming) = &self.naming {
            let numbers = (first.0..).map(FrameId);
            let numbered = numbers.zip(frames.iter().copied()).collect();
            for (module, frames) in names::by_module(numbered, modules) {
                if module.kind != ModuleKind::Jit {
                    naming.name(module, frames);
                }
            }
        }
        file.put(move |writer| writer.frames(first, &frames));
        let (first, stacks) = self.interner.take_stacks();
        file.put(move |writer| writer.stacks(first, &stacks));
        let (first, sites) = self.sites.take_new();
        let attributions = self.sites.take_attributions();
        file.put(move |writer| {
            writer.sites(first, &sites)?;
            writer.attributions(&attributions)
        });
        let (samples, accesses) = (take(&mut self.samples), take(&mut self.accesses));
        file.put(move |writer| {
            writer.samples(&samples)?;
            writer.hardware_accesses(&accesses)?;
            writer.flush()
        });
    }

    /// Adds names and code, and completes the file.
    fn finish(mut self) -> Result<Imported, Error> {
        let all: Vec<Arc<CodeModule>> = self.modules.all().to_vec();
        self.write();
        self.name(ModuleKind::Jit);
        let loops = take(&mut self.loops);
        let rows = loops.into_iter();
        let rows: Vec<LoopAround> = rows
            .flat_map(|(frame, starts)| names::loop_rows(frame, starts))
            .collect();
        self.file.put(move |writer| writer.loops(&rows));
        let code = names::code(&self.functions, &all);
        self.file.put(move |writer| writer.code(&code));
        if let Some(naming) = self.naming.take() {
            self.gaps.add(naming.end());
        }
        for module in &all {
            names::note_unattributed(module, &mut self.gaps);
            let row = module.row();
            let id = module.id;
            self.file.put(move |writer| writer.modules(id, &[row]));
        }
        let shortened = "call chains were cut: there are too many different ones";
        self.gaps
            .count("names", shortened, None, self.interner.shortened);
        drop(all);
        self.end()
    }

    /// Names the frames in modules of one kind.
    fn name(&mut self, kind: ModuleKind) {
        let Self {
            file,
            modules,
            interner,
            images,
            gaps,
            ..
        } = self;
        let mut named = names::by_module(interner.frames(), modules.all());
        named.retain(|(module, _)| module.kind == kind);
        for (module, frames) in named {
            let pid = || {
                let process = modules.process_of(module.id)?;
                Some(images.rows().get(process.index())?.pid)
            };
            names::locate(&module, &frames, pid, gaps, &mut |locations| {
                file.put(move |writer| writer.locations(&locations));
            });
        }
    }

    /// Completes the file without adding names.
    fn end(self) -> Result<Imported, Error> {
        let Self {
            file,
            meta,
            gaps,
            mut imported,
            output,
            rows,
            ends_soon,
            modules,
            interner,
            sites,
            images,
            ..
        } = self;
        if ends_soon {
            // A whole machine's decoded functions take a gigabyte in millions of allocations. Freeing them
            // one by one takes a tenth of the time of an import; at exit the kernel frees all at once.
            std::mem::forget((modules, interner, sites, images));
        }
        imported.gaps = gaps.all().to_vec();
        let ended = file.finish(&meta, gaps.all(), rows);
        ended.map_err(|reason| Error::Output {
            path: output,
            reason,
        })?;
        Ok(imported)
    }
}

fn module_id(index: usize) -> ModuleId {
    ModuleId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// A CPU's number in the type that runs use.
fn cpu(number: Option<u32>) -> Option<u16> {
    number.and_then(|number| u16::try_from(number).ok())
}
