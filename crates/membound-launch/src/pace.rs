//! Decides how many of a program's blocks are reported: as many as a share of its CPU time pays for.
//!
//! Every block is reported until that has cost [`EVERY_BLOCK_NS`] more than the share that all programs
//! have earned by then, so that programs with a modest number of allocations are followed exactly. From
//! then on blocks are sampled. The interval ([`membound_wire::allocation_interval`]) is set so that with it
//! the last window would have cost the share, and at first also a part of what is left of [`ADVANCE_NS`]:
//! so short programs are sampled closely. The cost of reading an event is estimated from several windows
//! ([`Reading`]). The next windows may differ from the last one, so the interval becomes shorter only after
//! several windows that permit it. Programs that run one after the other share one account: a shell that
//! starts thousands of them would otherwise get thousands of advances.

use membound_platform::{Root, affinity, cpu};
use membound_wire::{ALLOCATION_LEVELS, allocation_interval, allocation_span};

/// Part of the overhead limit for following allocations: samples and windows have the rest.
const PART_OF_ALL: f64 = 0.4;
/// CPU time that may be spent before the share has earned it, in nanoseconds.
const ADVANCE_NS: f64 = 6e6;
/// Part of that time for which every block is reported.
const EVERY_BLOCK_NS: f64 = 4e6;
/// Cost in nanoseconds of a block that is not reported: a few instructions at its allocation and at its
/// free, and the cache lines that they read.
const UNREPORTED_BLOCK_NS: f64 = 24.0;
/// Least part of the share for reported blocks, however many others there are.
const MIN_SHARE_FOR_REPORTED_BLOCKS: f64 = 0.25;
/// Part of the remaining advance that a window may spend.
const PART_OF_ADVANCE: f64 = 0.25;
/// Cost of events at which a window ends early: at the full length of the window a flood would have cost
/// many times the share.
const FLOOD_NS: f64 = 1.5e6;
/// Consecutive windows that must permit a shorter interval before it is set.
const CALM_WINDOWS: u32 = 10;
/// Part of the share that reporting every block may cost before that is resumed.
const PART_FOR_ALL: f64 = 0.5;
/// Events of a block: its allocation and its free.
const EVENTS_A_BLOCK: f64 = 2.0;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Window {
    /// CPU time of the program, in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// Events that were reported or lost.
    pub(crate) events: f64,
    /// Blocks that were allocated, including those that were not reported.
    pub(crate) blocks: f64,
    /// Sum of [`allocation_span`] over these blocks.
    pub(crate) span_bytes: f64,
    /// CPU time that an event took from the program, in nanoseconds.
    pub(crate) event_ns: f64,
    /// CPU time for reading events and accounting for blocks, in nanoseconds. The events may be from
    /// earlier windows.
    pub(crate) reading_ns: f64,
    /// CPU time for polling the rings, in nanoseconds, however many events there were.
    pub(crate) polling_ns: f64,
    /// Part of both that the program loses: see [`Processors::lost_beside`].
    pub(crate) beside: f64,
}

/// Cost to the program of reading its events, from the last windows.
///
/// Events are read up to some hundred milliseconds after they occurred. In a single window, reading what a
/// flood left would be divided by the few events since, and the interval would grow to its longest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    events: f64,
    ns: f64,
}

impl Reading {
    /// Weight of the earlier windows when one is added: about ten windows matter.
    const KEPT: f64 = 0.9;

    fn add(&mut self, window: &Window) {
        self.events = Self::KEPT * self.events + window.events;
        self.ns = Self::KEPT * self.ns + window.beside * window.reading_ns;
    }

    /// Nanoseconds that the program loses when one event is read.
    fn event_ns(&self) -> f64 {
        match self.events >= 1.0 {
            true => self.ns / self.events,
            false => 0.0,
        }
    }
}

/// The processors on which this process and its children may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processors {
    count: f64,
    /// True if two of them are hardware threads of one core.
    share_cores: bool,
}

impl Processors {
    /// Reads the processors of this process.
    #[must_use]
    pub fn here() -> Self {
        let root = Root::system();
        let allowed = affinity::allowed().unwrap_or_else(|_| affinity::online(&root));
        // Unlike the affinity, this respects quotas.
        let paid = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Self {
            count: allowed.len().min(paid).max(1) as f64,
            share_cores: !cpu::smt_siblings(&root, &allowed).is_empty(),
        }
    }

    /// Part of CPU time spent outside a program that the program loses, when its threads keep `busy` of the
    /// processors busy. All of it if there is no other processor. If there is one, it may be another
    /// hardware thread of the program's core, and caches and memory are shared. Threads that sometimes wait
    /// for one another need the last processor too: the kernel wakes them on a free one, or else where
    /// another of them runs.
    #[must_use]
    pub fn lost_beside(&self, busy: f64) -> f64 {
        const NEEDS_LAST: f64 = 0.3;
        let where_free = match self.share_cores {
            true => 0.35,
            false => 0.1,
        };
        let without_room = ((busy - (self.count - 1.0)) / NEEDS_LAST).clamp(0.0, 1.0);
        where_free + (1.0 - where_free) * without_room
    }

    /// This many processors, each a core of its own.
    #[must_use]
    pub const fn cores(count: u32) -> Self {
        Self {
            count: count as f64,
            share_cores: false,
        }
    }
}

impl Window {
    /// True if events have cost so much that the next decision cannot wait.
    pub(crate) fn is_flood(&self, event_ns: f64) -> bool {
        self.events * event_ns > FLOOD_NS
    }

    /// Adds a block that represents `weight` blocks of `size` bytes.
    pub(crate) fn add(&mut self, size: u64, weight: f64) {
        self.blocks += weight;
        self.span_bytes += weight * allocation_span(size) as f64;
    }
}

impl Window {
    /// CPU time that its blocks cost the program whether they were reported or not.
    fn fixed_ns(&self) -> f64 {
        self.blocks * UNREPORTED_BLOCK_NS
    }
}

/// Cost of following allocations in all programs, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// Share of the programs' CPU time, 0 to 1.
    share: f64,
    /// Nanoseconds spent beyond the earned ones.
    spent_ns: f64,
    /// The last level that was decided.
    level: u32,
}

impl Account {
    /// An account for recordings that may cost this share of the programs' CPU time.
    pub(crate) const fn new(max_overhead: f64) -> Self {
        Self {
            share: PART_OF_ALL * max_overhead,
            spent_ns: 0.0,
            level: 0,
        }
    }

    /// Enters the cost of a window; returns the nanoseconds that it has earned.
    pub(crate) fn book(&mut self, window: &Window) -> f64 {
        if self.share.is_infinite() {
            return f64::INFINITY;
        }
        let earned_ns = self.share * window.cpu_ns;
        let beside_ns = window.beside * (window.reading_ns + window.polling_ns);
        let reported_ns = window.events * window.event_ns + beside_ns;
        self.spent_ns = (self.spent_ns + reported_ns + window.fixed_ns() - earned_ns).max(0.0);
        earned_ns
    }

    /// True if every block of a program that begins now may be reported.
    fn pays_for_all(&self) -> bool {
        self.spent_ns <= EVERY_BLOCK_NS
    }
}

/// Sets the level of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    level: u32,
    calm: u32,
    reading: Reading,
}

impl Pace {
    /// For a program that begins now.
    pub(crate) fn begin(account: &Account) -> Self {
        let level = match account.pays_for_all() {
            true => 0,
            false => account.level.max(1),
        };
        Self {
            level,
            ..Self::default()
        }
    }

    /// The present level.
    pub(crate) const fn level(&self) -> u32 {
        self.level
    }

    /// The level after `window`, which is entered into the account.
    pub(crate) fn next(&mut self, account: &mut Account, window: &Window) -> u32 {
        let earned_ns = account.book(window);
        self.reading.add(window);
        let wanted = match self.level {
            0 if account.pays_for_all() => 0,
            _ => {
                let left_ns = (ADVANCE_NS - account.spent_ns).max(0.0);
                let for_told_ns =
                    (earned_ns - window.fixed_ns()).max(MIN_SHARE_FOR_REPORTED_BLOCKS * earned_ns);
                let event_ns = window.event_ns + self.reading.event_ns();
                level_within(window, event_ns, for_told_ns + PART_OF_ADVANCE * left_ns)
            }
        };
        if wanted >= self.level {
            self.calm = 0;
            self.level = wanted;
        } else {
            self.calm += 1;
            if self.calm >= CALM_WINDOWS {
                self.calm = 0;
                self.level = match wanted {
                    0 => 0,
                    _ => self.level - 1,
                };
            }
        }
        account.level = self.level;
        self.level
    }
}

/// The lowest level at which following the allocations of `window` costs at most this budget, when an event
/// costs the program `event_ns`.
fn level_within(window: &Window, event_ns: f64, budget_ns: f64) -> u32 {
    let each_ns = EVENTS_A_BLOCK * event_ns;
    if window.blocks * each_ns <= PART_FOR_ALL * budget_ns {
        return 0;
    }
    let blocks = budget_ns / each_ns;
    (1..ALLOCATION_LEVELS)
        .find(|level| window.span_bytes / allocation_interval(*level) as f64 <= blocks)
        .unwrap_or(ALLOCATION_LEVELS)
}

/// Number of blocks of its size that an event represents, if it was reported at this level.
pub(crate) fn weight(size: u64, level: u32) -> f64 {
    match allocation_interval(level) {
        0 => 1.0,
        interval => -1.0 / (-(allocation_span(size) as f64) / interval as f64).exp_m1(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 100 ms of CPU time in which a program allocates (and frees) this many blocks of 48
    /// bytes, sampled at `level`.
    fn window(blocks: f64, level: u32) -> Window {
        let reported = blocks / weight(48, level);
        Window {
            cpu_ns: 100e6,
            events: reported * 2.0,
            blocks,
            span_bytes: blocks * 64.0,
            event_ns: 70.0,
            reading_ns: reported * 2.0 * 30.0,
            polling_ns: 0.0,
            beside: Processors::cores(2).lost_beside(1.0),
        }
    }

    /// An account, and a program that begins with it.
    fn begun(max_overhead: f64) -> (Account, Pace) {
        let account = Account::new(max_overhead);
        (account, Pace::begin(&account))
    }

    /// The levels while a program's behaviour does not change.
    fn run((account, pace): &mut (Account, Pace), blocks: f64, windows: u32) -> Vec<u32> {
        (0..windows)
            .map(|_| pace.next(account, &window(blocks, pace.level())))
            .collect()
    }

    #[test]
    fn a_modest_program_is_followed_exactly() {
        // 100 000 a second, for a minute.
        let mut pace = begun(0.05);
        assert!(
            run(&mut pace, 10_000.0, 600)
                .iter()
                .all(|level| *level == 0)
        );
        // A burst.
        assert_eq!(run(&mut pace, 3e4, 1), [0]);
    }

    #[test]
    fn every_block_is_reported_where_the_limit_is_infinite() {
        let mut pace = begun(f64::INFINITY);
        let slow = Window {
            cpu_ns: 0.0,
            event_ns: 1e6,
            ..window(3e4, 0)
        };
        assert_eq!(pace.1.next(&mut pace.0, &slow), 0);
        assert_eq!(Pace::begin(&pace.0).level(), 0);
    }

    #[test]
    fn a_flood_costs_its_share() {
        let mut pace = begun(0.05);
        let levels = run(&mut pace, 3e4, 200);
        let level = levels[199];
        assert!(level > 0, "{levels:?}");
        assert!(levels.iter().take_while(|level| **level == 0).count() <= 2);
        let cost_ns = |level: &u32| {
            window(3e4, *level).events * (70.0 + 30.0 * Processors::cores(2).lost_beside(1.0))
        };
        let all_ns: f64 =
            levels[1..].iter().map(cost_ns).sum::<f64>() + 200.0 * 3e4 * UNREPORTED_BLOCK_NS;
        let paid_ns = 200.0 * PART_OF_ALL * 5e6;
        assert!(
            (0.5 * paid_ns..=paid_ns + ADVANCE_NS).contains(&all_ns),
            "{all_ns}"
        );
        // Blocks that are not reported cost more than the share: some are reported all the same.
        let mut flood = begun(0.05);
        let levels = run(&mut flood, 1e6, 200);
        let reported_ns: f64 = levels[50..]
            .iter()
            .map(|level| window(1e6, *level).events * 70.0)
            .sum();
        let least_ns = 150.0 * MIN_SHARE_FOR_REPORTED_BLOCKS * PART_OF_ALL * 5e6;
        assert!(
            (0.3 * least_ns..=least_ns).contains(&reported_ns),
            "{reported_ns} {least_ns}"
        );
        // After the flood all blocks are reported again, but not at once.
        let levels = run(&mut pace, 1000.0, 30);
        assert_eq!((levels[0], levels[29]), (level, 0));
    }

    /// A short program's blocks are sampled more closely than the share alone pays for.
    #[test]
    fn what_is_left_of_the_advance_is_spent_bit_by_bit() {
        let (mut account, mut pace) = begun(0.05);
        let short = |level| Window {
            cpu_ns: 10e6,
            ..window(3e4, level)
        };
        assert!(short(0).is_flood(70.0) && !short(4).is_flood(70.0));
        let next = |_| pace.next(&mut account, &short(pace.level()));
        let levels: Vec<u32> = (0..400).map(next).collect();
        let sampled = levels.iter().position(|level| *level > 0);
        assert!(sampled.is_some_and(|at| at < 10), "{levels:?}");
        let (first, last) = (levels[sampled.unwrap_or(0)], levels[399]);
        assert!(first < last, "{levels:?}");
        assert!(last.abs_diff(levels[398]) <= 1, "{levels:?}");
    }

    /// The events of a flood's first window are read in later windows with few events, and polls cost time
    /// whatever they find: neither makes the interval longer than the flood itself does.
    #[test]
    fn what_is_read_late_does_not_lengthen_the_interval() {
        let levels = |lag: usize, polling_ns: f64| {
            let (mut account, mut pace) = begun(0.05);
            let mut unread = std::collections::VecDeque::from(vec![0.0; lag]);
            let next = |_| {
                let come = Window {
                    polling_ns,
                    ..window(1e6, pace.level())
                };
                unread.push_back(10.0 * come.reading_ns);
                let reading_ns = unread.pop_front().unwrap_or(0.0);
                pace.next(&mut account, &Window { reading_ns, ..come })
            };
            (0..40).map(next).collect::<Vec<u32>>()
        };
        let at_once = levels(0, 0.0);
        let late = levels(2, 2e6);
        let most = |levels: &[u32]| levels.iter().copied().max().unwrap_or(0);
        assert!(most(&at_once) < ALLOCATION_LEVELS, "{at_once:?}");
        assert!(
            most(&late) <= most(&at_once) + 1,
            "{late:?} and not {at_once:?}"
        );
    }

    #[test]
    fn time_beside_a_program_counts_as_its_own_where_it_has_all_processors() {
        let lost = |cpus, busy| Processors::cores(cpus).lost_beside(busy);
        assert_eq!(lost(2, 2.0), 1.0);
        // Two threads: one waits for the other two thirds of the time.
        assert_eq!(lost(2, 1.35), 1.0);
        assert_eq!(lost(1, 1.0), 1.0);
        assert!(lost(2, 1.0) < 0.5 && lost(64, 0.0) > 0.0);
        let threads = Processors {
            share_cores: true,
            ..Processors::cores(2)
        };
        assert!(threads.lost_beside(1.0) > lost(2, 1.0));
        // Events that are cheap for the program and expensive to read are sampled all the same.
        let dear = |beside| Window {
            reading_ns: 20_000.0 * 400.0,
            beside,
            ..window(10_000.0, 0)
        };
        let level = |beside| {
            let (mut account, mut pace) = begun(0.05);
            (0..50)
                .map(|_| pace.next(&mut account, &dear(beside)))
                .max()
        };
        assert_eq!(level(0.0), Some(0));
        assert!(level(1.0) > Some(0));
    }

    #[test]
    fn nothing_is_within_no_budget() {
        let mut pace = begun(0.0);
        let levels = run(&mut pace, 1e6, 3);
        assert_eq!(levels[2], ALLOCATION_LEVELS);
        // A program that does nothing costs nothing.
        let (mut account, mut pace) = begun(0.0);
        assert_eq!(pace.next(&mut account, &Window::default()), 0);
    }

    #[test]
    fn programs_one_after_the_other_have_one_advance() {
        let mut account = Account::new(0.05);
        // Each allocates 20 000 blocks in 10 ms, and ends.
        let mut reported_ns = 0.0;
        let levels: Vec<u32> = (0..100)
            .map(|_| {
                let mut pace = Pace::begin(&account);
                let level = pace.level();
                let short = Window {
                    cpu_ns: 10e6,
                    ..window(2e4, level)
                };
                reported_ns += short.events * short.event_ns;
                pace.next(&mut account, &short);
                level
            })
            .collect();
        assert_eq!(levels[0], 0);
        assert!(levels[2..].iter().all(|level| *level > 0), "{levels:?}");
        assert!(
            reported_ns < ADVANCE_NS + EVERY_BLOCK_NS + 100.0 * 0.02 * 10e6,
            "{reported_ns}"
        );
    }

    #[test]
    fn a_block_is_told_of_by_its_bytes() {
        assert_eq!(weight(100, 0), 1.0);
        let interval = allocation_interval(6) as f64;
        let small = weight(0, 6) / (interval / 16.0);
        assert!((small - 1.0).abs() < 0.01, "{small}");
        assert!((weight(1 << 20, 6) - 1.0).abs() < 1e-9);
    }
}
