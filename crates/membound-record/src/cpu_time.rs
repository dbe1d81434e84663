//! CPU time of all processes of a run, including processes that have ended.

use membound_platform::cpu_time;
use rustc_hash::FxHashMap;

/// Sums the CPU time of processes.
#[derive(Debug, Default)]
pub(crate) struct CpuTime {
    /// Latest reading of each process.
    running: FxHashMap<u32, u64>,
    /// Last readings of processes whose numbers were reused.
    ended_ns: u64,
}

impl CpuTime {
    /// Reads these processes' CPU time; returns the sum in nanoseconds, with all processes read before.
    pub(crate) fn of(&mut self, pids: impl IntoIterator<Item = u32>) -> u64 {
        self.of_with(pids, cpu_time::of_process)
    }

    /// The same with readings from `ask`.
    pub(crate) fn of_with(
        &mut self,
        pids: impl IntoIterator<Item = u32>,
        ask: impl Fn(u32) -> Option<u64>,
    ) -> u64 {
        for pid in pids {
            let Some(cpu_ns) = ask(pid) else { continue };
            let last = self.running.entry(pid).or_default();
            // A later process with the same number begins at 0.
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
