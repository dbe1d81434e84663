//! Decides how often threads are sampled.
//!
//! The kernel sets a thread's timer at each switch to it, and cancels it at each switch away. In a virtual
//! machine both leave the guest if the timer is the next one to expire: a server whose threads wait for each
//! other a hundred thousand times a second loses a third of its throughput by that. A timer with a long period
//! is seldom the next one, as the kernel's own clock ticks every few milliseconds. So each thread has two timers,
//! and where threads switch that often the one with the short period is disabled.
//!
//! Threads that end before their timers expire give no samples. Timers of the processors meet them, where these are
//! permitted. They are no help where threads switch often: an interrupt that has to wait until a switch is over finds
//! another thread, or none, so that two of three samples of a redis server are lost.

use std::time::Duration;

use membound_platform::threads::Scheduled;
use rustc_hash::{FxHashMap, FxHashSet};

/// CPU time in nanoseconds that a context switch costs a thread whose timer has a short period, as measured in
/// virtual machines of two vendors.
const SWITCH_COST_NS: f64 = 4000.0;
/// Part of that where only the other timer runs: that of switches at which it is the next to expire.
const RARE_PART: f64 = 0.1;
/// Share of their CPU time that threads may lose to the timer with the short period.
const MAX_LOST: f64 = 0.04;
/// The same in programs that serve requests, where it delays some of them by more.
const MAX_LOST_SERVING: f64 = 0.01;
/// Part of that share from which on it is not enabled again.
const KEPT_PART: f64 = 0.5;
/// Threads count as too short for samples when the threads that ended without a sample have used at least this much
/// CPU time, in nanoseconds, and at least this share of the CPU time of all threads.
const MIN_UNSAMPLED_NS: u64 = 50_000_000;
const MIN_UNSAMPLED_SHARE: f64 = 0.5;
/// When context switches are first read. The interval doubles with each reading, up to a limit: until the first
/// reading, threads that switch often lose a fifth of their time.
const FIRST_LOOK_NS: u64 = 20_000_000;
const MAX_LOOK_INTERVAL_NS: u64 = 200_000_000;
/// The same while no thread is sampled.
const IDLE_LOOK_INTERVAL_NS: u64 = 40_000_000;
/// The same while few samples are taken.
const RARE_LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// Of how many threads they are read.
const LOOKED_AT: usize = 8;

/// A thread, by the kernel's numbers of its process and of itself.
type Thread = (u32, u32);

/// How often threads are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// With the period that was chosen or requested.
    Usual,
    /// With the period of [`crate::perf::Config::rare_period_ns`].
    Rare,
    /// By timers of the processors.
    Processors,
}

/// Switches between the rates.
#[derive(Debug)]
pub(crate) struct RateControl {
    rate: Rate,
    /// Share of their CPU time that threads would lose at the usual rate.
    lost: f64,
    /// Time at which context switches are read next, and the interval before that.
    look_at_ns: u64,
    look_interval_ns: u64,
    /// Samples of each thread since context switches were last read.
    sampled: FxHashMap<Thread, u64>,
    threads: FxHashMap<Thread, Scheduled>,
    /// All threads that were ever sampled.
    ever_sampled: FxHashSet<Thread>,
    /// CPU time of threads that ended without a sample, in nanoseconds.
    unsampled_ns: u64,
    /// True once threads were found to be too short for samples of their own timers.
    are_short: bool,
}

impl Default for RateControl {
    fn default() -> Self {
        Self {
            rate: Rate::Usual,
            lost: 0.0,
            look_at_ns: FIRST_LOOK_NS,
            look_interval_ns: FIRST_LOOK_NS,
            sampled: FxHashMap::default(),
            threads: FxHashMap::default(),
            ever_sampled: FxHashSet::default(),
            unsampled_ns: 0,
            are_short: false,
        }
    }
}

impl RateControl {
    /// Share of their CPU time that threads lose to timers.
    pub(crate) fn lost_part(&self) -> f64 {
        match self.rate {
            Rate::Usual => self.lost,
            Rate::Rare | Rate::Processors => self.lost * RARE_PART,
        }
    }

    /// Whether threads switch so often that they are sampled rarely.
    pub(crate) const fn is_rare(&self) -> bool {
        matches!(self.rate, Rate::Rare)
    }

    /// Whether samples are those of processors, on which other processes run too.
    pub(crate) const fn is_of_processors(&self) -> bool {
        matches!(self.rate, Rate::Processors)
    }

    /// Notes that a thread has ended, and had `cpu_ns` of CPU time on one processor.
    pub(crate) fn ended(&mut self, pid: u32, tid: u32, cpu_ns: u64) {
        if !self.ever_sampled.contains(&(pid, tid)) {
            self.unsampled_ns += cpu_ns;
        }
    }

    /// Counts a sample of a thread.
    pub(crate) fn sampled(&mut self, pid: u32, tid: u32) {
        self.ever_sampled.insert((pid, tid));
        *self.sampled.entry((pid, tid)).or_default() += 1;
    }

    /// Time until context switches are to be read.
    pub(crate) const fn due_in(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.look_at_ns.saturating_sub(now_ns))
    }

    /// Whether context switches are to be read.
    pub(crate) const fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.look_at_ns
    }

    /// Compares the CPU time of all threads with that of threads without samples. To be called where processors can
    /// be sampled.
    pub(crate) fn counted(&mut self, cpu_ns: u64) {
        let least_ns = (MIN_UNSAMPLED_SHARE * cpu_ns as f64).max(MIN_UNSAMPLED_NS as f64);
        self.are_short |= self.unsampled_ns as f64 >= least_ns;
    }

    /// Reads context switches if that is due; returns the rate if it changes. `serves` tells whether programs
    /// serve requests.
    pub(crate) fn step(&mut self, now_ns: u64, serves: bool) -> Option<Rate> {
        if !self.is_due(now_ns) {
            return None;
        }
        self.look_interval_ns = match self.rate {
            // A server that waits for its first requests.
            Rate::Usual if self.sampled.is_empty() => IDLE_LOOK_INTERVAL_NS,
            Rate::Usual | Rate::Processors => (2 * self.look_interval_ns).min(MAX_LOOK_INTERVAL_NS),
            Rate::Rare => RARE_LOOK_INTERVAL_NS,
        };
        self.look_at_ns = now_ns + self.look_interval_ns;
        self.look(|(pid, tid)| Scheduled::of(pid, tid));
        self.decide(serves)
    }

    /// Chooses the rate; returns it if it changes.
    fn decide(&mut self, serves: bool) -> Option<Rate> {
        let before = self.rate;
        let max_lost = match serves {
            true => MAX_LOST_SERVING,
            false => MAX_LOST,
        };
        if self.are_short {
            self.rate = Rate::Processors;
        } else if self.lost > max_lost {
            self.rate = Rate::Rare;
        } else if self.lost < KEPT_PART * max_lost {
            self.rate = Rate::Usual;
        }
        (self.rate != before).then_some(self.rate)
    }

    /// Estimates the loss from context switches since the last reading. Reads the threads with the most samples, with
    /// their whole life if they are new, and reads the threads of the last reading again: at the rare rate, a thread
    /// that mostly sleeps has no sample.
    fn look(&mut self, scheduled: impl Fn(Thread) -> Option<Scheduled>) {
        for thread in self.threads.keys() {
            self.sampled.entry(*thread).or_default();
        }
        if self.sampled.is_empty() {
            return;
        }
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
        if cpu_ns > 0 {
            self.lost = switches as f64 * SWITCH_COST_NS / cpu_ns as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the control look at a thread that has run for `cpu_ms` in all.
    fn look(control: &mut RateControl, cpu_ms: u64, switches: u64) {
        control.sampled(1, 1);
        control.look(|_| {
            Some(Scheduled {
                cpu_ns: cpu_ms * 1_000_000,
                waited_ns: 0,
                switches,
            })
        });
    }

    #[test]
    fn threads_that_switch_often_are_sampled_rarely() {
        let mut control = RateControl::default();
        // By its life at first: 100 switches in a millisecond, which cost 40 %.
        look(&mut control, 20, 2000);
        assert_eq!(control.decide(false), Some(Rate::Rare));
        assert!((control.lost_part() - 0.04).abs() < 1e-9);
        look(&mut control, 40, 2000);
        // 3 % are between the limits, 1.6 % are not.
        look(&mut control, 60, 2150);
        assert_eq!(control.decide(false), None);
        look(&mut control, 80, 2230);
        assert_eq!(control.decide(false), Some(Rate::Usual));
        assert!((control.lost_part() - 0.016).abs() < 1e-9);
        assert_eq!(control.decide(true), Some(Rate::Rare));
    }

    #[test]
    fn threads_that_switch_often_are_read_again_without_samples() {
        let mut control = RateControl::default();
        let look = |control: &mut RateControl, sampled: &[u32], ms: u64| {
            sampled.iter().for_each(|tid| control.sampled(1, *tid));
            // The second thread switches 100 times in a millisecond.
            control.look(|(_, tid)| {
                Some(Scheduled {
                    cpu_ns: ms * 1_000_000,
                    waited_ns: 0,
                    switches: if tid == 2 { 100 * ms } else { 0 },
                })
            });
        };
        look(&mut control, &[1, 2], 10);
        assert_eq!(control.decide(false), Some(Rate::Rare));
        look(&mut control, &[1], 20);
        assert_eq!(control.decide(false), None, "the second one goes on");
        assert!((control.lost - 0.2).abs() < 1e-9);
    }

    #[test]
    fn threads_too_short_for_samples_are_found_by_their_cpu_time() {
        let mut control = RateControl::default();
        control.sampled(u32::MAX, 1);
        control.ended(u32::MAX, 1, 80_000_000);
        control.ended(u32::MAX, 2, 40_000_000);
        control.counted(120_000_000);
        assert_eq!(control.step(FIRST_LOOK_NS, true), None);
        control.ended(u32::MAX, 3, 40_000_000);
        control.counted(160_000_000);
        assert_eq!(control.step(1 << 40, true), Some(Rate::Processors));
        // Processors' samples miss fewer, and that is no reason to go back.
        control.counted(1_000_000_000);
        assert_eq!(control.step(1 << 41, true), None);
    }

    #[test]
    fn context_switches_are_read_early_and_then_less_often() {
        // Sampled from a time on; its number is no process's, so that nothing is read.
        let read_ms = |mut control: RateControl, from_ms: u64| -> Vec<u64> {
            (0..4000)
                .filter(|ms| {
                    if *ms >= from_ms {
                        control.sampled(u32::MAX, 1);
                    }
                    let due_ns = control.look_at_ns;
                    control.step(ms * 1_000_000, false);
                    control.look_at_ns != due_ns
                })
                .collect()
        };
        assert_eq!(
            read_ms(RateControl::default(), 0)[..5],
            [20, 60, 140, 300, 500]
        );
        // While it waits for its first requests, and then.
        let after_a_pause = read_ms(RateControl::default(), 490);
        assert_eq!(after_a_pause[..3], [20, 60, 100]);
        assert_eq!(after_a_pause[12..16], [500, 580, 740, 940]);
        let rare = RateControl {
            rate: Rate::Rare,
            lost: 1.0,
            ..RateControl::default()
        };
        assert_eq!(read_ms(rare, 0)[..3], [20, 1020, 2020]);
    }

    #[test]
    fn the_kernel_says_how_often_a_thread_ran() {
        let own = std::process::id();
        let own = Scheduled::of(own, own).expect("this thread's process is there");
        assert!(own.switches > 0);
    }
}
