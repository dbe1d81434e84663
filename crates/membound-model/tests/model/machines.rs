//! Machines whose latency curves are known: caches with a replacement policy, a TLB and a
//! memory, walked cyclically in random order, with the noise of a real measurement.

use membound_model::{CurvePoint, suggest_refinement};

use membound_testkit::Random;

/// Replacement policy of a cache, and the placement of pages in it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    /// Least recently used, a contiguous buffer: sets overflow in turn.
    Lru,
    /// Random replacement: h = exp(−(1−h)·S/C).
    AtRandom,
    /// LRU, physically indexed, every 4 KiB page of a random colour.
    LruColoured,
    /// Random replacement, physically indexed, every 4 KiB page of a random colour.
    RandomColoured,
    /// A share that shrinks: misses grow with ln(S) from C to this many times C.
    Ramp(f64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) bytes: u64,
    pub(crate) ways: u64,
    pub(crate) ns: f64,
    pub(crate) policy: Policy,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) caches: Vec<Cache>,
    pub(crate) memory_ns: f64,
    /// Reach in bytes, and the nanoseconds that a miss beyond it adds.
    pub(crate) tlbs: Vec<(u64, f64)>,
}

/// Noise and outliers that are added to the truth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// Relative standard deviation of a point.
    pub(crate) relative: f64,
    /// Share of points that are too high by a factor of two.
    pub(crate) outliers: f64,
    /// Share of points measured in a slow phase, in which times are a third longer.
    pub(crate) slow: f64,
}

/// Colours of the pages of a growing buffer, drawn once.
struct Pages {
    colours: Vec<u32>,
}

impl Machine {
    /// Time per load over `size` bytes, without noise. `pages` gives every page a number
    /// from which its colour in each cache follows.
    fn ns(&self, size: u64, pages: &Pages) -> f64 {
        let mut ns = self.caches[0].ns;
        let mut reaching = 1.0_f64;
        for (index, cache) in self.caches.iter().enumerate() {
            let beyond = self
                .caches
                .get(index + 1)
                .map_or(self.memory_ns, |next| next.ns);
            reaching = reaching.min(cache.misses(size, pages));
            ns += reaching * (beyond - cache.ns);
        }
        for (reach, cost) in &self.tlbs {
            if size > *reach {
                ns += cost * (1.0 - *reach as f64 / size as f64);
            }
        }
        ns
    }

    /// The curve from 1 KiB to 1 GiB at `per_octave` points with up to four rounds of
    /// refinement, as the sweep measures it.
    pub(crate) fn curve(
        &self,
        per_octave: u32,
        noise: Noise,
        random: &mut Random,
    ) -> Vec<CurvePoint> {
        let pages = Pages {
            colours: (0..1 << 14).map(|_| random.next() as u32).collect(),
        };
        let mut curve = Vec::new();
        let measure = |size: u64, random: &mut Random| {
            let mut ns = self.ns(size, &pages) * (1.0 + noise.relative * random.normal());
            if random.unit() < noise.outliers {
                ns *= 2.0;
            } else if random.unit() < noise.slow {
                ns *= 1.33;
            }
            let half = 1.96 * noise.relative * (0.7 + 0.6 * random.unit());
            CurvePoint {
                size_bytes: size,
                ns,
                ns_low: ns * (1.0 - half),
                ns_high: ns * (1.0 + half),
            }
        };
        for step in 0..=20 * per_octave {
            let size = 1024.0 * (f64::from(step) / f64::from(per_octave)).exp2();
            curve.push(measure((size / 64.0).round() as u64 * 64, random));
        }
        for _ in 0..4 {
            for size in suggest_refinement(&curve, 12) {
                curve.push(measure(size, random));
            }
        }
        curve
    }
}

impl Cache {
    fn misses(&self, size: u64, pages: &Pages) -> f64 {
        let filled = size as f64 / self.bytes as f64;
        match self.policy {
            Policy::Lru => self.lru(size),
            Policy::AtRandom => at_random(filled),
            Policy::LruColoured => {
                self.coloured(size, pages, |filled| if filled > 1.0 { 1.0 } else { 0.0 })
            }
            Policy::RandomColoured => self.coloured(size, pages, at_random),
            Policy::Ramp(until) => (filled.ln() / until.ln()).clamp(0.0, 1.0),
        }
    }

    /// Lines of a contiguous buffer fill the sets in turn: sets with one line too many miss.
    fn lru(&self, size: u64) -> f64 {
        let sets = self.bytes / 64 / self.ways;
        let lines = size / 64;
        let (whole, rest) = (lines / sets, lines % sets);
        if whole > self.ways || (whole == self.ways && rest == 0) {
            return if whole > self.ways { 1.0 } else { 0.0 };
        }
        if whole == self.ways {
            return (rest * (whole + 1)) as f64 / lines as f64;
        }
        0.0
    }

    /// Every colour holds `ways` pages, and is a cache of its own.
    fn coloured(&self, size: u64, pages: &Pages, misses: impl Fn(f64) -> f64) -> f64 {
        let colours = self.bytes / self.ways / 4096;
        let count = size.div_ceil(4096);
        if count < self.ways {
            return 0.0;
        }
        if count > 16 * self.bytes / 4096 {
            return 1.0;
        }
        let mut loads = vec![0_u64; colours as usize];
        for page in 0..count {
            let drawn = u64::from(pages.colours[page as usize % pages.colours.len()]);
            // Another hash for the pages beyond those drawn.
            let mixed = drawn.wrapping_add(page / pages.colours.len() as u64 * 0x9E37_79B1);
            loads[(mixed % colours) as usize] += 1;
        }
        loads
            .iter()
            .map(|&load| load as f64 * misses(load as f64 / self.ways as f64))
            .sum::<f64>()
            / count as f64
    }
}

/// Steady-state misses of random replacement: 1 − h with h = exp(−(1−h)·S/C).
fn at_random(filled: f64) -> f64 {
    if filled <= 1.0 {
        return 0.0;
    }
    let mut hits = 0.0_f64;
    for _ in 0..200 {
        hits = (-(1.0 - hits) * filled).exp();
    }
    1.0 - hits
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn cache(bytes: u64, ways: u64, ns: f64, policy: Policy) -> Cache {
    Cache {
        bytes,
        ways,
        ns,
        policy,
    }
}

/// The machines of the tests. The sizes of the first two caches are exact; the outermost of
/// those with a ramp ends where the ramp begins.
pub(crate) fn machines() -> Vec<Machine> {
    vec![
        Machine {
            name: "zen5-guest-huge",
            caches: vec![
                cache(48 * K, 12, 0.96, Policy::Lru),
                cache(M, 16, 3.4, Policy::AtRandom),
                cache(11 * M, 16, 13.0, Policy::Ramp(5.0)),
            ],
            memory_ns: 160.0,
            tlbs: vec![],
        },
        Machine {
            name: "zen5-guest-4k",
            caches: vec![
                cache(48 * K, 12, 0.96, Policy::Lru),
                cache(M, 16, 3.4, Policy::RandomColoured),
                cache(11 * M, 16, 13.0, Policy::Ramp(5.0)),
            ],
            memory_ns: 165.0,
            tlbs: vec![(384 * K, 1.7), (16 * M, 20.0)],
        },
        Machine {
            name: "zen5-guest-4k-lru",
            caches: vec![
                cache(48 * K, 12, 0.96, Policy::Lru),
                cache(M, 16, 3.4, Policy::LruColoured),
                cache(11 * M, 16, 13.0, Policy::Ramp(5.0)),
            ],
            memory_ns: 165.0,
            tlbs: vec![(384 * K, 1.7), (16 * M, 20.0)],
        },
        Machine {
            name: "intel-server",
            caches: vec![
                cache(48 * K, 12, 1.4, Policy::Lru),
                cache(2 * M, 16, 4.6, Policy::Lru),
                cache(60 * M, 15, 72.0, Policy::Ramp(2.0)),
            ],
            memory_ns: 130.0,
            tlbs: vec![],
        },
        Machine {
            name: "haswell",
            caches: vec![
                cache(32 * K, 8, 1.54, Policy::Lru),
                cache(256 * K, 8, 4.6, Policy::Lru),
                cache(20 * M, 20, 18.0, Policy::AtRandom),
            ],
            memory_ns: 78.0,
            tlbs: vec![],
        },
        Machine {
            name: "haswell-4k",
            caches: vec![
                cache(32 * K, 8, 1.54, Policy::Lru),
                cache(256 * K, 8, 4.6, Policy::LruColoured),
                cache(20 * M, 20, 18.0, Policy::AtRandom),
            ],
            memory_ns: 78.0,
            tlbs: vec![(256 * K, 2.7), (4 * M, 9.0)],
        },
        Machine {
            name: "power7+",
            caches: vec![
                cache(32 * K, 8, 0.9, Policy::Lru),
                cache(256 * K, 8, 2.4, Policy::Lru),
                cache(10 * M, 8, 7.5, Policy::Ramp(8.0)),
            ],
            memory_ns: 110.0,
            tlbs: vec![],
        },
        Machine {
            name: "apple-like",
            caches: vec![
                cache(128 * K, 8, 0.95, Policy::Lru),
                cache(12 * M, 12, 5.0, Policy::AtRandom),
            ],
            memory_ns: 100.0,
            tlbs: vec![],
        },
        Machine {
            name: "random-l1",
            caches: vec![
                cache(32 * K, 4, 1.3, Policy::AtRandom),
                cache(M, 16, 6.0, Policy::AtRandom),
            ],
            memory_ns: 120.0,
            tlbs: vec![],
        },
    ]
}
