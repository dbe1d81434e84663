//! Groups hot sites by function, and decides what the next window of each group is for.
//!
//! A group is never remade, so that its plans and patched places are reused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use membound_launch::{Choice, Pace};
use membound_rewrite::image::Identity;
use membound_rewrite::patch::{Body, Hooks, Options, Sites as Places};
use membound_rewrite::stall::CodeBlock;
use membound_run::{ModuleId, SiteId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::budget::{Threads, Work};
use crate::modules::CodeModule;
use crate::patcher::Patcher;
use crate::sites::Sites;

/// CPU time of a window with sites of unknown rates.
pub(crate) const FIRST_NS: u64 = 10_000_000;
/// The same with exact counting, which is expensive. A program's speed changes while other programs use its
/// cache: many short windows show more of that than few long ones.
pub(crate) const COUNT_NS: u64 = 12_000_000;
/// The same of all other windows.
pub(crate) const USUAL_NS: u64 = 40_000_000;
/// Mean executions per sample in a site's first window.
pub(crate) const FIRST_PERIOD: u32 = 1000;
/// The same for a site that no window has seen executed. The number of its samples is limited anyway.
const RARE_PERIOD: u32 = 16;
/// Accesses of a site timed in one window. About ten windows make an estimate; when those windows come
/// depends on when time is lost at the site.
const WANTED: u32 = 250;
/// Share of a window in which these samples should be reached, as rates change.
const EARLY: f64 = 0.7;
const MAX_PERIOD: f64 = 1e6;
/// Back-off of a group that could not be placed, times its failures before this one.
const REST_NS: u64 = 200_000_000;
/// Failures after which a group is given up.
pub(crate) const TRIES: u32 = 3;
/// Times that a group may grow by sites that became hot later. Each growth needs another plan.
const MAX_GROWTHS: u32 = 4;
/// Sampled time lost at a group between two of its windows: at least this, and at least this share of all
/// that was lost there so far. So every phase in which a group is hot gets windows, and a long run gets only
/// a few more of them than a short one.
const AGAIN_NS: f64 = 10e6;
const AGAIN_PART: f64 = 1.0 / 20.0;
/// Windows of a group between two that count its blocks.
const BLOCKS_EVERY: u64 = 16;
/// The same before the second of them, where blocks that run seldom stand for the others: how often those run for
/// each of them should not rest on one window.
const BLOCKS_AGAIN: u64 = 4;
/// Share of CPU time that counting the blocks of [`Work::Entries`] may take.
const MAX_ENTRIES_COST: f64 = 0.02;
/// Executions of the hottest block for each of the hottest of these, at least: otherwise no block is slowed much.
const MIN_ITERATIONS: f64 = 16.0;
/// Executions of a block while blocks are counted, below which it stands for no other.
const MIN_ENTRIES: u64 = 10;
/// Blocks of one function that are counted so, at most.
const MAX_ENTRIES: usize = 32;
/// Blocks of one function that are counted, at most.
const MAX_BLOCKS: usize = 1024;
/// Accesses of one function that are recorded in a burst, at most.
const MAX_RECORDED_ACCESSES: usize = 2048;

/// Whether an optional kind of data is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Record it.
    Yes,
    /// Do not record it.
    No,
}

/// The sites of `all` that `some` lacks; both are sorted by address.
fn without(all: &[(u64, SiteId)], some: &[(u64, SiteId)]) -> Vec<SiteId> {
    let rest = all.iter().filter(|it| some.binary_search(it).is_err());
    rest.map(|(_, site)| *site).collect()
}

/// The blocks to count in windows of [`Work::Entries`], chosen by how often all blocks were executed in `cpu_ns` of CPU
/// time: together they cost little, and the hottest block is executed far more often than any of them.
fn entries(counts: &FxHashMap<u64, u64>, cpu_ns: u64, threads: Threads) -> BTreeSet<u64> {
    let mut seldom_first: Vec<(u64, u64)> =
        counts.iter().map(|(at, count)| (*count, *at)).collect();
    seldom_first.sort_unstable();
    let hottest = seldom_first.last().map_or(0, |(count, _)| *count);
    let mut sum = 0;
    seldom_first.retain(|(count, _)| {
        sum += count;
        let cost_ns = Work::Entries.cost_ns(threads, sum as f64, 0.0);
        cost_ns <= MAX_ENTRIES_COST * cpu_ns as f64
            && *count as f64 * MIN_ITERATIONS <= hottest as f64
    });
    let useful = seldom_first.iter().rev();
    let useful = useful.take_while(|(count, _)| *count >= MIN_ENTRIES);
    useful.take(MAX_ENTRIES).map(|(_, at)| *at).collect()
}

/// Sites of one function that are patched together.
#[derive(Debug)]
pub(crate) struct Group {
    /// The function's module and its first address.
    pub(crate) function: (ModuleId, u64),
    module: Arc<CodeModule>,
    file: Identity,
    /// Whether the file's plan is prepared, so that a choice from it takes milliseconds, as of
    /// [`Groups::ask_ready`].
    is_ready: bool,
    /// Sorted by address.
    pub(crate) sites: Vec<(u64, SiteId)>,
    /// The function's blocks, once they are to be counted.
    pub(crate) blocks: Vec<CodeBlock>,
    /// Those of them that run seldom.
    entries: BTreeSet<u64>,
    choices: FxHashMap<Work, Choice>,
    /// Executions of all its sites per nanosecond of CPU time, when it was last executed.
    rate: Option<f64>,
    /// The same by site address, when the site was last timed.
    rates: FxHashMap<u64, f64>,
    /// The same of all its blocks.
    block_rate: Option<f64>,
    /// The same of `entries`.
    entries_rate: Option<f64>,
    /// Sampled time that was lost at its sites.
    lost_ns: f64,
    /// The part of `lost_ns` since the group's last timing window.
    new_ns: f64,
    /// Windows that the group has had.
    pub(crate) windows: u64,
    since_blocks: u64,
    /// Windows that counted its blocks.
    block_windows: u64,
    /// End of its back-off after a failure.
    rests_until_ns: u64,
    /// Consecutive windows in which it could not be placed.
    pub(crate) failures: u32,
    /// Times that sites were added.
    grown: u32,
    /// Its sites before the last were added.
    sites_before: Vec<(u64, SiteId)>,
    /// Addresses of sites that were executed in a window.
    executed: FxHashSet<u64>,
    /// What its next window is for.
    pub(crate) next: Work,
}

impl Group {
    fn new(
        function: (ModuleId, u64),
        module: Arc<CodeModule>,
        sites: Vec<(u64, SiteId)>,
    ) -> Option<Self> {
        module.code()?;
        let file = module.identity()?;
        Some(Self {
            function,
            module,
            file,
            is_ready: false,
            sites,
            blocks: Vec::new(),
            entries: BTreeSet::new(),
            choices: FxHashMap::default(),
            rate: None,
            rates: FxHashMap::default(),
            block_rate: None,
            entries_rate: None,
            lost_ns: 0.0,
            new_ns: 0.0,
            windows: 0,
            since_blocks: BLOCKS_EVERY,
            block_windows: 0,
            rests_until_ns: 0,
            failures: 0,
            grown: 0,
            sites_before: Vec::new(),
            executed: FxHashSet::default(),
            next: Work::Time,
        })
    }

    /// Adds sites of the same function, which are patched with the others from now on.
    fn grow(&mut self, sites: Vec<(u64, SiteId)>) {
        self.sites_before.clone_from(&self.sites);
        self.sites.extend(sites);
        self.sites.sort_unstable();
        self.grown += 1;
        self.rests_until_ns = 0;
        self.begin_again();
    }

    /// Removes the sites that were added last if some of `refused` were executed before: the patches of the new
    /// plan cross those of the old one, in which threads may still be, and were left out. The older sites are the
    /// hotter ones. Returns the removed sites; `None` if nothing was lost.
    pub(crate) fn shrink(&mut self, refused: &[u64]) -> Option<Vec<SiteId>> {
        let is_lost = refused.iter().any(|it| self.executed.contains(it));
        if !is_lost || self.sites_before.is_empty() {
            return None;
        }
        let before = std::mem::take(&mut self.sites_before);
        let removed = without(&self.sites, &before);
        self.sites = before;
        self.begin_again();
        Some(removed)
    }

    /// Forgets what depends on the choice of sites.
    fn begin_again(&mut self) {
        // The choice of blocks does not.
        self.choices
            .retain(|work, _| matches!(work, Work::Blocks | Work::Entries));
        self.rate = None;
        self.rates.clear();
        self.next = Work::Time;
    }

    /// Adds a sample that waited for one of its sites.
    fn lost(&mut self, weight_ns: f64) {
        self.lost_ns += weight_ns;
        self.new_ns += weight_ns;
    }

    /// Whether its next window is due. A window whose plan takes longer than milliseconds would delay the
    /// exchange, and with it all other groups.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let more = match self.next {
            // Completes what an earlier timing window began.
            Work::Count | Work::Blocks | Work::Entries => true,
            Work::Time | Work::Record => {
                self.rate.is_none() || self.new_ns >= AGAIN_NS.max(AGAIN_PART * self.lost_ns)
            }
        };
        more && self.is_ready && self.failures < TRIES && self.rests_until_ns <= now_ns
    }

    /// What is patched for this kind of window; the same choice every time.
    pub(crate) fn choice(&mut self, work: Work, threads: Threads) -> &Choice {
        if work == Work::Blocks && self.blocks.is_empty() {
            let code = self.module.code();
            self.blocks = code
                .map(|code| code.blocks(self.function.1))
                .unwrap_or_default();
            self.blocks.truncate(MAX_BLOCKS);
        }
        let Self {
            choices,
            file,
            sites,
            blocks,
            entries,
            module,
            function,
            ..
        } = self;
        choices.entry(work).or_insert_with(|| {
            let body = match work {
                Work::Time => Body::Sample,
                Work::Count => Body::CountByStack,
                Work::Blocks | Work::Entries if threads == Threads::Several => Body::CountByStack,
                Work::Blocks | Work::Entries => Body::Count { exact: false },
                Work::Record => Body::Record,
            };
            let mut options = Options::new(body);
            options.hooks = Hooks::LeaveOut;
            if matches!(work, Work::Blocks | Work::Entries) {
                options.preferred = sites.iter().map(|(address, _)| *address).collect();
            }
            options.sites = match work {
                Work::Time | Work::Count => {
                    Places::At(sites.iter().map(|(address, _)| *address).collect())
                }
                Work::Blocks => Places::Blocks(blocks.iter().map(|block| block.start).collect()),
                Work::Entries => Places::Blocks(entries.iter().copied().collect()),
                Work::Record => {
                    let code = module.code();
                    let all = code
                        .map(|code| code.accesses(function.1))
                        .unwrap_or_default();
                    Places::At(all.into_iter().take(MAX_RECORDED_ACCESSES).collect())
                }
            };
            Choice {
                file: file.clone(),
                options,
            }
        })
    }

    /// How each site is to be sampled, by address, when its patches are in the text for `length_ns` of CPU
    /// time.
    pub(crate) fn paces(&self, length_ns: u64) -> Vec<(u64, Pace)> {
        let unknown = match self.rate {
            Some(_) => RARE_PERIOD,
            None => (u64::from(FIRST_PERIOD) * length_ns / USUAL_NS).min(MAX_PERIOD as u64) as u32,
        };
        let pace = |(address, _): &(u64, SiteId)| {
            let period = self.rates.get(address).map_or(unknown, |rate| {
                let period = rate * length_ns as f64 * EARLY / f64::from(WANTED);
                period.clamp(1.0, MAX_PERIOD) as u32
            });
            let samples = WANTED;
            (*address, Pace { period, samples })
        };
        self.sites.iter().map(pace).collect()
    }

    /// Executions of these counts that were sampled with these paces, by estimate.
    pub(crate) fn taken(paces: &[(u64, Pace)], counts: &FxHashMap<u64, u64>) -> f64 {
        let taken = paces.iter().map(|(address, pace)| {
            let count = counts.get(address).copied().unwrap_or(0);
            (count as f64 / f64::from(pace.period)).min(f64::from(pace.samples))
        });
        taken.sum()
    }

    /// Cost of a window, in nanoseconds per nanosecond of CPU time; `None` if the group was never counted.
    pub(crate) fn cost(&self, work: Work, threads: Threads) -> Option<f64> {
        match work {
            Work::Time => {
                let taken = self.sites.len() as f64 * f64::from(WANTED) / USUAL_NS as f64;
                let rate = self.rate?;
                Some(work.cost_ns(threads, rate, taken.min(rate)))
            }
            Work::Count => Some(work.cost_ns(threads, self.rate?, 0.0)),
            Work::Blocks => Some(work.cost_ns(threads, self.block_rate?, 0.0)),
            Work::Entries => Some(work.cost_ns(threads, self.entries_rate?, 0.0)),
            Work::Record => None,
        }
    }

    /// Updates the rates from counts over `cpu_ns`. A group that was not executed at all keeps its rate: the
    /// program was in another phase.
    pub(crate) fn counted(
        &mut self,
        (work, threads): (Work, Threads),
        counts: &FxHashMap<u64, u64>,
        cpu_ns: u64,
    ) {
        if cpu_ns == 0 {
            return;
        }
        if work == Work::Time {
            let executed = counts.iter().filter(|(_, count)| **count > 0);
            self.executed.extend(executed.map(|(address, _)| *address));
        }
        let sum: u64 = counts.values().sum();
        let rate = sum as f64 / cpu_ns as f64;
        let keeps = |known: Option<f64>| known.filter(|_| sum == 0).or(Some(rate));
        match work {
            Work::Time | Work::Count => {
                self.rate = keeps(self.rate);
                let executed = counts.iter().filter(|(_, count)| **count > 0);
                let rates = executed.map(|(at, count)| (*at, *count as f64 / cpu_ns as f64));
                for (at, rate) in rates {
                    // Exact counting slows loops down, manyfold under emulators: paces use the rates of
                    // timing windows.
                    if work == Work::Time {
                        self.rates.insert(at, rate);
                    } else {
                        self.rates.entry(at).or_insert(rate);
                    }
                }
            }
            Work::Blocks => {
                self.block_rate = keeps(self.block_rate);
                self.block_windows += 1;
                self.choose_entries(counts, cpu_ns, threads);
            }
            Work::Entries => self.entries_rate = keeps(self.entries_rate),
            Work::Record => {}
        }
    }

    /// Chooses the blocks for [`Work::Entries`] as [`entries`] does. An earlier choice is kept while it still costs
    /// little, because another one needs another plan.
    fn choose_entries(&mut self, counts: &FxHashMap<u64, u64>, cpu_ns: u64, threads: Threads) {
        let chosen = (self.entries.iter()).filter_map(|at| counts.get(at).copied());
        let (sum, most) = chosen.fold((0, 0), |(sum, most), it| (sum + it, it.max(most)));
        let cost_ns = Work::Entries.cost_ns(threads, sum as f64, 0.0);
        if most >= MIN_ENTRIES && cost_ns <= 2.0 * MAX_ENTRIES_COST * cpu_ns as f64 {
            return;
        }
        self.entries = entries(counts, cpu_ns, threads);
        let sum: u64 = self.entries.iter().map(|at| counts[at]).sum();
        self.entries_rate = Some(sum as f64 / cpu_ns as f64);
        self.choices.remove(&Work::Entries);
    }

    /// Decides what the next window is for, after one for `done`.
    pub(crate) fn next_window(
        &mut self,
        done: Work,
        threads: Threads,
        (blocks, entries): (Wanted, Wanted),
    ) {
        self.windows += 1;
        self.since_blocks += 1;
        self.failures = 0;
        let counts = threads == Threads::Several && done == Work::Time;
        let blocks_every = match self.block_windows {
            1 if !self.entries.is_empty() => BLOCKS_AGAIN,
            _ => BLOCKS_EVERY,
        };
        let blocks_due = blocks == Wanted::Yes && self.since_blocks >= blocks_every;
        let entries_due = entries == Wanted::Yes && !self.entries.is_empty();
        self.next = if counts {
            Work::Count
        } else if blocks_due && done != Work::Blocks {
            Work::Blocks
        } else if entries_due && done != Work::Entries {
            Work::Entries
        } else {
            Work::Time
        };
        match done {
            Work::Time => self.new_ns = 0.0,
            Work::Blocks => self.since_blocks = 0,
            Work::Count | Work::Entries | Work::Record => {}
        }
    }

    /// Notes that it could not be placed, and sets the back-off. True if the group is given up by that.
    pub(crate) fn put_off(&mut self, work: Work, now_ns: u64) -> bool {
        if matches!(work, Work::Blocks | Work::Entries | Work::Record) {
            // Latencies are still to be had without it.
            self.next = Work::Time;
            self.since_blocks = 0;
            return false;
        }
        self.failures += 1;
        self.rests_until_ns = now_ns + REST_NS * u64::from(self.failures - 1);
        self.failures == TRIES
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) all: Vec<Group>,
    /// Index of the newest group of each function.
    growing: FxHashMap<(ModuleId, u64), usize>,
    of_site: FxHashMap<SiteId, usize>,
}

impl Groups {
    /// Index of the group of a site.
    pub(crate) fn of(&self, site: SiteId) -> Option<usize> {
        self.of_site.get(&site).copied()
    }

    /// Asks `patcher` which files of groups have become ready.
    pub(crate) fn ask_ready(&mut self, patcher: &impl Patcher) {
        let mut asked: FxHashMap<Identity, bool> = FxHashMap::default();
        for group in self.all.iter_mut().filter(|group| !group.is_ready) {
            let file = group.file.clone();
            group.is_ready = *asked
                .entry(file)
                .or_insert_with_key(|file| patcher.is_ready(file));
        }
    }

    /// Number of groups that had no window because their file was not ready.
    pub(crate) fn unready(&self) -> u64 {
        self.all.iter().filter(|group| !group.is_ready).count() as u64
    }

    /// Adds a sample that waited for `site`.
    pub(crate) fn lost(&mut self, site: SiteId, weight_ns: f64) {
        if let Some(group) = self.of(site) {
            self.all[group].lost(weight_ns);
        }
    }

    /// Adds sites that have no group yet to a group of their function.
    pub(crate) fn add(&mut self, hot: &[(SiteId, f64)], sites: &Sites) {
        let mut new: BTreeMap<(ModuleId, u64), Vec<(u64, SiteId)>> = BTreeMap::new();
        let mut warm: Vec<SiteId> = Vec::new();
        for (site, _) in hot
            .iter()
            .filter(|(site, _)| !self.of_site.contains_key(site))
        {
            // Other accesses of the same function are likely to become hot: planning a patched function takes
            // time, so they join at once.
            warm.push(*site);
            warm.extend(
                sites
                    .near(*site)
                    .filter(|it| !self.of_site.contains_key(it)),
            );
        }
        warm.sort_unstable();
        warm.dedup();
        for site in &warm {
            let Some((module, address)) = sites.place(*site) else {
                continue;
            };
            let function = module.code().and_then(|code| code.function(address));
            let start = function.map_or(address, |range| range.start);
            new.entry((module.id, start))
                .or_default()
                .push((address, *site));
        }
        for (function, mut list) in new {
            list.sort_unstable();
            let module = sites.place(list[0].1).map(|(module, _)| Arc::clone(module));
            let sites = list.iter().map(|(_, site)| *site).collect::<Vec<_>>();
            let growing = self.growing.get(&function).copied();
            if let Some(index) = growing.filter(|it| self.all[*it].grown < MAX_GROWTHS) {
                self.of_site
                    .extend(sites.into_iter().map(|site| (site, index)));
                self.all[index].grow(list);
                continue;
            }
            if let Some(group) = module.and_then(|module| Group::new(function, module, list)) {
                self.growing.insert(function, self.all.len());
                self.of_site
                    .extend(sites.into_iter().map(|site| (site, self.all.len())));
                self.all.push(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The choice from counts of blocks over ten milliseconds.
    fn chosen(counts: &[(u64, u64)], threads: Threads) -> Vec<u64> {
        let counts = counts.iter().copied().collect();
        let chosen = entries(&counts, 10_000_000, threads);
        chosen.into_iter().collect()
    }

    #[test]
    fn blocks_that_run_seldom_stand_for_the_loops_that_they_enter() {
        let nest = [(0x10, 2), (0x20, 5000), (0x30, 5_000_000), (0x40, 5000)];
        assert_eq!(chosen(&nest, Threads::One), [0x20, 0x40]);
        assert_eq!(chosen(&nest, Threads::Several), [0x20, 0x40]);
        let shorter = [(0x10, 2), (0x20, 15_000), (0x30, 5_000_000), (0x40, 15_000)];
        assert_eq!(chosen(&shorter, Threads::One), [0x20, 0x40]);
        // Each costs more where threads count together: only one of them is within the limit.
        assert_eq!(chosen(&shorter, Threads::Several), [0x20]);
        // A loop of few iterations: what enters it runs as often as itself, nearly.
        assert!(chosen(&[(0x10, 400_000), (0x20, 4_000_000)], Threads::One).is_empty());
        // Nothing is slowed much.
        assert!(chosen(&[(0x10, 5000), (0x20, 10_000)], Threads::One).is_empty());
        assert!(chosen(&[(0x10, 2), (0x20, 5_000_000)], Threads::One).is_empty());
        assert!(chosen(&[], Threads::One).is_empty());
    }
}
