//! One clock for a run.
//!
//! Accesses and allocations carry the time stamp counter; perf's samples carry the kernel's
//! `CLOCK_MONOTONIC_RAW`. Both are converted to nanoseconds since the run began. The ratio between them is
//! measured while the run goes on: from the reading at its beginning to the latest one.

use rustix::time::{ClockId, clock_gettime};

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Time stamp counter.
    pub(crate) tsc: u64,
    /// `CLOCK_MONOTONIC_RAW` in nanoseconds.
    pub(crate) raw_ns: u64,
}

impl Reading {
    /// Reads both clocks several times, and takes the reading with the least uncertainty.
    pub(crate) fn take() -> Self {
        const TRIES: usize = 5;
        let tries = (0..TRIES).map(|_| {
            let before = time_stamp();
            let raw_ns = raw_ns();
            let after = time_stamp();
            let width = after.wrapping_sub(before);
            (
                width,
                Self {
                    tsc: before + width / 2,
                    raw_ns,
                },
            )
        });
        tries
            .min_by_key(|(width, _)| *width)
            .map(|(_, reading)| reading)
            .unwrap_or_default()
    }
}

/// Converts times to nanoseconds since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    first: Reading,
    ns_per_tick: f64,
}

impl Clock {
    /// Begins a run. `tsc_hz` is used until two readings are far enough apart; if it is `None`, 2 ms are
    /// spent on measuring it.
    pub(crate) fn begin(tsc_hz: Option<f64>) -> Self {
        let mut clock = Self::at(Reading::take(), tsc_hz.unwrap_or(0.0));
        if tsc_hz.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
            clock.refine(Reading::take());
        }
        clock
    }

    fn at(first: Reading, tsc_hz: f64) -> Self {
        Self {
            first,
            ns_per_tick: if tsc_hz > 0.0 { 1e9 / tsc_hz } else { 1.0 },
        }
    }

    /// Computes the rate from the run's beginning to `now`, if that is long enough.
    pub(crate) fn refine(&mut self, now: Reading) {
        /// A reading is uncertain by some tens of nanoseconds: over 2 ms, that is a few parts in 10⁵.
        const MIN_SPAN_NS: u64 = 2_000_000;
        let ns = now.raw_ns.saturating_sub(self.first.raw_ns);
        let ticks = now.tsc.saturating_sub(self.first.tsc);
        if ns >= MIN_SPAN_NS && ticks > 0 {
            self.ns_per_tick = ns as f64 / ticks as f64;
        }
    }

    /// Ticks of the time stamp counter per second.
    pub(crate) fn tsc_hz(&self) -> f64 {
        1e9 / self.ns_per_tick
    }

    /// Nanoseconds since the run began; 0 before it.
    pub(crate) fn of_tsc(&self, tsc: u64) -> u64 {
        let ticks = tsc.saturating_sub(self.first.tsc);
        (ticks as f64 * self.ns_per_tick) as u64
    }

    /// The same from `CLOCK_MONOTONIC_RAW`.
    pub(crate) const fn of_raw(&self, raw_ns: u64) -> u64 {
        raw_ns.saturating_sub(self.first.raw_ns)
    }

    /// Nanoseconds since the run began, now.
    pub(crate) fn now_ns(&self) -> u64 {
        self.of_raw(raw_ns())
    }
}

/// `CLOCK_MONOTONIC_RAW` in nanoseconds.
fn raw_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicRaw);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The time stamp counter; on other architectures, the kernel's clock.
fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: it reads a counter and nothing else.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        raw_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_come_to_the_same_time() {
        let first = Reading {
            tsc: 1_000,
            raw_ns: 5_000_000_000,
        };
        let mut clock = Clock::at(first, 2e9);
        assert_eq!(clock.of_tsc(3_000), 1_000);
        assert_eq!(clock.of_tsc(10), 0, "before the run began");
        // The true rate is 2.5 GHz.
        clock.refine(Reading {
            tsc: 1_000 + 25_000_000,
            raw_ns: 5_010_000_000,
        });
        assert_eq!(clock.of_tsc(1_000 + 2_500_000), 1_000_000);
        assert_eq!(clock.of_raw(5_001_000_000), 1_000_000);
        assert!((clock.tsc_hz() - 2.5e9).abs() < 1.0);
        // Too close to the first reading to change the rate.
        clock.refine(Reading {
            tsc: 1_001,
            raw_ns: 5_000_100_000,
        });
        assert!((clock.tsc_hz() - 2.5e9).abs() < 1.0);
    }

    #[test]
    fn the_machines_own_clocks_agree_within_what_reading_them_takes() {
        let mut clock = Clock::begin(None);
        let begun = clock.now_ns();
        while clock.now_ns() < begun + 20_000_000 {
            std::hint::spin_loop();
        }
        clock.refine(Reading::take());
        let now = Reading::take();
        let (by_tsc, by_raw) = (clock.of_tsc(now.tsc), clock.of_raw(now.raw_ns));
        // Parts in a thousand: it may have been interrupted between the two.
        assert!(by_tsc.abs_diff(by_raw) < by_raw / 1000, "{by_tsc} {by_raw}");
    }
}
