//! The budget: how much CPU time recording may cost the programs, and how much it is assumed to cost.
//!
//! The costs of patches here are guesses on the high side. They only decide how long and how often patches
//! are in the text; no figure of a run is computed from them. The recorder's own CPU time is measured, and
//! counts as far as the programs lose time by it: see [`Processors::lost_beside`].

use membound_launch::{Hold, Processors};

/// Nanoseconds per execution of a patched site that is not sampled.
const UNTAKEN_NS: f64 = 1.0;
/// The same where concurrent threads decrement a counter in one line. The line moves between their cores, and
/// stores queue up behind it until the store buffer is full.
const CONTENDED_NS: f64 = 60.0;
/// The same where executions are counted with locked instructions.
const LOCKED_NS: f64 = 12.0;
/// The same where they are counted with plain instructions.
const PLAIN_NS: f64 = 4.0;
/// Nanoseconds per exchange of patches, beside the time that programs measure themselves: text pages are copied for
/// the process, and cores are interrupted so that they refetch the text. Measured with a compiler of 25 MB.
pub(crate) const EXCHANGE_NS: f64 = 100_000.0;
/// Nanoseconds per recorded execution: fences, time stamps, a call into the agent.
const TAKEN_NS: f64 = 250.0;
/// Nanoseconds that may be spent before the program has earned any.
const ADVANCE_NS: f64 = 9e6;
/// Share of the earned budget that recording outside windows may use up. The rest stays reserved for windows:
/// without them, a slow recorder would find out nothing.
const MAX_SHARE_OUTSIDE_WINDOWS: f64 = 0.75;
/// Share of the earned budget that may be lost before work that can wait until the programs have ended is put
/// off. Samples themselves take about as much again.
const MAX_LOSS_BEFORE_END: f64 = 0.3;
/// Share of the earned budget that examining samples may use up whatever else has been spent. Without it, a
/// recording whose start cost more than it may would find out nothing for a long time.
const MIN_SHARE_OF_SAMPLES: f64 = 0.2;
/// Share of the recorder's CPU time that programs lose, above which they count as using nearly all
/// processors.
const IN_THE_WAY: f64 = 0.5;

/// Whether plain counters of one process may race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One thread of the process runs at a time.
    One,
    /// Several threads run concurrently.
    Several,
}

/// The kind of patches that a window puts into the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// Count executions, and time some of them.
    Time,
    /// Count executions exactly, also among concurrent threads.
    Count,
    /// Count basic blocks, likewise.
    Blocks,
    /// Count the basic blocks that run seldom, above all those around inner loops: that slows hardly anything, so the
    /// counts show how often code runs without patches.
    Entries,
    /// Record every execution.
    Record,
}

impl Work {
    /// Nanoseconds that `executions` cost, of which `taken` were timed or recorded.
    pub(crate) fn cost_ns(self, threads: Threads, executions: f64, taken: f64) -> f64 {
        let each = match (self, threads) {
            (Self::Time, Threads::Several) => CONTENDED_NS,
            (Self::Time | Self::Record, _) => UNTAKEN_NS,
            (Self::Entries, Threads::One) => PLAIN_NS,
            (Self::Count | Self::Blocks | Self::Entries, _) => LOCKED_NS,
        };
        executions * each + taken * TAKEN_NS
    }
}

/// What patches and the rest of recording have spent, against what they may spend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Share of the programs' CPU time that may be spent.
    share: f64,
    spent_ns: f64,
    /// CPU time lost to recording outside windows: the recorder's own, samples, allocations.
    otherwise_ns: f64,
}

impl Budget {
    /// A budget of this share of the programs' CPU time, nothing spent yet.
    pub(crate) const fn new(share: f64) -> Self {
        Self {
            share,
            spent_ns: 0.0,
            otherwise_ns: 0.0,
        }
    }

    /// Nanoseconds that may be spent now, after the programs ran for `cpu_ns`; negative when overspent.
    pub(crate) fn left_ns(&self, cpu_ns: u64) -> f64 {
        if self.share <= 0.0 {
            return 0.0;
        }
        let earned_ns = earned_ns(self.share, cpu_ns);
        earned_ns - self.spent_ns - self.otherwise_ns.min(MAX_SHARE_OUTSIDE_WINDOWS * earned_ns)
    }

    /// Sets the total lost to recording outside windows, in nanoseconds.
    pub(crate) const fn lost_otherwise(&mut self, lost_ns: f64) {
        self.otherwise_ns = lost_ns;
    }

    /// CPU time of the programs, in nanoseconds, in which `cost_ns` is earned.
    pub(crate) fn earned_within_ns(&self, cost_ns: f64) -> u64 {
        (cost_ns / self.share) as u64
    }

    /// Adds to what was spent.
    pub(crate) fn spend(&mut self, cost_ns: f64) {
        self.spent_ns += cost_ns;
    }
}

/// Nanoseconds that may have been spent in all when programs ran for `cpu_ns`.
fn earned_ns(share: f64, cpu_ns: u64) -> f64 {
    ADVANCE_NS + share * cpu_ns as f64
}

/// The totals at one moment, in nanoseconds since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) t_ns: u64,
    /// CPU time of the programs.
    pub(crate) cpu_ns: u64,
    /// Time for which their threads were runnable and had no processor.
    pub(crate) waited_ns: u64,
    /// The recorder's own CPU time.
    pub(crate) own_ns: u64,
    /// Number of processors that other processes use.
    pub(crate) others: f64,
    /// Number of threads of the programs that were sampled lately.
    pub(crate) active_threads: usize,
}

impl Totals {
    /// Difference to an earlier reading.
    const fn since(&self, before: &Self) -> Self {
        Self {
            t_ns: self.t_ns.saturating_sub(before.t_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
            own_ns: self.own_ns.saturating_sub(before.own_ns),
            others: self.others,
            active_threads: self.active_threads,
        }
    }
}

/// Estimates how much CPU time programs lose to the recorder running beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interference {
    processors: Processors,
    /// Share of the program's CPU time that recording may cost.
    share: f64,
    last: Option<Totals>,
    /// Share of the recorder's CPU time that the programs lost in the last interval.
    part: f64,
    lost_ns: f64,
}

impl Interference {
    /// Shortest interval between two readings: the clocks of processes are too coarse for less.
    const EVERY_NS: u64 = 20_000_000;
    /// Processors that a running program uses at least; below, it counts as idle.
    const HARDLY_BUSY: f64 = 0.1;

    /// For programs that share these processors with the recorder.
    pub(crate) const fn new(processors: Processors, share: f64) -> Self {
        Self {
            processors,
            share,
            last: None,
            part: 1.0,
            lost_ns: 0.0,
        }
    }

    /// True if work that can wait for the end may be done now, after `own_ns` of the recorder's CPU time.
    pub(crate) fn may_go_on(&self, own_ns: u64) -> bool {
        self.lost_share(own_ns) <= MAX_LOSS_BEFORE_END
    }

    /// True if work on which the next patches depend may be done now: it leaves windows what is reserved for them.
    pub(crate) fn may_prepare_windows(&self, own_ns: u64) -> bool {
        self.lost_share(own_ns) <= MAX_SHARE_OUTSIDE_WINDOWS
    }

    /// True if samples, which have used `examined_ns` of CPU time so far, have not used what is theirs alone.
    pub(crate) fn is_reserved_for_samples(&self, examined_ns: u64) -> bool {
        (examined_ns as f64) < MIN_SHARE_OF_SAMPLES * self.earned_ns()
    }

    /// True if programs use nearly all processors and have lost as much to the recorder as they may.
    pub(crate) fn is_in_the_way(&self, own_ns: u64) -> bool {
        self.part > IN_THE_WAY && !self.may_go_on(own_ns)
    }

    /// How planning is held after `own_ns` of the recorder's CPU time. On a free processor it costs the programs
    /// caches and memory bandwidth, so it may use the whole budget there. `serves`: programs serve requests.
    pub(crate) fn hold(&self, own_ns: u64, serves: bool) -> Hold {
        let is_spent = self.lost_share(own_ns) > 1.0;
        match self.is_in_the_way(own_ns) {
            true if is_spent || serves => Hold::Nearly,
            true => Hold::Partly,
            false if is_spent => Hold::Partly,
            false => Hold::Not,
        }
    }

    /// What programs have lost so far, as a share of what they may have lost.
    fn lost_share(&self, own_ns: u64) -> f64 {
        let last = self.last.unwrap_or_default();
        let since_ns = own_ns.saturating_sub(last.own_ns) as f64;
        (self.lost_ns + since_ns * self.part) / self.earned_ns()
    }

    /// Nanoseconds that programs may have lost so far.
    fn earned_ns(&self) -> f64 {
        earned_ns(self.share, self.last.unwrap_or_default().cpu_ns)
    }

    /// True if programs wanted nearly all processors in the last interval.
    pub(crate) fn lacks_processors(&self) -> bool {
        self.last.is_some() && self.part > IN_THE_WAY
    }

    /// CPU time in nanoseconds that the programs have lost so far.
    pub(crate) fn lost_ns(&mut self, now: Totals) -> f64 {
        let first = Totals { own_ns: 0, ..now };
        let passed = now.since(self.last.get_or_insert(first));
        if passed.t_ns >= Self::EVERY_NS {
            let wanted_ns = (passed.cpu_ns + passed.waited_ns) as f64;
            // A thread that waits for a processor still needs only one.
            let busy = (wanted_ns / passed.t_ns as f64).min(passed.active_threads as f64);
            // A program that is held, sleeps or has ended loses nothing meanwhile.
            self.part = match busy >= Self::HARDLY_BUSY {
                true => self.processors.lost_beside(busy + passed.others),
                false => 0.0,
            };
            self.lost_ns += passed.own_ns as f64 * self.part;
            self.last = Some(now);
        }
        self.lost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading after 100 ms: `busy` threads ran all the time, and `waits` threads waited for a processor.
    fn after_100_ms(busy: u64, waits: u64) -> Totals {
        Totals {
            t_ns: 100_000_000,
            cpu_ns: 100_000_000 * busy,
            waited_ns: 100_000_000 * waits,
            active_threads: (busy + waits) as usize,
            ..Totals::default()
        }
    }

    #[test]
    fn what_is_done_beside_a_program_counts_but_leaves_some_to_windows() {
        let mut budget = Budget::new(0.05);
        let all = budget.left_ns(1_000_000_000);
        budget.lost_otherwise(10e6);
        assert!((all - budget.left_ns(1_000_000_000) - 10e6).abs() < 1.0);
        budget.lost_otherwise(1e12);
        let left = budget.left_ns(1_000_000_000);
        assert!(left > 0.0 && left <= all / 2.0, "{left} of {all}");
    }

    #[test]
    fn own_time_counts_more_where_the_program_has_all_processors() {
        let lost = |busy: u64| {
            let mut interference = Interference::new(Processors::cores(2), 0.05);
            let totals = |at: u64| Totals {
                t_ns: at * 50_000_000,
                cpu_ns: at * 50_000_000 * busy,
                own_ns: at * 10_000_000,
                active_threads: busy as usize,
                ..Totals::default()
            };
            (0..=4).map(|at| interference.lost_ns(totals(at))).last()
        };
        assert_eq!(lost(2), Some(40e6));
        assert!(lost(1) < Some(20e6) && lost(1) > Some(0.0));
        assert_eq!(lost(0), Some(0.0), "it does not run");
    }

    #[test]
    fn what_can_wait_is_done_where_it_costs_the_program_nothing() {
        let after = |busy: u64, own_ns: u64| {
            let mut interference = Interference::new(Processors::cores(2), 0.05);
            interference.lost_ns(Totals::default());
            interference.lost_ns(after_100_ms(busy, 0));
            interference.may_go_on(own_ns)
        };
        assert!(after(1, 40_000_000) && !after(2, 40_000_000));
        let is_in_the_way = |busy: u64, waits: u64, own_ns: u64| {
            let mut interference = Interference::new(Processors::cores(2), 0.05);
            interference.lost_ns(Totals::default());
            interference.lost_ns(after_100_ms(busy, waits));
            interference.is_in_the_way(own_ns)
        };
        assert!(is_in_the_way(2, 0, 50_000_000) && !is_in_the_way(2, 0, 5_000_000));
        assert!(
            is_in_the_way(1, 1, 50_000_000),
            "two threads take turns on one"
        );
        let lacks_processors = |busy: u64, waits: u64| {
            let mut interference = Interference::new(Processors::cores(2), 0.05);
            interference.lost_ns(Totals::default());
            interference.lost_ns(after_100_ms(busy, waits));
            interference.lacks_processors()
        };
        assert!(lacks_processors(2, 0) && lacks_processors(1, 1));
        assert!(!lacks_processors(1, 0) && !lacks_processors(0, 0));
        let mut with_clients = Interference::new(Processors::cores(2), 0.05);
        with_clients.lost_ns(Totals::default());
        with_clients.lost_ns(Totals {
            others: 1.0,
            ..after_100_ms(1, 0)
        });
        assert!(with_clients.is_in_the_way(50_000_000));
        let one_thread = |waits: u64| Totals {
            active_threads: 1,
            ..after_100_ms(1, waits)
        };
        let hold = |totals: Totals, own_ns: u64, serves: bool| {
            let mut interference = Interference::new(Processors::cores(2), 0.05);
            interference.lost_ns(Totals::default());
            interference.lost_ns(totals);
            interference.hold(own_ns, serves)
        };
        assert_eq!(hold(one_thread(1), 50_000_000, true), Hold::Not);
        assert_eq!(hold(one_thread(0), 1_000_000_000, true), Hold::Partly);
        assert_eq!(hold(after_100_ms(2, 0), 10_000_000, false), Hold::Partly);
        assert_eq!(hold(after_100_ms(2, 0), 10_000_000, true), Hold::Nearly);
        assert_eq!(hold(after_100_ms(2, 0), 50_000_000, false), Hold::Nearly);
        let is_room = !is_in_the_way(1, 0, 1_000_000_000);
        assert!(is_room, "there is a processor for it");
        assert!(after(2, 5_000_000));
        let mut full = Interference::new(Processors::cores(2), 0.05);
        full.lost_ns(Totals::default());
        full.lost_ns(after_100_ms(2, 0));
        assert!(full.may_prepare_windows(10_000_000) && !full.may_go_on(10_000_000));
        assert!(!full.may_prepare_windows(50_000_000));
        assert!(full.is_reserved_for_samples(2_000_000));
        assert!(!full.is_reserved_for_samples(10_000_000));
        let young = Interference::new(Processors::cores(2), 0.05);
        assert!(young.may_go_on(0) && !young.may_go_on(50_000_000));
    }

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
