//! User and system time of the calling thread, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// The kernel's clock of a thread's CPU time, with the cost of reading it and its step.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuTime {
    step_ns: f64,
    overhead_ns: f64,
}

impl CpuTime {
    /// Minimum length of a batch in steps, so that a step is at most a thousandth of it.
    const STEPS_PER_BATCH: f64 = 1000.0;
    /// Minimum length of a batch in readings: each is a system call, whose cost varies.
    const READINGS_PER_BATCH: f64 = 1000.0;

    /// Reads the clock until its step and its cost are known.
    pub(super) fn calibrate() -> Self {
        const READINGS: usize = 200;
        let mut readings = [0.0; READINGS];
        for reading in &mut readings {
            *reading = Self::now();
        }
        let mut steps: Vec<f64> = readings
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .filter(|step| *step > 0.0)
            .collect();
        steps.sort_by(f64::total_cmp);
        let elapsed = readings[READINGS - 1] - readings[0];
        let cost = steps
            .get(steps.len() / 2)
            .map_or(0.0, |median| median.min(elapsed / (READINGS - 1) as f64));
        Self {
            // If every reading differs, the step is shorter than a reading takes. If none does, the
            // clock steps by the timer tick, which is 10 ms at the slowest.
            step_ns: match steps.first() {
                None => 1e7,
                Some(_) if steps.len() == READINGS - 1 => 1.0,
                Some(least) => *least,
            },
            overhead_ns: cost,
        }
    }

    /// The calling thread's user and system time, in nanoseconds.
    fn now() -> f64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }

    /// Minimum length of a batch in nanoseconds, for which step and cost of this clock are
    /// negligible.
    pub(super) fn min_batch_ns(&self) -> f64 {
        (Self::STEPS_PER_BATCH * self.step_ns).max(Self::READINGS_PER_BATCH * self.overhead_ns)
    }

    /// CPU time that `work` takes on this thread, in nanoseconds.
    pub(super) fn of(&self, work: impl FnOnce()) -> f64 {
        let start = Self::now();
        work();
        (Self::now() - start - self.overhead_ns).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_asleep_is_not_counted() {
        let clock = CpuTime::calibrate();
        let pause = std::time::Duration::from_millis(40);
        let asleep = clock.of(|| std::thread::sleep(pause));
        assert!(asleep < 20e6, "{asleep} ns of 40 ms asleep");
    }

    #[test]
    fn more_work_is_more_time() {
        let clock = CpuTime::calibrate();
        let work = |steps: u64| {
            clock.of(|| {
                for step in 0..steps {
                    std::hint::black_box(step);
                }
            })
        };
        assert!(work(10_000_000) > 2.0 * work(1_000_000));
        assert!(clock.min_batch_ns() >= 1000.0);
    }
}
