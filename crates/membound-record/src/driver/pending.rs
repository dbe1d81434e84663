//! Holds events back until no earlier event can arrive.
//!
//! Hundreds of thousands may be held while a window is open, and some are processed every millisecond: no
//! operation here goes through all of them.

use std::collections::VecDeque;

/// Events with their times in nanoseconds.
#[derive(Debug)]
pub(super) struct Pending<T> {
    /// Sorted by time; events of equal time stay in the order of arrival.
    sorted: VecDeque<(u64, T)>,
    /// Events that arrived since the last merge, in the order of arrival.
    new: Vec<(u64, T)>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self {
            sorted: VecDeque::new(),
            new: Vec::new(),
        }
    }
}

impl<T> Pending<T> {
    /// Adds an event.
    pub(super) fn push(&mut self, t_ns: u64, happened: T) {
        self.new.push((t_ns, happened));
    }

    /// Number of events held.
    pub(super) fn len(&self) -> usize {
        self.sorted.len() + self.new.len()
    }

    /// Removes at most `most` events with times up to `horizon_ns`, in time order. The flag is true if no
    /// event up to `horizon_ns` is left.
    pub(super) fn take_until(&mut self, horizon_ns: u64, most: usize) -> (Vec<(u64, T)>, bool) {
        self.merge();
        let due = self.sorted.partition_point(|(t_ns, _)| *t_ns <= horizon_ns);
        let sample = self.sorted.drain(..due.min(most)).collect();
        (sample, due <= most)
    }

    fn merge(&mut self) {
        let mut new = std::mem::take(&mut self.new);
        new.sort_by_key(|(t_ns, _)| *t_ns);
        let Some((first_ns, _)) = new.first() else {
            return;
        };
        // Late arrivals lie a few milliseconds back at most, so the tail is short.
        let later = self.sorted.partition_point(|(t_ns, _)| t_ns <= first_ns);
        let mut tail: Vec<(u64, T)> = self.sorted.drain(later..).collect();
        tail.append(&mut new);
        tail.sort_by_key(|(t_ns, _)| *t_ns);
        self.sorted.extend(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_in_the_order_of_time() {
        let mut pending = Pending::default();
        for (t_ns, name) in [(5, "a"), (3, "b"), (9, "c"), (5, "d")] {
            pending.push(t_ns, name);
        }
        assert_eq!(pending.take_until(5, 2), (vec![(3, "b"), (5, "a")], false));
        for (t_ns, name) in [(9, "e"), (4, "f"), (12, "g")] {
            pending.push(t_ns, name);
        }
        let (sample, all) = pending.take_until(9, usize::MAX);
        assert_eq!(sample, [(4, "f"), (5, "d"), (9, "c"), (9, "e")]);
        assert!(all);
        assert_eq!(pending.take_until(11, 5), (vec![], true));
        assert_eq!(pending.take_until(u64::MAX, 5).0, [(12, "g")]);
    }
}
