//! Request latencies of the command: prepares the processes that are measured.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_rewrite::patch::{Body, HookState, Mark};
use membound_wire::Requests;

use crate::area::NotInstalled;
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::marks::RequestsBy;
use crate::memory::Shared;
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::server::Server;

/// Why requests of a program cannot be observed, in words.
fn nothing_of(by: &RequestsBy, found: [bool; 2]) -> String {
    match by {
        RequestsBy::Sockets => "no file of the command has the C library's functions by which \
                                sockets receive and send"
            .to_owned(),
        RequestsBy::Calls(name) => no_function(name),
        RequestsBy::Between { begin, .. } if !found[0] => no_function(begin),
        RequestsBy::Between { end, .. } => no_function(end),
    }
}

fn no_function(name: &str) -> String {
    format!("no file that the command begins with has a function `{name}` in its symbol tables")
}

impl Server {
    /// Starts counting requests of the program that gets scavengers, before it runs. Refusals are reported
    /// with the counters. `false` if functions that the user named do not exist, so that the program must
    /// not run.
    pub(crate) fn begin_requests(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &[&Loaded],
    ) -> Result<bool, NotInstalled> {
        let Some((harvesting, by)) = self.requesting() else {
            return Ok(true);
        };
        let made = Shared::zeroed("membound-requests", size_of::<Requests>())
            .map_err(Failure::from)
            .and_then(|memory| {
                let ticks = (harvesting.ticks_per_ns() * 1024.0).max(1.0) as u32;
                let word = memory.word32(offset_of!(Requests, ticks));
                word.store(ticks, Ordering::Relaxed);
                let at = memory.hang(conversation, maps)?;
                conversation.requests(at, size_of::<Requests>() as u64)?;
                Ok(memory)
            });
        match made {
            Ok(memory) => harvesting.of_requests(|requesting| requesting.memory = Some(memory)),
            Err(gone @ Failure::Gone(_)) => return Err(gone.into()),
            Err(refused) => {
                let refused = refused.to_string();
                harvesting.of_requests(|requesting| requesting.refused = Some(refused));
                return Ok(true);
            }
        }
        for module in loaded {
            self.mark_requests(conversation, maps, module)?;
        }
        harvesting.of_requests(|requesting| {
            if !requesting.is_complete() && requesting.refused.is_none() {
                requesting.refused = Some(nothing_of(by, requesting.found));
            }
        });
        let prevented = harvesting.of_requests(|requesting| {
            requesting.prevented = *by != RequestsBy::Sockets && requesting.refused.is_some();
            requesting.prevented
        });
        Ok(!prevented)
    }

    /// Installs the marks of requests in a module that does not run yet.
    pub(crate) fn mark_requests(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        module: &Loaded,
    ) -> Result<(), NotInstalled> {
        let Some((harvesting, by)) = self.requesting() else {
            return Ok(());
        };
        let path = module.module.path.display();
        let refuse = |why: &str| {
            let why = format!("{path}: {why}");
            harvesting.of_requests(|requesting| _ = requesting.refused.get_or_insert(why));
        };
        let options = match module.module.marked(by) {
            Ok(Some(options)) => options,
            Ok(None) => return Ok(()),
            Err(why) => {
                refuse(&why);
                return Ok(());
            }
        };
        let says = |wanted: [Mark; 2]| {
            let mut bodies = options.bodies.iter();
            !options.wrapped.is_empty()
                || bodies.any(|(_, body)| wanted.map(Body::Mark).contains(body))
        };
        let found = [[Mark::Enter, Mark::Begin], [Mark::Leave, Mark::End]].map(says);
        let Some(file) = module.module.identity().cloned() else {
            return Ok(());
        };
        let choice = Choice { file, options };
        let chosen = self.chosen(std::slice::from_ref(&choice), module);
        let Some(chosen) = chosen.first() else {
            return Ok(());
        };
        harvesting.of_requests(|requesting| requesting.marks.push(choice));
        let mode = membound_wire::TextMode::Quiet;
        let given_up = crate::settling::Refused::GivenUp;
        let outcome = self.patch(conversation, maps, chosen, mode, given_up)?;
        match (outcome, &chosen.module.plan) {
            (Outcome::LeftAlone(why), _) => refuse(&why),
            (Outcome::Patched(area), Ok(plan)) => {
                let sites = plan.sites().map(|site| (site.address, site.number.err()));
                let wraps = plan.wraps().map(|wrap| {
                    let refused = match wrap.state {
                        HookState::Refused(refused) => Some(refused),
                        _ => None,
                    };
                    (wrap.address, refused)
                });
                for (at, refused) in sites.chain(wraps) {
                    if let Some(refused) = refused {
                        refuse(&format!("no patch at {at:#x}: {refused}"));
                    } else if !area.holds(std::iter::once(at)) {
                        refuse(&format!("no place for a patch at {at:#x}"));
                    }
                }
                harvesting.of_requests(|requesting| {
                    for (known, found) in requesting.found.iter_mut().zip(found) {
                        *known |= found;
                    }
                });
            }
            (Outcome::Patched(_), Err(_)) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let by = RequestsBy::Between {
            begin: "enter".to_owned(),
            end: "leave".to_owned(),
        };
        assert!(nothing_of(&by, [false, false]).contains("`enter`"));
        assert!(nothing_of(&by, [true, false]).contains("`leave`"));
    }
}
