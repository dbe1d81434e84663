//! What a live process gets when it was woken.

use std::sync::atomic::Ordering;

use membound_wire::TextMode;

use super::{Server, Wanted};
use crate::area::{self, NotInstalled};
use crate::conversation::Conversation;
use crate::exchange::Left;
use crate::maps;
use crate::process_key::ProcessKey;
use crate::settling::Refused;
use crate::texts::{Change, Edits};
use crate::unwind::Which;

impl Server {
    /// Handles the doorbell event of a live process. Returns whether patches are left in its text that should not be.
    pub(super) fn doorbell(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        refused: Refused,
    ) -> Result<Left, NotInstalled> {
        let mut maps = maps::of(conversation.pid)?;
        let behind = self.behind_loader().remove(&key);
        if conversation.modules_changed() || behind {
            // A module may be at the address of an earlier one.
            self.texts().forget(key);
            let followed =
                self.follow_loader(conversation, key, &mut maps, TextMode::Live, refused);
            if followed.as_ref().is_err_and(NotInstalled::is_passing) {
                self.behind_loader().insert(key);
            }
            followed?;
            // Unmapped modules must not be in the list.
            maps = maps::of(conversation.pid)?;
        } else {
            if let Some(unwinding) = &self.unwinding
                && unwinding.owes(key.pid)
            {
                let loaded = self.loaded(conversation, &maps);
                let (plans, maps) = (&self.plans, &mut maps);
                let updated = unwinding.update(plans, conversation, maps, key, &loaded, Which::All);
                self.pass(key.pid, updated.map_err(Into::into))?;
            }
            self.add_late(conversation, key, &mut maps, refused)?;
        }
        let wanted = match self.wanted.load(Ordering::Relaxed) {
            wanted if wanted == Wanted::Patches as u32 => Edits::In,
            _ => Edits::Out,
        };
        let mut change = Change::new(key, wanted);
        let areas = area::inherited(&maps, &self.ledger().areas);
        for area in areas {
            if area.loaded.module.origin().is_none() {
                change.add(&self.texts(), &area);
            }
        }
        self.change(conversation, change, refused)?;
        let left = self.apply_chosen(conversation, key, &mut maps, refused)?;
        if let Some(harvesting) = &self.harvesting {
            self.plant_late(conversation, harvesting, key, refused)?;
            self.hold_out(conversation, harvesting, key, refused)?;
        }
        Ok(left)
    }
}
