//! Installs yields of the command that were planned while it ran into its running text.
//!
//! The process's control thread changes the text, as for any exchange (`agent/live.rs`). Threads may be
//! anywhere in the text meanwhile. Yields do not depend on each other, so they are installed one after the
//! other, as many as there is room for.
//!
//! Scavengers get their yields before they run, and never later ([`Server::scavenger_maps`]): a scavenger
//! without a plan has time slices in its next run.

use std::sync::Arc;

use membound_wire::TextMode;

use crate::area::{self, Area, NotInstalled};
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::harvest::{Harvesting, lost, no_place};
use crate::maps::{self, Mapping};
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::planting::Planting;
use crate::process_key::ProcessKey;
use crate::server::Server;
use crate::settling::Refused;
use crate::texts::{Change, Edits};

impl Server {
    /// Adds yields of the command to the installed ones, and wakes live programs. Returns a number for
    /// [`Self::settled`].
    pub(crate) fn plant_more(&self, primary: Vec<Planting>) -> u64 {
        if let Some(harvesting) = &self.harvesting {
            harvesting.of_late(|late| late.primary.extend(primary));
        }
        let number = self.settling.begin();
        self.doorbells.ring();
        number
    }

    /// Makes the plans of yields that were added, which may take long: before the program has to wait for
    /// them.
    pub(crate) fn plan_late(&self, conversation: &Conversation) {
        let Some(harvesting) = &self.harvesting else {
            return;
        };
        let late = harvesting.of_late(|late| {
            let plantings = late.primary.iter();
            plantings
                .map(|planting| planting.choice.clone())
                .collect::<Vec<_>>()
        });
        if late.is_empty() {
            return;
        }
        let Ok(maps) = maps::of(conversation.pid) else {
            return;
        };
        for loaded in self.loaded(conversation, &maps) {
            self.chosen(&late, &loaded);
        }
    }

    /// Installs yields that were added into running text.
    pub(crate) fn plant_late(
        &self,
        conversation: &Conversation,
        harvesting: &Harvesting,
        key: ProcessKey,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let primary = harvesting.of_late(|late| late.primary.clone());
        if primary.is_empty() || !harvesting.is_in(key) {
            return Ok(());
        }
        let mut maps = maps::of(key.pid)?;
        for loaded in self.loaded(conversation, &maps) {
            if harvesting.is_scavengers(&loaded) {
                continue;
            }
            let start = loaded.span().start;
            for planting in primary.iter().filter(|it| it.is_of(&loaded)) {
                let file = &planting.choice.file;
                if harvesting.of_late(|late| late.is_settled(start, file)) {
                    continue;
                }
                let lost =
                    self.plant_live(conversation, &mut maps, key, &loaded, planting, refused)?;
                if let Some(why) = lost {
                    let path = loaded.module.path.display();
                    harvesting.miss(format!("yields in {path}: {why}"));
                }
                harvesting.of_late(|late| late.settle(start, file.clone()));
            }
        }
        Ok(())
    }

    /// Installs the yields of a file into its running text, as many as there is room for; an error names
    /// the reason if none can be.
    fn plant_live(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &Loaded,
        planting: &Planting,
        refused: Refused,
    ) -> Result<Option<String>, NotInstalled> {
        let mut why = "it has none".to_owned();
        for choice in planting.choices() {
            let area = match self.stand(conversation, maps, key, loaded, choice, refused)? {
                Ok(area) => area,
                Err(reason) => {
                    why = reason;
                    continue;
                }
            };
            let Ok(plan) = &area.loaded.module.plan else {
                continue;
            };
            let lost = lost(plan, &area);
            let sites = plan.sites().filter(|site| site.number.is_ok()).count();
            if lost.len() < sites {
                return Ok(None);
            }
            why = no_place(&lost);
        }
        Ok(Some(why))
    }

    /// Installs a choice into running text. Returns the area of the part that could be installed, or the
    /// reason why none could. An exchange that found threads in the way is repeated, until `refused` says
    /// that it is given up.
    fn stand(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &Loaded,
        choice: &Choice,
        refused: Refused,
    ) -> Result<Result<Arc<Area>, String>, NotInstalled> {
        let chosen = self.chosen(std::slice::from_ref(choice), loaded);
        let Some(chosen) = chosen.first() else {
            return Ok(Err("it is of another file".to_owned()));
        };
        // It may have an area already: from an exchange that was refused in part, or from the loader.
        if let Some(area) = self.area_of(maps, chosen) {
            let mut change = Change::new(key, Edits::In);
            change.add(&self.texts(), &area);
            let made = change.make(conversation)?;
            let is_final = made.is_final;
            self.texts().note(made);
            if !is_final && refused == Refused::Again {
                return Err(Failure::left_out().into());
            }
            return Ok(Ok(area));
        }
        match self.patch(conversation, maps, chosen, TextMode::Live, Refused::Again) {
            Ok(Outcome::Patched(area)) => Ok(Ok(area)),
            Ok(Outcome::LeftAlone(reason)) => Ok(Err(reason)),
            Err(error) if error.is_passing() && refused == Refused::GivenUp => {
                *maps = maps::of(conversation.pid)?;
                Ok(self.area_of(maps, chosen).ok_or_else(|| error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// The area of a module with this plan in the process with these maps; `None` if it has none.
    fn area_of(&self, maps: &[Mapping], chosen: &Loaded) -> Option<Arc<Area>> {
        let areas = self.ledger().areas.clone();
        area::inherited(maps, &areas).into_iter().find(|area| {
            Arc::ptr_eq(&area.loaded.module, &chosen.module) && area.loaded.bias == chosen.bias
        })
    }
}
