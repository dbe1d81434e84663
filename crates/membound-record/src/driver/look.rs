//! Looking at samples that wait, as many as the program can be made to pay for, and at what it pays.

use membound_platform::cpu_time;

use super::Driver;
use crate::Latencies;
use crate::budget::Look;

/// Time in samples before they are looked at for the first time: a program so young may end at any moment.
const FIRST_LOOK_NS: u64 = 80_000_000;
/// The same where a program hardly runs.
const LATEST_LOOK_NS: u64 = 1_000_000_000;
/// More samples than this do not wait, whatever it costs.
const MOST_SAMPLES: usize = 50_000;
/// While more other events than this wait for the samples, no sample waits either.
const MOST_EVENTS: usize = 200_000;
/// CPU time for which samples are looked at in a turn.
const TURN_NS: u64 = 20_000_000;

impl Driver {
    /// Looks at samples, as many as the program can be made to pay for now.
    pub(super) fn look(&mut self, now_ns: u64) {
        if self.unseen.len() == 0 {
            return;
        }
        if !self.over && self.unseen.came_ns < FIRST_LOOK_NS && now_ns < LATEST_LOOK_NS {
            return;
        }
        if !self.can_wait() {
            self.look_at_all();
            return;
        }
        let begun_ns = cpu_time::of_this_thread();
        while cpu_time::of_this_thread() < begun_ns + TURN_NS && self.may_look() {
            let Some((taken, clear_since_ns)) = self.unseen.pop() else {
                return;
            };
            self.find_wait(taken, clear_since_ns);
        }
    }

    /// Looks at all samples that wait.
    pub(super) fn look_at_all(&mut self) {
        while let Some((taken, clear_since_ns)) = self.unseen.pop() {
            self.find_wait(taken, clear_since_ns);
        }
    }

    /// Whether nothing is done to the program that depends on what its samples waited for: what is patched, held and
    /// watched next does.
    fn can_wait(&self) -> bool {
        self.options.latencies == Latencies::Off && self.watching.is_none()
    }

    fn may_look(&self) -> bool {
        let own_ns = cpu_time::of_this_process().saturating_sub(self.own_before_ns);
        self.over
            || self.beside.may_go_on(own_ns)
            || self.unseen.len() > MOST_SAMPLES
            || self.pending.len() > MOST_EVENTS
    }

    /// Takes into account what was done beside the programs.
    pub(super) fn look_beside(&mut self, now_ns: u64) {
        self.looked_beside_ns = now_ns;
        let now = super::patching::now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
        let own_ns = cpu_time::of_this_process().saturating_sub(self.own_before_ns);
        let pids = crate::lock(&self.world).alive().into_iter();
        self.lost_beside_ns = self.beside.lost_ns(Look {
            t_ns: now_ns,
            cpu_ns: now.cpu_ns,
            waited_ns: self.waited.of(pids.map(|(pid, _)| pid)),
            own_ns,
            others: self.others.processors(now_ns, now.cpu_ns + own_ns),
        });
        // A window can wait, and a plan that takes long would not be there before a short program ends.
        self.in_the_way = !self.over && self.beside.is_in_the_way(own_ns);
        membound_launch::hold_planning(self.in_the_way);
        membound_launch::lack_processors(!self.over && self.beside.lacks_processors());
    }

    /// CPU time in nanoseconds that the programs have lost by what was not done in their own code: by the recorder
    /// beside them, and by the kernel's timers and samples.
    pub(super) fn lost_outside_ns(&self) -> f64 {
        self.lost_beside_ns + self.switching_ns + self.samples as f64 * self.costs.sample_ns
    }

    /// Until when all samples have come and were looked at.
    pub(super) fn seen_until_ns(&self) -> u64 {
        let before_first = self.unseen.first_ns().map(|t_ns| t_ns.saturating_sub(1));
        before_first.map_or(self.sampled_until_ns, |t_ns| {
            t_ns.min(self.sampled_until_ns)
        })
    }
}
