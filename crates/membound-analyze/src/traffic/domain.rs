//! Traffic of a domain over time, as a histogram, by object and by line.

use std::collections::BTreeMap;

use membound_run::{RunData, Sample};
use membound_types::{BandwidthBin, BandwidthDomain, BandwidthMoment, Basis, NamedShare, Outcome};
use rustc_hash::FxHashMap;

use super::burst_traffic::{BurstTraffic, Bytes, busy, function_of};
use super::caches::Caches;
use super::node_or_link::NodeOrLink;
use super::rates::{Patched, Rates, Through};
use crate::context::Context;
use crate::info;
use crate::places::FunctionId;

/// Most moments of a timeline.
const MAX_MOMENTS: u64 = 200;

/// Fewest timer periods in a moment.
const MIN_PERIODS_PER_MOMENT: u64 = 20;

/// Bins of a histogram.
const HISTOGRAM_BINS: usize = 20;

/// Most objects and lines that are named.
const MAX_NAMED_ROWS: usize = 20;

/// Smallest share that is named.
const MIN_NAMED_SHARE: f64 = 0.001;

/// Traffic measured by hardware counters, by domain.
pub(crate) fn counted(context: &Context<'_>) -> Vec<BandwidthDomain> {
    let run = context.run;
    let mut domains: BTreeMap<&str, Timeline> = BTreeMap::new();
    for traffic in &run.traffic {
        let bytes = Bytes {
            read: traffic.read_bytes as f64,
            written: traffic.write_bytes as f64,
        };
        domains
            .entry(&traffic.domain)
            .or_insert_with(|| Timeline::new(context))
            .count(traffic.from_ns, traffic.to_ns, bytes);
    }
    let most = context.machine.profile.and_then(Caches::new);
    domains
        .into_iter()
        .map(|(name, timeline)| {
            let most = match &most {
                Some(caches) => match NodeOrLink::of(name) {
                    // The maximum of all memory is no limit for one node of several.
                    Some(NodeOrLink::Dram(_)) if run.meta.nodes <= 1 => {
                        caches.most_of(timeline.written(), busy(context))
                    }
                    Some(place) => caches.most_at(place, timeline.written()),
                    None => caches.most_of(timeline.written(), busy(context)),
                },
                None => Outcome::missing_with(
                    "the run holds no machine profile",
                    "run `membound measure` first",
                ),
            };
            timeline.domain(name, Basis::Measured, most)
        })
        .collect()
}

/// Traffic according to the cache model, with all of memory as one domain.
pub(crate) fn modelled(
    context: &Context<'_>,
    caches: &Caches,
    burst_traffic: &BurstTraffic,
    rates: &Rates,
) -> Vec<BandwidthDomain> {
    let run = context.run;
    let mut timeline = Timeline::new(context);
    // By function: how often it repeated what bursts recorded.
    let mut repeated: BTreeMap<_, f64> = BTreeMap::new();
    each_recorded(context, burst_traffic, rates, |recorded| {
        *repeated.entry(recorded.function).or_default() += recorded.times;
        let mut moved = Bytes::default();
        moved.add(recorded.bytes, recorded.times);
        timeline.spread(recorded.begun_ns(), recorded.sample.t_ns, moved);
    });
    let mut objects: BTreeMap<_, f64> = BTreeMap::new();
    let mut lines: BTreeMap<_, f64> = BTreeMap::new();
    let (mut all, mut least, mut most_bytes) = (0.0, 0.0, 0.0);
    for (site, of_site) in &burst_traffic.sites {
        let times = repeated
            .get(&function_of(context, *site))
            .copied()
            .unwrap_or(0.0);
        let line = context.places.line_of(run.sites[site.index()].frame);
        for (group, bytes) in &of_site.bytes {
            *objects.entry(*group).or_default() += bytes.total() * times;
            *lines.entry(line).or_default() += bytes.total() * times;
            let (fewest, most) = context.costs[site.index()]
                .executed
                .map_or((1.0, 1.0), |executed| executed.ends());
            all += bytes.total() * times;
            least += bytes.total() * times * fewest;
            most_bytes += bytes.total() * times * most;
        }
    }
    let most = caches.most_of(timeline.written(), busy(context));
    let mut domain = timeline.domain("DRAM", Basis::Modelled, most);
    if all > 0.0 {
        domain.average_low_gb_s = Some(domain.average_gb_s * least / all);
        domain.average_high_gb_s = Some(domain.average_gb_s * most_bytes / all);
    }
    domain.objects = named(objects, |group| context.groups.get(*group).name.clone());
    domain.lines = named(lines, |line| context.places.line(*line).name.clone());
    vec![domain]
}

/// Sample in a function that bursts recorded.
pub(super) struct Recorded<'a> {
    pub sample: &'a Sample,
    pub function: FunctionId,
    /// Bytes moved by all bursts of the function together.
    pub bytes: Bytes,
    /// How often these bytes were moved in the time of the sample.
    pub times: f64,
}

impl Recorded<'_> {
    /// Start of the time that the sample represents.
    pub(super) const fn begun_ns(&self) -> u64 {
        self.sample.t_ns.saturating_sub(self.sample.weight_ns)
    }
}

/// Calls `each` for every sample of the selected threads with modelled traffic.
pub(super) fn each_recorded(
    context: &Context<'_>,
    burst_traffic: &BurstTraffic,
    rates: &Rates,
    mut each: impl FnMut(Recorded<'_>),
) {
    let run = context.run;
    let patched: Vec<Patched> = (0..run.threads.len() as u32)
        .map(|thread| Patched::of_thread(context, membound_run::ThreadId(thread)))
        .collect();
    let selected = run.samples.iter();
    for sample in selected.filter(|sample| context.is_selected(sample.thread)) {
        let frame = run.stacks[sample.stack.index()].frame;
        let function = context.places.function_of(frame);
        let (Some(rate), Some(bytes)) = (
            rates.functions.get(&function),
            burst_traffic.functions.get(&function),
        ) else {
            continue;
        };
        let slowed =
            rate.through == Through::Advances && patched[sample.thread.index()].at(sample.t_ns);
        if slowed || info::is_own(run, frame) {
            continue;
        }
        each(Recorded {
            sample,
            function,
            bytes: *bytes,
            times: rate.per_ns * sample.weight_ns as f64,
        });
    }
}

/// Names with their shares of the total, largest first.
pub(super) fn named<K: Ord>(
    parts: BTreeMap<K, f64>,
    name: impl Fn(&K) -> String,
) -> Vec<NamedShare> {
    let all: f64 = parts.values().sum();
    let mut by_name: FxHashMap<String, f64> = FxHashMap::default();
    for (key, bytes) in &parts {
        *by_name.entry(name(key)).or_default() += bytes;
    }
    let mut shares: Vec<NamedShare> = by_name
        .into_iter()
        .map(|(name, bytes)| NamedShare {
            name,
            fraction: if all > 0.0 { bytes / all } else { 0.0 },
        })
        .filter(|share| share.fraction >= MIN_NAMED_SHARE)
        .collect();
    shares.sort_by(|a, b| {
        b.fraction
            .total_cmp(&a.fraction)
            .then_with(|| a.name.cmp(&b.name))
    });
    shares.truncate(MAX_NAMED_ROWS);
    shares
}

/// Bytes by moment of time.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    moment_ns: u64,
    start_ns: u64,
    end_ns: u64,
    moments: Vec<Bytes>,
}

impl Timeline {
    pub(super) fn new(context: &Context<'_>) -> Self {
        let run = context.run;
        if !context.span.is_all() {
            return Self::between(context.span.from_ns, context.span.to_ns, run);
        }
        // Recording may continue after the program's end to finish pending work: end the timeline with the
        // program.
        let ended: Option<u64> = run.processes.iter().map(|it| it.end_ns).max().flatten();
        let all = run.processes.iter().all(|it| it.end_ns.is_some());
        let end_ns = ended
            .filter(|_| all)
            .map_or(run.meta.elapsed_ns, |end| end.min(run.meta.elapsed_ns))
            .max(1);
        Self::between(0, end_ns, run)
    }

    fn between(start_ns: u64, end_ns: u64, run: &RunData) -> Self {
        let end_ns = end_ns.max(start_ns + 1);
        let length_ns = end_ns - start_ns;
        let moment_ns = length_ns
            .div_ceil(MAX_MOMENTS)
            .max(MIN_PERIODS_PER_MOMENT * run.meta.period_ns)
            .max(1);
        Self {
            moment_ns,
            start_ns,
            end_ns,
            moments: vec![Bytes::default(); length_ns.div_ceil(moment_ns) as usize],
        }
    }

    /// Length of the timeline in nanoseconds.
    fn all_ns(&self) -> f64 {
        (self.end_ns - self.start_ns) as f64
    }

    /// Adds counted traffic from `from_ns` to `to_ns`, as far as it lies in the timeline.
    fn count(&mut self, from_ns: u64, to_ns: u64, bytes: Bytes) {
        let inside = to_ns
            .min(self.end_ns)
            .saturating_sub(from_ns.max(self.start_ns));
        let starts_inside = (self.start_ns..self.end_ns).contains(&from_ns);
        if inside > 0 || (from_ns == to_ns && starts_inside) {
            let share = inside.max(1) as f64 / to_ns.saturating_sub(from_ns).max(1) as f64;
            let mut part = Bytes::default();
            part.add(bytes, share);
            self.spread(from_ns.max(self.start_ns), to_ns, part);
        }
    }

    /// Adds bytes that were moved evenly from `from_ns` to `to_ns`. What lies outside of the timeline
    /// counts at its nearest end.
    pub(super) fn spread(&mut self, from_ns: u64, to_ns: u64, bytes: Bytes) {
        let to_ns = to_ns.clamp(self.start_ns + 1, self.end_ns);
        let from_ns = from_ns.clamp(self.start_ns, to_ns - 1);
        let whole = to_ns.saturating_sub(from_ns).max(1) as f64;
        let last = self.moments.len() - 1;
        let mut at = from_ns;
        while at < to_ns {
            let moment = ((at - self.start_ns) / self.moment_ns) as usize;
            let next = (self.start_ns + (moment as u64 + 1) * self.moment_ns).min(to_ns);
            self.moments[moment.min(last)].add(bytes, (next - at) as f64 / whole);
            at = next;
        }
    }

    /// Share of all bytes that were written, 0 to 1.
    pub(super) fn written(&self) -> f64 {
        let (mut all, mut written) = (0.0, 0.0);
        for bytes in &self.moments {
            all += bytes.total();
            written += bytes.written;
        }
        if all > 0.0 { written / all } else { 0.0 }
    }

    fn length_ns(&self, moment: usize) -> f64 {
        let from = self.start_ns + moment as u64 * self.moment_ns;
        (self.end_ns.min(from + self.moment_ns) - from).max(1) as f64
    }

    pub(super) fn domain(self, name: &str, basis: Basis, most: Outcome<f64>) -> BandwidthDomain {
        // Bytes per nanosecond are 10⁹ bytes per second.
        let timeline: Vec<BandwidthMoment> = self
            .moments
            .iter()
            .enumerate()
            .map(|(at, bytes)| BandwidthMoment {
                t_s: info::seconds(self.start_ns + at as u64 * self.moment_ns),
                read_gb_s: bytes.read / self.length_ns(at),
                write_gb_s: bytes.written / self.length_ns(at),
            })
            .collect();
        let all: f64 = self.moments.iter().map(|bytes| bytes.total()).sum();
        let highest = timeline
            .iter()
            .map(|it| it.read_gb_s + it.write_gb_s)
            .fold(most.known().copied().unwrap_or(0.0), f64::max);
        let step = highest / HISTOGRAM_BINS as f64;
        let mut histogram: Vec<BandwidthBin> = (0..HISTOGRAM_BINS)
            .map(|at| BandwidthBin {
                from_gb_s: step * at as f64,
                to_gb_s: step * (at + 1) as f64,
                fraction: 0.0,
            })
            .collect();
        for (at, moment) in timeline.iter().enumerate() {
            let gb_s = moment.read_gb_s + moment.write_gb_s;
            let bin = if step > 0.0 {
                ((gb_s / step) as usize).min(HISTOGRAM_BINS - 1)
            } else {
                0
            };
            histogram[bin].fraction += self.length_ns(at) / self.all_ns();
        }
        BandwidthDomain {
            domain: name.to_owned(),
            basis,
            timeline,
            histogram,
            machine_max_gb_s: most,
            average_gb_s: all / self.all_ns(),
            average_low_gb_s: None,
            average_high_gb_s: None,
            objects: Vec::new(),
            lines: Vec::new(),
        }
    }
}
