//! What patches may cost the program, and what they are taken to cost.
//!
//! The costs here are guesses on the high side. They decide only for how long and how often
//! patches stand in the text; no figure of a run is computed from them.

use crate::groups::Threads;

/// Nanoseconds that an execution of a patched site costs when it is not sampled.
const UNTAKEN_NS: f64 = 1.0;
/// The same where threads that run at once count down in one line, which goes to and fro between
/// their cores: stores queue up behind it until the core has no room for more.
const CONTENDED_NS: f64 = 60.0;
/// The same where executions are counted by locked operations.
const LOCKED_NS: f64 = 12.0;
/// Nanoseconds that a recorded execution costs: fences, time stamps, a call into the agent.
const TAKEN_NS: f64 = 250.0;
/// Nanoseconds that may be spent before the program has run for long.
const ADVANCE_NS: f64 = 40e6;

/// What stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// Counting, and timing some.
    Time,
    /// Counting without losing any among threads.
    Count,
    /// Counting basic blocks, in the same way.
    Blocks,
    /// Recording every execution.
    Record,
}

impl Work {
    /// Nanoseconds that `executions` cost, of which `taken` were recorded.
    pub(crate) fn cost_ns(self, threads: Threads, executions: f64, taken: f64) -> f64 {
        let each = match (self, threads) {
            (Self::Time, Threads::Several) => CONTENDED_NS,
            (Self::Time | Self::Record, _) => UNTAKEN_NS,
            (Self::Count | Self::Blocks, _) => LOCKED_NS,
        };
        executions * each + taken * TAKEN_NS
    }
}

/// What has been spent of what may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Share of the program's CPU time.
    share: f64,
    spent_ns: f64,
}

impl Budget {
    /// Nothing spent yet of this share of the program's time.
    pub(crate) const fn new(share: f64) -> Self {
        Self {
            share,
            spent_ns: 0.0,
        }
    }

    /// Nanoseconds that may be spent now, after the program ran for `cpu_ns`.
    pub(crate) fn left_ns(&self, cpu_ns: u64) -> f64 {
        if self.share <= 0.0 {
            return 0.0;
        }
        ADVANCE_NS + self.share * cpu_ns as f64 - self.spent_ns
    }

    /// CPU time of the programs, in nanoseconds, in which as much may be spent as this.
    pub(crate) fn earned_within_ns(&self, cost_ns: f64) -> u64 {
        (cost_ns / self.share) as u64
    }

    /// They were spent.
    pub(crate) fn spend(&mut self, cost_ns: f64) {
        self.spent_ns += cost_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_comes_back_with_the_program_s_time() {
        let mut budget = Budget::new(0.05);
        let first = budget.left_ns(0);
        assert!(first > 0.0);
        budget.spend(first + 1e6);
        assert!(budget.left_ns(0) < 0.0);
        assert!(budget.left_ns(10_000_000) < 0.0);
        assert!(budget.left_ns(30_000_000) > 0.0);
        assert_eq!(Budget::new(0.0).left_ns(u64::MAX), 0.0);
        assert_eq!(Budget::new(0.25).earned_within_ns(1e6), 4_000_000);
        assert_eq!(Budget::new(0.0).earned_within_ns(1e6), u64::MAX);
        let alone = |work: Work| work.cost_ns(Threads::One, 10.0, 0.0);
        assert!(alone(Work::Count) > alone(Work::Time));
        assert!(Work::Time.cost_ns(Threads::Several, 10.0, 0.0) > alone(Work::Time));
    }
}
