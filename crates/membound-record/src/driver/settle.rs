//! Turns events into rows, in time order.

use std::sync::Arc;

use membound_launch::Access;
use membound_platform::cpu_time;
use membound_rewrite::stall::Effective;
use membound_run::{ProcessId, Sample, SiteId, ThreadId};

use super::{Driver, PendingEvent};
use crate::bursts::Recorded;
use crate::dilation::Inside;
use crate::iterations;
use crate::sampling::{Owner, Patched, ResolvedSample};
use crate::watch::Wrote;

/// How long windows wait for their samples at most.
const LATEST_NS: u64 = 2_000_000_000;

impl Driver {
    /// Processes at most `most` of the events up to `horizon_ns`.
    pub(crate) fn settle(&mut self, horizon_ns: u64, most: usize) {
        let (due, all) = self.pending.take_until(horizon_ns, most);
        let begun_ns = cpu_time::of_this_thread();
        let (events, mut allocations) = (due.len(), 0_usize);
        for (t_ns, happened) in due {
            match happened {
                PendingEvent::Allocated(pid, event) => {
                    allocations += 1;
                    let process = crate::lock(&self.world).image(pid, t_ns);
                    self.objects.apply(process, &event, t_ns);
                }
                PendingEvent::Chained(pid, number, addresses) => {
                    self.settle_chain(pid, number, &addresses, t_ns);
                }
                PendingEvent::Sampled(sample, effective, clear_since_ns) => {
                    self.count_laps(&sample, clear_since_ns);
                    self.settle_sample(&sample, effective, clear_since_ns);
                }
                PendingEvent::Accessed(access) => self.settle_access(&access, t_ns),
            }
        }
        if allocations > 0 {
            let spent_ns = cpu_time::of_this_thread().saturating_sub(begun_ns);
            let spent_ns = self
                .allocation_cost
                .of(allocations, events, spent_ns as f64);
            self.inbox.spent_on_allocations(spent_ns as u64);
        }
        if !all {
            return;
        }
        // Closed windows wait for all their samples, which arrive late where the machine is busy.
        let sampled_ns = self
            .examined_until_ns()
            .max(horizon_ns.saturating_sub(LATEST_NS));
        let settled = self.dilation.settle(horizon_ns.min(sampled_ns));
        self.windows.spend(self.dilation.take_unforeseen());
        for window in settled {
            self.rows.executions.extend(window.executions);
            self.rows.blocks.extend(window.blocks);
        }
        self.bursts.settle(horizon_ns, &mut self.rows.bursts);
    }

    fn settle_chain(&mut self, pid: u32, number: u32, addresses: &[u64], t_ns: u64) {
        let mut world = crate::lock(&self.world);
        let process = world.image(pid, t_ns);
        let stack = world.with_space(process, t_ns, |space, modules, interner| {
            let frames = space.callers(modules, interner, addresses, t_ns);
            interner.stack(&frames)
        });
        if let Some(stack) = stack {
            self.objects.chain(process, number, stack);
        }
    }

    fn settle_sample(
        &mut self,
        sample: &ResolvedSample,
        effective: Option<Effective>,
        clear_since_ns: Option<u64>,
    ) {
        let object = effective.and_then(|it| {
            self.objects
                .at(&self.world, sample.process, it.address, sample.t_ns)
        });
        let inside = match sample.patched {
            // Allocation hooks enter the agent whether a window is open or not.
            Patched::Agent if clear_since_ns.is_some() => Inside::Hook,
            Patched::Agent => Inside::Patch,
            Patched::Trampoline => Inside::Trampoline,
            Patched::No => Inside::Program,
        };
        if let Some(address) = effective.filter(|it| it.exact).map(|it| it.address) {
            self.pages.accessed(sample.process, address);
            self.suspect_sample(sample, address);
        }
        let waited = self.sites.likeliest(sample.leaf);
        // The agent's own thread takes no time from the program's threads.
        if sample.owner == Owner::Program {
            if inside == Inside::Hook {
                self.in_hooks_ns += sample.weight_ns as f64;
            }
            let at = (sample.leaf, waited);
            self.dilation
                .sample(sample.t_ns, at, sample.weight_ns, inside);
        }
        self.samples += 1;
        self.rows.samples.push(Sample {
            t_ns: sample.t_ns,
            thread: sample.thread,
            cpu: sample.cpu,
            stack: sample.stack,
            weight_ns: sample.weight_ns,
            address: effective.map(|it| it.address),
            exact: effective.is_some_and(|it| it.exact),
            object,
        });
    }

    /// Compares a sample with the thread's previous one, to count loop iterations. Kernel time is only added
    /// up: the thread was inside the same loop meanwhile.
    fn count_laps(&mut self, sample: &ResolvedSample, clear_since_ns: Option<u64>) {
        if let Some((module, address, _)) = &sample.code {
            let sample = iterations::LoopSample {
                t_ns: sample.t_ns,
                thread: sample.thread,
                weight_ns: sample.weight_ns,
                leaf: sample.leaf,
                module,
                address: *address,
                registers: sample.registers.x86_64(),
                clear_since_ns: clear_since_ns.filter(|_| sample.patched == Patched::No),
            };
            self.iterations
                .sample(&sample, &self.sites, &mut self.rows.laps);
        } else if sample.patched == Patched::No {
            self.iterations.in_kernel(sample.thread, sample.weight_ns);
        }
    }

    fn settle_access(&mut self, access: &Access, t_ns: u64) {
        let Some(site) = self.site_of(access) else {
            self.gaps.count(
                "latencies",
                "accesses of code that nothing is known of",
                None,
                1,
            );
            return;
        };
        let (process, thread) = self.who(access, t_ns);
        // A single access of a burst gets no row and no object of its own.
        if access.burst {
            let recorded = Recorded {
                t_ns,
                thread,
                site,
                address: access.address,
                store: access.store,
                after_gap: access.after_gap,
            };
            self.bursts.add(recorded, &mut self.rows.bursts);
            return;
        }
        let object = self.objects.at(&self.world, process, access.address, t_ns);
        let cpu = self.residencies.cpu(thread, t_ns);
        let bytes = self.sites.row(site).map_or(0, |site| site.bytes);
        let wrote = if access.store { Wrote::Yes } else { Wrote::No };
        self.may_hold(process, thread, access.address, wrote);
        self.watch(process, thread, (access.address, bytes), wrote);
        self.accesses += u64::from(access.ticks.is_some());
        self.pages.accessed(process, access.address);
        self.rows.accesses.push(membound_run::Access {
            t_ns,
            thread,
            site,
            address: access.address,
            ticks: access.ticks,
            hit: access.hit,
            drain: access.drain,
            store: access.store,
            object,
            cpu,
            node: self.pages.node(process, access.address),
        });
    }

    /// The process and the thread that made an access.
    fn who(&self, access: &Access, t_ns: u64) -> (ProcessId, ThreadId) {
        let mut world = crate::lock(&self.world);
        let process = world.image(access.pid, t_ns);
        let thread = world.threads.of(process, access.pid, access.thread, t_ns);
        (process, thread)
    }

    fn site_of(&mut self, access: &Access) -> Option<SiteId> {
        let module = match self.source_modules.get(&access.module) {
            Some(module) => Arc::clone(module),
            None => {
                let path = self.sources.get(access.module)?;
                let module = Arc::clone(crate::lock(&self.world).modules.by_path(path)?);
                self.source_modules
                    .insert(access.module, Arc::clone(&module));
                module
            }
        };
        let world = &self.world;
        let intern = |frame| crate::lock(world).interner.frame(frame);
        self.sites.of(&module, access.site, intern)
    }
}
