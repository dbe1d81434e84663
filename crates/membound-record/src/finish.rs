//! What is added to a run at its end: names and lines, code, totals. With them the run can
//! be read where the program's files are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use membound_run::{Code, Frame, FrameId, Gap, Location, LoopAround, ModuleId, ModuleKind};
use membound_symbolize::JitMap;

use crate::driver::Driver;
use crate::modules::Module;

/// Bytes of one function that are kept.
const FUNCTION_BYTES: u64 = 64 << 10;
/// Bytes of code that are kept.
const CODE_BYTES: u64 = 32 << 20;
/// Locations in one transaction.
const AT_ONCE: usize = 10_000;

impl Driver {
    /// Adds names, code and totals to the file.
    pub(crate) fn complete(&mut self) {
        let (frames, modules) = {
            let world = crate::lock(&self.world);
            (world.interner.frames(), world.modules.all().to_vec())
        };
        let mut of_module: BTreeMap<Option<ModuleId>, Vec<(FrameId, u64)>> = BTreeMap::new();
        for (number, Frame { module, address }) in frames {
            of_module.entry(module).or_default().push((number, address));
        }
        for (id, frames) in of_module {
            let module = id.and_then(|id| modules.get(id.index()));
            if let Some(module) = module {
                self.name(module, &frames);
            }
        }
        self.code();
        self.loops();
        for module in &modules {
            if let (ModuleKind::File | ModuleKind::Vdso, Some(why)) =
                (module.kind, module.why_no_code())
            {
                let reason = format!("{}: {why}", module.path);
                self.gaps.note(Gap::UNSEEN_CODE, reason, None);
            }
            let row = module.row();
            self.file.put(|writer| writer.modules(module.id, &[row]));
        }
        let totals = self.objects.totals();
        self.file.put(|writer| writer.allocations(&totals));
        let live = self.objects.live();
        self.file.put(|writer| writer.live(&live));
        let counted = self.sites.take_changed();
        for (site, row) in counted {
            self.file.put(|writer| writer.sites(site, &[row]));
        }
    }

    /// Reads symbols and debug information of the modules that were sampled, in idle time: at the end
    /// the user would wait for it.
    pub(crate) fn read_names(&self) {
        let modules = crate::lock(&self.world).modules.all().to_vec();
        let mut seen = BTreeSet::new();
        let mut sampled: Vec<(Arc<Module>, u64)> = Vec::new();
        for Frame { module, address } in self.sites.sampled() {
            if let Some(module) = module.filter(|id| seen.insert(*id))
                && let Some(module) = modules.get(module.index())
                && module.kind == ModuleKind::File
            {
                sampled.push((Arc::clone(module), address));
            }
        }
        membound_launch::spawn_idle("names", move || {
            for (module, address) in sampled {
                if let Some(symbols) = module.symbols() {
                    let _ = symbols.locate(address);
                }
            }
        });
    }

    /// Adds functions and lines of a module's frames.
    fn name(&mut self, module: &Arc<Module>, frames: &[(FrameId, u64)]) {
        let mut locations = Vec::new();
        match module.kind {
            ModuleKind::File | ModuleKind::Vdso => {
                let Some(symbols) = module.symbols() else {
                    let reason = format!("{} could not be read any more", module.path);
                    self.gaps.note("names", reason, None);
                    return;
                };
                for (frame, address) in frames {
                    let places = symbols.locate(*address).into_iter().zip(0..);
                    locations.extend(places.map(|(place, depth)| Location {
                        frame: *frame,
                        depth,
                        function: place.function,
                        function_start: place.function_start,
                        function_size: place.function_size,
                        file: place.file,
                        line: place.line,
                        column: place.column,
                    }));
                    if locations.len() >= AT_ONCE {
                        self.file.put(|writer| writer.locations(&locations));
                        locations.clear();
                    }
                }
                for note in symbols.notes() {
                    self.gaps.note("names", note, None);
                }
            }
            ModuleKind::Jit => self.name_made_at_run_time(module, frames, &mut locations),
            ModuleKind::Agent | ModuleKind::Kernel => {
                locations.extend(frames.iter().map(|(frame, _)| Location {
                    function: module.path.clone(),
                    ..nameless(*frame)
                }));
            }
        }
        self.file.put(|writer| writer.locations(&locations));
    }

    /// Looks names up in the maps that compilers at run time leave for perf.
    fn name_made_at_run_time(
        &mut self,
        module: &Arc<Module>,
        frames: &[(FrameId, u64)],
        locations: &mut Vec<Location>,
    ) {
        let pid = {
            let world = crate::lock(&self.world);
            world
                .modules
                .process_of(module.id)
                .map(|process| world.row(process).pid)
        };
        let Some(pid) = pid else { return };
        let Some(map) = jit_map(pid) else {
            let reason =
                format!("process {pid} has made code at run time and left no /tmp/perf-{pid}.map");
            let remedy = "have the program's runtime write that file, as it does for perf";
            self.gaps.note("names", reason, Some(remedy));
            return;
        };
        let damaged = "damaged lines in a map of code made at run time";
        self.gaps.count("names", damaged, None, map.damaged());
        locations.extend(frames.iter().filter_map(|(frame, address)| {
            let entry = map.find(*address)?;
            Some(Location {
                function: entry.name.clone(),
                function_start: Some(entry.start),
                function_size: Some(entry.size),
                ..nameless(*frame)
            })
        }));
    }

    /// Adds the loops around instructions that were sampled or are sites.
    fn loops(&mut self) {
        let modules = crate::lock(&self.world).modules.all().to_vec();
        let met: BTreeSet<(ModuleId, u64)> = self.sites.met().collect();
        let mut rows = Vec::new();
        for (id, address) in met {
            let code = modules.get(id.index()).and_then(|module| module.code());
            let around = code.map(|code| code.loops(address)).unwrap_or_default();
            let frame = crate::lock(&self.world).interner.frame(Frame {
                module: Some(id),
                address,
            });
            rows.extend(around.iter().zip(0..).map(|(it, level)| LoopAround {
                frame,
                level,
                start: it.start,
            }));
        }
        self.file.put(|writer| writer.loops(&rows));
    }

    /// Adds the code of functions that were sampled or have sites.
    fn code(&mut self) {
        let mut functions: BTreeMap<(ModuleId, u64), u64> = BTreeMap::new();
        let mut read: BTreeSet<(ModuleId, u64)> = BTreeSet::new();
        let leaves = self.sites.sampled();
        let modules = crate::lock(&self.world).modules.all().to_vec();
        for Frame { module, address } in leaves {
            let Some(module) = module.and_then(|id| modules.get(id.index())) else {
                continue;
            };
            if !read.insert((module.id, address)) {
                continue;
            }
            // Decoded as this function, whatever symbols say.
            let range = module.code().and_then(|code| code.function(address));
            if let Some(range) = range {
                functions.insert((module.id, range.start), range.end - range.start);
            }
        }
        let mut rows = Vec::new();
        let mut left = CODE_BYTES;
        for ((module, address), length) in functions {
            let length = length.min(FUNCTION_BYTES);
            let bytes = modules
                .get(module.index())
                .and_then(|it| it.bytes_at(address, length));
            let Some(bytes) = bytes.filter(|bytes| bytes.len() as u64 <= left) else {
                continue;
            };
            left -= bytes.len() as u64;
            rows.push(Code {
                module,
                address,
                bytes: bytes.to_vec(),
            });
        }
        self.file.put(|writer| writer.code(&rows));
    }
}

fn nameless(frame: FrameId) -> Location {
    Location {
        frame,
        depth: 0,
        function: String::new(),
        function_start: None,
        function_size: None,
        file: None,
        line: None,
        column: None,
    }
}

/// The map of code made at run time: as the process sees `/tmp`, or as we do.
fn jit_map(pid: u32) -> Option<JitMap> {
    let places = [
        format!("/proc/{pid}/root/tmp/perf-{pid}.map"),
        format!("/tmp/perf-{pid}.map"),
    ];
    let file = places.iter().find_map(|path| File::open(path).ok())?;
    JitMap::read(BufReader::new(file)).ok()
}
