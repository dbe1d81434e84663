//! Decides which blocks are reported: bytes are counted down to the next point of a Poisson process.
//!
//! The stub of wrapped functions counts down by itself, and calls the agent only when the countdown is used
//! up: see [`membound_wire::Allocations`] for the meaning of the points. The distance to the next point is
//! drawn from an exponential distribution, which is memoryless: drawing again at any time, or ignoring
//! bytes that a wrapped function allocates inside another one, changes no block's probability.
//!
//! Every thread has a countdown, found by its thread pointer. Threads whose pointers collide share one; a
//! count lost between the two delays a point and favours no block.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use membound_wire::{allocation_interval, allocation_span};

use crate::assembly;

/// Number of countdowns.
const LINES: usize = 4096;
/// The product of a thread pointer and this has the index of its countdown in the upper bits.
pub(crate) const SPREAD: i32 = 0x9e37_79b1_u32.cast_signed();
pub(crate) const SPREAD_SHIFT: u32 = u64::BITS - LINES.ilog2();
/// Bytes from the stack pointer that the stub stores in [`Countdown::mark`] to the place of the return
/// address.
pub(crate) const MARK_BELOW_RETURN: u64 = 24;
/// Sizes from here on are reported at every level, so that counts stay far from an overflow.
const HUGE: u64 = 1 << 40;

/// A thread's countdown. The stub knows the offsets of the first three words.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Countdown {
    /// Bytes up to the next point; at most 0: used up, or none was drawn.
    bytes_left: AtomicI64,
    /// Place of the return address of the last wrapped call that passed, minus [`MARK_BELOW_RETURN`].
    mark: AtomicU64,
    /// That return address.
    mark_return: AtomicU64,
    /// State of the random numbers, 0: none yet.
    random: AtomicU64,
    /// Level at which the distance was drawn; 0: none was drawn.
    drawn: AtomicU32,
    /// Calls that did not pass in the stub.
    calls: AtomicU32,
}

/// Where a wrapped call that passed returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Place of the return address.
    pub(crate) slot: u64,
    /// Return address.
    pub(crate) back: u64,
}

/// Whether the stub has already counted the block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Yes,
    No,
}

static COUNTDOWNS: [Countdown; LINES] = [const { Countdown::new() }; LINES];
/// For the stub.
pub(crate) static COUNTDOWNS_AT: &[Countdown; LINES] = &COUNTDOWNS;
/// Sizes from here on are decided by the agent, not by the stub; 0: all are.
pub(crate) static STUB_BELOW_BYTES: AtomicU64 = AtomicU64::new(0);

/// The calling thread's countdown.
pub(crate) fn own() -> &'static Countdown {
    let spread = assembly::thread_pointer()
        .cast_signed()
        .wrapping_mul(i64::from(SPREAD));
    let index = (spread.cast_unsigned() >> SPREAD_SHIFT) as usize;
    COUNTDOWNS.get(index).unwrap_or(&COUNTDOWNS[0])
}

/// Size from which blocks are reported at every level; from now on the stub uses it too.
pub(crate) fn certain_from_bytes(wanted: u64) -> u64 {
    let from = wanted.min(HUGE);
    if STUB_BELOW_BYTES.load(Ordering::Relaxed) != from {
        STUB_BELOW_BYTES.store(from, Ordering::Relaxed);
    }
    from
}

impl Countdown {
    const fn new() -> Self {
        Self {
            bytes_left: AtomicI64::new(0),
            mark: AtomicU64::new(0),
            mark_return: AtomicU64::new(0),
            random: AtomicU64::new(0),
            drawn: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        }
    }

    /// Decides about a block of `size` bytes: the level at which it is reported, or `None`. `level` is the
    /// present one, used for the next draw.
    pub(crate) fn decide(&self, size: u64, counted: Counted, level: u32) -> Option<u32> {
        let span = allocation_span(size).min(HUGE).cast_signed();
        let drawn = self.drawn.load(Ordering::Relaxed);
        if drawn == 0 {
            self.draw(level);
            if level == 0 {
                return Some(0);
            }
            let bytes_left = self.bytes_left.load(Ordering::Relaxed) - span;
            self.bytes_left.store(bytes_left, Ordering::Relaxed);
            return self.at_point(bytes_left, level, level);
        }
        let mut bytes_left = self.bytes_left.load(Ordering::Relaxed);
        if counted == Counted::No {
            bytes_left -= span;
            self.bytes_left.store(bytes_left, Ordering::Relaxed);
        }
        self.at_point(bytes_left, drawn, level)
    }

    fn at_point(&self, bytes_left: i64, drawn: u32, level: u32) -> Option<u32> {
        (bytes_left <= 0).then(|| {
            self.draw(level);
            drawn
        })
    }

    /// Draws the distance to the next point.
    fn draw(&self, level: u32) {
        let distance = match allocation_interval(level) {
            0 => 0,
            interval => exponential(self.random(), interval),
        };
        self.bytes_left
            .store(distance.cast_signed(), Ordering::Relaxed);
        self.drawn.store(level, Ordering::Relaxed);
    }

    /// 64 random bits (Marsaglia's xorshift, multiplied).
    fn random(&self) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        if state == 0 {
            state = assembly::time_stamp() ^ (&raw const *self) as u64 | 1;
            state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.store(state, Ordering::Relaxed);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// True for one call in 64, whose duration is measured.
    pub(crate) fn is_timed(&self) -> bool {
        const ONE_IN: u32 = 64;
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls.wrapping_add(1), Ordering::Relaxed);
        calls.is_multiple_of(ONE_IN)
    }

    /// Records a wrapped call that passes, as the stub does.
    pub(crate) fn mark(&self, mark: Mark) {
        let below = mark.slot.wrapping_sub(MARK_BELOW_RETURN);
        self.mark.store(below, Ordering::Relaxed);
        self.mark_return.store(mark.back, Ordering::Relaxed);
    }

    /// The last wrapped call that passed.
    pub(crate) fn marked(&self) -> Option<Mark> {
        let below = self.mark.load(Ordering::Relaxed);
        (below != 0).then(|| Mark {
            slot: below + MARK_BELOW_RETURN,
            back: self.mark_return.load(Ordering::Relaxed),
        })
    }
}

/// Draws a distance of at least 1 byte from the exponential distribution with this mean: the mean times the
/// negative logarithm of a random number between 0 and 1, rounded up.
fn exponential(random: u64, mean: u64) -> u64 {
    const FRACTION_BITS: u32 = 20;
    /// The natural logarithm of 2, times 2¹⁶.
    const LN_2: u64 = 45426;
    let random = random | 1;
    let zeros = random.leading_zeros();
    // Between 1 and 2, as a fixed-point number with 31 fraction bits.
    let mut mantissa = random << zeros >> 32;
    let mut log2 = 0_u64;
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 31;
        log2 <<= 1;
        if mantissa >> 32 != 0 {
            mantissa >>= 1;
            log2 |= 1;
        }
    }
    let negative = (u64::from(zeros + 1) << FRACTION_BITS) - log2;
    // At most 65 · 2²⁰ and 2²⁰.
    ((((negative * LN_2) >> 16) * mean) >> FRACTION_BITS) + 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn seeded(seed: u64) -> Countdown {
        let countdown = Countdown::new();
        countdown.random.store(seed, Ordering::Relaxed);
        countdown
    }

    /// Bytes and blocks that one event represents.
    fn weight(size: u64, level: u32) -> f64 {
        match allocation_interval(level) {
            0 => 1.0,
            interval => 1.0 / -(-(allocation_span(size) as f64) / interval as f64).exp_m1(),
        }
    }

    #[test]
    fn distances_are_exponential() {
        let countdown = seeded(7);
        for mean in [64_u64, 4096, 1 << 20] {
            let draws: Vec<f64> = (0..200_000)
                .map(|_| exponential(countdown.random(), mean) as f64)
                .collect();
            let sum: f64 = draws.iter().sum();
            // Rounded up: half a byte more.
            let average = sum / draws.len() as f64 - 0.5;
            assert!((average / mean as f64 - 1.0).abs() < 0.01, "{average}");
            for part in [0.25, 1.0, 3.0] {
                let beyond = draws.iter().filter(|it| **it > part * mean as f64);
                let share = beyond.count() as f64 / draws.len() as f64;
                let expected = (-part).exp();
                assert!((share - expected).abs() < 0.005, "{mean} {part}: {share}");
            }
        }
        assert_eq!(exponential(u64::MAX, 64), 1, "never 0");
    }

    /// Whatever the sizes are and however the level changes, the weights of the reported blocks add up to
    /// all blocks and all bytes.
    #[test]
    fn sums_over_sizes_are_unbiased() {
        for (seed, counted) in [(3, Counted::Yes), (11, Counted::No)] {
            let countdown = seeded(seed);
            let sizes = [0_u64, 8, 24, 100, 700, 3000];
            let mut found = [0.0; 6];
            let allocations = 600_000_u32;
            for allocation in 0..allocations {
                let level = [0, 4, 9, 6][(allocation / 50_000 % 4) as usize];
                let which = (allocation % 6) as usize;
                let size = sizes[which];
                if counted == Counted::Yes {
                    let span = allocation_span(size).cast_signed();
                    let bytes_left = countdown.bytes_left.fetch_sub(span, Ordering::Relaxed) - span;
                    if bytes_left > 0 {
                        continue;
                    }
                }
                if let Some(level) = countdown.decide(size, counted, level) {
                    found[which] += weight(size, level);
                }
            }
            let expected = f64::from(allocations) / 6.0;
            for (size, found) in sizes.iter().zip(found) {
                let deviation = (found - expected).abs() / expected;
                assert!(deviation < 0.1, "{size}: {found} of {expected}");
            }
        }
    }

    #[test]
    fn at_level_0_every_block_is_reported() {
        let countdown = seeded(5);
        for _ in 0..1000 {
            assert_eq!(countdown.decide(40, Counted::No, 0), Some(0));
        }
        assert!((0..1000).any(|_| countdown.decide(40, Counted::No, 9).is_none()));
        // The drawn distance holds to its end; then every block is reported again.
        let last = (0..100_000).find_map(|_| countdown.decide(40, Counted::No, 0));
        assert_eq!(last, Some(9));
        assert_eq!(countdown.decide(40, Counted::No, 0), Some(0));
    }

    #[test]
    fn a_mark_is_where_the_stub_puts_it() {
        let countdown = Countdown::new();
        assert_eq!(countdown.marked(), None);
        let mark = Mark {
            slot: 0x7fff_0010,
            back: 0x5555,
        };
        countdown.mark(mark);
        assert_eq!(countdown.marked(), Some(mark));
        assert_eq!(core::mem::offset_of!(Countdown, mark), 8);
        assert_eq!(core::mem::offset_of!(Countdown, mark_return), 16);
        assert_eq!(size_of::<Countdown>(), 64);
    }
}
