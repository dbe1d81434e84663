//! What is started next: a pure decision about what was seen.

use super::halt::Stop;
use super::lineup::Lineup;
use super::sets::{Choice, Chosen};

/// What runs at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Jobs, with a set as one of them.
    pub(super) running: usize,
    /// Memory-bound ones among them; a set is one.
    pub(super) memory_bound: usize,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Start this job as an ordinary process.
    Start(usize),
    /// Start these together.
    Together(Chosen),
    /// Wait until something that runs has ended.
    Wait,
    /// Nothing runs, and nothing is to be started.
    Over,
}

/// Jobs that are not started yet, and whether they will be.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) lineup: Lineup,
    slots: usize,
    stop: Option<Stop>,
}

impl Queue {
    pub(super) const fn new(lineup: Lineup, slots: usize) -> Self {
        Self {
            lineup,
            slots,
            stop: None,
        }
    }

    /// The next thing to do. `choose` says whether jobs of the lineup are to run together, when so many
    /// slots are free.
    pub(super) fn next(
        &mut self,
        seen: Seen,
        choose: &mut dyn FnMut(&Lineup, usize) -> Choice,
    ) -> Next {
        let is_done = self.stop.is_some() || self.lineup.len() == 0;
        if is_done && seen.running == 0 {
            return Next::Over;
        }
        if is_done || seen.running >= self.slots {
            return Next::Wait;
        }
        if let Choice::Set(set) = choose(&self.lineup, self.slots - seen.running) {
            self.lineup.take(&set.jobs);
            return Next::Together(set);
        }
        self.lineup
            .next(seen.memory_bound)
            .map_or(Next::Wait, Next::Start)
    }

    /// The system had no process for this job: it waits until one of the `running` jobs has ended.
    pub(super) fn no_room(&mut self, job: usize, running: usize) {
        self.lineup.put_back(job);
        self.slots = running.max(1);
    }

    /// Starts nothing any more, and remembers the harder of two ways to stop.
    pub(super) fn stop(&mut self, how: Stop) {
        self.stop = self.stop.max(Some(how));
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use membound_types::BatchSetReason;

    use super::*;
    use crate::harvest::batch::lineup::Expected;

    fn queue(jobs: usize, slots: usize) -> Queue {
        Queue::new(Lineup::best(&vec![Expected::default(); jobs], slots), slots)
    }

    fn seen(running: usize) -> Seen {
        Seen {
            running,
            memory_bound: 0,
        }
    }

    fn alone(_: &Lineup, _: usize) -> Choice {
        Choice::None
    }

    #[test]
    fn slots_are_filled_and_refilled() {
        let mut queue = queue(3, 2);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Start(0));
        assert_eq!(queue.next(seen(1), &mut alone), Next::Start(1));
        assert_eq!(queue.next(seen(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(1), &mut alone), Next::Start(2));
        assert_eq!(queue.next(seen(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Over);
    }

    #[test]
    fn a_batch_that_is_stopped_starts_nothing() {
        let mut queue = queue(3, 2);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Start(0));
        queue.stop(Stop::Now);
        queue.stop(Stop::Soon);
        assert_eq!(queue.stop, Some(Stop::Now));
        assert_eq!(queue.next(seen(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Over);
        assert_eq!(queue.lineup.len(), 2);
    }

    #[test]
    fn a_set_takes_one_slot_and_its_jobs_out_of_the_lineup() {
        let mut queue = queue(4, 2);
        let mut pair = |lineup: &Lineup, free: usize| {
            assert_eq!((lineup.len(), free), (4, 2));
            Choice::Set(Chosen {
                jobs: vec![1, 3],
                key: String::new(),
                why: BatchSetReason::Asked,
            })
        };
        let Next::Together(set) = queue.next(seen(0), &mut pair) else {
            panic!("no set")
        };
        assert_eq!(set.jobs, [1, 3]);
        assert_eq!(queue.next(seen(1), &mut alone), Next::Start(0));
        assert_eq!(queue.next(seen(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(1), &mut alone), Next::Start(2));
    }

    #[test]
    fn a_job_without_a_process_waits_for_the_next_end() {
        let mut queue = queue(3, 0x100);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Start(0));
        assert_eq!(queue.next(seen(1), &mut alone), Next::Start(1));
        queue.no_room(1, 1);
        assert_eq!(queue.next(seen(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(seen(0), &mut alone), Next::Start(1));
        assert_eq!(queue.slots(), 1);
    }
}
