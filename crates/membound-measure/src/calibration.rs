//! `measure calibration`: loads that are known to be served from one level.
//!
//! The latency sampler's patch is calibrated in place: a separate process follows chains through
//! memory of each level with a load that a launcher patches ([`load`] says which), while the
//! launcher collects what the patch records. This module is the process's side: the chains, the
//! loop, and the time of each stretch. It knows nothing of patches.

mod area;
mod follow;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use membound_platform::affinity::Pinned;
use membound_platform::cpu_time;
use membound_types::{Access, Pattern};

pub use area::Area;
pub use follow::{load, time_stamp};

use crate::{Chase, ChaseConfig, Error, Region, RegionConfig, Session, stats};
use area::{LINE_BYTES, MODIFIED_STRIDE_BYTES};
use writer::Writer;

/// Loads between two readings of the clock.
const LOADS_PER_CLOCK_READ: u64 = 16_384;
/// Number of batches for which the chain is timed without the patched load, and the length of one
/// in nanoseconds. Batches are short, so that most lie between two time slices of other threads
/// even on a busy machine. They are spread over the stretch, so that both loops see the same clock:
/// for milliseconds, the clock differs after an idle time or while neighbouring cores work.
const BATCHES: usize = 61;
const BATCH_NS: f64 = 1e5;
/// Maximum length of a stretch on a shared CPU, as a multiple of the requested time.
const MAX_STRETCH_FACTOR: u32 = 6;

/// A stretch of time in which loads were served from one level.
#[derive(Clone, Debug, PartialEq)]
pub struct Stretch {
    /// Name of the level.
    pub name: String,
    /// Latency of the same chain by a loop that is never patched, in nanoseconds.
    pub latency_ns: f64,
    /// Time stamp counter at the beginning.
    pub from_tsc: u64,
    /// Time stamp counter at the end.
    pub to_tsc: u64,
}

/// Time of a locked addition to a line that the innermost cache holds, in nanoseconds.
#[must_use]
pub fn locked_hit_ns(session: &Session<'_>) -> f64 {
    let word = AtomicU64::new(0);
    let additions = LOADS_PER_CLOCK_READ;
    let batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let started = session.clock.now();
            for _ in 0..additions {
                word.fetch_add(1, Ordering::SeqCst);
            }
            let ticks = session.clock.now().saturating_sub(started);
            session.clock.ns(ticks as f64) / additions as f64
        })
        .collect();
    stats::median(&batches).unwrap_or_default()
}

/// Follows a chain through `area` for `time` and returns when, with its unpatched latency.
///
/// # Errors
/// When the memory is not available, or its modifying thread cannot run.
pub fn follow(session: &Session<'_>, area: &Area, time: Duration) -> Result<Stretch, Error> {
    let region = Region::new(
        session,
        RegionConfig {
            bytes: usize::try_from(area.bytes)
                .map_err(|_| Error::Invalid(format!("{} bytes are too many", area.bytes)))?,
            page: area.page,
            node: area.node,
            cpu: session.cpu,
        },
    )?;
    let config = ChaseConfig {
        pattern: Pattern::Random,
        access: Access::Clean,
        stride_bytes: match area.modified_on {
            None => LINE_BYTES,
            Some(_) => MODIFIED_STRIDE_BYTES,
        },
        seed: 0x6361_6c69,
    };
    let _pinned = Pinned::to(session.cpu)?;
    // SAFETY: the region outlives the chase, and while a writer modifies other words of its
    // lines, the chase is not used.
    let mut chase = unsafe { Chase::new(&*session.backend, config, region.start(), region.len())? };
    chase.resize_while(area.bytes, &|| !session.cancelled())?;
    let limit = StretchLimit::of(time);
    match area.modified_on {
        None => Ok(unmodified_stretch(session, area, &mut chase, &limit)),
        Some(cpu) => std::thread::scope(|scope| {
            let mut writer = Writer::start(scope, cpu, region.start(), chase.elements())?;
            let latency_ns = modified_latency(session, &mut chase, &mut writer);
            let from_tsc = time_stamp();
            let start = StretchStart::now();
            while !start.has_reached(&limit) && !session.cancelled() {
                writer.modify();
                follow::walk(region.start(), chase.elements());
            }
            Ok(Stretch {
                name: area.name.clone(),
                latency_ns,
                from_tsc,
                to_tsc: time_stamp(),
            })
        }),
    }
}

fn unmodified_stretch(
    session: &Session<'_>,
    area: &Area,
    chase: &mut Chase,
    limit: &StretchLimit,
) -> Stretch {
    // If the area fits the caches, walk the chain first. A larger area cannot become cached, and a
    // pass over it would take long.
    let fits = area.bytes <= crate::hint::largest_cache_bytes(session);
    if fits {
        chase.walk(2 * chase.elements());
        let elements = chase.elements();
        chase.hand_over(|at| follow::walk(at, elements));
    }
    let mut batches = Vec::with_capacity(BATCHES);
    let from_tsc = time_stamp();
    let start = StretchStart::now();
    for batch in 1..=BATCHES {
        batches.push(batch_ns(session, chase));
        let part = limit.part(batch, BATCHES);
        while !start.has_reached(&part) && !session.cancelled() {
            chase.hand_over(|at| follow::walk(at, LOADS_PER_CLOCK_READ));
        }
    }
    let latency_ns = lower_quartile(batches);
    Stretch {
        name: area.name.clone(),
        latency_ns,
        from_tsc,
        to_tsc: time_stamp(),
    }
}

/// Latency of the chain by the loop that is never patched, for about [`BATCH_NS`].
fn batch_ns(session: &Session<'_>, chase: &mut Chase) -> f64 {
    let probe_ns = chase.probe_ns(&session.clock);
    let iterations = BATCH_NS / probe_ns / chase.loads_per_iteration() as f64;
    let ticks = chase.time(&session.clock, (iterations as u64).max(1));
    session.clock.ns(ticks)
}

/// Latency of lines that the writer modified just before.
fn modified_latency(session: &Session<'_>, chase: &mut Chase, writer: &mut Writer) -> f64 {
    const REPETITIONS: usize = 31;
    let iterations = (chase.elements() / chase.loads_per_iteration()).max(1);
    let batches_ns = (0..REPETITIONS).map(|_| {
        writer.modify();
        session.clock.ns(chase.time(&session.clock, iterations))
    });
    lower_quartile(batches_ns.collect())
}

/// The lower quartile, because perturbation only makes loads slower and the level itself is wanted.
fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}

/// Length of a stretch: CPU time of the thread, and an upper limit of elapsed time in case the CPU
/// is shared.
struct StretchLimit {
    cpu: Duration,
    elapsed: Duration,
}

impl StretchLimit {
    fn of(time: Duration) -> Self {
        Self {
            cpu: time,
            elapsed: time * MAX_STRETCH_FACTOR,
        }
    }

    /// The first `part` of `parts` equal parts.
    fn part(&self, part: usize, parts: usize) -> Self {
        let share = part as f64 / parts as f64;
        Self {
            cpu: self.cpu.mul_f64(share),
            elapsed: self.elapsed.mul_f64(share),
        }
    }
}

/// When a stretch began, in CPU time of the thread and in elapsed time.
struct StretchStart {
    cpu: Duration,
    elapsed: Instant,
}

impl StretchStart {
    fn now() -> Self {
        Self {
            cpu: thread_cpu_time(),
            elapsed: Instant::now(),
        }
    }

    fn has_reached(&self, limit: &StretchLimit) -> bool {
        let own = thread_cpu_time().saturating_sub(self.cpu);
        own >= limit.cpu || self.elapsed.elapsed() >= limit.elapsed
    }
}

/// CPU time of this thread.
fn thread_cpu_time() -> Duration {
    Duration::from_nanos(cpu_time::of_this_thread())
}
