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
        for sample in batch.samples {
            self.accept_sample(sample);
        }
    }

    pub(super) fn accept_reports(&mut self, reports: Reports, now_ns: u64) {
        self.sources.extend(reports.sources);
        let lost = reports.lost;
        let reason = "they came faster than they could be kept";
        let remedy = Some("follow larger blocks only (--object-size)");
        self.gaps.count("objects", reason, remedy, lost.allocations);
        self.gaps.count("latencies", reason, None, lost.accesses);
        self.gaps.count("samples", reason, None, lost.samples);
        for (pid, _, reason) in reports.refused {
            self.gaps
                .note("samples", format!("process {pid}: {reason}"), None);
        }
        // Perf reports process starts and CPU time itself.
        if self.meta.timer == TimerKind::AgentTimer {
            for (pid, since) in reports.begun {
                let t_ns = now_ns.saturating_sub(since.elapsed().as_nanos() as u64);
                crate::lock(&self.world).begun(pid, t_ns);
            }
            let covered = reports.covered;
            let ask = |pid: u32| covered.get(&pid).copied();
            self.covered_ns = self.covered.of_with(covered.keys().copied(), ask);
        }
        // A chain belongs to the program that first allocated through it, and perf may not have reported that
        // program's start yet: the chain gets the time of that allocation.
        let mut first: FxHashMap<(u32, u32), u64> = FxHashMap::default();
        for (pid, event) in &reports.allocations {
            first.entry((*pid, event.chain)).or_insert(event.tsc);
        }
        for (pid, number, addresses) in reports.chains {
            let first = first.get(&(pid, number));
            let t_ns = first.map_or(now_ns, |tsc| self.clock.of_tsc(*tsc));
            let chained = PendingEvent::Chained(pid, number, addresses);
            self.pending.push(t_ns, chained);
        }
        for (pid, event) in reports.allocations {
            let t_ns = self.clock.of_tsc(event.tsc);
            self.pending.push(t_ns, PendingEvent::Allocated(pid, event));
        }
        self.sampled_interval_bytes = self
            .sampled_interval_bytes
            .max(reports.sampled_interval_bytes);
        for (pid, sample) in reports.samples {
            let t_ns = self.clock.of_tsc(sample.tsc);
            let sample = crate::lock(&self.world).resolve_agent_sample(pid, &sample, t_ns);
            self.accept_sample(sample);
        }
        for access in reports.accesses {
            let t_ns = self.clock.of_tsc(access.tsc);
            self.pending.push(t_ns, PendingEvent::Accessed(access));
        }
    }

    /// Accepts a sample.
    pub(super) fn accept_sample(&mut self, sample: ResolvedSample) {
        // What scavengers inside the process do is not part of the command's profile.
        if self.elapsed_ns.is_some() || sample.owner == Owner::Scavenger {
            return;
        }
        self.sampled_ns += sample.weight_ns;
        self.sampled_squares_ns2 += (sample.weight_ns as f64).powi(2);
        if sample.owner == Owner::Agent {
            self.agent_threads_ns += sample.weight_ns;
        }
        // The agent's thread executes no patches, so no count races with it.
        if sample.owner == Owner::Program {
            self.recent
                .insert(sample.thread, (sample.t_ns, sample.process));
            if let Some(cpu) = sample.cpu {
                self.residencies.note(sample.thread, sample.t_ns, cpu);
            }
        }
        let clear_since_ns = self.windows.clear_since_ns(sample.t_ns);
        self.unexamined.push(sample, clear_since_ns);
    }

    /// Finds out what a sample waited for, on which the next patches depend; then holds the sample back as an
    /// event.
    pub(super) fn find_wait(&mut self, sample: ResolvedSample, clear_since_ns: Option<u64>) {
        let mut effective = None;
        if let Some((module, address, bias)) = &sample.code {
            let world = &self.world;
            let intern = |frame| crate::lock(world).interner.frame(frame);
            let waits = self.sites.waits(sample.leaf, module, *address, intern);
            for wait in waits.iter() {
                if let Some(site) = wait.site {
                    let weight_ns = sample.weight_ns as f64 * wait.share;
                    self.chooser.add(site, weight_ns);
                    self.windows.lost(site, weight_ns);
                }
            }
            // A sample in a patch is not in the program's own code, and blocks that begin behind a patch are
            // not the program's blocks.
            let clear = sample.patched == Patched::No && clear_since_ns.is_some();
            if clear && !waits.is_empty() {
                let weight_ns = sample.weight_ns as f64;
                self.chooser.sampled(weight_ns);
                if let Some(before) = self.sites.before(sample.leaf, module, *address, intern) {
                    self.chooser.add_before(&before, weight_ns);
                    if self.chooser.puts_off() {
                        for site in before.iter() {
                            self.windows.lost(*site, weight_ns / before.len() as f64);
                        }
                    }
                }
            }
            effective = sites::effective(&waits, module, *address, *bias, &sample.registers);
        }
        let t_ns = sample.t_ns;
        let sampled = PendingEvent::Sampled(Box::new(sample), effective, clear_since_ns);
        self.pending.push(t_ns, sampled);
    }
}
