//! Ends a recording: halts patching and sampling, drains what is on its way, and completes the file.

use std::time::Duration;

use membound_launch::Hold;
use membound_platform::cpu_time;
use membound_run::{TimerKind, is_time_missing};

use super::patching::now;
use super::{DELAY_NS, Driver};
use crate::patcher::Running;

/// How long after the end of recording events from before it may still arrive.
const LATEST_NS: u64 = 4 * DELAY_NS;

impl Driver {
    /// Ends recording while programs go on, and completes the file once all that was recorded has arrived.
    pub(super) fn end_early(&mut self) {
        let now_ns = self.clock.now_ns();
        match self.elapsed_ns {
            None => {
                self.halt();
                self.elapsed_ns = Some(now_ns);
            }
            Some(elapsed_ns) if !self.is_complete && now_ns >= elapsed_ns + LATEST_NS => {
                self.drain();
                self.write_all(elapsed_ns);
                let Self {
                    file, meta, gaps, ..
                } = self;
                file.complete(meta, gaps.all());
            }
            Some(_) => {}
        }
    }

    /// Writes everything that was recorded until `until_ns`, with names and code.
    pub(crate) fn write_all(&mut self, until_ns: u64) {
        self.write(until_ns);
        self.complete();
        self.rows.write(
            &mut self.file,
            &self.world,
            &mut self.sites,
            &mut self.objects,
        );
        let lost_ns = self.lost_outside_ns() + self.windows.lost_to_changes_ns();
        self.meta.lost_cpu_ns = lost_ns as u64;
        self.meta.own_cpu_ns =
            cpu_time::of_this_process().saturating_sub(self.costs.own_cpu_before_ns);
        self.is_complete = true;
    }

    /// Removes all patches, and ends sampling, trials and watchpoints.
    pub(super) fn halt(&mut self) {
        let now_ns = self.clock.now_ns();
        self.update_interference(now_ns);
        self.in_the_way = false;
        match self.over {
            true => membound_launch::programs_ended(Duration::from_nanos(now_ns)),
            false => membound_launch::hold_planning(Hold::Not),
        }
        membound_launch::lack_processors(false);
        if let Some(remote) = &self.remote {
            let now = now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
            let running = Running {
                remote,
                clock: self.clock,
            };
            self.trials.stop(&mut self.windows, now);
            if let Some(closed) = self.windows.stop(&running, now) {
                self.closed(closed);
            }
        }
        self.trials.report(&mut self.gaps);
        if let Some(sampling) = self.sampling.take() {
            let (counted_ns, batches) = sampling.end();
            for batch in batches {
                self.batch(batch);
            }
            self.examine_all();
            self.unsampled(counted_ns);
            self.sampled_until_ns = u64::MAX;
        }
        if let Some(mut watching) = self.watching.take() {
            watching.end(
                &self.world,
                &self.clock,
                self.remote.as_ref(),
                &mut self.rows.watched,
                &mut self.gaps,
            );
        }
        if self.chooser.puts_off() {
            let reason = "timer interrupts are put off until a block of code begins, as emulators \
                          do: which access was waited for is not known, and all of hot blocks \
                          were timed";
            self.gaps.note("samples", reason, None);
        }
        if self.windows.unsettled > 0 {
            let reason = "programs did not exchange their patches in time";
            self.gaps.count(
                "latencies",
                reason,
                None,
                std::mem::take(&mut self.windows.unsettled),
            );
        }
        let reason = "hot functions lie in files whose plan was not made before the programs ended";
        self.gaps
            .count("latencies", reason, None, self.windows.unready());
        let stuck = std::mem::take(&mut self.windows.stuck);
        let reason = "patches were taken out early because programs made no progress with them";
        self.gaps.count("latencies", reason, None, stuck);
        let blurred = std::mem::take(&mut self.windows.blurred);
        let reason = "counts of executions were read too late to be of use: the machine was busy";
        self.gaps.count("latencies", reason, None, blurred);
        let given_up = std::mem::take(&mut self.windows.given_up);
        let reason = "hot accesses could be patched in no program: their file has lost its name, \
                      or is not patched at all";
        self.gaps.count("latencies", reason, None, given_up);
        if self.windows.is_limited() {
            let reason = "the program serves requests: patches stood in its text for 25 ms and \
                          0.5 % of its CPU time at most, so that few requests took longer";
            self.gaps.note("latencies", reason, None);
        }
    }

    /// Reports CPU time that the kernel counted but no sample accounts for, unless chance may have spared it.
    pub(super) fn unsampled(&mut self, counted_ns: u64) {
        const MIN_PERIODS: u64 = 10;
        let missing_ns = counted_ns.saturating_sub(self.sampled_ns);
        let deviation_ns = self.sampled_squares_ns2.sqrt();
        if is_time_missing(counted_ns as f64, self.sampled_ns as f64, deviation_ns)
            && missing_ns > self.meta.period_ns * MIN_PERIODS
        {
            let reason = format!(
                "{} ms of CPU time are in no sample: of threads shorter than the period, and of the \
                 kernel where it may not be seen",
                missing_ns / 1_000_000
            );
            let remedy = Some("sample more often with --period");
            self.gaps.note("samples", reason, remedy);
        }
    }

    /// Processes everything that has arrived or is still held back.
    pub(crate) fn drain(&mut self) {
        let now_ns = self.clock.now_ns();
        let reports = self.inbox.take();
        self.accept_reports(reports, now_ns);
        self.examine_all();
        self.settle(u64::MAX, usize::MAX);
        self.iterations.end(&self.sites, &mut self.rows.laps);
        if self.sampled_interval_bytes > 0 {
            let wanted = self.options.objects.unwrap_or(u64::MAX);
            let from = membound_launch::certain_from_bytes(self.sampled_interval_bytes, wanted);
            let reason = format!(
                "blocks below {from} bytes were sampled, on average once in up to {} bytes, because \
                 there were too many to follow all: their counts and bytes are estimates, and an access \
                 between them is taken to be to a block like the nearest of them",
                self.sampled_interval_bytes
            );
            self.gaps.note("objects", reason, None);
        }
        let chainless = self.objects.chainless_events();
        let reason = "their call chains are not known: the agent's table of chains was full, or they were lost";
        self.gaps.count("objects", reason, None, chainless);
        let unkept = self.objects.unkept();
        let reason = "there were too many blocks to keep";
        let remedy = Some("follow larger blocks only (--object-size)");
        self.gaps.count("objects", reason, remedy, unkept);
        let shortened = crate::lock(&self.world).interner.shortened;
        let reason = "call chains beyond the first four millions are known by their innermost \
                      frames only";
        self.gaps.count("samples", reason, None, shortened);
        self.unsampled(self.covered_ns);
        if self.meta.timer == TimerKind::AgentTimer && self.samples == 0 {
            self.gaps.note(
                "samples",
                "the agent took none: the program was too short, or the agent is not in it",
                None,
            );
        }
    }
}
