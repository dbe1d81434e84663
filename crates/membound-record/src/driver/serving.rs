//! Decides whether programs serve requests or compute.

use membound_platform::Root;
use membound_platform::sockets::accepts_connections;
use membound_platform::stat::Stat;
use membound_platform::threads::{self, Scheduled};

/// Interval between two looks at programs that compute; [`Serving::look`] is called more often.
const INTERVAL_NS: u64 = 500_000_000;
/// The same while programs seem to serve requests.
const SERVING_INTERVAL_NS: u64 = 2_000_000_000;
/// CPU time between two looks that suffices for a decision.
const MIN_CPU_NS: u64 = 20_000_000;
/// Switches to threads per second of CPU time from which programs serve requests.
const MIN_SWITCHES_A_SECOND: u64 = 500;
/// Processes, and threads of each, that are looked at.
const LOOKED_AT: usize = 64;
/// CPU time that suffices to see that programs compute which seemed to serve requests.
const MIN_COMPUTING_NS: u64 = 1_000_000_000;
/// Most switches per second of CPU time, and the largest share of it in the kernel, of programs that compute. A server
/// that has no pause between requests does not wait at all, but it reads and writes.
const MAX_COMPUTING_SWITCHES_A_SECOND: u64 = 100;
const MAX_COMPUTING_KERNEL_SHARE: f64 = 0.04;

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupation {
    /// None accepts connections, or their threads seldom wait: MPI accepts connections too.
    Computes,
    /// One accepts connections; whether it serves them is not known yet.
    Undecided,
    /// One accepts connections, and threads wait often.
    Serves,
}

/// Looks at sockets and context switches of programs.
#[derive(Debug)]
pub(super) struct Serving {
    found: Occupation,
    read_ns: Option<u64>,
    /// Switches and CPU time at the last decision.
    before: Scheduled,
    /// CPU time and the kernel's part of it then, in clock ticks.
    ticks_before: [u64; 2],
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            found: Occupation::Computes,
            read_ns: None,
            before: Scheduled::default(),
            ticks_before: [0; 2],
        }
    }
}

impl Serving {
    /// The result of the last look.
    pub(super) const fn found(&self) -> Occupation {
        self.found
    }

    /// Looks at these processes, if that is due.
    pub(super) fn look(&mut self, now_ns: u64, pids: &[u32]) -> Occupation {
        let interval_ns = match self.found {
            Occupation::Undecided => 0,
            Occupation::Computes => INTERVAL_NS,
            Occupation::Serves => SERVING_INTERVAL_NS,
        };
        if self
            .read_ns
            .is_none_or(|read_ns| now_ns >= read_ns + interval_ns)
        {
            self.read_ns = Some(now_ns);
            let root = Root::system();
            let pids = &pids[..pids.len().min(LOOKED_AT)];
            if self.found == Occupation::Serves {
                self.reconsider(scheduled(&root, pids), ticks(pids));
            } else {
                let accepts = pids.iter().any(|pid| accepts_connections(&root, *pid));
                self.found = self.decide(accepts, || scheduled(&root, pids));
                if self.found == Occupation::Serves {
                    self.ticks_before = ticks(pids);
                }
            }
        }
        self.found
    }

    /// Decides whether programs that seemed to serve requests compute. A program that uses MPI waits often while it
    /// starts.
    fn reconsider(&mut self, now: Scheduled, ticks: [u64; 2]) {
        let cpu_ns = now.cpu_ns.saturating_sub(self.before.cpu_ns);
        if cpu_ns < MIN_COMPUTING_NS {
            return;
        }
        let [all, in_kernel] = [0, 1].map(|it| ticks[it].saturating_sub(self.ticks_before[it]));
        let is_seldom = !self.switches_at_least(MAX_COMPUTING_SWITCHES_A_SECOND, now);
        if is_seldom && (in_kernel as f64) < MAX_COMPUTING_KERNEL_SHARE * all as f64 {
            self.found = Occupation::Computes;
        }
        (self.before, self.ticks_before) = (now, ticks);
    }

    fn decide(&mut self, accepts: bool, scheduled: impl Fn() -> Scheduled) -> Occupation {
        if !accepts {
            return Occupation::Computes;
        }
        let now = scheduled();
        let cpu_ns = now.cpu_ns.saturating_sub(self.before.cpu_ns);
        if cpu_ns < MIN_CPU_NS {
            return Occupation::Undecided;
        }
        let waits_often = self.switches_at_least(MIN_SWITCHES_A_SECOND, now);
        self.before = now;
        match waits_often {
            true => Occupation::Serves,
            false => Occupation::Computes,
        }
    }

    /// Whether threads were given a CPU that often per second of CPU time since the last decision.
    const fn switches_at_least(&self, a_second: u64, now: Scheduled) -> bool {
        let cpu_ns = now.cpu_ns.saturating_sub(self.before.cpu_ns);
        let switches = now.switches.saturating_sub(self.before.switches);
        switches.saturating_mul(1_000_000_000) >= cpu_ns.saturating_mul(a_second)
    }
}

/// Sums the switches and CPU times of all threads of these processes: in postgres, for example, one process accepts
/// connections and others answer the requests.
fn scheduled(root: &Root, pids: &[u32]) -> Scheduled {
    let mut sum = Scheduled::default();
    for (_, scheduled) in threads::scheduled(root, pids.iter().copied(), LOOKED_AT) {
        sum.switches += scheduled.switches;
        sum.cpu_ns += scheduled.cpu_ns;
    }
    sum
}

/// CPU time of these processes and the kernel's part of it, in clock ticks.
fn ticks(pids: &[u32]) -> [u64; 2] {
    let mut sums = [0; 2];
    for stat in pids.iter().filter_map(|pid| Stat::of(*pid).ok()) {
        sums[0] += stat.cpu_ticks().unwrap_or(0);
        sums[1] += stat.kernel_ticks().unwrap_or(0);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(cpu_ms: u64, switches: u64) -> Scheduled {
        Scheduled {
            cpu_ns: cpu_ms * 1_000_000,
            waited_ns: 0,
            switches,
        }
    }

    #[test]
    fn who_accepts_connections_and_waits_often_serves() {
        let mut serving = Serving::default();
        let mut decide = |accepts, scheduled| serving.decide(accepts, || scheduled);
        assert_eq!(decide(false, at(1000, 1_000_000)), Occupation::Computes);
        assert_eq!(decide(true, at(10, 10_000)), Occupation::Undecided);
        assert_eq!(decide(true, at(1000, 100)), Occupation::Computes);
        // Its long start counts no more.
        assert_eq!(decide(true, at(1010, 600)), Occupation::Undecided);
        assert_eq!(decide(true, at(1100, 600)), Occupation::Serves);
    }

    #[test]
    fn who_waits_often_at_its_start_alone_computes_after_all() {
        let serving = || Serving {
            found: Occupation::Serves,
            before: at(100, 1000),
            ticks_before: [10, 8],
            ..Serving::default()
        };
        let after = |cpu_ms, switches, ticks| {
            let mut serving = serving();
            serving.reconsider(at(cpu_ms, switches), ticks);
            serving.found()
        };
        assert_eq!(after(1200, 1020, [120, 9]), Occupation::Computes);
        assert_eq!(after(300, 1020, [30, 8]), Occupation::Serves, "too early");
        assert_eq!(after(1200, 1020, [120, 30]), Occupation::Serves, "it reads");
        assert_eq!(after(1200, 2000, [120, 9]), Occupation::Serves, "it waits");
    }

    #[test]
    fn a_process_that_listens_is_undecided_until_it_has_worked() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut serving = Serving {
            before: at(u64::MAX / 2_000_000, 0),
            ..Serving::default()
        };
        let own = [std::process::id()];
        assert_eq!(serving.look(0, &own), Occupation::Undecided);
        drop(socket);
        assert_eq!(serving.look(1, &own), Occupation::Computes);
        assert_eq!(serving.look(2, &[]), Occupation::Computes);
    }
}
