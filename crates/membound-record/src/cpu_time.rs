//! CPU time that all processes of a run have taken, also those that have ended.

use membound_platform::cpu_time;
use rustc_hash::FxHashMap;

/// Sums up processes' clocks.
#[derive(Debug, Default)]
pub(crate) struct CpuTime {
    /// What each process had taken when it was last asked.
    running: FxHashMap<u32, u64>,
    /// What those had taken at last that are gone.
    ended_ns: u64,
}

impl CpuTime {
    /// Asks for the time of these processes; the sum, with those that were asked before.
    pub(crate) fn of(&mut self, pids: impl IntoIterator<Item = u32>) -> u64 {
        self.of_with(pids, cpu_time::of_process)
    }

    /// The same, by another clock.
    pub(crate) fn of_with(
        &mut self,
        pids: impl IntoIterator<Item = u32>,
        ask: impl Fn(u32) -> Option<u64>,
    ) -> u64 {
        for pid in pids {
            let Some(cpu_ns) = ask(pid) else { continue };
            let last = self.running.entry(pid).or_default();
            // A process of the same number that came later begins at 0.
            if cpu_ns < *last {
                self.ended_ns += *last;
            }
            *last = cpu_ns;
        }
        self.ended_ns + self.running.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_processes_took_is_kept() {
        let mut time = CpuTime::default();
        assert_eq!(time.of_with([1, 2], |pid| Some(u64::from(pid) * 100)), 300);
        assert_eq!(time.of_with([1, 2], |pid| (pid == 1).then_some(150)), 350);
        // Another process has the number of the second one.
        assert_eq!(time.of_with([2], |_| Some(10)), 360);
        assert_eq!(time.of([u32::MAX]), 360);
    }
}
