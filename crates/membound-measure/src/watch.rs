//! Detection of what perturbed a batch, and of CPU time stolen from a point.

use membound_platform::disturb::{self, ThreadUsage};
use membound_platform::{Root, affinity};
use membound_types::{CpuId, Disturbance};

/// The state of the calling thread when a batch begins, and the CPU on which it should run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchWatch {
    usage: ThreadUsage,
    cpu: CpuId,
}

impl BatchWatch {
    /// The calling thread is pinned to `cpu`; [`BatchWatch::end`] notices a change from outside.
    pub(crate) fn begin(cpu: CpuId) -> Self {
        Self {
            usage: ThreadUsage::now(),
            cpu,
        }
    }

    /// Adds what happened since [`BatchWatch::begin`] to `disturbance` and returns true if the
    /// batch is clean. Batches never wait for anything, so a voluntary switch is a perturbation
    /// too: the whole process was stopped, or a page had to be fetched.
    pub(crate) fn end(self, disturbance: &mut Disturbance) -> bool {
        let usage = ThreadUsage::now() - self.usage;
        let migrated = affinity::current_cpu() != self.cpu;
        disturbance.involuntary_switches +=
            u32::try_from(usage.involuntary_switches).unwrap_or(u32::MAX);
        disturbance.migrations += u32::from(migrated);
        usage.involuntary_switches == 0 && usage.voluntary_switches == 0 && !migrated
    }
}

/// Stolen time of one CPU, counted from [`StealWatch::begin`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StealWatch {
    cpu: CpuId,
    ticks: Option<u64>,
}

impl StealWatch {
    pub(crate) fn begin(root: &Root, cpu: CpuId) -> Self {
        Self {
            cpu,
            ticks: disturb::steal_ticks(root, cpu),
        }
    }

    /// Milliseconds stolen since [`StealWatch::begin`]; 0 where the kernel does not report them.
    pub(crate) fn end(self, root: &Root) -> f64 {
        let now = disturb::steal_ticks(root, self.cpu);
        match (self.ticks, now) {
            (Some(before), Some(now)) => {
                now.saturating_sub(before) as f64 * 1000.0
                    / disturb::clock_ticks_per_second() as f64
            }
            _ => 0.0,
        }
    }
}

/// Use of the CPU by others, counted from [`PlacementWatch::begin`]. The calling thread stays on
/// that CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementWatch {
    steal: StealWatch,
    usage: ThreadUsage,
}

impl PlacementWatch {
    pub(crate) fn begin(root: &Root, cpu: CpuId) -> Self {
        Self {
            steal: StealWatch::begin(root, cpu),
            usage: ThreadUsage::now(),
        }
    }

    /// Milliseconds stolen and involuntary switches since [`PlacementWatch::begin`].
    pub(crate) fn end(self, root: &Root) -> (f64, u32) {
        let usage = ThreadUsage::now() - self.usage;
        let switches = u32::try_from(usage.involuntary_switches).unwrap_or(u32::MAX);
        (self.steal.end(root), switches)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use membound_platform::affinity::{Pinned, allowed};

    use super::*;

    #[test]
    fn a_batch_that_was_stopped_is_not_clean() {
        std::thread::spawn(|| {
            let cpu = allowed().unwrap()[0];
            let _pinned = Pinned::to(cpu).unwrap();
            let mut disturbed = Disturbance::default();
            let watch = BatchWatch::begin(cpu);
            std::thread::sleep(Duration::from_millis(1));
            assert!(!watch.end(&mut disturbed));
            assert_eq!(disturbed.migrations, 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_batch_on_another_cpu_than_the_pinned_one_is_not_clean() {
        std::thread::spawn(|| {
            let here = allowed().unwrap()[0];
            let _pinned = Pinned::to(here).unwrap();
            let mut disturbed = Disturbance::default();
            let watch = BatchWatch::begin(CpuId(here.0 + 1));
            assert!(!watch.end(&mut disturbed));
            assert_eq!(disturbed.migrations, 1);
        })
        .join()
        .unwrap();
    }
}
