//! Detects programs that make no progress while patches are in their text or being exchanged.

use super::window::Now;

/// A program is stuck if for this long it takes less than this fraction of the CPU time that it took without
/// patches.
const STUCK_PART: f64 = 0.25;
const STUCK_NS: u64 = 40_000_000;
/// Programs that used less of a processor than this without patches are never called stuck: they wait for
/// other things.
const MIN_BUSY: f64 = 0.3;
/// Wall time over which the CPU use without patches is measured.
const BUSY_OVER_NS: u64 = 100_000_000;
/// Number of such times that are remembered: the least CPU use among them is what a program is expected to
/// take. A server that has started, or has answered its clients, idles without being stuck.
const REMEMBERED: usize = 8;

/// Compares the programs' CPU use with and without patches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Processors in use without patches in the last such times, the oldest first: CPU time over wall time; 0
    /// where there was none yet.
    pub(super) busy: [f64; REMEMBERED],
    /// Start of the current interval: time and CPU time.
    since: Option<(u64, u64)>,
    was_clear: bool,
}

impl Progress {
    /// Processors in use in the latest time without patches.
    pub(super) const fn last_busy(&self) -> f64 {
        self.busy[REMEMBERED - 1]
    }

    /// Reads the clocks; true if programs are stuck. `is_clear`: no patches are in the text.
    pub(super) fn is_stuck(&mut self, now: Now, is_clear: bool) -> bool {
        let here = (now.t_ns, now.cpu_ns);
        let (since_ns, cpu_ns) = match self.since {
            Some(since) if self.was_clear == is_clear => since,
            _ => here,
        };
        self.since = Some((since_ns, cpu_ns));
        self.was_clear = is_clear;
        let passed_ns = now.t_ns.saturating_sub(since_ns);
        let least_ns = if is_clear { BUSY_OVER_NS } else { STUCK_NS };
        if passed_ns < least_ns {
            return false;
        }
        self.since = Some(here);
        let busy = now.cpu_ns.saturating_sub(cpu_ns) as f64 / passed_ns as f64;
        if is_clear {
            self.busy.rotate_left(1);
            self.busy[REMEMBERED - 1] = busy;
            return false;
        }
        let usual = self.busy.iter().copied().fold(f64::INFINITY, f64::min);
        usual >= MIN_BUSY && busy < STUCK_PART * usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Threads;

    #[test]
    fn a_program_that_gets_stuck_is_told_from_one_that_waits() {
        let at = |t_ms: u64, cpu_ms: u64| Now {
            processes: 1,
            t_ns: t_ms * 1_000_000,
            cpu_ns: cpu_ms * 1_000_000,
            threads: Threads::One,
        };
        let mut progress = Progress::default();
        for t_ms in 0..1000 {
            assert!(!progress.is_stuck(at(t_ms, t_ms), true));
        }
        // Patches that halve its speed do not count as being stuck.
        for t_ms in 1000..1100 {
            assert!(!progress.is_stuck(at(t_ms, 1000 + (t_ms - 1000) / 2), false));
        }
        let stuck = (1100..1200).position(|t_ms| progress.is_stuck(at(t_ms, 1050), false));
        assert!(stuck.is_some_and(|ms| (20..=90).contains(&ms)), "{stuck:?}");
        // A program that waited before may make no progress with patches either.
        let mut progress = Progress::default();
        for t_ms in 0..300 {
            progress.is_stuck(at(t_ms, 5), true);
        }
        assert!(!(300..900).any(|t_ms| progress.is_stuck(at(t_ms, 5), false)));
    }

    #[test]
    fn a_server_that_has_started_is_not_stuck() {
        let mut progress = Progress::default();
        // Busy for 500 ms and for the last 100 of each second, idle between.
        let cpu_ms =
            |t_ms: u64| t_ms.min(500) + t_ms / 1000 * 100 + (t_ms % 1000).saturating_sub(900);
        let at = |t_ms: u64| Now {
            processes: 1,
            t_ns: t_ms * 1_000_000,
            cpu_ns: cpu_ms(t_ms) * 1_000_000,
            threads: Threads::One,
        };
        for t_ms in 0..3000 {
            assert!(!progress.is_stuck(at(t_ms), true));
        }
        assert!(!(3000..4000).any(|t_ms| progress.is_stuck(at(t_ms), false)));
    }
}
