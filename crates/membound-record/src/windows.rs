//! Windows in which hot sites are patched.
//!
//! A window opens when every program has exchanged its patches, counts are read then and
//! again before it closes, and the text is put back. So what is counted belongs to a time in
//! which the patches were there throughout; the times are taken where the counts are read, since
//! on a busy machine milliseconds pass between any two lines of this file. Sites of a function
//! are patched together.

use std::time::Duration;

use membound_launch::{Choice, Pace};
use membound_rewrite::stall::CodeBlock;
use membound_run::{Executions, ModuleId, SiteId};
use rustc_hash::FxHashSet;

use crate::budget::{Budget, EXCHANGE_NS, Work};
use crate::groups::{COUNT_NS, FIRST_NS, Group, Groups, Threads, USUAL_NS, Wanted};
use crate::patcher::{Counts, Patcher};
use crate::sites::Sites;

/// A window that cannot be this long is not opened.
const LEAST_NS: u64 = 4_000_000;
/// A window lasts at most so many times the CPU time that it is open for.
const IDLE_TIMES: u64 = 2;
/// Length of a window in which everything is recorded.
const BURST_NS: u64 = 5_000_000;
/// CPU time of the programs before the first of those. What was short is told by the rest.
const BURST_AFTER_CPU_NS: u64 = 400_000_000;
/// Between two of those, or this part of the time that was recorded for.
const BURST_EVERY_NS: u64 = 500_000_000;
const BURST_PART: u64 = 120;
/// Part of what patches may cost that is spent on those: the rest is for latencies and counts.
const BURST_SHARE: f64 = 0.5;
/// Functions whose accesses are recorded together.
const BURST_FUNCTIONS: usize = 16;
/// How long programs are waited for to exchange their patches, planning included: at first, and
/// at most, after times that it was not enough.
const PATIENCE_NS: u64 = 3_000_000_000;
const MOST_PATIENCE_NS: u64 = 48_000_000_000;
/// Between a closed window and the next.
const PAUSE_NS: u64 = 5_000_000;
/// The same after one that failed: at first, and at most, after others that failed before it.
const PAUSE_AFTER_FAILURE_NS: u64 = 500_000_000;
const MOST_PAUSE_NS: u64 = 60_000_000_000;
/// A program has got stuck that takes less than this part of the CPU time that it took before patches
/// were put in, for so long.
const STUCK_PART: f64 = 0.25;
const STUCK_NS: u64 = 40_000_000;
/// Programs that took less of a processor than this before wait for others in any case.
const LEAST_BUSY: f64 = 0.3;
/// Time over which it is found out how busy programs are without patches.
const BUSY_OVER_NS: u64 = 100_000_000;
/// What an exchange is taken to cost at most: plans are made beside the program.
const MOST_TAKEN_NS: u64 = 10_000_000;
/// Part of the time that programs have been exchanging their patches for until they are looked at again: while a
/// file is planned for them that lasts for seconds.
const LOOKS_OPENING: u64 = 8;
/// Groups in one window.
const AT_ONCE: usize = 64;
/// Share of its CPU time that a program is taken to lose by sites of unknown rates.
const UNKNOWN_COST: f64 = 1.0;

/// The present moment, as far as windows need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Since the run began.
    pub(crate) t_ns: u64,
    /// CPU time that all programs have taken.
    pub(crate) cpu_ns: u64,
    /// Whether threads of one process run at the same time, so that plain counts lose some.
    pub(crate) threads: Threads,
}

/// What came of a window.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) work: Work,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// CPU time that all threads took meanwhile, patches included.
    pub(crate) cpu_ns: u64,
    /// What patches are taken to have cost of that: a guess on the high side.
    pub(crate) cost_ns: f64,
    /// Sites that were counted.
    pub(crate) executions: Vec<Executions>,
    /// Blocks that were counted: their modules, they, and how often.
    pub(crate) blocks: Vec<(ModuleId, CodeBlock, u64)>,
    /// Sites that were patched.
    pub(crate) sites: Vec<SiteId>,
}

/// What is wanted beside latencies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) blocks: Wanted,
    pub(crate) bursts: Wanted,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is patched.
    Closed { until_ns: u64 },
    /// The text is to stay as it is for a while ([`Windows::lend`]).
    Lent,
    /// Programs exchange their patches.
    Opening { exchange: u64, window: Window },
    /// Patches are there.
    Open {
        from: Now,
        /// CPU time of all programs that ends it.
        until_cpu_ns: u64,
        /// The same in time, for programs that wait.
        until_ns: u64,
        before: Vec<Counts>,
        window: Window,
    },
}

#[derive(Debug)]
struct Window {
    work: Work,
    /// Groups with what is patched for them.
    parts: Vec<Part>,
    since_ns: u64,
    /// CPU time of all programs at that time.
    since_cpu_ns: u64,
    /// CPU time that it is open for.
    length_ns: u64,
}

#[derive(Clone, Debug)]
struct Part {
    group: usize,
    choice: Choice,
    /// How its sites are sampled.
    paces: Vec<(u64, Pace)>,
}

/// Tells whether programs get on while patches stand in their text, or are put there.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// CPU time in a second without patches.
    busy: f64,
    /// Since when that is found out, or since when patches were there: time and CPU time.
    since: Option<(u64, u64)>,
    was_clear: bool,
}

impl Progress {
    /// Takes a look; whether programs have got stuck. `is_clear`: no patches are in the text.
    fn is_stuck(&mut self, now: Now, is_clear: bool) -> bool {
        let here = (now.t_ns, now.cpu_ns);
        let (since_ns, cpu_ns) = match self.since {
            Some(since) if self.was_clear == is_clear => since,
            _ => here,
        };
        self.since = Some((since_ns, cpu_ns));
        self.was_clear = is_clear;
        let passed_ns = now.t_ns.saturating_sub(since_ns);
        let least_ns = if is_clear { BUSY_OVER_NS } else { STUCK_NS };
        if passed_ns < least_ns {
            return false;
        }
        self.since = Some(here);
        let busy = now.cpu_ns.saturating_sub(cpu_ns) as f64 / passed_ns as f64;
        if is_clear {
            self.busy = busy;
            return false;
        }
        self.busy >= LEAST_BUSY && busy < STUCK_PART * self.busy
    }
}

/// Opens and closes windows.
#[derive(Debug)]
pub(crate) struct Windows {
    groups: Groups,
    wants: Wants,
    budget: Budget,
    phase: Phase,
    burst_due_ns: u64,
    /// The same in CPU time of all programs.
    burst_due_cpu_ns: u64,
    /// When the last window was opened in which everything is recorded, until somebody asks.
    burst_since_ns: Option<u64>,
    /// The exchange that takes patches out, until programs have done it.
    clearing: Option<u64>,
    /// When the text was last as it is without patches: from, and before.
    clear_ns: (u64, u64),
    /// How long programs are waited for next.
    patience_ns: u64,
    /// CPU time that they took while they exchanged their patches, the last times.
    exchanges_ns: [u64; 3],
    /// Windows that failed one after the other: refused, not exchanged in time, or closed because
    /// programs made no progress.
    failures: u32,
    progress: Progress,
    /// Before the next look at the programs.
    until_look: Duration,
    /// Windows that were closed because programs made no progress.
    pub(crate) stuck: u64,
    /// Windows whose programs did not exchange their patches in time.
    pub(crate) unsettled: u64,
    /// Windows in which the machine was too busy to read counts in time.
    pub(crate) blurred: u64,
    /// Sites that could be placed nowhere.
    pub(crate) given_up: u64,
}

impl Windows {
    /// None yet; patches may cost this share of the programs' time.
    pub(crate) fn new(max_overhead: f64, wants: Wants) -> Self {
        Self {
            groups: Groups::default(),
            wants,
            budget: Budget::new(max_overhead),
            phase: Phase::Closed { until_ns: 0 },
            burst_due_ns: 0,
            burst_due_cpu_ns: 0,
            burst_since_ns: None,
            clearing: None,
            clear_ns: (0, u64::MAX),
            patience_ns: PATIENCE_NS,
            exchanges_ns: [0; 3],
            failures: 0,
            progress: Progress::default(),
            until_look: Duration::ZERO,
            stuck: 0,
            unsettled: 0,
            blurred: 0,
            given_up: 0,
        }
    }

    /// A sample waited for a site, for so long.
    pub(crate) fn lost(&mut self, site: SiteId, weight_ns: f64) {
        self.groups.lost(site, weight_ns);
    }

    /// Patches have cost so much more than they were taken to.
    pub(crate) fn spend(&mut self, cost_ns: f64) {
        self.budget.spend(cost_ns);
    }

    /// The program has lost so much by the rest of recording, in all.
    pub(crate) const fn lost_otherwise(&mut self, lost_ns: f64) {
        self.budget.lost_otherwise(lost_ns);
    }

    /// Whether patches stand in the text, or are about to.
    pub(crate) const fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Closed { .. } | Phase::Lent)
    }

    /// How long nothing is to be done for the window that is open, or about to be: each look takes processors' time, which
    /// programs may want.
    pub(crate) const fn until_look(&self) -> Duration {
        self.until_look
    }

    /// The same, found anew.
    fn look_after(&self, now: Now) -> Duration {
        Duration::from_nanos(match &self.phase {
            Phase::Opening { window, .. } => {
                now.t_ns.saturating_sub(window.since_ns) / LOOKS_OPENING
            }
            // Not all at once: how fast programs get on changes, and a window is not to be much longer than it
            // may be.
            Phase::Open {
                until_cpu_ns,
                until_ns,
                ..
            } => {
                let left_ns = until_cpu_ns.saturating_sub(now.cpu_ns) as f64;
                let soon_ns = left_ns / (2.0 * self.progress.busy.max(1.0));
                (soon_ns as u64).min(until_ns.saturating_sub(now.t_ns))
            }
            Phase::Closed { .. } | Phase::Lent => 0,
        })
    }

    /// Since when no patch stood in any text, at a moment not long ago; `None` where one did,
    /// as far as is known.
    pub(crate) fn clear_since_ns(&self, t_ns: u64) -> Option<u64> {
        let (since_ns, until_ns) = self.clear_ns;
        (since_ns..until_ns).contains(&t_ns).then_some(since_ns)
    }

    /// When a window was opened in which everything is recorded, once for each.
    pub(crate) const fn take_burst(&mut self) -> Option<u64> {
        self.burst_since_ns.take()
    }

    /// Whether no patch stands in the text, or is about to.
    pub(crate) fn is_clear(&self) -> bool {
        self.clearing.is_none() && matches!(self.phase, Phase::Closed { .. })
    }

    /// Opens no window until [`Self::give_back`]. The text must be clear.
    pub(crate) fn lend(&mut self) {
        self.phase = Phase::Lent;
    }

    /// Goes on with windows.
    pub(crate) fn give_back(&mut self, now: Now) {
        self.phase = Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        };
    }

    /// Goes on; what came of a window that was closed. `hot` are the sites that are worth it.
    pub(crate) fn step(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        hot: &[(SiteId, f64)],
        sites: &mut Sites,
    ) -> Option<Closed> {
        let closed = self.go_on(patcher, now, hot, sites);
        self.until_look = self.look_after(now);
        closed
    }

    fn go_on(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        hot: &[(SiteId, f64)],
        sites: &mut Sites,
    ) -> Option<Closed> {
        if self.clearing.is_some_and(|it| patcher.settled(it)) {
            self.clearing = None;
            self.clear_ns = (now.t_ns, u64::MAX);
        }
        let is_clear = !self.is_open() && self.clearing.is_none();
        if self.progress.is_stuck(now, is_clear) && self.is_open() {
            self.stuck += 1;
            let closed = match std::mem::replace(&mut self.phase, Phase::Closed { until_ns: 0 }) {
                Phase::Open {
                    from,
                    before,
                    window,
                    ..
                } => Some(self.end(patcher, from, now, &before, &window)),
                Phase::Opening { .. } | Phase::Closed { .. } | Phase::Lent => None,
            };
            self.phase = self.fail(patcher, now);
            return closed;
        }
        match std::mem::replace(&mut self.phase, Phase::Closed { until_ns: 0 }) {
            Phase::Lent => self.phase = Phase::Lent,
            Phase::Closed { until_ns } if now.t_ns < until_ns => {
                self.phase = Phase::Closed { until_ns };
            }
            Phase::Closed { .. } => {
                self.groups.add(hot, sites);
                self.phase = self.open(patcher, now, hot);
            }
            Phase::Opening { exchange, window } => {
                self.phase = if patcher.settled(exchange) {
                    self.patience_ns = PATIENCE_NS;
                    if now.threads == Threads::Several {
                        // Whoever works on an exchange takes the processor of a thread that
                        // could run.
                        let took_ns = now.t_ns.saturating_sub(window.since_ns).min(MOST_TAKEN_NS);
                        self.budget.spend(took_ns as f64);
                    }
                    self.exchanges_ns.rotate_left(1);
                    self.exchanges_ns[2] = now.cpu_ns.saturating_sub(window.since_cpu_ns);
                    self.begin(patcher, now, window, sites)
                } else if now.t_ns < window.since_ns.saturating_add(self.patience_ns) {
                    Phase::Opening { exchange, window }
                } else {
                    // A program may stand still, or a large file take long to plan: that says
                    // nothing of these groups, and the next time there is more patience.
                    self.unsettled += 1;
                    self.patience_ns = (2 * self.patience_ns).min(MOST_PATIENCE_NS);
                    self.fail(patcher, now)
                };
            }
            Phase::Open {
                until_cpu_ns,
                until_ns,
                from,
                before,
                window,
            } if now.t_ns < until_ns && now.cpu_ns < until_cpu_ns => {
                self.phase = Phase::Open {
                    from,
                    until_cpu_ns,
                    until_ns,
                    before,
                    window,
                };
            }
            Phase::Open {
                from,
                before,
                window,
                ..
            } => {
                let closed = self.end(patcher, from, now, &before, &window);
                if window.work == Work::Record {
                    // Everything was recorded from when the first program had its patches on.
                    // Where exchanges take long, that is far more than the window, and bursts
                    // would be all that is ever paid for.
                    let stood_ns = now.cpu_ns.saturating_sub(window.since_cpu_ns) as f64;
                    let spent_ns = stood_ns * UNKNOWN_COST;
                    let earned_ns = self.budget.earned_within_ns(spent_ns / BURST_SHARE);
                    self.burst_due_cpu_ns = now.cpu_ns.saturating_add(earned_ns);
                }
                self.phase = self.close(patcher, now);
                return Some(closed);
            }
        }
        None
    }

    /// Ends whatever is going on.
    pub(crate) fn stop(&mut self, patcher: &impl Patcher, now: Now) -> Option<Closed> {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed { until_ns: u64::MAX });
        let closed = match phase {
            Phase::Closed { .. } => return None,
            Phase::Opening { .. } | Phase::Lent => None,
            Phase::Open {
                from,
                before,
                window,
                ..
            } => Some(self.end(patcher, from, now, &before, &window)),
        };
        patcher.exchange(Vec::new());
        closed
    }

    /// Chooses what the next window is for, and has programs exchange their patches.
    fn open(&mut self, patcher: &impl Patcher, now: Now, hot: &[(SiteId, f64)]) -> Phase {
        let closed = Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        };
        let left_ns = self.budget.left_ns(now.cpu_ns);
        let chosen = match self.burst(now, hot) {
            // Short windows would spend whatever there is before it is enough.
            Some(_) if !self.affords_burst(left_ns) => None,
            Some(groups) => {
                self.burst_due_ns = now.t_ns + BURST_EVERY_NS.max(now.t_ns / BURST_PART);
                Some((Work::Record, groups, BURST_NS))
            }
            None => self.due(now, hot, left_ns),
        };
        let Some((work, groups, length_ns)) = chosen else {
            return closed;
        };
        // Patches stand in the text before everybody is known to have them. Exchanges in which
        // something was planned take longer than that: the shortest counts.
        let stands_ns = USUAL_NS.max(self.exchanges_ns.into_iter().min().unwrap_or(0));
        let mut parts = Vec::new();
        for index in groups {
            let group = &mut self.groups.all[index];
            let choice = group.choice(work, now.threads).clone();
            let paces = match work {
                Work::Time => group.paces(stands_ns),
                Work::Count | Work::Blocks | Work::Record => Vec::new(),
            };
            if !paces.is_empty() {
                patcher.arm(&choice, &paces);
            }
            parts.push(Part {
                group: index,
                choice,
                paces,
            });
        }
        if work == Work::Record {
            self.burst_since_ns = Some(now.t_ns);
        }
        self.stand(now);
        let exchange = patcher.exchange(parts.iter().map(|part| part.choice.clone()).collect());
        Phase::Opening {
            exchange,
            window: Window {
                work,
                parts,
                since_ns: now.t_ns,
                since_cpu_ns: now.cpu_ns,
                length_ns,
            },
        }
    }

    /// Whether a window can be paid for in which everything is recorded. The first is had in
    /// any case: without one, nothing is known of traffic.
    fn affords_burst(&self, left_ns: f64) -> bool {
        self.burst_due_ns == 0 || left_ns >= BURST_NS as f64 * UNKNOWN_COST
    }

    /// The hottest functions when it is time to record everything that they access.
    fn burst(&self, now: Now, hot: &[(SiteId, f64)]) -> Option<Vec<usize>> {
        if self.wants.bursts == Wanted::No
            || now.t_ns < self.burst_due_ns
            || now.cpu_ns < self.burst_due_cpu_ns
            || now.cpu_ns < BURST_AFTER_CPU_NS
            || self.is_untimed(now, hot)
        {
            return None;
        }
        let mut functions = FxHashSet::default();
        let groups = self.hot_groups(hot);
        // Latencies and counts come first: only what had its windows is recorded.
        let chosen: Vec<usize> = groups
            .filter(|group| {
                let group = &self.groups.all[*group];
                group.windows > 0 && group.next != Work::Count
            })
            .filter(|group| functions.insert(self.groups.all[*group].function))
            .take(BURST_FUNCTIONS)
            .collect();
        (!chosen.is_empty()).then_some(chosen)
    }

    /// The groups of these sites, as often as they have one of them, in their order.
    fn hot_groups(&self, hot: &[(SiteId, f64)]) -> impl Iterator<Item = usize> {
        hot.iter().filter_map(|(site, _)| self.groups.of(*site))
    }

    /// Whether nothing is known yet of some hot group: nothing else is worth as much as its first window.
    fn is_untimed(&self, now: Now, hot: &[(SiteId, f64)]) -> bool {
        self.hot_groups(hot).any(|group| {
            let group = &self.groups.all[group];
            group.windows == 0 && group.is_due(now.t_ns)
        })
    }

    /// Groups that are due, the hottest first, as many as can be paid for, and for how long.
    /// Of each function there is one: two may want the same bytes, and what cannot be placed
    /// once is barred.
    fn due(
        &self,
        now: Now,
        hot: &[(SiteId, f64)],
        left_ns: f64,
    ) -> Option<(Work, Vec<usize>, u64)> {
        let mut due: Vec<usize> = Vec::new();
        for group in self.hot_groups(hot) {
            let it = &self.groups.all[group];
            if it.is_due(now.t_ns) && !due.contains(&group) {
                due.push(group);
            }
        }
        // Those that had the fewest windows first; the order of heat stays among equals.
        due.sort_by_key(|group| self.groups.all[*group].windows.min(3));
        let work = self.groups.all[*due.first()?].next;
        let mut functions = FxHashSet::default();
        let mut chosen = Vec::new();
        let mut cost = 0.0;
        let mut unknown = 0.0;
        for index in due {
            let group = &self.groups.all[index];
            if group.next != work || chosen.len() == AT_ONCE || functions.contains(&group.function)
            {
                continue;
            }
            let more = group.cost(work, now.threads);
            // All that is unknown together cannot run more often than a processor does.
            let unknown_with = if more.is_none() {
                UNKNOWN_COST
            } else {
                unknown
            };
            let with = cost + more.unwrap_or(0.0).min(UNKNOWN_COST);
            if !chosen.is_empty() && (with + unknown_with) * LEAST_NS as f64 > left_ns {
                continue;
            }
            (cost, unknown) = (with, unknown_with);
            functions.insert(group.function);
            chosen.push(index);
        }
        // A processor's time is all that patches can take of it.
        cost = cost.min(UNKNOWN_COST);
        let usual = match work {
            _ if unknown > 0.0 => FIRST_NS,
            Work::Count | Work::Blocks => COUNT_NS,
            Work::Time | Work::Record => USUAL_NS,
        };
        let length_ns = (left_ns / (cost + unknown).max(1e-9)).min(usual as f64) as u64;
        (length_ns >= LEAST_NS).then_some((work, chosen, length_ns))
    }

    /// All programs have the patches: the window is open.
    fn begin(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        window: Window,
        sites: &mut Sites,
    ) -> Phase {
        let mut placed = Vec::new();
        for part in window.parts {
            // Bodies that record do not count; that they were planned shows in what they refuse.
            let executed = patcher.executed(&part.choice);
            let refused = patcher.refused(&part.choice);
            if executed.is_none() && (window.work != Work::Record || refused.is_none()) {
                self.put_off(part.group, window.work, now, sites);
                continue;
            }
            if matches!(window.work, Work::Time) {
                let group = &self.groups.all[part.group];
                for (address, refusal) in refused.unwrap_or_default() {
                    if let Some((_, site)) = group.sites.iter().find(|(it, _)| *it == address) {
                        sites.refuse(*site, refusal.to_string());
                    }
                }
            }
            placed.push(part);
        }
        if placed.is_empty() {
            return self.close(patcher, now);
        }
        self.failures = 0;
        let read = |part: &Part| Counts::read(patcher, &part.choice).unwrap_or_default();
        Phase::Open {
            from: now,
            until_cpu_ns: now.cpu_ns + window.length_ns,
            until_ns: now.t_ns + IDLE_TIMES * window.length_ns,
            before: placed.iter().map(read).collect(),
            window: Window {
                parts: placed,
                ..window
            },
        }
    }

    fn put_off(&mut self, group: usize, work: Work, now: Now, sites: &mut Sites) {
        let group = &mut self.groups.all[group];
        if group.put_off(work, now.t_ns) {
            self.given_up += group.sites.len() as u64;
            for (_, site) in &group.sites {
                sites.refuse(*site, "not-placed".to_owned());
            }
        }
    }

    /// Patches are about to stand in the text.
    fn stand(&mut self, now: Now) {
        self.clearing = None;
        self.clear_ns.1 = self.clear_ns.1.min(now.t_ns);
    }

    /// Has programs take their patches out. The exchange that put them in is paid for as well.
    fn clear(&mut self, patcher: &impl Patcher) {
        self.budget.spend(2.0 * EXCHANGE_NS);
        self.clearing = Some(patcher.exchange(Vec::new()));
    }

    fn close(&mut self, patcher: &impl Patcher, now: Now) -> Phase {
        self.clear(patcher);
        Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        }
    }

    /// The same after something went wrong: the more often in a row, the later it is tried again.
    fn fail(&mut self, patcher: &impl Patcher, now: Now) -> Phase {
        let pause_ns = PAUSE_AFTER_FAILURE_NS << self.failures.min(16);
        self.failures += 1;
        self.clear(patcher);
        Phase::Closed {
            until_ns: now.t_ns + pause_ns.min(MOST_PAUSE_NS),
        }
    }

    /// Reads what was counted in a window that is about to close.
    fn end(
        &mut self,
        patcher: &impl Patcher,
        from: Now,
        now: Now,
        before: &[Counts],
        window: &Window,
    ) -> Closed {
        // All of them first: what is done with them takes its time.
        let read = |part: &Part| Counts::read(patcher, &part.choice).unwrap_or_default();
        let after: Vec<Counts> = window.parts.iter().map(read).collect();
        let ends = |counts: &[Counts]| {
            let known: Vec<u64> = counts
                .iter()
                .filter_map(|it| (it.at_ns > 0).then_some(it.at_ns))
                .collect();
            known.iter().min().copied().zip(known.iter().max().copied())
        };
        let mut closed = Closed {
            work: window.work,
            from_ns: ends(before).map_or(from.t_ns, |(first, _)| first),
            to_ns: ends(&after).map_or(now.t_ns, |(_, last)| last),
            cpu_ns: now.cpu_ns.saturating_sub(from.cpu_ns),
            cost_ns: 0.0,
            executions: Vec::new(),
            blocks: Vec::new(),
            sites: Vec::new(),
        };
        let length_ns = closed.to_ns.saturating_sub(closed.from_ns).max(1) as f64;
        // Counts that race are too low: they serve for the rate, and for no figure.
        let counts_true = window.work == Work::Count || now.threads == Threads::One;
        for ((part, before), after) in window.parts.iter().zip(before).zip(&after) {
            let group = &mut self.groups.all[part.group];
            closed
                .sites
                .extend(group.sites.iter().map(|(_, site)| *site));
            let grown = before.until(after);
            let all: u64 = grown.values().sum();
            let part_ns = after.at_ns.saturating_sub(before.at_ns) as f64;
            let cpu_ns = (closed.cpu_ns as f64 * (part_ns / length_ns).min(1.0)) as u64;
            let sharp = before.is_sharp(after);
            self.blurred += u64::from(!sharp && window.work != Work::Record);
            match window.work {
                Work::Time | Work::Count if counts_true && sharp => {
                    let rows = group.sites.iter().filter_map(|(address, site)| {
                        Some(Executions {
                            site: *site,
                            from_ns: before.at_ns,
                            to_ns: after.at_ns,
                            count: *grown.get(address)?,
                            cpu_ns,
                            least_cpu_ns: None,
                            most_cpu_ns: None,
                        })
                    });
                    closed.executions.extend(rows);
                }
                Work::Blocks => {
                    let rows = group.blocks.iter().filter_map(|block| {
                        Some((group.function.0, *block, *grown.get(&block.start)?))
                    });
                    closed.blocks.extend(rows);
                }
                Work::Time | Work::Count | Work::Record => {}
            }
            let taken = match window.work {
                Work::Time => Group::taken(&part.paces, &grown),
                Work::Count | Work::Blocks | Work::Record => 0.0,
            };
            closed.cost_ns += window.work.cost_ns(now.threads, all as f64, taken);
            group.counted(window.work, &grown, closed.cpu_ns);
            if window.work != Work::Record {
                group.next_window(window.work, now.threads, self.wants.blocks);
            }
        }
        let all_ns = closed.cpu_ns as f64 * UNKNOWN_COST;
        self.budget.spend(match window.work {
            Work::Record => all_ns,
            Work::Time | Work::Count | Work::Blocks => closed.cost_ns.min(all_ns),
        });
        closed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use membound_launch::Executed;
    use membound_rewrite::patch::Refusal;

    use super::*;

    /// Programs that have done exchanges up to a number.
    #[derive(Default)]
    struct Programs {
        asked: Cell<u64>,
        done: Cell<u64>,
    }

    impl Patcher for Programs {
        fn exchange(&self, _: Vec<Choice>) -> u64 {
            self.asked.set(self.asked.get() + 1);
            self.asked.get()
        }

        fn settled(&self, exchange: u64) -> bool {
            self.done.get() >= exchange
        }

        fn executed(&self, _: &Choice) -> Option<Vec<Executed>> {
            None
        }

        fn refused(&self, _: &Choice) -> Option<Vec<(u64, Refusal)>> {
            None
        }

        fn arm(&self, _: &Choice, _: &[(u64, Pace)]) {}

        fn now_ns(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_program_that_gets_stuck_is_told_from_one_that_waits() {
        let at = |t_ms: u64, cpu_ms: u64| Now {
            t_ns: t_ms * 1_000_000,
            cpu_ns: cpu_ms * 1_000_000,
            threads: Threads::One,
        };
        let mut progress = Progress::default();
        for t_ms in 0..300 {
            assert!(!progress.is_stuck(at(t_ms, t_ms), true));
        }
        // Patches that slow it down to a half are none of that.
        for t_ms in 300..400 {
            assert!(!progress.is_stuck(at(t_ms, 300 + (t_ms - 300) / 2), false));
        }
        let stuck = (400..500).position(|t_ms| progress.is_stuck(at(t_ms, 350), false));
        assert!(stuck.is_some_and(|ms| (20..=90).contains(&ms)), "{stuck:?}");
        // One that waited before as well does not get on with patches either.
        let mut progress = Progress::default();
        for t_ms in 0..300 {
            progress.is_stuck(at(t_ms, 5), true);
        }
        assert!(!(300..900).any(|t_ms| progress.is_stuck(at(t_ms, 5), false)));
    }

    #[test]
    fn a_window_is_looked_at_seldom_and_more_often_towards_its_end() {
        let wants = Wants {
            blocks: Wanted::No,
            bursts: Wanted::No,
        };
        let mut windows = Windows::new(0.05, wants);
        windows.progress.busy = 2.0;
        let at = |ms: u64| Now {
            t_ns: ms * 1_000_000,
            cpu_ns: 2 * ms * 1_000_000,
            threads: Threads::Several,
        };
        windows.phase = Phase::Open {
            from: at(0),
            until_cpu_ns: 40_000_000,
            until_ns: 80_000_000,
            before: Vec::new(),
            window: Window {
                work: Work::Time,
                parts: Vec::new(),
                since_ns: 0,
                since_cpu_ns: 0,
                length_ns: 40_000_000,
            },
        };
        // Of 20 ms that two threads need.
        let (mut t_ms, mut looks) = (0, 0);
        while t_ms < 20 {
            t_ms += windows.look_after(at(t_ms)).as_millis().max(1) as u64;
            looks += 1;
        }
        assert!(t_ms <= 21 && looks <= 8, "{looks} looks, {t_ms} ms");
        assert_eq!(windows.look_after(at(20)), Duration::ZERO);
    }

    #[test]
    fn what_fails_again_and_again_is_tried_ever_more_seldom() {
        let wants = Wants {
            blocks: Wanted::No,
            bursts: Wanted::No,
        };
        let programs = Programs::default();
        let mut windows = Windows::new(0.05, wants);
        let now = Now {
            t_ns: 0,
            cpu_ns: 0,
            threads: Threads::One,
        };
        let mut pause = || match windows.fail(&programs, now) {
            Phase::Closed { until_ns } => until_ns,
            Phase::Opening { .. } | Phase::Open { .. } | Phase::Lent => 0,
        };
        let pauses: Vec<u64> = (0..40).map(|_| pause()).collect();
        assert_eq!(pauses[0], PAUSE_AFTER_FAILURE_NS);
        assert_eq!(pauses[1], 2 * PAUSE_AFTER_FAILURE_NS);
        assert_eq!(pauses[39], MOST_PAUSE_NS);
        assert!(pauses.is_sorted());
    }

    #[test]
    fn text_is_clear_from_when_all_programs_took_their_patches_out() {
        let at = |t_ns: u64| Now {
            t_ns,
            cpu_ns: t_ns,
            threads: Threads::One,
        };
        let wants = Wants {
            blocks: Wanted::No,
            bursts: Wanted::No,
        };
        let programs = Programs::default();
        let mut windows = Windows::new(0.05, wants);
        let mut sites = Sites::default();
        assert!(windows.clear_since_ns(5).is_some());
        windows.stand(at(10));
        assert!(windows.clear_since_ns(9).is_some());
        assert!(windows.clear_since_ns(10).is_none());
        windows.phase = windows.close(&programs, at(20));
        windows.step(&programs, at(25), &[], &mut sites);
        assert!(
            windows.clear_since_ns(25).is_none(),
            "a program has them still"
        );
        programs.done.set(1);
        windows.step(&programs, at(30), &[], &mut sites);
        assert!(windows.clear_since_ns(29).is_none());
        assert!(windows.clear_since_ns(30).is_some());
        // The next window comes before all have done that.
        windows.phase = windows.close(&programs, at(40));
        windows.stand(at(45));
        programs.done.set(2);
        windows.step(&programs, at(50), &[], &mut sites);
        assert!(windows.clear_since_ns(50).is_none());
    }
}
