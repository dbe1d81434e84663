//! Measures whether processors are idle although programs run, because these programs wait.

use std::time::{Duration, Instant};

use membound_platform::Root;
use membound_platform::disturb::BusyTime;

/// Interval of the measurement: the kernel counts idle time in steps of up to 10 ms.
const INTERVAL: Duration = Duration::from_millis(50);
/// Number of processors that have to be idle on average for another program to be started.
const MIN_IDLE: f64 = 0.8;

/// The processors that this process may use.
#[derive(Debug)]
pub(super) struct IdleProcessors {
    busy: BusyTime,
    /// Begin of the interval, and nanoseconds for which the processors had been busy until then.
    begun: (Instant, Option<f64>),
}

impl IdleProcessors {
    /// Begins the first interval; the kernel's counts are read below `root`.
    pub(super) fn below(root: Root) -> Self {
        let busy = BusyTime::of_allowed(root);
        Self {
            begun: (Instant::now(), busy.ns()),
            busy,
        }
    }

    /// True once an interval has passed in which a processor was idle; the next interval begins with each call
    /// that ends one. Always false where the kernel does not report idle time.
    pub(super) fn has_one(&mut self) -> bool {
        let passed = self.begun.0.elapsed();
        if passed < INTERVAL {
            return false;
        }
        let now_ns = self.busy.ns();
        let (_, before_ns) = std::mem::replace(&mut self.begun, (Instant::now(), now_ns));
        before_ns.zip(now_ns).is_some_and(|(before_ns, now_ns)| {
            let busy = (now_ns - before_ns).max(0.0) / passed.as_nanos() as f64;
            self.busy.cpus() as f64 - busy >= MIN_IDLE
        })
    }
}
