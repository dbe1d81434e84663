//! Request latencies of the command: the agent's counters, and the state of their measurement.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_wire::{REQUEST_CLASSES, RequestTimes, Requests, request_class_begin};

use crate::choice::Choice;
use crate::memory::Shared;

/// Counters of requests so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Why requests are not counted, or not all; `None`: all are.
    pub refused: Option<String>,
    /// True if the command was not started for that reason.
    pub prevented: bool,
    /// Requests while scavengers were admitted.
    pub with: RequestDurations,
    /// Requests while no scavenger was admitted.
    pub without: RequestDurations,
    /// Requests in neither: they began in one phase and ended in another.
    pub spanning: u64,
    /// Number of receives on descriptors that the agent does not follow, because their numbers are too high.
    pub high: u64,
    /// Marks of threads for which the agent had no entry.
    pub homeless: u64,
    /// Requests that had not ended when another one of the same thread began.
    pub left: u64,
}

/// Durations of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestDurations {
    /// Histogram of durations: (from, to, count), in nanoseconds and in order.
    pub times: Vec<(u64, u64, u64)>,
    /// The longest duration, in nanoseconds.
    pub longest_ns: u64,
}

/// State of request measurement in a process.
#[derive(Debug, Default)]
pub(crate) struct Requesting {
    pub(crate) memory: Option<Shared>,
    pub(crate) refused: Option<String>,
    pub(crate) prevented: bool,
    /// Whether functions that receive or begin were found, and whether functions that send or end were.
    pub(crate) found: [bool; 2],
    /// The marks in modules.
    pub(crate) marks: Vec<Choice>,
}

impl Requesting {
    /// Counters so far.
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

    /// True if both the beginnings and the ends of requests can be observed.
    pub(crate) const fn is_complete(&self) -> bool {
        self.found[0] && self.found[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
