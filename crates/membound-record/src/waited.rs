//! Time that threads of the programs were runnable without having a processor.
//!
//! CPU time alone does not show that a program lacks processors: while the recorder uses one of two
//! processors, the program's threads alternate on the other, and look like a program that needs no more than
//! one.

use membound_platform::Root;
use membound_platform::threads;
use rustc_hash::FxHashMap;

/// Processes that are read, and threads of each. Programs with more of them have most processors anyway.
const LOOKED_AT: usize = 16;

/// A thread, by the kernel's numbers of its process and of itself.
type Thread = (u32, u32);

/// Sums the waiting times.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    /// Latest reading of each thread.
    threads: FxHashMap<Thread, u64>,
    sum_ns: u64,
}

impl Waited {
    /// Reads these processes' threads; returns the sum so far, in nanoseconds.
    pub(crate) fn of(&mut self, pids: impl IntoIterator<Item = u32>) -> u64 {
        let times = threads::scheduled(&Root::system(), pids, LOOKED_AT)
            .map(|(thread, scheduled)| (thread, scheduled.waited_ns))
            .collect();
        self.add(times)
    }

    fn add(&mut self, times: Vec<(Thread, u64)>) -> u64 {
        let before = std::mem::take(&mut self.threads);
        for (thread, waited_ns) in &times {
            let last_ns = before.get(thread).copied().unwrap_or(0);
            self.sum_ns += waited_ns.saturating_sub(last_ns);
        }
        self.threads.extend(times);
        self.sum_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_waited_that_have_ended_stays_in_the_sum() {
        let mut waited = Waited::default();
        assert_eq!(waited.add(vec![((1, 1), 5), ((1, 2), 10)]), 15);
        assert_eq!(waited.add(vec![((1, 1), 7)]), 17);
        // Another thread has the number of the second one now.
        assert_eq!(waited.add(vec![((1, 1), 7), ((1, 2), 3)]), 20);
    }

    #[test]
    fn two_threads_on_one_processor_wait_for_one_another() {
        let cpu = membound_platform::affinity::current_cpu();
        let busy = || {
            std::thread::spawn(move || {
                let _pinned = membound_platform::affinity::Pinned::to(cpu);
                let begun = std::time::Instant::now();
                while begun.elapsed().as_millis() < 200 {
                    std::hint::spin_loop();
                }
            })
        };
        let own = [std::process::id()];
        let mut waited = Waited::default();
        let before_ns = waited.of(own);
        let (one, other) = (busy(), busy());
        let mut after_ns = before_ns;
        while !(one.is_finished() || other.is_finished()) && after_ns == before_ns {
            std::thread::yield_now();
            after_ns = waited.of(own);
        }
        one.join().expect("it only spins");
        other.join().expect("it only spins");
        if after_ns == 0 {
            membound_testkit::skipped("the kernel does not tell how long threads wait");
            return;
        }
        assert!(after_ns > before_ns, "{before_ns} {after_ns}");
    }
}
