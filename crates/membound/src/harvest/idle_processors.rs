//! Measures whether processors are idle although programs run, because these programs wait.

use std::time::{Duration, Instant};

use membound_platform::{Root, affinity, disturb};
use membound_types::CpuId;

/// Interval of the measurement: the kernel counts idle time in steps of up to 10 ms.
const INTERVAL: Duration = Duration::from_millis(50);
/// Number of processors that have to be idle on average for another program to be started.
const MIN_IDLE: f64 = 0.8;

/// The processors that this process may use.
#[derive(Debug)]
pub(super) struct IdleProcessors {
    root: Root,
    cpus: Vec<CpuId>,
    ns_per_tick: f64,
    /// Begin of the interval, and clock ticks for which the processors had been busy until then.
    begun: (Instant, Option<u64>),
}

impl IdleProcessors {
    /// Begins the first interval; the kernel's counts are read below `root`.
    pub(super) fn below(root: Root) -> Self {
        let cpus = affinity::allowed().unwrap_or_default();
        Self {
            begun: (Instant::now(), disturb::busy_ticks(&root, &cpus)),
            root,
            ns_per_tick: 1e9 / disturb::clock_ticks_per_second().max(1) as f64,
            cpus,
        }
    }

    /// True once an interval has passed in which a processor was idle; the next interval begins with each call
    /// that ends one. Always false where the kernel does not report idle time.
    pub(super) fn has_one(&mut self) -> bool {
        let passed = self.begun.0.elapsed();
        if passed < INTERVAL {
            return false;
        }
        let now = disturb::busy_ticks(&self.root, &self.cpus);
        let (_, before) = std::mem::replace(&mut self.begun, (Instant::now(), now));
        match (before, now) {
            (Some(before), Some(now)) => {
                let busy_ns = now.saturating_sub(before) as f64 * self.ns_per_tick;
                self.cpus.len() as f64 - busy_ns / passed.as_nanos() as f64 >= MIN_IDLE
            }
            _ => false,
        }
    }
}
