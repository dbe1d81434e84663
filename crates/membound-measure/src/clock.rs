//! The clock for all timing, and the core clock.
//!
//! Ticks are units of the counter; nanoseconds come from its rate against `CLOCK_MONOTONIC_RAW`;
//! cycles are core cycles, whose rate is measured with a chain of dependent additions. In guests
//! the counter may step in quanta of many ticks, so a single short interval means nothing: batches
//! last at least [`Clock::min_batch_ticks`].

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::arch::{AddChain, Backend, Counter};

/// A calibrated counter.
#[derive(Clone, Debug)]
pub struct Clock {
    counter: Counter,
    ticks_per_ns: f64,
    quantum_ticks: u64,
    overhead_ticks: f64,
}

impl Clock {
    /// Minimum length of a batch in quanta, so that a quantum is at most a thousandth of it.
    const QUANTA_PER_BATCH: u64 = 1000;

    /// Chooses the best counter of this machine and calibrates it for about `duration`.
    #[must_use]
    pub fn calibrate(duration: Duration) -> Self {
        Self::of(Counter::best(), duration)
    }

    fn of(counter: Counter, duration: Duration) -> Self {
        let start = paired(counter);
        while paired(counter).1 - start.1 < duration.as_nanos() as f64 {
            std::hint::spin_loop();
        }
        let end = paired(counter);
        let ticks_per_ns = (end.0 - start.0) / (end.1 - start.1);
        let mut clock = Self {
            counter,
            ticks_per_ns,
            quantum_ticks: 1,
            overhead_ticks: 0.0,
        };
        clock.quantum_ticks = clock.find_quantum();
        clock.overhead_ticks = clock.find_overhead();
        clock
    }

    /// Reads the counter between barriers, so that measured code cannot overlap the reading.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.counter.read()
    }

    /// Converts `ticks` to nanoseconds.
    #[must_use]
    pub fn ns(&self, ticks: f64) -> f64 {
        ticks / self.ticks_per_ns
    }

    /// Converts `ns` nanoseconds to ticks.
    #[must_use]
    pub fn ticks(&self, ns: f64) -> f64 {
        ns * self.ticks_per_ns
    }

    /// Number of ticks of this clock per tick of another counter, measured for about `duration`.
    /// Emitted kernels read a counter of their own, which is not this clock's where the time-stamp
    /// counter is not trusted over longer times.
    pub(crate) fn ticks_per_tick_of(&self, other: impl Fn() -> u64, duration: Duration) -> f64 {
        let enough = self.ticks(duration.as_nanos() as f64) as u64;
        // The tightest of several bracketed readings, so that little time passed between the two
        // counters.
        let at_once = || {
            let reading = || {
                let before = self.now();
                let there = other();
                (self.now() - before, before, there)
            };
            let tightest = (0..16).map(|_| reading()).min();
            let (apart, before, there) = tightest.expect("sixteen readings");
            (before + apart / 2, there)
        };
        let (start, other_start) = at_once();
        while self.now() - start < enough {
            std::hint::spin_loop();
        }
        let (end, other_end) = at_once();
        (end - start) as f64 / other_end.saturating_sub(other_start).max(1) as f64
    }

    /// Average ticks between two consecutive readings, which timing adds to an interval.
    #[must_use]
    pub const fn overhead_ticks(&self) -> f64 {
        self.overhead_ticks
    }

    /// Minimum ticks of a batch: 1000 quanta, at least 10 µs, so that the counter's step is
    /// negligible.
    #[must_use]
    pub fn min_batch_ticks(&self) -> u64 {
        (Self::QUANTA_PER_BATCH * self.quantum_ticks).max(self.ticks(10_000.0) as u64)
    }

    /// Description of this clock for a document, together with the core clock in hertz.
    #[must_use]
    pub fn describe(&self, core_clock_hz: f64) -> membound_types::Timer {
        membound_types::Timer {
            name: self.counter.name().to_owned(),
            rate_hz: self.ticks_per_ns * 1e9,
            quantum_ticks: self.quantum_ticks,
            overhead_ns: self.ns(self.overhead_ticks),
            invariant: self.counter.invariant(),
            core_clock_hz,
        }
    }

    /// The greatest common divisor of many small steps: the counter may advance by several
    /// quanta between two readings, but never by part of one.
    fn find_quantum(&self) -> u64 {
        let mut divisor = 0;
        let mut last = self.now();
        for _ in 0..20_000 {
            let now = self.now();
            divisor = gcd(divisor, now - last);
            last = now;
        }
        divisor.max(1)
    }

    fn find_overhead(&self) -> f64 {
        const READINGS: u32 = 2_000;
        (0..9)
            .map(|_| {
                let start = self.now();
                for _ in 0..READINGS {
                    std::hint::black_box(self.now());
                }
                (self.now() - start) as f64 / f64::from(READINGS + 1)
            })
            .fold(f64::INFINITY, f64::min)
    }
}

/// Measures the core clock with a chain of dependent additions, one a cycle on every core that this
/// runs on. The addend is a register: some cores fold additions of a constant away at rename.
pub struct CoreClock {
    adds: Box<dyn AddChain>,
}

impl CoreClock {
    /// Emits the chain.
    ///
    /// # Errors
    /// When code cannot be emitted here.
    pub fn new(backend: &dyn Backend) -> Result<Self, Error> {
        Ok(Self {
            adds: backend.add_chain()?,
        })
    }

    /// Core clock in hertz: the fastest of `tries` runs of about 20 µs, because perturbation only
    /// makes a run slower.
    #[must_use]
    pub fn measure(&self, clock: &Clock, tries: u32) -> f64 {
        const ADDS: u64 = 65_536;
        let ticks = (0..tries.max(1))
            .map(|_| {
                let start = clock.now();
                self.adds.run(ADDS);
                (clock.now() - start) as f64 - clock.overhead_ticks()
            })
            .fold(f64::INFINITY, f64::min);
        ADDS as f64 / clock.ns(ticks) * 1e9
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The counter and the kernel's clock at one instant, in ticks and nanoseconds: the
/// tightest of several bracketed readings.
fn paired(counter: Counter) -> (f64, f64) {
    let mut best = (u64::MAX, (0.0, 0.0));
    for _ in 0..16 {
        let before = counter.read();
        let time = clock_gettime(ClockId::MonotonicRaw);
        let after = counter.read();
        if after - before < best.0 {
            let ns = time.tv_sec as f64 * 1e9 + time.tv_nsec as f64;
            best = (
                after - before,
                (f64::midpoint(before as f64, after as f64), ns),
            );
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_agrees_with_the_kernels_clock() {
        let clock = Clock::calibrate(Duration::from_millis(20));
        let start = (clock.now(), clock_gettime(ClockId::MonotonicRaw));
        std::thread::sleep(Duration::from_millis(50));
        let end = (clock.now(), clock_gettime(ClockId::MonotonicRaw));
        let by_clock = clock.ns((end.0 - start.0) as f64);
        let by_kernel =
            (end.1.tv_sec - start.1.tv_sec) as f64 * 1e9 + (end.1.tv_nsec - start.1.tv_nsec) as f64;
        assert!(
            (by_clock / by_kernel - 1.0).abs() < 0.01,
            "{by_clock} against {by_kernel}"
        );
    }

    #[test]
    fn another_counters_ticks_are_known_in_ones_own() {
        let short = Duration::from_millis(20);
        let best = Clock::of(Counter::best(), short);
        let raw = Clock::of(Counter::MonotonicRaw, short);
        let ratio = raw.ticks_per_tick_of(|| best.now(), short);
        assert!((ratio * best.ticks_per_ns - 1.0).abs() < 0.01, "{ratio}");
        let same = best.ticks_per_tick_of(|| best.now(), short);
        assert!((same - 1.0).abs() < 0.01, "{same}");
    }

    #[test]
    fn every_step_is_a_multiple_of_the_quantum() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let quantum = clock.quantum_ticks;
        let mut last = clock.now();
        for _ in 0..1000 {
            let now = clock.now();
            assert_eq!((now - last) % quantum, 0);
            last = now;
        }
        assert!(clock.min_batch_ticks() >= 1000 * quantum);
    }

    #[test]
    fn the_core_clock_is_a_plausible_one() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let hz = CoreClock::new(&*crate::arch::native())
            .unwrap()
            .measure(&clock, 20);
        assert!((2e8..2e10).contains(&hz), "{hz} Hz");
    }

    #[test]
    fn common_divisors() {
        assert_eq!(gcd(0, 26), 26);
        assert_eq!(gcd(52, 78), 26);
        assert_eq!(gcd(7, 5), 1);
    }
}
