//! How long requests of the command take: which processes tell of them, and what the agent has counted.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_rewrite::patch::{Body, HookState, Mark};
use membound_wire::{REQUEST_CLASSES, RequestTimes, Requests, request_class_begin};

use crate::area::NotInstalled;
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::marks::RequestsBy;
use crate::memory::Shared;
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::server::Server;

/// Requests that were counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Why none are counted, or not all, where that was not possible.
    pub refused: Option<String>,
    /// Whether the command was not begun for that.
    pub prevented: bool,
    /// Those while guests were let in.
    pub with: RequestDurations,
    /// Those while nobody was.
    pub without: RequestDurations,
    /// Those that are in neither: they began in one phase and ended in another.
    pub spanning: u64,
    /// Receives on descriptors whose numbers are higher than those that are followed.
    pub high: u64,
    /// Marks of threads that the agent had no place for.
    pub homeless: u64,
    /// Requests that another one of the same thread began after, and that had not ended.
    pub left: u64,
}

/// Durations of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestDurations {
    /// How many lasted from one nanosecond to another: (from, to, count), in their order.
    pub times: Vec<(u64, u64, u64)>,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

/// What tells requests in a process.
#[derive(Debug, Default)]
pub(crate) struct Requesting {
    memory: Option<Shared>,
    refused: Option<String>,
    prevented: bool,
    /// Kinds of what was found: of receiving or beginning, and of sending or ending.
    found: [bool; 2],
    /// What stands in modules to tell them.
    pub(crate) marks: Vec<Choice>,
}

impl Requesting {
    /// What was counted so far.
    pub(crate) fn requested(&self) -> Requested {
        let mut requested = Requested {
            refused: self.refused.clone(),
            prevented: self.prevented,
            ..Requested::default()
        };
        let Some(memory) = &self.memory else {
            return requested;
        };
        let word = |offset: usize| memory.word64(offset).load(Ordering::Relaxed);
        let durations = |at: usize| RequestDurations {
            times: memory.classes(
                at + offset_of!(RequestTimes, classes),
                REQUEST_CLASSES,
                request_class_begin,
            ),
            longest_ns: word(at + offset_of!(RequestTimes, longest_ns)),
        };
        requested.with = durations(offset_of!(Requests, with));
        requested.without = durations(offset_of!(Requests, without));
        requested.spanning = word(offset_of!(Requests, spanning));
        requested.high = word(offset_of!(Requests, high));
        requested.homeless = word(offset_of!(Requests, homeless));
        requested.left = word(offset_of!(Requests, left));
        requested
    }

    /// Whether something says when requests begin, and something when they end.
    const fn is_complete(&self) -> bool {
        self.found[0] && self.found[1]
    }
}

/// Why nothing tells requests of a program, in words.
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
    /// Counts requests of the program that is to have guests, before it runs. What is refused is to
    /// be found in what was counted; where it is by functions that are not there, the program is not to
    /// run, and this is `false`.
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

    /// Puts what tells requests into a module that does not run yet.
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

    #[test]
    fn durations_are_read_from_their_classes() {
        let memory = Shared::zeroed("test", size_of::<Requests>()).unwrap();
        let class = membound_wire::request_class(2_000_000);
        let at = offset_of!(Requests, without) + offset_of!(RequestTimes, classes) + 8 * class;
        memory.word64(at).store(3, Ordering::Relaxed);
        let requesting = Requesting {
            memory: Some(memory),
            ..Requesting::default()
        };
        let requested = requesting.requested();
        assert_eq!(requested.with, RequestDurations::default());
        let [(from, to, 3)] = requested.without.times[..] else {
            panic!("{:?}", requested.without);
        };
        assert!(from <= 2_000_000 && 2_000_000 < to && to - from <= 20_000);
    }
}
