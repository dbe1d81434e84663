//! Programs that change their own text, or forbid themselves what the agent needs: removes the patches.

use std::ops::Range;

use membound_wire::TextMode;

use super::Server;
use crate::area::{self, Bar, NotInstalled};
use crate::conversation::Conversation;
use crate::maps;
use crate::process_key::ProcessKey;

/// What a program is about to do that the agent does not survive, as a part of a sentence.
pub(super) const FILTERED: &str = "put itself behind a filter on its system calls (seccomp)";
pub(super) const DISPATCHED: &str =
    "has its system calls dispatched to a handler of its own (PR_SET_SYSCALL_USER_DISPATCH)";
pub(super) const UNTIMED: &str = "forbade itself to read the time stamp counter (PR_SET_TSC)";

impl Server {
    /// Handles a program that is about to change text itself.
    pub(super) fn writable(&self, conversation: &Conversation) -> Result<(), NotInstalled> {
        let [start, end] = conversation.hello.range;
        let range: Range<u64> = start..end;
        let maps = maps::of(conversation.pid)?;
        let areas = area::inherited(&maps, &self.ledger().areas);
        for area in areas {
            if let (true, Ok(plan)) = (area.touches(&range), &area.loaded.module.plan) {
                area.remove(conversation, plan, &range, mode(conversation), Bar::Forever)?;
            }
        }
        Ok(())
    }

    /// Handles a program that is about to forbid itself what the agent needs, with a description. Anything
    /// left behind could get it killed.
    pub(super) fn leave(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        forbidden: &str,
    ) -> Result<(), NotInstalled> {
        let mut missed = format!(
            "process {}: it {forbidden}: nothing in \
             it is patched from then on, nor in what it executes, and timers inside it are off",
            key.pid
        );
        let harvesting = self.harvesting.as_ref();
        if harvesting.is_some_and(|harvesting| harvesting.is_in(key)) {
            missed.push_str("; its scavengers ended before");
        }
        self.ledger().missed.insert(missed);
        let done = self.writable(conversation);
        // Its control thread ends.
        self.settling.forget(key);
        done
    }
}

/// How text is replaced while the program may be executing it.
const fn mode(conversation: &Conversation) -> TextMode {
    if conversation.threaded() {
        TextMode::Live
    } else {
        TextMode::Quiet
    }
}
