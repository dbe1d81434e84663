//! Runs the kernel over an area with several draws of displacements and subtracts the empty kernel.

use std::collections::BTreeMap;
use std::time::Duration;

use membound_types::{
    Fence, Filler, Misses, MlpCell, MlpMode, NodePolicy, Outcome, PageKind, TickCount,
};

use super::config::MlpConfig;
use super::misses::MissCounter;
use super::sibling::Sibling;
use crate::arch::{MlpLoop, MlpSpec};
use crate::hint;
use crate::random::Random;
use crate::{Error, Region, RegionConfig, Session, room, stats};

/// Time per execution, less that of the empty kernel.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub(super) ticks: f64,
    pub(super) spread_ticks: f64,
    pub(super) misses: Outcome<Misses>,
}

/// `None` for a cell during which the session was cancelled; the cells before it are kept.
pub(super) fn unless_interrupted<T>(timed: Result<T, Error>) -> Result<Option<T>, Error> {
    match timed {
        Ok(timed) => Ok(Some(timed)),
        Err(Error::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernel and the area it loads from.
pub(super) struct Probe<'s, 'a> {
    pub(super) session: &'s Session<'a>,
    kernel: Box<dyn MlpLoop>,
    /// Ticks of the session's clock per tick of the kernel's counter.
    ticks_per_tick: f64,
    region: Region,
    page: PageKind,
    node: NodePolicy,
    fence: Fence,
    executions: u64,
    batches: u32,
    seed: u64,
    empty_ticks: f64,
    misses: MissCounter,
    draws: Vec<Vec<u64>>,
    /// Where the windows are searched: whether the core is shared.
    pub(super) sibling: Option<Sibling>,
}

impl<'s, 'a> Probe<'s, 'a> {
    const LINE: u64 = 64;
    /// Maximum number of loads of any kernel here.
    const MAX_LOADS: usize = 1024;

    pub(super) fn new(
        session: &'s Session<'a>,
        config: &MlpConfig,
        page: PageKind,
        node: NodePolicy,
    ) -> Result<Self, Error> {
        let kernel = session.backend.mlp()?;
        let fence = config.fence.unwrap_or_else(|| kernel.fence());
        let ticks_per_tick = session
            .clock
            .ticks_per_tick_of(|| kernel.counter(), Duration::from_millis(10));
        let mut bytes = config.area_bytes.next_power_of_two().min(2 << 30);
        let most = room::share_bytes(session, (page, node, session.cpu), 1);
        while bytes > most && bytes > 64 << 20 {
            bytes /= 2;
        }
        let bytes = usize::try_from(bytes).expect("2 GiB fit an address");
        let region = Region::new(
            session,
            RegionConfig {
                bytes,
                page,
                node,
                cpu: session.cpu,
            },
        )?;
        let mut random = Random::new(0x6d6c_7001);
        let variants = session.effort.pick(5, 6, 10);
        let draws = (0..variants)
            .map(|_| {
                (0..Self::MAX_LOADS)
                    .map(|_| random.below(1 << 32))
                    .collect()
            })
            .collect();
        let mut probe = Self {
            session,
            kernel,
            ticks_per_tick,
            region,
            page,
            node,
            fence,
            executions: config.executions,
            batches: config.batches,
            seed: 0x6d6c_7002,
            empty_ticks: 0.0,
            misses: MissCounter::open(),
            draws,
            sibling: None,
        };
        probe.empty_ticks = probe.empty()?;
        Ok(probe)
    }

    pub(super) const fn area_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    pub(super) const fn page(&self) -> PageKind {
        self.page
    }

    pub(super) const fn node(&self) -> NodePolicy {
        self.node
    }

    pub(super) const fn area(&self) -> *mut u8 {
        self.region.start()
    }

    pub(super) const fn fence(&self) -> Fence {
        self.fence
    }

    pub(super) fn own_uops(&self) -> u32 {
        self.kernel.own_uops()
    }

    /// Address of a random line of the area.
    pub(super) fn random_line(&mut self) -> *mut u8 {
        let mut random = Random::new(self.seed);
        let line = random.below(self.area_bytes() / Self::LINE);
        self.seed = random.state();
        self.region
            .start()
            .wrapping_add((line * Self::LINE) as usize)
    }

    /// N−1 loads, K fillers, one load, anywhere in the area, with `effort` times the batches.
    pub(super) fn parallel(
        &mut self,
        loads: u32,
        fillers: u32,
        pattern: &[Filler],
        effort: u32,
    ) -> Result<Timed, Error> {
        self.time(loads, fillers, pattern, false, self.area_bytes(), effort)
    }

    /// N loads with fillers between all of them, anywhere in the area.
    pub(super) fn sequential(
        &mut self,
        loads: u32,
        fillers: u32,
        pattern: &[Filler],
    ) -> Result<Timed, Error> {
        self.time(loads, fillers, pattern, true, self.area_bytes(), 2)
    }

    /// Kinds of filler that the kernel can be emitted with on this processor.
    pub(super) fn fillers(&self) -> Vec<Filler> {
        self.kernel.fillers()
    }

    /// N loads at once in the first `area_bytes` of the area, which are warmed where a cache may
    /// hold them. The empty kernel is timed again for each area, because single cycles count here.
    pub(super) fn in_area(&mut self, loads: u32, area_bytes: u64) -> Result<Timed, Error> {
        if loads == 1 {
            self.empty_ticks = self.empty()?;
            self.warm(area_bytes);
        }
        let effort = if area_bytes <= 16 << 20 { 3 } else { 1 };
        self.time(loads, 0, &[], false, area_bytes, effort)
    }

    /// Ticks of single accesses into the first `area_bytes` of the area, which
    /// [`Probe::in_area`] has warmed: a histogram for each draw of displacements.
    pub(super) fn single_ticks(&mut self, area_bytes: u64) -> Result<Vec<Vec<TickCount>>, Error> {
        let executions = self.session.effort.pick(2_000, 4_000, 10_000);
        let Spread { lines, span } = self.spread(area_bytes);
        let mut ticks = vec![0_u32; executions];
        let mut histograms = Vec::new();
        let draws = std::mem::take(&mut self.draws);
        let result = draws.iter().try_for_each(|draw| -> Result<(), Error> {
            if self.session.cancelled() {
                return Err(Error::Interrupted);
            }
            let spec = MlpSpec {
                displacements: &displacements(draw, 1, span),
                fillers: 0,
                pattern: &[],
                separate_all: false,
                fence: self.fence,
                each: true,
            };
            self.kernel.load(&spec)?;
            let (area, bases) = (self.region.start(), lines - span);
            for part in [executions.min(64), executions] {
                // SAFETY: bases lie in the first `lines - span` lines and displacements below
                // `span` lines, so every load lies inside the area. The first run warms the code.
                unsafe {
                    self.kernel
                        .run_each(area, bases, &mut self.seed, &mut ticks[..part])
                };
            }
            histograms.push(histogram(&ticks));
            Ok(())
        });
        self.draws = draws;
        result.map(|()| histograms)
    }

    /// Divides the area between bases and displacements so that their sums cover it nearly evenly:
    /// a short span of displacements, with bases in all the rest.
    fn spread(&self, area_bytes: u64) -> Spread {
        let lines = (area_bytes / Self::LINE).max(2);
        let span = if area_bytes == self.area_bytes() {
            lines / 2
        } else {
            (lines / 16).max(1)
        };
        Spread { lines, span }
    }

    /// Makes a cell of the document from a time.
    pub(super) fn cell(
        &self,
        mode: MlpMode,
        loads: u32,
        fillers: u32,
        filler: Filler,
        timed: &Timed,
    ) -> MlpCell {
        MlpCell {
            mode,
            loads,
            fillers,
            filler,
            area_bytes: self.area_bytes(),
            node: self.node,
            page: self.page,
            cycles: self.session.cycles(timed.ticks),
            spread: self.session.cycles(timed.spread_ticks),
            misses: timed.misses.clone(),
        }
    }

    /// Reads every line of the first `bytes` bytes, at most 128 MiB of them, and then the lines of
    /// their page tables again.
    fn warm(&self, bytes: u64) {
        hint::read_through(&self.region, 0, bytes.min(128 << 20) as usize);
        hint::read_translations(&self.region, 0, bytes as usize);
    }

    fn empty(&mut self) -> Result<f64, Error> {
        let spec = MlpSpec {
            displacements: &[],
            fillers: 0,
            pattern: &[],
            separate_all: false,
            fence: self.fence,
            each: false,
        };
        self.kernel.load(&spec)?;
        let executions = 4 * self.executions;
        let raw: Vec<f64> = (0..15)
            // SAFETY: an empty kernel loads nothing.
            .map(|_| unsafe {
                self.kernel
                    .run(self.region.start(), 1, &mut self.seed, executions)
            })
            .collect();
        Ok(stats::median(&raw).unwrap_or(0.0) * self.ticks_per_tick)
    }

    /// The median batch of each draw of displacements, averaged over the draws.
    fn time(
        &mut self,
        loads: u32,
        fillers: u32,
        pattern: &[Filler],
        separate_all: bool,
        area_bytes: u64,
        effort: u32,
    ) -> Result<Timed, Error> {
        let Spread { lines, span } = self.spread(area_bytes);
        let mut medians = Vec::new();
        let mut all = Vec::new();
        let draws = std::mem::take(&mut self.draws);
        let result = draws.iter().try_for_each(|draw| -> Result<(), Error> {
            // Where a hypervisor emulates `cpuid`, a cell takes a good part of a second.
            if self.session.cancelled() {
                return Err(Error::Interrupted);
            }
            let displacements = displacements(draw, loads, span);
            let spec = MlpSpec {
                displacements: &displacements,
                fillers,
                pattern,
                separate_all,
                fence: self.fence,
                each: false,
            };
            self.kernel.load(&spec)?;
            let (area, bases) = (self.region.start(), lines - span);
            // SAFETY: bases lie in the first `lines - span` lines and displacements below
            // `span` lines, so every load lies inside the area. This run warms the code.
            unsafe {
                self.kernel
                    .run(area, bases, &mut self.seed, self.executions.min(8))
            };
            self.misses.begin();
            let raw: Vec<f64> = (0..self.batches * effort)
                // SAFETY: as above.
                .map(|_| unsafe {
                    self.kernel
                        .run(area, bases, &mut self.seed, self.executions)
                })
                .collect();
            self.misses
                .end(u64::from(self.batches * effort) * self.executions);
            let raw = raw.into_iter().map(|ticks| ticks * self.ticks_per_tick);
            let raw: Vec<f64> = raw.collect();
            medians.extend(stats::median(&raw));
            all.extend(raw);
            Ok(())
        });
        self.draws = draws;
        result?;
        let mean = medians.iter().sum::<f64>() / medians.len().max(1) as f64;
        Ok(Timed {
            ticks: (mean - self.empty_ticks).max(0.0),
            spread_ticks: stats::half_iqr(&all),
            misses: self.misses.take(),
        })
    }
}

/// How the accesses of a kernel are spread over an area.
#[derive(Clone, Copy)]
struct Spread {
    /// Lines of the area.
    lines: u64,
    /// Lines over which displacements range; bases lie in the others.
    span: u64,
}

/// Displacements of `loads` accesses in bytes, below `span` lines.
fn displacements(draw: &[u64], loads: u32, span: u64) -> Vec<u32> {
    draw.iter()
        .take(loads as usize)
        .map(|x| (((x * span) >> 32) * Probe::LINE) as u32)
        .collect()
}

fn histogram(ticks: &[u32]) -> Vec<TickCount> {
    let mut counts = BTreeMap::new();
    for ticks in ticks {
        *counts.entry(*ticks).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|(ticks, count)| TickCount { ticks, count })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_every_access() {
        let found = histogram(&[52, 78, 52, 104, 52]);
        let found: Vec<(u32, u64)> = found.iter().map(|it| (it.ticks, it.count)).collect();
        assert_eq!(found, [(52, 3), (78, 1), (104, 1)]);
    }

    #[test]
    fn displacements_stay_below_their_span() {
        let draw = [0, (1 << 32) - 1, 1 << 31];
        assert_eq!(displacements(&draw, 3, 16), [0, 15 * 64, 8 * 64]);
        assert_eq!(displacements(&draw, 1, 16), [0]);
    }
}
