//! Processes of a recording: their mappings, and the names of their threads.
//!
//! A recording of a whole machine names every process. Processes that were never sampled do not become part
//! of the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use membound_import::Map;
use membound_launch::Mapping;
use membound_run::{Process, ProcessId};
use rustc_hash::FxHashMap;

use crate::space::Space;

/// Mappings kept for one process: as many as the kernel permits.
const MAX_MAPS: usize = 65_530;
/// Mappings copied for forked children at most, in all. Only a file that is made to waste time has more.
const MAX_COPIED: usize = 16 << 20;

/// A mapping of code.
#[derive(Clone, Debug)]
pub(super) struct CodeMap {
    pub(super) t_ns: u64,
    pub(super) map: Mapping,
    pub(super) build_id: Option<String>,
}

impl CodeMap {
    /// Builds one from a record.
    pub(super) fn of(map: &Map<'_>, t_ns: u64) -> Self {
        use std::os::unix::ffi::OsStrExt;
        Self {
            t_ns,
            map: Mapping {
                range: map.start..map.end,
                readable: true,
                writable: false,
                executable: true,
                shared: false,
                offset: map.offset,
                device: (0, 0),
                inode: map.inode.unwrap_or(0),
                name: std::ffi::OsStr::from_bytes(map.name).to_owned(),
            },
            build_id: map.build_id.clone(),
        }
    }

    /// Path of the mapped file; `None` if it is no file.
    fn path(&self) -> Option<String> {
        let name = self.map.name.to_string_lossy();
        name.starts_with('/').then(|| name.into_owned())
    }
}

/// A process, as the recording describes it.
#[derive(Clone, Debug, Default)]
struct DescribedProcess {
    parent: Option<u32>,
    path: String,
    start_ns: u64,
    maps: Arc<Vec<CodeMap>>,
    /// Its image in the run, once it was sampled.
    image: Option<ProcessId>,
}

/// A process of the run.
#[derive(Debug)]
struct Image {
    row: Process,
    space: Option<Box<Space>>,
}

/// All processes of a recording.
#[derive(Debug, Default)]
pub(super) struct Images {
    described: FxHashMap<i32, DescribedProcess>,
    all: Vec<Image>,
    /// Process of each thread.
    process_of: FxHashMap<i32, i32>,
    names: BTreeMap<(i32, i32), Vec<u8>>,
    copied: usize,
}

impl Images {
    /// The rows of all sampled processes.
    pub(super) fn rows(&self) -> Vec<Process> {
        self.all.iter().map(|image| image.row.clone()).collect()
    }

    /// The process of a thread whose sample has no process number.
    pub(super) fn process_of(&self, tid: i32) -> i32 {
        self.process_of.get(&tid).copied().unwrap_or(tid)
    }

    /// The image of a process, if it was sampled.
    pub(super) fn known(&self, pid: i32) -> Option<ProcessId> {
        self.described.get(&pid)?.image
    }

    /// The image of a process. If it is new, also the mappings that must be added to it first.
    pub(super) fn sampled(&mut self, pid: i32, t_ns: u64) -> (ProcessId, Arc<Vec<CodeMap>>) {
        let described = self
            .described
            .entry(pid)
            .or_insert_with(|| DescribedProcess {
                start_ns: t_ns,
                ..DescribedProcess::default()
            });
        if let Some(image) = described.image {
            return (image, Arc::default());
        }
        let image = ProcessId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        described.image = Some(image);
        self.all.push(Image {
            row: Process {
                pid: number(pid),
                parent: described.parent,
                path: described.path.clone(),
                start_ns: described.start_ns.min(t_ns),
                end_ns: None,
                unpatched: None,
            },
            // Not a process that runs on this machine.
            space: Some(Box::new(Space::new(0, image))),
        });
        (image, Arc::clone(&described.maps))
    }

    /// Removes an image's mappings while they are being used; [`Self::put_space`] puts them back.
    pub(super) fn take_space(&mut self, image: ProcessId) -> Box<Space> {
        let found = self.all.get_mut(image.index());
        let space = found.and_then(|image| image.space.take());
        space.unwrap_or_else(|| Box::new(Space::new(0, image)))
    }

    /// Puts an image's mappings back.
    pub(super) fn put_space(&mut self, image: ProcessId, space: Box<Space>) {
        if let Some(image) = self.all.get_mut(image.index()) {
            image.space = Some(space);
        }
    }

    /// Notes a mapping. Returns the image to which it must be added at once, if the process has one.
    pub(super) fn mapped(&mut self, pid: i32, map: &CodeMap) -> Option<ProcessId> {
        let described = self
            .described
            .entry(pid)
            .or_insert_with(|| DescribedProcess {
                start_ns: map.t_ns,
                ..DescribedProcess::default()
            });
        // The first mapped file is the executable.
        if described.path.is_empty() {
            described.path = map.path().unwrap_or_default();
            if let Some(image) = described.image.and_then(|id| self.all.get_mut(id.index())) {
                image.row.path.clone_from(&described.path);
            }
        }
        if described.maps.len() < MAX_MAPS {
            let shared = Arc::strong_count(&described.maps) > 1;
            self.copied += if shared { described.maps.len() } else { 0 };
            if !shared || self.copied < MAX_COPIED {
                Arc::make_mut(&mut described.maps).push(map.clone());
            }
        }
        described.image
    }

    /// Notes that a process runs another program from now on.
    pub(super) fn executed(&mut self, pid: i32, t_ns: u64) {
        let before = self.described.remove(&pid).unwrap_or_default();
        self.end(&before, t_ns);
        let described = DescribedProcess {
            parent: before.parent,
            start_ns: t_ns,
            ..DescribedProcess::default()
        };
        self.described.insert(pid, described);
        self.process_of.insert(pid, pid);
    }

    /// Notes the start of a thread, or of a process with its first thread.
    pub(super) fn forked(&mut self, pid: i32, tid: i32, parent_pid: i32, t_ns: u64) {
        self.process_of.insert(tid, pid);
        // A new thread has its process's name until it is given another.
        if let Some(name) = self.names.get(&(parent_pid, parent_pid)).cloned() {
            self.names.insert((pid, tid), name);
        }
        if pid == parent_pid {
            return;
        }
        let parent = self.described.get(&parent_pid);
        let described = DescribedProcess {
            parent: Some(number(parent_pid)),
            path: parent.map(|it| it.path.clone()).unwrap_or_default(),
            start_ns: t_ns,
            maps: parent.map(|it| Arc::clone(&it.maps)).unwrap_or_default(),
            image: None,
        };
        if let Some(before) = self.described.insert(pid, described) {
            self.end(&before, t_ns);
        }
    }

    /// Notes the end of a thread; the end of a process is that of its last thread.
    pub(super) fn exited(&mut self, pid: i32, t_ns: u64) {
        if let Some(described) = self.described.get(&pid).cloned() {
            self.end(&described, t_ns);
        }
    }

    fn end(&mut self, described: &DescribedProcess, t_ns: u64) {
        if let Some(image) = described.image.and_then(|id| self.all.get_mut(id.index())) {
            image.row.end_ns = Some(t_ns);
        }
    }

    /// Notes a thread's new name.
    pub(super) fn named(&mut self, pid: i32, tid: i32, name: &[u8]) {
        self.process_of.insert(tid, pid);
        self.names.insert((pid, tid), name.to_vec());
    }

    /// The name of a thread.
    pub(super) fn name(&self, pid: i32, tid: i32) -> Option<&[u8]> {
        self.names.get(&(pid, tid)).map(Vec::as_slice)
    }
}

/// Converts a process or thread number to the type that runs use; -1, for one that had ended, becomes
/// `u32::MAX`.
pub(super) fn number(id: i32) -> u32 {
    id.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, t_ns: u64) -> CodeMap {
        let map = Map {
            t_ns: Some(t_ns),
            pid: 1,
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            inode: None,
            build_id: None,
            is_code: true,
            name: name.as_bytes(),
        };
        CodeMap::of(&map, t_ns)
    }

    #[test]
    fn only_processes_that_were_sampled_are_part_of_the_run() {
        let mut images = Images::default();
        images.mapped(1, &map("/bin/a", 1));
        images.named(1, 1, b"a");
        images.forked(2, 2, 1, 5);
        images.forked(2, 3, 2, 6);
        let (image, maps) = images.sampled(2, 9);
        assert_eq!((image, maps.len()), (ProcessId(0), 1));
        assert_eq!(images.sampled(2, 10).1.len(), 0, "it is known now");
        let rows = images.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].path.as_str(), rows[0].parent), ("/bin/a", Some(1)));
        assert_eq!(rows[0].start_ns, 5);
        assert_eq!(images.process_of(3), 2);
        assert_eq!(images.name(2, 3), Some(&b"a"[..]));
        assert_eq!(images.mapped(2, &map("/lib/b", 11)), Some(ProcessId(0)));
        assert_eq!(images.mapped(1, &map("/lib/b", 11)), None);
    }

    #[test]
    fn another_program_is_another_image() {
        let mut images = Images::default();
        images.mapped(1, &map("/bin/a", 1));
        assert_eq!(images.sampled(1, 2).0, ProcessId(0));
        images.executed(1, 3);
        images.mapped(1, &map("/bin/b", 4));
        assert_eq!(images.sampled(1, 5).0, ProcessId(1));
        images.exited(1, 9);
        let rows = images.rows();
        assert_eq!((rows[0].end_ns, rows[1].end_ns), (Some(3), Some(9)));
        assert_eq!(rows[1].path, "/bin/b");
    }
}
