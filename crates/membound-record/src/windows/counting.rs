//! Reads the counters of a window, when it opens and again before it closes.

use membound_rewrite::patch::Refusal;
use membound_run::Executions;
use rustc_hash::FxHashMap;

use super::window::{Closed, Now, Part, Phase, Window};
use super::{UNKNOWN_COST, Windows};
use crate::budget::{Threads, Work};
use crate::groups::{Group, Wanted};
use crate::patcher::{Counts, Patcher};
use crate::sites::Sites;

/// Upper limit of a window's wall time, as a multiple of its CPU time.
const IDLE_TIMES: u64 = 2;

impl Windows {
    /// Starts a window, once all programs have its patches.
    pub(super) fn begin(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        window: Window,
        sites: &mut Sites,
    ) -> Phase {
        let mut placed = Vec::new();
        for part in window.parts {
            // `Record` bodies have no counters; that they were planned is visible in their refusals.
            let executed = patcher.executed(&part.choice);
            let refused = patcher.refused(&part.choice);
            if executed.is_none() && (window.work != Work::Record || refused.is_none()) {
                self.put_off(part.group, window.work, now, sites);
                continue;
            }
            if matches!(window.work, Work::Time) {
                let group = &mut self.groups.all[part.group];
                let refused = refused.unwrap_or_default();
                let addresses: Vec<u64> = refused.iter().map(|(address, _)| *address).collect();
                if let Some(removed) = group.shrink(&addresses) {
                    for site in removed {
                        sites.refuse(site, Refusal::NoRoom.to_string());
                    }
                    continue;
                }
                for (address, refusal) in refused {
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

    /// Reads the counters of a window that is about to close, and turns the differences into results.
    pub(super) fn end(
        &mut self,
        patcher: &impl Patcher,
        from: Now,
        now: Now,
        before: &[Counts],
        window: &Window,
    ) -> Closed {
        // Read all counters before the results are computed, which takes time.
        let read = |part: &Part| Counts::read(patcher, &part.choice).unwrap_or_default();
        let after: Vec<Counts> = window.parts.iter().map(read).collect();
        let mut closed = Closed {
            work: window.work,
            from_ns: read_times_ns(before).min().unwrap_or(from.t_ns),
            to_ns: read_times_ns(&after).max().unwrap_or(now.t_ns),
            cpu_ns: now.cpu_ns.saturating_sub(from.cpu_ns),
            cost_ns: 0.0,
            is_one_thread: now.threads == Threads::One && now.processes == 1,
            executions: Vec::new(),
            blocks: Vec::new(),
            sites: Vec::new(),
        };
        let length_ns = closed.to_ns.saturating_sub(closed.from_ns).max(1) as f64;
        // Plain counts of concurrent threads are too low: they are used for rates, but not reported.
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
                    let rows = executions(group, before, after, &grown, cpu_ns);
                    closed.executions.extend(rows);
                }
                Work::Blocks | Work::Entries => {
                    let rows = group.blocks.iter().filter_map(|block| {
                        Some((group.function.0, *block, *grown.get(&block.start)?))
                    });
                    closed.blocks.extend(rows);
                }
                Work::Time | Work::Count | Work::Record => {}
            }
            let taken = match window.work {
                Work::Time => Group::taken(&part.paces, &grown),
                Work::Count | Work::Blocks | Work::Entries | Work::Record => 0.0,
            };
            closed.cost_ns += window.work.cost_ns(now.threads, all as f64, taken);
            group.counted((window.work, now.threads), &grown, closed.cpu_ns);
            if window.work != Work::Record {
                // Programs that serve requests have few windows: these are for latencies.
                let entries = match self.limited {
                    Some(_) => Wanted::No,
                    None => self.wants.blocks,
                };
                group.next_window(window.work, now.threads, (self.wants.blocks, entries));
            }
        }
        let all_ns = closed.cpu_ns as f64 * UNKNOWN_COST;
        self.budget.spend(match window.work {
            Work::Record => all_ns,
            Work::Time | Work::Count | Work::Blocks | Work::Entries => closed.cost_ns.min(all_ns),
        });
        closed
    }
}

/// When the counters were read, in nanoseconds, as far as they could be.
fn read_times_ns(counts: &[Counts]) -> impl Iterator<Item = u64> {
    let times = counts.iter().map(|it| it.at_ns);
    times.filter(|at_ns| *at_ns > 0)
}

/// Executions of the sites of `group` in `cpu_ns`: `grown`, the difference between two counts, by address.
fn executions(
    group: &Group,
    before: &Counts,
    after: &Counts,
    grown: &FxHashMap<u64, u64>,
    cpu_ns: u64,
) -> impl Iterator<Item = Executions> {
    group.sites.iter().filter_map(move |(address, site)| {
        Some(Executions {
            site: *site,
            from_ns: before.at_ns,
            to_ns: after.at_ns,
            count: *grown.get(address)?,
            cpu_ns,
            least_cpu_ns: None,
            most_cpu_ns: None,
        })
    })
}
