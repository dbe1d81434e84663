//! `measure window`: Seidl's program, random aligned windows in areas of growing size.
//!
//! From an area whose doubles are all 1.0, aligned windows are drawn at random and every
//! double in them changes its sign; the figure is the thread's user and system time per
//! window. (S. Seidl, Access Delays Related to the Main Memory Hierarchy on SGI
//! Origin2000, 1997, sections 1 and 2.) All areas begin at the start of one region, so
//! that they are initialised once; sizes are visited in rounds, the windows and kernels of
//! one area one after the other, because they find the caches in the same state. In the
//! second mode another thread, pinned elsewhere, allocates and initialises the region, and
//! the measuring thread only accesses it. Nothing is modelled here.

mod cpu_time;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use membound_platform::affinity::{self, Pinned};
use membound_types::{CpuId, NodeId, NodePolicy, PageKind, Window, WindowKernel, WindowPoint};

use crate::arch::WindowLoop;
use crate::ones::region_of_ones;
use crate::sampling::{Slot, Visit, VisitProgress, run_rounds, take_batches};
use crate::{Effort, Error, Region, RegionConfig, Session, hint, room};
use cpu_time::CpuTime;

/// What to measure: every kernel with every window in every area.
#[derive(Clone, Debug)]
pub struct WindowConfig {
    /// Window sizes in bytes, multiples of 64.
    pub windows: Vec<u64>,
    /// Area sizes in bytes, each rounded down to whole windows; `None` for half-octaves
    /// from 16 KiB on up to [`WindowConfig::max_bytes`] or what is free.
    pub areas: Option<Vec<u64>>,
    /// Largest area of the half-octaves in bytes.
    pub max_bytes: u64,
    /// What is done with a window.
    pub kernels: Vec<WindowKernel>,
    /// Page kind of the areas.
    pub page: PageKind,
    /// NUMA policy of the areas, seen from the CPU that initialises.
    pub node: NodePolicy,
    /// CPU whose thread allocates and initialises; `None` for the measuring one.
    pub init_cpu: Option<CpuId>,
    /// Node whose first usable CPU allocates and initialises, where `init_cpu` names none.
    pub init_node: Option<NodeId>,
    /// Time for the sampling; initialising the memory comes on top.
    pub budget: Duration,
}

impl WindowConfig {
    /// The document's windows and areas with the time that `effort` allows. Its largest
    /// areas (all free memory) are left to thorough runs, because touching memory for the
    /// first time takes up to two seconds a GiB in a virtual machine.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        use WindowKernel::{Scalar, ScalarPrefetch, Vector, VectorPrefetch};
        let kernels: &[WindowKernel] = effort.pick(
            &[Scalar, ScalarPrefetch],
            &[Scalar, ScalarPrefetch, Vector],
            &[Scalar, ScalarPrefetch, Vector, VectorPrefetch],
        );
        Self {
            windows: vec![1024, 2048, 4096],
            areas: None,
            max_bytes: effort.pick(1 << 30, 4 << 30, u64::MAX),
            kernels: kernels.to_vec(),
            page,
            node: NodePolicy::LOCAL,
            init_cpu: None,
            init_node: None,
            budget: Duration::from_millis(effort.pick(3_000, 10_000, 60_000)),
        }
    }

    /// Checks that the values are usable, and that the machine has the CPU or node that
    /// initialises.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the value; the reason why the CPU or the node cannot be
    /// used.
    pub fn check(&self, session: &Session<'_>) -> Result<(), Error> {
        initialiser(session, self)?;
        if self.windows.is_empty() || self.kernels.is_empty() {
            return Err(Error::Invalid(
                "no window size or no kernel was given: give one of each at least".to_owned(),
            ));
        }
        if let Some(odd) = self.windows.iter().find(|w| **w == 0 || **w % 64 != 0) {
            return Err(Error::Invalid(format!(
                "a window of {odd} bytes is not a multiple of 64"
            )));
        }
        if self.areas.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::Invalid(
                "the list of areas is empty: leave it out for half-octaves from 16 KiB".to_owned(),
            ));
        }
        let largest = self.areas.iter().flatten().max();
        if let (Some(largest), Some(least)) = (largest, self.windows.iter().min())
            && largest < least
        {
            return Err(Error::Invalid(format!(
                "no area is as large as a window (largest area: {largest} bytes)"
            )));
        }
        Ok(())
    }
}

/// The document's areas: 4096·2^(i/2) bytes from i = 4 (16 KiB) on, none above `max_bytes`.
fn half_octaves(max_bytes: u64) -> Vec<u64> {
    (4_u32..)
        .map(|i| (4096.0 * (f64::from(i) / 2.0).exp2() + 1.5) as u64)
        // The document's 1.5 guards against rounding, so it is subtracted before the comparison.
        .take_while(|area| area.saturating_sub(1) <= max_bytes && *area < 1 << 62)
        .collect()
}

/// Identity of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// Requested area size: all points of one area find the same state of the caches.
    nominal_bytes: u64,
    area_bytes: u64,
    window_bytes: u64,
    kernel: WindowKernel,
}

/// All points in the order of visits. Windows larger than an area are left out.
fn keys(kernels: &[WindowKernel], windows: &[u64], areas: &[u64]) -> Vec<Key> {
    let areas: BTreeSet<u64> = areas.iter().copied().collect();
    let mut keys: Vec<Key> = Vec::new();
    for nominal_bytes in areas {
        for &kernel in kernels {
            for &window_bytes in windows {
                let key = Key {
                    nominal_bytes,
                    area_bytes: nominal_bytes - nominal_bytes % window_bytes,
                    window_bytes,
                    kernel,
                };
                let same = |other: &Key| {
                    (other.area_bytes, other.window_bytes, other.kernel)
                        == (key.area_bytes, key.window_bytes, key.kernel)
                };
                if key.area_bytes > 0 && !keys.iter().any(same) {
                    keys.push(key);
                }
            }
        }
    }
    keys
}

/// Measures every point. A cancelled run returns the points that have samples.
///
/// # Errors
/// [`Error::Invalid`] for windows that are no multiples of 64, areas below every window, or a node
/// without CPUs to initialise from; [`Error::Memory`] for given areas that do not fit; the reason
/// when the pages or the node are not available.
pub fn measure(session: &Session<'_>, config: &WindowConfig) -> Result<Window, Error> {
    let started = Instant::now();
    config.check(session)?;
    let init_cpu = initialiser(session, config)?;
    let areas = areas(session, config, init_cpu);
    // Before memory is touched, so that a kernel that cannot be made costs nothing.
    let (kernels, mut skipped) = Kernels::new(session, config)?;
    let keys = keys(&kernels.kinds(), &config.windows, &areas);
    let Some(bytes) = keys.iter().map(|key| key.area_bytes).max() else {
        return Err(Error::Invalid(format!(
            "no area is as large as a window (largest area: {} bytes)",
            areas.iter().max().unwrap_or(&0)
        )));
    };
    let mut slots: Vec<Slot<Key>> = keys.into_iter().map(Slot::time).collect();
    session
        .progress
        .at(0.0, &format!("window: initialising {bytes} bytes"));
    let region = region_of_ones(
        session,
        RegionConfig {
            bytes: usize::try_from(bytes)
                .map_err(|_| Error::Invalid(format!("{bytes} bytes exceed the address space")))?,
            page: config.page,
            node: config.node,
            cpu: init_cpu,
        },
    )?;
    let pinned = Pinned::to(session.cpu)?;
    let mut walk = Walk {
        session,
        region: &region,
        kernels,
        clock: CpuTime::calibrate(),
        state: 0x5e1d_1997,
        warm_bytes: 2 * hint::largest_cache_bytes(session),
        last_area: None,
    };
    run_rounds(
        session,
        config.budget,
        &mut slots,
        |key, progress| walk.visit(*key, progress),
        |_, _| (),
    )?;
    drop(pinned);
    let node = where_it_lies(session, config, init_cpu);
    let mut points: Vec<WindowPoint> = slots
        .iter()
        .filter_map(|slot| point(session, config, slot, node, init_cpu))
        .collect();
    points.sort_by_key(|point| (point.kernel as u8, point.window_bytes, point.area_bytes));
    if let Some(share) = region.partial_page_share() {
        skipped.push(format!(
            "only {:.0} % of the memory has {} pages",
            share * 100.0,
            config.page
        ));
    }
    Ok(Window {
        points,
        skipped,
        elapsed_s: started.elapsed().as_secs_f64(),
    })
}

fn point(
    session: &Session<'_>,
    config: &WindowConfig,
    slot: &Slot<Key>,
    node: NodePolicy,
    init_cpu: CpuId,
) -> Option<WindowPoint> {
    let sampled = slot.sampled(session)?;
    Some(WindowPoint {
        window_bytes: slot.key.window_bytes,
        area_bytes: slot.key.area_bytes,
        seconds_per_window: sampled.summary.median,
        seconds_low: sampled.summary.low,
        seconds_high: sampled.summary.high,
        kernel: slot.key.kernel,
        page: config.page,
        node,
        cpu: session.cpu,
        init_cpu: (init_cpu != session.cpu).then_some(init_cpu),
        batches: sampled.samples,
    })
}

/// The requested areas, or half-octaves up to the free memory, of which a quarter stays for other
/// programs.
fn areas(session: &Session<'_>, config: &WindowConfig, init_cpu: CpuId) -> Vec<u64> {
    config.areas.clone().unwrap_or_else(|| {
        let free = room::share_bytes(session, (config.page, config.node, init_cpu), 1);
        half_octaves(config.max_bytes.min(free))
    })
}

/// The CPU whose thread allocates and initialises.
fn initialiser(session: &Session<'_>, config: &WindowConfig) -> Result<CpuId, Error> {
    if let Some(cpu) = config.init_cpu {
        affinity::check(session.root, cpu)?;
        return Ok(cpu);
    }
    let Some(node) = config.init_node else {
        return Ok(session.cpu);
    };
    // Fails for a node that does not exist, and names the nodes that do.
    session.topology.wanted(
        NodePolicy::Node(node),
        session.topology.node_of(session.cpu),
    )?;
    session
        .cpus
        .iter()
        .copied()
        .find(|cpu| session.topology.node_of(*cpu) == node)
        .ok_or_else(|| {
            Error::Invalid(format!(
                "node {node} has no CPU that may be used to initialise from: place the memory there with a node policy instead"
            ))
        })
}

/// NUMA policy for documents: `local` there means local to the CPU that accesses.
fn where_it_lies(session: &Session<'_>, config: &WindowConfig, init_cpu: CpuId) -> NodePolicy {
    let (from, to) = (
        session.topology.node_of(session.cpu),
        session.topology.node_of(init_cpu),
    );
    if config.node == NodePolicy::LOCAL && from != to {
        return NodePolicy::Node(to);
    }
    config.node
}

/// A loop for every kernel and window size.
struct Kernels(Vec<((WindowKernel, u64), Box<dyn WindowLoop>)>);

impl Kernels {
    /// All loops that can be made on this processor, and the reasons why the others cannot.
    fn new(session: &Session<'_>, config: &WindowConfig) -> Result<(Self, Vec<String>), Error> {
        let mut made = Vec::new();
        let mut skipped = Vec::new();
        let mut last_error = None;
        for &kernel in &config.kernels {
            let loops: Result<Vec<_>, Error> = config
                .windows
                .iter()
                .map(|&bytes| Ok(((kernel, bytes), session.backend.window(kernel, bytes)?)))
                .collect();
            match loops {
                Ok(loops) => made.extend(loops),
                Err(error) => {
                    skipped.push(format!("kernel {kernel}: {error}"));
                    last_error = Some(error);
                }
            }
        }
        match last_error {
            Some(error) if made.is_empty() => Err(error),
            _ => Ok((Self(made), skipped)),
        }
    }

    fn kinds(&self) -> Vec<WindowKernel> {
        let mut kinds: Vec<WindowKernel> = self.0.iter().map(|((kernel, _), _)| *kernel).collect();
        kinds.dedup();
        kinds
    }

    fn of(&self, key: Key) -> &dyn WindowLoop {
        let kind = (key.kernel, key.window_bytes);
        let (_, found) = self
            .0
            .iter()
            .find(|(known, _)| *known == kind)
            .expect("a loop was made for every slot");
        &**found
    }
}

/// The memory, kernels and generator state of the measuring thread.
struct Walk<'a> {
    session: &'a Session<'a>,
    region: &'a Region,
    kernels: Kernels,
    clock: CpuTime,
    state: u64,
    /// Bytes to go through until the caches are in the state that random windows leave behind.
    warm_bytes: u64,
    last_area: Option<u64>,
}

impl Walk<'_> {
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Minimum length of a batch, in nanoseconds.
    const MIN_BATCH_NS: f64 = 5e5;

    fn visit(&mut self, key: Key, progress: VisitProgress) -> Result<Vec<Visit>, Error> {
        self.session.progress.at(
            progress.done,
            &format!(
                "window: {} bytes in {} bytes",
                key.window_bytes, key.area_bytes
            ),
        );
        self.warm(key);
        let shortest = self
            .clock
            .min_batch_ns()
            .max(
                self.session
                    .clock
                    .ns(self.session.clock.min_batch_ticks() as f64),
            )
            .max(Self::MIN_BATCH_NS);
        // Doubled until the time is long enough to compute the number of windows in a batch.
        let mut windows = 16_u64;
        let probe_ns = loop {
            let elapsed = self.draw(key, windows);
            if elapsed * 8.0 >= shortest || windows >= 1 << 40 {
                break elapsed / windows as f64;
            }
            windows *= 2;
        };
        let windows = ((shortest / probe_ns) as u64).max(1);
        let session = self.session;
        Ok(vec![take_batches(
            session,
            session.cpu,
            Self::BATCHES,
            |_| self.draw(key, windows) / windows as f64 / 1e9,
        )])
    }

    /// CPU time that `windows` windows take on this thread, in nanoseconds.
    fn draw(&mut self, key: Key, windows: u64) -> f64 {
        let (start, state) = (self.region.start(), self.state);
        let kernel = self.kernels.of(key);
        let mut end = state;
        let elapsed = self.clock.of(|| {
            // SAFETY: the region is as long as the largest area, not shared and page-aligned, and
            // the kernel was made for windows of this size.
            end = unsafe { kernel.run(start, key.area_bytes / key.window_bytes, windows, state) };
        });
        self.state = end;
        elapsed
    }

    /// Brings the caches into the state that random windows of this area leave behind. Consecutive
    /// visits to the same area find that state already.
    fn warm(&mut self, key: Key) {
        if self.last_area == Some(key.nominal_bytes) {
            return;
        }
        self.last_area = Some(key.nominal_bytes);
        if key.area_bytes <= self.warm_bytes {
            // Random draws alone would leave out a third of the area.
            let start = self.region.start().cast::<u64>();
            for offset in (0..key.area_bytes as usize).step_by(64) {
                // SAFETY: `offset` lies inside the region, which is readable and aligned.
                let word = unsafe { start.wrapping_add(offset / 8).read_volatile() };
                std::hint::black_box(word);
            }
        }
        let bytes = key.area_bytes.min(self.warm_bytes);
        self.draw(key, (bytes / key.window_bytes).max(1));
    }
}

#[cfg(test)]
mod tests;
