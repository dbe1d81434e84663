//! A machine's caches and memory, as far as traffic depends on them.

use membound_model::stall::Served;
use membound_model::traffic::Capacity;
use membound_types::{BandwidthPoint, Level, LevelKind, MachineProfile, Outcome};

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
