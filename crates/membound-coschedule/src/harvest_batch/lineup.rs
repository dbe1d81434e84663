//! The order in which jobs are started: of several orders the one with which the batch is expected to end
//! first.
//!
//! Memory-bound jobs should not all run at the same time: two of them compete for the last-level cache and
//! for memory bandwidth, while a compute-bound job alongside a memory-bound one loses next to nothing. The loss
//! is modelled ([`SLOWDOWN_PER_PEER`]); the model decides about orders only and enters no reported figure.
//! Times are in seconds.

use std::collections::VecDeque;

use membound_types::BatchOrder;

/// What a job is expected to do, where known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Expected {
    /// Wall time of an ordinary run.
    pub(super) wall_s: Option<f64>,
    /// Share of its time that it waits for memory.
    pub(super) stall: Option<f64>,
}

/// Slowdown of a job that only waits for memory alongside one other such job, as a share.
const SLOWDOWN_PER_PEER: f64 = 0.5;
/// Minimum stall share of a memory-bound job.
const MIN_MEMORY_BOUND_STALL_SHARE: f64 = 0.3;
/// Minimum share of the batch's time that another order must save to replace the given one.
const MIN_SAVING: f64 = 0.02;
/// Maximum number of jobs for which orders are compared; for more, the longest are simply started first.
const MAX_COMPARED: usize = 20_000;

impl Expected {
    fn is_memory_bound(self) -> bool {
        self.stall
            .is_some_and(|share| share >= MIN_MEMORY_BOUND_STALL_SHARE)
    }
}

/// Jobs that wait to be started. The next one depends on what runs.
#[derive(Clone, Debug)]
pub(super) struct Lineup {
    /// The chosen order.
    pub(super) order: BatchOrder,
    slots: usize,
    /// Position of every job in the order, by index.
    rank: Vec<usize>,
    is_memory_bound: Vec<bool>,
    /// Expected wall time of every job; where unknown, the mean of those that are known.
    wall_s: Vec<f64>,
    memory: VecDeque<usize>,
    other: VecDeque<usize>,
    /// Expected time of the waiting jobs, memory-bound ones and others.
    memory_s: f64,
    other_s: f64,
}

impl Lineup {
    /// The best order for `slots` jobs at one time: the given one, unless another is expected to end earlier.
    pub(super) fn best(jobs: &[Expected], slots: usize) -> Self {
        let known = jobs.iter().any(|job| job.wall_s.is_some());
        if !known || slots >= jobs.len() {
            return Self::new(jobs, slots, BatchOrder::Given);
        }
        if jobs.len() > MAX_COMPARED {
            return Self::new(jobs, slots, BatchOrder::LongestFirst);
        }
        let mut best = Self::new(jobs, slots, BatchOrder::Given);
        let mut best_s = best.makespan_s(jobs);
        for order in [BatchOrder::LongestFirst, BatchOrder::Spread] {
            let other = Self::new(jobs, slots, order);
            let other_s = other.makespan_s(jobs);
            if other_s < best_s * (1.0 - MIN_SAVING) {
                (best, best_s) = (other, other_s);
            }
        }
        best
    }

    /// Puts all `jobs` into an order.
    fn new(jobs: &[Expected], slots: usize, order: BatchOrder) -> Self {
        let known: Vec<f64> = jobs.iter().filter_map(|job| job.wall_s).collect();
        let mean_s = if known.is_empty() {
            1.0
        } else {
            known.iter().sum::<f64>() / known.len() as f64
        };
        let wall_s: Vec<f64> = jobs
            .iter()
            .map(|job| job.wall_s.unwrap_or(mean_s))
            .collect();
        let mut sorted: Vec<usize> = (0..jobs.len()).collect();
        if order != BatchOrder::Given {
            sorted.sort_by(|a, b| wall_s[*b].total_cmp(&wall_s[*a]));
        }
        let mut rank = vec![0; jobs.len()];
        for (place, job) in sorted.iter().enumerate() {
            rank[*job] = place;
        }
        let is_memory_bound: Vec<bool> = jobs.iter().map(|job| job.is_memory_bound()).collect();
        let (memory, other): (VecDeque<_>, VecDeque<_>) =
            sorted.into_iter().partition(|job| is_memory_bound[*job]);
        let sum = |jobs: &VecDeque<usize>| jobs.iter().map(|job| wall_s[*job]).sum();
        Self {
            order,
            slots,
            memory_s: sum(&memory),
            other_s: sum(&other),
            rank,
            is_memory_bound,
            wall_s,
            memory,
            other,
        }
    }

    /// Number of jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.memory.len() + self.other.len()
    }

    /// Expected time of the waiting jobs, if run one after another.
    pub(super) fn waiting_s(&self) -> f64 {
        self.memory_s + self.other_s
    }

    /// Expected wall time of a job; 1 if the time of no job is known.
    pub(super) fn expected_s(&self, job: usize) -> f64 {
        self.wall_s[job]
    }

    /// Whether a job is known to be memory-bound.
    pub(super) fn is_memory_bound(&self, job: usize) -> bool {
        self.is_memory_bound[job]
    }

    /// The waiting jobs, first the memory-bound ones, then the others, each kind in its order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        self.memory.iter().chain(&self.other).copied()
    }

    /// Removes and returns the job to start next, alongside `memory_bound_running` memory-bound jobs.
    pub(super) fn next(&mut self, memory_bound_running: usize) -> Option<usize> {
        let (memory, other) = (self.memory.front(), self.other.front());
        let takes_memory = match (memory, other) {
            (None, None) => return None,
            (memory, None) => memory.is_some(),
            (None, Some(_)) => false,
            (Some(memory), Some(other)) if self.order != BatchOrder::Spread => {
                self.rank[*memory] < self.rank[*other]
            }
            // Both kinds should last to the end, so each kind gets slots in proportion to its remaining time.
            (Some(_), Some(_)) => {
                let part = self.memory_s / self.waiting_s().max(f64::MIN_POSITIVE);
                (memory_bound_running as f64) < (part * self.slots as f64).ceil()
                    && memory_bound_running + 1 < self.slots.max(2)
            }
        };
        let job = if takes_memory {
            self.memory.pop_front()
        } else {
            self.other.pop_front()
        }?;
        self.account(job, -1.0);
        Some(job)
    }

    /// Puts back a job that could not be started, as the next of its kind.
    pub(super) fn put_back(&mut self, job: usize) {
        if self.is_memory_bound[job] {
            self.memory.push_front(job);
        } else {
            self.other.push_front(job);
        }
        self.account(job, 1.0);
    }

    /// Removes jobs that are started as a set.
    pub(super) fn take(&mut self, jobs: &[usize]) {
        self.memory.retain(|job| !jobs.contains(job));
        self.other.retain(|job| !jobs.contains(job));
        for job in jobs {
            self.account(*job, -1.0);
        }
    }

    fn account(&mut self, job: usize, sign: f64) {
        let sum = if self.is_memory_bound[job] {
            &mut self.memory_s
        } else {
            &mut self.other_s
        };
        *sum = (*sum + sign * self.wall_s[job]).max(0.0);
    }

    /// Simulates the batch; returns the time at which its last job is expected to end.
    fn makespan_s(&self, jobs: &[Expected]) -> f64 {
        let mut waiting = self.clone();
        // Remaining time of each running job, as it would take alone.
        let mut running: Vec<(usize, f64)> = Vec::new();
        let mut now_s = 0.0;
        loop {
            while running.len() < self.slots {
                let memory = |(job, _): &&(usize, f64)| self.is_memory_bound[*job];
                let memory_bound_running = running.iter().filter(memory).count();
                let Some(job) = waiting.next(memory_bound_running) else {
                    break;
                };
                running.push((job, self.wall_s[job]));
            }
            if running.is_empty() {
                return now_s;
            }
            let stall = |job: usize| jobs[job].stall.unwrap_or(0.0);
            let all: f64 = running.iter().map(|(job, _)| stall(*job)).sum();
            let slower = |job: usize| 1.0 + SLOWDOWN_PER_PEER * stall(job) * (all - stall(job));
            let step_s = running
                .iter()
                .map(|(job, left_s)| left_s * slower(*job))
                .fold(f64::INFINITY, f64::min);
            now_s += step_s;
            for (job, left_s) in &mut running {
                *left_s -= step_s / slower(*job);
            }
            running.retain(|(_, left_s)| *left_s > 1e-9);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(wall_s: f64, stall: f64) -> Expected {
        Expected {
            wall_s: Some(wall_s),
            stall: Some(stall),
        }
    }

    /// Checks the chosen order, and the order of starts when each job ends at once.
    fn check(jobs: &[Expected], slots: usize, order: BatchOrder, started: &[usize]) {
        let mut lineup = Lineup::best(jobs, slots);
        assert_eq!(lineup.order, order, "{jobs:?}");
        let found: Vec<usize> = std::iter::from_fn(|| lineup.next(0)).collect();
        assert_eq!(found, started, "{jobs:?}");
        assert_eq!((lineup.len(), lineup.waiting_s()), (0, 0.0));
    }

    #[test]
    fn unknown_jobs_keep_the_order_of_the_list() {
        check(&[Expected::default(); 3], 2, BatchOrder::Given, &[0, 1, 2]);
        check(&[], 2, BatchOrder::Given, &[]);
        // With one slot, or a slot for each job, no order ends earlier.
        let jobs = [job(1.0, 0.0), job(5.0, 0.9), job(3.0, 0.0)];
        check(&jobs, 3, BatchOrder::Given, &[0, 1, 2]);
    }

    #[test]
    fn the_longest_is_first_where_that_ends_earlier() {
        let jobs: Vec<_> = [1.0, 1.0, 1.0, 1.0, 4.0]
            .map(|wall_s| job(wall_s, 0.0))
            .into();
        let makespan = |order| Lineup::new(&jobs, 2, order).makespan_s(&jobs);
        assert!((makespan(BatchOrder::Given) - 6.0).abs() < 1e-6);
        assert!((makespan(BatchOrder::LongestFirst) - 4.0).abs() < 1e-6);
        check(&jobs, 2, BatchOrder::LongestFirst, &[4, 0, 1, 2, 3]);
        // Equal jobs stay in the order that the user wrote.
        check(&[job(2.0, 0.0); 4], 2, BatchOrder::Given, &[0, 1, 2, 3]);
        // A job of unknown time counts as the mean, 3 s here.
        let mut jobs = jobs;
        jobs[0].wall_s = None;
        jobs[4].wall_s = Some(9.0);
        check(&jobs, 2, BatchOrder::LongestFirst, &[4, 0, 1, 2, 3]);
    }

    #[test]
    fn memory_bound_jobs_run_together_with_compute_bound_ones() {
        let (memory, compute) = (job(10.0, 0.8), job(10.0, 0.0));
        let jobs = [memory, memory, compute, compute];
        let makespan = |order| Lineup::new(&jobs, 2, order).makespan_s(&jobs);
        // 10 s · (1 + 0.5 · 0.8 · 0.8), and then 10 s.
        assert!((makespan(BatchOrder::Given) - 23.2).abs() < 1e-6);
        assert!((makespan(BatchOrder::Spread) - 20.0).abs() < 1e-6);
        let mut lineup = Lineup::best(&jobs, 2);
        assert_eq!(lineup.order, BatchOrder::Spread);
        assert_eq!(lineup.next(0), Some(0));
        assert_eq!(lineup.next(1), Some(2));
        assert_eq!(lineup.next(1), Some(3));
        assert_eq!(lineup.next(0), Some(1));
        // With memory-bound jobs only, there is nothing to spread.
        assert_eq!(Lineup::best(&[memory; 4], 2).order, BatchOrder::Given);
    }

    #[test]
    fn each_kind_has_its_part_of_the_slots() {
        let jobs: Vec<_> = [job(10.0, 0.9); 6]
            .into_iter()
            .chain([job(10.0, 0.0); 6])
            .collect();
        let mut lineup = Lineup::new(&jobs, 4, BatchOrder::Spread);
        let started: Vec<_> = [0, 1, 2, 2]
            .map(|beside| lineup.next(beside).unwrap())
            .into();
        assert_eq!(started, [0, 1, 6, 7]);
    }

    #[test]
    fn jobs_are_returned_and_removed() {
        let jobs = [job(1.0, 0.0), job(2.0, 0.5), job(3.0, 0.0)];
        let mut lineup = Lineup::new(&jobs, 1, BatchOrder::Given);
        let first = lineup.next(0).unwrap();
        lineup.put_back(first);
        assert!((lineup.waiting_s() - 6.0).abs() < 1e-9);
        lineup.take(&[0, 2]);
        assert_eq!(lineup.waiting().collect::<Vec<_>>(), [1]);
        assert!((lineup.waiting_s() - 2.0).abs() < 1e-9);
        assert!(lineup.is_memory_bound(1) && !lineup.is_memory_bound(0));
        assert_eq!(lineup.next(0), Some(1));
    }
}
