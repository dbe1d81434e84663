//! Names of trampolines for perf.
//!
//! perf finds no file behind the code of a trampoline. For such code it reads `/tmp/perf-PID.map` (lines of
//! start, size and name) when it makes its report, which may be long after the process has ended. So the
//! files are not deleted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use membound_rewrite::image::FunctionBounds;
use membound_rewrite::patch::IslandPage;
use membound_wire::{TableHeader, TextEdit, TrampolineEntry};

use crate::area::Area;
use crate::modules::ModulePlan;

/// Largest distance between original addresses in one line: an instruction's length.
const FARTHEST: u32 = 15;
/// Opcode of a jump on a page of islands.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;

/// A file of names, with the result of writing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfMap {
    /// Path where perf looks for it.
    pub path: PathBuf,
    /// The system's error, if it was not written.
    pub written: Result<(), String>,
}

/// The files of a session.
#[derive(Debug)]
pub(crate) struct PerfMaps {
    directory: PathBuf,
    /// By process number.
    files: BTreeMap<u32, File>,
    /// The functions of known modules: reading them takes time.
    functions: Vec<(Arc<ModulePlan>, Arc<[FunctionBounds]>)>,
}

#[derive(Debug)]
struct File {
    map: PerfMap,
    /// Inode and length of the file that was written: the program may write such a file itself.
    ours: Option<(u64, u64)>,
}

/// Whether a process has just started another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It has: an existing file describes an earlier program.
    Start,
    /// It has not.
    Later,
}

impl PerfMaps {
    pub(crate) const fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            files: BTreeMap::new(),
            functions: Vec::new(),
        }
    }

    /// Writes the file of the process `pid` (in its own namespace) with the names of `areas`.
    pub(crate) fn write(&mut self, pid: u32, areas: &[Arc<Area>], moment: Moment) {
        let path = self.directory.join(format!("perf-{pid}.map"));
        let before = self.files.get(&pid).and_then(|file| file.ours);
        let foreign = moment == Moment::Later
            && before.is_some_and(|ours| identity(&path).is_ok_and(|found| found != ours));
        let written = if foreign {
            Err("the program writes it itself".to_owned())
        } else {
            replace(&path, self.text(areas).as_bytes()).map_err(|error| error.to_string())
        };
        let ours = match &written {
            Ok(()) => identity(&path).ok(),
            Err(_) => before,
        };
        let map = PerfMap { path, written };
        self.files.insert(pid, File { map, ours });
    }

    fn text(&mut self, areas: &[Arc<Area>]) -> String {
        let mut text = String::new();
        for area in areas {
            let module = &area.loaded.module;
            let placed = module.plan.as_ref().ok();
            let Some(placed) = placed.and_then(|plan| area.place(plan).ok()) else {
                continue;
            };
            let name = module.path.file_name().unwrap_or(module.path.as_os_str());
            let names = Names {
                functions: &self.functions(module),
                bias: area.loaded.bias,
                module: name.to_string_lossy().into_owned(),
            };
            let placed = InPlace {
                base: placed.base,
                code: area.code(),
                tables: &placed.tables,
                edits: &placed.edits,
                islands: &placed.islands,
            };
            for line in lines(&placed, &names) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{:x} {:x} {}", line.start, line.bytes, line.name);
            }
        }
        text
    }

    fn functions(&mut self, module: &Arc<ModulePlan>) -> Arc<[FunctionBounds]> {
        let mut known = self.functions.iter();
        let known = known.find(|(of, _)| Arc::ptr_eq(of, module));
        if let Some((_, functions)) = known {
            return Arc::clone(functions);
        }
        let functions: Arc<[FunctionBounds]> = module.functions().into();
        let found = (Arc::clone(module), Arc::clone(&functions));
        self.functions.push(found);
        functions
    }

    /// The results of all files, by process number.
    pub(crate) fn all(&self) -> Vec<PerfMap> {
        self.files.values().map(|file| file.map.clone()).collect()
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.ino(), found.len()))
}

/// Replaces any existing file: all users may write to that directory, and a link there is not followed.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new()
        .prefix(".membound-perf-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The data of a module's trampolines that names are made from.
struct InPlace<'a> {
    /// Address that offsets in the tables are relative to.
    base: u64,
    code: &'a Range<u64>,
    tables: &'a [u8],
    edits: &'a [TextEdit],
    islands: &'a [IslandPage],
}

/// Names of addresses of a module.
struct Names<'a> {
    /// Sorted by address.
    functions: &'a [FunctionBounds],
    bias: u64,
    module: String,
}

impl Names<'_> {
    /// Index of the function at an address of the process.
    fn function(&self, address: u64) -> Option<usize> {
        let address = address.wrapping_sub(self.bias);
        let after = self
            .functions
            .partition_point(|function| function.range.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.functions[index].range.end).then_some(index)
    }

    fn name(&self, address: u64) -> String {
        let inside = self.function(address).map(|index| {
            let function = &self.functions[index];
            (
                function,
                address.wrapping_sub(self.bias) - function.range.start,
            )
        });
        let module = &self.module;
        match inside {
            Some((function, offset)) => match &function.name {
                Some(name) => format!("{name}+{offset:#x} [membound {module}]"),
                None => format!(
                    "{:#x}+{offset:#x} [membound {module}]",
                    function.range.start
                ),
            },
            None => format!("{:#x} [membound {module}]", address.wrapping_sub(self.bias)),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    start: u64,
    bytes: u64,
    name: String,
}

/// The lines: one for each trampoline, for its rarely executed part, and for each island.
fn lines(placed: &InPlace<'_>, names: &Names<'_>) -> Vec<Line> {
    let mut entries: Vec<u64> = placed.edits.iter().map(|edit| edit.target).collect();
    entries.sort_unstable();
    let mut lines: Vec<Line> = Vec::new();
    let mut last: Option<(u32, Option<usize>)> = None;
    for place in places(placed.tables) {
        let start = placed.code.start + u64::from(place.code);
        let address = placed.base.wrapping_add(u64::from(place.original));
        let function = names.function(address);
        let goes_on = last.is_some_and(|(original, of)| {
            let distance = place.original.checked_sub(original);
            of == function && distance.is_some_and(|distance| distance <= FARTHEST)
        });
        last = Some((place.original, function));
        if goes_on && entries.binary_search(&start).is_err() {
            continue;
        }
        end_at(&mut lines, start);
        lines.push(Line {
            start,
            bytes: 0,
            name: names.name(address),
        });
    }
    end_at(&mut lines, placed.code.end);
    lines.retain(|line| line.bytes > 0);
    let originals: BTreeMap<u64, u64> = placed
        .edits
        .iter()
        .map(|edit| (edit.target, edit.address))
        .collect();
    for page in placed.islands {
        for (at, target) in jumps(page.address, &page.bytes) {
            if let Some(address) = originals.get(&target) {
                lines.push(Line {
                    start: at,
                    bytes: JUMP_BYTES as u64,
                    name: names.name(*address),
                });
            }
        }
    }
    lines
}

/// The places of a module's tables, in the order of their code.
fn places(tables: &[u8]) -> impl Iterator<Item = TrampolineEntry> + '_ {
    let number = |offset: usize| {
        let field = tables.get(offset..).and_then(<[u8]>::first_chunk);
        let number = field.copied().map_or(0, u64::from_ne_bytes);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let start = number(offset_of!(TableHeader, places_offset));
    let count = number(offset_of!(TableHeader, places));
    let records = tables.get(start..).unwrap_or_default();
    let records = records
        .chunks_exact(size_of::<TrampolineEntry>())
        .take(count);
    records.map(|record| {
        let field = |offset: usize| {
            let field = record.get(offset..).and_then(<[u8]>::first_chunk);
            field.copied().map_or(0, u32::from_ne_bytes)
        };
        TrampolineEntry {
            code: field(offset_of!(TrampolineEntry, code)),
            original: field(offset_of!(TrampolineEntry, original)),
            shape: field(offset_of!(TrampolineEntry, shape)),
        }
    })
}

fn end_at(lines: &mut [Line], end: u64) {
    if let Some(last) = lines.last_mut() {
        last.bytes = end.saturating_sub(last.start);
    }
}

/// Addresses and targets of the jumps on a page of islands at `address`. No byte between them equals the
/// opcode of a jump.
fn jumps(address: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(jump) = bytes.get(at..at + JUMP_BYTES) {
        if jump[0] != JUMP {
            at += 1;
            continue;
        }
        let distance = i32::from_le_bytes([jump[1], jump[2], jump[3], jump[4]]);
        let start = address + at as u64;
        let target = (start + JUMP_BYTES as u64).wrapping_add_signed(i64::from(distance));
        found.push((start, target));
        at += JUMP_BYTES;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(range: Range<u64>, name: Option<&str>) -> FunctionBounds {
        FunctionBounds {
            range,
            name: name.map(Into::into),
            exported: false,
            assembly: false,
        }
    }

    /// Tables with these places as (code, original).
    fn tables(places: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<TableHeader>()];
        let offset = bytes.len() as u64;
        bytes[..8].copy_from_slice(&offset.to_ne_bytes());
        bytes[8..16].copy_from_slice(&(places.len() as u64).to_ne_bytes());
        for (code, original) in places {
            for word in [*code, *original, 0] {
                bytes.extend(word.to_ne_bytes());
            }
        }
        // Any bytes behind the places.
        bytes.extend([7; 40]);
        bytes
    }

    fn edit(address: u64, target: u64) -> TextEdit {
        TextEdit {
            address,
            target,
            ..TextEdit::default()
        }
    }

    #[test]
    fn trampolines_and_islands_are_named_after_what_they_displace() {
        let functions = [
            function(0x1000..0x1100, Some("one")),
            function(0x1100..0x1180, None),
        ];
        let names = Names {
            functions: &functions,
            bias: 0x50_0000,
            module: "m".to_owned(),
        };
        let mut page = vec![0xcc; 4096];
        // From 0x70_0010 to 0x60_0028, with a jump's code in its displacement.
        page[0x10..0x15].copy_from_slice(&[0xe9, 0x13, 0x00, 0xf0, 0xff]);
        let placed = InPlace {
            base: 0x50_0000,
            code: &(0x60_0000..0x60_1000),
            // The rest of the second trampoline precedes it; the third one's originals directly follow
            // those of the second.
            tables: &tables(&[
                (0, 0x1010),
                (8, 0x1014),
                (0x20, 0x1042),
                (0x28, 0x1040),
                (0x30, 0x1042),
                (0x38, 0x1046),
                (0x40, 0x1104),
                (0x48, 0x2000),
            ]),
            edits: &[
                edit(0x50_1010, 0x60_0000),
                edit(0x50_1040, 0x60_0028),
                edit(0x50_1046, 0x60_0038),
                edit(0x50_1104, 0x60_0040),
            ],
            islands: &[IslandPage {
                address: 0x70_0000,
                bytes: page,
                edits: vec![1],
            }],
        };
        let lines = lines(&placed, &names);
        let parsed: Vec<(u64, u64, &str)> = lines
            .iter()
            .map(|line| (line.start, line.bytes, line.name.as_str()))
            .collect();
        assert_eq!(
            parsed,
            [
                (0x60_0000, 0x20, "one+0x10 [membound m]"),
                (0x60_0020, 8, "one+0x42 [membound m]"),
                (0x60_0028, 0x10, "one+0x40 [membound m]"),
                (0x60_0038, 8, "one+0x46 [membound m]"),
                (0x60_0040, 8, "0x1100+0x4 [membound m]"),
                (0x60_0048, 0xfb8, "0x2000 [membound m]"),
                (0x70_0010, 5, "one+0x40 [membound m]"),
            ]
        );
    }

    #[test]
    fn a_file_of_the_programs_own_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut maps = PerfMaps::new(directory.path().to_owned());
        let path = directory.path().join("perf-7.map");
        let precious = directory.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        maps.write(7, &[], Moment::Start);
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        maps.write(7, &[], Moment::Later);
        assert_eq!(maps.all()[0].written, Ok(()));
        fs::write(&path, "1000 10 compiled by the program\n").unwrap();
        maps.write(7, &[], Moment::Later);
        assert!(maps.all()[0].written.is_err());
        maps.write(7, &[], Moment::Later);
        assert!(fs::read_to_string(&path).unwrap().contains("compiled"));
        maps.write(7, &[], Moment::Start);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let elsewhere = directory.path().join("nowhere");
        let mut maps = PerfMaps::new(elsewhere);
        maps.write(7, &[], Moment::Start);
        assert!(maps.all()[0].written.is_err());
    }
}
