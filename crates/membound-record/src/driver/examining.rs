//! Limits the cost of finding what samples waited for, and tracks what programs lose to the recorder.

use membound_launch::Hold;
use membound_platform::cpu_time;

use super::Driver;
use super::serving::Occupation;
use crate::Latencies;
use crate::budget::Totals;
use crate::modules::CodeModule;

/// CPU time in samples before the first are examined: a younger program may end at any moment.
const FIRST_EXAMINATION_NS: u64 = 80_000_000;
/// Time from which on samples are examined even if the program has hardly run.
const LATEST_FIRST_EXAMINATION_NS: u64 = 1_000_000_000;
/// Samples that are held back at most, whatever examining them costs.
const MAX_SAMPLES: usize = 50_000;
/// The same for other events, which are held back behind the samples.
const MAX_EVENTS: usize = 200_000;
/// A thread that was sampled within this time is active. Perf's samples arrive some 100 ms late.
const ACTIVE_NS: u64 = 300_000_000;
/// CPU time for which samples are examined in one iteration.
const ITERATION_CPU_NS: u64 = 20_000_000;
/// Share of the time so far for which samples of programs that serve requests are examined: where all processors are
/// busy, requests wait for that long, and these must not be one of a hundred.
const SHARE_WHILE_SERVING: f64 = 0.004;

impl Driver {
    /// Examines as many held samples as the program can be charged for now.
    pub(super) fn examine(&mut self, now_ns: u64) {
        if self.unexamined.len() == 0 {
            return;
        }
        if !self.over
            && self.unexamined.came_ns < FIRST_EXAMINATION_NS
            && now_ns < LATEST_FIRST_EXAMINATION_NS
        {
            return;
        }
        if self.is_put_off(now_ns) {
            return;
        }
        let is_free = !self.can_wait() && !self.in_the_way;
        let begun_ns = cpu_time::of_this_thread();
        let before_ns = self.unexamined.examined_ns;
        let has_time = || cpu_time::of_this_thread() < begun_ns + ITERATION_CPU_NS;
        while self.is_next_read() && (is_free || has_time() && self.may_examine()) {
            let Some((sample, clear_since_ns)) = self.unexamined.pop() else {
                return;
            };
            self.find_wait(sample, clear_since_ns);
            if is_free {
                continue;
            }
            self.unexamined.examined_ns = before_ns + cpu_time::of_this_thread() - begun_ns;
        }
    }

    /// True while requests must not wait for the examination of samples, which reads code for tens of milliseconds.
    fn is_put_off(&self, now_ns: u64) -> bool {
        let may_serve = self.serving.found() != Occupation::Computes;
        let wanted_ns = self.unexamined.examined_ns + ITERATION_CPU_NS;
        let is_affordable = wanted_ns as f64 <= SHARE_WHILE_SERVING * now_ns as f64;
        may_serve && (self.can_wait() || !is_affordable) && !self.over && !self.holds_too_many()
    }

    /// Examines all held samples.
    pub(super) fn examine_all(&mut self) {
        while let Some((sample, clear_since_ns)) = self.unexamined.pop() {
            self.find_wait(sample, clear_since_ns);
        }
    }

    /// True if nothing done to the program depends on what its samples waited for. The next patches, trials
    /// and watchpoints do; while the recorder is in the way, they come later.
    fn can_wait(&self) -> bool {
        self.options.latencies == Latencies::Off && self.watching.is_none()
    }

    /// True if the code of the next held sample has been read, or is no longer waited for.
    fn is_next_read(&self) -> bool {
        self.over
            || self.holds_too_many()
            || self
                .unexamined
                .first_module()
                .is_none_or(CodeModule::is_read)
    }

    fn holds_too_many(&self) -> bool {
        self.unexamined.len() > MAX_SAMPLES || self.pending.len() > MAX_EVENTS
    }

    fn may_examine(&self) -> bool {
        let own_ns = self.own_ns();
        let is_affordable = match self.can_wait() {
            true => self.interference.may_go_on(own_ns),
            false => self.interference.may_prepare_windows(own_ns),
        };
        self.over
            || is_affordable
            || self
                .interference
                .is_reserved_for_samples(self.unexamined.examined_ns)
            || self.holds_too_many()
    }

    /// Updates the programs' loss to the recorder, and holds the launcher's planning back where it is too
    /// high.
    pub(super) fn update_interference(&mut self, now_ns: u64) {
        self.interference_read_ns = now_ns;
        let now = super::patching::now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
        let own_ns = self.own_ns();
        let pids = crate::lock(&self.world).alive().into_iter();
        self.lost_beside_ns = self.interference.lost_ns(Totals {
            t_ns: now_ns,
            cpu_ns: now.cpu_ns,
            waited_ns: self.waited.of(pids.map(|(pid, _)| pid)),
            own_ns,
            others: self.others.processors(now_ns, now.cpu_ns + own_ns),
            active_threads: self.active_threads(now_ns),
        });
        // Hold planning back only while programs run: a window can wait, but a plan that starts late would
        // not be ready before a short program ends.
        self.in_the_way = !self.over && self.interference.is_in_the_way(own_ns);
        membound_launch::hold_planning(match self.over {
            true => Hold::Not,
            false => self.interference.hold(own_ns, self.windows.is_limited()),
        });
        membound_launch::lack_processors(!self.over && self.interference.lacks_processors());
    }

    /// CPU time in nanoseconds of the recorder and of its threads inside programs.
    fn own_ns(&self) -> u64 {
        let here_ns = cpu_time::of_this_process().saturating_sub(self.own_before_ns);
        here_ns + self.agent_threads_ns
    }

    /// Number of threads that were sampled lately.
    fn active_threads(&self, now_ns: u64) -> usize {
        let since_ns = now_ns.saturating_sub(ACTIVE_NS);
        let sampled = self.recent.values();
        sampled.filter(|(t_ns, _)| *t_ns >= since_ns).count()
    }

    /// CPU time in nanoseconds that the programs have lost outside their patched code: to the recorder and its
    /// threads running beside them, and to the kernel's timers and samples.
    pub(super) fn lost_outside_ns(&self) -> f64 {
        self.lost_beside_ns + self.switching_ns + self.samples as f64 * self.costs.sample_ns
    }

    /// Time until which all samples have arrived and were examined.
    pub(super) fn examined_until_ns(&self) -> u64 {
        let before_first = self
            .unexamined
            .first_ns()
            .map(|t_ns| t_ns.saturating_sub(1));
        before_first.map_or(self.sampled_until_ns, |t_ns| {
            t_ns.min(self.sampled_until_ns)
        })
    }
}
