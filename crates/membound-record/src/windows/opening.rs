//! Chooses what the next window is for: the hottest groups that are due, as many as the budget allows.

use membound_run::SiteId;
use rustc_hash::FxHashSet;

use super::window::{Now, Part, Phase, Window};
use super::{PAUSE_NS, UNKNOWN_COST, Windows};
use crate::budget::Work;
use crate::groups::{COUNT_NS, FIRST_NS, USUAL_NS, Wanted};
use crate::patcher::Patcher;

/// Shortest window that is opened, in nanoseconds of CPU time.
const MIN_WINDOW_NS: u64 = 4_000_000;
/// Longest window in programs that serve requests.
const LIMITED_NS: u64 = 8_000_000;
/// Length of a burst, in which every access is recorded.
const BURST_NS: u64 = 5_000_000;
/// CPU time of the programs before the first burst. Shorter programs have the other windows only.
const BURST_AFTER_CPU_NS: u64 = 400_000_000;
/// Interval between two bursts: at least this, and at least this fraction of the time recorded so far.
const BURST_EVERY_NS: u64 = 500_000_000;
const BURST_PART: u64 = 120;
/// Functions recorded in one burst.
const BURST_FUNCTIONS: usize = 16;
/// Groups in one window at most.
const AT_ONCE: usize = 64;

impl Windows {
    /// Chooses what the next window is for, and makes programs exchange their patches.
    pub(super) fn open(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        hot: &[(SiteId, f64)],
    ) -> Phase {
        let closed = Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        };
        if !self.may_open(now.cpu_ns) {
            return closed;
        }
        let left_ns = self.budget.left_ns(now.cpu_ns);
        // Bursts are always due where windows are rare: every second window is for latencies.
        let has_recorded = self
            .limited
            .as_mut()
            .is_some_and(|limited| std::mem::take(&mut limited.has_recorded));
        let burst = if has_recorded {
            None
        } else {
            self.burst(now, hot)
        };
        let chosen = match burst {
            // Wait: shorter windows now would keep the budget from ever sufficing for the burst.
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
        let parts = self.parts(patcher, work, groups, now);
        if work == Work::Record {
            self.burst_since_ns = Some(now.t_ns);
            if let Some(limited) = &mut self.limited {
                limited.has_recorded = true;
            }
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

    /// What is patched for each of `groups`. Arms the sites that are timed.
    fn parts(
        &mut self,
        patcher: &impl Patcher,
        work: Work,
        groups: Vec<usize>,
        now: Now,
    ) -> Vec<Part> {
        // Patches are executed before all programs are known to have them. Exchanges that include planning
        // take longer, so the shortest of the last three counts.
        let stands_ns = self
            .usual_ns()
            .max(self.exchanges_ns.into_iter().min().unwrap_or(0));
        let part = |index: usize| {
            let group = &mut self.groups.all[index];
            let choice = group.choice(work, now.threads).clone();
            let paces = match work {
                Work::Time => group.paces(stands_ns),
                Work::Count | Work::Blocks | Work::Entries | Work::Record => Vec::new(),
            };
            if !paces.is_empty() {
                patcher.arm(&choice, &paces);
            }
            Part {
                group: index,
                choice,
                paces,
            }
        };
        groups.into_iter().map(part).collect()
    }

    /// Usual length of a window in which executions are timed, in nanoseconds of CPU time.
    fn usual_ns(&self) -> u64 {
        match self.limited {
            Some(_) => LIMITED_NS,
            None => USUAL_NS,
        }
    }

    /// Whether the budget suffices for a burst. The first is always granted: without one, nothing is known of
    /// traffic.
    fn affords_burst(&self, left_ns: f64) -> bool {
        self.burst_due_ns == 0 || left_ns >= BURST_NS as f64 * UNKNOWN_COST
    }

    /// The hottest functions, if a burst is due.
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
        // Latencies and counts come first: only groups that had their windows are recorded.
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

    /// The groups of these sites, in the order of the sites; a group comes once for each of its sites.
    fn hot_groups(&self, hot: &[(SiteId, f64)]) -> impl Iterator<Item = usize> {
        hot.iter().filter_map(|(site, _)| self.groups.of(*site))
    }

    /// True if some hot group that is due had no window yet: its first window is worth more than a burst.
    fn is_untimed(&self, now: Now, hot: &[(SiteId, f64)]) -> bool {
        self.hot_groups(hot).any(|group| {
            let group = &self.groups.all[group];
            group.windows == 0 && group.is_due(now.t_ns)
        })
    }

    /// Groups that are due, the hottest first, as many as the budget allows, and the window's length. At most
    /// one group of each function: two may need the same bytes, and sites that cannot be placed are barred.
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
        // Groups with the fewest windows first (three and more are equal); among equals, the hottest first.
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
            // All sites of unknown rates together cannot execute more than one processor does.
            let unknown_with = if more.is_none() {
                UNKNOWN_COST
            } else {
                unknown
            };
            let with = cost + more.unwrap_or(0.0).min(UNKNOWN_COST);
            if !chosen.is_empty() && (with + unknown_with) * MIN_WINDOW_NS as f64 > left_ns {
                continue;
            }
            (cost, unknown) = (with, unknown_with);
            functions.insert(group.function);
            chosen.push(index);
        }
        // Patches can take no more than all of the processor's time.
        cost = cost.min(UNKNOWN_COST);
        let usual = match work {
            _ if unknown > 0.0 => FIRST_NS,
            Work::Count | Work::Blocks => COUNT_NS,
            Work::Time | Work::Entries | Work::Record => USUAL_NS,
        };
        let usual = usual.min(self.usual_ns());
        let length_ns = (left_ns / (cost + unknown).max(1e-9)).min(usual as f64) as u64;
        (length_ns >= MIN_WINDOW_NS).then_some((work, chosen, length_ns))
    }
}
