//! Adds names, lines, code and totals at the end of a run. With them the run can be read where the program's
//! files are not.

use std::sync::Arc;

use membound_run::{FrameId, ModuleKind};

use crate::driver::Driver;
use crate::modules::CodeModule;
use crate::{names, replays};

impl Driver {
    /// Adds names, code and totals to the file.
    pub(crate) fn complete(&mut self) {
        let (frames, modules) = {
            let world = crate::lock(&self.world);
            (world.interner.frames(), world.modules.all().to_vec())
        };
        for (module, frames) in names::by_module(frames, &modules) {
            self.name(&module, &frames);
        }
        self.code();
        self.loops();
        for module in &modules {
            names::note_unattributed(module, &mut self.gaps);
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

    /// Locates all frames so far in idle time, so that their symbols and debug information are in memory: at
    /// the end, the user would wait for it.
    pub(crate) fn read_names(&self) {
        let (frames, modules) = {
            let world = crate::lock(&self.world);
            (world.interner.frames(), world.modules.all().to_vec())
        };
        membound_launch::spawn_idle("names", move || {
            for (module, frames) in names::by_module(frames, &modules) {
                if module.kind == ModuleKind::File
                    && let Some(symbols) = module.symbols()
                {
                    for (_, address) in frames {
                        let _ = symbols.locate(address);
                    }
                }
            }
        });
    }

    /// Adds functions and lines for a module's frames.
    fn name(&mut self, module: &Arc<CodeModule>, frames: &[(FrameId, u64)]) {
        let Self {
            world, gaps, file, ..
        } = self;
        let pid = || {
            let world = crate::lock(world);
            let process = world.modules.process_of(module.id)?;
            Some(world.row(process).pid)
        };
        names::locate(module, frames, pid, gaps, &mut |locations| {
            file.put(|writer| writer.locations(&locations));
        });
    }

    /// Adds the loops around instructions that were sampled or are sites.
    fn loops(&mut self) {
        let modules = crate::lock(&self.world).modules.all().to_vec();
        let world = &self.world;
        let intern = |frame| crate::lock(world).interner.frame(frame);
        let waited_ns = self.chooser.waited_ns();
        let cached = replays::measure(&self.sites, waited_ns, self.sampled_ns as f64);
        let rows = names::loops(&names::met(&self.sites, intern), &modules, &cached);
        self.file.put(|writer| writer.loops(&rows));
    }

    /// Adds the code of functions that were sampled or have sites.
    fn code(&mut self) {
        let modules = crate::lock(&self.world).modules.all().to_vec();
        let rows = names::code(&names::functions(&self.sites, &modules), &modules);
        self.file.put(|writer| writer.code(&rows));
    }
}
