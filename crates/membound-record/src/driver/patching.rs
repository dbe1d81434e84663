//! Decides what is patched when, from what samples waited for.

use std::sync::Mutex;

use membound_run::{BlockCount, Frame, ProcessId, SiteId, ThreadId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Driver, TOGETHER_NS};
use crate::Latencies;
use crate::budget::{Threads, Work};
use crate::chooser::Chooser;
use crate::cpu_time::CpuTime;
use crate::dilation::Waiting;
use crate::patcher::Running;
use crate::sites::Sites;
use crate::watching::Watching;
use crate::windows::{Closed, Now};
use crate::world::World;

/// CPU time in samples before sites are chosen for the first time.
const FIRST_CHOICE_NS: u64 = 100_000_000;

impl Driver {
    pub(super) fn step_windows(&mut self, now_ns: u64) {
        let Some(remote) = &self.remote else { return };
        if self.options.latencies == Latencies::Off || self.sampled_ns < FIRST_CHOICE_NS {
            return;
        }
        let now = now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
        // One budget for everything: windows get what samples and allocations leave of it.
        self.windows
            .lost_otherwise(self.lost_outside_ns() + self.in_hooks_ns);
        let running = Running {
            remote,
            clock: self.clock,
        };
        if self.over {
            self.trials.stop(&mut self.windows, now);
            if let Some(closed) = self.windows.stop(&running, now) {
                self.closed(closed);
            }
            return;
        }
        // While a program's libraries are being planned, the loader's code is hot, long before anything can
        // be patched. That must not count as a failure of its sites.
        if !self.windows.is_open() && !remote.takes_part() {
            return;
        }
        let is_watching = self.watching.as_ref().is_some_and(Watching::is_watching);
        if self.may_try() && (self.trials.is_trying() || !is_watching) {
            let rows = &mut self.rows.holds;
            self.trials.step(&running, &mut self.windows, now, rows);
        }
        let hot = match self.windows.is_open() {
            true => Vec::new(),
            false => hot_sites(&self.chooser, &mut self.sites, &self.world, now.threads),
        };
        let closed = self.windows.step(&running, now, &hot, &mut self.sites);
        if let Some(since_ns) = self.windows.take_burst() {
            self.bursts.window(since_ns);
        }
        if let Some(closed) = closed {
            self.closed(closed);
        }
    }

    /// Hands a closed window to the dilation estimate, where it waits for its samples.
    pub(super) fn closed(&mut self, closed: Closed) {
        let (from_ns, to_ns) = (closed.from_ns, closed.to_ns);
        if closed.work == Work::Record {
            return;
        }
        let mut world = crate::lock(&self.world);
        let blocks = closed
            .blocks
            .iter()
            .map(|(module, block, count)| BlockCount {
                frame: world.interner.frame(Frame {
                    module: Some(*module),
                    address: block.start,
                }),
                length: block.length,
                from_ns,
                to_ns,
                count: *count,
                cpu_ns: Some(closed.cpu_ns),
                least_cpu_ns: Some(closed.cpu_ns.saturating_sub(closed.cost_ns as u64)),
            });
        let blocks = blocks.collect();
        drop(world);
        let waiting = Waiting::new(
            closed.work,
            (from_ns, to_ns),
            closed.is_one_thread,
            closed.cost_ns,
            closed.sites.into_iter().collect(),
            closed.executions,
            blocks,
        );
        self.dilation.wait(waiting);
    }

    /// Whether programs make trials. Not while they have scavengers inside: a trial would hold those as well.
    const fn may_try(&self) -> bool {
        self.options.harvest.is_none()
    }
}

/// The sites worth patching, hottest first, with their shares of the lost time. Where threads run together, stores
/// beside them follow, at which no time is lost.
fn hot_sites(
    chooser: &Chooser,
    sites: &mut Sites,
    world: &Mutex<World>,
    threads: Threads,
) -> Vec<(SiteId, f64)> {
    let mut hot = chooser.hot();
    if threads == Threads::Several {
        let intern = |frame| crate::lock(world).interner.frame(frame);
        for index in 0..hot.len() {
            let stores = sites.loop_stores(hot[index].0, intern);
            hot.extend(stores.iter().map(|site| (*site, 0.0)));
        }
    }
    hot
}

/// The present moment, as windows need it: CPU time of all programs, and whether threads run concurrently.
pub(super) fn now(
    world: &Mutex<World>,
    cpu_time: &mut CpuTime,
    recent: &FxHashMap<ThreadId, (u64, ProcessId)>,
    now_ns: u64,
) -> Now {
    let pids: FxHashSet<u32> = crate::lock(world)
        .alive()
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let mut processes = FxHashSet::default();
    let several = recent
        .values()
        .filter(|(t_ns, _)| now_ns.saturating_sub(*t_ns) < TOGETHER_NS)
        .any(|(_, process)| !processes.insert(*process));
    Now {
        processes: pids.len(),
        t_ns: now_ns,
        cpu_ns: cpu_time.of(pids),
        threads: if several {
            Threads::Several
        } else {
            Threads::One
        },
    }
}
