//! Modules that are loaded, unloaded, or planned while their program runs.

use std::sync::{Arc, PoisonError};

use membound_platform::stat;
use membound_rewrite::image::Identity;
use membound_wire::TextMode;

use super::Server;
use crate::area::{self, Area, NotInstalled};
use crate::conversation::Conversation;
use crate::maps::{self, Mapping};
use crate::modules::Loaded;
use crate::perf_map::{Moment, PerfMap};
use crate::process_key::ProcessKey;
use crate::settling::Refused;
use crate::unwind::Which;

impl Server {
    /// Handles an event of the loader: it has mapped or unmapped modules.
    pub(super) fn modules(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        if self.ledger().unpatched(key).is_some() {
            return Ok(());
        }
        let mut maps = maps::of(key.pid)?;
        self.follow_loader(
            conversation,
            key,
            &mut maps,
            TextMode::Quiet,
            Refused::GivenUp,
        )
    }

    /// Patches modules that the loader has mapped, and unmaps the trampolines of those that it has
    /// unmapped.
    pub(super) fn follow_loader(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: &mut Vec<Mapping>,
        mode: TextMode,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let areas = area::inherited(maps, &self.ledger().areas);
        // Scavengers' modules keep their trampolines for as long as they are loaded, and get no others.
        let (scavengers, loaded): (Vec<Loaded>, Vec<Loaded>) = self
            .loaded(conversation, maps)
            .into_iter()
            .partition(|module| {
                let harvesting = self.harvesting.as_ref();
                harvesting.is_some_and(|harvesting| harvesting.is_scavengers(module))
            });
        for area in &areas {
            let mut there = loaded.iter().chain(&scavengers);
            let gone = !there.any(|module| is_in(area, module));
            if gone && !area.loaded.module.is_piece() {
                area.unmap(conversation)?;
            }
        }
        self.add(conversation, key, maps, &loaded, mode, refused)
    }

    /// Patches those of `loaded` that are not patched yet, and registers unwind tables for all of them.
    fn add(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: &mut Vec<Mapping>,
        loaded: &[Loaded],
        mode: TextMode,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let areas = area::inherited(maps, &self.ledger().areas);
        if let Some(unwinding) = &self.unwinding {
            let plans = &self.plans;
            let all = Which::All;
            let updated = unwinding.update(plans, conversation, maps, key, loaded, all);
            self.pass(key.pid, updated.map_err(Into::into))?;
        }
        for module in loaded {
            if !areas.iter().any(|area| is_in(area, module)) {
                self.patch(conversation, maps, module, mode, refused)?;
                if mode == TextMode::Quiet {
                    self.add_chosen(conversation, maps, module)?;
                    self.plant_primary(conversation, maps, key, module)?;
                }
            }
        }
        self.remember_late(key, loaded);
        self.name_trampolines(conversation, Moment::Later)
    }

    /// Patches files that were planned while the program ran.
    pub(super) fn add_late(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: &mut Vec<Mapping>,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        if !self.plans.has_late() {
            return Ok(());
        }
        let loaded = self.loaded(conversation, maps);
        let is_new = |it: &Loaded| {
            it.module.is_late() && {
                let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
                !late
                    .iter()
                    .any(|(by, known)| *by == key && Arc::ptr_eq(known, &it.module))
            }
        };
        if !loaded.iter().any(is_new) {
            return Ok(());
        }
        self.add(conversation, key, maps, &loaded, TextMode::Live, refused)
    }

    /// Records which late files are patched in the program.
    pub(super) fn remember_late(&self, key: ProcessKey, loaded: &[Loaded]) {
        if !self.plans.has_late() {
            return;
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = loaded.iter().map(|it| &it.module);
        for module in modules.filter(|module| module.is_late()) {
            late.push((key, Arc::clone(module)));
        }
        late.retain(|(by, _)| *by == key || stat::started(by.pid).ok() == Some(by.started));
    }

    /// Makes the plans that the program's exchange needs, which may take seconds: before the conversation
    /// locks the process, since the program may be waiting for that lock.
    pub(super) fn plan_ahead(&self, conversation: &Conversation) {
        if let Some(unwinding) = &self.unwinding
            && unwinding.owes(conversation.pid)
            && let Ok(maps) = maps::of(conversation.pid)
        {
            unwinding.prepare(&self.plans, &self.loaded(conversation, &maps));
        }
        let choices = Arc::clone(&self.choices());
        self.plan_late(conversation);
        if conversation.modules_changed()
            && let Ok(maps) = maps::of(conversation.pid)
        {
            // With the session's own options.
            self.loaded(conversation, &maps);
        }
        if choices.is_empty() {
            return;
        }
        let files: Vec<&Identity> = choices.iter().map(|choice| &choice.file).collect();
        self.plans.await_late(&files);
        for choice in choices.iter() {
            for module in self.plans.of_file(&choice.file) {
                self.plans.derived(&module, &choice.options);
            }
        }
    }

    /// Writes the process's trampolines for perf, if that is requested.
    pub(super) fn name_trampolines(
        &self,
        conversation: &Conversation,
        moment: Moment,
    ) -> Result<(), NotInstalled> {
        if let Some(perf_maps) = &self.perf_maps {
            let maps = maps::of(conversation.pid)?;
            let areas = area::inherited(&maps, &self.ledger().areas);
            let mut perf_maps = perf_maps.lock().unwrap_or_else(PoisonError::into_inner);
            perf_maps.write(conversation.hello.pid, &areas, moment);
        }
        Ok(())
    }

    /// The files that were written for perf.
    pub(crate) fn perf_maps(&self) -> Vec<PerfMap> {
        self.perf_maps.as_ref().map_or_else(Vec::new, |perf_maps| {
            let perf_maps = perf_maps.lock().unwrap_or_else(PoisonError::into_inner);
            perf_maps.all()
        })
    }
}

/// True if an area belongs to a module, by the session's own plan or by a choice.
fn is_in(area: &Area, module: &Loaded) -> bool {
    let planned = &area.loaded.module;
    let origin = planned.origin().unwrap_or(planned);
    Arc::ptr_eq(origin, &module.module) && area.loaded.bias == module.bias
}
