//! Helpers of the unit tests of several modules.

use membound_types::{Level, LevelKind};

/// A level with this name and size; `DRAM` is memory, all others are caches.
pub(crate) fn level(name: &str, size_bytes: Option<u64>) -> Level {
    Level {
        name: name.to_owned(),
        kind: if name == "DRAM" {
            LevelKind::Memory
        } else {
            LevelKind::Cache
        },
        size_bytes,
        latency_ns: 1.0,
        latency_low_ns: 1.0,
        latency_high_ns: 1.0,
        latency_cycles: 4.0,
        ..Level::default()
    }
}

/// Pseudo-random numbers for tests, the same on every machine.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A uniform number between 0 and 1, both excluded (Splitmix64).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        ((x >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A number from a normal distribution of mean 0 and standard deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
