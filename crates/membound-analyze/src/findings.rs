//! What a reader should look at first: a verdict, then findings by the time that following their advice
//! would save.

use membound_model::stall::Served;
use membound_types::{
    Insight, InsightKind, MemoryBound, ObjectClass, ObjectRow, Profile, SharedLine,
};

use crate::Thresholds;
use crate::names::{count, nanoseconds, percent};
use crate::unattributed;

/// Finding about placement, with the figures that the profile's tables do not hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MisplacedObject {
    pub name: String,
    pub local_fraction: f64,
    pub stall_fraction: f64,
    pub advice: String,
}

/// Share of the stall at streams from which on advice is about streams.
const MIN_STREAMED_SHARE: f64 = 0.5;

/// Advice for data that is read in order; cache blocking helps only where data is used again.
const OF_STREAMS: &str = "It is gone through in order: move fewer bytes (fuse loops that go \
                          through the same data, make elements smaller). Blocks help only where \
                          data are used again.";

/// Derives findings from the finished tables of `profile`. `streamed` is the share of its stall at accesses
/// that go through memory in order; `nodes` is the number of memory nodes of the machine.
pub(crate) fn findings(
    profile: &Profile,
    misplaced: &[MisplacedObject],
    streamed: f64,
    nodes: u32,
    thresholds: &Thresholds,
) -> Vec<Insight> {
    if profile.time.cpu_s <= 0.0 || profile.run.samples == 0 {
        return Vec::new();
    }
    let mut found = about_data(profile, misplaced, streamed, thresholds);
    let near_limit = bandwidth(profile, thresholds);
    let is_streaming = !near_limit.is_empty();
    if is_streaming {
        for (_, insight) in &mut found {
            if insight.kind == InsightKind::HotObject {
                insight.advice = "It is part of what uses up the bandwidth: move fewer of its \
                                  bytes."
                    .to_owned();
            }
        }
    }
    found.extend(near_limit);
    found.sort_by(|(a, of_a), (b, of_b)| b.total_cmp(a).then_with(|| of_a.text.cmp(&of_b.text)));
    let found = found.into_iter().map(|(_, insight)| insight);
    let contention: f64 = shared_lines(profile).map(|line| line.stall_fraction).sum();
    let is_contended = contention > 0.0 && contention >= profile.memory_bound.fraction / 2.0;
    let mut verdict = verdict(profile, streamed, nodes, thresholds);
    if verdict.kind == InsightKind::MemoryBound {
        if is_contended {
            // The line that threads contend for explains more than advice about a level.
            verdict.advice = "Remove the sharing first, then profile again.".to_owned();
        } else if is_streaming {
            // Prefetchers serve a bandwidth-bound stream from near caches, so the level that served an access
            // suggests no remedy.
            verdict.advice = "The program waits for bandwidth: see that finding.".to_owned();
        }
    }
    // A verdict that was explained already, or that there is little to do, comes last.
    if is_contended || verdict.kind == InsightKind::NotMemoryBound {
        let most = thresholds.findings.saturating_sub(1);
        found.take(most).chain([verdict]).collect()
    } else {
        std::iter::once(verdict)
            .chain(found)
            .take(thresholds.findings)
            .collect()
    }
}

/// Lines with sharing of either kind.
fn shared_lines(profile: &Profile) -> impl Iterator<Item = &SharedLine> {
    (profile.false_sharing.iter()).chain(&profile.true_sharing)
}

/// Findings about shared lines and objects, each with the share of the run that following its advice may save.
fn about_data(
    profile: &Profile,
    misplaced: &[MisplacedObject],
    streamed: f64,
    thresholds: &Thresholds,
) -> Vec<(f64, Insight)> {
    let mut found: Vec<(f64, Insight)> = Vec::new();
    for line in &profile.false_sharing {
        let saved = line
            .predicted_gain
            .map_or(line.stall_fraction, |gain| gain.value);
        found.push((saved, sharing(line, InsightKind::FalseSharing, thresholds)));
    }
    for line in &profile.true_sharing {
        let insight = sharing(line, InsightKind::TrueSharing, thresholds);
        found.push((line.stall_fraction, insight));
    }
    for object in &profile.objects {
        let already_found = shared_lines(profile).any(|line| line.object == object.name);
        let nameless = object.kind == ObjectClass::Unknown;
        if object.share.stall_fraction >= thresholds.hot_object && !already_found && !nameless {
            found.push((
                object.share.stall_fraction,
                hot_object(profile, object, streamed, thresholds),
            ));
        }
    }
    for object in misplaced {
        if object.stall_fraction >= thresholds.placement_stall {
            found.push((
                object.stall_fraction * (1.0 - object.local_fraction),
                placement(object, thresholds),
            ));
        }
    }
    found
}

/// Verdict on whether the run is memory bound.
fn verdict(profile: &Profile, streamed: f64, nodes: u32, thresholds: &Thresholds) -> Insight {
    let bound = &profile.memory_bound;
    let threshold = thresholds.memory_bound.max(thresholds.not_memory_bound);
    let may_be_bound = bound.high > threshold;
    // Time of unknown cause must not pass as computing.
    if bound.unseen > bound.fraction && may_be_bound {
        undecoded(profile, threshold)
    } else if bound.fraction < thresholds.not_memory_bound && may_be_bound {
        undecided(bound, thresholds)
    } else if bound.fraction < thresholds.not_memory_bound {
        not_memory_bound(profile, thresholds)
    } else {
        memory_bound(profile, streamed, nodes, thresholds)
    }
}

/// Verdict where more time was spent in code that cannot be decoded than is known to wait.
fn undecoded(profile: &Profile, threshold: f64) -> Insight {
    let bound = &profile.memory_bound;
    Insight {
        kind: InsightKind::MemoryBound,
        text: format!(
            "Between {} and {} of CPU time waits for memory: {} was spent in {} ({}).",
            percent(bound.low).trim_end_matches(" %"),
            percent(bound.high),
            percent(bound.unseen),
            unseen_place(profile),
            reasons(profile),
        ),
        advice: "To find out what that code waits for, time the same work on data that fits the \
                 second cache."
            .to_owned(),
        predicted_gain: None,
        threshold: format!(
            "more CPU time in such code than is known to wait, and perhaps more than {}",
            percent(threshold)
        ),
    }
}

/// Verdict where the interval of the stall contains the threshold.
fn undecided(bound: &MemoryBound, thresholds: &Thresholds) -> Insight {
    Insight {
        kind: InsightKind::MemoryBound,
        text: format!(
            "Between {} and {} of CPU time waits for memory: this run does not show whether \
             that matters.",
            percent(bound.low).trim_end_matches(" %"),
            percent(bound.high)
        ),
        advice: "Let the program run longer, or run fewer other programs.".to_owned(),
        predicted_gain: None,
        threshold: format!(
            "less than {} of CPU time, and perhaps more than {}",
            percent(thresholds.not_memory_bound),
            percent(thresholds.memory_bound)
        ),
    }
}

fn not_memory_bound(profile: &Profile, thresholds: &Thresholds) -> Insight {
    let stall = with_interval(&profile.memory_bound);
    Insight {
        kind: InsightKind::NotMemoryBound,
        text: format!("{stall} waits for memory: the time goes elsewhere."),
        advice: match idle(profile) {
            Some(idle) => idle,
            None => "Look at instructions and algorithms, not at data layout.".to_owned(),
        },
        predicted_gain: None,
        threshold: format!(
            "less than {} of CPU time",
            percent(thresholds.not_memory_bound)
        ),
    }
}

fn memory_bound(profile: &Profile, streamed: f64, nodes: u32, thresholds: &Thresholds) -> Insight {
    let bound = &profile.memory_bound;
    let level = main_level(bound, nodes);
    let mut text = format!("{} waits for memory", with_interval(bound));
    if let Some((_, name, share)) = level {
        text.push_str(&format!(", {} for {name}", percent(share)));
    }
    if let Some(line) = profile.lines.first() {
        text.push_str(&format!(
            ", {} at {}",
            percent(line.share.stall_fraction),
            with_program_line(profile, &line.name)
        ));
    }
    let (sentence, threshold) = if bound.fraction >= thresholds.memory_bound {
        (".", thresholds.memory_bound)
    } else {
        (
            "; most of the time goes elsewhere.",
            thresholds.not_memory_bound,
        )
    };
    text.push_str(sentence);
    if bound.unseen >= thresholds.row_stall {
        text.push_str(&format!(
            " Another {} was spent in {} ({}).",
            percent(bound.unseen),
            unseen_place(profile),
            reasons(profile)
        ));
    }
    Insight {
        kind: InsightKind::MemoryBound,
        text,
        advice: advice_for_level(level.map(|(level, ..)| level), streamed, nodes).to_owned(),
        predicted_gain: None,
        threshold: format!("at least {} of CPU time", percent(threshold)),
    }
}

/// The level that most of the stall is for, its name, and its share of CPU time; `None` if it has less than
/// half of the known stall.
fn main_level(bound: &MemoryBound, nodes: u32) -> Option<(Served, &'static str, f64)> {
    let remote = match nodes {
        0 | 1 => "other cores' caches",
        _ => "other nodes' memory or other cores' caches",
    };
    let levels = [
        (Served::L1, "the first cache", bound.l1),
        (Served::L2, "the second cache", bound.l2),
        (Served::L3, "the third cache", bound.l3),
        (Served::Dram, "DRAM", bound.dram),
        (Served::Remote, remote, bound.remote),
    ];
    let total: f64 = levels.iter().map(|(_, _, share)| share).sum();
    let most = levels
        .into_iter()
        .fold((Served::Unknown, "", 0.0), |most, level| {
            if level.2 > most.2 { level } else { most }
        });
    (most.2 >= total / 2.0 && most.2 > bound.unknown).then_some(most)
}

fn advice_for_level(level: Option<Served>, streamed: f64, nodes: u32) -> &'static str {
    match level {
        Some(Served::Dram) if streamed < MIN_STREAMED_SHARE => {
            "Make hot data smaller, use it while it is in a cache, or touch it in \
             order so that prefetchers bring it."
        }
        Some(Served::Remote) if nodes > 1 => {
            "Let threads work on data of their own, on their own node."
        }
        Some(Served::Remote) => "Let threads work on data of their own.",
        _ if streamed >= MIN_STREAMED_SHARE => OF_STREAMS,
        None => "See the lines and objects below.",
        Some(_) => "Work in blocks that fit a nearer cache.",
    }
}

/// Share of CPU time that waits for memory, with its interval.
fn with_interval(bound: &MemoryBound) -> String {
    format!(
        "{} ({}–{}) of CPU time",
        percent(bound.fraction),
        percent(bound.low).trim_end_matches(" %"),
        percent(bound.high),
    )
}

/// What the time of unknown cause was spent in.
fn unseen_place(profile: &Profile) -> &'static str {
    let is_short = |reason: &str| reason == unattributed::SHORT_THREADS;
    match profile.unseen.first() {
        Some(most) if is_short(&most.reason) => "threads without a sample",
        _ => "code that cannot be decoded",
    }
}

/// Reasons why code could not be attributed, most time first.
fn reasons(profile: &Profile) -> String {
    let reasons: Vec<String> = profile
        .unseen
        .iter()
        .map(|unseen| unseen.reason.clone())
        .collect();
    crate::names::list(&reasons, 2)
}

/// Warns if threads are on no CPU for most of the time: then the reader should look at something else than
/// memory.
fn idle(profile: &Profile) -> Option<String> {
    let time = &profile.time;
    let all = time.idle_s + time.cpu_s;
    (time.idle_s > all / 2.0).then(|| {
        format!(
            "Threads are on no CPU for {} of their lives: look at locks, files and waiting.",
            percent(time.idle_s / all)
        )
    })
}

fn sharing(line: &SharedLine, kind: InsightKind, thresholds: &Thresholds) -> Insight {
    let what = match kind {
        InsightKind::FalseSharing => "False sharing",
        _ => "True sharing",
    };
    let threads = line.threads.len();
    let lines = match line.lines.len() {
        0 | 1 => "one line".to_owned(),
        count => format!("{count} lines"),
    };
    let latency = match (line.avg_latency_ns, line.l1_latency_ns) {
        (Some(ns), Some(l1_ns)) => format!(
            ", {} an access where a hit takes {}",
            nanoseconds(ns),
            nanoseconds(l1_ns)
        ),
        _ => String::new(),
    };
    let mut sites: Vec<String> = Vec::new();
    for site in &line.sites {
        // A line that loads and stores has two sites.
        if !sites.contains(&site.name) {
            sites.push(site.name.clone());
        }
    }
    let at = if sites.is_empty() {
        String::new()
    } else {
        format!(" at {}", crate::names::list(&sites, 2))
    };
    Insight {
        kind,
        text: format!(
            "{what} in {}: {threads} threads fight over {lines}{at}, which costs {} of CPU \
             time{latency}.",
            line.object,
            percent(line.stall_fraction),
        ),
        advice: line.advice.clone(),
        predicted_gain: line.predicted_gain,
        threshold: format!("at least {} of CPU time", percent(thresholds.sharing_cost)),
    }
}

fn hot_object(
    profile: &Profile,
    object: &ObjectRow,
    streamed: f64,
    thresholds: &Thresholds,
) -> Insight {
    let stalled = profile.memory_bound.fraction.max(f64::MIN_POSITIVE);
    let latency = object.share.avg_latency_ns.map_or_else(String::new, |ns| {
        format!(", {} an access on average", nanoseconds(ns))
    });
    let at = object.code.first().map_or_else(String::new, |line| {
        let line = with_program_line(profile, &line.name);
        format!(", most of it at {line}")
    });
    let several = object.blocks > 1;
    let small = object.size_bytes <= 4096;
    let blocks = if several {
        format!(" ({} blocks)", count(object.blocks))
    } else {
        String::new()
    };
    let levels = &object.share.levels;
    let near = levels.l1 + levels.l2 + levels.l3 > object.share.stall_fraction / 2.0;
    let transferred = levels.remote > object.share.stall_fraction / 2.0;
    let advice = match (several && small, !near) {
        _ if transferred => {
            "Threads take its lines from each other's caches: give each thread data of its own, \
             on lines of its own."
        }
        (true, _) => {
            "Place the blocks next to each other in the order of their use (an array, an arena), \
             keep hot fields together, or prefetch the next one."
        }
        (false, _) if streamed >= MIN_STREAMED_SHARE => OF_STREAMS,
        (false, true) => {
            "Go through it in order or in blocks that fit a cache; smaller elements, or hot \
             fields apart from cold ones, bring more of it in with each line."
        }
        (false, false) => "Work on it in blocks that fit a nearer cache.",
    };
    Insight {
        kind: InsightKind::HotObject,
        text: format!(
            "{}{blocks} has {} of the stall, {} of CPU time{latency}{at}.",
            object.name,
            percent(object.share.stall_fraction / stalled),
            percent(object.share.stall_fraction),
        ),
        advice: advice.to_owned(),
        predicted_gain: None,
        threshold: format!("at least {} of CPU time", percent(thresholds.hot_object)),
    }
}

/// The name of a source line; of a line in a library, with the program's own line for which it ran.
fn with_program_line(profile: &Profile, name: &str) -> String {
    let row = profile.lines.iter().find(|row| row.name == name);
    match row.and_then(|row| row.called_from.as_ref()) {
        Some(own) => format!("{name} (for {})", own.name),
        None => name.to_owned(),
    }
}

fn placement(object: &MisplacedObject, thresholds: &Thresholds) -> Insight {
    Insight {
        kind: InsightKind::Placement,
        text: format!(
            "{} of the accesses to {} go to another node's memory; {} of CPU time waits for it.",
            percent(1.0 - object.local_fraction),
            object.name,
            percent(object.stall_fraction),
        ),
        advice: object.advice.clone(),
        predicted_gain: None,
        threshold: format!(
            "at least {} of its accesses and {} of CPU time",
            percent(thresholds.remote),
            percent(thresholds.placement_stall)
        ),
    }
}

/// Domains that work near their bandwidth limit for much of the time.
fn bandwidth(profile: &Profile, thresholds: &Thresholds) -> Vec<(f64, Insight)> {
    let near = profile.bandwidth.iter().filter_map(|domain| {
        let most = *domain.machine_max_gb_s.known()?;
        let limit = thresholds.bandwidth * most;
        let time: f64 = domain
            .histogram
            .iter()
            .filter(|bin| bin.from_gb_s >= limit)
            .map(|bin| bin.fraction)
            .sum();
        let time = if domain.average_gb_s >= limit {
            time.max(0.5)
        } else {
            time
        };
        (time >= thresholds.busy_time
            && profile.memory_bound.fraction >= thresholds.not_memory_bound)
            .then(|| {
                let object = domain.objects.first().map_or_else(String::new, |object| {
                    format!(", {} of it for {}", percent(object.fraction), object.name)
                });
                let insight = Insight {
                    kind: InsightKind::Bandwidth,
                    text: format!(
                        "Bound by bandwidth: {} moves {:.1} GB/s on average and is above {} of the \
                     {most:.1} GB/s that this machine reaches with as many threads and the same \
                     part of writes for {} of the time ({}){object}.",
                        domain.domain,
                        domain.average_gb_s,
                        percent(thresholds.bandwidth),
                        percent(time),
                        domain.basis,
                    ),
                    advice: "Move fewer bytes: fuse loops that go through the same arrays, make \
                         elements smaller, store what is not read again soon past the caches \
                         (non-temporal stores); more threads will not help."
                        .to_owned(),
                    predicted_gain: None,
                    threshold: format!(
                        "above {} of the maximum for at least {} of the time",
                        percent(thresholds.bandwidth),
                        percent(thresholds.busy_time)
                    ),
                };
                (time * profile.memory_bound.fraction, insight)
            })
    });
    near.collect()
}
