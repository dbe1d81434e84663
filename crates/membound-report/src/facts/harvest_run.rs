//! What text and page say of a harvest in the same words.

use std::fmt::Display;

use membound_types::{
    Basis, CpuId, FollowedPlan, HarvestBalance, HarvestRun, HarvestRunOptions, HarvestSlots,
    HarvestedPrimary, HarvestedSite, HarvestedStall, IdlePolicy, Latencies, LatencySource, Missing,
    PlanSource, PrimaryLatency, Scavenger, ScavengerState, SiteState, SlotMode, SlowdownGuard,
    SmtPolicy, YieldKind,
};

use super::run;
use crate::units;

/// The primary's command, or that there was none.
pub(crate) fn title(run: &HarvestRun) -> String {
    if has_primary(run) {
        run::shell(&run.primary.command)
    } else {
        "no primary: programs take turns".to_owned()
    }
}

/// Whether there was a primary.
pub(crate) const fn has_primary(run: &HarvestRun) -> bool {
    !run.primary.command.is_empty()
}

/// How a program ended: its exit code, its signal, or that it was not seen to its end.
pub(crate) fn exit(exit_code: Option<i32>, signal: Option<i32>) -> String {
    match (signal, exit_code) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "end not seen".to_owned(),
    }
}

/// How the stall's parts and the slowdown are got, all of them.
pub(crate) const BASIS: Basis = Basis::Estimated;

/// A duration, or a dash.
pub(crate) fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| run::NONE.to_owned(), units::seconds)
}

/// The interval of the slowdown, where there is one: low end, high end.
pub(crate) fn slowdown_interval(primary: &HarvestedPrimary) -> Option<(f64, f64)> {
    primary.slowdown_low.zip(primary.slowdown_high)
}

/// What the run answers, a sentence each, as far as it is known.
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
    out.extend(first_turn(run));
    out.extend(run.balance.as_ref().and_then(balance));
    out.extend(came_back(run));
    if !run.scavengers.is_empty() {
        out.push(format!("{}.", scavengers(&run.scavengers)));
    }
    out.retain(|sentence| !sentence.is_empty());
    out
}

/// When turns began, where a plan was made before they could.
fn first_turn(run: &HarvestRun) -> Option<String> {
    let mut plans = run.options.plans.iter();
    let planted_s = plans.find_map(|plan| plan.planted_after_s)?;
    let planted = units::seconds(planted_s);
    Some(match run.primary.first_turn_s {
        Some(first_s) => format!(
            "The plan was made in this run and followed after {planted}; the first turn came after {}.",
            units::seconds(first_s)
        ),
        None => {
            format!("The plan was made in this run and followed after {planted}; no turn came.")
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

/// What turns of scavengers with each other were worth.
fn balance(balance: &HarvestBalance) -> Option<String> {
    let worth = balance.worth?;
    Some(format!(
        "In turns with each other scavengers did {} of what each does on its own ({}); they ran on their own \
         for {} of {}.",
        units::percent(worth),
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
            "No slowdown of the primary can be told from none: {} {}{limit}.",
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

/// What the distances are of.
pub(crate) fn distance_title(run: &HarvestRun) -> String {
    let who = if has_primary(run) {
        "the primary"
    } else {
        "a program"
    };
    format!("from a yield until {who} ran again")
}

/// Whether the slowdown is above what was allowed beyond doubt: its whole interval is. False
/// without an interval.
pub(crate) fn too_slow(run: &HarvestRun) -> bool {
    slowdown_interval(&run.primary)
        .zip(run.options.max_slowdown)
        .is_some_and(|((low, _), limit)| low > limit)
}

fn came_back(run: &HarvestRun) -> Option<String> {
    let distances = &run.distance_ns;
    let p99 = distances.p99?;
    let who = if has_primary(run) {
        "The primary"
    } else {
        "A program"
    };
    let mut text = format!(
        "{who} ran again within {} of its yield in 99 of 100 turns",
        units::duration_ns(p99)
    );
    if let Some(kept) = beyond(run) {
        text.push_str(&format!("; {kept}"));
    }
    text.push('.');
    Some(text)
}

/// `0.6 % exceeded the bound of 300 ns`; `None` without a bound or without turns.
pub(crate) fn beyond(run: &HarvestRun) -> Option<String> {
    let (within, bound) = run.distance_ns.within_bound.zip(run.distance_ns.bound)?;
    let bound = units::duration_ns(bound);
    let beyond = 1.0 - within;
    Some(if beyond <= 0.0 {
        format!("none exceeded the bound of {bound}")
    } else {
        format!("{} exceeded the bound of {bound}", some_percent(beyond))
    })
}

/// `51 % of all turns were skipped, until …`; `None` without any.
pub(crate) fn skipped(run: &HarvestRun) -> Option<String> {
    let distances = &run.distance_ns;
    let share = distances.skipped as f64 / (distances.skipped + distances.timed) as f64;
    (distances.skipped > 0).then(|| {
        format!(
            "{} of all turns were skipped, until what a scavenger had asked for was there",
            some_percent(share)
        )
    })
}

/// A share that is more than none, however small.
pub(crate) fn some_percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "< 0.1 %".to_owned()
    } else {
        units::percent(share)
    }
}

/// `4 scavengers: 2 finished, 1 crashed, 1 refused`.
pub(crate) fn scavengers(all: &[Scavenger]) -> String {
    format!(
        "{}: {}",
        units::plural(all.len(), "scavenger"),
        by_state(&ScavengerState::ALL, all.iter().map(|it| it.state))
    )
}

/// How many are in each of `states`, those that none is in left out.
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

/// A scavenger's command, with its copy where there are several of it.
pub(crate) fn scavenger(it: &Scavenger, all: &[Scavenger]) -> String {
    let copies = all.iter().filter(|other| other.command == it.command);
    let command = run::shell(&it.command);
    if copies.count() > 1 {
        format!("{command} #{}", it.copy)
    } else {
        command
    }
}

/// How a scavenger ended: a dash for one that did not, or was not begun.
pub(crate) fn scavenger_end(it: &Scavenger) -> String {
    match it.state {
        ScavengerState::Finished | ScavengerState::Crashed => exit(it.exit_code, it.signal),
        ScavengerState::Unfinished | ScavengerState::Refused => run::NONE.to_owned(),
    }
}

/// How the stall time divides, as shares of all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StallShares {
    pub(crate) harvested: f64,
    pub(crate) left: f64,
}

/// The shares of `stall`; `None` where a part is not known.
pub(crate) fn stall_shares(stall: &HarvestedStall) -> Option<StallShares> {
    let (harvested, left) = (stall.harvested_s?, stall.left_s?);
    // More may have been harvested than the plan says there was.
    let whole = harvested + left;
    (whole > 0.0).then(|| StallShares {
        harvested: harvested / whole,
        left: left / whole,
    })
}

/// A class of time that scavengers can have: a row of document 003's table of harvestable cycles. In seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Class {
    pub(crate) name: &'static str,
    /// All that there was of it, where that is known.
    pub(crate) before_s: Option<f64>,
    /// What scavengers had of it.
    pub(crate) harvested_s: Option<f64>,
    /// The mechanism that gave it to them.
    pub(crate) by: &'static str,
}

/// The heads of the table of [`classes`].
pub(crate) const CLASS_COLUMNS: [&str; 4] = ["class", "before", "harvested", "by"];

/// The classes of time that scavengers can have beside a primary.
pub(crate) fn classes(run: &HarvestRun) -> Vec<Class> {
    if !has_primary(run) || run.scavengers.is_empty() {
        return Vec::new();
    }
    let sum = |of: fn(&Scavenger) -> f64| -> f64 { run.scavengers.iter().map(of).sum() };
    let in_stalls_s = sum(|it| it.in_stalls_s.unwrap_or(0.0));
    let elsewhere_s = sum(|it| it.in_waits_s + it.own_thread_s);
    let beside_s = run.slots.beside_s;
    // How long each of several threads was there is not known.
    let wall_s = run.primary.wall_s.filter(|_| run.primary.threads == 1);
    let idle_s = wall_s.map(|wall_s| (wall_s - run.primary.cpu_s - in_stalls_s).max(0.0));
    vec![
        Class {
            name: "memory stalls",
            before_s: run.stall.before_s,
            harvested_s: run.stall.harvested_s,
            by: "turns at yields",
        },
        Class {
            name: "idle time",
            before_s: idle_s,
            harvested_s: Some((elsewhere_s - beside_s).max(0.0)),
            by: "the kernel: own threads, and short waits",
        },
        Class {
            name: "other stalls",
            before_s: None,
            harvested_s: Some(beside_s),
            by: "other hardware threads of its cores",
        },
    ]
}

/// What is missing whose field is, or lies in, one of `fields`.
pub(crate) fn gaps_of<'a>(
    missing: &'a [Missing],
    fields: &'a [&str],
) -> impl Iterator<Item = &'a Missing> {
    missing.iter().filter(move |gap| lies_in(gap, fields))
}

/// Whether a gap is of one of `fields`, or of a part of one.
pub(crate) fn lies_in(gap: &Missing, fields: &[&str]) -> bool {
    fields.iter().any(|field| {
        gap.table
            .strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// A gap under a person's name for its field.
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

/// Why there is a gap, without its field's name.
pub(crate) fn why(gap: &Missing) -> String {
    super::missing_text(&gap.why)
}

/// The rows of the table of latencies: of what, and its requests and durations.
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

/// The durations of a row, in the order of the table's columns behind that of requests.
pub(crate) const LATENCY_COLUMNS: [&str; 5] = ["median", "90 %", "95 %", "99 %", "longest"];

/// The values of those columns, in nanoseconds.
pub(crate) const fn latency_values(latencies: &Latencies) -> [f64; 5] {
    [
        latencies.p50_ns,
        latencies.p90_ns,
        latencies.p95_ns,
        latencies.p99_ns,
        latencies.max_ns,
    ]
}

/// How much longer requests took with scavengers, by column; `None` where that is not known.
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

/// How requests were told, in words.
pub(crate) fn latency_told(latency: &PrimaryLatency) -> String {
    match (latency.source, latency.by.split_once("..")) {
        (LatencySource::Socket, _) => "from arrival on a socket to the answer".to_owned(),
        (LatencySource::Marker, Some((begin, end))) => format!("from {begin} to {end}"),
        (LatencySource::Marker, None) => format!("each call of {}", latency.by),
    }
}

/// Share of all requests that took no longer than `limit`, in nanoseconds; a span that this lies in counts
/// as far as it lies below. `None` without any.
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

/// What is to be said of the table of latencies.
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

/// `12 in, 1 out, 1 refused`.
pub(crate) fn sites(sites: &[HarvestedSite]) -> String {
    by_state(&SiteState::ALL, sites.iter().map(|site| site.state))
}

/// Sites by what they were to gain, most first; those of which that is not known come last.
pub(crate) fn by_gain(sites: &[HarvestedSite]) -> Vec<&HarvestedSite> {
    let mut sorted: Vec<&HarvestedSite> = sites.iter().collect();
    let gain = |site: &HarvestedSite| site.predicted_gain.unwrap_or(f64::NEG_INFINITY);
    sorted.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    sorted
}

/// The function of `symbol` and the offset; the file's name where the function has none.
pub(crate) fn place(symbol: &str, module: &str, offset: u64) -> String {
    let symbol = match symbol {
        "" => module.rsplit('/').next().unwrap_or_default(),
        symbol => symbol,
    };
    format!("{symbol} {offset:#x}")
}

/// [`place`] of a site, its function without arguments.
pub(crate) fn short_place(site: &HarvestedSite) -> String {
    place(&super::plain(&site.symbol), &site.module, site.offset)
}

/// What a site is predicted to gain, or a dash.
pub(crate) fn gain(site: &HarvestedSite) -> String {
    site.predicted_gain
        .map_or_else(|| run::NONE.to_owned(), units::percent)
}

/// What a yield is for, in words.
pub(crate) const fn purpose(kind: YieldKind) -> &'static str {
    match kind {
        YieldKind::Primary => "a miss",
        YieldKind::Scavenger => "the bound",
    }
}

/// Who gave scavengers a processor beside the stalls, and why.
pub(crate) fn slots(slots: &HarvestSlots) -> String {
    let who = match slots.mode {
        SlotMode::Stalls => "scavengers ran in stalls only",
        SlotMode::Smt => "scavengers also ran on other hardware threads of the primary's cores",
        SlotMode::Kernel => {
            "at the end scavengers were kept off other hardware threads of the primary's cores"
        }
    };
    let mut text = who.to_owned();
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

/// What the guard did.
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

/// The name of plans among conditions.
pub(crate) const PLAN: &str = "plan";

/// What was asked for: a name and a value each.
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
