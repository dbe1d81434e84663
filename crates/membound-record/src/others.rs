//! Estimates how many processors programs use that are not recorded, such as the clients of a server.

use membound_platform::Root;
use membound_platform::disturb::BusyTime;

/// Shortest interval between two readings: the kernel counts in hundredths of a second.
const EVERY_NS: u64 = 100_000_000;

/// Compares the processors' busy time with that of the recorded programs.
#[derive(Debug)]
pub(crate) struct Others {
    busy: BusyTime,
    /// Last reading in nanoseconds: time, busy time of the processors, and recorded programs' and recorder's
    /// part of it.
    last: Option<(u64, f64, u64)>,
    /// Number of processors that other programs used in the last interval.
    processors: f64,
}

impl Others {
    /// For the processors that this process may use.
    pub(crate) fn here() -> Self {
        Self {
            busy: BusyTime::of_allowed(Root::system()),
            last: None,
            processors: 0.0,
        }
    }

    /// Number of processors in use by others, when recorded programs and the recorder have taken `known_ns`
    /// so far.
    pub(crate) fn processors(&mut self, t_ns: u64, known_ns: u64) -> f64 {
        let is_due = self
            .last
            .is_none_or(|(last_ns, ..)| t_ns >= last_ns + EVERY_NS);
        if is_due && let Some(busy_ns) = self.busy.ns() {
            self.look(t_ns, busy_ns, known_ns);
        }
        self.processors
    }

    fn look(&mut self, t_ns: u64, busy_ns: f64, known_ns: u64) {
        if let Some((last_ns, last_busy_ns, last_known_ns)) = self.last {
            let known_ns = known_ns.saturating_sub(last_known_ns) as f64;
            let passed_ns = t_ns.saturating_sub(last_ns).max(1) as f64;
            self.processors = ((busy_ns - last_busy_ns - known_ns) / passed_ns).max(0.0);
        }
        self.last = Some((t_ns, busy_ns, known_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_use_what_nobody_known_has_used() {
        let mut others = Others::here();
        others.look(0, 5e9, 0);
        assert_eq!(others.processors, 0.0);
        // Two processors were busy for 100 ms, with 120 ms of programs and recorder.
        others.look(100_000_000, 5.2e9, 120_000_000);
        assert!((others.processors - 0.8).abs() < 1e-9, "{others:?}");
        // Ticks are coarse.
        others.look(200_000_000, 5.3e9, 230_000_000);
        assert_eq!(others.processors, 0.0);
    }
}
