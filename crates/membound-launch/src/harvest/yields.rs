//! How a program gets its lanes, and its modules and those of its guests their yields: before they run.
//!
//! What is added to running text is in `adopt.rs`.

use std::path::Path;

use membound_rewrite::patch::{Body, Plan, Yield};
use membound_wire::TextMode;
use rustix::process::{Pid, Signal, kill_process};

use super::Harvesting;
use crate::area::{Area, NotInstalled};
use crate::choice::Choice;
use crate::conversation::Conversation;
use crate::ledger::ProcessKey;
use crate::maps::{self, Mapping};
use crate::marks::RequestsBy;
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::planting::Planting;
use crate::server::Server;
use crate::settling::Refused;

impl Server {
    /// Gives the program at `path` its lanes, yields and guests, if it is the one that is to have them.
    pub(crate) fn begin_harvest(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        path: &Path,
        loaded: &[&Loaded],
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if harvesting.process.set(key).is_err() {
            if harvesting.process.get() == Some(&key) {
                harvesting.say_executed(path);
            }
            return Ok(());
        }
        if !self.begin_requests(conversation, maps, loaded)? {
            // It has not begun, and would run for nothing.
            if let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            return Ok(());
        }
        if !harvesting.open_lanes(conversation, maps)? {
            return Ok(());
        }
        let primary = harvesting.primary();
        for module in loaded {
            self.plant(conversation, maps, module, &primary)?;
        }
        harvesting.start_guests(conversation, maps)?;
        Ok(())
    }

    /// Puts the primary's yields, and what tells its requests, into a module that was loaded later.
    pub(crate) fn plant_primary(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        module: &Loaded,
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if harvesting.process.get() == Some(&key) {
            self.mark_requests(conversation, maps, module)?;
        }
        if harvesting.is_in(key) {
            self.plant(conversation, maps, module, &harvesting.primary())?;
            self.hold_out_at_first(conversation, harvesting, key, module)?;
        }
        Ok(())
    }

    /// How requests are told, where they are.
    pub(crate) fn requesting(&self) -> Option<(&Harvesting, &RequestsBy)> {
        let harvesting = self.harvesting.as_ref()?;
        Some((harvesting, harvesting.wanted.requests.as_ref()?))
    }

    /// A guest has mapped text.
    pub(crate) fn guest_maps(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if !harvesting.is_in(key) {
            return Ok(());
        }
        let [start, end] = conversation.hello.range;
        let span = start..end;
        harvesting.state().spans.push(span.clone());
        let mut maps = maps::of(key.pid)?;
        for module in self.loaded(conversation, &maps) {
            let of_module = module.span();
            if of_module.start < span.end && span.start < of_module.end {
                let scavengers = &harvesting.wanted.scavengers;
                self.plant(conversation, &mut maps, &module, scavengers)?;
            }
        }
        Ok(())
    }

    /// Puts yields into a module that does not run yet.
    fn plant(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        module: &Loaded,
        plantings: &[Planting],
    ) -> Result<(), NotInstalled> {
        if let Some(harvesting) = &self.harvesting {
            harvesting.heed_exceptions(module);
        }
        for planting in plantings.iter().filter(|it| it.is_of(module)) {
            let mut lost = None;
            for choice in planting.choices() {
                lost = self.plant_choice(conversation, maps, module, choice)?;
                match &lost {
                    Some(Lost::All(_)) => {}
                    _ => break,
                }
            }
            if let (Some(lost), Some(harvesting)) = (lost, &self.harvesting) {
                let path = module.module.path.display();
                let (Lost::All(what) | Lost::Some(what)) = lost;
                let missed = format!("yields in {path}: {what}");
                harvesting.state().missed.push(missed);
            }
        }
        Ok(())
    }

    /// Without one of the yields that give a guest its own thread pointer back, which stand there
    /// for the sake of others, there are none.
    fn plant_choice(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        module: &Loaded,
        choice: &Choice,
    ) -> Result<Option<Lost>, NotInstalled> {
        let chosen = self.chosen(std::slice::from_ref(choice), module);
        let Some(chosen) = chosen.first() else {
            return Ok(None);
        };
        let outcome = self.patch(
            conversation,
            maps,
            chosen,
            TextMode::Quiet,
            Refused::GivenUp,
        )?;
        let area = match outcome {
            Outcome::LeftAlone(reason) => return Ok(Some(Lost::All(reason))),
            Outcome::Patched(area) => area,
        };
        let Ok(plan) = &chosen.module.plan else {
            return Ok(None);
        };
        let lost = lost(plan, &area);
        if lost.iter().any(|address| gives_back(choice, *address)) {
            self.take_back(conversation, &area)?;
            let what = "one that others need has no place".to_owned();
            return Ok(Some(Lost::All(what)));
        }
        Ok((!lost.is_empty()).then(|| Lost::Some(no_place(&lost))))
    }
}

/// Yields that could not be had, in words.
enum Lost {
    All(String),
    Some(String),
}

/// Addresses in the file of the sites of a plan that the text of an area does not lead to.
pub(crate) fn lost(plan: &Plan, area: &Area) -> Vec<u64> {
    plan.sites()
        .filter(|site| site.number.is_ok() && !area.holds(std::iter::once(site.address)))
        .map(|site| site.address)
        .collect()
}

/// That there is no place for yields at these addresses, in words.
pub(crate) fn no_place(lost: &[u64]) -> String {
    let at: Vec<String> = lost.iter().map(|at| format!("{at:#x}")).collect();
    format!("no place for {}", at.join(", "))
}

/// Whether what stands at an address gives a guest its own thread pointer back.
fn gives_back(choice: &Choice, address: u64) -> bool {
    let bodies = &choice.options.bodies;
    let body = bodies
        .binary_search_by_key(&address, |(at, _)| *at)
        .map_or(choice.options.body, |at| bodies[at].1);
    body == Body::Yield(Yield::Base)
}
