//! Figures that the analysis takes from a machine profile.

use std::collections::BTreeMap;

use membound_model::stall::{Costs, Mixer, Served};
use membound_run::{RunData, ThreadId};
use membound_types::{
    BandwidthKernel, CalibratedLevel, Calibration, LevelKind, MachineProfile, Outcome,
};

use crate::info;

/// Cache-line size if no machine profile gives one: that of every x86-64 processor, the only architecture
/// whose programs are recorded.
const ASSUMED_LINE_BYTES: u32 = 64;

/// Length of the stretches of time in which threads that alternate count as running at once.
const CONCURRENCY_STRETCH_NS: u64 = 20_000_000;

/// Share of the sampled time in which threads must run at once before lines can come from other cores'
/// caches. A thread that starts another and waits for it stays below.
const MIN_CONCURRENT_TIME_SHARE: f64 = 0.05;

/// Figures that the analysis takes from a machine profile, with defaults where there is none.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub profile: Option<&'a MachineProfile>,
    /// Splits latencies into levels; or the reason why it cannot.
    pub mixer: Result<Mixer, String>,
    pub costs: Costs,
    pub line_bytes: u32,
    /// Average ticks of a timed hit in the innermost cache.
    pub l1_ticks: Option<f64>,
    /// Average ticks of the reference hit timed just before an access, and of the time until earlier stores
    /// drained, both as calibrated with hits only.
    pub usual_hit_ticks: Option<f64>,
    pub usual_drain_ticks: Option<f64>,
    /// Resolution of the timer: all its intervals are multiples of this many ticks.
    pub tick_step: u32,
    pub tick_hz: f64,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(run: &RunData, profile: Option<&'a MachineProfile>) -> Self {
        let calibration = profile.map(|profile| &profile.calibration);
        let mixer = match calibration {
            None => Err("the run holds no machine profile".to_owned()),
            Some(Outcome::Missing { not_measured }) => Err(format!(
                "the machine profile has no calibration: {}",
                not_measured.reason
            )),
            Some(Outcome::Known(calibration)) => {
                let patch = &run.meta.patch;
                let patch = if patch.is_empty() {
                    &calibration.patch
                } else {
                    patch
                };
                Mixer::new(&possible(calibration, run), patch).map_err(|error| error.to_string())
            }
        };
        let calibration = calibration.and_then(Outcome::known);
        let l1 = calibration.and_then(innermost);
        let tick_hz = calibration
            .map(|calibration| calibration.tick_hz)
            .filter(|&hz| hz > 0.0)
            .unwrap_or(run.meta.tsc_hz);
        Self {
            profile,
            costs: Costs {
                l1_ns: match &mixer {
                    Ok(mixer) => mixer.l1_ns(),
                    Err(_) => profile.and_then(l1_latency_ns).unwrap_or(0.0),
                },
                locked_ns: calibration.and_then(|it| it.locked_ns).unwrap_or(0.0),
                core_hz: profile.map_or(0.0, core_hz),
                // Between threads, a slow access may wait for another core's cache.
                last_cache_ns: profile
                    .filter(|_| info::threads(run) == 1)
                    .and_then(last_cache_latency_ns)
                    .unwrap_or(0.0),
            },
            line_bytes: profile.and_then(line_bytes).unwrap_or(ASSUMED_LINE_BYTES),
            l1_ticks: l1.and_then(mean_ticks),
            usual_hit_ticks: l1.and_then(|level| level.hit_ticks),
            usual_drain_ticks: l1.and_then(|level| level.drain_ticks),
            tick_step: mixer.as_ref().map_or(1, Mixer::tick_step),
            tick_hz,
            mixer,
        }
    }

    /// Latency of a hit in the innermost cache in nanoseconds, if known.
    pub(crate) fn l1_ns(&self) -> Option<f64> {
        Some(self.costs.l1_ns).filter(|&ns| ns > 0.0)
    }

    /// Converts nanoseconds to core clock cycles; `None` if the clock is unknown.
    pub(crate) fn cycles(&self, ns: f64) -> Option<f64> {
        (self.costs.core_hz > 0.0).then_some(ns * 1e-9 * self.costs.core_hz)
    }

    /// Converts ticks to nanoseconds; 0 if the timer's frequency is unknown.
    pub(crate) fn ticks_ns(&self, ticks: f64) -> f64 {
        if self.tick_hz > 0.0 {
            ticks / self.tick_hz * 1e9
        } else {
            0.0
        }
    }

    /// Ticks by which earlier stores took longer to drain than usual.
    pub(crate) fn drain_beyond(&self, drain: Option<u32>) -> f64 {
        match (drain, self.usual_drain_ticks) {
            (Some(drain), Some(usual)) => f64::from(drain) - usual,
            _ => 0.0,
        }
    }

    /// Latency in nanoseconds of accesses that took `ticks` on average; `None` without calibration. No
    /// access is served sooner than a hit, so fewer ticks than a hit's mean a hit that was cheaper to time.
    pub(crate) fn latency_of(&self, ticks: f64) -> Option<f64> {
        let beyond = self.ticks_ns(ticks - self.l1_ticks?);
        Some(self.l1_ns()? + beyond.max(0.0))
    }

    /// Latency in nanoseconds of the level `served`, if the profile has it.
    pub(crate) fn latency_ns(&self, served: Served) -> Option<f64> {
        let profile = self.profile?;
        let calibrated = profile.calibration.known().and_then(|calibration| {
            calibration
                .levels
                .iter()
                .filter(|level| Served::of(&level.name) == served)
                .map(|level| level.latency_ns)
                .reduce(f64::max)
        });
        calibrated.or_else(|| {
            profile
                .levels
                .iter()
                .find(|level| Served::of(&level.name) == served)
                .map(|level| level.latency_ns)
        })
    }

    /// Innermost level that holds `bytes`.
    pub(crate) fn level_of(&self, bytes: u64) -> Option<Served> {
        let levels = &self.profile?.levels;
        levels
            .iter()
            .find(|level| level.size_bytes.is_none_or(|size| bytes <= size))
            .map(|level| Served::of(&level.name))
    }

    /// Shortest time in nanoseconds that one of `threads` threads needs per line read from `served`, from
    /// the highest bandwidth measured on the machine.
    pub(crate) fn line_ns(&self, served: Served, threads: u32) -> Option<f64> {
        let profile = self.profile?;
        let points = &profile.bandwidth.known()?.points;
        let level = profile
            .levels
            .iter()
            .find(|level| Served::of(&level.name) == served)?;
        let is_of_level = |point: &&membound_types::BandwidthPoint| match &point.level {
            Some(name) => Served::of(name) == served,
            None => level.kind == LevelKind::Memory && level.size_bytes.is_none(),
        };
        let best = |threads: u32| {
            points
                .iter()
                .filter(|point| point.kernel == BandwidthKernel::Read && point.threads == threads)
                .filter(is_of_level)
                .map(|point| point.gb_s)
                .reduce(f64::max)
        };
        let alone = best(1);
        let most = points.iter().map(|point| point.threads).max()?;
        let together = best(threads.clamp(1, most)).or_else(|| best(most));
        let shared = together.map(|gb_s| gb_s / f64::from(threads.clamp(1, most)));
        // Bytes ÷ (10⁹ bytes a second) are nanoseconds.
        let rate = match (alone, shared) {
            (Some(alone), Some(shared)) => alone.min(shared),
            (alone, shared) => alone.or(shared)?,
        };
        (rate > 0.0).then(|| f64::from(self.line_bytes) / rate)
    }
}

fn l1_latency_ns(profile: &MachineProfile) -> Option<f64> {
    profile.levels.first().map(|level| level.latency_ns)
}

fn last_cache_latency_ns(profile: &MachineProfile) -> Option<f64> {
    let mut levels = profile.levels.iter();
    levels
        .rfind(|level| level.kind == LevelKind::Cache)
        .map(|level| level.latency_ns)
}

/// Core clock in Hz, 0 if the profile lacks it.
pub(crate) fn core_hz(profile: &MachineProfile) -> f64 {
    profile
        .core_clock_hz
        .map_or(profile.machine.timer.core_clock_hz, |clock| clock.value)
}

fn line_bytes(profile: &MachineProfile) -> Option<u32> {
    let found = profile.line.known().map(|line| line.bytes);
    let of_level = || profile.levels.first().and_then(|level| level.line_bytes);
    found
        .or_else(of_level)
        .filter(|&bytes| bytes.is_power_of_two())
}

fn innermost(calibration: &Calibration) -> Option<&CalibratedLevel> {
    let mut levels = calibration.levels.iter();
    levels.find(|level| Served::of(&level.name) == Served::L1)
}

fn mean_ticks(level: &CalibratedLevel) -> Option<f64> {
    let (sum, count) = level.ticks.iter().fold((0.0, 0.0), |(sum, count), bin| {
        let of_bin = bin.count as f64;
        (f64::from(bin.ticks).mul_add(of_bin, sum), count + of_bin)
    });
    (count > 0.0).then(|| sum / count)
}
/// The levels of `calibration` that can have served loads of `run`. If threads never ran at once, no other
/// core's cache held what they loaded.
fn possible(calibration: &Calibration, run: &RunData) -> Calibration {
    let mut calibration = calibration.clone();
    if run.meta.nodes <= 1 && !threads_ran_concurrently(run) {
        calibration
            .levels
            .retain(|level| Served::of(&level.name) != Served::Remote);
    }
    calibration
}

/// True if threads of the program ran at the same time for more than a moment.
fn threads_ran_concurrently(run: &RunData) -> bool {
    /// Samples of one stretch of time.
    struct Stretch {
        last: ThreadId,
        changes: u32,
        weight_ns: f64,
    }
    /// Threads that run at once are sampled alternately. When one thread hands over to another, as a
    /// process that waits for its child does, the sampled thread changes only once.
    const MIN_CONCURRENT_CHANGES: u32 = 2;
    let mut samples: Vec<_> = run
        .samples
        .iter()
        .filter(|sample| !info::is_own(run, run.stacks[sample.stack.index()].frame))
        .collect();
    samples.sort_by_key(|sample| sample.t_ns);
    let mut stretches: BTreeMap<u64, Stretch> = BTreeMap::new();
    for sample in samples {
        let stretch = stretches
            .entry(sample.t_ns / CONCURRENCY_STRETCH_NS)
            .or_insert(Stretch {
                last: sample.thread,
                changes: 0,
                weight_ns: 0.0,
            });
        stretch.changes += u32::from(stretch.last != sample.thread);
        stretch.last = sample.thread;
        stretch.weight_ns += sample.weight_ns as f64;
    }
    let sum = |which: fn(&Stretch) -> bool| -> f64 {
        let chosen = stretches.values().filter(|stretch| which(stretch));
        chosen.map(|stretch| stretch.weight_ns).sum()
    };
    sum(|stretch| stretch.changes >= MIN_CONCURRENT_CHANGES)
        > MIN_CONCURRENT_TIME_SHARE * sum(|_| true)
}
