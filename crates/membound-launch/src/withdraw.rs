//! Removes yields of the command from its running text, and installs them again.
//!
//! The process's control thread changes the text, as for any exchange (`agent/live.rs`). A thread may be in
//! a trampoline meanwhile, or in a time slice that began there. So trampolines stay mapped as long as their
//! module does, and lead back behind the group, whose bytes are the program's again. Yields of scavengers
//! are never removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use membound_wire::TextMode;

use crate::area::{self, Area, NotInstalled};
use crate::conversation::Conversation;
use crate::harvest::Harvesting;
use crate::maps;
use crate::modules::Loaded;
use crate::process_key::ProcessKey;
use crate::server::Server;
use crate::settling::Refused;
use crate::withdrawn::YieldPlace;

impl Server {
    /// Sets that these yields of the command are removed from its text and all others installed, and wakes
    /// live programs. Returns a number for [`Self::settled`].
    pub(crate) fn withdraw(&self, yields: Vec<YieldPlace>) -> u64 {
        if let Some(harvesting) = &self.harvesting {
            harvesting.of_withdrawn(|withdrawn| withdrawn.wanted = yields);
        }
        let number = self.settling.begin();
        self.doorbells.ring();
        number
    }

    /// Makes running text have the wanted yields of the command.
    pub(crate) fn hold_out(
        &self,
        conversation: &Conversation,
        harvesting: &Harvesting,
        key: ProcessKey,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let maps = maps::of(conversation.pid)?;
        let areas = area::inherited(&maps, &self.ledger().areas);
        let code: BTreeSet<u64> = areas.iter().map(|area| area.code().start).collect();
        if harvesting.is_in(key) {
            // Remove the entries of modules that are gone.
            harvesting.of_withdrawn(|withdrawn| withdrawn.out.retain(|at, _| code.contains(at)));
        }
        for area in areas {
            let done = hold_out_of(conversation, harvesting, key, &area, TextMode::Live);
            self.pass_or(conversation.pid, done, refused)?;
        }
        Ok(())
    }

    /// The same for a module that was just patched and does not run yet.
    pub(crate) fn hold_out_at_first(
        &self,
        conversation: &Conversation,
        harvesting: &Harvesting,
        key: ProcessKey,
        module: &Loaded,
    ) -> Result<(), NotInstalled> {
        // All of its yields were just installed.
        if harvesting.of_withdrawn(|withdrawn| withdrawn.wanted.is_empty()) {
            return Ok(());
        }
        let areas: Vec<Arc<Area>> = self.ledger().areas.clone();
        let maps = maps::of(conversation.pid)?;
        let here = area::inherited(&maps, &areas).into_iter().filter(|area| {
            let origin = area.loaded.module.origin();
            origin.is_some_and(|origin| Arc::ptr_eq(origin, &module.module))
                && area.loaded.bias == module.bias
        });
        for area in here {
            let done = hold_out_of(conversation, harvesting, key, &area, TextMode::Quiet);
            self.pass(conversation.pid, done)?;
        }
        Ok(())
    }
}

/// Makes the text of an area as wanted, if it has yields of the command.
fn hold_out_of(
    conversation: &Conversation,
    harvesting: &Harvesting,
    key: ProcessKey,
    area: &Area,
    mode: TextMode,
) -> Result<(), NotInstalled> {
    let module = &area.loaded.module;
    let (Some(file), Ok(plan)) = (module.identity(), &module.plan) else {
        return Ok(());
    };
    if !harvesting.yields_by(module) {
        return Ok(());
    }
    let wanted = harvesting.of_withdrawn(|withdrawn| withdrawn.wanted_in(file));
    let out = area.hold_out(conversation, plan, &wanted, mode)?;
    // A child has its own text, and does not count.
    if harvesting.is_in(key) {
        let places = out.into_iter().map(|address| YieldPlace {
            file: file.clone(),
            address,
        });
        harvesting
            .of_withdrawn(|withdrawn| withdrawn.out.insert(area.code().start, places.collect()));
    }
    Ok(())
}
