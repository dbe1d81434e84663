//! All process images of a run.
//!
//! Shared between the thread that reads samples and the driver. Slow work (decoding code, reading names) is
//! done without the lock.

use std::collections::BTreeSet;
use std::fs;

use membound_launch::Mapping;
use membound_platform::stat::Stat;
use membound_run::{Process, ProcessId};
use rustc_hash::FxHashMap;

use crate::intern::Interner;
use crate::modules::Modules;
use crate::space::Space;
use crate::threads::Threads;

/// How long an image's mappings are kept after its end, for events that arrive late.
const KEEP_NS: u64 = 3_000_000_000;

/// Images, threads, modules and frames of all processes.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) modules: Modules,
    pub(crate) interner: Interner,
    pub(crate) threads: Threads,
    images: Vec<Image>,
    /// Images by process number, with their start times; the last is the current one.
    of_pid: FxHashMap<u32, Vec<(u64, ProcessId)>>,
    changed: BTreeSet<ProcessId>,
    mappings: Vec<membound_run::Mapping>,
}

#[derive(Debug)]
struct Image {
    row: Process,
    /// Created when first needed; dropped some time after the image's end.
    space: Option<Box<Space>>,
    /// The image that it was forked from.
    forked_from: Option<ProcessId>,
    /// True if [`World::begun`] reported its start, or [`World::executed`] after it was first met.
    begun: bool,
}

impl World {
    /// The image that ran as `pid` at `t_ns`; if none is known, one that begins then.
    pub(crate) fn image(&mut self, pid: u32, t_ns: u64) -> ProcessId {
        if let Some(process) = self.known_image(pid, t_ns) {
            return process;
        }
        let parent = parent_of(pid);
        self.begin(pid, parent, None, t_ns)
    }

    /// The image that ran as `pid` at `t_ns`, if any is known.
    pub(crate) fn known_image(&self, pid: u32, t_ns: u64) -> Option<ProcessId> {
        let images = self.of_pid.get(&pid)?;
        let at = images.iter().rev().find(|(since, _)| *since <= t_ns);
        // An earlier event was still on its way when the first image was met: it belongs to that image.
        let (_, process) = at.or_else(|| images.first())?;
        Some(*process)
    }

    /// Whether a known image ran as `pid` at `t_ns`, and had not ended.
    pub(crate) fn ran(&self, pid: u32, t_ns: u64) -> bool {
        self.known_image(pid, t_ns).is_some_and(|process| {
            let end_ns = self.images[process.index()].row.end_ns;
            end_ns.is_none_or(|end_ns| t_ns <= end_ns)
        })
    }

    /// Begins the image of a forked process.
    pub(crate) fn forked(&mut self, parent: u32, pid: u32, t_ns: u64) -> ProcessId {
        let from = self.image(parent, t_ns);
        self.begin(pid, Some(parent), Some(from), t_ns)
    }

    /// Notes that a process has begun to run a program, as reported by a source that does not report forks.
    /// It is a new image, unless the process was not known yet, or is known but was neither reported before
    /// nor started by a process of this run.
    pub(crate) fn begun(&mut self, pid: u32, t_ns: u64) -> ProcessId {
        let known = self.of_pid.get(&pid).and_then(|images| images.last());
        let process = match known.map(|(_, process)| *process) {
            None => self.image(pid, t_ns),
            Some(process) => {
                let image = &self.images[process.index()];
                let made_here = |parent| self.of_pid.contains_key(&parent);
                if image.begun || image.row.parent.is_some_and(made_here) {
                    self.executed(pid, t_ns)
                } else {
                    process
                }
            }
        };
        self.images[process.index()].begun = true;
        process
    }

    /// Notes that a process runs another program from `t_ns` on. If its latest image was first met after
    /// `t_ns`, that image is the program: allocations and samples arrive by other ways than this event, and
    /// may overtake it.
    pub(crate) fn executed(&mut self, pid: u32, t_ns: u64) -> ProcessId {
        if let Some(process) = self.met_after(pid, t_ns) {
            return process;
        }
        let parent = match self.known_image(pid, t_ns) {
            Some(process) => {
                self.ended(process, t_ns);
                self.images[process.index()].row.parent
            }
            None => parent_of(pid),
        };
        self.begin(pid, parent, None, t_ns)
    }

    /// The latest image of a process, if it was first met after `t_ns` and its start was not reported. Its
    /// start becomes `t_ns`.
    fn met_after(&mut self, pid: u32, t_ns: u64) -> Option<ProcessId> {
        let (since_ns, process) = self.of_pid.get_mut(&pid)?.last_mut()?;
        let image = &mut self.images[process.index()];
        if *since_ns <= t_ns || image.begun || image.forked_from.is_some() {
            return None;
        }
        *since_ns = t_ns;
        image.begun = true;
        image.row.start_ns = t_ns;
        if let Some(path) = executable(pid) {
            image.row.path = path;
        }
        self.changed.insert(*process);
        Some(*process)
    }

    fn begin(
        &mut self,
        pid: u32,
        parent: Option<u32>,
        forked_from: Option<ProcessId>,
        t_ns: u64,
    ) -> ProcessId {
        let process = ProcessId(u32::try_from(self.images.len()).unwrap_or(u32::MAX));
        let inherited = forked_from.map(|from| self.images[from.index()].row.path.clone());
        let path = executable(pid).or(inherited).unwrap_or_default();
        self.images.push(Image {
            row: Process {
                pid,
                parent,
                path,
                start_ns: t_ns,
                end_ns: None,
                unpatched: None,
            },
            space: None,
            forked_from,
            begun: false,
        });
        self.of_pid.entry(pid).or_default().push((t_ns, process));
        self.changed.insert(process);
        process
    }

    /// Notes the end of an image.
    pub(crate) fn ended(&mut self, process: ProcessId, t_ns: u64) {
        let row = &mut self.images[process.index()].row;
        if row.end_ns.is_none() {
            row.end_ns = Some(t_ns);
            self.changed.insert(process);
        }
    }

    /// The row of an image.
    pub(crate) fn row(&self, process: ProcessId) -> &Process {
        &self.images[process.index()].row
    }

    /// The image that an image was forked from.
    pub(crate) fn forked_from(&self, process: ProcessId) -> Option<ProcessId> {
        self.images.get(process.index())?.forked_from
    }

    /// Changes a row, and marks it to be written again.
    pub(crate) fn change(&mut self, process: ProcessId, change: impl FnOnce(&mut Process)) {
        change(&mut self.images[process.index()].row);
        self.changed.insert(process);
    }

    /// Images that have not ended, each with the number of its process.
    pub(crate) fn alive(&self) -> Vec<(u32, ProcessId)> {
        let all = self.images.iter().enumerate();
        all.filter(|(_, image)| image.row.end_ns.is_none())
            .filter_map(|(index, image)| {
                Some((image.row.pid, ProcessId(u32::try_from(index).ok()?)))
            })
            .collect()
    }

    /// Number of images so far.
    pub(crate) const fn images(&self) -> usize {
        self.images.len()
    }

    /// Adds an executable mapping to an image.
    pub(crate) fn map(&mut self, process: ProcessId, map: &Mapping, t_ns: u64) {
        self.with_space(process, t_ns, |space, modules, _| {
            space.map(modules, map, t_ns)
        });
    }

    /// Gives `work` the mappings of an image, which are read from `/proc` if none are known.
    pub(crate) fn with_space<T>(
        &mut self,
        process: ProcessId,
        t_ns: u64,
        work: impl FnOnce(&mut Space, &mut Modules, &mut Interner) -> T,
    ) -> T {
        let mut space = self.take_space(process, t_ns);
        let result = work(&mut space, &mut self.modules, &mut self.interner);
        self.mappings.extend(space.take_fresh());
        self.images[process.index()].space = Some(space);
        result
    }

    fn take_space(&mut self, process: ProcessId, t_ns: u64) -> Box<Space> {
        let image = &mut self.images[process.index()];
        if let Some(space) = image.space.take() {
            return space;
        }
        let (pid, from) = (image.row.pid, image.forked_from);
        let mut space = Space::new(pid, process);
        space.look(&mut self.modules, t_ns);
        // If the process ended before its mappings could be read, it has those of its parent.
        if space.is_unknown()
            && let Some(parent) = from.and_then(|from| self.images[from.index()].space.as_ref())
        {
            space = parent.forked(pid, process, t_ns);
        }
        Box::new(space)
    }

    /// Marks images whose processes have ended, and drops the mappings of images that ended long ago.
    pub(crate) fn tidy(&mut self, t_ns: u64) {
        for (pid, process) in self.alive() {
            let latest = self.of_pid.get(&pid).and_then(|images| images.last());
            let replaced = latest.is_some_and(|(_, latest)| *latest != process);
            if replaced || !runs(pid) {
                self.ended(process, t_ns);
            }
        }
        for image in &mut self.images {
            if image
                .row
                .end_ns
                .is_some_and(|end| end.saturating_add(KEEP_NS) < t_ns)
            {
                image.space = None;
            }
        }
    }

    /// Rows of images that are new or changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<(ProcessId, Process)> {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|process| (process, self.row(process).clone()))
            .collect()
    }

    /// Rows of mappings that are new since the last call.
    pub(crate) fn take_mappings(&mut self) -> Vec<membound_run::Mapping> {
        std::mem::take(&mut self.mappings)
    }
}

/// Path of the executable of a process.
fn executable(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let path = path.to_string_lossy();
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

fn parent_of(pid: u32) -> Option<u32> {
    let parent = Stat::of(pid).ok()?.parent();
    parent.filter(|parent| *parent != 0)
}

/// True if a process runs; false if it has ended, even if it was not waited for yet.
pub(crate) fn runs(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(|stat| !stat.has_ended())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_begins_another_image_and_a_fork_has_what_its_parent_has() {
        let own = std::process::id();
        let mut world = World::default();
        let first = world.image(own, 10);
        assert_eq!(world.image(own, 5), first, "it was on its way");
        assert!(world.row(first).path.starts_with('/'));
        // No process has such a number: its mappings come from its parent.
        let child = world.forked(own, u32::MAX, 20);
        assert_eq!(world.forked_from(child), Some(first));
        assert_eq!(world.row(child).path, world.row(first).path);
        let here = runs as *const () as u64;
        let placed = |world: &mut World, process| {
            world.with_space(process, 30, |space, modules, _| {
                space.spot(modules, here, 30).placed.is_some()
            })
        };
        assert!(placed(&mut world, first));
        assert!(placed(&mut world, child));
        let second = world.executed(own, 40);
        assert_ne!(second, first);
        assert_eq!(world.known_image(own, 39), Some(first));
        assert_eq!(world.known_image(own, 40), Some(second));
        assert_eq!(world.row(first).end_ns, Some(40));
        assert_eq!(world.alive(), [(u32::MAX, child), (own, second)]);
        world.tidy(50);
        assert_eq!(world.alive(), [(own, second)]);
        assert_eq!(world.take_changed().len(), 3);
        assert!(world.take_changed().is_empty());
        assert!(!world.take_mappings().is_empty());
    }

    /// On a busy machine a program's blocks may arrive before the event of its `execve`. Such a program once
    /// became two images, and the second knew none of the call chains.
    #[test]
    fn a_program_that_was_met_before_its_exec_is_one_image() {
        let pid = 5_000_000;
        let mut world = World::default();
        let met = world.image(pid, 100);
        assert_eq!(world.executed(pid, 90), met);
        assert_eq!(world.known_image(pid, 95), Some(met));
        assert_eq!(world.row(met).start_ns, 90);
        assert_eq!((world.images(), world.row(met).end_ns), (1, None));
        // Its start is reported now: what is executed later is another program.
        let second = world.executed(pid, 200);
        assert_ne!(second, met);
        assert_eq!(world.known_image(pid, 150), Some(met));
        // The same for a child that is executed after its fork.
        let child = world.forked(pid, pid + 1, 300);
        assert_ne!(world.executed(pid + 1, 310), child);
    }

    #[test]
    fn programs_that_are_only_said_to_begin_are_told_apart() {
        // Numbers above the largest that the kernel gives, and a parent that is in the run.
        let (first, child) = (5_000_000, 5_000_001);
        let mut world = World::default();
        let image = world.image(first, 10);
        assert_eq!(world.begun(first, 12), image, "its samples came first");
        let second = world.begun(first, 20);
        assert_ne!(second, image);
        assert_eq!(world.known_image(first, 15), Some(image));
        assert_eq!(world.row(image).end_ns, Some(20));
        // One child was met before it executed another program, one was not.
        let forked = world.image(child, 30);
        world.change(forked, |row| row.parent = Some(first));
        let executed = world.begun(child, 40);
        assert_ne!(executed, forked);
        assert_ne!(world.begun(child, 50), executed);
        let unseen = world.begun(child + 1, 60);
        assert_eq!(world.image(child + 1, 70), unseen);
    }
}
