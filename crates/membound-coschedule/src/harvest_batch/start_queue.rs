//! Decides what is started next, from what runs; has no side effects.

use super::halt::Stop;
use super::job_sets::{Choice, JobSet};
use super::lineup::Lineup;

/// Numbers of running jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RunningCounts {
    /// All jobs; a set counts as one.
    pub(super) running: usize,
    /// Memory-bound jobs among them; a set counts as one.
    pub(super) memory_bound: usize,
}

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Start the job with this index as an ordinary process.
    Start(usize),
    /// Start these jobs together in a harvest.
    Together(JobSet),
    /// Wait until a running job has ended.
    Wait,
    /// The batch is over: nothing runs, and nothing is to be started.
    Over,
}

/// Jobs that are not started yet, the number of slots, and whether the batch stops.
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

    /// The next action. `choose` chooses a set from the lineup for a number of free slots, if any.
    pub(super) fn next(
        &mut self,
        running_counts: RunningCounts,
        choose: &mut dyn FnMut(&Lineup, usize) -> Choice,
    ) -> Next {
        let is_done = self.stop.is_some() || self.lineup.len() == 0;
        if is_done && running_counts.running == 0 {
            return Next::Over;
        }
        if is_done || running_counts.running >= self.slots {
            return Next::Wait;
        }
        if let Choice::Set(set) = choose(&self.lineup, self.slots - running_counts.running) {
            self.lineup.take(&set.jobs);
            return Next::Together(set);
        }
        self.lineup
            .next(running_counts.memory_bound)
            .map_or(Next::Wait, Next::Start)
    }

    /// Puts back a job for which the system had no room, and limits the slots to the `running` jobs.
    pub(super) fn no_room(&mut self, job: usize, running: usize) {
        self.lineup.put_back(job);
        self.slots = running.max(1);
    }

    /// Starts no more jobs; of two ways to stop, the harder one is kept.
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
    use crate::harvest_batch::lineup::Expected;

    fn queue(jobs: usize, slots: usize) -> Queue {
        Queue::new(Lineup::best(&vec![Expected::default(); jobs], slots), slots)
    }

    fn running_counts(running: usize) -> RunningCounts {
        RunningCounts {
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
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Start(0));
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Start(1));
        assert_eq!(queue.next(running_counts(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Start(2));
        assert_eq!(queue.next(running_counts(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Over);
    }

    #[test]
    fn a_batch_that_is_stopped_starts_nothing() {
        let mut queue = queue(3, 2);
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Start(0));
        queue.stop(Stop::Now);
        queue.stop(Stop::Soon);
        assert_eq!(queue.stop, Some(Stop::Now));
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Over);
        assert_eq!(queue.lineup.len(), 2);
    }

    #[test]
    fn a_set_takes_one_slot_and_its_jobs_out_of_the_lineup() {
        let mut queue = queue(4, 2);
        let mut pair = |lineup: &Lineup, free: usize| {
            assert_eq!((lineup.len(), free), (4, 2));
            Choice::Set(JobSet {
                jobs: vec![1, 3],
                key: String::new(),
                why: BatchSetReason::Asked,
            })
        };
        let Next::Together(set) = queue.next(running_counts(0), &mut pair) else {
            panic!("no set")
        };
        assert_eq!(set.jobs, [1, 3]);
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Start(0));
        assert_eq!(queue.next(running_counts(2), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Start(2));
    }

    #[test]
    fn a_job_without_a_process_waits_for_the_next_end() {
        let mut queue = queue(3, 0x100);
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Start(0));
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Start(1));
        queue.no_room(1, 1);
        assert_eq!(queue.next(running_counts(1), &mut alone), Next::Wait);
        assert_eq!(queue.next(running_counts(0), &mut alone), Next::Start(1));
        assert_eq!(queue.slots(), 1);
    }
}
