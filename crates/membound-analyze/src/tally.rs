//! Counts samples by site, thread and object in one pass, so that the rest of the analysis does not depend
//! on their number.

use membound_run::{Attribution, FrameId, ModuleKind, RunData, SiteId, ThreadId};
use rustc_hash::FxHashMap;

use crate::groups::{GroupId, Groups};
use crate::info;

/// Intel's processors take some interrupts while an access waits, and not after it: the sample shows the access itself, as
/// if it had waited for the instruction before it. Share of such samples, relative to those after the access, at most:
/// 0.06 to 0.14, once 0.24, in twelve loops whose accesses miss the caches and the TLB (Emerald and Granite Rapids, perf's
/// cpu-clock in virtual machines), and 0.01 where they miss only the caches.
const MAX_EARLY_SHARE: f64 = 0.25;
/// Confidence that such samples waited for the access.
const EARLY_CONFIDENCE: f64 = 0.3;

/// Accesses that each sampled instruction waited for.
#[derive(Debug)]
pub(crate) struct Waits {
    starts: Vec<u32>,
    entries: Vec<Wait>,
    /// By frame: whether an attribution exists, even if the instruction waited for no memory.
    attributed: Vec<bool>,
}

/// An access that a sampled instruction waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wait {
    pub site: SiteId,
    /// Share of the instruction's samples; the shares of an instruction sum to at most 1.
    pub share: f64,
    pub confidence: f64,
    /// Whether the samples are at the access itself ([`early_waits`]).
    pub is_early: bool,
}

impl Waits {
    /// Collects the attributions of `run` by frame.
    pub(crate) fn new(run: &RunData) -> Self {
        let mut sorted: Vec<&Attribution> = run.attributions.iter().collect();
        sorted.sort_by(|a, b| {
            (a.frame, a.site)
                .cmp(&(b.frame, b.site))
                .then(a.share.total_cmp(&b.share))
                .then(a.confidence.total_cmp(&b.confidence))
        });
        let mut starts = vec![0_u32; run.frames.len() + 1];
        let mut attributed = vec![false; run.frames.len()];
        let mut entries = Vec::new();
        let mut early = early_waits(run);
        for of_frame in sorted.chunk_by(|a, b| a.frame == b.frame) {
            let sum: f64 = of_frame.iter().map(|entry| entry.share.max(0.0)).sum();
            let scale = if sum > 1.0 { 1.0 / sum } else { 1.0 };
            let waits = of_frame.iter().filter_map(|entry| {
                let share = entry.share.max(0.0) * scale;
                entry.site.filter(|_| share > 0.0).map(|site| Wait {
                    site,
                    share,
                    confidence: entry.confidence.clamp(0.0, 1.0),
                    is_early: false,
                })
            });
            let before = entries.len();
            entries.extend(waits);
            entries.extend(early.remove(&of_frame[0].frame));
            attributed[of_frame[0].frame.index()] = true;
            starts[of_frame[0].frame.index() + 1] = (entries.len() - before) as u32;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Self {
            starts,
            entries,
            attributed,
        }
    }

    /// True if the run has an attribution for `frame`.
    pub(crate) fn has_attribution(&self, frame: FrameId) -> bool {
        self.attributed[frame.index()]
    }

    /// Accesses that `frame` waited for.
    pub(crate) fn of(&self, frame: FrameId) -> &[Wait] {
        let index = frame.index();
        &self.entries[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// Waits for the access that is itself at the sampled instruction, on processors that show some so: part of the samples that
/// are attributed to no access, as many as those after the access make likely.
fn early_waits(run: &RunData) -> FxHashMap<FrameId, Wait> {
    let profile = run.meta.machine.as_deref();
    if profile.is_none_or(|profile| profile.machine.cpu.vendor != "GenuineIntel") {
        return FxHashMap::default();
    }
    let mut times_ns: FxHashMap<FrameId, f64> = FxHashMap::default();
    for sample in &run.samples {
        let frame = run.stacks[sample.stack.index()].frame;
        *times_ns.entry(frame).or_default() += sample.weight_ns as f64;
    }
    let mut behind_ns: FxHashMap<SiteId, f64> = FxHashMap::default();
    let mut attributed: FxHashMap<FrameId, f64> = FxHashMap::default();
    for row in &run.attributions {
        let share = row.share.clamp(0.0, 1.0);
        if let (Some(site), Some(time_ns)) = (row.site, times_ns.get(&row.frame)) {
            *behind_ns.entry(site).or_default() += time_ns * share;
            *attributed.entry(row.frame).or_default() += share;
        }
    }
    let early = (0..).map(SiteId).zip(&run.sites).filter_map(|(site, row)| {
        let time_ns = *times_ns.get(&row.frame)?;
        let free = 1.0 - attributed.get(&row.frame).copied().unwrap_or(0.0);
        let likely = MAX_EARLY_SHARE * behind_ns.get(&site)? / time_ns.max(f64::MIN_POSITIVE);
        let share = likely.min(free);
        (share > 0.0).then_some((
            row.frame,
            Wait {
                site,
                share,
                confidence: EARLY_CONFIDENCE,
                is_early: true,
            },
        ))
    });
    early.collect()
}

/// Samples of one access, in one thread, on one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SiteTime {
    pub site: SiteId,
    pub thread: ThreadId,
    /// Object at the sampled address; `None` if registers did not give an address.
    pub group: Option<GroupId>,
    pub time_ns: f64,
    pub samples: f64,
    /// `time_ns` weighted by the confidence of the attribution.
    pub sure_ns: f64,
    /// Part of `time_ns` with [`Wait::is_early`].
    pub early_ns: f64,
}

/// Samples that waited for no memory, or whose cause is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlainTime {
    /// True if it is unknown what the samples waited for.
    pub unseen: bool,
    pub frame: FrameId,
    pub thread: ThreadId,
    pub time_ns: f64,
    pub samples: f64,
}

/// Counts of all samples.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Sorted by site, thread and object.
    pub sites: Vec<SiteTime>,
    /// Sorted by frame and thread.
    pub plain: Vec<PlainTime>,
}

impl Tally {
    /// Counts the samples of `run` without those in membound's own code. Integers are summed first, so that
    /// the order of the samples does not matter.
    pub(crate) fn new(run: &RunData, waits: &Waits, groups: &Groups) -> Self {
        type Key = (FrameId, ThreadId, Option<GroupId>);
        let mut cells: FxHashMap<Key, (u64, u64)> = FxHashMap::default();
        for sample in &run.samples {
            let frame = run.stacks[sample.stack.index()].frame;
            let group = match (sample.object, sample.address) {
                (Some(object), _) => Some(groups.of(object)),
                (None, Some(_)) => Some(Groups::UNKNOWN),
                (None, None) => None,
            };
            let cell = cells.entry((frame, sample.thread, group)).or_default();
            cell.0 += 1;
            cell.1 += sample.weight_ns;
        }
        let mut cells: Vec<(Key, (u64, u64))> = cells.into_iter().collect();
        cells.sort_unstable();
        let mut tally = Self::default();
        for ((frame, thread, group), (samples, weight_ns)) in cells {
            if info::is_own(run, frame) {
                continue;
            }
            let (samples, time_ns) = (samples as f64, weight_ns as f64);
            let mut unattributed = 1.0;
            // The sampled address belongs to the likeliest access; the addresses of the others are unknown.
            let most = waits.of(frame).iter().map(|wait| wait.share);
            let most = most.fold(0.0, f64::max);
            for wait in waits.of(frame) {
                unattributed -= wait.share;
                tally.sites.push(SiteTime {
                    site: wait.site,
                    thread,
                    group: group.filter(|_| wait.share >= most),
                    time_ns: time_ns * wait.share,
                    samples: samples * wait.share,
                    sure_ns: time_ns * wait.share * wait.confidence,
                    early_ns: if wait.is_early {
                        time_ns * wait.share
                    } else {
                        0.0
                    },
                });
            }
            if unattributed > 1e-9 {
                tally.add_plain(PlainTime {
                    unseen: is_unattributed(run, waits, frame),
                    frame,
                    thread,
                    time_ns: time_ns * unattributed,
                    samples: samples * unattributed,
                });
            }
        }
        tally
            .sites
            .sort_by_key(|cell| (cell.site, cell.thread, cell.group));
        tally.sites.dedup_by(|next, into| {
            let same = (next.site, next.thread, next.group) == (into.site, into.thread, into.group);
            if same {
                into.time_ns += next.time_ns;
                into.samples += next.samples;
                into.sure_ns += next.sure_ns;
                into.early_ns += next.early_ns;
            }
            same
        });
        tally
    }

    /// Merges with the previous entry: cells come sorted by frame, thread and object.
    fn add_plain(&mut self, plain: PlainTime) {
        match self.plain.last_mut() {
            Some(last) if (last.frame, last.thread) == (plain.frame, plain.thread) => {
                last.time_ns += plain.time_ns;
                last.samples += plain.samples;
            }
            _ => self.plain.push(plain),
        }
    }

    /// Cells of `site`.
    pub(crate) fn of(&self, site: SiteId) -> &[SiteTime] {
        let from = self.sites.partition_point(|cell| cell.site < site);
        let to = self.sites.partition_point(|cell| cell.site <= site);
        &self.sites[from..to]
    }
}

/// True if it is unknown what samples at `frame` waited for. The kernel's and the agent's code is not the
/// program's, and does not count.
fn is_unattributed(run: &RunData, waits: &Waits, frame: FrameId) -> bool {
    let kind = run.frames[frame.index()]
        .module
        .map(|module| run.modules[module.index()].kind);
    !matches!(kind, Some(ModuleKind::Kernel | ModuleKind::Agent)) && !waits.has_attribution(frame)
}
