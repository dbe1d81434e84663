//! The stall of one instruction.

use super::mixture::Z95;
use super::{ByLevel, Estimate, Mixture, Served};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Touch {
    /// It reads (and may write).
    Reads,
    /// It writes only: nothing waits for it but the room in which stores wait.
    Writes,
    /// It reads and writes in one step that no other core sees half of.
    Locked,
}

/// Executions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// How often, over the whole run.
    pub count: f64,
    /// Lower end of its 95 % interval (counted in part of the run only).
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Executed {
    /// The count and its interval times a positive `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            count: self.count * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }

    /// The ends of its interval as shares of the count.
    fn ends(self) -> (f64, f64) {
        if self.count > 0.0 {
            (self.low / self.count, self.high / self.count)
        } else {
            (1.0, 1.0)
        }
    }
}

/// Lines that a site moves in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Lines that an execution moves: its advance ÷ bytes of a line, at most 1 (twice as
    /// many where lines are written back).
    pub lines_per_execution: f64,
    /// Time that a thread takes for a line at the bandwidth that the machine was measured to
    /// have, in nanoseconds.
    pub line_ns: f64,
    /// Time in nanoseconds that lines take which other accesses of the same loop move in order
    /// for each execution of this one. They share the bandwidth, and samples of the loop lie
    /// behind whichever of its accesses waits.
    pub beside_ns: f64,
    /// How many such accesses there are.
    pub beside: u32,
    /// CPU time of the function that the stream's loop is in, in nanoseconds.
    pub function_ns: f64,
    /// Where the lines come from.
    pub served: Served,
}

impl Stream {
    /// Time in nanoseconds that the lines of so many executions take.
    fn moved_ns(&self, executions: f64) -> f64 {
        executions
            * self
                .lines_per_execution
                .mul_add(self.line_ns, self.beside_ns)
    }

    /// How certain it is that the loop waits for bandwidth, 0 to 1, from the part of its time in
    /// which so many executions' lines can be moved at all.
    fn bound(&self, executions: f64) -> f64 {
        if self.function_ns <= 0.0 {
            return 0.0;
        }
        let used = self.moved_ns(executions) / self.function_ns;
        ((used - UNBOUND_USE) / (BOUND_USE - UNBOUND_USE)).clamp(0.0, 1.0)
    }
}

/// How much longer lines may take than at the machine's measured bandwidth.
const HIGHEST_USE: f64 = 1.5;

/// Part of the measured bandwidth up to which a loop may wait for something else, and from which
/// on it waits for bandwidth.
const UNBOUND_USE: f64 = 0.5;
const BOUND_USE: f64 = 0.9;

/// Part of a hit's latency that an access of a loop costs which goes through memory in order:
/// such hits overlap. From a core that begins four of them in a cycle to one that computes with
/// each; the value is that of copies, triads and stencils in the first cache.
const OVERLAPPED_HIT: Overlap = Overlap {
    least: 0.05,
    usual: 0.1,
    most: 0.2,
};

struct Overlap {
    least: f64,
    usual: f64,
    most: f64,
}

/// What hits cost at a site whose accesses overlap, as parts of their latency.
struct OverlappedHits {
    least: f64,
    usual: f64,
}

/// Accesses under way at a time from which on the latency of hits is hidden as far as possible.
const HIDING: f64 = 2.0;

impl OverlappedHits {
    /// The executions of a site took `time_ns` together. One after the other each would take its average latency;
    /// the ratio of the two is how many were under way at a time.
    fn of(time_ns: f64, executed: Executed, mixture: &Mixture) -> Self {
        let at_a_time = executed.count * mixture.mean_ns.value / time_ns.max(f64::MIN_POSITIVE);
        let hidden = ((at_a_time - 1.0) / (HIDING - 1.0)).clamp(0.0, 1.0);
        let part = |all_hidden: f64| 1.0 - hidden * (1.0 - all_hidden);
        Self {
            least: part(OVERLAPPED_HIT.least),
            usual: part(OVERLAPPED_HIT.most),
        }
    }
}

/// Lines of a site that threads take from each other.
///
/// A load finds such a line where an earlier store has just fetched it, and a store retires
/// before it has its line, so that neither shows in the latency of the load what is waited
/// for; but it takes time until all earlier stores are done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contended {
    /// Share of the site's executions that access such lines, 0 to 1.
    pub share: f64,
    /// Time that one of these takes beyond a hit until it and all stores before it are done,
    /// in nanoseconds.
    pub excess_ns: f64,
    /// Part of the cost of a hit that it would have without the fight, 0 to 1: of several
    /// accesses to one line one waits, and the others beside it.
    pub hit_share: f64,
}

/// The loop around a site, as the work that goes on in it.
///
/// A processor does other work of a loop while an access waits, and then none of that work is seen in
/// samples. With the data near it would take its time again: the access does not cost the program that part of
/// what is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Instructions of the loop that are executed once for each execution of the site.
    pub instructions: f64,
    /// CPU time of samples of the loop that waited for none of its accesses, in nanoseconds.
    pub visible_ns: f64,
    /// CPU time of samples that waited for accesses of the loop, this one or others, in nanoseconds.
    pub waiting_ns: f64,
}

/// Cycles that an instruction takes where nothing waits for memory: of code that keeps four units busy, and of code
/// that mispredicts often.
const CYCLES_PER_INSTRUCTION: Overlap = Overlap {
    least: 0.25,
    usual: 0.5,
    most: 1.0,
};

impl Work {
    /// Time in nanoseconds that is hidden behind the waits of a site, of whose own cost `hits_ns` is not counted
    /// as waited for, where an instruction takes `cycles`.
    fn hidden_ns(
        &self,
        evidence: &Evidence<'_>,
        executions: f64,
        hits_ns: f64,
        cycles: f64,
        costs: &Costs,
    ) -> f64 {
        if costs.core_hz <= 0.0 || self.waiting_ns <= 0.0 {
            return 0.0;
        }
        let all_ns = executions * self.instructions * cycles * 1e9 / costs.core_hz;
        let of_site = (evidence.time_ns / self.waiting_ns).min(1.0);
        ((all_ns - self.visible_ns) * of_site - hits_ns).max(0.0)
    }

    /// `stall` without what is hidden.
    fn left(
        &self,
        stall: Estimate,
        evidence: &Evidence<'_>,
        executed: Executed,
        costs: &Costs,
    ) -> Estimate {
        let hits_ns = (evidence.time_ns - stall.value).max(0.0);
        let hidden = |executions: f64, cycles: f64| {
            self.hidden_ns(evidence, executions, hits_ns, cycles, costs)
        };
        let Overlap { least, usual, most } = CYCLES_PER_INSTRUCTION;
        Estimate::new(
            stall.value - hidden(executed.count, usual),
            stall.low - hidden(executed.high, most),
            stall.high - hidden(executed.low, least),
        )
        .clamped(0.0, evidence.time_ns)
    }
}

/// What is known of a site.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// What it does.
    pub touch: Touch,
    /// CPU time of the samples that are attributed to it, in nanoseconds.
    pub time_ns: f64,
    /// CPU time of all samples.
    pub total_ns: f64,
    /// How many samples of equal weight all samples amount to: (Σw)² ÷ Σw².
    pub samples: f64,
    /// How sure the attribution is, 0 to 1.
    pub confidence: f64,
    /// Executions, where they were counted.
    pub executed: Option<Executed>,
    /// Its latencies, where they were timed.
    pub mixture: Option<&'a Mixture>,
    /// Its stream, where it is one.
    pub stream: Option<Stream>,
    /// Lines that threads fight over, where it accesses some.
    pub contended: Option<Contended>,
    /// The loop around it, where it is known.
    pub work: Option<Work>,
}

/// What things cost on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A hit in the innermost cache, in nanoseconds.
    pub l1_ns: f64,
    /// A locked operation on a line that the innermost cache holds, in nanoseconds; 0 where it
    /// is not known.
    pub locked_ns: f64,
    /// Core clock in hertz.
    pub core_hz: f64,
}

/// The stall of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// Stalled time in nanoseconds.
    pub stall_ns: Estimate,
    /// The same by level; sums to `stall_ns.value`.
    pub levels: ByLevel,
    /// Share of it that fights over lines cost, 0 to 1; `None` where that is not known.
    pub fought: Option<f64>,
    /// Average latency in nanoseconds, where accesses were timed.
    pub latency_ns: Option<Estimate>,
    /// The same in core clock cycles.
    pub latency_cycles: Option<Estimate>,
    /// Share of the site's time that is stalled, with the errors of everything but sampling:
    /// see [`super::combine`].
    pub ratio: Estimate,
    /// CPU time of its samples, in nanoseconds.
    pub time_ns: f64,
}

/// Share of the time of a site that is stalled when nothing but its time is known.
const UNKNOWN_SHARE: f64 = 0.5;

impl Stall {
    /// What `evidence` amounts to.
    ///
    /// With T the time, N the executions and h the cost of a hit, T − N·h is the most that a
    /// site's own accesses can have stalled when each waits for itself. Accesses that overlap
    /// wait for each other: then the hits' cost is hidden for the most part, or T divides as the latencies do.
    /// Neither can be more than N times the average latency beyond h, for accesses that
    /// advance in order N times their lines at the memory's bandwidth (of which they wait for
    /// the more, the more of it they use): other time at this place is not the memory's. Stores that are not timed have no such limit; what is
    /// sampled behind them waited for their room. Where T is what N accesses take that each
    /// wait for themselves, all of these are the same quantity, and are weighted by how well
    /// each is known.
    #[must_use]
    pub fn of(evidence: &Evidence<'_>, costs: &Costs) -> Self {
        let time_ns = evidence.time_ns.max(0.0);
        let (stall, levels) = match (evidence.executed, evidence.mixture) {
            (Some(executed), Some(mixture)) => {
                let (stall, levels) = timed(evidence, executed, mixture, costs);
                // What a stream waits for is told by its bandwidth.
                let work = evidence.work.filter(|_| evidence.stream.is_none());
                let left = work.map(|work| work.left(stall, evidence, executed, costs));
                (left.unwrap_or(stall), levels)
            }
            (Some(executed), None) => counted(evidence, executed, costs),
            (None, Some(mixture)) => {
                let share = mixture.excess_ns.value / mixture.mean_ns.value.max(costs.l1_ns);
                let stall = Estimate::new(time_ns * share.min(1.0), 0.0, time_ns);
                (stall, by_level(mixture, costs))
            }
            (None, None) => {
                let stall = Estimate::new(time_ns * UNKNOWN_SHARE, 0.0, time_ns);
                (stall, ByLevel::default())
            }
        };
        let (stall, levels, fought_ns) = match (evidence.contended, evidence.executed) {
            (Some(contended), Some(executed)) => {
                let fought = fought(evidence, contended, executed, costs);
                let (stall, levels) = with_fights(contended, fought, stall, levels);
                (stall, levels, Some(fought.value))
            }
            _ => (stall, levels, None),
        };
        let stall = stall.clamped(0.0, time_ns);
        let ratio = if time_ns > 0.0 {
            stall.times(1.0 / time_ns)
        } else {
            Estimate::default()
        };
        let latency_ns = evidence.mixture.map(|mixture| mixture.mean_ns);
        let cycles = (costs.core_hz > 0.0).then_some(costs.core_hz / 1e9);
        Self {
            stall_ns: with_chance(stall, ratio.value, evidence)
                .clamped(0.0, evidence.total_ns.max(time_ns)),
            levels: levels.scaled_to(stall.value),
            fought: fought_ns.map(|ns| (ns / stall.value.max(f64::MIN_POSITIVE)).min(1.0)),
            latency_ns,
            latency_cycles: latency_ns.zip(cycles).map(|(ns, factor)| ns.times(factor)),
            ratio,
            time_ns,
        }
    }
}

impl Costs {
    /// A hit, in nanoseconds.
    fn hit_ns(&self, touch: Touch) -> f64 {
        match touch {
            Touch::Reads | Touch::Writes => self.l1_ns,
            Touch::Locked => self.l1_ns.max(self.locked_ns),
        }
    }
}

/// What is left of a site's time without its hits.
fn beyond_hits(evidence: &Evidence<'_>, executed: Executed, hit_ns: f64) -> Estimate {
    let time_ns = evidence.time_ns;
    let hits = executed.count * hit_ns;
    let (fewest, most) = executed.ends();
    let left = |hits: f64| (time_ns - hits).max(0.0);
    Estimate::new(left(hits), left(hits * most), left(hits * fewest))
}

/// The stall of accesses that were counted and timed.
fn timed(
    evidence: &Evidence<'_>,
    executed: Executed,
    mixture: &Mixture,
    costs: &Costs,
) -> (Estimate, ByLevel) {
    let time_ns = evidence.time_ns;
    let plain = beyond_hits(evidence, executed, costs.hit_ns(evidence.touch));
    let alone = each_for_itself(time_ns, plain, executed, mixture);
    if let (Some(stall), None) = (alone, evidence.stream) {
        return (stall, by_level(mixture, costs).scaled_to(stall.value));
    }
    let overlapped = time_ns * far_share(mixture, costs);
    let hit_ns = costs.hit_ns(evidence.touch);
    let hidden = OverlappedHits::of(time_ns, executed, mixture);
    // No more of the time than of the latencies: accesses that wait for each other divide it as those do.
    let far_ns = |excess_ns: f64| time_ns * excess_ns / (excess_ns + costs.l1_ns);
    let excess = mixture.excess_ns;
    let freed = beyond_hits(evidence, executed, hit_ns * hidden.usual)
        .value
        .min(far_ns(excess.value.max(0.0)))
        .max(plain.value);
    let most_freed = beyond_hits(evidence, executed, hit_ns * hidden.least)
        .high
        .min(far_ns(excess.high.max(0.0)))
        .max(plain.high);
    // Of a stream from the innermost cache nothing but hits is waited for.
    let beyond = evidence
        .stream
        .filter(|stream| stream.served != Served::L1)
        .map(|stream| {
            // The loop's work lies at its instructions as its time does.
            let hits = hit_ns * f64::from(1 + stream.beside);
            let loop_ns = stream.function_ns.max(time_ns).max(f64::MIN_POSITIVE);
            let beyond =
                |part: f64, count: f64| time_ns * (1.0 - part * count * hits / loop_ns).max(0.0);
            Estimate::new(
                beyond(OVERLAPPED_HIT.usual, executed.count),
                beyond(OVERLAPPED_HIT.most, executed.high),
                beyond(OVERLAPPED_HIT.least, executed.low),
            )
        });
    let wanted = beyond.map_or(freed, |beyond| beyond.value).max(overlapped);
    let (fewest, most) = executed.ends();
    let limit = mixture.excess_ns.times(executed.count);
    let (least, most) = (limit.low * fewest, limit.high * most);
    let of_latency = wanted.min(limit.value);
    let mut levels = by_level(mixture, costs).scaled_to(of_latency);
    let Some(stream) = evidence.stream else {
        let stall = Estimate::new(
            of_latency,
            plain.low.max(overlapped).min(least),
            most_freed.max(overlapped).min(most),
        );
        return (stall, levels);
    };
    let moved = stream.moved_ns(executed.count);
    // Hits of a stream hide behind its misses. What prefetchers hide of those is the more the
    // less of the bandwidth the stream uses.
    let own = executed.count * stream.lines_per_execution * stream.line_ns;
    let used = (own / time_ns.max(f64::MIN_POSITIVE)).min(1.0);
    let streamed = time_ns.min(own) * used;
    let value = wanted.min(limit.value.max(moved)).max(streamed);
    levels.add(stream.served, value - of_latency);
    // Where its lines take all of the loop's time there is nothing else to wait for.
    let bound = beyond.map_or(0.0, |beyond| beyond.low) * stream.bound(executed.count);
    let stall = Estimate::new(
        value,
        plain.low.max(bound).min(least.max(moved)),
        plain
            .high
            .max(time_ns.min(moved))
            .max(beyond.map_or(0.0, |beyond| beyond.high.min(HIGHEST_USE * moved))),
    );
    (stall, levels)
}

/// The stall of accesses of which each waits for itself, if the time at the site is what so
/// many of them take. The part of the latency that is no hit's tells it without their
/// number, and what hits leave of the time without their latency: `plain`.
fn each_for_itself(
    time_ns: f64,
    plain: Estimate,
    executed: Executed,
    mixture: &Mixture,
) -> Option<Estimate> {
    let (fewest, most) = (executed.low, executed.high);
    let latency = mixture.mean_ns;
    if time_ns < fewest * latency.low || time_ns > most * latency.high {
        return None;
    }
    // Without a sign of anything beyond hits there is nothing to be weighted.
    if mixture.excess_ns.value <= 0.0 {
        return None;
    }
    // With the latency x beyond a hit h, its share is x ÷ (h + x).
    let hit_ns = latency.value - mixture.excess_ns.value;
    let share = |excess_ns: f64| time_ns * excess_ns / (hit_ns + excess_ns).max(f64::MIN_POSITIVE);
    let excess = mixture.excess_ns;
    let of_latency = Estimate::new(share(excess.value), share(excess.low), share(excess.high));
    let weight = |estimate: &Estimate| {
        // Nothing is known better than to a hundredth of the time.
        let half = ((estimate.high - estimate.low) / 2.0).max(0.01 * time_ns);
        1.0 / (half * half).max(f64::MIN_POSITIVE)
    };
    let (a, b) = (weight(&plain), weight(&of_latency));
    let value = (a * plain.value + b * of_latency.value) / (a + b);
    let half = (a + b).sqrt().recip();
    Some(Estimate::new(value, value - half, value + half).clamped(0.0, time_ns))
}

/// What fights over lines cost.
fn fought(
    evidence: &Evidence<'_>,
    contended: Contended,
    executed: Executed,
    costs: &Costs,
) -> Estimate {
    let hit_ns = costs.hit_ns(evidence.touch);
    let hidden = beyond_hits(evidence, executed, hit_ns * contended.hit_share);
    // At least what is left when nothing of the hits is hidden.
    let beyond = Estimate::new(
        hidden.value,
        beyond_hits(evidence, executed, hit_ns).low,
        hidden.high,
    );
    let limit = executed.count * contended.excess_ns.max(0.0);
    Estimate::new(
        beyond.value.min(limit),
        beyond.low.min(limit),
        beyond.high.min(limit),
    )
    .times(contended.share.clamp(0.0, 1.0))
}

/// The stall that fights have a part in, `stall` and `levels` being what there would be
/// without.
fn with_fights(
    contended: Contended,
    fought: Estimate,
    stall: Estimate,
    levels: ByLevel,
) -> (Estimate, ByLevel) {
    let rest = stall.times(1.0 - contended.share.clamp(0.0, 1.0));
    let mut levels = levels.scaled_to(rest.value);
    levels.add(Served::Remote, fought.value);
    let stall = Estimate::new(
        rest.value + fought.value,
        rest.low + fought.low,
        rest.high + fought.high,
    );
    (stall, levels)
}

/// The stall of accesses that were counted and not timed.
fn counted(evidence: &Evidence<'_>, executed: Executed, costs: &Costs) -> (Estimate, ByLevel) {
    let hit_ns = costs.hit_ns(evidence.touch);
    let plain = beyond_hits(evidence, executed, hit_ns);
    // Nothing says whether they overlap.
    let most_ns = beyond_hits(evidence, executed, hit_ns * OVERLAPPED_HIT.least).high;
    let mut levels = ByLevel::default();
    if let Some(stream) = evidence.stream {
        levels.add(stream.served, plain.value);
    }
    let moved = evidence
        .stream
        .map(|stream| stream.moved_ns(executed.count));
    let stall = match (evidence.touch, moved) {
        (Touch::Writes, _) => plain,
        (_, Some(moved)) => Estimate::new(plain.value.min(moved), 0.0, plain.high),
        (_, None) => Estimate::new(most_ns * UNKNOWN_SHARE, 0.0, most_ns),
    };
    (stall, levels)
}

/// The share of its time that a site is stalled on levels that are certainly not the
/// innermost, when its accesses wait for each other.
fn far_share(mixture: &Mixture, costs: &Costs) -> f64 {
    let beyond_hit = |ns: f64| (ns - costs.l1_ns).max(0.0);
    let mut far = mixture.beyond.low * beyond_hit(mixture.beyond_ns);
    for (position, level) in mixture.levels.iter().enumerate() {
        let group = mixture
            .together
            .iter()
            .find(|(group, _)| group.contains(&position));
        let near = match group {
            Some((group, _)) => group.iter().any(|&level| is_innermost(mixture, level)),
            None => is_innermost(mixture, position),
        };
        if near {
            continue;
        }
        // Of what a group certainly has, each member gets its part.
        let certain = match group {
            Some((_, all)) if all.value > 0.0 => all.low * level.share.value / all.value,
            Some(_) => 0.0,
            None => level.share.low,
        };
        far += certain * beyond_hit(level.latency_ns);
    }
    (far / mixture.mean_ns.value.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

fn is_innermost(mixture: &Mixture, position: usize) -> bool {
    mixture.levels[position].served == Served::L1
}

/// What each level adds to the average latency beyond a hit. Shares that may as well be
/// nothing do not count: a few tenths of a percent of memory outweigh the second cache. Nor do
/// shares by which all would add more than the average is, as far as they are not certain:
/// a fraction of a timer's step by which all ticks are off makes a few percent of a farther
/// level, but moves the average by that fraction only.
fn by_level(mixture: &Mixture, costs: &Costs) -> ByLevel {
    let mut added = added(mixture, costs);
    let all: f64 = added.iter().map(|it| it.amount).sum();
    let mut surplus = match mixture.excess_ns.value {
        average if average > 0.0 => (all - average).max(0.0),
        _ => 0.0,
    };
    for it in added.iter_mut().rev() {
        let cut = surplus.min((it.amount - it.certain).max(0.0));
        it.amount -= cut;
        surplus -= cut;
    }
    let mut levels = ByLevel::default();
    for it in added {
        levels.add(it.served, it.amount);
    }
    levels
}

/// What a level adds to the average latency, in nanoseconds.
struct Added {
    served: Served,
    amount: f64,
    certain: f64,
}

/// All of them, innermost first.
fn added(mixture: &Mixture, costs: &Costs) -> Vec<Added> {
    let together = |position: usize| {
        mixture
            .together
            .iter()
            .find(|(group, _)| group.contains(&position))
    };
    let mut added = Vec::new();
    let mut farthest = (Served::Unknown, 0.0);
    for (position, level) in mixture.levels.iter().enumerate() {
        let group = together(position);
        let sure = group.map_or(level.share.low, |(_, share)| share.low);
        if level.share.value > farthest.1 && level.served >= Served::Dram {
            farthest = (level.served, level.share.value);
        }
        if sure <= 0.0 {
            continue;
        }
        let beyond_hit = (level.latency_ns - costs.l1_ns).max(0.0);
        // Of what a group certainly has, each member gets its part.
        let certain = group.map_or(sure, |(_, all)| {
            all.low * level.share.value / all.value.max(f64::MIN_POSITIVE)
        });
        let least = match group {
            Some((group, all)) => nearest(mixture, group, *all, costs),
            None => vec![(position, 1.0)],
        };
        for (told, part) in least {
            added.push(Added {
                served: mixture.levels[told].served,
                amount: part * level.share.value * beyond_hit,
                certain: part * certain * beyond_hit,
            });
        }
    }
    if mixture.beyond.low > 0.0 {
        let beyond_hit = (mixture.beyond_ns - costs.l1_ns).max(0.0);
        added.push(Added {
            // Slower than memory is memory with something added, where memory is accessed.
            served: if farthest.1 >= mixture.beyond.value {
                farthest.0
            } else {
                Served::Unknown
            },
            amount: mixture.beyond.value * beyond_hit,
            certain: mixture.beyond.low * beyond_hit,
        });
    }
    added
}

/// What part of the time that a `group` of levels adds is told at which of them: no farther out than the
/// average latency of its accesses, `all` of these, makes certain. Histograms that have much in common cannot tell
/// which of two neighbours it was, but accesses that take as long as a third level's on average were not
/// served by the first. The first two caches are one here, and other cores' lines are never made of memory's.
fn nearest(mixture: &Mixture, group: &[usize], all: Estimate, costs: &Costs) -> Vec<(usize, f64)> {
    let beyond_hit = |position: usize| (mixture.levels[position].latency_ns - costs.l1_ns).max(0.0);
    let innermost = group.first().copied().unwrap_or_default();
    let mut others = mixture.beyond.value * (mixture.beyond_ns - costs.l1_ns).max(0.0);
    for (position, level) in mixture.levels.iter().enumerate() {
        if !group.contains(&position) {
            others += level.share.value * beyond_hit(position);
        }
    }
    let average = (mixture.excess_ns.low - others) / all.value.max(f64::MIN_POSITIVE);
    let mut outward: Vec<usize> = group
        .iter()
        .copied()
        .filter(|&position| mixture.levels[position].served != Served::Remote)
        .collect();
    outward.sort_by(|&one, &other| beyond_hit(one).total_cmp(&beyond_hit(other)));
    let told = |position: usize| match mixture.levels[position].served {
        Served::L2 => innermost,
        _ => position,
    };
    let Some(far) = outward
        .iter()
        .position(|&position| beyond_hit(position) >= average)
    else {
        return vec![(outward.last().map_or(innermost, |&last| told(last)), 1.0)];
    };
    let Some(near) = far.checked_sub(1) else {
        return vec![(innermost, 1.0)];
    };
    let (near, far) = (outward[near], outward[far]);
    // Of accesses to these two alone, with that average, the time that is the farther one's.
    let (near_ns, far_ns) = (beyond_hit(near), beyond_hit(far));
    let share = (average - near_ns) / (far_ns - near_ns);
    let part = (share * far_ns / average).clamp(0.0, 1.0);
    vec![(told(near), 1.0 - part), (told(far), part)]
}

/// Adds the chance of sampling and of attribution to the interval of a stall.
fn with_chance(stall: Estimate, ratio: f64, evidence: &Evidence<'_>) -> Estimate {
    let samples = evidence.samples.max(1.0);
    let total = evidence
        .total_ns
        .max(evidence.time_ns)
        .max(f64::MIN_POSITIVE);
    // Two more of each kind (Agresti and Coull, 1998): none seen does not mean never.
    let share = (evidence.time_ns / total * samples + 2.0) / (samples + 4.0);
    let chance = Z95 * total * (share * (1.0 - share) / (samples + 4.0)).sqrt() * ratio;
    let attributed = (1.0 - evidence.confidence.clamp(0.0, 1.0)) * stall.value;
    let below = (stall.value - stall.low).hypot(chance).hypot(attributed);
    let above = (stall.high - stall.value).hypot(chance);
    Estimate::new(stall.value, stall.value - below, stall.value + above)
}
