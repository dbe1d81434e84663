//! Names and lines of frames, and code of functions: with these a run can be read where the program's files
//! are not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::sync::Arc;

use membound_run::{Code, Frame, FrameId, Gap, Location, LoopAround, ModuleId, ModuleKind};
use membound_symbolize::JitMap;

use crate::gaps::Gaps;
use crate::modules::CodeModule;
use crate::replays::CachedLoops;
use crate::sites::Sites;

/// Bytes of one function that are kept, at most.
const FUNCTION_BYTES: u64 = 64 << 10;
/// Bytes of code that are kept in all, at most.
const CODE_BYTES: u64 = 32 << 20;
/// Locations written at once.
const AT_ONCE: usize = 10_000;

/// Frames and their addresses in the module.
pub(crate) type Places = Vec<(FrameId, u64)>;

/// Groups frames by module; frames in no module are left out.
pub(crate) fn by_module(
    frames: Vec<(FrameId, Frame)>,
    modules: &[Arc<CodeModule>],
) -> Vec<(Arc<CodeModule>, Places)> {
    let mut of_module: BTreeMap<Option<ModuleId>, Places> = BTreeMap::new();
    for (number, Frame { module, address }) in frames {
        of_module.entry(module).or_default().push((number, address));
    }
    of_module
        .into_iter()
        .filter_map(|(id, frames)| Some((Arc::clone(modules.get(id?.index())?), frames)))
        .collect()
}

/// Passes functions and lines of a module's frames to `put`, in batches. `pid` gives the process of code that
/// was made at run time.
pub(crate) fn locate(
    module: &CodeModule,
    frames: &[(FrameId, u64)],
    pid: impl FnOnce() -> Option<u32>,
    gaps: &mut Gaps,
    put: &mut dyn FnMut(Vec<Location>),
) {
    let mut locations = Vec::new();
    match module.kind {
        ModuleKind::File | ModuleKind::Vdso => {
            let Some(symbols) = module.symbols() else {
                let reason = format!("{} could not be read any more", module.path);
                gaps.note("names", reason, None);
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
                    put(std::mem::take(&mut locations));
                }
            }
            for note in symbols.notes() {
                gaps.note("names", note, None);
            }
        }
        ModuleKind::Jit => locations = pid().map_or_else(Vec::new, |pid| jit(pid, frames, gaps)),
        ModuleKind::Agent | ModuleKind::Kernel => {
            locations.extend(frames.iter().map(|(frame, _)| Location {
                function: module.path.clone(),
                ..nameless(*frame)
            }));
        }
    }
    put(locations);
}

/// Finds names in the map that a JIT compiler writes for perf.
fn jit(pid: u32, frames: &[(FrameId, u64)], gaps: &mut Gaps) -> Vec<Location> {
    let Some(map) = jit_map(pid) else {
        let reason =
            format!("process {pid} has made code at run time and left no /tmp/perf-{pid}.map");
        let remedy = "have the program's runtime write that file, as it does for perf";
        gaps.note("names", reason, Some(remedy));
        return Vec::new();
    };
    let damaged = "damaged lines in a map of code made at run time";
    gaps.count("names", damaged, None, map.damaged());
    frames
        .iter()
        .filter_map(|(frame, address)| {
            let entry = map.find(*address)?;
            Some(Location {
                function: entry.name.clone(),
                function_start: Some(entry.start),
                function_size: Some(entry.size),
                ..nameless(*frame)
            })
        })
        .collect()
}

/// The perf map of a process: from the `/tmp` that the process sees, else from this one.
fn jit_map(pid: u32) -> Option<JitMap> {
    let places = [
        format!("/proc/{pid}/root/tmp/perf-{pid}.map"),
        format!("/tmp/perf-{pid}.map"),
    ];
    let file = places.iter().find_map(|path| File::open(path).ok())?;
    JitMap::read(BufReader::new(file)).ok()
}

/// A location without a name.
pub(crate) fn nameless(frame: FrameId) -> Location {
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

/// Notes a gap if a module's code was needed and could not be decoded.
pub(crate) fn note_unattributed(module: &CodeModule, gaps: &mut Gaps) {
    if let (ModuleKind::File | ModuleKind::Vdso, Some(why)) = (module.kind, module.why_no_code()) {
        let reason = format!("{}: {why}", module.path);
        gaps.note(Gap::UNSEEN_CODE, reason, None);
    }
}

/// The sampled instructions and sites, by ascending module and address, with their frames.
pub(crate) fn met(
    sites: &Sites,
    mut intern: impl FnMut(Frame) -> FrameId,
) -> Vec<(FrameId, ModuleId, u64)> {
    let mut met: Vec<(ModuleId, u64)> = sites.met().collect();
    met.sort_unstable();
    met.dedup();
    let met = met.into_iter().map(|(id, address)| {
        let frame = intern(Frame {
            module: Some(id),
            address,
        });
        (frame, id, address)
    });
    met.collect()
}

/// Rows of loops around instructions; for `met` see [`met`], for `cached_loops` [`crate::replays`].
pub(crate) fn loops(
    met: &[(FrameId, ModuleId, u64)],
    modules: &[Arc<CodeModule>],
    cached_loops: &CachedLoops,
) -> Vec<LoopAround> {
    let mut rows = Vec::new();
    for (frame, id, address) in met {
        let code = modules.get(id.index()).and_then(|module| module.code());
        let around = code.map(|code| code.loop_starts(*address));
        let around = loop_rows(*frame, around.unwrap_or_default());
        rows.extend(around.map(|row| {
            let cached = cached_loops.get(&(*id, row.start));
            LoopAround {
                cached_ns: cached.map(|it| it.ns),
                cached_least_ns: cached.map(|it| it.least_ns),
                cached_most_ns: cached.map(|it| it.most_ns),
                ..row
            }
        }));
    }
    rows
}

/// Rows of the loops around an instruction, which begin at `starts`, innermost first.
pub(crate) fn loop_rows(frame: FrameId, starts: Vec<u64>) -> impl Iterator<Item = LoopAround> {
    (0..).zip(starts).map(move |(level, start)| LoopAround {
        frame,
        level,
        start,
        cached_ns: None,
        cached_least_ns: None,
        cached_most_ns: None,
    })
}

/// Functions: module and first address, and length in bytes.
pub(crate) type Functions = BTreeMap<(ModuleId, u64), u64>;

/// Functions that were sampled or contain sites.
pub(crate) fn functions(sites: &Sites, modules: &[Arc<CodeModule>]) -> Functions {
    let mut functions = Functions::new();
    let mut sampled: Vec<(ModuleId, u64)> = sites.sampled().collect();
    sampled.sort_unstable();
    let mut last: Option<(ModuleId, Range<u64>)> = None;
    for (id, address) in sampled {
        if last
            .as_ref()
            .is_some_and(|(of, range)| *of == id && range.contains(&address))
        {
            continue;
        }
        // The bounds found by decoding, which may differ from those of symbols.
        let code = modules.get(id.index()).and_then(|module| module.code());
        if let Some(range) = code.and_then(|code| code.function(address)) {
            functions.insert((id, range.start), range.end - range.start);
            last = Some((id, range));
        }
    }
    functions
}

/// Rows of the functions' bytes, as far as they fit the limits.
pub(crate) fn code(functions: &Functions, modules: &[Arc<CodeModule>]) -> Vec<Code> {
    let mut rows = Vec::new();
    let mut left = CODE_BYTES;
    for (&(module, address), &length) in functions {
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
    rows
}
