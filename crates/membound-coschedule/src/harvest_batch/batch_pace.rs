//! The remaining time of a batch, in seconds.

/// Ratio of actual to expected times of jobs. If no job's time is known, expected times are all 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pace {
    /// Total wall time of the jobs that have ended, and the total that was expected, in seconds.
    ended_s: f64,
    expected_s: f64,
    /// Whether expected times come from earlier runs.
    is_known: bool,
}

impl Pace {
    /// The state before any job has ended. `is_known` is whether expected times come from earlier runs.
    pub(super) const fn new(is_known: bool) -> Self {
        Self {
            ended_s: 0.0,
            expected_s: 0.0,
            is_known,
        }
    }

    /// Accounts for a job that ended, with its actual and expected wall time in seconds.
    pub(super) fn ended(&mut self, wall_s: f64, expected_s: f64) {
        self.ended_s += wall_s;
        self.expected_s += expected_s;
    }

    /// Seconds until all jobs have ended; `None` while no time is known. `waiting_s` is the expected time of
    /// the waiting jobs; `running` holds the elapsed and the expected time of each running job.
    pub(super) fn left_s(
        &self,
        waiting_s: f64,
        running: impl Iterator<Item = (f64, f64)>,
        slots: usize,
    ) -> Option<f64> {
        // Expected times are scaled by the ratio observed so far.
        let scale = match (self.expected_s > 0.0, self.is_known) {
            (true, _) => self.ended_s / self.expected_s,
            (false, true) => 1.0,
            (false, false) => return None,
        };
        let (mut all_s, mut longest_s, mut count) = (waiting_s * scale, 0.0_f64, 0);
        for (elapsed_s, expected_s) in running {
            let left_s = (expected_s * scale - elapsed_s).max(0.0);
            all_s += left_s;
            longest_s = longest_s.max(left_s);
            count += 1;
        }
        let at_once = if waiting_s > 0.0 { slots } else { count };
        Some((all_s / at_once.max(1) as f64).max(longest_s))
    }
}

/// Formats seconds as a clock does: `0:05`, `12:34`, `1:02:03`.
pub(super) fn clock(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e9).round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// The message beside a batch's progress: the jobs that run and failed, and the remaining seconds.
pub(super) fn message(running: usize, failed: usize, left_s: Option<f64>) -> String {
    let mut words = vec![format!("{running} running")];
    if failed > 0 {
        words.push(format!("{failed} failed"));
    }
    words.extend(left_s.map(|left_s| format!("{} left", clock(left_s))));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remaining_s(
        pace: Pace,
        waiting_s: f64,
        running: &[(f64, f64)],
        slots: usize,
    ) -> Option<f64> {
        pace.left_s(waiting_s, running.iter().copied(), slots)
    }

    #[test]
    fn the_remaining_time_uses_expected_and_measured_times() {
        let mut pace = Pace::new(false);
        assert_eq!(remaining_s(pace, 8.0, &[(1.0, 1.0)], 2), None);
        // Two jobs of unknown length took 6 s: each further one is expected to take 3 s.
        pace.ended(2.0, 1.0);
        pace.ended(4.0, 1.0);
        assert_eq!(remaining_s(pace, 8.0, &[], 2), Some(12.0));
        assert_eq!(
            remaining_s(pace, 8.0, &[(1.0, 1.0), (2.0, 1.0)], 2),
            Some(13.5)
        );
        // Expected times are known, and jobs took half as long.
        let mut pace = Pace::new(true);
        assert_eq!(remaining_s(pace, 10.0, &[], 2), Some(5.0));
        pace.ended(2.0, 4.0);
        assert_eq!(remaining_s(pace, 10.0, &[], 2), Some(2.5));
    }

    #[test]
    fn the_longest_job_that_runs_is_waited_for() {
        let pace = Pace::new(true);
        assert_eq!(
            remaining_s(pace, 0.0, &[(1.0, 9.0), (1.0, 2.0)], 8),
            Some(8.0)
        );
        // A job that takes longer than expected counts as about to end.
        assert_eq!(remaining_s(pace, 0.0, &[(5.0, 2.0)], 8), Some(0.0));
        assert_eq!(remaining_s(pace, 0.0, &[], 8), Some(0.0));
    }

    #[test]
    fn times_are_shown_as_a_clock_does() {
        for (seconds, text) in [
            (0.4, "0:00"),
            (65.0, "1:05"),
            (3723.0, "1:02:03"),
            (-1.0, "0:00"),
        ] {
            assert_eq!(clock(seconds), text);
        }
        assert_eq!(message(2, 0, None), "2 running");
        assert_eq!(message(2, 1, Some(61.0)), "2 running, 1 failed, 1:01 left");
    }
}
