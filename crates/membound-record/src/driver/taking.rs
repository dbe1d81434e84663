//! Accepts what samplers and the launcher report, and holds it back until it can be processed.

use membound_run::TimerKind;
use rustc_hash::FxHashMap;

use super::{Driver, PendingEvent};
use crate::inbox::Reports;
use crate::sampler::Batch;
use crate::sampling::{Owner, Patched, ResolvedSample};
use crate::sites;

impl Driver {
    pub(super) fn batch(&mut self, batch: Batch) {
        self.over |= batch.over;
        let until_ns = match batch.over {
            true => u64::MAX,
            false => batch.until_ns,
        };
        let remedy = Some("sample less often with --period");
        self.gaps
            .count("samples", "perf's rings were full", remedy, batch.lost);
        self.switching_ns += batch.switching_ns;
        self.sampled_until_ns = until_ns.max(self.sampled_until_ns);
        for taken in batch.samples {
            self.sampled(taken);
        }
    }

    pub(super) fn told(&mut self, told: Reports, now_ns: u64) {
        self.sources.extend(told.sources);
        let lost = told.lost;
        let reason = "they came faster than they could be kept";
        let remedy = Some("follow larger blocks only (--object-size)");
        self.gaps.count("objects", reason, remedy, lost.allocations);
        self.gaps.count("latencies", reason, None, lost.accesses);
        self.gaps.count("samples", reason, None, lost.samples);
        for (pid, _, reason) in told.refused {
            self.gaps
                .note("samples", format!("process {pid}: {reason}"), None);
        }
        // Perf reports process starts and CPU time itself.
        if self.meta.timer == TimerKind::AgentTimer {
            for (pid, since) in told.begun {
                let t_ns = now_ns.saturating_sub(since.elapsed().as_nanos() as u64);
                crate::lock(&self.world).begun(pid, t_ns);
            }
            let covered = told.covered;
            let ask = |pid: u32| covered.get(&pid).copied();
            self.covered_ns = self.covered.of_with(covered.keys().copied(), ask);
        }
        // A chain belongs to the program that first allocated through it, and perf may not have reported that
        // program's start yet: the chain gets the time of that allocation.
        let mut first: FxHashMap<(u32, u32), u64> = FxHashMap::default();
        for (pid, event) in &told.allocations {
            first.entry((*pid, event.chain)).or_insert(event.tsc);
        }
        for (pid, number, addresses) in told.chains {
            let first = first.get(&(pid, number));
            let t_ns = first.map_or(now_ns, |tsc| self.clock.of_tsc(*tsc));
            let chained = PendingEvent::Chained(pid, number, addresses);
            self.pending.push(t_ns, chained);
        }
        for (pid, event) in told.allocations {
            let t_ns = self.clock.of_tsc(event.tsc);
            self.pending.push(t_ns, PendingEvent::Allocated(pid, event));
        }
        self.sampled_interval_bytes = self.sampled_interval_bytes.max(told.sampled_interval_bytes);
        for (pid, sample) in told.samples {
            let t_ns = self.clock.of_tsc(sample.tsc);
            let taken = crate::lock(&self.world).take_told(pid, &sample, t_ns);
            self.sampled(taken);
        }
        for access in told.accesses {
            let t_ns = self.clock.of_tsc(access.tsc);
            self.pending.push(t_ns, PendingEvent::Accessed(access));
        }
    }

    /// Accepts a sample.
    pub(super) fn sampled(&mut self, taken: ResolvedSample) {
        // What scavengers inside the process do is not part of the command's profile.
        if self.elapsed_ns.is_some() || taken.owner == Owner::Scavenger {
            return;
        }
        self.sampled_ns += taken.weight_ns;
        // The agent's thread executes no patches, so no count races with it.
        if taken.owner == Owner::Program {
            self.recent
                .insert(taken.thread, (taken.t_ns, taken.process));
            if let Some(cpu) = taken.cpu {
                self.residencies.seen(taken.thread, taken.t_ns, cpu);
            }
        }
        let clear_since_ns = self.windows.clear_since_ns(taken.t_ns);
        self.unseen.push(taken, clear_since_ns);
    }

    /// Finds out what a sample waited for, on which the next patches depend; then holds the sample back as an
    /// event.
    pub(super) fn find_wait(&mut self, taken: ResolvedSample, clear_since_ns: Option<u64>) {
        let mut effective = None;
        if let Some((module, address, bias)) = &taken.code {
            let world = &self.world;
            let intern = |frame| crate::lock(world).interner.frame(frame);
            let waits = self.sites.waits(taken.leaf, module, *address, intern);
            for wait in waits.iter() {
                if let Some(site) = wait.site {
                    let weight_ns = taken.weight_ns as f64 * wait.share;
                    self.chooser.add(site, weight_ns);
                    self.windows.lost(site, weight_ns);
                }
            }
            // A sample in a patch is not in the program's own code, and blocks that begin behind a patch are
            // not the program's blocks.
            let clear = taken.patched == Patched::No && clear_since_ns.is_some();
            if clear && !waits.is_empty() {
                let weight_ns = taken.weight_ns as f64;
                self.chooser.sampled(weight_ns);
                if let Some(before) = self.sites.before(taken.leaf, module, *address, intern) {
                    self.chooser.add_before(&before, weight_ns);
                    if self.chooser.puts_off() {
                        for site in before.iter() {
                            self.windows.lost(*site, weight_ns / before.len() as f64);
                        }
                    }
                }
            }
            effective = sites::effective(&waits, module, *address, *bias, &taken.registers);
        }
        let t_ns = taken.t_ns;
        let sampled = PendingEvent::Sampled(Box::new(taken), effective, clear_since_ns);
        self.pending.push(t_ns, sampled);
    }
}
