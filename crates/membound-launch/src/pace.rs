//! How many of a program's blocks are told of: as many as a share of its CPU time pays for.
//!
//! Every block is told of until that has cost [`EVERY_BLOCK_NS`] more than the share that all programs have
//! earned by then, so that programs with a modest number of allocations are followed exactly. From then
//! on blocks are sampled: [`membound_wire::allocation_interval`] is set so that the cost of the
//! last window, had it been sampled so, is the share, and at first a part of what is left of
//! [`ADVANCE_NS`] as well: short programs, which end soon, are sampled closely. What an event costs to read is known from
//! several windows ([`Reading`]). The window after next may
//! be another; going back to shorter intervals therefore waits for several that permit it. Programs that run one
//! after the other share one account: a shell that starts thousands of them would be given thousands of advances.

use membound_platform::{Root, affinity, cpu};
use membound_wire::{ALLOCATION_LEVELS, allocation_interval, allocation_span};

/// Part of what recording may cost that following allocations may: samples and windows have the rest.
const PART_OF_ALL: f64 = 0.4;
/// CPU time that may be spent ahead of the share, in nanoseconds.
const ADVANCE_NS: f64 = 10e6;
/// That part of it for which every block is told of.
const EVERY_BLOCK_NS: f64 = 5e6;
/// Nanoseconds that a block costs which is not told of: a few instructions where it is allocated and where it is freed, and
/// the lines that they look at.
const NOT_TOLD_NS: f64 = 24.0;
/// Part of the share that blocks which are told of may always take, however many others there are.
const LEAST_FOR_TOLD: f64 = 0.25;
/// Part of what is left of it that a window may spend.
const PART_OF_ADVANCE: f64 = 0.25;
/// A window in which events have cost this much ends early: a flood would have cost many times the share by the time
/// that windows last.
const FLOOD_NS: f64 = 3e6;
/// Windows in a row that permit a shorter interval before it is set.
const CALM_WINDOWS: u32 = 10;
/// Part of the share that following every block may cost before that is done again.
const PART_FOR_ALL: f64 = 0.5;
/// Events of a block: that it is allocated, and that it is freed.
const EVENTS_A_BLOCK: f64 = 2.0;

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Window {
    /// CPU time that the program took, in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// Events that were told of or lost.
    pub(crate) events: f64,
    /// Blocks that were allocated, those that were not told of included.
    pub(crate) blocks: f64,
    /// Sum over all of them of [`allocation_span`].
    pub(crate) span_bytes: f64,
    /// CPU time that an event took of the program, in nanoseconds.
    pub(crate) event_ns: f64,
    /// CPU time that reading events and keeping account of blocks took, in nanoseconds. The events may have come in the
    /// windows before.
    pub(crate) reading_ns: f64,
    /// CPU time that looking for events took, in nanoseconds, however many there were.
    pub(crate) looking_ns: f64,
    /// What part of both the program loses: see [`Processors::lost_beside`].
    pub(crate) beside: f64,
}

/// What it costs the program that its events are read, from the last windows.
///
/// Events are read up to some hundred milliseconds after they came. In a single window, what a flood left to be read
/// would be set against the few events that came since, and the interval would grow to its longest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    events: f64,
    ns: f64,
}

impl Reading {
    /// What a window counts for when the next one is added: about ten windows matter.
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

/// The processors that this process and what it starts may run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processors {
    count: f64,
    /// Two of them are one core.
    share_cores: bool,
}

impl Processors {
    /// Those of here and now.
    #[must_use]
    pub fn here() -> Self {
        let root = Root::system();
        let allowed = affinity::allowed().unwrap_or_else(|_| affinity::online(&root));
        // That knows of quotas.
        let paid = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        Self {
            count: allowed.len().min(paid).max(1) as f64,
            share_cores: !cpu::smt_siblings(&root, &allowed).is_empty(),
        }
    }

    /// What part of the CPU time that is spent beside a program it loses, when its threads keep `busy` of them busy. All
    /// of it where there is no other processor to spend it on. Where there is one, it may still be the other half of the
    /// program's core, and caches and memory are shared. Threads that wait for one another now and then need the last
    /// processor as well: the kernel wakes them on one that is free, or else where another of them runs.
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

    /// As many processors as this, each of which is a core of its own.
    #[must_use]
    pub const fn cores(count: u32) -> Self {
        Self {
            count: count as f64,
            share_cores: false,
        }
    }
}

impl Window {
    /// Whether events have cost so much already that how many are told of cannot wait.
    pub(crate) fn is_flood(&self, event_ns: f64) -> bool {
        self.events * event_ns > FLOOD_NS
    }

    /// Adds a block that stands for `weight` blocks of `size` bytes.
    pub(crate) fn add(&mut self, size: u64, weight: f64) {
        self.blocks += weight;
        self.span_bytes += weight * allocation_span(size) as f64;
    }
}

impl Window {
    /// CPU time that its blocks took of the program whether they were told of or not.
    fn fixed_ns(&self) -> f64 {
        self.blocks * NOT_TOLD_NS
    }
}

/// What following allocations has cost all programs, and may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// Of the programs' CPU time.
    share: f64,
    /// Nanoseconds spent beyond what was earned.
    spent_ns: f64,
    /// The level that was decided on last.
    level: u32,
}

impl Account {
    /// For programs of whose CPU time recording may cost this share.
    pub(crate) const fn new(max_overhead: f64) -> Self {
        Self {
            share: PART_OF_ALL * max_overhead,
            spent_ns: 0.0,
            level: 0,
        }
    }

    /// Takes down what a window has cost and earned; what it earned.
    pub(crate) fn book(&mut self, window: &Window) -> f64 {
        let earned_ns = self.share * window.cpu_ns;
        let beside_ns = window.beside * (window.reading_ns + window.looking_ns);
        let told_ns = window.events * window.event_ns + beside_ns;
        self.spent_ns = (self.spent_ns + told_ns + window.fixed_ns() - earned_ns).max(0.0);
        earned_ns
    }

    /// Whether every block of a program may be told of that begins now.
    fn pays_for_all(&self) -> bool {
        self.spent_ns <= EVERY_BLOCK_NS
    }
}

/// Sets a program's level.
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

    /// The level that holds.
    pub(crate) const fn level(&self) -> u32 {
        self.level
    }

    /// The level after a window, which goes into the account.
    pub(crate) fn next(&mut self, account: &mut Account, window: &Window) -> u32 {
        let earned_ns = account.book(window);
        self.reading.add(window);
        let wanted = match self.level {
            0 if account.pays_for_all() => 0,
            _ => {
                let left_ns = (ADVANCE_NS - account.spent_ns).max(0.0);
                let for_told_ns = (earned_ns - window.fixed_ns()).max(LEAST_FOR_TOLD * earned_ns);
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

/// The lowest level at which following what was allocated in `window` costs no more than this, when an event costs the
/// program `event_ns`.
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

/// How many blocks of its size an event stands for that this level decided.
pub(crate) fn weight(size: u64, level: u32) -> f64 {
    match allocation_interval(level) {
        0 => 1.0,
        interval => -1.0 / (-(allocation_span(size) as f64) / interval as f64).exp_m1(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 100 ms of CPU time in which a program allocates (and frees) so many blocks of 48
    /// bytes, sampled at `level`.
    fn window(blocks: f64, level: u32) -> Window {
        let told = blocks / weight(48, level);
        Window {
            cpu_ns: 100e6,
            events: told * 2.0,
            blocks,
            span_bytes: blocks * 64.0,
            event_ns: 70.0,
            reading_ns: told * 2.0 * 30.0,
            looking_ns: 0.0,
            beside: Processors::cores(2).lost_beside(1.0),
        }
    }

    /// An account, and a program that begins with it.
    fn begun(max_overhead: f64) -> (Account, Pace) {
        let account = Account::new(max_overhead);
        (account, Pace::begin(&account))
    }

    /// The levels while a program goes on in one way.
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
        // Many at once.
        assert_eq!(run(&mut pace, 3e4, 1), [0]);
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
        let all_ns: f64 = levels[1..].iter().map(cost_ns).sum::<f64>() + 200.0 * 3e4 * NOT_TOLD_NS;
        let paid_ns = 200.0 * PART_OF_ALL * 5e6;
        assert!(
            (0.5 * paid_ns..=paid_ns + ADVANCE_NS).contains(&all_ns),
            "{all_ns}"
        );
        // Blocks that are not told of cost more than the share: some are told of all the same.
        let mut flood = begun(0.05);
        let levels = run(&mut flood, 1e6, 200);
        let told_ns: f64 = levels[50..]
            .iter()
            .map(|level| window(1e6, *level).events * 70.0)
            .sum();
        let least_ns = 150.0 * LEAST_FOR_TOLD * PART_OF_ALL * 5e6;
        assert!(
            (0.3 * least_ns..=least_ns).contains(&told_ns),
            "{told_ns} {least_ns}"
        );
        // When it is over, all blocks are told of again, but not at once.
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

    /// The events of a flood's first window are read in the windows after it, when few events come, and looks cost some
    /// time whatever they find: neither makes the interval longer than the flood itself does.
    #[test]
    fn what_is_read_late_does_not_lengthen_the_interval() {
        let levels = |lag: usize, looking_ns: f64| {
            let (mut account, mut pace) = begun(0.05);
            let mut unread = std::collections::VecDeque::from(vec![0.0; lag]);
            let next = |_| {
                let come = Window {
                    looking_ns,
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
        // Events that are cheap for the program and dear to follow are sampled all the same.
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
        let mut told_ns = 0.0;
        let levels: Vec<u32> = (0..100)
            .map(|_| {
                let mut pace = Pace::begin(&account);
                let level = pace.level();
                let short = Window {
                    cpu_ns: 10e6,
                    ..window(2e4, level)
                };
                told_ns += short.events * short.event_ns;
                pace.next(&mut account, &short);
                level
            })
            .collect();
        assert_eq!(levels[0], 0);
        assert!(levels[2..].iter().all(|level| *level > 0), "{levels:?}");
        assert!(
            told_ns < ADVANCE_NS + EVERY_BLOCK_NS + 100.0 * 0.02 * 10e6,
            "{told_ns}"
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
