//! CPU time by thread: the program's, and membound's own within the program.

use membound_run::{RunData, Sample, ThreadId, is_time_missing};

use crate::info;

/// The times of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    /// CPU time in nanoseconds, without membound's code in the program.
    pub cpu_ns: u64,
    /// Part of the CPU time that samples cover; the rest was spent in the kernel, where none are taken.
    pub sampled_ns: u64,
    /// CPU time in membound's own code, in nanoseconds.
    pub own_ns: u64,
    /// Lifetime of the thread, in nanoseconds.
    pub lifetime_ns: u64,
    /// Timer samples in the program's code.
    pub samples: u64,
}

impl ThreadTime {
    /// Time in which the thread was on no CPU.
    fn idle_ns(&self) -> u64 {
        let busy = self.cpu_ns.max(self.sampled_ns) + self.own_ns;
        self.lifetime_ns.saturating_sub(busy)
    }
}

/// The times of all threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Times of each thread, by [`ThreadId`].
    pub threads: Vec<ThreadTime>,
    /// CPU time of all threads in nanoseconds: the whole that shares refer to.
    pub total_ns: f64,
    /// Time in which threads were on no CPU, in nanoseconds.
    pub idle_ns: f64,
    /// Effective number of samples: as many samples of equal weight have the same variance.
    pub effective_samples: f64,
    /// CPU time in nanoseconds of threads that ended before their first sample, as far as samples lack it. A thread's
    /// timer begins with it, so that no number of such threads gives samples.
    pub short_ns: f64,
}

impl Times {
    /// Adds up the times of `run`.
    pub(crate) fn new(run: &RunData) -> Self {
        let mut threads = vec![ThreadTime::default(); run.threads.len()];
        let own: Vec<bool> = run
            .stacks
            .iter()
            .map(|stack| info::is_own(run, stack.frame))
            .collect();
        let is_own = |sample: &Sample| own[sample.stack.index()];
        for sample in &run.samples {
            let thread = &mut threads[sample.thread.index()];
            if is_own(sample) {
                thread.own_ns += sample.weight_ns;
            } else {
                thread.sampled_ns += sample.weight_ns;
                thread.samples += 1;
            }
        }
        for (time, thread) in threads.iter_mut().zip(&run.threads) {
            time.cpu_ns = match thread.cpu_ns {
                Some(cpu) => cpu.saturating_sub(time.own_ns),
                None => time.sampled_ns,
            };
            // The agent's thread does not belong to the program: its sleep must not count as idle time.
            let image = &run.processes[thread.process.index()];
            if run.is_agents(thread) {
                time.cpu_ns = 0;
                time.sampled_ns = 0;
                continue;
            }
            // A thread that starts another program goes on in that program's image.
            let end = thread.end_ns.or(image.end_ns);
            let end = end.unwrap_or(run.meta.elapsed_ns);
            time.lifetime_ns = end.saturating_sub(thread.start_ns);
        }
        let cpu: u64 = threads.iter().map(|thread| thread.cpu_ns).sum();
        let sampled: u64 = threads.iter().map(|thread| thread.sampled_ns).sum();
        let idle: u64 = threads.iter().map(ThreadTime::idle_ns).sum();
        let program = run.samples.iter().filter(|sample| !is_own(sample));
        let weights = program.map(|sample| sample.weight_ns);
        let longest_ns = weights.clone().max().unwrap_or(0).max(run.meta.period_ns);
        let effective_samples = info::effective(weights);
        let deviation_ns = sampled as f64 / effective_samples.max(1.0).sqrt();
        let short_ns = match is_time_missing(cpu as f64, sampled as f64, deviation_ns) {
            true => short_ns(&threads, longest_ns).min(cpu.saturating_sub(sampled) as f64),
            false => 0.0,
        };
        Self {
            threads,
            short_ns,
            // The time from samples may exceed the kernel's count by chance; shares must not exceed one
            // then.
            total_ns: cpu.max(sampled) as f64,
            idle_ns: idle as f64,
            effective_samples,
        }
    }

    /// Keeps the threads for which `is_selected` is true; shares then refer to their CPU time.
    pub(crate) fn keep(&mut self, run: &RunData, is_selected: impl Fn(ThreadId) -> bool) {
        let (mut cpu, mut sampled, mut idle) = (0_u64, 0_u64, 0_u64);
        for (id, time) in (0..).map(ThreadId).zip(&self.threads) {
            if is_selected(id) {
                cpu += time.cpu_ns;
                sampled += time.sampled_ns;
                idle += time.idle_ns();
            }
        }
        self.total_ns = cpu.max(sampled) as f64;
        self.short_ns = self.short_ns.min(cpu.saturating_sub(sampled) as f64);
        self.idle_ns = idle as f64;
        let selected = run.samples.iter().filter(|sample| {
            is_selected(sample.thread) && !info::is_own(run, run.stacks[sample.stack.index()].frame)
        });
        self.effective_samples = info::effective(selected.map(|sample| sample.weight_ns));
    }

    /// Times of `thread`.
    pub(crate) fn thread(&self, thread: ThreadId) -> &ThreadTime {
        &self.threads[thread.index()]
    }

    /// `ns` as a share of all CPU time.
    pub(crate) fn share(&self, ns: f64) -> f64 {
        if self.total_ns > 0.0 {
            ns / self.total_ns
        } else {
            0.0
        }
    }
}

/// CPU time in nanoseconds of threads without samples that ran for less than two of the longest intervals between
/// samples.
fn short_ns(threads: &[ThreadTime], longest_ns: u64) -> f64 {
    const PERIODS: u64 = 2;
    let short = threads.iter().filter(|thread| {
        thread.samples == 0 && thread.own_ns == 0 && thread.cpu_ns < PERIODS * longest_ns
    });
    short.map(|thread| thread.cpu_ns).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_samples_is_unknown_where_threads_were_too_short() {
        let thread = |cpu_ns: u64, samples: u64| ThreadTime {
            cpu_ns,
            samples,
            ..ThreadTime::default()
        };
        let threads = [
            thread(400, 0),
            thread(300, 0),
            thread(5000, 0),
            thread(9000, 9),
        ];
        // The one with 5000 ns ran in the kernel, where no samples are taken.
        assert!((short_ns(&threads, 1000) - 700.0).abs() < 1e-9);
    }
}
