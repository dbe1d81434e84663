//! Caches and memory of a machine, reduced to the properties that traffic depends on.

use membound_model::stall::Served;
use membound_model::traffic::Capacity;
use membound_types::{
    BandwidthKernel, BandwidthPoint, Level, LevelKind, MachineProfile, NodeId, Outcome,
};

use super::node_or_link::NodeOrLink;

/// One cache level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cache {
    pub served: Served,
    /// Effective size in bytes: lower and upper end of its interval.
    pub low_bytes: f64,
    pub high_bytes: f64,
    pub latency_ns: f64,
    /// CPUs that share the cache, at least 1.
    pub sharers: u32,
}

/// Caches of a machine, innermost first, and its memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caches {
    pub line_bytes: u64,
    pub caches: Vec<Cache>,
    pub memory_ns: f64,
    /// Highest measured bandwidth of memory with all CPUs, in GB/s (bytes per nanosecond).
    pub most_gb_s: Outcome<f64>,
    /// Measured memory bandwidth by mix of reads and writes.
    mixes: Vec<Mix>,
    /// The same for one node's CPUs with one node's memory: node of the CPUs, node of the memory, mixes.
    of_pairs: Vec<(u16, u16, Vec<Mix>)>,
}

/// Memory bandwidth that one kernel of the machine profile reached.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mix {
    /// Share of the moved bytes that were written to memory.
    written: f64,
    threads: u32,
    gb_s: f64,
}

/// Which values of the machine profile's intervals are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    /// Measured latencies and bandwidths, and both ends of the caches' sizes.
    Measured,
    /// The end of each interval with which programs are fastest.
    Fastest,
    /// The end of each interval with which programs are slowest.
    Slowest,
}

impl Within {
    fn of(self, measured: f64, fastest: f64, slowest: f64) -> f64 {
        match self {
            Self::Measured => measured,
            Self::Fastest => fastest,
            Self::Slowest => slowest,
        }
    }

    fn latency_ns(self, level: &Level) -> f64 {
        self.of(
            level.latency_ns,
            level.latency_low_ns,
            level.latency_high_ns,
        )
    }
}

impl Caches {
    /// Reads the caches of `profile`; `None` if it has no levels.
    pub(crate) fn new(profile: &MachineProfile) -> Option<Self> {
        Self::within(profile, Within::Measured)
    }

    /// Reads the caches of `profile` with the given values of its intervals; `None` if it has no levels.
    pub(crate) fn within(profile: &MachineProfile, within: Within) -> Option<Self> {
        let memory = profile.levels.iter().find(|level| is_memory(level))?;
        let caches: Vec<Cache> = profile
            .levels
            .iter()
            .filter(|level| level.kind == LevelKind::Cache)
            .filter_map(|level| cache(profile, level, within))
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
            memory_ns: within.latency_ns(memory),
            most_gb_s: most(profile),
            mixes: mixes(profile, within),
            of_pairs: of_pairs(profile),
        })
    }

    /// Size in lines of the cache at `index`, as one of `busy` threads has it.
    pub(crate) fn capacity(&self, index: usize, busy: f64) -> Capacity {
        let cache = &self.caches[index];
        let lines = self.line_bytes as f64 * busy.clamp(1.0, f64::from(cache.sharers));
        Capacity {
            low: cache.low_bytes / lines,
            high: cache.high_bytes / lines,
        }
    }

    /// Highest measured bandwidth in GB/s of `threads` threads with a mix of which the share `written` (0
    /// to 1) is written.
    ///
    /// Between the mixes of two kernels it is what a program reaches that runs the two in turn, so that the
    /// value can be reached.
    pub(crate) fn most_of(&self, written: f64, threads: f64) -> Outcome<f64> {
        let counts = self.mixes.iter().map(|mix| mix.threads);
        let rounded_threads = threads.round().max(1.0) as u32;
        let at_least = counts
            .clone()
            .filter(|&count| count >= rounded_threads)
            .min();
        let Some(threads) = at_least.or_else(|| counts.max()) else {
            return self.most_gb_s.clone();
        };
        let of_threads = self.mixes.iter().filter(|mix| mix.threads == threads);
        between(of_threads, written).map_or_else(|| self.most_gb_s.clone(), Outcome::Known)
    }

    /// Highest measured bandwidth of one place in a machine with several nodes.
    ///
    /// For memory: of its own node's CPUs with the same mix. For a link: of any kernel in that direction,
    /// either reads by the destination's CPUs or writes by the source's.
    pub(crate) fn most_at(&self, place: NodeOrLink, written: f64) -> Outcome<f64> {
        let of_pair = |cpus: u16, memory: u16| {
            let pairs = self.of_pairs.iter();
            let pairs = pairs.filter(move |pair| (pair.0, pair.1) == (cpus, memory));
            pairs.flat_map(|pair| &pair.2)
        };
        let most = match place {
            NodeOrLink::Dram(node) => between(of_pair(node, node), written),
            NodeOrLink::Link { from, to } => {
                let read = of_pair(to, from).map(|mix| (1.0 - mix.written) * mix.gb_s);
                let written = of_pair(from, to).map(|mix| mix.written * mix.gb_s);
                read.chain(written).reduce(f64::max)
            }
        };
        most.map_or_else(
            || {
                Outcome::missing_with(
                    "the machine profile has no bandwidth from node to node",
                    "run `membound measure numa`, or `membound measure`, on this machine",
                )
            },
            Outcome::Known,
        )
    }

    /// Level that serves lines that none of the first `level` caches holds, and its latency in nanoseconds
    /// beyond a hit in the innermost.
    pub(crate) fn level(&self, level: usize) -> (Served, f64) {
        let innermost = self.caches[0].latency_ns;
        self.caches.get(level).map_or(
            (Served::Dram, (self.memory_ns - innermost).max(0.0)),
            |cache| (cache.served, (cache.latency_ns - innermost).max(0.0)),
        )
    }
}

/// Bandwidth for a mix: the best kernel's with this mix, else the two nearest kernels' in turn,
/// each for its share of the bytes. A mix outside of all kernels' range gets the value of the nearest.
fn between<'a>(mixes: impl Iterator<Item = &'a Mix>, written: f64) -> Option<f64> {
    let mut best: Vec<(f64, f64)> = Vec::new();
    for mix in mixes.filter(|mix| mix.gb_s > 0.0) {
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
            // Each kernel's bytes take that kernel's time: interpolate the time per byte.
            let share = (written - below.0) / (above.0 - below.0);
            Some(((1.0 - share) / below.1 + share / above.1).recip())
        }
        (Some(only), None) | (None, Some(only)) => Some(only.1),
        (None, None) => None,
    }
}

fn is_memory(level: &Level) -> bool {
    level.kind == LevelKind::Memory
}

fn cache(profile: &MachineProfile, level: &Level, within: Within) -> Option<Cache> {
    let bytes = level.size_bytes? as f64;
    let low = level.size_low_bytes.map_or(bytes, |low| low as f64);
    let high = level.size_high_bytes.map_or(bytes, |high| high as f64);
    let number = level.name.strip_prefix('L').and_then(|it| it.parse().ok());
    let sharers = profile
        .machine
        .caches
        .iter()
        .filter(|cache| Some(cache.level) == number)
        .map(|cache| cache.shared_by.len())
        .max();
    // Neighbours may have had the rest of a shared cache when the machine was measured.
    let largest = level
        .declared_bytes
        .map_or(high, |all| high.max(all as f64));
    Some(Cache {
        served: Served::of(&level.name),
        low_bytes: within.of(low, largest, low),
        high_bytes: within.of(high, largest, low),
        latency_ns: within.latency_ns(level),
        sharers: sharers.unwrap_or(1).max(1) as u32,
    })
}

/// Highest measured bandwidth of memory, including lines that are read before they are written.
fn most(profile: &MachineProfile) -> Outcome<f64> {
    if profile.bandwidth.known().is_none() {
        return Outcome::missing_with(
            "the machine profile has no bandwidth",
            "run `membound measure bandwidth`",
        );
    }
    let mixes = mixes(profile, Within::Measured);
    let most = mixes.iter().map(|mix| mix.gb_s).reduce(f64::max);
    most.map_or_else(
        || Outcome::missing("no bandwidth of memory was measured"),
        Outcome::Known,
    )
}

/// Mix and bandwidth of each kernel between caches and memory: a store through the caches reads its line
/// first.
fn mixes(profile: &MachineProfile, within: Within) -> Vec<Mix> {
    let Some(bandwidth) = profile.bandwidth.known() else {
        return Vec::new();
    };
    let of_memory = |point: &&BandwidthPoint| match &point.level {
        Some(name) => Served::of(name) == Served::Dram,
        None => profile.levels.is_empty(),
    };
    let points = bandwidth.points.iter();
    points
        .filter(of_memory)
        .map(|point| mix(point, within))
        .collect()
}

/// Mix and bandwidth of one point of the profile.
fn mix(point: &BandwidthPoint, within: Within) -> Mix {
    let gb_s = point.gb_s_with_allocate.max(point.gb_s);
    let ends = [point.gb_s_high, point.gb_s_low];
    // The ends of the interval are of the program's own bytes.
    let [fastest, slowest] = ends.map(|end| gb_s * end / point.gb_s.max(f64::MIN_POSITIVE));
    Mix {
        written: match point.kernel {
            BandwidthKernel::Read => 0.0,
            BandwidthKernel::Triad => 1.0 / 4.0,
            BandwidthKernel::Copy => 1.0 / 3.0,
            BandwidthKernel::Write => 1.0 / 2.0,
            BandwidthKernel::NtWrite => 1.0,
        },
        threads: point.threads,
        gb_s: within.of(gb_s, fastest, slowest),
    }
}

/// Mixes that CPUs of each node reached with each node's memory.
fn of_pairs(profile: &MachineProfile) -> Vec<(u16, u16, Vec<Mix>)> {
    let pairs = profile.numa.known().into_iter().flat_map(|it| &it.pairs);
    pairs
        .filter_map(|pair| {
            let node = |id: NodeId| u16::try_from(id.0).ok();
            let mixes = pair.rates.iter();
            let mixes = mixes.map(|point| mix(point, Within::Measured)).collect();
            Some((node(pair.cpu_node)?, node(pair.memory_node)?, mixes))
        })
        .collect()
}
