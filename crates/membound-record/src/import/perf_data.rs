//! Imports a perf.data file.

use std::ffi::OsString;
use std::mem::take;
use std::sync::Arc;

use membound_import::{
    About, Context, Event, Mode, PerfData, Record, Sample as PerfSample, Sampler, Step, chain,
};
use membound_launch::Registers;
use membound_run::{Frame, FrameId, Meta, ModuleKind, ProcessId, Sample, StackId, ThreadId};
use rustc_hash::FxHashMap;

use super::identity::{Identities, Verdict};
use super::images::{CodeMap, number};
use super::leaves::{self, Leaf, LeafSample};
use super::rate::Timer;
use super::{ImportOptions, Imported, Importer, access, cpu};
use crate::Error;
use crate::modules::CodeModule;
use crate::perf::RegisterSet;
use crate::sampling::word;
use crate::space::Space;

/// Samples that wait at most until their accessed addresses are computed.
const MAX_WAITING: usize = 500_000;

/// Writes a run with the contents of a recording.
///
/// # Errors
/// When the run file cannot be written.
pub fn perf_data(data: &PerfData<'_>, options: ImportOptions) -> Result<Imported, Error> {
    let timer = Timer::of(data);
    let meta = meta(data, &options, &timer);
    let mut importer = Importer::begin(options, meta)?;
    importer.name_frames()?;
    let mut reader = Reader {
        identities: Identities::of(data.about()),
        is_own_code: is_own_architecture(data.about()),
        base_ns: data.first_ns().unwrap_or(0),
        last_ns: 0,
        left_out: vec![0; data.events().len()],
        idle: 0,
        files: FxHashMap::default(),
        chain: Vec::new(),
        leaves: Vec::new(),
        leaf_of: FxHashMap::default(),
        waiting: Vec::new(),
        importer,
        timer,
    };
    for record in data.records() {
        reader.record(&record, data);
    }
    reader.end(data)
}

/// True if the recorded code is of this machine's architecture, so that its registers and unwinding are
/// understood.
fn is_own_architecture(about: &About) -> bool {
    let recorded = about.architecture.as_deref();
    recorded.is_none_or(|it| it == std::env::consts::ARCH)
}

fn meta(data: &PerfData<'_>, options: &ImportOptions, timer: &Timer) -> Meta {
    let about = data.about();
    let periods = timer.events.iter().map(|event| &data.events()[*event]);
    let period = periods.filter_map(|event| event.period).next();
    let mut cpu_nodes: Vec<u16> = Vec::new();
    for (node, cpus) in &about.nodes {
        for at in cpus {
            let at = *at as usize;
            cpu_nodes.resize(cpu_nodes.len().max(at + 1), 0);
            cpu_nodes[at] = u16::try_from(*node).unwrap_or(u16::MAX);
        }
    }
    let names: Vec<&str> = data.events().iter().map(|it| it.name.as_str()).collect();
    let source = match &about.perf_version {
        Some(version) => format!("perf.data of perf {version}"),
        None => "perf.data".to_owned(),
    };
    Meta {
        command: about.command.clone(),
        host: about.host.clone().unwrap_or_default(),
        date: date(about, data).unwrap_or_else(|| options.date.clone()),
        timer: timer.kind,
        imported: Some(format!("{source}: {}", names.join(", "))),
        period_ns: timer.weight_ns(period),
        site_period: 1,
        cpus: about.cpus.unwrap_or(0),
        nodes: u32::try_from(about.nodes.len()).unwrap_or(0),
        cpu_nodes,
        ..Meta::default()
    }
}

/// Date of the first record, if the recording relates its clock to calendar time.
fn date(about: &About, data: &PerfData<'_>) -> Option<String> {
    let (calendar_ns, clock_ns) = about.clocks?;
    let since_ns = data.first_ns().unwrap_or(0).saturating_sub(clock_ns);
    let seconds = calendar_ns.checked_add(since_ns)? / 1_000_000_000;
    Some(membound_platform::date::utc(seconds))
}

struct Reader {
    importer: Importer,
    identities: Identities,
    is_own_code: bool,
    timer: Timer,
    base_ns: u64,
    last_ns: u64,
    /// Number of samples of each event that are neither time nor an access.
    left_out: Vec<u64>,
    idle: u64,
    /// Modules by name of the file: each is mapped in many processes.
    files: FxHashMap<OsString, Arc<CodeModule>>,
    /// Return addresses; kept so that its memory is reused.
    chain: Vec<u64>,
    /// Sampled instructions that were not decoded yet.
    leaves: Vec<Leaf>,
    /// Index in `leaves` by frame.
    leaf_of: FxHashMap<FrameId, usize>,
    /// Samples whose accessed address may still be found, and all samples after the first of these.
    waiting: Vec<Sample>,
}

/// Module, address in its file, and bias: address in the process minus address in the file.
type CodePlace = (Arc<CodeModule>, u64, u64);

/// Where a sample was taken.
struct SamplePosition {
    thread: ThreadId,
    stack: StackId,
    leaf: FrameId,
    /// The instruction, if it is the program's.
    code: Option<CodePlace>,
}

impl Reader {
    fn since(&mut self, t_ns: Option<u64>) -> u64 {
        let t_ns = t_ns.unwrap_or(0).saturating_sub(self.base_ns);
        self.last_ns = self.last_ns.max(t_ns);
        t_ns
    }

    fn record(&mut self, record: &Record<'_>, data: &PerfData<'_>) {
        match record {
            Record::Sample(sample) => self.sample(sample, data),
            Record::Map(map) => {
                let t_ns = self.since(map.t_ns);
                // Kernel mappings are skipped: all kernel code is one frame.
                if map.is_code && map.pid >= 0 {
                    let code = CodeMap::of(map, t_ns);
                    if let Some(image) = self.importer.images.mapped(map.pid, &code) {
                        self.map(image, &[code]);
                    }
                }
            }
            Record::Comm(comm) => {
                let t_ns = self.since(comm.t_ns);
                if comm.is_exec {
                    self.importer.images.executed(comm.pid, t_ns);
                }
                self.importer.images.named(comm.pid, comm.tid, comm.name);
                if let Some(image) = self.importer.images.known(comm.pid) {
                    let threads = &mut self.importer.threads;
                    if let Some(thread) = threads.known(image, number(comm.tid)) {
                        threads.name(thread, comm.name);
                    }
                }
            }
            Record::Fork(fork) => {
                let t_ns = self.since(fork.t_ns);
                let images = &mut self.importer.images;
                images.forked(fork.pid, fork.tid, fork.parent_pid, t_ns);
            }
            Record::Exit(exit) => {
                let t_ns = self.since(exit.t_ns);
                self.importer.images.exited(exit.pid, t_ns);
                if let Some(image) = self.importer.images.known(exit.pid) {
                    let threads = &mut self.importer.threads;
                    if let Some(thread) = threads.known(image, number(exit.tid)) {
                        threads.end(thread, t_ns);
                    }
                }
            }
        }
    }

    /// Adds code mappings to an image; files are read only if they are the recorded ones.
    fn map(&mut self, image: ProcessId, maps: &[CodeMap]) {
        let mut space = self.importer.images.take_space(image);
        for CodeMap {
            t_ns,
            map,
            build_id,
        } in maps
        {
            let name = map.name.as_encoded_bytes();
            let read = match name {
                b"[vdso]" => self.identities.is_own_kernel(),
                _ if !name.starts_with(b"/") || name.starts_with(b"//") => true,
                _ => self.is_recorded(name, build_id.as_deref(), map.inode),
            };
            let modules = &mut self.importer.modules;
            if read {
                let known = self.files.get(&map.name);
                let known = known.map(|module| (Arc::clone(module), module.bias(map)));
                let (module, bias) = known.unwrap_or_else(|| {
                    let map = membound_launch::Mapping {
                        inode: 0,
                        ..map.clone()
                    };
                    modules.of(0, image, &map)
                });
                if module.kind == ModuleKind::File && !self.files.contains_key(&map.name) {
                    self.files.insert(map.name.clone(), Arc::clone(&module));
                }
                space.map_as(module, bias, map, *t_ns);
            } else {
                space.map_unread(modules, map, *t_ns);
            }
        }
        self.importer.mappings.extend(space.take_fresh());
        self.importer.images.put_space(image, space);
    }

    /// True if the file here is, or may be, the recorded one; otherwise notes the reason as a gap.
    fn is_recorded(&mut self, name: &[u8], build_id: Option<&str>, inode: u64) -> bool {
        let inode = Some(inode).filter(|inode| *inode != 0);
        let gaps = &mut self.importer.gaps;
        let path = String::from_utf8_lossy(name);
        match self.identities.verdict(name, build_id, inode) {
            Verdict::Same => true,
            Verdict::Unproven => {
                let reason = "nothing says whether files here are those that were recorded: names \
                              and lines are those of the files here";
                let remedy = "record with build-ids (without -B and -N)";
                gaps.note("names", reason, Some(remedy));
                true
            }
            Verdict::Other(why) => {
                gaps.note("names", format!("{path} {why}"), None);
                false
            }
            // Reported with the module's names, if it was sampled at all.
            Verdict::Absent => false,
        }
    }

    fn sample(&mut self, sample: &PerfSample<'_>, data: &PerfData<'_>) {
        let t_ns = self.since(sample.t_ns);
        let event = sample.event.and_then(|event| data.events().get(event));
        let is_time = sample
            .event
            .is_some_and(|event| self.timer.events.contains(&event));
        if let Some(found) = &sample.access {
            let at = self.place(sample, t_ns);
            let at = access::At {
                t_ns,
                thread: at.thread,
                cpu: cpu(sample.cpu),
                stack: at.stack,
                period: sample.period.unwrap_or(1),
            };
            let sampler = event.and_then(|event| event.sampler);
            let row = access::row(at, sampler.unwrap_or(Sampler::Other), found);
            self.importer.add_access(row);
        } else if is_time {
            self.time(sample, t_ns);
        } else if let Some(count) = sample.event.and_then(|at| self.left_out.get_mut(at)) {
            *count += 1;
        }
    }

    fn time(&mut self, sample: &PerfSample<'_>, t_ns: u64) {
        // The kernel's idle thread.
        if (sample.pid, sample.tid) == (Some(0), Some(0)) {
            self.idle += 1;
            return;
        }
        let place = self.place(sample, t_ns);
        let registers = self.registers(sample).filter(|_| sample.mode.is_user());
        let row = Sample {
            t_ns,
            thread: place.thread,
            cpu: cpu(sample.cpu),
            stack: place.stack,
            weight_ns: self.timer.weight_ns(sample.period),
            address: None,
            exact: false,
            object: None,
        };
        let waits = registers.is_some() || !self.waiting.is_empty();
        if let Some(code) = place.code {
            self.ask(place.leaf, code, registers);
        }
        if !waits {
            self.importer.add_sample(row);
            return;
        }
        self.waiting.push(row);
        if self.waiting.len() >= MAX_WAITING {
            self.study();
        }
    }

    /// Queues a sampled instruction for decoding and, where its registers are known, the next waiting sample
    /// for its accessed address.
    fn ask(&mut self, frame: FrameId, code: CodePlace, registers: Option<Registers>) {
        if registers.is_none() && self.importer.sites.are_known(frame) {
            return;
        }
        let (module, address, bias) = code;
        let leaves = &mut self.leaves;
        let at = *self.leaf_of.entry(frame).or_insert_with(|| {
            leaves.push(Leaf {
                frame,
                module,
                address,
                samples: Vec::new(),
            });
            leaves.len() - 1
        });
        let samples = registers.map(|registers| LeafSample {
            sample: self.waiting.len(),
            registers,
            bias,
        });
        leaves[at].samples.extend(samples);
    }

    /// Decodes the queued instructions, and completes the waiting samples.
    fn study(&mut self) {
        let leaves = take(&mut self.leaves);
        self.leaf_of.clear();
        let mut samples = take(&mut self.waiting);
        leaves::study(leaves, |function| {
            for (sample, accessed) in &function.accessed {
                samples[*sample].address = Some(accessed.address);
                samples[*sample].exact = accessed.exact;
            }
            self.importer.add_function(function);
        });
        for sample in samples {
            self.importer.add_sample(sample);
        }
    }

    /// Registers of the program, where all are there and mean the same here.
    fn registers(&self, sample: &PerfSample<'_>) -> Option<Registers> {
        let found = sample.registers.filter(|it| it.is_64_bit)?;
        let set = RegisterSet::native().filter(|_| self.is_own_code)?;
        set.by_number(|register| found.get(register))
    }

    fn place(&mut self, sample: &PerfSample<'_>, t_ns: u64) -> SamplePosition {
        let tid = sample.tid.or(sample.pid).unwrap_or(-1);
        let pid = sample
            .pid
            .unwrap_or_else(|| self.importer.images.process_of(tid));
        let (image, maps) = self.importer.images.sampled(pid, t_ns);
        if !maps.is_empty() {
            self.map(image, &maps);
        }
        let thread = self.thread(image, pid, tid, t_ns);
        let registers = self.registers(sample);
        let mut space = self.importer.images.take_space(image);
        let ip = self.user_chain(sample, registers.as_ref(), &mut space);
        let Importer {
            modules, interner, ..
        } = &mut self.importer;
        let mut frames = space.callers(modules, interner, &self.chain, t_ns);
        let mut code = None;
        if let Some(ip) = ip {
            let spot = space.spot(modules, ip, t_ns);
            frames.insert(0, interner.frame(spot.frame));
            code = spot
                .placed
                .filter(|it| it.module.kind != ModuleKind::Agent)
                .map(|it| (it.module, spot.frame.address, it.bias));
        }
        if !is_user(sample) || frames.is_empty() {
            code = None;
            let kernel = modules.special("[kernel]", ModuleKind::Kernel).id;
            frames.insert(
                0,
                interner.frame(Frame {
                    module: Some(kernel),
                    address: 0,
                }),
            );
        }
        let stack = interner.stack(&frames);
        self.importer.images.put_space(image, space);
        SamplePosition {
            thread,
            stack: stack.expect("a chain with a leaf is not empty"),
            leaf: frames[0],
            code,
        }
    }

    fn thread(&mut self, image: ProcessId, pid: i32, tid: i32, t_ns: u64) -> ThreadId {
        let threads = &mut self.importer.threads;
        if let Some(known) = threads.known(image, number(tid)) {
            return known;
        }
        // Of no process that runs here.
        let thread = threads.of(image, 0, number(tid), t_ns);
        if let Some(name) = self.importer.images.name(pid, tid) {
            threads.name(thread, name);
        }
        thread
    }

    /// Puts the program's return addresses into `chain`; returns the address of the instruction that the
    /// program was at, if known.
    fn user_chain(
        &mut self,
        sample: &PerfSample<'_>,
        registers: Option<&Registers>,
        space: &mut Space,
    ) -> Option<u64> {
        self.chain.clear();
        if let Some(words) = &sample.chain {
            let mut context = if is_user(sample) {
                Context::User
            } else {
                Context::Kernel
            };
            for step in chain(words) {
                match step {
                    Step::Enter(entered) => context = entered,
                    // Frame-pointer walks may end with 0.
                    Step::Address(address) if context == Context::User && address != 0 => {
                        self.chain.push(address);
                    }
                    Step::Address(_) => {}
                }
            }
        }
        if self.chain.is_empty()
            && let Some(registers) = registers.filter(|_| !sample.stack.is_empty())
        {
            let bottom = registers.stack_pointer();
            let mut read = |address: u64| word(sample.stack, bottom, address);
            space.unwind(registers, &mut read, &mut self.chain);
            return Some(registers.ip);
        }
        // The first address is no return address but the sampled instruction.
        let from_chain = (!self.chain.is_empty()).then(|| self.chain.remove(0));
        end_outside_code(&mut self.chain, space);
        match (is_user(sample), sample.ip) {
            (true, Some(ip)) => Some(ip),
            _ => from_chain,
        }
    }

    fn end(mut self, data: &PerfData<'_>) -> Result<Imported, Error> {
        self.study();
        self.importer.meta.elapsed_ns = self.last_ns;
        let gaps = &mut self.importer.gaps;
        if let Some(note) = self.timer.note.take() {
            gaps.note("events", note, None);
        }
        for (Event { name, .. }, count) in data.events().iter().zip(&self.left_out) {
            let reason = format!("samples of {name} stand neither for time nor for an access");
            gaps.count("events", &reason, None, *count);
        }
        let reason = "samples of CPUs that had nothing to do";
        gaps.count("events", reason, None, self.idle);
        for skipped in data.skipped() {
            gaps.count("events", &skipped.what, None, skipped.count);
        }
        let lost = data.lost();
        let reason = "perf's rings were full";
        gaps.count(
            "samples",
            reason,
            None,
            lost.records.saturating_add(lost.samples),
        );
        // The importer must own the last references to the modules.
        drop(self.files);
        self.importer.finish()
    }
}

/// Cuts a chain of return addresses before the first that is not in code. The kernel also walks frame
/// pointers of programs that have none: such an address is any number, and those after it are no callers
/// either.
fn end_outside_code(chain: &mut Vec<u64>, space: &Space) {
    if space.is_unknown() {
        return;
    }
    let calls = |address: &&u64| space.placed(address.wrapping_sub(1)).is_some();
    chain.truncate(chain.iter().take_while(calls).count());
}

/// True if the program itself was running, not the kernel.
fn is_user(sample: &PerfSample<'_>) -> bool {
    /// Lowest address of the kernel on 64-bit machines.
    const FIRST: u64 = 1 << 63;
    match sample.mode {
        Mode::Unknown => sample.ip.is_some_and(|ip| ip < FIRST),
        mode => mode.is_user(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{Modules, executable};

    fn mapped(ranges: &[std::ops::Range<u64>]) -> Space {
        let mut space = Space::new(0, ProcessId(0));
        let mut modules = Modules::default();
        for range in ranges {
            let map = executable(range.clone(), "");
            space.map(&mut modules, &map, 0);
        }
        space
    }

    #[track_caller]
    fn check(space: &Space, chain: &[u64], calls: &[u64]) {
        let mut ended = chain.to_vec();
        end_outside_code(&mut ended, space);
        assert_eq!(ended, calls);
    }

    #[test]
    fn a_walk_through_code_without_frame_pointers_ends_where_no_code_is() {
        let space = mapped(&[0x1000..0x2000, 0x7000..0x8000]);
        check(&space, &[0x1500, 0x7500], &[0x1500, 0x7500]);
        // An address after a number that is not in code is no caller, even if it looks like one.
        check(&space, &[0x1500, 0x6ffe_0001, 0x7500], &[0x1500]);
        check(&space, &[5, 0x1500], &[]);
        // A call may be the last instruction of a mapping, and is never before its first.
        check(&space, &[0x2000, 0x1000], &[0x2000]);
        check(&space, &[], &[]);
    }

    #[test]
    fn a_process_of_which_no_mapping_is_known_keeps_its_chains() {
        check(&mapped(&[]), &[0x1500, 5], &[0x1500, 5]);
    }
}
