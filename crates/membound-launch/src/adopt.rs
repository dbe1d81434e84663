//! Yields that were planned while the command and its guests ran, and are put into their running text.
//!
//! The text is changed by the process's control thread, as for any exchange (`agent/live.rs`). Threads may stand
//! anywhere in it meanwhile, and yields come into it one after the other.
//!
//! - The command's yields do not depend on each other: as many are planted as there is room for.
//! - A guest that has left at one yield relies on others to find its own thread pointer again. Its caller keeps it
//!   on its own thread ([`GuestPlace::Own`](membound_wire::GuestPlace)) until [`Planted::lost`] says that all of
//!   these stand; where one does not, none stays in.

use std::sync::Arc;

use membound_wire::TextMode;

use crate::area::{self, Area, NotInstalled};
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::harvest::{Harvesting, gives_back, lost, no_place};
use crate::ledger::ProcessKey;
use crate::maps::{self, Mapping};
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::planting::{Planted, Planting, Yielding};
use crate::server::Server;
use crate::settling::Refused;
use crate::texts::{Change, Edits};

/// How the yields of a file stand in a running text.
enum Stand {
    /// All that have room do.
    In(Arc<Area>),
    /// Some may not: threads were in the way.
    Partly(Arc<Area>),
    /// None can.
    Nowhere(String),
}

impl Server {
    /// Adds yields to those that stand, and wakes live programs. The number is for [`Self::settled`].
    pub(crate) fn plant_more(&self, primary: Vec<Planting>, scavengers: Vec<Planting>) -> u64 {
        if let Some(harvesting) = &self.harvesting {
            harvesting.of_late(|late| {
                late.primary.extend(primary);
                late.scavengers.extend(scavengers);
            });
        }
        let number = self.settling.begin();
        self.doorbells.ring();
        number
    }

    /// Makes the plans of yields that were added, which may take long: before their programs have to wait.
    pub(crate) fn plan_late(&self, conversation: &Conversation) {
        let Some(harvesting) = &self.harvesting else {
            return;
        };
        let late = harvesting.of_late(|late| {
            let all = late.primary.iter().chain(&late.scavengers);
            all.map(|planting| planting.choice.clone())
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

    /// Puts yields that were added into running text.
    pub(crate) fn plant_late(
        &self,
        conversation: &Conversation,
        harvesting: &Harvesting,
        key: ProcessKey,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let (primary, scavengers) =
            harvesting.of_late(|late| (late.primary.clone(), late.scavengers.clone()));
        if primary.is_empty() && scavengers.is_empty() || !harvesting.is_in(key) {
            return Ok(());
        }
        let mut maps = maps::of(key.pid)?;
        for loaded in self.loaded(conversation, &maps) {
            let (whose, plantings) = match harvesting.is_guests(&loaded) {
                true => (Yielding::Guest, &scavengers),
                false => (Yielding::Command, &primary),
            };
            let start = loaded.span().start;
            for planting in plantings.iter().filter(|it| it.is_of(&loaded)) {
                let file = &planting.choice.file;
                if harvesting.of_late(|late| late.knows(start, file)) {
                    continue;
                }
                let lost = self.plant_live(
                    conversation,
                    &mut maps,
                    key,
                    &loaded,
                    planting,
                    whose,
                    refused,
                )?;
                if let Some(why) = &lost {
                    let path = loaded.module.path.display();
                    harvesting.miss(format!("yields in {path}: {why}"));
                }
                let planted = Planted {
                    file: file.clone(),
                    whose,
                    lost,
                };
                harvesting.of_late(|late| late.note(start, planted));
            }
        }
        Ok(())
    }

    /// Puts the yields of a file into its running text; why there are none.
    #[expect(clippy::too_many_arguments, reason = "whose text, what, and for whom")]
    fn plant_live(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &Loaded,
        planting: &Planting,
        whose: Yielding,
        refused: Refused,
    ) -> Result<Option<String>, NotInstalled> {
        let mut why = "it has none".to_owned();
        for choice in planting.choices() {
            let (area, is_whole) =
                match self.stand(conversation, maps, key, loaded, choice, refused)? {
                    Stand::In(area) => (area, true),
                    Stand::Partly(area) => (area, false),
                    Stand::Nowhere(reason) => {
                        why = reason;
                        continue;
                    }
                };
            let Ok(plan) = &area.loaded.module.plan else {
                continue;
            };
            let lost = lost(plan, &area);
            if whose == Yielding::Guest {
                if !is_whole {
                    why = "its threads were in the way".to_owned();
                } else if lost.iter().any(|address| gives_back(choice, *address)) {
                    why = "one that others need has no place".to_owned();
                } else {
                    return Ok(None);
                }
                let mut out = Change::new(key, Edits::Out);
                out.add(&self.texts(), &area);
                self.change(conversation, out, Refused::GivenUp)?;
                continue;
            }
            let sites = plan.sites().filter(|site| site.number.is_ok()).count();
            if lost.len() < sites {
                return Ok(None);
            }
            why = no_place(&lost);
        }
        Ok(Some(why))
    }

    /// Puts a choice into running text.
    fn stand(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        loaded: &Loaded,
        choice: &Choice,
        refused: Refused,
    ) -> Result<Stand, NotInstalled> {
        let chosen = self.chosen(std::slice::from_ref(choice), loaded);
        let Some(chosen) = chosen.first() else {
            return Ok(Stand::Nowhere("it is of another file".to_owned()));
        };
        // By an exchange that was refused in part, or by the loader.
        if let Some(area) = self.area_of(maps, chosen) {
            let mut change = Change::new(key, Edits::In);
            change.add(&self.texts(), &area);
            let made = change.make(conversation)?;
            let is_final = made.is_final;
            self.texts().note(made);
            return match is_final {
                true => Ok(Stand::In(area)),
                false if refused == Refused::Again => Err(Failure::left_out().into()),
                false => Ok(Stand::Partly(area)),
            };
        }
        match self.patch(conversation, maps, chosen, TextMode::Live, Refused::Again) {
            Ok(Outcome::Patched(area)) => Ok(Stand::In(area)),
            Ok(Outcome::LeftAlone(reason)) => Ok(Stand::Nowhere(reason)),
            Err(error) if error.is_passing() && refused == Refused::GivenUp => {
                *maps = maps::of(conversation.pid)?;
                Ok(match self.area_of(maps, chosen) {
                    Some(area) => Stand::Partly(area),
                    None => Stand::Nowhere(error.to_string()),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The area of a module with this plan in the process with these maps, if it has one.
    fn area_of(&self, maps: &[Mapping], chosen: &Loaded) -> Option<Arc<Area>> {
        let areas = self.ledger().areas.clone();
        area::inherited(maps, &areas).into_iter().find(|area| {
            Arc::ptr_eq(&area.loaded.module, &chosen.module) && area.loaded.bias == chosen.bias
        })
    }
}
