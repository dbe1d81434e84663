//! `measure bandwidth`: bytes per second by kernel, working set and number of threads.
//!
//! Every thread is pinned and cycles through arrays of its own, allocated from its own CPU. Rates
//! are computed over an interval in which all threads run (`timeline`). [`COUNTING`] defines what
//! counts as a byte; which level a working set lies in is left to the caller.

mod team;
mod timeline;

use std::time::{Duration, Instant};

use membound_types::{
    Bandwidth, BandwidthKernel, BandwidthPoint, CpuId, NodePolicy, PageKind, VectorWidth,
};

use crate::arch::StreamLoop;
use crate::sampling::{Slot, run_rounds};
use crate::session::Spread;
use crate::{Effort, Error, Session, hint, room};
use team::{Layout, Member, Work};

/// What counts as a byte, in a sentence for reports.
pub const COUNTING: &str = "a byte is one that the program asked for, and a GB 10⁹ of them: one array \
for read, write and nt-write, two for copy, three for triad; with write-allocate (gb_s_with_allocate) \
the read of each line that a store through the caches causes is counted too, where the working set \
does not fit the level (write twice, copy 3/2, triad 4/3; read and nt-write unchanged)";

/// What to measure: the product of all lists.
#[derive(Clone, Debug)]
pub struct BandwidthConfig {
    /// Kernels to measure.
    pub kernels: Vec<BandwidthKernel>,
    /// Bytes that each thread works on, all arrays together; rounded down so that every
    /// kernel's arrays are whole. `None` for a set inside each of three usual cache levels
    /// and one beyond the declared caches.
    pub sizes: Option<Vec<u64>>,
    /// Numbers of threads that run at the same time, each at least 1.
    pub threads: Vec<u32>,
    /// Page kinds of the arrays.
    pub pages: Vec<PageKind>,
    /// Node policies; `local` is local to each thread.
    pub nodes: Vec<NodePolicy>,
    /// How threads are spread over CPUs.
    pub spread: Spread,
    /// CPUs that threads are pinned to, in this order, regardless of `spread`; `None` for all
    /// usable ones.
    pub cpus: Option<Vec<CpuId>>,
    /// Width of the vectors; `None` for the widest.
    pub vector: Option<VectorWidth>,
    /// Time for each page kind and node policy.
    pub budget: Duration,
}

impl BandwidthConfig {
    /// Every kernel on one to `cpus` threads over `page` pages, with the time that `effort`
    /// allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind, cpus: u32) -> Self {
        Self {
            kernels: BandwidthKernel::ALL.to_vec(),
            sizes: None,
            threads: thread_counts(cpus),
            pages: vec![page],
            nodes: vec![NodePolicy::LOCAL],
            spread: Spread::Cores,
            cpus: None,
            vector: None,
            budget: Duration::from_millis(effort.pick(4_000, 10_000, 40_000)),
        }
    }

    /// Checks that the values are usable and that the machine has the CPUs, the vectors and the
    /// memory.
    ///
    /// # Errors
    /// Those of [`measure`].
    pub fn check(&self, session: &Session<'_>) -> Result<(), Error> {
        Plan::new(session, self).map(drop)
    }

    fn check_values(&self) -> Result<(), Error> {
        if self.kernels.is_empty() || self.threads.is_empty() {
            return Err(Error::Invalid(
                "no kernel or no number of threads was given: give one of each at least".to_owned(),
            ));
        }
        if self.threads.contains(&0) {
            return Err(Error::Invalid(
                "0 threads move nothing: use 1 or more".to_owned(),
            ));
        }
        if self.sizes.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::Invalid(
                "the list of sizes is empty: leave it out for usual ones".to_owned(),
            ));
        }
        Ok(())
    }

    /// The CPUs to which the largest number of threads is pinned.
    fn pinned(&self, session: &Session<'_>) -> Result<Vec<CpuId>, Error> {
        let wanted = self.most_threads();
        match &self.cpus {
            None => session.cpus_for(wanted, self.spread),
            Some(cpus) if cpus.len() >= wanted as usize => Ok(cpus[..wanted as usize].to_vec()),
            Some(cpus) => Err(Error::Invalid(format!(
                "{wanted} threads need as many CPUs: {} were given",
                cpus.len()
            ))),
        }
    }

    fn most_threads(&self) -> u32 {
        self.threads.iter().copied().max().unwrap_or(1)
    }
}

/// One to eight, then powers of two, and the number of CPUs.
fn thread_counts(cpus: u32) -> Vec<u32> {
    let cpus = cpus.max(1);
    let mut counts: Vec<u32> = (1..=cpus)
        .filter(|count| *count <= 8 || count.is_power_of_two() || *count == cpus)
        .collect();
    counts.dedup();
    counts
}

/// Bytes that move per byte of `gb_s` when each store through the caches reads its line first.
#[must_use]
pub const fn allocate_factor(kernel: BandwidthKernel) -> f64 {
    match kernel {
        BandwidthKernel::Read | BandwidthKernel::NtWrite => 1.0,
        BandwidthKernel::Write => 2.0,
        BandwidthKernel::Copy => 3.0 / 2.0,
        BandwidthKernel::Triad => 4.0 / 3.0,
    }
}

/// Identity of a point.
#[derive(Clone, Copy, Debug)]
struct Key {
    threads: u32,
    size_bytes: u64,
    kernel: BandwidthKernel,
}

/// Measures every combination. [`Bandwidth::skipped`] names the combinations that are not
/// available; a cancelled run returns the points that have samples.
///
/// # Errors
/// [`Error::Invalid`] for sets too small for a kernel and vectors that the processor lacks,
/// [`Error::Memory`] for given sizes that do not fit, [`Error::TooManyThreads`]; the reason itself
/// when no combination at all could be measured.
pub fn measure(session: &Session<'_>, config: &BandwidthConfig) -> Result<Bandwidth, Error> {
    let started = Instant::now();
    let (plan, skipped) = Plan::new(session, config)?;
    let mut bandwidth = Bandwidth {
        counting: COUNTING.to_owned(),
        skipped,
        ..Bandwidth::default()
    };
    let mut last_error = None;
    let groups = config.pages.len() * config.nodes.len();
    for (done, (page, node)) in places(config).enumerate() {
        if session.cancelled() {
            break;
        }
        let share = |within: f64| (done as f64 + within) / groups as f64;
        match measure_group(session, config, &plan, (page, node), &share) {
            Ok(group) => {
                bandwidth.points.extend(group.points);
                bandwidth.skipped.extend(group.notes);
            }
            Err(_) if session.cancelled() => break,
            // What was measured before is kept, regardless of the error.
            Err(error) => {
                let reason = format!("{page} pages on node {node}: {error}");
                bandwidth.skipped.push(reason);
                last_error = Some(error);
            }
        }
    }
    bandwidth.elapsed_s = started.elapsed().as_secs_f64();
    match last_error {
        Some(error) if bandwidth.points.is_empty() && !session.cancelled() => Err(error),
        _ => Ok(bandwidth),
    }
}

type Streams = Vec<(BandwidthKernel, Box<dyn StreamLoop>)>;

/// What all page kinds and node policies share.
struct Plan {
    streams: Streams,
    vector: VectorWidth,
    sizes: Vec<u64>,
}

impl Plan {
    /// The plan of `config` for this machine, and the reasons for kernels that are not available.
    fn new(session: &Session<'_>, config: &BandwidthConfig) -> Result<(Self, Vec<String>), Error> {
        config.check_values()?;
        config.pinned(session)?;
        let vector = config
            .vector
            .unwrap_or_else(|| session.backend.widest_vector());
        let (streams, skipped) = streams(session, config, vector)?;
        let plan = Self {
            sizes: sizes(session, config, &streams)?,
            vector,
            streams,
        };
        Ok((plan, skipped))
    }
}

/// The kernels that can be made on this processor, and the reasons why the others cannot.
fn streams(
    session: &Session<'_>,
    config: &BandwidthConfig,
    vector: VectorWidth,
) -> Result<(Streams, Vec<String>), Error> {
    let mut streams = Streams::new();
    let mut skipped = Vec::new();
    let mut last_error = None;
    for &kernel in &config.kernels {
        match session.backend.stream(kernel, vector) {
            Ok(stream) => streams.push((kernel, stream)),
            Err(error) => {
                skipped.push(format!("kernel {kernel}: {error}"));
                last_error = Some(error);
            }
        }
    }
    match last_error {
        Some(error) if streams.is_empty() => Err(error),
        _ => Ok((streams, skipped)),
    }
}

/// Bytes of a thread's working set that exceed every declared cache.
pub(crate) fn beyond_caches_bytes(session: &Session<'_>) -> u64 {
    const MIN_BYTES: u64 = 96 << 20;
    (4 * hint::largest_cache_bytes(session)).max(MIN_BYTES)
}

/// Sizes of the working sets in bytes, each a multiple of whole iterations over one, two and three
/// arrays, so that every kernel works on the same number of bytes.
fn sizes(
    session: &Session<'_>,
    config: &BandwidthConfig,
    streams: &[(BandwidthKernel, Box<dyn StreamLoop>)],
) -> Result<Vec<u64>, Error> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let iteration = streams
        .iter()
        .map(|(_, stream)| stream.bytes_per_iteration() as u64)
        .max()
        .unwrap_or(64);
    let unit = 6 * iteration;
    let mut sizes = match &config.sizes {
        Some(sizes) => sizes.clone(),
        None => {
            let beyond = beyond_caches_bytes(session);
            let each = largest_set_bytes(session, config).max(4 * unit);
            [24 * KIB, 192 * KIB, 3 * MIB, beyond]
                .into_iter()
                .filter(|size| *size <= each)
                .collect()
        }
    };
    for size in &mut sizes {
        if *size < unit {
            return Err(Error::Invalid(format!(
                "a working set of {size} bytes is too small for these kernels: use {unit} or more"
            )));
        }
        *size -= *size % unit;
    }
    sizes.sort_unstable();
    sizes.dedup();
    let largest = sizes.last().copied().unwrap_or(unit);
    let each = usize::try_from(largest).map_or(u64::MAX, |bytes| Layout::room(bytes) as u64);
    let cpus = config.pinned(session)?;
    for place in places(config).filter(|(page, _)| !room::is_pool(*page)) {
        let available = room::obtainable_each(session, place, &cpus);
        if each > available {
            return Err(Error::Memory {
                needed_bytes: each.saturating_mul(cpus.len() as u64),
                available_bytes: available.saturating_mul(cpus.len() as u64),
            });
        }
    }
    Ok(sizes)
}

fn places(config: &BandwidthConfig) -> impl Iterator<Item = (PageKind, NodePolicy)> {
    let nodes = &config.nodes;
    let pages = config.pages.iter();
    pages.flat_map(move |page| nodes.iter().map(move |node| (*page, *node)))
}

/// The largest working set, in bytes per thread, with which the largest number of threads of
/// `config` leaves a quarter of the memory to other programs. Page kinds that are not available at
/// all are ignored.
#[must_use]
pub fn largest_set_bytes(session: &Session<'_>, config: &BandwidthConfig) -> u64 {
    let Ok(cpus) = config.pinned(session) else {
        return 0;
    };
    places(config)
        .map(|place| room::share_each(session, place, &cpus))
        .filter(|each| *each > 0)
        .min()
        .unwrap_or(0)
        .saturating_sub(Layout::room(0) as u64)
}

/// The points of one page kind and node policy, with notes on its memory and on missing points.
struct Group {
    points: Vec<BandwidthPoint>,
    notes: Vec<String>,
}

fn measure_group(
    session: &Session<'_>,
    config: &BandwidthConfig,
    plan: &Plan,
    (page, node): (PageKind, NodePolicy),
    share: &dyn Fn(f64) -> f64,
) -> Result<Group, Error> {
    let name = format!("bandwidth: {page} pages on node {node}");
    session.progress.at(share(0.0), &name);
    let largest = plan.sizes.last().copied().unwrap_or(0) as usize;
    let members = config
        .pinned(session)?
        .into_iter()
        .map(|cpu| Member::new(session, cpu, page, node, largest))
        .collect::<Result<Vec<_>, _>>()?;
    let mut slots = Vec::new();
    for &threads in &config.threads {
        for &size_bytes in &plan.sizes {
            slots.extend(plan.streams.iter().map(|(kernel, _)| {
                Slot::rate(Key {
                    threads,
                    size_bytes,
                    kernel: *kernel,
                })
            }));
        }
    }
    let batch_ns = session.effort.pick(1.5e6, 2e6, 4e6);
    run_rounds(
        session,
        config.budget,
        &mut slots,
        |key, progress| {
            session.progress.at(share(progress.done), &name);
            let (kernel, stream) = plan
                .streams
                .iter()
                .find(|(kernel, _)| *kernel == key.kernel)
                .expect("slots are made of these kernels");
            let work = Work {
                kernel: *kernel,
                stream: &**stream,
                size_bytes: key.size_bytes as usize,
            };
            let members = &members[..key.threads as usize];
            Ok(vec![team::visit(session, members, work, batch_ns)?])
        },
        |_, _| (),
    )?;
    let mut points: Vec<BandwidthPoint> = slots
        .iter()
        .filter_map(|slot| point(session, slot, plan.vector, page, node))
        .collect();
    points.sort_by_key(|point| (point.kernel as u8, point.threads, point.size_bytes));
    let mut notes: Vec<String> = members
        .iter()
        .find_map(Member::partial_page_share)
        .map(|share| format!("only {:.0} % of the memory has {page} pages", share * 100.0))
        .into_iter()
        .collect();
    if !session.cancelled() {
        notes.extend(slots.iter().filter_map(|slot| unsampled(session, slot)));
    }
    Ok(Group { points, notes })
}

/// Why a point is missing: its threads never ran side by side for long enough.
fn unsampled(session: &Session<'_>, slot: &Slot<Key>) -> Option<String> {
    let Key {
        threads,
        size_bytes,
        kernel,
    } = slot.key;
    slot.sampled(session).is_none().then(|| {
        format!(
            "{kernel} of {size_bytes} bytes by {threads} threads: they were never seen running \
             side by side, the machine is too busy"
        )
    })
}

fn point(
    session: &Session<'_>,
    slot: &Slot<Key>,
    vector: VectorWidth,
    page: PageKind,
    node: NodePolicy,
) -> Option<BandwidthPoint> {
    let sampled = slot.sampled(session)?;
    let Key {
        threads,
        size_bytes,
        kernel,
    } = slot.key;
    Some(BandwidthPoint {
        kernel,
        vector,
        size_bytes,
        level: None,
        threads,
        page,
        node,
        gb_s: sampled.summary.median,
        gb_s_low: sampled.summary.low,
        gb_s_high: sampled.summary.high,
        gb_s_with_allocate: sampled.summary.median * allocate_factor(kernel),
        batches: sampled.samples,
    })
}

#[cfg(test)]
mod tests;
