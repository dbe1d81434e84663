//! Decides for what share of the time the sampling timers run.
//!
//! The kernel sets a thread's timer at each switch to it, and cancels it at each switch away. In a virtual
//! machine both leave the guest: a server whose threads wait for each other a hundred thousand times a second
//! loses a third of its throughput by that. Where threads switch that often, timers run in short spans only,
//! and each sample gets a higher weight.

use membound_platform::threads::Scheduled;
use rustc_hash::FxHashMap;

/// CPU time in nanoseconds that a context switch costs a thread whose timer runs, as measured in virtual
/// machines of two vendors.
const SWITCH_COST_NS: f64 = 4000.0;
/// Share of their CPU time that threads may lose to that.
const MAX_LOST: f64 = 0.02;
/// Lower limit of the share of the time that timers run. A share above `MAX_SHARE` becomes 1.
const MIN_SHARE: f64 = 0.1;
const MAX_SHARE: f64 = 0.5;
/// Length of a span in which timers run.
const SPAN_NS: u64 = 20_000_000;
/// When context switches are first read. The interval doubles with each reading, up to a limit: until the first
/// reading, threads that switch often lose a fifth of their time.
const FIRST_LOOK_NS: u64 = 20_000_000;
const MAX_LOOK_INTERVAL_NS: u64 = 200_000_000;
/// Of how many threads they are read.
const LOOKED_AT: usize = 8;
/// Golden ratio: varies the pauses between spans, so that they do not align with a period of the program's.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// A thread, by the kernel's numbers of its process and of itself.
type Thread = (u32, u32);

/// Switches timers on and off.
#[derive(Debug)]
pub(crate) struct Duty {
    /// Share of the time that timers run.
    share: f64,
    /// Share of their CPU time that threads would lose if timers always ran.
    lost: f64,
    runs: bool,
    /// Time of the last change, and of the next.
    since_ns: u64,
    until_ns: u64,
    /// Factor from a sample's period to its weight.
    factor: f64,
    /// Time that no sample accounts for yet: spans and pauses never last exactly as planned.
    carried_ns: f64,
    spans: u64,
    /// Time at which context switches are read next, and the interval before that.
    look_at_ns: u64,
    look_interval_ns: u64,
    /// Samples of each thread since context switches were last read.
    sampled: FxHashMap<Thread, u64>,
    threads: FxHashMap<Thread, Scheduled>,
}

impl Default for Duty {
    fn default() -> Self {
        Self {
            share: 1.0,
            lost: 0.0,
            runs: true,
            since_ns: 0,
            until_ns: u64::MAX,
            factor: 1.0,
            carried_ns: 0.0,
            spans: 0,
            look_at_ns: FIRST_LOOK_NS,
            look_interval_ns: FIRST_LOOK_NS,
            sampled: FxHashMap::default(),
            threads: FxHashMap::default(),
        }
    }
}

impl Duty {
    /// Factor from the period to the weight of a sample taken now.
    pub(crate) const fn factor(&self) -> f64 {
        self.factor
    }

    /// Share of their CPU time that threads lose to timers, averaged over spans and pauses.
    pub(crate) fn lost_part(&self) -> f64 {
        self.lost * self.share
    }

    /// Counts a sample of a thread.
    pub(crate) fn sampled(&mut self, pid: u32, tid: u32) {
        *self.sampled.entry((pid, tid)).or_default() += 1;
    }

    /// Nanoseconds until the timers may have to be switched.
    pub(crate) const fn left_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.saturating_sub(now_ns)
    }

    /// Advances; returns whether timers are to run, when that changes.
    pub(crate) fn step(&mut self, now_ns: u64) -> Option<bool> {
        if now_ns >= self.look_at_ns && self.runs {
            self.look_interval_ns = (2 * self.look_interval_ns).min(MAX_LOOK_INTERVAL_NS);
            self.look_at_ns = now_ns + self.look_interval_ns;
            self.look(|(pid, tid)| Scheduled::of(pid, tid));
        }
        self.turn(now_ns)
    }

    /// Estimates the loss from the context switches of the threads with the most samples: since the last
    /// reading, or in all their life if they were not read then.
    fn look(&mut self, scheduled: impl Fn(Thread) -> Option<Scheduled>) {
        let mut sampled: Vec<(u64, Thread)> = self
            .sampled
            .drain()
            .map(|(thread, count)| (count, thread))
            .collect();
        sampled.sort_unstable_by(|a, b| b.cmp(a));
        sampled.truncate(LOOKED_AT);
        let (mut switches, mut cpu_ns) = (0, 0);
        let mut threads = FxHashMap::default();
        for (_, thread) in sampled {
            let Some(now) = scheduled(thread) else {
                continue;
            };
            let before = self.threads.get(&thread).copied().unwrap_or_default();
            switches += now.switches.saturating_sub(before.switches);
            cpu_ns += now.cpu_ns.saturating_sub(before.cpu_ns);
            threads.insert(thread, now);
        }
        self.threads = threads;
        if cpu_ns == 0 {
            return;
        }
        self.lost = switches as f64 * SWITCH_COST_NS / cpu_ns as f64;
        let share = (MAX_LOST / self.lost.max(MAX_LOST)).max(MIN_SHARE);
        self.share = if share > MAX_SHARE { 1.0 } else { share };
    }

    fn turn(&mut self, now_ns: u64) -> Option<bool> {
        if self.share >= 1.0 {
            self.until_ns = u64::MAX;
            self.factor = 1.0;
            self.carried_ns = 0.0;
            self.since_ns = now_ns;
            return (!std::mem::replace(&mut self.runs, true)).then_some(true);
        }
        if self.until_ns == u64::MAX {
            // The first span: so far, each sample had the weight of its period.
            self.since_ns = now_ns;
            self.until_ns = now_ns;
        }
        if now_ns < self.until_ns {
            return None;
        }
        let passed_ns = now_ns.saturating_sub(self.since_ns) as f64;
        self.since_ns = now_ns;
        let span_ns = SPAN_NS as f64;
        if self.runs {
            self.carried_ns += passed_ns * (1.0 - self.factor);
            self.spans += 1;
            let turn = (self.spans as f64 * GOLDEN).fract() + 0.5;
            let pause_ns = span_ns * (1.0 / self.share - 1.0) * turn;
            self.until_ns = now_ns + pause_ns as u64;
        } else {
            self.carried_ns += passed_ns;
            self.factor = (1.0 + self.carried_ns / span_ns).max(1.0);
            self.until_ns = now_ns + SPAN_NS;
        }
        self.runs = !self.runs;
        Some(self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads with this many context switches in each millisecond of CPU time.
    fn looked(switches_per_ms: u64) -> Duty {
        let mut duty = Duty::default();
        for look in 0..2 {
            duty.sampled(1, 1);
            duty.look(|_| {
                Some(Scheduled {
                    cpu_ns: look * 1_000_000,
                    waited_ns: 0,
                    switches: look * switches_per_ms,
                })
            });
        }
        duty
    }

    #[test]
    fn timers_run_always_where_threads_seldom_switch() {
        let mut duty = looked(1);
        assert_eq!(duty.turn(5), None);
        assert_eq!(duty.turn(1 << 40), None);
        assert_eq!(duty.factor(), 1.0);
    }

    #[test]
    fn samples_stand_for_all_the_time_however_late_it_is_looked() {
        // 100 switches in a millisecond: 40 % would be lost.
        let mut duty = looked(100);
        let (mut now_ns, mut ran_ns, mut stood_ns) = (0_u64, 0.0, 0.0);
        let begun_ns = 1_000_000_000;
        now_ns += begun_ns;
        duty.turn(now_ns);
        let mut late = 0_u64;
        while now_ns < 100_000_000_000 {
            late = (late * 31 + 7_000_001) % 9_000_000;
            let passed_ns = duty.left_ns(now_ns) + late;
            if duty.runs {
                ran_ns += passed_ns as f64;
                stood_ns += passed_ns as f64 * duty.factor();
            }
            now_ns += passed_ns;
            duty.turn(now_ns);
        }
        let all_ns = (now_ns - begun_ns) as f64;
        assert!(
            (stood_ns / all_ns - 1.0).abs() < 0.02,
            "{stood_ns} of {all_ns}"
        );
        assert!(
            (0.08..0.15).contains(&(ran_ns / all_ns)),
            "{ran_ns} of {all_ns}"
        );
    }

    #[test]
    fn they_run_again_when_threads_do_not_switch_any_more() {
        let mut duty = looked(100);
        assert_eq!(duty.turn(10), Some(false));
        duty.share = 1.0;
        assert_eq!(duty.turn(20), Some(true));
        assert_eq!(duty.turn(30), None);
    }

    #[test]
    fn a_thread_is_judged_by_its_life_at_first() {
        let mut duty = Duty::default();
        duty.sampled(1, 1);
        duty.look(|_| {
            Some(Scheduled {
                cpu_ns: 20_000_000,
                waited_ns: 0,
                switches: 2000,
            })
        });
        assert_eq!(duty.turn(30_000_000), Some(false));
    }

    #[test]
    fn context_switches_are_read_early_and_then_less_often() {
        let mut duty = Duty::default();
        let read_ms: Vec<u64> = (0..1000)
            .filter(|ms| {
                let due_ns = duty.look_at_ns;
                duty.step(ms * 1_000_000);
                duty.look_at_ns != due_ns
            })
            .collect();
        assert_eq!(read_ms[..5], [20, 60, 140, 300, 500]);
    }

    #[test]
    fn the_kernel_says_how_often_a_thread_ran() {
        let own = std::process::id();
        let own = Scheduled::of(own, own).expect("this thread's process is there");
        assert!(own.switches > 0);
    }
}
