//! `measure loaded`: latency of a chase in DRAM while other CPUs inject traffic.
//!
//! The measuring CPU follows a random chase as in `measure latency`; the others cycle through
//! memory of their own, on the same node as the chase, reading and writing whole lines in a chosen
//! mix with a chosen pause between rounds. The traffic is counted over exactly the batches in which
//! the chase is timed, as bytes that the injectors asked for: the read that a store through the
//! caches causes (write-allocate) is not counted.

mod injector;

use std::time::{Duration, Instant};

use membound_platform::affinity::Pinned;
use membound_types::{
    Access, CpuId, Disturbance, Loaded, LoadedPoint, NodePolicy, PageKind, Pattern, TrafficMix,
};

use crate::arch::{InjectLoop, check_mix};
use crate::ones::region_of_ones;
use crate::sampling::{Slot, Visit, add_disturbance, run_rounds, take_batches_if};
use crate::threads::{joined, spawned};
use crate::{
    Chase, ChaseConfig, Effort, Error, Region, RegionConfig, Session, Spread, hint, room, stats,
};
use injector::{Injector, Signals, Traffic};

/// What to measure: every mix with every delay.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// Lines read and written in each round of an injector.
    pub mixes: Vec<TrafficMix>,
    /// Steps of waiting (about a core cycle each) between rounds; `None` in the list is the
    /// idle point. Without a list: idle, then from slow to full speed.
    pub delays: Option<Vec<Option<u32>>>,
    /// Injecting threads; `None` for all CPUs on other cores than the measuring one, or all
    /// other CPUs where there is one core.
    pub injectors: Option<u32>,
    /// Size in bytes of the outermost cache as it was measured; `None` for the largest declared one. A guest may see
    /// a cache declared that is many times as large as its part of it; a chase that is larger than necessary shows
    /// translation as well.
    pub cache_bytes: Option<u64>,
    /// Bytes under the chase; `None` for enough that the outermost cache does not hold much of it.
    pub chase_bytes: Option<u64>,
    /// Bytes that each injector goes through; `None` for enough that the outermost cache does not
    /// hold what all of them go through.
    pub traffic_bytes: Option<u64>,
    /// Page kind of the chase's and the traffic's memory.
    pub page: PageKind,
    /// NUMA policy of both; `local` is local to the measuring CPU.
    pub node: NodePolicy,
    /// Time for the sampling.
    pub budget: Duration,
}

impl LoadedConfig {
    /// Reads, writes and two mixtures of them, with the time that `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        let mix = |reads, writes| TrafficMix { reads, writes };
        Self {
            mixes: vec![mix(1, 0), mix(2, 1), mix(1, 1), mix(0, 1)],
            delays: None,
            injectors: None,
            cache_bytes: None,
            chase_bytes: None,
            traffic_bytes: None,
            page,
            node: NodePolicy::LOCAL,
            budget: Duration::from_millis(effort.pick(3_000, 8_000, 30_000)),
        }
    }

    fn delays(&self, effort: Effort) -> Vec<Option<u32>> {
        let mut delays = self.delays.clone().unwrap_or_else(|| {
            let steps: &[u32] = effort.pick(
                &[256, 64, 16, 4, 0],
                &[512, 256, 128, 64, 32, 16, 8, 4, 0],
                &[
                    1024, 512, 256, 128, 64, 48, 32, 24, 16, 12, 8, 6, 4, 2, 1, 0,
                ],
            );
            std::iter::once(None)
                .chain(steps.iter().copied().map(Some))
                .collect()
        });
        // Idle first, then rising traffic.
        delays.sort_by_key(|delay| delay.map_or(0, |steps| u64::MAX - u64::from(steps)));
        delays.dedup();
        delays
    }

    /// Checks that the values are usable.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the value.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.mixes.is_empty() || self.delays.as_ref().is_some_and(Vec::is_empty) {
            return invalid(
                "no traffic mix or no delay was given: give one of each at least".to_owned(),
            );
        }
        self.mixes.iter().try_for_each(|mix| check_mix(*mix))?;
        if self.injectors == Some(0) {
            return invalid("0 injectors load nothing: use 1 or more".to_owned());
        }
        if let Some(bytes) = self.traffic_bytes.filter(|b| *b < Injector::MIN_BYTES) {
            return invalid(format!(
                "{bytes} bytes of traffic stay in the caches: use {} at the very least",
                Injector::MIN_BYTES
            ));
        }
        if let Some(bytes) = self.chase_bytes.filter(|b| *b < ChaseConfig::PAGE_BYTES) {
            return invalid(format!(
                "a chase over {bytes} bytes stays in the caches: use {} at the very least",
                ChaseConfig::PAGE_BYTES
            ));
        }
        Ok(())
    }
}

/// Identity of a point.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// Index of its slot.
    index: usize,
    mix: TrafficMix,
    delay: Option<u32>,
}

/// Measures every point. [`Loaded::skipped`] names what is not available; with one CPU there is
/// only the idle point. A cancelled run returns the points that have samples.
///
/// # Errors
/// [`Error::Invalid`] for mixes, delays and sizes that cannot be used, [`Error::TooManyThreads`]
/// for more injectors than there are other CPUs, [`Error::Memory`] for given sizes that do not fit;
/// the reason when the pages or the node are not available.
pub fn measure(session: &Session<'_>, config: &LoadedConfig) -> Result<Loaded, Error> {
    let started = Instant::now();
    config.check()?;
    let cpus = injector_cpus(session, config.injectors)?;
    let keys = keys(session, config, cpus.len());
    let injects = keys
        .iter()
        .map(|key| session.backend.inject(key.mix, key.delay.unwrap_or(0)))
        .collect::<Result<Vec<_>, Error>>()?;
    let sizes = Sizes::new(session, config, cpus.len() as u64)?;
    session.progress.at(0.0, "loaded: preparing memory");
    let mut bench = Bench::new(session, config, sizes, &cpus)?;
    let mut slots: Vec<Slot<Key>> = keys.into_iter().map(Slot::time).collect();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); slots.len()];
    let pinned = Pinned::to(session.cpu)?;
    run_rounds(
        session,
        config.budget,
        &mut slots,
        |key, progress| {
            session.progress.at(progress.done, &name(*key));
            bench.visit(*key, &*injects[key.index], &mut rates[key.index])
        },
        |_, _| (),
    )?;
    drop(pinned);
    let mut skipped = Vec::new();
    if cpus.is_empty() {
        skipped.push("traffic: there is no other CPU to inject it from".to_owned());
    }
    skipped.extend(bench.page_note());
    Ok(Loaded {
        points: points(session, &slots, &rates, cpus.len()),
        page: config.page,
        node: config.node,
        chase_bytes: sizes.chase_bytes,
        skipped,
        elapsed_s: started.elapsed().as_secs_f64(),
    })
}

fn name(key: Key) -> String {
    let mix = key.mix;
    match key.delay {
        None => format!("loaded: idle, before {mix}"),
        Some(steps) => format!("loaded: reads to writes {mix}, delay {steps}"),
    }
}

/// All points, by mix and rising traffic. Without injectors, the idle one.
fn keys(session: &Session<'_>, config: &LoadedConfig, injectors: usize) -> Vec<Key> {
    let (mixes, delays) = if injectors == 0 {
        (&config.mixes[..1], vec![None])
    } else {
        (&config.mixes[..], config.delays(session.effort))
    };
    mixes
        .iter()
        .flat_map(|mix| delays.iter().map(move |delay| (*mix, *delay)))
        .enumerate()
        .map(|(index, (mix, delay))| Key { index, mix, delay })
        .collect()
}

fn points(
    session: &Session<'_>,
    slots: &[Slot<Key>],
    rates: &[Vec<f64>],
    injectors: usize,
) -> Vec<LoadedPoint> {
    let mut points: Vec<LoadedPoint> = slots
        .iter()
        .filter_map(|slot| {
            let sampled = slot.sampled(session)?;
            Some(LoadedPoint {
                mix: slot.key.mix,
                injectors: if slot.key.delay.is_some() {
                    injectors as u32
                } else {
                    0
                },
                delay_steps: slot.key.delay,
                gb_s: stats::median(&rates[slot.key.index]).unwrap_or(0.0),
                ns: sampled.summary.median,
                ns_low: sampled.summary.low,
                ns_high: sampled.summary.high,
                cycles: sampled.summary.median * sampled.core_hz / 1e9,
                batches: sampled.samples,
            })
        })
        .collect();
    // Slots are in the order of mixes; a stable sort of each mix's points keeps that.
    for of_mix in points.chunk_by_mut(|a, b| a.mix == b.mix) {
        of_mix.sort_by(|a, b| {
            (a.delay_steps.is_some(), a.gb_s)
                .partial_cmp(&(b.delay_steps.is_some(), b.gb_s))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
    }
    points
}

/// CPUs that inject: those on other cores first, because a sibling of the measuring CPU
/// takes more from it than memory bandwidth.
fn injector_cpus(session: &Session<'_>, injectors: Option<u32>) -> Result<Vec<CpuId>, Error> {
    if let Some(count) = injectors {
        session.cpus_for(count.saturating_add(1), Spread::Cores)?;
    }
    let shares_core = |cpu: CpuId| {
        session
            .siblings
            .iter()
            .any(|core| core.contains(&cpu) && core.contains(&session.cpu))
    };
    let all = session.cpus_for(session.cpus.len() as u32, Spread::Cores)?;
    let (near, mut cpus): (Vec<CpuId>, Vec<CpuId>) = all
        .into_iter()
        .filter(|cpu| *cpu != session.cpu)
        .partition(|cpu| shares_core(*cpu));
    if injectors.is_some() || cpus.is_empty() {
        cpus.extend(near);
    }
    if let Some(count) = injectors {
        cpus.truncate(count as usize);
    }
    Ok(cpus)
}

/// Memory of the chase and of each injector.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    chase_bytes: u64,
    traffic_bytes: u64,
}

impl Sizes {
    fn new(session: &Session<'_>, config: &LoadedConfig, injectors: u64) -> Result<Self, Error> {
        const MIB: u64 = 1 << 20;
        let place = (config.page, config.node, session.cpu);
        let available_bytes = room::obtainable_bytes(session.root, &session.topology, place);
        let declared = hint::largest_cache_bytes(session);
        let cache = config.cache_bytes.map_or(declared, |it| it.min(declared));
        let threads = injectors.max(1);
        let page = |bytes: u64| (bytes - bytes % 4096).max(Injector::MIN_BYTES);
        let sizes = Self {
            chase_bytes: config
                .chase_bytes
                .unwrap_or_else(|| page((8 * cache).max(256 * MIB).min(available_bytes / 4))),
            traffic_bytes: config.traffic_bytes.unwrap_or_else(|| {
                page(
                    (4 * cache / threads)
                        .max(64 * MIB)
                        .min(available_bytes / 4 / threads),
                )
            }),
        };
        let needed_bytes = sizes
            .traffic_bytes
            .saturating_mul(injectors)
            .saturating_add(sizes.chase_bytes);
        if needed_bytes > available_bytes {
            return Err(Error::Memory {
                needed_bytes,
                available_bytes,
            });
        }
        Ok(sizes)
    }
}

/// The chase and the injectors with their memory.
struct Bench<'a> {
    session: &'a Session<'a>,
    // Declared before its region, and so dropped before it.
    chase: Chase,
    chase_region: Region,
    injectors: Vec<Injector>,
}

impl<'a> Bench<'a> {
    /// Batches per visit.
    const BATCHES: usize = 5;
    /// Time for traffic to settle before the first batch, in nanoseconds.
    const SETTLE_NS: f64 = 5e5;

    fn new(
        session: &'a Session<'a>,
        config: &LoadedConfig,
        sizes: Sizes,
        cpus: &[CpuId],
    ) -> Result<Self, Error> {
        let region = |bytes: u64| {
            let bytes = usize::try_from(bytes)
                .map_err(|_| Error::Invalid(format!("{bytes} bytes exceed the address space")))?;
            region_of_ones(
                session,
                RegionConfig {
                    bytes,
                    page: config.page,
                    node: config.node,
                    cpu: session.cpu,
                },
            )
        };
        let chase_region = region(sizes.chase_bytes)?;
        let chase_config = ChaseConfig {
            pattern: Pattern::Random,
            access: Access::Clean,
            stride_bytes: 64,
            seed: 0x10ad,
        };
        let (start, capacity) = (chase_region.start(), chase_region.len());
        // SAFETY: the region is kept beside the chase, longer than it, and used by no other code.
        let mut chase = unsafe { Chase::new(&*session.backend, chase_config, start, capacity)? };
        chase.resize_while(sizes.chase_bytes, &|| !session.cancelled())?;
        let injectors = cpus
            .iter()
            .map(|&cpu| {
                let region = region(sizes.traffic_bytes)?;
                Ok(Injector { cpu, region })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        if injectors.is_empty() {
            // Building the chain left part of it in the caches. A walk comes back to a line only
            // after the whole cycle, so emptying the caches once is enough. Where there are
            // injectors, writing their memory does that.
            drop(region(
                (2 * hint::largest_cache_bytes(session)).min(sizes.chase_bytes),
            )?);
        }
        Ok(Self {
            session,
            chase,
            chase_region,
            injectors,
        })
    }

    fn page_note(&self) -> Option<String> {
        let regions = self.injectors.iter().map(|injector| &injector.region);
        let share = std::iter::once(&self.chase_region)
            .chain(regions)
            .find_map(Region::partial_page_share)?;
        Some(format!(
            "only {:.0} % of the memory has the pages asked for",
            share * 100.0
        ))
    }

    /// Times the chase under the traffic of `key`; `rates` receives the traffic of each batch in
    /// 10⁹ bytes per second.
    fn visit(
        &mut self,
        key: Key,
        inject: &dyn InjectLoop,
        rates: &mut Vec<f64>,
    ) -> Result<Vec<Visit>, Error> {
        let Some(delay_steps) = key.delay else {
            let signals = Signals::new(0);
            return Ok(vec![Self::batches(
                self.session,
                &mut self.chase,
                &signals,
                rates,
            )]);
        };
        let traffic = Traffic {
            mix: key.mix,
            inject,
            delay_steps,
        };
        let signals = Signals::new(self.injectors.len());
        let (session, chase) = (self.session, &mut self.chase);
        let (mut visit, disturbances) = std::thread::scope(|scope| {
            let running: Vec<_> = self
                .injectors
                .iter()
                .enumerate()
                .map(|(index, injector)| {
                    let signals = &signals;
                    let ticket = signals.ticket();
                    spawned(scope, injector.cpu, move || {
                        injector.run(session, traffic, (signals, ticket), index)
                    })
                })
                .collect();
            let stop = signals.stop_on_drop();
            signals.ticket().pass();
            let visit = Self::batches(session, chase, &signals, rates);
            drop(stop);
            let disturbances = running
                .into_iter()
                .map(|thread| joined(thread?))
                .collect::<Result<Vec<Disturbance>, Error>>();
            (visit, disturbances)
        });
        for disturbance in disturbances? {
            add_disturbance(&mut visit.disturbed, &disturbance);
        }
        Ok(vec![visit])
    }

    /// Nanoseconds per load in each batch, with the traffic during the same time.
    fn batches(
        session: &Session<'_>,
        chase: &mut Chase,
        signals: &Signals,
        rates: &mut Vec<f64>,
    ) -> Visit {
        let clock = &session.clock;
        let per_iteration = chase.loads_per_iteration();
        let before = chase.probe_ns(clock);
        chase.walk((Self::SETTLE_NS / before) as u64);
        let load_ns = chase.probe_ns(clock);
        let shortest = clock.ns(clock.min_batch_ticks() as f64);
        let batch_ns = f64::max(session.effort.pick(1e6, 1.5e6, 3e6), shortest);
        let iterations = ((batch_ns / load_ns) as u64 / per_iteration).max(1);
        let (visit, taken) = take_batches_if(
            session,
            session.cpu,
            Self::BATCHES,
            |_| {
                let (before, start) = (signals.read(), clock.now());
                let ticks = chase.time(clock, iterations);
                let (after, end) = (signals.read(), clock.now());
                let (bytes, clean) = before.until(&after);
                let gb_s = bytes as f64 / clock.ns((end - start) as f64);
                ((clock.ns(ticks), gb_s), clean)
            },
            |(ns, _)| *ns,
        );
        rates.extend(taken.into_iter().map(|(_, gb_s)| gb_s));
        visit
    }
}

#[cfg(test)]
mod tests;
