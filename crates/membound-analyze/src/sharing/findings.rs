//! Findings about contended lines: object, threads, cost and advice.

use std::collections::{BTreeMap, BTreeSet};

use membound_run::{ProcessId, SiteId, SiteKind, ThreadId};
use membound_types::{
    Basis as FigureBasis, Figure, SharedLine, SharingCost, SharingSite, SharingThread, WatchedBytes,
};
use rustc_hash::FxHashMap;

use super::evidence::{Basis, Line, Observation};
use super::judge::{Conflict, Contention, OwnBytes, User};
use super::trials::{self, Cost, Trials};
use crate::allocation_chain::allocation_chain;
use crate::context::Context;
use crate::groups::{GroupId, Groups};
use crate::names;
use crate::parts::Part;
use crate::recorded_accesses::Counts;
use crate::rows::Sum;

/// Lines of unknown objects that are further apart than this count as different findings: they belong to no
/// common array.
const NEIGHBOURS_BYTES: u64 = 4096;

/// Reads of others' bytes for each write of its own from which on a thread is taken to wait for the others before it
/// writes.
const MIN_READS_EACH_TURN: f64 = 0.8;

/// Most lines of code named in a finding.
const MAX_SITES: usize = 8;

/// Both tables, most costly first, and the objects with false sharing.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub false_sharing: Vec<SharedLine>,
    pub true_sharing: Vec<SharedLine>,
    pub falsely_shared: BTreeSet<GroupId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    False,
    True,
}

impl Kind {
    const fn conflict(self) -> Conflict {
        match self {
            Self::False => Conflict::OtherBytes,
            Self::True => Conflict::SameBytes,
        }
    }
}

/// Finds contended lines that cost enough to be reported.
pub(crate) fn sharing(context: &Context<'_>) -> Sharing {
    let thresholds = &context.options.thresholds;
    let totals = Totals::new(context);
    let mut findings: BTreeMap<(ProcessId, Kind, FindingKey), Vec<Contended<'_>>> = BTreeMap::new();
    for (line, contention) in &context.contended_lines.lines {
        for (kind, is_one) in [
            (Kind::False, contention.is_false),
            (Kind::True, contention.is_true),
        ] {
            if is_one {
                let contended = Contended::new(context, &totals, line, contention, kind);
                let place = match contended.group {
                    Groups::UNKNOWN => FindingKey::Nearby(line.address / NEIGHBOURS_BYTES),
                    group => FindingKey::Object(group),
                };
                findings
                    .entry((line.process, kind, place))
                    .or_default()
                    .push(contended);
            }
        }
    }
    let mut sharing = Sharing::default();
    let trials = Trials::new(context.run);
    let weights = Weights::new(&findings);
    for ((process, kind, _), mut of_finding) in findings {
        of_finding.sort_by(|a, b| {
            (b.sum.stall_ns.total_cmp(&a.sum.stall_ns)).then(a.line.address.cmp(&b.line.address))
        });
        let mut row = finding(context, process, kind, &of_finding);
        let part = |thread| weights.part(&of_finding, thread);
        let (lines, users) = lines_and_users(&of_finding);
        let costs = trials.costs(context, &lines, &users);
        if let Some(costs) = &costs {
            measure(context, &mut row, (kind, &of_finding), costs, part);
        }
        if row.stall_fraction < thresholds.sharing_cost {
            continue;
        }
        if let (None, Some(gain)) = (costs, &mut row.predicted_gain) {
            let costs = trials.unmeasured_costs(context, &lines, &users);
            widen(context, gain, &costs, part);
        }
        match kind {
            Kind::False => {
                sharing
                    .falsely_shared
                    .extend(of_finding.iter().map(|line| line.group));
                sharing.false_sharing.push(row);
            }
            Kind::True => sharing.true_sharing.push(row),
        }
    }
    for table in [&mut sharing.false_sharing, &mut sharing.true_sharing] {
        table.sort_by(|a, b| {
            (b.stall_fraction.total_cmp(&a.stall_fraction))
                .then(a.line_address.cmp(&b.line_address))
        });
    }
    sharing
}

/// Weight of each thread at contended lines, over all findings. The measured cost of a thread is divided
/// among findings in proportion to it.
struct Weights(BTreeMap<ThreadId, f64>);

impl Weights {
    fn new<K>(findings: &BTreeMap<K, Vec<Contended<'_>>>) -> Self {
        let mut all: BTreeMap<ThreadId, f64> = BTreeMap::new();
        for lines in findings.values() {
            for (thread, weight) in Self::of(lines) {
                *all.entry(thread).or_default() += weight;
            }
        }
        Self(all)
    }

    /// Weight of each thread in one finding.
    fn of(lines: &[Contended<'_>]) -> BTreeMap<ThreadId, f64> {
        let mut weights: BTreeMap<ThreadId, f64> = BTreeMap::new();
        for line in lines {
            for user in &line.contention.users {
                // Observations count even where latencies show no stall.
                let stall_ns = line.by_thread.get(&user.thread).copied().unwrap_or(0.0);
                *weights.entry(user.thread).or_default() += 1.0 + stall_ns;
            }
        }
        weights
    }

    fn part(&self, lines: &[Contended<'_>], thread: ThreadId) -> f64 {
        let all = self.0.get(&thread).copied().unwrap_or(0.0);
        let own = Self::of(lines).get(&thread).copied().unwrap_or(0.0);
        if all > 0.0 { own / all } else { 0.0 }
    }
}

/// The lines of a finding, and the threads that contend for them.
fn lines_and_users<'a>(lines: &[Contended<'a>]) -> (Vec<&'a Line>, BTreeSet<ThreadId>) {
    let users = lines.iter().flat_map(|line| &line.contention.users);
    let users = users.map(|user| user.thread).collect();
    (lines.iter().map(|line| line.line).collect(), users)
}

/// Replaces estimates from latencies by the costs that trials measured.
fn measure(
    context: &Context<'_>,
    row: &mut SharedLine,
    (kind, lines): (Kind, &[Contended<'_>]),
    costs: &BTreeMap<ThreadId, Cost>,
    part: impl Fn(ThreadId) -> f64,
) {
    let figure = |share: trials::Share| Figure {
        value: share.value,
        low: share.low,
        high: share.high,
        basis: FigureBasis::Measured,
    };
    let (slowed_ns, gain) = saved(context, costs, part);
    row.stall_fraction = context.times.share(slowed_ns);
    row.predicted_gain = lines[0].saving(context, kind, Some(figure(gain)));
    let costs = costs.iter().map(|(thread, cost)| SharingCost {
        tid: context.run.threads[thread.index()].tid,
        share: figure(cost.share),
        cpu_s: cost.time_ns * 1e-9,
        spans: cost.spans,
    });
    row.held = costs.collect();
}

/// Without trials latencies alone tell the cost, and they do not show stores that wait in a buffer: all of the time
/// in which threads contend may be saved.
fn widen(
    context: &Context<'_>,
    gain: &mut Figure,
    costs: &BTreeMap<ThreadId, Cost>,
    part: impl Fn(ThreadId) -> f64,
) {
    gain.high = gain.high.max(saved(context, costs, part).1.high);
}

/// CPU time in nanoseconds that threads would save, and the saved share of the wall time.
fn saved(
    context: &Context<'_>,
    costs: &BTreeMap<ThreadId, Cost>,
    part: impl Fn(ThreadId) -> f64,
) -> (f64, trials::Share) {
    // Time from the first to the last sample: the run's elapsed time includes starting the program under
    // the profiler.
    let times = || context.run.samples.iter().map(|sample| sample.t_ns);
    let elapsed_ns = times().max().unwrap_or(0) - times().min().unwrap_or(0);
    let stretch = 1.0 + crate::info::overhead(context.run).cost_fraction;
    trials::saved(elapsed_ns.max(1) as f64, stretch, costs, part)
}

/// Distinguishes findings of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FindingKey {
    Object(GroupId),
    Nearby(u64),
}

/// Totals of the contended accesses by part, to which the share of a single line refers.
struct Totals {
    /// By part with accesses to contended lines: executions of the contended accesses, and of all.
    by_part: FxHashMap<u32, (f64, f64)>,
}

impl Totals {
    fn new(context: &Context<'_>) -> Self {
        let mut by_part: FxHashMap<u32, (f64, f64)> = FxHashMap::default();
        for (line, contention) in &context.contended_lines.lines {
            for (one, conflict) in line.observations.iter().zip(&contention.conflicts) {
                if let (Some((part, weight)), true) =
                    (part_of(context, one), *conflict != Conflict::None)
                {
                    by_part.entry(part).or_default().0 += weight;
                }
            }
        }
        for (position, part) in context.part_of.iter().enumerate() {
            if let Some(sum) = part.and_then(|part| by_part.get_mut(&part)) {
                sum.1 += context.touches.weight(position as u32);
            }
        }
        Self { by_part }
    }

    /// Share of a part's stall that belongs to those of its contended accesses that sum to `counts`.
    fn share(&self, context: &Context<'_>, part: u32, counts: &Counts) -> f64 {
        let Some(&(contended, all)) = self.by_part.get(&part) else {
            return 0.0;
        };
        let site = context.parts.parts[part as usize].site;
        let share = match context.costs[site.index()].stall.contention_share {
            Some(share) if contended > 0.0 => share * counts.represented / contended,
            _ if all > 0.0 => counts.represented / all,
            _ => 0.0,
        };
        share.min(1.0)
    }
}

/// The costs of conflicting accesses, from the accesses of each part, and the time in nanoseconds of timer samples.
fn conflicting_parts(
    context: &Context<'_>,
    totals: &Totals,
    accesses: &BTreeMap<u32, Counts>,
    samples: BTreeMap<(SiteId, ThreadId), u64>,
) -> Vec<Part> {
    let of_accesses = accesses.iter().map(|(&part, counts)| {
        let share = totals.share(context, part, counts);
        piece(&context.parts.parts[part as usize], share)
    });
    let mut pieces: Vec<Part> = of_accesses.collect();
    // For sites without accesses from the latency sampler, timer samples give the waiting time.
    for ((site, thread), weight_ns) in samples {
        let is_of = |part: &Part| (part.site, part.thread) == (site, thread);
        if pieces.iter().any(is_of) {
            continue;
        }
        let of_thread = || context.parts.of(site).iter().filter(|part| is_of(part));
        let whole_ns: f64 = of_thread().map(|part| part.time_ns).sum();
        let timed = of_thread().filter(|part| part.time_ns > 0.0);
        let share = (weight_ns as f64 / whole_ns).min(1.0);
        pieces.extend(timed.map(|part| piece(part, share)));
    }
    pieces.sort_by_key(|part| (part.site, part.thread, part.group));
    pieces
}

/// Part of an access, and the executions that the access represents.
fn part_of(context: &Context<'_>, one: &Observation) -> Option<(u32, f64)> {
    match one.basis {
        Basis::Access {
            position, weight, ..
        } => Some((context.part_of[position as usize]?, weight)),
        Basis::Sample { .. } => None,
    }
}

/// A line with one kind of contention.
struct Contended<'a> {
    line: &'a Line,
    contention: &'a Contention,
    /// Object that most accesses to the line went to.
    group: GroupId,
    /// Other objects in the line.
    others: Vec<GroupId>,
    /// Cost of the conflicting accesses.
    sum: Sum,
    by_thread: BTreeMap<ThreadId, f64>,
    counts: Counts,
    by_site: BTreeMap<SiteId, (u64, bool)>,
}

impl<'a> Contended<'a> {
    fn new(
        context: &Context<'_>,
        totals: &Totals,
        line: &'a Line,
        contention: &'a Contention,
        kind: Kind,
    ) -> Self {
        let mut groups: BTreeMap<GroupId, u64> = BTreeMap::new();
        let mut parts: BTreeMap<u32, Counts> = BTreeMap::new();
        let mut samples: BTreeMap<(SiteId, ThreadId), u64> = BTreeMap::new();
        let mut counts = Counts::default();
        let mut by_site: BTreeMap<SiteId, (u64, bool)> = BTreeMap::new();
        for (one, conflict) in line.observations.iter().zip(&contention.conflicts) {
            let group = one
                .object
                .map_or(Groups::UNKNOWN, |object| context.groups.of(object));
            *groups.entry(group).or_default() += 1;
            if *conflict != kind.conflict() {
                continue;
            }
            let site = by_site.entry(one.site).or_default();
            site.0 += 1;
            site.1 |= one.stores;
            match one.basis {
                Basis::Access { ticks, weight, .. } => {
                    counts.add(ticks, weight);
                    if let Some((part, _)) = part_of(context, one) {
                        parts.entry(part).or_default().add(ticks, weight);
                    }
                }
                Basis::Sample { weight_ns } => {
                    *samples.entry((one.site, one.thread)).or_default() += weight_ns;
                }
            }
        }
        let mut sum = Sum::default();
        let mut by_thread: BTreeMap<ThreadId, f64> = BTreeMap::new();
        for part in conflicting_parts(context, totals, &parts, samples) {
            sum.add(context, &part);
            *by_thread.entry(part.thread).or_default() += part.stall_ns;
        }
        let group = groups
            .iter()
            .filter(|(group, _)| **group != Groups::UNKNOWN)
            .max_by_key(|(group, count)| (**count, std::cmp::Reverse(**group)))
            .map_or(Groups::UNKNOWN, |(group, _)| *group);
        Self {
            line,
            contention,
            group,
            others: groups
                .into_keys()
                .filter(|&other| other != group && other != Groups::UNKNOWN)
                .collect(),
            sum,
            by_thread,
            counts,
            by_site,
        }
    }

    /// What can be saved where the line costs `all`.
    fn saving(&self, context: &Context<'_>, kind: Kind, all: Option<Figure>) -> Option<Figure> {
        match kind {
            Kind::False => all,
            // The saving from less true sharing depends on what the program must share.
            Kind::True => {
                let is_separable = !self.separable_bytes(context).is_empty();
                all.filter(|_| is_separable).map(up_to)
            }
        }
    }

    /// Bytes of a shared line that the program should move to other lines. If one thread alone uses and writes some
    /// bytes, these. Else, if several threads each write bytes that no other thread writes (the head and the tail of a
    /// queue), the bytes of each thread. A write of them takes the line away from the other threads.
    ///
    /// There are none where the line has false sharing of its own, where the threads contend for a lock, which
    /// protects such bytes, and where they take turns, so that each write is waited for in any case.
    fn separable_bytes(&self, context: &Context<'_>) -> Vec<OwnBytes> {
        if self.contention.is_false || is_locked(context, std::slice::from_ref(self)) {
            return Vec::new();
        }
        let mut own = self.contention.own_bytes();
        if own.iter().any(|it| !it.are_read) {
            own.retain(|it| !it.are_read);
            own.truncate(1);
        } else if own.len() < 2 || take_turns(self.line, &own) {
            own.clear();
        }
        own
    }
}

/// True if each thread reads what the others write at least as often, nearly, as it writes its own bytes.
fn take_turns(line: &Line, own: &[OwnBytes]) -> bool {
    let executions = |is_counted: &dyn Fn(&Observation) -> bool| -> f64 {
        let counted = line.observations.iter().filter(|one| is_counted(one));
        let weights = counted.map(|one| match one.basis {
            Basis::Access { weight, .. } => weight,
            Basis::Sample { .. } => 0.0,
        });
        weights.sum()
    };
    own.iter().all(|of_thread| {
        let writes = |one: &Observation| {
            one.thread == of_thread.thread && one.stores && one.meets(&of_thread.bytes)
        };
        let reads = |one: &Observation| {
            let mut others = own.iter().filter(|it| it.thread != of_thread.thread);
            one.thread == of_thread.thread && one.loads && others.any(|it| one.meets(&it.bytes))
        };
        let writes = executions(&writes);
        writes > 0.0 && executions(&reads) >= MIN_READS_EACH_TURN * writes
    })
}

/// The saving where a part of an access's cost remains, and nothing shows which: anything up to `all` of it.
fn up_to(all: Figure) -> Figure {
    Figure {
        value: all.value / 2.0,
        low: 0.0,
        basis: FigureBasis::Estimated,
        ..all
    }
}

/// The fraction `share` of `part`.
fn piece(part: &Part, share: f64) -> Part {
    Part {
        samples: part.samples * share,
        time_ns: part.time_ns * share,
        sure_ns: part.sure_ns * share,
        stall_ns: part.stall_ns * share,
        levels: part.levels.times(share),
        executions: part.executions.map(|executed| executed.times(share)),
        ..*part
    }
}

/// Builds one finding about `lines` of one object; the first line costs most.
fn finding(
    context: &Context<'_>,
    process: ProcessId,
    kind: Kind,
    lines: &[Contended<'_>],
) -> SharedLine {
    let run = context.run;
    let worst = &lines[0];
    let line_bytes = context.machine.line_bytes;
    let group = context.groups.get(worst.group);
    let mut object = group.name.clone();
    for other in &worst.others {
        object = format!("{object} and {}", context.groups.get(*other).name);
    }
    let mut counts = Counts::default();
    let (mut stall_ns, mut low, mut high) = (0.0, 0.0, 0.0);
    let mut by_thread: BTreeMap<ThreadId, f64> = BTreeMap::new();
    let mut by_site: BTreeMap<SiteId, (u64, bool)> = BTreeMap::new();
    for line in lines {
        counts.merge(line.counts);
        stall_ns += line.sum.stall_ns;
        let bound = line.sum.bound(context);
        low += bound.low;
        high += bound.high;
        for (thread, stall_ns) in &line.by_thread {
            *by_thread.entry(*thread).or_default() += stall_ns;
        }
        for (site, (accesses, stores)) in &line.by_site {
            let sum = by_site.entry(*site).or_default();
            sum.0 += accesses;
            sum.1 |= stores;
        }
    }
    let stall_fraction = context.times.share(stall_ns);
    // The share of the stall at these lines was estimated from this many accesses: add its sampling error.
    let observed: usize = lines.iter().map(|line| line.line.observations.len()).sum();
    let chance = 1.96 / (observed.max(1) as f64).sqrt();
    let relative = (
        (low.min(stall_fraction) / stall_fraction.max(f64::MIN_POSITIVE) - chance).max(0.0),
        high.max(stall_fraction) / stall_fraction.max(f64::MIN_POSITIVE) + chance,
    );
    let avg_latency_ns = counts
        .mean()
        .and_then(|ticks| context.machine.latency_of(ticks));
    let mut addresses: Vec<u64> = lines.iter().map(|line| line.line.address).collect();
    addresses.sort_unstable();
    let confirmed = confirmed(context, process, &addresses);
    SharedLine {
        line_address: worst.line.address,
        line_bytes,
        pid: run.processes[process.index()].pid,
        advice: advice(context, kind, &object, lines),
        object,
        alloc_stack: group.stack.map_or_else(Vec::new, |stack| {
            allocation_chain(run, &context.places, stack)
        }),
        object_offset: offset(context, worst),
        threads: threads(context, &worst.contention.users),
        offsets: offsets(worst, kind),
        sites: sites(context, by_site),
        avg_latency_ns,
        avg_latency_cycles: avg_latency_ns.and_then(|ns| context.machine.cycles(ns)),
        l1_latency_ns: context.machine.l1_ns(),
        stall_fraction,
        held: Vec::new(),
        predicted_gain: worst.saving(context, kind, gain(context, &by_thread, relative)),
        confidence: confidence(context, lines, confirmed.as_deref()),
        confirmed,
        lines: addresses,
    }
}

/// Offset of the line in its object.
fn offset(context: &Context<'_>, line: &Contended<'_>) -> Option<u64> {
    let observed = line.line.observations.iter();
    let object = observed
        .filter_map(|one| one.object)
        .find(|object| context.groups.of(*object) == line.group)?;
    let object = &context.run.objects[object.index()];
    // An object may begin inside the line.
    (!object.is_unrecorded()).then(|| line.line.address.saturating_sub(object.address))
}

fn threads(context: &Context<'_>, users: &[User]) -> Vec<SharingThread> {
    users
        .iter()
        .map(|user| {
            let thread = &context.run.threads[user.thread.index()];
            SharingThread {
                tid: thread.tid,
                name: thread.name.clone(),
                from: user.from,
                to: user.to,
                loads: user.loads,
                stores: user.stores,
            }
        })
        .collect()
}

fn offsets(line: &Contended<'_>, kind: Kind) -> Vec<u32> {
    let offsets: BTreeSet<u32> = line
        .line
        .observations
        .iter()
        .zip(&line.contention.conflicts)
        .filter(|(_, conflict)| **conflict == kind.conflict())
        .map(|(one, _)| one.from)
        .collect();
    offsets.into_iter().collect()
}

fn sites(context: &Context<'_>, by_site: BTreeMap<SiteId, (u64, bool)>) -> Vec<SharingSite> {
    let places = &context.places;
    let mut sites: BTreeMap<(String, String, bool), u64> = BTreeMap::new();
    for (site, (accesses, stores)) in by_site {
        let frame = context.run.sites[site.index()].frame;
        let line = places.line(places.line_of(frame));
        let name = if line.line.is_some() {
            line.name.clone()
        } else {
            context.run.sites[site.index()].text.clone()
        };
        *sites
            .entry((name, line.function.clone(), stores))
            .or_default() += accesses;
    }
    let mut sites: Vec<SharingSite> = sites
        .into_iter()
        .map(|((name, function, stores), accesses)| SharingSite {
            name,
            function,
            stores,
            accesses,
        })
        .collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.accesses));
    sites.truncate(MAX_SITES);
    sites
}

/// Watchpoint hits on these lines; `None` if no watchpoint was set there.
fn confirmed(
    context: &Context<'_>,
    process: ProcessId,
    addresses: &[u64],
) -> Option<Vec<WatchedBytes>> {
    let run = context.run;
    let line_bytes = u64::from(context.machine.line_bytes);
    let mut hits: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for hit in &run.watched {
        let thread = &run.threads[hit.thread.index()];
        let line = hit.address & !(line_bytes - 1);
        if thread.process == process && addresses.binary_search(&line).is_ok() {
            let offset = (hit.address - line) as u32;
            *hits
                .entry((thread.tid, offset, u32::from(hit.bytes)))
                .or_default() += 1;
        }
    }
    (!hits.is_empty()).then(|| {
        hits.into_iter()
            .map(|((tid, offset, bytes), hits)| WatchedBytes {
                tid,
                offset,
                bytes,
                hits,
            })
            .collect()
    })
}

/// Share of the elapsed time that would be saved if these accesses hit.
///
/// Contending threads run at once, so the run is longer by what the slowest of them waits; at least their
/// average is saved if they wait for each other.
fn gain(
    context: &Context<'_>,
    by_thread: &BTreeMap<ThreadId, f64>,
    relative: (f64, f64),
) -> Option<Figure> {
    let elapsed_ns = context.run.meta.elapsed_ns as f64;
    let sum: f64 = by_thread.values().sum();
    if elapsed_ns <= 0.0 || sum <= 0.0 {
        return None;
    }
    let squares: f64 = by_thread.values().map(|stall| stall * stall).sum();
    let most = by_thread.values().copied().fold(0.0, f64::max);
    let mean = sum / by_thread.len() as f64;
    let value = (squares / sum / elapsed_ns).min(1.0);
    let low = (mean.min(squares / sum) / elapsed_ns * relative.0).min(value);
    let high = (most / elapsed_ns * relative.1).clamp(value, 1.0);
    Some(Figure {
        value,
        low,
        high,
        basis: FigureBasis::Estimated,
    })
}

/// Confidence of a finding, from the number of alternations between threads, the confidence of
/// attributions, and whether watchpoints were hit by two threads.
fn confidence(
    context: &Context<'_>,
    lines: &[Contended<'_>],
    confirmed: Option<&[WatchedBytes]>,
) -> f64 {
    let tids: BTreeSet<u32> = confirmed
        .unwrap_or_default()
        .iter()
        .map(|hit| hit.tid)
        .collect();
    if tids.len() >= 2 {
        return 1.0;
    }
    let alternations = lines
        .iter()
        .map(|line| line.contention.alternations)
        .max()
        .unwrap_or(0) as f64;
    let least = context.options.thresholds.sharing_turns as f64;
    let (waited, sure) = lines.iter().fold((0.0, 0.0), |(waited, sure), line| {
        (waited + line.sum.waited_ns, sure + line.sum.sure_ns)
    });
    let attributed = if waited > 0.0 { sure / waited } else { 0.5 };
    alternations / (alternations + least) * (0.5 + 0.5 * attributed)
}

fn advice(context: &Context<'_>, kind: Kind, object: &str, lines: &[Contended<'_>]) -> String {
    let bytes = context.machine.line_bytes;
    let worst = &lines[0];
    match kind {
        Kind::False => {
            let users = worst.contention.users.iter().map(|user| {
                let thread = &context.run.threads[user.thread.index()];
                format!("thread {} uses {}–{}", thread.tid, user.from, user.to - 1)
            });
            let users: Vec<String> = users.collect();
            let similar_lines = match lines.len() {
                1 => String::new(),
                count => format!(" ({count} lines like this one)"),
            };
            format!(
                "Give each thread's part of {object} a line of its own: align its type to \
                 {bytes} bytes (alignas({bytes}), #[repr(align({bytes}))]) or pad it to a \
                 multiple of {bytes}; of one line, byte by byte, {}{similar_lines}.",
                names::list(&users, 3)
            )
        }
        // The thread that holds the lock also needs the data next to it.
        Kind::True if is_locked(context, lines) => format!(
            "Threads wait for each other at an atomic word of {object}: take that lock, or count \
             there, less often or for less time, or give each thread one of its own; keep data that a lock \
             protects next to it, since padding between the two would cost another miss."
        ),
        Kind::True => match &worst.separable_bytes(context)[..] {
            [own] if !own.are_read => format!(
                "Thread {} alone uses bytes {}–{} of this line and writes them: place them on a line \
                 of their own, so that these writes do not take the rest of the line away from the \
                 threads that share it.",
                context.run.threads[own.thread.index()].tid,
                own.bytes.start,
                own.bytes.end - 1
            ),
            own @ [_, _, ..] => {
                let own = own.iter().map(|own| {
                    let thread = &context.run.threads[own.thread.index()];
                    let (first, last) = (own.bytes.start, own.bytes.end - 1);
                    format!("thread {} bytes {first}–{last}", thread.tid)
                });
                let own: Vec<String> = own.collect();
                format!(
                    "Each thread alone writes its part of this line of {object}: {}. Give each part a \
                     line of its own, so that a thread that writes its part does not take the others' \
                     away, and read the others' parts seldom, for several items at once.",
                    names::list(&own, 3)
                )
            }
            _ if worst.contention.writers() == 1 => format!(
                "One thread writes bytes of {object} that others read: write and read them less \
                 often, for several items at once."
            ),
            _ => format!(
                "Several threads write the same bytes of {object}: let each gather in a variable \
                 of its own and combine them once, or update it less often."
            ),
        },
    }
}

/// True if threads contend for a word that locked instructions change.
fn is_locked(context: &Context<'_>, lines: &[Contended<'_>]) -> bool {
    let mut sites = lines.iter().flat_map(|line| line.by_site.keys());
    sites.any(|site| context.run.sites[site.index()].kind == SiteKind::Locked)
}
