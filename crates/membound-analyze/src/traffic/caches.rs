//! A machine's caches and memory, as far as traffic depends on them.

use membound_model::stall::Served;
use membound_model::traffic::Capacity;
use membound_types::{BandwidthKernel, BandwidthPoint, Level, LevelKind, MachineProfile, Outcome};

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cache {
    pub served: Served,
    /// Effective size; the ends of its interval.
    pub low_bytes: f64,
    pub high_bytes: f64,
    pub latency_ns: f64,
    /// CPUs that share it, at least 1.
    pub sharers: u32,
}

/// The caches of a machine, innermost first, and its memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caches {
    pub line_bytes: u64,
    pub caches: Vec<Cache>,
    pub memory_ns: f64,
    /// Bytes that memory was measured to move in a nanosecond, all CPUs together.
    pub most_gb_s: Outcome<f64>,
    /// Measured traffic of memory by mix.
    mixes: Vec<Mix>,
}

/// Traffic of memory that a kernel of the machine profile reached.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mix {
    /// Share of the bytes moved that were written to memory.
    written: f64,
    threads: u32,
    gb_s: f64,
}

impl Caches {
    /// Those of `profile`; `None` where it found no levels.
    pub(crate) fn new(profile: &MachineProfile) -> Option<Self> {
        let memory = profile.levels.iter().find(|level| is_memory(level))?;
        let caches: Vec<Cache> = profile
            .levels
            .iter()
            .filter(|level| level.kind == LevelKind::Cache)
            .filter_map(|level| cache(profile, level))
            .collect();
        if caches.is_empty() {
            return None;
        }
        let line = profile.line.known().map(|line| line.bytes);
        let of_level = || profile.levels.iter().find_map(|level| level.line_bytes);
        let line_bytes = line
            .or_else(of_level)
            .filter(|bytes| bytes.is_power_of_two())?;
        Some(Self {
            line_bytes: u64::from(line_bytes),
            caches,
            memory_ns: memory.latency_ns,
            most_gb_s: most(profile),
            mixes: mixes(profile),
        })
    }

    /// The size of the cache at `index` in lines, for one of `busy` threads.
    pub(crate) fn capacity(&self, index: usize, busy: f64) -> Capacity {
        let cache = &self.caches[index];
        let lines = self.line_bytes as f64 * busy.clamp(1.0, f64::from(cache.sharers));
        Capacity {
            low: cache.low_bytes / lines,
            high: cache.high_bytes / lines,
        }
    }

    /// The most that so many threads at once were measured to move of a mix of which `written` is
    /// the share of bytes written, 0 to 1. Between kernels' mixes it is taken to lie on the line
    /// through both; all kernels' together would be a limit that no program of another mix
    /// reaches.
    pub(crate) fn most_of(&self, written: f64, threads: f64) -> Outcome<f64> {
        let counts = self.mixes.iter().map(|mix| mix.threads);
        let wanted = threads.round().max(1.0) as u32;
        let enough = counts.clone().filter(|&count| count >= wanted).min();
        let Some(threads) = enough.or_else(|| counts.max()) else {
            return self.most_gb_s.clone();
        };
        let mut best: Vec<(f64, f64)> = Vec::new();
        for mix in self.mixes.iter().filter(|mix| mix.threads == threads) {
            match best.iter_mut().find(|known| known.0 == mix.written) {
                Some(known) => known.1 = known.1.max(mix.gb_s),
                None => best.push((mix.written, mix.gb_s)),
            }
        }
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        let after = best.partition_point(|mix| mix.0 <= written);
        let below = after.checked_sub(1).map(|at| best[at]);
        match (below, best.get(after).copied()) {
            (Some(below), Some(above)) => {
                let along = (written - below.0) / (above.0 - below.0);
                Outcome::Known(along.mul_add(above.1 - below.1, below.1))
            }
            (Some(only), None) | (None, Some(only)) => Outcome::Known(only.1),
            (None, None) => self.most_gb_s.clone(),
        }
    }

    /// The same machine with each cache at this point between both ends of its interval.
    pub(crate) fn at(&self, along: f64) -> Self {
        let mut machine = self.clone();
        for cache in &mut machine.caches {
            let bytes = along.mul_add(cache.high_bytes - cache.low_bytes, cache.low_bytes);
            (cache.low_bytes, cache.high_bytes) = (bytes, bytes);
        }
        machine
    }

    /// Where lines come from that are in none of the first `level` caches, and how long that
    /// takes beyond a hit in the innermost.
    pub(crate) fn level(&self, level: usize) -> (Served, f64) {
        let innermost = self.caches[0].latency_ns;
        self.caches.get(level).map_or(
            (Served::Dram, (self.memory_ns - innermost).max(0.0)),
            |cache| (cache.served, (cache.latency_ns - innermost).max(0.0)),
        )
    }
}

fn is_memory(level: &Level) -> bool {
    level.kind == LevelKind::Memory
}

fn cache(profile: &MachineProfile, level: &Level) -> Option<Cache> {
    let bytes = level.size_bytes? as f64;
    let number = level.name.strip_prefix('L').and_then(|it| it.parse().ok());
    let sharers = profile
        .machine
        .caches
        .iter()
        .filter(|cache| Some(cache.level) == number)
        .map(|cache| cache.shared_by.len())
        .max();
    Some(Cache {
        served: Served::of(&level.name),
        low_bytes: level.size_low_bytes.map_or(bytes, |low| low as f64),
        high_bytes: level.size_high_bytes.map_or(bytes, |high| high as f64),
        latency_ns: level.latency_ns,
        sharers: sharers.unwrap_or(1).max(1) as u32,
    })
}

/// The most that memory was measured to move, lines that are read before they are written
/// counted too.
fn most(profile: &MachineProfile) -> Outcome<f64> {
    let Some(bandwidth) = profile.bandwidth.known() else {
        return Outcome::missing_with(
            "the machine profile has no bandwidth",
            "run `membound measure bandwidth`",
        );
    };
    let of_memory = |point: &&BandwidthPoint| match &point.level {
        Some(name) => Served::of(name) == Served::Dram,
        None => profile.levels.is_empty(),
    };
    bandwidth
        .points
        .iter()
        .filter(of_memory)
        .map(|point| point.gb_s_with_allocate.max(point.gb_s))
        .reduce(f64::max)
        .map_or_else(
            || Outcome::missing("no bandwidth of memory was measured"),
            Outcome::Known,
        )
}

/// What each kernel moved between caches and memory: a store through the caches reads its line
/// first.
fn mixes(profile: &MachineProfile) -> Vec<Mix> {
    let Some(bandwidth) = profile.bandwidth.known() else {
        return Vec::new();
    };
    let of_memory = |point: &&BandwidthPoint| match &point.level {
        Some(name) => Served::of(name) == Served::Dram,
        None => profile.levels.is_empty(),
    };
    let mix = |point: &BandwidthPoint| Mix {
        written: match point.kernel {
            BandwidthKernel::Read => 0.0,
            BandwidthKernel::Triad => 1.0 / 4.0,
            BandwidthKernel::Copy => 1.0 / 3.0,
            BandwidthKernel::Write => 1.0 / 2.0,
            BandwidthKernel::NtWrite => 1.0,
        },
        threads: point.threads,
        gb_s: point.gb_s_with_allocate.max(point.gb_s),
    };
    let points = bandwidth.points.iter();
    points.filter(of_memory).map(mix).collect()
}
