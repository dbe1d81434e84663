//! Rows that wait to be written to the run file.

use membound_run::{Access, Executions, Hold, Laps, Sample, Watched};

use crate::file::RunFile;
use crate::objects::Objects;
use crate::sites::Sites;
use crate::world::World;

/// Rows for the next transaction.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) samples: Vec<Sample>,
    pub(crate) accesses: Vec<Access>,
    pub(crate) executions: Vec<Executions>,
    pub(crate) laps: Vec<Laps>,
    pub(crate) pages: Vec<membound_run::PageNode>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) blocks: Vec<membound_run::BlockCount>,
    pub(crate) bursts: Vec<membound_run::Burst>,
    /// Number of modules that are in the file.
    modules: u32,
}

impl Rows {
    /// Writes everything that is new and ends the transaction.
    pub(crate) fn write(
        &mut self,
        file: &mut RunFile,
        world: &std::sync::Mutex<World>,
        sites: &mut Sites,
        objects: &mut Objects,
    ) {
        let (frames, stacks, threads, processes, mappings, modules) = {
            let mut world = crate::lock(world);
            let all = world.modules.all().iter().skip(self.modules as usize);
            let modules: Vec<_> = all.map(|module| module.row()).collect();
            (
                world.interner.take_frames(),
                world.interner.take_stacks(),
                world.threads.take_changed(),
                world.take_changed(),
                world.take_mappings(),
                modules,
            )
        };
        let first = membound_run::ModuleId(self.modules);
        self.modules += u32::try_from(modules.len()).unwrap_or(0);
        file.put(|writer| writer.modules(first, &modules));
        file.put(|writer| writer.processes_at(processes));
        file.put(|writer| writer.threads_at(threads));
        file.put(|writer| writer.mappings(&mappings));
        file.put(|writer| writer.frames(frames.0, &frames.1));
        file.put(|writer| writer.stacks(stacks.0, &stacks.1));
        let (first, new) = sites.take_new();
        file.put(|writer| writer.sites(first, &new));
        let changed = sites.take_changed();
        file.put(|writer| writer.sites_at(changed));
        let attributions = sites.take_attributions();
        file.put(|writer| writer.attributions(&attributions));
        let changed = objects.take_changed();
        file.put(|writer| writer.objects_at(changed));
        file.put(|writer| writer.samples(&self.samples));
        file.put(|writer| writer.accesses(&self.accesses));
        file.put(|writer| writer.executions(&self.executions));
        file.put(|writer| writer.laps(&self.laps));
        file.put(|writer| writer.pages(&self.pages));
        file.put(|writer| writer.watched(&self.watched));
        file.put(|writer| writer.holds(&self.holds));
        file.put(|writer| writer.blocks(&self.blocks));
        file.put(|writer| writer.bursts(&self.bursts));
        self.samples.clear();
        self.accesses.clear();
        self.executions.clear();
        self.laps.clear();
        self.pages.clear();
        self.watched.clear();
        self.holds.clear();
        self.blocks.clear();
        self.bursts.clear();
        file.put(membound_run::Writer::flush);
    }
}
