//! Gives a program its run queues, and its modules and those of its scavengers their yields, before they
//! run.
//!
//! `adopt.rs` installs yields that are added to running text.

use std::path::Path;

use membound_rewrite::patch::{Body, Plan, Yield};
use membound_wire::TextMode;
use rustix::process::{Pid, Signal, kill_process};

use super::Harvesting;
use crate::area::{Area, NotInstalled};
use crate::choice::Choice;
use crate::conversation::Conversation;
use crate::maps::{self, Mapping};
use crate::marks::RequestsBy;
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::planting::Planting;
use crate::process_key::ProcessKey;
use crate::server::Server;
use crate::settling::Refused;

impl Server {
    /// Gives the program at `path` its run queues, yields and scavengers, if it is the command of the
    /// harvest.
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
            // It has not begun, and its run would measure nothing.
            if let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            return Ok(());
        }
        if !harvesting.open_run_queues(conversation, maps)? {
            return Ok(());
        }
        let primary = harvesting.primary();
        for module in loaded {
            self.plant(conversation, maps, module, &primary)?;
        }
        harvesting.start_scavengers(conversation, maps)?;
        Ok(())
    }

    /// Installs the primary's yields and marks of requests in a module that was loaded later.
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

    /// How requests are recognised, if they are measured.
    pub(crate) fn requesting(&self) -> Option<(&Harvesting, &RequestsBy)> {
        let harvesting = self.harvesting.as_ref()?;
        Some((harvesting, harvesting.wanted.requests.as_ref()?))
    }

    /// Handles text that a scavenger has mapped.
    pub(crate) fn scavenger_maps(
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
                let scavengers = &harvesting.wanted.scavenger_yields;
                self.plant(conversation, &mut maps, &module, scavengers)?;
            }
        }
        Ok(())
    }

    /// Installs yields in a module that does not run yet.
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

    /// Installs a choice. All its yields are left out if one of those is missing that restore a scavenger's
    /// own thread pointer, since others depend on them.
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

/// A description of yields that could not be installed: all of a choice, or some.
enum Lost {
    All(String),
    Some(String),
}

/// Addresses in the file of sites of a plan whose jumps the area does not have.
pub(crate) fn lost(plan: &Plan, area: &Area) -> Vec<u64> {
    plan.sites()
        .filter(|site| site.number.is_ok() && !area.holds(std::iter::once(site.address)))
        .map(|site| site.address)
        .collect()
}

/// The message that yields at these addresses have no place.
pub(crate) fn no_place(lost: &[u64]) -> String {
    let at: Vec<String> = lost.iter().map(|at| format!("{at:#x}")).collect();
    format!("no place for {}", at.join(", "))
}

/// True if the patch at an address restores a scavenger's own thread pointer.
fn gives_back(choice: &Choice, address: u64) -> bool {
    let bodies = &choice.options.bodies;
    let body = bodies
        .binary_search_by_key(&address, |(at, _)| *at)
        .map_or(choice.options.body, |at| bodies[at].1);
    body == Body::Yield(Yield::Base)
}
