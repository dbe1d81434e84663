//! Patches that are chosen while programs run.
//!
//! What is chosen comes on top of the session's own plan: a file may have several plans,
//! each with an area of its own. Where two want the same bytes, the first has them and the
//! other leaves those sites out. An area whose plan is no longer chosen keeps its memory,
//! since a thread may be inside; chosen again, it is used again.

use std::sync::Arc;

use membound_rewrite::image::Identity;
use membound_rewrite::patch::{self, Hooks};
use membound_wire::TextMode;

use crate::area::{self, Area, Bar, NotInstalled};
use crate::conversation::Conversation;
use crate::maps::{self, Mapping};
use crate::modules::{Loaded, Module};
use crate::server::Server;

/// A file and what is to be patched in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The file.
    pub file: Identity,
    /// What, where and how. System calls are not its business: whatever is said of them
    /// here, they are the session's own plan's.
    pub options: patch::Options,
}

impl Choice {
    fn plain(mut self) -> Self {
        self.options.hooks = Hooks::LeaveOut;
        self
    }
}

/// Executions of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Address in the file.
    pub address: u64,
    /// Executions so far, over all programs.
    pub executions: u64,
}

impl Server {
    /// Makes `choices` all that is chosen, and wakes live programs.
    pub(crate) fn exchange(&self, choices: Vec<Choice>) {
        let choices: Vec<Choice> = choices.into_iter().map(Choice::plain).collect();
        *self.choices() = Arc::new(choices);
        self.doorbells.ring();
    }

    /// Executions of a choice's sites, of programs that run and that have ended; `None` when
    /// it was placed nowhere yet, or does not count.
    pub(crate) fn executed(&self, choice: &Choice) -> Option<Vec<Executed>> {
        let choice = choice.clone().plain();
        let sums = self
            .ledger()
            .executions_of(|module| module.is_chosen(&choice.file, &choice.options))?;
        let (module, sums) = sums;
        let plan = module.plan.as_ref().ok()?;
        let sites = plan.sites().filter_map(|site| {
            let executions = *sums.get(site.number.ok()? as usize)?;
            Some(Executed {
                address: site.address,
                executions,
            })
        });
        Some(sites.collect())
    }

    /// Puts into a module that was just loaded what is chosen for it.
    pub(crate) fn add_chosen(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &Loaded,
    ) -> Result<(), NotInstalled> {
        let choices = Arc::clone(&self.choices());
        for chosen in self.chosen(&choices, loaded) {
            self.patch(conversation, maps, &chosen, TextMode::Quiet)?;
        }
        Ok(())
    }

    /// Makes running text what is chosen.
    pub(crate) fn apply_chosen(&self, conversation: &Conversation) -> Result<(), NotInstalled> {
        let choices = Arc::clone(&self.choices());
        let mut maps = maps::of(conversation.pid)?;
        let areas: Vec<Arc<Area>> = area::inherited(&maps, &self.ledger().areas)
            .into_iter()
            .filter(|area| area.loaded.module.origin().is_some())
            .collect();
        if choices.is_empty() && areas.is_empty() {
            return Ok(());
        }
        for area in &areas {
            let module = &area.loaded.module;
            let wanted = choices
                .iter()
                .any(|choice| module.is_chosen(&choice.file, &choice.options));
            if let (false, Ok(plan)) = (wanted, &module.plan) {
                let span = area.loaded.span();
                let removed = area.remove(conversation, plan, &span, TextMode::Live, Bar::No);
                self.pass(conversation.pid, removed)?;
            }
        }
        if choices.is_empty() {
            return Ok(());
        }
        for loaded in self.loaded(conversation, &maps) {
            for chosen in self.chosen(&choices, &loaded) {
                let here = |area: &&Arc<Area>| {
                    Arc::ptr_eq(&area.loaded.module, &chosen.module)
                        && area.loaded.bias == chosen.bias
                };
                let done = match (areas.iter().find(here), &chosen.module.plan) {
                    (Some(area), Ok(plan)) => area.restore(conversation, plan, TextMode::Live),
                    _ => self
                        .patch(conversation, &mut maps, &chosen, TextMode::Live)
                        .map(drop),
                };
                self.pass(conversation.pid, done)?;
            }
        }
        Ok(())
    }

    fn chosen(&self, choices: &[Choice], loaded: &Loaded) -> Vec<Loaded> {
        choices
            .iter()
            .filter(|choice| loaded.module.identity() == Some(&choice.file))
            .map(|choice| Loaded {
                module: self.planned(&loaded.module, &choice.options),
                bias: loaded.bias,
            })
            .collect()
    }

    /// The same file with a plan of its own, made once.
    fn planned(&self, module: &Arc<Module>, options: &patch::Options) -> Arc<Module> {
        self.plans().derived(module, options)
    }
}
