//! Combines the stalls of sites into the stall of a program.

use membound_types::MemoryBound;

use super::{ByLevel, Served, Stall};
use crate::stats::Z95;

/// Correlation of the errors of different sites: they have the calibration and the cost of a hit
/// in common, and nothing else.
const SHARED_ERROR_CORRELATION: f64 = 0.25;
/// Width of the interval of a site's stalled share above which part of its error is due to missing
/// knowledge. Sites share that part: if the memory bandwidth limits a loop, all accesses of the
/// loop wait for it, and if not, none does.
const IGNORANT_WIDTH: f64 = 0.5;
/// Share of the CPU time above which sites are assumed to lie in the same loop. The errors of many
/// smaller sites are independent.
const SAME_LOOP_SHARE: f64 = 0.1;

/// The stalled share of `total_ns` CPU time, from which `samples` samples were taken.
///
/// The sampling error is that of all samples together: samples that one site has too many another
/// has too few. Other errors of sites are independent except for the part that they
/// share. The caller sets [`MemoryBound::l1_and_l2_together`].
#[must_use]
pub fn combine(sites: &[Stall], total_ns: f64, samples: f64) -> MemoryBound {
    if total_ns <= 0.0 {
        return MemoryBound::default();
    }
    let mut levels = ByLevel::default();
    let mut fraction = 0.0;
    let mut squares = 0.0;
    let mut below = Errors::default();
    let mut above = Errors::default();
    for site in sites {
        let share = site.time_ns / total_ns;
        let stalled = site.ratio.value * share;
        fraction += stalled;
        squares += site.ratio.value * stalled;
        let width = site.ratio.high - site.ratio.low;
        let missing = match site.latency_ns {
            Some(_) => ((width - IGNORANT_WIDTH) / (1.0 - IGNORANT_WIDTH)).clamp(0.0, 1.0),
            // How far untimed accesses overlap is not known of any of them.
            None => 1.0,
        };
        let ignorance = missing * (share / SAME_LOOP_SHARE).min(1.0);
        below.add((site.ratio.value - site.ratio.low) * share, ignorance);
        above.add((site.ratio.high - site.ratio.value) * share, ignorance);
        levels += site.levels;
    }
    let fraction: f64 = f64::clamp(fraction, 0.0, 1.0);
    let levels = levels.scaled_to(fraction);
    let samples = samples.max(1.0);
    // One more sample might have fallen on a stall even if none did.
    let variance = (squares - fraction * fraction).max(0.0) + 1.0 / samples;
    let chance = Z95 * (variance / samples).sqrt();
    MemoryBound {
        fraction,
        low: (fraction - below.size().hypot(chance)).max(0.0),
        high: (fraction + above.size().hypot(chance)).min(1.0),
        l1: levels.get(Served::L1),
        l2: levels.get(Served::L2),
        l3: levels.get(Served::L3),
        dram: levels.get(Served::Dram),
        remote: levels.get(Served::Remote),
        unknown: levels.get(Served::Unknown),
        unseen: 0.0,
        l1_and_l2_together: false,
    }
}

/// Sum of errors that are partly correlated: with c the correlation of all errors and g the parts of two of them that are
/// due to missing knowledge, the correlation of the two is c + (1 − c)·g·g′.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    sum: f64,
    /// Sum of the parts of errors that are due to missing knowledge.
    ignorance: f64,
    /// Sum of the squares of what remains of each error.
    squares: f64,
}

impl Errors {
    /// Adds a site's error; `ignorance`, 0 to 1, is the part of it that is due to missing knowledge.
    fn add(&mut self, error: f64, ignorance: f64) {
        self.sum += error;
        self.ignorance += error * ignorance;
        self.squares += error * error * (1.0 - ignorance * ignorance);
    }

    fn size(&self) -> f64 {
        let own = self.ignorance * self.ignorance + self.squares;
        let shared = SHARED_ERROR_CORRELATION * self.sum * self.sum;
        (shared + (1.0 - SHARED_ERROR_CORRELATION) * own).sqrt()
    }
}
