//! Texts about a harvest that terminal and page share.

use std::fmt::Display;

use membound_types::{
    Basis, CpuId, FollowedPlan, HarvestBalance, HarvestRun, HarvestRunOptions, HarvestSlots,
    HarvestedPrimary, HarvestedSite, HarvestedStall, IdlePolicy, Latencies, LatencySource, Missing,
    PlanSource, PrimaryLatency, Scavenger, ScavengerState, SiteState, SlotMode, SlowdownGuard,
    SmtPolicy, YieldKind,
};

use super::run;
use crate::units;

/// Command of the primary, or a note that there was none.
pub(crate) fn title(run: &HarvestRun) -> String {
    if has_primary(run) {
        run::shell(&run.primary.command)
    } else {
        "no primary: programs share time slices".to_owned()
    }
}

/// True if there was a primary.
pub(crate) const fn has_primary(run: &HarvestRun) -> bool {
    !run.primary.command.is_empty()
}

/// How a program ended: its exit code, its signal, or that its end was not observed.
pub(crate) fn exit(exit_code: Option<i32>, signal: Option<i32>) -> String {
    match (signal, exit_code) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "end not seen".to_owned(),
    }
}

/// Basis of the stall's parts and of the slowdown.
pub(crate) const BASIS: Basis = Basis::Estimated;

/// Formats a duration; a dash if unknown.
pub(crate) fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| run::NONE.to_owned(), units::seconds)
}

/// Interval of the slowdown (lower end, upper end), if known.
pub(crate) fn slowdown_interval(primary: &HarvestedPrimary) -> Option<(f64, f64)> {
    primary.slowdown_low.zip(primary.slowdown_high)
}

/// Results of the run as sentences, as far as they are known.
pub(crate) fn answer(run: &HarvestRun) -> Vec<String> {
    let mut out = vec![harvested(run)];
    let waits_s: f64 = run.scavengers.iter().map(|it| it.in_waits_s).sum();
    if waits_s > 0.0 {
        out.push(format!(
            "{} of short waits went to them.",
            units::seconds(waits_s)
        ));
    }
    if has_primary(run) {
        out.push(slowed(run));
    }
    out.extend(first_slice(run));
    out.extend(run.balance.as_ref().and_then(balance));
    out.extend(came_back(run));
    if !run.scavengers.is_empty() {
        out.push(format!("{}.", scavengers(&run.scavengers)));
    }
    out.retain(|sentence| !sentence.is_empty());
    out
}

/// Describes when time slices began, if the plan was made during the run.
fn first_slice(run: &HarvestRun) -> Option<String> {
    let mut plans = run.options.plans.iter();
    let planted_s = plans.find_map(|plan| plan.planted_after_s)?;
    let planted = units::seconds(planted_s);
    Some(match run.primary.first_turn_s {
        Some(first_s) => format!(
            "The plan was made in this run and followed after {planted}; the first time slice came after {}.",
            units::seconds(first_s)
        ),
        None => {
            format!(
                "The plan was made in this run and followed after {planted}; no time slice came."
            )
        }
    })
}

fn harvested(run: &HarvestRun) -> String {
    let HarvestedStall {
        before_s,
        harvested_s,
        ..
    } = &run.stall;
    match (before_s, harvested_s) {
        (Some(before), Some(harvested)) if *before > 0.0 => format!(
            "{} of {} stall ({}) went to scavengers.",
            units::seconds(*harvested),
            units::seconds(*before),
            units::percent(harvested / before)
        ),
        (_, Some(harvested)) => format!(
            "{} went to scavengers while others waited for memory.",
            units::seconds(*harvested)
        ),
        (Some(before), None) => format!(
            "{} of stall; how much of it went to scavengers is not known.",
            units::seconds(*before)
        ),
        (None, None) => "How much stall was harvested is not known.".to_owned(),
    }
}

/// Describes the benefit of time slices that scavengers gave each other.
fn balance(balance: &HarvestBalance) -> Option<String> {
    let work_ratio = balance.worth?;
    Some(format!(
        "Interleaved, scavengers did {} of the work that they do one after another ({}); they ran one after \
         another for {} of {}.",
        units::percent(work_ratio),
        units::plural(balance.trials as usize, "trial"),
        units::seconds(balance.apart_s),
        units::seconds(balance.apart_s + balance.together_s)
    ))
}

fn slowed(run: &HarvestRun) -> String {
    let limit = run.options.max_slowdown.map_or_else(String::new, |limit| {
        format!("; allowed were {}", units::percent(limit))
    });
    let Some(share) = run.primary.slowdown else {
        return format!("How much slower the primary was is not known{limit}.");
    };
    let direction = if share < 0.0 { "less" } else { "more" };
    match slowdown_interval(&run.primary) {
        Some((low, high)) if low <= 0.0 && high >= 0.0 => format!(
            "No slowdown of the primary beyond noise: {} {}{limit}.",
            units::percent(share),
            units::percent_interval(low, high)
        ),
        Some((low, high)) => format!(
            "The primary took {} {} {direction} CPU time{limit}.",
            units::percent(share.abs()),
            units::percent_interval(low.abs().min(high.abs()), low.abs().max(high.abs()))
        ),
        None => format!(
            "The primary took about {} {direction} CPU time, with an interval that is not \
             known{limit}.",
            units::percent(share.abs())
        ),
    }
}

/// Title of the distribution of distances.
pub(crate) fn distance_title(run: &HarvestRun) -> String {
    let program = if has_primary(run) {
        "the primary"
    } else {
        "a program"
    };
    format!("from a yield until {program} ran again")
}

/// True if the slowdown significantly exceeds the limit: its whole interval lies above. False without an
/// interval.
pub(crate) fn exceeds_slowdown_limit(run: &HarvestRun) -> bool {
    slowdown_interval(&run.primary)
        .zip(run.options.max_slowdown)
        .is_some_and(|((low, _), limit)| low > limit)
}

fn came_back(run: &HarvestRun) -> Option<String> {
    let distances = &run.distance_ns;
    let p99 = distances.p99?;
    let program = if has_primary(run) {
        "The primary"
    } else {
        "A program"
    };
    let mut text = format!(
        "{program} ran again within {} of its yield in 99 of 100 time slices",
        units::duration_ns(p99)
    );
    if let Some(kept) = exceeding(run) {
        text.push_str(&format!("; {kept}"));
    }
    text.push('.');
    Some(text)
}

/// Share of the time slices that exceeded the bound: `0.6 % exceeded the bound of 300 ns`; `None` without a bound
/// or without time slices.
pub(crate) fn exceeding(run: &HarvestRun) -> Option<String> {
    let (within, bound) = run.distance_ns.within_bound.zip(run.distance_ns.bound)?;
    let bound = units::duration_ns(bound);
    let exceeding = 1.0 - within;
    Some(if exceeding <= 0.0 {
        format!("none exceeded the bound of {bound}")
    } else {
        format!("{} exceeded the bound of {bound}", some_percent(exceeding))
    })
}

/// Share of skipped time slices: `51 % of all time slices were skipped, until …`; `None` if none were skipped.
pub(crate) fn skipped(run: &HarvestRun) -> Option<String> {
    let distances = &run.distance_ns;
    let share = distances.skipped as f64 / (distances.skipped + distances.timed) as f64;
    (distances.skipped > 0).then(|| {
        format!(
            "{} of all time slices were skipped, until the line that a scavenger had prefetched was there",
            some_percent(share)
        )
    })
}

/// Formats a share so that a small positive share does not become 0.
pub(crate) fn some_percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "< 0.1 %".to_owned()
    } else {
        units::percent(share)
    }
}

/// Counts scavengers by state: `4 scavengers: 2 finished, 1 crashed, 1 refused`.
pub(crate) fn scavengers(all: &[Scavenger]) -> String {
    format!(
        "{}: {}",
        units::plural(all.len(), "scavenger"),
        by_state(&ScavengerState::ALL, all.iter().map(|it| it.state))
    )
}

/// Counts how often scavengers left threads of the primary in the middle of a time slice or without one, by
/// cause; `None` if none did.
pub(crate) fn left_otherwise(run: &HarvestRun) -> Option<String> {
    let moves = &run.moves;
    let causes: Vec<String> = [
        (moves.steals, "stolen from a thread that waited"),
        (moves.reclaimed, "taken from a thread that ended"),
        (moves.calls, "for a system call"),
        (moves.interrupted, "for a signal to the primary"),
        (moves.overdue, "without a yield for too long"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, cause)| format!("{} {cause}", units::count(count)))
    .collect();
    (!causes.is_empty()).then(|| {
        format!(
            "Scavengers left run queues other than at a yield: {}.",
            causes.join(", ")
        )
    })
}

/// Counts items by state; states without items are left out.
fn by_state<S: PartialEq + Display>(states: &[S], of: impl Iterator<Item = S> + Clone) -> String {
    let counts: Vec<String> = states
        .iter()
        .filter_map(|state| {
            let count = of.clone().filter(|it| it == state).count();
            (count > 0).then(|| format!("{} {state}", units::count(count as u64)))
        })
        .collect();
    counts.join(", ")
}

/// Command of a scavenger, with the number of its copy if there are several.
pub(crate) fn scavenger(it: &Scavenger, all: &[Scavenger]) -> String {
    let copies = all.iter().filter(|other| other.command == it.command);
    let command = run::shell(&it.command);
    if copies.count() > 1 {
        format!("{command} #{}", it.copy)
    } else {
        command
    }
}

/// How a scavenger ended; a dash if it did not end or did not start.
pub(crate) fn scavenger_end(it: &Scavenger) -> String {
    match it.state {
        ScavengerState::Finished | ScavengerState::Crashed => exit(it.exit_code, it.signal),
        ScavengerState::Unfinished | ScavengerState::Refused => run::NONE.to_owned(),
    }
}

/// Division of the stall time, as shares of the total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StallShares {
    pub(crate) harvested: f64,
    pub(crate) left: f64,
}

/// Shares of `stall`; `None` if a part is unknown.
pub(crate) fn stall_shares(stall: &HarvestedStall) -> Option<StallShares> {
    let (harvested, left) = (stall.harvested_s?, stall.left_s?);
    // More may be harvested than the plan predicted as stall.
    let whole = harvested + left;
    (whole > 0.0).then(|| StallShares {
        harvested: harvested / whole,
        left: left / whole,
    })
}

/// Class of time that scavengers can use: a row of document 003's table of harvestable cycles, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Class {
    pub(crate) name: &'static str,
    /// Total time of the class, if known.
    pub(crate) before_s: Option<f64>,
    /// Time of the class that scavengers used.
    pub(crate) harvested_s: Option<f64>,
    /// Mechanism by which scavengers got it.
    pub(crate) by: &'static str,
}

/// Headings of the table of [`classes`].
pub(crate) const CLASS_COLUMNS: [&str; 4] = ["class", "before", "harvested", "by"];

/// Classes of time that scavengers can use alongside a primary.
pub(crate) fn classes(run: &HarvestRun) -> Vec<Class> {
    if !has_primary(run) || run.scavengers.is_empty() {
        return Vec::new();
    }
    let sum = |of: fn(&Scavenger) -> f64| -> f64 { run.scavengers.iter().map(of).sum() };
    let in_stalls_s = sum(|it| it.in_stalls_s.unwrap_or(0.0));
    let in_waits_s = sum(|it| it.in_waits_s);
    let own_threads_s = sum(|it| it.own_thread_s);
    let beside_s = run.slots.beside_s;
    // The elapsed time of each of several threads is unknown.
    let wall_s = run.primary.wall_s.filter(|_| run.primary.threads == 1);
    let idle_s = wall_s.map(|wall_s| (wall_s - run.primary.cpu_s - in_stalls_s).max(0.0));
    vec![
        Class {
            name: "memory stalls",
            before_s: run.stall.before_s,
            harvested_s: run.stall.harvested_s,
            by: "time slices at yields",
        },
        Class {
            name: "idle time",
            before_s: idle_s,
            harvested_s: Some(in_waits_s),
            by: "time slices in short waits",
        },
        // Not a part of the primary's idle time: own threads run on all CPUs, and after its end.
        Class {
            name: "own threads",
            before_s: None,
            harvested_s: Some((own_threads_s - beside_s).max(0.0)),
            by: "the kernel, on any CPU",
        },
        Class {
            name: "other stalls",
            before_s: None,
            harvested_s: Some(beside_s),
            by: "other hardware threads of its cores",
        },
    ]
}

/// Gaps whose field is one of `fields` or lies within one.
pub(crate) fn gaps_of<'a>(
    missing: &'a [Missing],
    fields: &'a [&str],
) -> impl Iterator<Item = &'a Missing> {
    missing.iter().filter(move |gap| lies_in(gap, fields))
}

/// True if a gap concerns one of `fields` or a part of one.
pub(crate) fn lies_in(gap: &Missing, fields: &[&str]) -> bool {
    fields.iter().any(|field| {
        gap.table
            .strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// Formats a gap, with a readable name for its field.
pub(crate) fn gap(gap: &Missing) -> String {
    const NAMES: [(&str, &str); 16] = [
        ("primary.slowdown_low", "interval of the slowdown"),
        ("primary.slowdown", "slowdown"),
        ("primary.latency.without", "latency without scavengers"),
        ("primary.latency.with", "latency with scavengers"),
        ("primary.latency", "latency"),
        ("primary.exit_code", "exit code"),
        ("stall.before_s", "stall before"),
        ("stall.harvested_s", "stall harvested"),
        ("stall.left_s", "stall left"),
        ("stall", "stall"),
        ("distance_ns", "distances"),
        ("scavengers", "scavengers"),
        ("sites", "yields"),
        ("guard", "guard"),
        ("slots", "scheduling"),
        ("primary", "primary"),
    ];
    let name = NAMES
        .iter()
        .find(|(field, _)| lies_in(gap, &[field]))
        .map_or(gap.table.as_str(), |(_, name)| name);
    run::gap(&Missing {
        table: name.to_owned(),
        why: gap.why.clone(),
    })
}

/// Formats the reason of a gap without the name of its field.
pub(crate) fn why(gap: &Missing) -> String {
    super::missing_text(&gap.why)
}

/// Rows of the table of latencies: name, and distribution of durations.
pub(crate) fn latency_rows(run: &HarvestRun) -> Vec<(&'static str, &Latencies)> {
    let Some(latency) = &run.primary.latency else {
        return Vec::new();
    };
    [
        ("without scavengers", &latency.without),
        ("with scavengers", &latency.with),
    ]
    .into_iter()
    .filter_map(|(name, latencies)| Some((name, latencies.as_ref()?)))
    .collect()
}

/// Headings of the durations in a row, after the number of requests.
pub(crate) const LATENCY_COLUMNS: [&str; 5] = ["median", "90 %", "95 %", "99 %", "longest"];

/// Values of those columns, in nanoseconds.
pub(crate) const fn latency_values(latencies: &Latencies) -> [f64; 5] {
    [
        latencies.p50_ns,
        latencies.p90_ns,
        latencies.p95_ns,
        latencies.p99_ns,
        latencies.max_ns,
    ]
}

/// Relative change of the durations with scavengers, by column; `None` if unknown.
pub(crate) fn latency_changes(run: &HarvestRun) -> Option<[String; 5]> {
    let latency = run.primary.latency.as_ref()?;
    let without = latency_values(latency.without.as_ref()?);
    let with = latency_values(latency.with.as_ref()?);
    Some(std::array::from_fn(|index| {
        let (with, without) = (with[index], without[index]);
        if without > 0.0 {
            signed_percent(with / without - 1.0)
        } else {
            run::NONE.to_owned()
        }
    }))
}

fn signed_percent(share: f64) -> String {
    let text = units::percent(share.abs());
    match share {
        _ if text == "0 %" => text,
        share if share < 0.0 => format!("−{text}"),
        _ => format!("+{text}"),
    }
}

/// Describes how requests were observed.
pub(crate) fn latency_source(latency: &PrimaryLatency) -> String {
    match (latency.source, latency.by.split_once("..")) {
        (LatencySource::Socket, _) => "from arrival on a socket to the answer".to_owned(),
        (LatencySource::Marker, Some((begin, end))) => format!("from {begin} to {end}"),
        (LatencySource::Marker, None) => format!("each call of {}", latency.by),
    }
}

/// Share of all requests that took at most `limit` nanoseconds; a bin that contains the limit counts in
/// proportion. `None` without requests.
fn share_within<'a>(all: impl Iterator<Item = &'a Latencies>, limit: f64) -> Option<f64> {
    let (mut kept, mut requests) = (0.0, 0.0);
    for bin in all.flat_map(|latencies| &latencies.histogram) {
        let count = bin.count as f64;
        let below = (limit - bin.from_ns) / (bin.to_ns - bin.from_ns);
        kept += count * below.clamp(0.0, 1.0);
        requests += count;
    }
    (requests > 0.0).then(|| kept / requests)
}

/// Notes below the table of latencies.
pub(crate) fn latency_notes(run: &HarvestRun) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(limit) = run.options.slo_p95_ns {
        let kept = share_within(latency_rows(run).into_iter().map(|row| row.1), limit);
        let kept = kept.map_or_else(String::new, |kept| {
            format!(": {} did", units::percent(kept))
        });
        let limit = units::duration_ns(limit);
        notes.push(format!(
            "Of 100 requests, 95 were to take {limit} at most{kept}."
        ));
    }
    match run.primary.latency.as_ref().map(|it| it.spanning) {
        None | Some(0) => {}
        Some(1) => notes.push(
            "One request more began with scavengers and ended without, or the other way round."
                .to_owned(),
        ),
        Some(spanning) => notes.push(format!(
            "{} requests more began with scavengers and ended without, or the other way round.",
            units::count(spanning)
        )),
    }
    notes
}

/// Counts sites by state: `12 in, 1 out, 1 refused`.
pub(crate) fn sites(sites: &[HarvestedSite]) -> String {
    by_state(&SiteState::ALL, sites.iter().map(|site| site.state))
}

/// Sites sorted by predicted gain, largest first; sites with unknown gain come last.
pub(crate) fn by_gain(sites: &[HarvestedSite]) -> Vec<&HarvestedSite> {
    let mut sorted: Vec<&HarvestedSite> = sites.iter().collect();
    let gain = |site: &HarvestedSite| site.predicted_gain.unwrap_or(f64::NEG_INFINITY);
    sorted.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    sorted
}

/// Formats a code position as function and offset; the file's name replaces an unknown function.
pub(crate) fn place(symbol: &str, module: &str, offset: u64) -> String {
    let symbol = match symbol {
        "" => module.rsplit('/').next().unwrap_or_default(),
        symbol => symbol,
    };
    format!("{symbol} {offset:#x}")
}

/// Like [`place`], for a site; the function's arguments are left out.
pub(crate) fn short_place(site: &HarvestedSite) -> String {
    place(&super::plain(&site.symbol), &site.module, site.offset)
}

/// Predicted gain of a site; a dash if unknown.
pub(crate) fn gain(site: &HarvestedSite) -> String {
    site.predicted_gain
        .map_or_else(|| run::NONE.to_owned(), units::percent)
}

/// Purpose of a yield, in words.
pub(crate) const fn purpose(kind: YieldKind) -> &'static str {
    match kind {
        YieldKind::Primary => "a miss",
        YieldKind::Scavenger => "the bound",
    }
}

/// Describes the source of CPU time for scavengers in addition to the stalls, and the reason.
pub(crate) fn slots(slots: &HarvestSlots) -> String {
    let placement = match slots.mode {
        SlotMode::Stalls => {
            "scavengers were given no other hardware threads of the primary's cores"
        }
        SlotMode::Smt => "scavengers also ran on other hardware threads of the primary's cores",
        SlotMode::Kernel => {
            "at the end scavengers were kept off other hardware threads of the primary's cores"
        }
    };
    let mut text = placement.to_owned();
    if !slots.why.is_empty() {
        text.push_str(&format!(": {}", slots.why));
    }
    if !slots.cpus.is_empty() {
        let cpus: Vec<String> = slots.cpus.iter().map(ToString::to_string).collect();
        text.push_str(&format!(
            "; in all they had {} {} there for {}, with {} of CPU time and {}",
            if cpus.len() == 1 { "CPU" } else { "CPUs" },
            cpus.join(", "),
            units::seconds(slots.smt_s),
            units::seconds(slots.beside_s),
            units::plural(slots.changes as usize, "change"),
        ));
    }
    text
}

/// Describes what the slowdown guard did.
pub(crate) fn guard(guard: &SlowdownGuard) -> String {
    let yields = if guard.yields_taken_out > 0 {
        format!(
            "; yields were taken out {} and put back {}, {} out at the end",
            units::plural(guard.yields_taken_out as usize, "time"),
            units::plural(guard.yields_put_back as usize, "time"),
            match guard.yields_out {
                0 => "none was".to_owned(),
                1 => "1 was".to_owned(),
                out => format!("{} were", units::count(out)),
            }
        )
    } else {
        String::new()
    };
    format!(
        "{}{yields}; scavengers were let in less {} and more {}; at the end they were let in {} of the \
         time",
        units::plural(guard.checks as usize, "check"),
        units::plural(guard.steps_out as usize, "time"),
        units::plural(guard.steps_in as usize, "time"),
        units::percent(guard.final_share)
    )
}

/// Name of a plan in the list of conditions.
pub(crate) const PLAN: &str = "plan";

/// Options of the run as pairs of name and value.
pub(crate) fn conditions(options: &HarvestRunOptions) -> Vec<(&'static str, String)> {
    let mut out = vec![
        ("scavengers a thread", options.per_thread.to_string()),
        (
            "while the primary blocks",
            match options.idle {
                IdlePolicy::Harvest => "scavengers go on",
                IdlePolicy::Steal => "other threads may take scavengers over",
                IdlePolicy::Stop => "scavengers wait",
            }
            .to_owned(),
        ),
        (
            "other hardware threads",
            match options.smt {
                SmtPolicy::Auto => "while requests keep to their bound",
                SmtPolicy::On => "while bounds are kept",
                SmtPolicy::Off => "never",
            }
            .to_owned(),
        ),
        (
            "bound",
            options
                .bound_ns
                .map_or_else(|| "none".to_owned(), units::duration_ns),
        ),
        (
            "overhead at most",
            format!("{} where loads hit", units::percent(options.max_overhead)),
        ),
        (
            "slowdown at most",
            options
                .max_slowdown
                .map_or_else(|| "no limit".to_owned(), units::percent),
        ),
        (
            "p95 of requests at most",
            options
                .slo_p95_ns
                .map_or_else(|| "no limit".to_owned(), units::duration_ns),
        ),
        (
            "at the primary's end",
            if options.finish {
                "scavengers go on until they are done"
            } else {
                "scavengers are ended"
            }
            .to_owned(),
        ),
    ];
    if !options.siblings.is_empty() {
        let core = |cpus: &Vec<CpuId>| {
            let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
            cpus.join(", ")
        };
        let cores: Vec<String> = options.siblings.iter().map(core).collect();
        out.push(("CPUs of a core, as given", cores.join(" and ")));
    }
    if !options.without.is_empty() {
        let parts: Vec<&str> = options.without.iter().map(|part| part.name()).collect();
        out.push(("left out", parts.join(", ")));
    }
    out.extend(options.plans.iter().map(|it| (PLAN, plan(it))));
    out
}

fn plan(plan: &FollowedPlan) -> String {
    let of = match plan.command.as_slice() {
        [] => String::new(),
        words => format!(" of {}", run::shell(words)),
    };
    if let Some(after_s) = plan.planted_after_s {
        let after = units::seconds(after_s);
        return format!(
            "as {}: made while it ran, and followed after {after}{of}",
            plan.role
        );
    }
    match (plan.source, &plan.path) {
        (PlanSource::Made, _) => format!("as {}: made for this run{of}", plan.role),
        (PlanSource::Given, Some(path)) => format!("as {}: {path}{of}", plan.role),
        (PlanSource::Given, None) => format!("as {}: given{of}", plan.role),
    }
}
