//! Runs side by side: what got better, what came and went, what is only noise.
//!
//! Noise has two parts: the interval that each figure carries, and what two runs of one
//! program differ by although nothing changed ([`RUN_TO_RUN`]). A run has one elapsed time
//! and therefore no interval of its own for it.

mod matching;

use membound_types::{
    Basis, ComparedRun, Figure, InsightChange, InsightKind, Kind, Profile, RunChange,
    RunComparison, SCHEMA_VERSION, Share,
};

use crate::Thresholds;
use crate::names::percent;
use matching::Matched;

/// What two runs of one program differ by although nothing changed, as a share: other
/// addresses, another clock, neighbours on the machine.
const RUN_TO_RUN: f64 = 0.05;

/// Standard errors that a group must differ by. Dozens of groups are compared at once, so
/// that two would call every tenth pair of equal runs different.
const SIGMAS: f64 = 3.5;

/// Standard errors in half a 95 % interval.
const HALF_INTERVAL: f64 = 1.96;

/// Groups that were stalled for less than this share of CPU time in every run are not
/// compared.
const LEAST_STALL: f64 = 0.005;

/// Changes of less than this share of the reference's CPU time are not called changes.
const LEAST_CHANGE: f64 = 0.005;

/// Times that a finding about sharing must exceed its threshold by to be called new or gone:
/// else it may just have crossed it.
const CLEARLY: f64 = 1.5;

/// Samples that may have been missed where none was seen, at 95 % (the rule of three).
const UNSEEN_SAMPLES: f64 = 3.0;

/// Compares runs, each with the name of its file; the first is the reference.
#[must_use]
pub fn compare(runs: &[(&str, &Profile)]) -> RunComparison {
    let profiles: Vec<&Profile> = runs.iter().map(|(_, profile)| *profile).collect();
    let matched = Matched::new(&profiles);
    let changes = changes(&profiles, &matched);
    let findings = findings(&profiles, &matched, &changes);
    RunComparison {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RunComparison,
        summary: summary(runs, &changes, &findings),
        runs: runs
            .iter()
            .map(|(file, profile)| ComparedRun {
                file: (*file).to_owned(),
                command: profile.run.command.join(" "),
                date: profile.run.date.clone(),
                incomplete: profile.incomplete,
                elapsed_s: profile.elapsed_s,
                time: profile.time,
                memory_bound: profile.memory_bound,
                latency: profile.latency.clone(),
            })
            .collect(),
        changes,
        findings,
    }
}

/// Functions, lines and objects, largest change first.
fn changes(profiles: &[&Profile], matched: &Matched<'_>) -> Vec<RunChange> {
    let mut changes: Vec<RunChange> = matched
        .groups()
        .filter(|group| {
            let shares = group.rows.iter().flatten();
            shares
                .map(|share| share.stall_fraction)
                .any(|stall| stall >= LEAST_STALL)
        })
        .filter_map(|group| {
            let stall_s: Vec<Option<Figure>> = group
                .rows
                .iter()
                .zip(profiles)
                .map(|(share, profile)| share.map(|share| stall(share, profile)))
                .collect();
            let (first, last) = (0, profiles.len().checked_sub(1)?);
            let reference = stall_s[first].unwrap_or_else(|| unseen(profiles[first]));
            let now = stall_s[last].unwrap_or_else(|| unseen(profiles[last]));
            let change_s = now.value - reference.value;
            Some(RunChange {
                group: group.kind.to_owned(),
                name: group.name,
                significant: is_change(reference, now)
                    && change_s.abs() >= LEAST_CHANGE * profiles[first].time.cpu_s,
                stall_s,
                change_s,
            })
        })
        .collect();
    changes.sort_by(|a, b| {
        (b.significant.cmp(&a.significant))
            .then(b.change_s.abs().total_cmp(&a.change_s.abs()))
            .then_with(|| (&a.group, &a.name).cmp(&(&b.group, &b.name)))
    });
    changes
}

/// Stalled seconds of a row.
fn stall(share: &Share, profile: &Profile) -> Figure {
    let cpu_s = profile.time.cpu_s;
    Figure {
        value: share.stall_fraction * cpu_s,
        low: share.stall_low * cpu_s,
        high: share.stall_high * cpu_s,
        basis: Basis::Estimated,
    }
}

/// Of a row that is not there.
fn unseen(profile: &Profile) -> Figure {
    let samples = profile.run.effective_samples.max(UNSEEN_SAMPLES);
    Figure {
        value: 0.0,
        low: 0.0,
        high: profile.time.cpu_s * UNSEEN_SAMPLES / samples,
        basis: Basis::Estimated,
    }
}

/// Whether two figures differ by more than noise.
fn is_change(a: Figure, b: Figure) -> bool {
    let error = |figure: Figure| {
        let sampled = (figure.high - figure.low) / 2.0 / HALF_INTERVAL;
        let repeated = figure.value * RUN_TO_RUN;
        sampled.hypot(repeated)
    };
    (a.value - b.value).abs() > SIGMAS * error(a).hypot(error(b))
}

/// Findings that some runs have and others have not.
fn findings(
    profiles: &[&Profile],
    matched: &Matched<'_>,
    changes: &[RunChange],
) -> Vec<InsightChange> {
    let thresholds = Thresholds::default();
    let mut findings = Vec::new();
    for (kind, subject) in matched.findings() {
        let present: Vec<bool> = subject.costs.iter().map(Option::is_some).collect();
        if present.iter().all(|one| *one) {
            continue;
        }
        let cost = subject.costs.iter().flatten().copied().fold(0.0, f64::max);
        let clear = match kind {
            InsightKind::FalseSharing | InsightKind::TrueSharing => {
                cost >= CLEARLY * thresholds.sharing_cost
            }
            InsightKind::MemoryBound | InsightKind::NotMemoryBound => profiles
                .first()
                .zip(profiles.last())
                .is_some_and(|(a, b)| is_change(bound(a), bound(b))),
            InsightKind::HotObject => changes.iter().any(|change| {
                change.significant && change.group == "object" && change.name == subject.name
            }),
            InsightKind::Placement | InsightKind::Bandwidth | InsightKind::Translation => true,
        };
        if clear {
            findings.push(InsightChange {
                kind,
                text: subject.text,
                present,
            });
        }
    }
    findings
}

/// The stalled share as a figure.
fn bound(profile: &Profile) -> Figure {
    let bound = &profile.memory_bound;
    Figure {
        value: bound.fraction,
        low: bound.low,
        high: bound.high,
        basis: Basis::Estimated,
    }
}

fn summary(
    runs: &[(&str, &Profile)],
    changes: &[RunChange],
    findings: &[InsightChange],
) -> Vec<String> {
    let [(first_file, first), .., (last_file, last)] = runs else {
        return Vec::new();
    };
    let mut sentences = vec![elapsed(first, last)];
    let (before, after) = (bound(first), bound(last));
    let shares = format!(
        "{} before, {} now",
        percent(before.value),
        percent(after.value)
    );
    sentences.push(if is_change(before, after) {
        let way = if after.value < before.value {
            "Less"
        } else {
            "More"
        };
        format!("{way} of the CPU time waits for memory: {shares}.")
    } else {
        format!("As much of the CPU time waits for memory ({shares}: the same within noise).")
    });
    for finding in findings {
        let (was, is) = (finding.present.first(), finding.present.last());
        let what = match finding.kind {
            InsightKind::FalseSharing => "False sharing",
            InsightKind::TrueSharing => "True sharing",
            InsightKind::Placement => "Pages on the wrong node",
            _ => continue,
        };
        match (was, is) {
            (Some(true), Some(false)) => sentences.push(format!("{what} {}: gone.", finding.text)),
            (Some(false), Some(true)) => sentences.push(format!("{what} {}: new.", finding.text)),
            _ => {}
        }
    }
    let largest = changes
        .iter()
        .filter(|change| change.significant)
        .find(|change| change.group == "object")
        .or_else(|| changes.iter().find(|change| change.significant));
    match largest {
        Some(change) => {
            let way = if change.change_s < 0.0 {
                "less"
            } else {
                "more"
            };
            sentences.push(format!(
                "The largest change: {:.3} s {way} stalled on {} {}.",
                change.change_s.abs(),
                change.group,
                change.name
            ));
        }
        None => {
            sentences.push("No function, line or object changed by more than noise.".to_owned())
        }
    }
    for (file, profile) in [(first_file, first), (last_file, last)] {
        if profile.incomplete {
            sentences.push(format!(
                "{file} is incomplete: its times are those of the part that was recorded."
            ));
        }
    }
    if first.run.command != last.run.command {
        sentences.push("The commands differ.".to_owned());
    }
    sentences
}

/// How the wall times compare, and the CPU times where they tell something else: on a busy
/// machine a program waits for others.
fn elapsed(first: &Profile, last: &Profile) -> String {
    let mut text = wall(first, last);
    let ratio = |before: f64, now: f64| now / before;
    let wall = ratio(first.elapsed_s, last.elapsed_s);
    let cpu = ratio(first.time.cpu_s, last.time.cpu_s);
    if (wall.is_normal() && cpu.is_normal()) && (cpu - wall).abs() > RUN_TO_RUN {
        text.push_str(&format!(
            " CPU time: {:.2} s before, {:.2} s now.",
            first.time.cpu_s, last.time.cpu_s
        ));
    }
    text
}

fn wall(first: &Profile, last: &Profile) -> String {
    let (before, now) = (first.elapsed_s, last.elapsed_s);
    let times = format!("{before:.2} s before, {now:.2} s now");
    if before <= 0.0 || now <= 0.0 {
        return format!("Elapsed: {times}.");
    }
    let ratio = before / now;
    if (ratio - 1.0).abs() <= RUN_TO_RUN {
        format!("It takes as long ({times}: the same within noise).")
    } else if ratio >= 1.5 {
        format!("It is {ratio:.1} times as fast: {times}.")
    } else if ratio > 1.0 {
        format!(
            "It takes {} less time: {times}.",
            percent(1.0 - now / before)
        )
    } else {
        format!(
            "It takes {} more time: {times}.",
            percent(now / before - 1.0)
        )
    }
}
