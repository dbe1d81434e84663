//! Finds the modules of a process, and the files they come from.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use membound_rewrite::image::{self, Identity};
use memmap2::Mmap;

use super::later::TextBudget;
use super::{Bytes, Loaded, ModulePlan, Plans};
use crate::elf::{self, Headers};
use crate::identities::{self, FileKey};
use crate::maps::Mapping;

/// A file that a process has mapped: its name, and the mappings of its text.
struct MappedFile<'a> {
    name: &'a OsStr,
    maps: Vec<&'a Mapping>,
}

impl Plans {
    /// The modules of a process that can be inspected, in the order of addresses; `pid` is used to open
    /// files by paths that only that process sees. Files are planned in parallel.
    pub(crate) fn loaded(
        self: &Arc<Self>,
        pid: u32,
        maps: &[Mapping],
        agent: &Range<u64>,
    ) -> Vec<Loaded> {
        let files = mapped_files(maps, agent);
        let modules = self.modules(pid, &files);
        let mut loaded: Vec<Loaded> = Vec::new();
        for (module, file) in modules.into_iter().zip(files) {
            let Some(module) = module.into_inner() else {
                continue;
            };
            for map in file.maps {
                let Some(bias) = module.headers.bias(map) else {
                    continue;
                };
                let here = Loaded {
                    module: Arc::clone(&module),
                    bias,
                };
                let known = loaded
                    .iter()
                    .any(|other| Arc::ptr_eq(&other.module, &module) && other.bias == bias);
                if !known && !exposed(maps, &here.span()) {
                    loaded.push(here);
                }
            }
        }
        loaded
    }

    /// The module of each file; none where the file cannot be inspected, or is planned later.
    ///
    /// Threads are started for new files only: a program that opens and closes objects all the time comes here each
    /// time. Some programs load two hundred files, and starting a thread takes as long as reading a stored plan.
    fn modules(
        self: &Arc<Self>,
        pid: u32,
        files: &[MappedFile<'_>],
    ) -> Vec<OnceLock<Arc<ModulePlan>>> {
        let known = |file: &MappedFile<'_>| self.known(pid, file.name, file.maps[0]);
        let modules: Vec<OnceLock<Arc<ModulePlan>>> = files
            .iter()
            .map(|file| known(file).map_or_else(OnceLock::new, OnceLock::from))
            .collect();
        let indices: Vec<usize> = (0..files.len()).collect();
        let new: Vec<usize> = in_order_of_loading(&indices)
            .copied()
            .filter(|index| modules[*index].get().is_none())
            .collect();
        let next = AtomicUsize::new(0);
        let budget = self.text_budget();
        let open = || {
            while let Some(&index) = new.get(next.fetch_add(1, Ordering::Relaxed)) {
                let file = &files[index];
                if let Some(module) = self.open(pid, file.name, file.maps[0], &budget) {
                    let _ = modules[index].set(module);
                }
            }
        };
        // The number of processors comes from files of the control group.
        let helpers = match new.len() {
            0 | 1 => 0,
            count => {
                std::thread::available_parallelism().map_or(0, |cpus| count.min(cpus.get()) - 1)
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(open);
            }
            open();
        });
        modules
    }

    /// The file behind `map`, if it was planned before.
    fn known(&self, pid: u32, name: &OsStr, map: &Mapping) -> Option<Arc<ModulePlan>> {
        places(pid, name)?.into_iter().find_map(|place| {
            let found = fs::metadata(place).ok()?;
            if found.ino() != map.inode {
                return None;
            }
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&FileKey::of(&found))?.get().cloned()
        })
    }

    /// The file behind `map`, if it is still the one that was mapped.
    fn open(
        self: &Arc<Self>,
        pid: u32,
        name: &OsStr,
        map: &Mapping,
        budget: &TextBudget,
    ) -> Option<Arc<ModulePlan>> {
        places(pid, name)?.into_iter().find_map(|place| {
            let file = File::open(place).ok()?;
            // Only the inode: some file systems show another device number here than in `maps`.
            if file.metadata().ok()?.ino() != map.inode {
                return None;
            }
            self.of(Path::new(name), &file, budget).ok().flatten()
        })
    }

    /// The file with its plan; waits for a plan that is being made. `None` if it is no ELF file, or if it
    /// is planned later.
    fn of(
        self: &Arc<Self>,
        path: &Path,
        file: &File,
        budget: &TextBudget,
    ) -> io::Result<Option<Arc<ModulePlan>>> {
        let found = file.metadata()?;
        let key = FileKey::of(&found);
        if found.len() == 0 || !found.is_file() {
            return Ok(None);
        }
        let bytes = elf::map_open_file(file)?;
        let Some(headers) = Headers::parse(&bytes) else {
            return Ok(None);
        };
        let slot = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(key).or_default())
        };
        if let Some(module) = slot.get() {
            return Ok(Some(Arc::clone(module)));
        }
        let known = identities::at_once(&key, &bytes, self.cache.as_ref());
        if self.is_for_later(path, &headers, &known, budget) {
            let known = known.ok().flatten();
            self.plan_later((key, slot), path.to_owned(), headers, bytes, known);
            return Ok(None);
        }
        let module = slot.get_or_init(|| {
            let compute = || identities::compute(&key, &bytes, self.cache.as_ref());
            let identity = known.and_then(|known| known.map_or_else(compute, Ok));
            self.module(path, headers, bytes, identity, false)
        });
        Ok(Some(Arc::clone(module)))
    }

    pub(super) fn module(
        &self,
        path: &Path,
        headers: Headers,
        bytes: Mmap,
        identity: Result<Identity, image::Error>,
        late: bool,
    ) -> Arc<ModulePlan> {
        let file = Arc::new(Bytes::File(bytes));
        let planned = self.plan(path, &file, identity);
        let identity = planned.identity;
        let around = identity.as_ref().map_or(&[][..], |it| self.around_in(it));
        let module = ModulePlan {
            late,
            around: around.to_vec(),
            ..ModulePlan::new(path.to_owned(), headers, file, identity, planned.plan)
        };
        // Of the many small files few are asked about again.
        Arc::new(match late {
            true => ModulePlan {
                image: planned.image,
                outline: planned.outline,
                ..module
            },
            false => module,
        })
    }
}

/// The files whose text a process has mapped, the agent's own left out.
fn mapped_files<'a>(maps: &'a [Mapping], agent: &Range<u64>) -> Vec<MappedFile<'a>> {
    let mut files: Vec<MappedFile<'a>> = Vec::new();
    for map in maps {
        if !map.executable || !map.file() || agent.contains(&map.range.start) {
            continue;
        }
        let is_same =
            |file: &&mut MappedFile<'_>| file.maps[0].inode == map.inode && file.name == map.name;
        match files.iter_mut().find(is_same) {
            Some(file) => file.maps.push(map),
            None => files.push(MappedFile {
                name: &map.name,
                maps: vec![map],
            }),
        }
    }
    files
}

/// What is `by_address` in a process, in the order in which its parts were mapped: the executable is at the lowest
/// addresses, and the loader maps each library below those before it.
pub(crate) fn in_order_of_loading<T>(by_address: &[T]) -> impl Iterator<Item = &T> {
    let libraries = by_address.get(1..).unwrap_or_default();
    by_address.first().into_iter().chain(libraries.iter().rev())
}

/// Paths of a file that a process calls `name`: in the process's root directory, and in this process's.
fn places(pid: u32, name: &OsStr) -> Option<[PathBuf; 2]> {
    let path = Path::new(name);
    let inside = Path::new("/proc").join(pid.to_string()).join("root");
    Some([inside.join(path.strip_prefix("/").ok()?), path.to_owned()])
}

/// True if any text in `span` is writable or shared.
fn exposed(maps: &[Mapping], span: &Range<u64>) -> bool {
    maps.iter()
        .any(|map| map.exposes_text() && map.range.start < span.end && span.start < map.range.end)
}
