//! How long requests of the command take: what is wrapped or marked to tell them, and what the agent
//! has counted.
//!
//! Sockets are seen through the C library's functions, wherever those are called from and by
//! whatever pointer: their entries are patched. A program with system calls of its own is not seen.

use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Groundwork, HookState, Hooks, Mark, Options, Sites, Wrapped};
use membound_wire::{REQUEST_CLASSES, RequestTimes, Requests, WrapKind, request_class_begin};

use crate::area::NotInstalled;
use crate::conversation::{Conversation, Failure};
use crate::exchange::Choice;
use crate::maps::Mapping;
use crate::memory::Shared;
use crate::modules::Loaded;
use crate::patching::Outcome;
use crate::server::Server;

/// How a request of the command is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestsBy {
    /// From a receive on a socket to the next send on it.
    Sockets,
    /// Each call of the functions with this name as it stands in symbol tables, the outermost where
    /// they call themselves.
    Calls(String),
    /// From a thread's last call of a function to its next call of another one.
    Between {
        /// The function that begins a request.
        begin: String,
        /// The one that ends it.
        end: String,
    },
}

impl fmt::Display for RequestsBy {
    /// As it is asked for.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets => out.write_str("sockets"),
            Self::Calls(name) => out.write_str(name),
            Self::Between { begin, end } => write!(out, "{begin}..{end}"),
        }
    }
}

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

/// Functions of the C library by which descriptors receive, send, come and go. Those with checks
/// (`__recv_chk`) jump to these.
const SOCKETS: &[(&str, WrapKind)] = &[
    ("read", WrapKind::Receive),
    ("readv", WrapKind::Receive),
    ("recv", WrapKind::Receive),
    ("recvfrom", WrapKind::Receive),
    ("recvmsg", WrapKind::Receive),
    ("recvmmsg", WrapKind::ReceiveMany),
    ("write", WrapKind::Send),
    ("writev", WrapKind::Send),
    ("send", WrapKind::Send),
    ("sendto", WrapKind::Send),
    ("sendmsg", WrapKind::Send),
    ("sendmmsg", WrapKind::Send),
    ("sendfile", WrapKind::Send),
    ("sendfile64", WrapKind::Send),
    ("splice", WrapKind::SendThird),
    ("close", WrapKind::Close),
    ("close_range", WrapKind::CloseRange),
    ("closefrom", WrapKind::CloseFrom),
    ("dup", WrapKind::Open),
    ("dup2", WrapKind::Replace),
    ("dup3", WrapKind::Replace),
    ("socket", WrapKind::Open),
    ("socketpair", WrapKind::OpenTwo),
    ("accept", WrapKind::Open),
    ("accept4", WrapKind::Open),
];
/// A file that has all of these is a C library, or a program with one in it: others may have a
/// function of their own that happens to be called `send`.
const OF_A_LIBRARY: [&str; 5] = ["read", "write", "recvfrom", "sendto", "accept"];

/// What is to be patched in `image`, if it has any of the functions that tell requests.
pub(crate) fn marks<'a>(
    image: &Image<'_>,
    by: &RequestsBy,
    groundwork: impl Fn() -> &'a Groundwork,
) -> Result<Option<Options>, String> {
    let has = |name: &str| !image.functions_named(|it| it == name.as_bytes()).is_empty();
    let mut marked: Vec<(u64, Mark)> = Vec::new();
    let mut wrapped = Vec::new();
    let cannot = |name: &str, why: &dyn fmt::Display| format!("calls of {name}: {why}");
    match by {
        RequestsBy::Sockets if OF_A_LIBRARY.into_iter().all(has) => {
            let present = SOCKETS.iter().filter(|(name, _)| has(name));
            wrapped.extend(present.map(|(name, kind)| Wrapped {
                name: (*name).to_owned(),
                number: *kind as u32,
            }));
        }
        RequestsBy::Calls(name) if has(name) => {
            let calls = groundwork().calls(image, name);
            let calls = calls.map_err(|why| cannot(name, &why))?;
            marked.extend(calls.begins.iter().map(|at| (*at, Mark::Enter)));
            marked.extend(calls.ends.iter().map(|at| (*at, Mark::Leave)));
        }
        RequestsBy::Between { begin, end } => {
            for (name, mark) in [(begin, Mark::Begin), (end, Mark::End)] {
                if has(name) {
                    let entries = groundwork().entries(image, name);
                    let entries = entries.map_err(|why| cannot(name, &why))?;
                    marked.extend(entries.into_iter().map(|at| (at, mark)));
                }
            }
        }
        RequestsBy::Sockets | RequestsBy::Calls(_) => {}
    }
    marked.sort_unstable_by_key(|(at, _)| *at);
    if let Some(both) = marked.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let at = both[0].0;
        return Err(format!("what begins and ends requests is one at {at:#x}"));
    }
    if marked.is_empty() && wrapped.is_empty() {
        return Ok(None);
    }
    let mut options = Options::bare(Hooks::LeaveOut);
    options.sites = Sites::Instructions(marked.iter().map(|(at, _)| *at).collect());
    options.bodies = marked
        .into_iter()
        .map(|(at, mark)| (at, Body::Mark(mark)))
        .collect();
    options.wrapped = wrapped;
    Ok(Some(options))
}

/// What tells requests in a process.
#[derive(Debug, Default)]
pub(crate) struct Requesting {
    memory: Option<Shared>,
    refused: Option<String>,
    prevented: bool,
    /// Kinds of what was found: of receiving or beginning, and of sending or ending.
    found: [bool; 2],
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
        let chosen = self.chosen(&[Choice { file, options }], module);
        let Some(chosen) = chosen.first() else {
            return Ok(());
        };
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

    fn marks_of_this_program(by: &RequestsBy) -> Result<Option<Options>, String> {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let groundwork = Groundwork::of(&image, &Options::bare(Hooks::LeaveOut));
        marks(&image, by, || &groundwork)
    }

    #[test]
    fn calls_are_marked_where_they_begin_and_end() {
        let options = marks_of_this_program(&RequestsBy::Calls("main".to_owned()));
        let options = options.unwrap().unwrap();
        let count = |mark| {
            let is = |body: &&(u64, Body)| body.1 == Body::Mark(mark);
            options.bodies.iter().filter(is).count()
        };
        assert_eq!(count(Mark::Enter), 1);
        assert!(count(Mark::Leave) > 0);
        let Sites::Instructions(sites) = &options.sites else {
            panic!("{:?}", options.sites);
        };
        assert_eq!(sites.len(), options.bodies.len());
    }

    #[test]
    fn a_program_without_a_libc_of_its_own_has_nothing_to_wrap() {
        for by in [
            RequestsBy::Sockets,
            RequestsBy::Calls("no such function".to_owned()),
        ] {
            assert_eq!(marks_of_this_program(&by), Ok(None));
        }
    }

    #[test]
    fn a_request_cannot_begin_where_it_ends() {
        let by = RequestsBy::Between {
            begin: "main".to_owned(),
            end: "main".to_owned(),
        };
        let refused = marks_of_this_program(&by).unwrap_err();
        assert!(refused.contains("begins and ends"), "{refused}");
    }

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
