//! Compares runs: which groups and findings changed, appeared or vanished beyond noise.
//!
//! The columns of a comparison are single runs, or two sides with several pooled runs each.
//! [`crate::spread`] defines noise: a side of one run uses the interval of its figure and a fixed
//! run-to-run variation; a side of several runs uses the spread between them. Elapsed time is measured once
//! per run, so it has no interval within a run.

pub(crate) mod matching;

use std::ops::Range;

use membound_types::{
    ComparedRun, InsightChange, InsightKind, Kind, Profile, RunChange, RunComparison, RunSide,
    SCHEMA_VERSION,
};

use crate::Thresholds;
use crate::names::percent;
use crate::spread::{Contrast, Estimate, Observation, RUN_TO_RUN, mean};
use matching::{Group, Matched};

/// Tail probability beyond which a difference is a change rather than noise.
///
/// Dozens of groups are compared at once, so that a usual 5 % level would report a change in every tenth
/// pair of equal runs. With one run a side this is 3.5 standard errors.
const CHANGE_TAIL: f64 = 2.33e-4;

/// The same for the one comparison of the whole runs.
const TOTAL_TAIL: f64 = 5e-3;

/// Difference up to which two shares whose difference may be noise are called the same.
const MAX_SAME: f64 = 0.05;

/// Smallest stalled share of CPU time, in any run, from which on a group is compared.
const MIN_STALL: f64 = 0.005;

/// Smallest difference, as a share of the reference's CPU time, that is reported as a change.
pub(crate) const MIN_CHANGE: f64 = 0.005;

/// Factor by which the cost of a sharing finding must exceed its threshold for the finding to be called new
/// or gone; below it, noise may have moved the cost across the threshold.
pub(crate) const CLEAR_COST_FACTOR: f64 = 1.5;

/// Compares `runs`, each with the name of its file; the first is the reference.
#[must_use]
pub fn compare(runs: &[(&str, &Profile)]) -> RunComparison {
    let columns: Vec<Range<usize>> = (0..runs.len()).map(|run| run..run + 1).collect();
    compare_columns(runs, &columns)
}

/// Compares two sides, `base` and `new`; the runs of a side, each with the name of its file, are pooled.
#[must_use]
pub fn compare_sides(base: &[(&str, &Profile)], new: &[(&str, &Profile)]) -> RunComparison {
    let runs: Vec<(&str, &Profile)> = base.iter().chain(new).copied().collect();
    let columns = [0..base.len(), base.len()..runs.len()];
    let mut comparison = compare_columns(&runs, &columns);
    comparison.sides = ["base", "new"]
        .into_iter()
        .zip(columns)
        .filter_map(|(name, column)| side(name, &runs, column))
        .collect();
    comparison
}

/// Pools `runs` of one program into one side; `None` if `runs` is empty.
#[must_use]
pub fn pool_runs(runs: &[(&str, &Profile)]) -> Option<RunSide> {
    side("", runs, 0..runs.len())
}

fn compare_columns(runs: &[(&str, &Profile)], columns: &[Range<usize>]) -> RunComparison {
    let profiles: Vec<&Profile> = runs.iter().map(|(_, profile)| *profile).collect();
    let matched = Matched::new(&profiles);
    let columns = Columns {
        profiles: &profiles,
        columns,
    };
    let changes = changes(&columns, &matched);
    let findings = findings(&columns, &matched, &changes);
    RunComparison {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RunComparison,
        summary: summary(runs, &columns, &changes, &findings),
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
        sides: Vec::new(),
        gates: Vec::new(),
        changes,
        findings,
    }
}

fn side(name: &str, runs: &[(&str, &Profile)], column: Range<usize>) -> Option<RunSide> {
    let profiles: Vec<&Profile> = (runs.get(column.clone())?.iter())
        .map(|(_, profile)| *profile)
        .collect();
    let bound = bound(&profiles)?;
    let stalled: Vec<Observation> = profiles
        .iter()
        .map(|run| Observation::of_bound(run).scaled(run.time.cpu_s))
        .collect();
    Some(RunSide {
        name: name.to_owned(),
        runs: column.collect(),
        elapsed_s: mean(profiles.iter().map(|run| run.elapsed_s)),
        cpu_s: mean(profiles.iter().map(|run| run.time.cpu_s)),
        memory_stall_s: Estimate::of(&stalled)?.figure(),
        memory_bound: bound.figure(),
        memory_bound_deviation: bound.deviation,
    })
}

/// Columns of a comparison: single runs, or the two sides, each a range of `profiles`.
struct Columns<'a> {
    profiles: &'a [&'a Profile],
    columns: &'a [Range<usize>],
}

impl<'a> Columns<'a> {
    fn first(&self) -> Option<&'a [&'a Profile]> {
        let column = self.columns.first()?.clone();
        Some(&self.profiles[column])
    }

    fn last(&self) -> Option<&'a [&'a Profile]> {
        let column = self.columns.last()?.clone();
        Some(&self.profiles[column])
    }

    /// Stall time of a group in a column, in seconds.
    fn stall(&self, group: &Group<'_>, column: &Range<usize>) -> Option<Estimate> {
        let runs: Vec<Observation> = column
            .clone()
            .map(|run| {
                let profile = self.profiles[run];
                let share = group.rows[run].map_or_else(
                    || Observation::without_row(profile),
                    |share| Observation::of_row(share, profile),
                );
                share.scaled(profile.time.cpu_s)
            })
            .collect();
        Estimate::of(&runs)
    }

    /// For each column, whether most of its runs have the finding; `costs` is by run.
    fn present(&self, costs: &[Option<f64>]) -> Vec<bool> {
        let most = |column: &Range<usize>| {
            let of_column = &costs[column.clone()];
            2 * of_column.iter().flatten().count() > of_column.len()
        };
        self.columns.iter().map(most).collect()
    }
}

/// Changes by function, line and object, largest first.
fn changes(columns: &Columns<'_>, matched: &Matched<'_>) -> Vec<RunChange> {
    let cpu_s = columns.first().map_or(0.0, |runs| {
        mean(runs.iter().map(|profile| profile.time.cpu_s))
    });
    let mut changes: Vec<RunChange> = matched
        .groups()
        .filter(|group| {
            let shares = group.rows.iter().flatten();
            shares
                .map(|share| share.stall_fraction)
                .any(|stall| stall >= MIN_STALL)
        })
        .filter_map(|group| {
            let stalls: Vec<Estimate> = (columns.columns.iter())
                .map(|column| columns.stall(&group, column))
                .collect::<Option<_>>()?;
            let (reference, now) = (stalls.first()?, stalls.last()?);
            let change_s = now.mean - reference.mean;
            let has_rows =
                |column: &Range<usize>| group.rows[column.clone()].iter().any(Option::is_some);
            Some(RunChange {
                significant: is_change(reference, now) && change_s.abs() >= MIN_CHANGE * cpu_s,
                stall_s: (columns.columns.iter().zip(&stalls))
                    .map(|(column, stall)| has_rows(column).then(|| stall.figure()))
                    .collect(),
                change_s,
                group: group.kind.to_owned(),
                name: group.name,
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

/// True if two figures differ by more than noise.
fn is_change(a: &Estimate, b: &Estimate) -> bool {
    let difference = Contrast::new(a, b, 1.0);
    difference.value.abs() > difference.half(CHANGE_TAIL)
}

/// Findings that some columns have and others lack.
fn findings(
    columns: &Columns<'_>,
    matched: &Matched<'_>,
    changes: &[RunChange],
) -> Vec<InsightChange> {
    let thresholds = Thresholds::default();
    let mut findings = Vec::new();
    for (kind, subject) in matched.findings() {
        let present = columns.present(&subject.costs);
        if present.iter().all(|one| *one) || !present.iter().any(|one| *one) {
            continue;
        }
        let cost = subject.costs.iter().flatten().copied().fold(0.0, f64::max);
        let clear = match kind {
            InsightKind::FalseSharing | InsightKind::TrueSharing => {
                cost >= CLEAR_COST_FACTOR * thresholds.sharing_cost
            }
            InsightKind::MemoryBound | InsightKind::NotMemoryBound => {
                bounds(columns).is_some_and(|(before, after)| is_change(&before, &after))
            }
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

/// Stalled share of CPU time of pooled runs.
fn bound(runs: &[&Profile]) -> Option<Estimate> {
    let shares: Vec<Observation> = runs.iter().map(|run| Observation::of_bound(run)).collect();
    Estimate::of(&shares)
}

/// Stalled shares of CPU time of the first and the last column.
fn bounds(columns: &Columns<'_>) -> Option<(Estimate, Estimate)> {
    Some((bound(columns.first()?)?, bound(columns.last()?)?))
}

/// Compares the stalled shares of CPU time in one sentence.
fn stalled_share(before: &Estimate, after: &Estimate) -> String {
    let shares = format!(
        "{} before, {} now",
        percent(before.mean),
        percent(after.mean)
    );
    let difference = Contrast::new(before, after, 1.0);
    let uncertainty = difference.half(TOTAL_TAIL);
    if difference.value.abs() > uncertainty {
        let direction = if difference.value < 0.0 {
            "Less"
        } else {
            "More"
        };
        return format!("{direction} of the CPU time waits for memory: {shares}.");
    }
    if difference.value.abs() > MAX_SAME {
        return format!(
            "Whether another part of the CPU time waits for memory is not certain: {shares}, and the \
             difference is known within {} points.",
            (100.0 * uncertainty).round()
        );
    }
    format!("As much of the CPU time waits for memory ({shares}: the same within noise).")
}

fn summary(
    runs: &[(&str, &Profile)],
    columns: &Columns<'_>,
    changes: &[RunChange],
    findings: &[InsightChange],
) -> Vec<String> {
    let (Some(first), Some(last), Some((before, after))) =
        (columns.first(), columns.last(), bounds(columns))
    else {
        return Vec::new();
    };
    if columns.columns.len() < 2 {
        return Vec::new();
    }
    let mut sentences = vec![elapsed(first, last)];
    sentences.push(stalled_share(&before, &after));
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
            let direction = if change.change_s < 0.0 {
                "less"
            } else {
                "more"
            };
            sentences.push(format!(
                "The largest change: {:.3} s {direction} stalled on {} {}.",
                change.change_s.abs(),
                change.group,
                change.name
            ));
        }
        None => sentences.push(
            "The stall of no function, line or object changed by more than noise.".to_owned(),
        ),
    }
    let in_view = [columns.columns.first(), columns.columns.last()];
    for (file, profile) in in_view
        .into_iter()
        .flatten()
        .flat_map(|column| &runs[column.clone()])
    {
        if profile.incomplete {
            sentences.push(format!(
                "{file} is incomplete: its times are those of the part that was recorded."
            ));
        }
    }
    let command = |runs: &[&Profile]| runs.first().map(|run| run.run.command.clone());
    if command(first) != command(last) {
        sentences.push("The commands differ.".to_owned());
    }
    sentences
}

/// Sentence comparing wall times. CPU times are added where they changed differently: on a busy machine the
/// wall time includes waiting for other programs.
fn elapsed(first: &[&Profile], last: &[&Profile]) -> String {
    let wall_s = |runs: &[&Profile]| mean(runs.iter().map(|run| run.elapsed_s));
    let cpu_s = |runs: &[&Profile]| mean(runs.iter().map(|run| run.time.cpu_s));
    let mut text = wall(wall_s(first), wall_s(last));
    let (before_s, now_s) = (cpu_s(first), cpu_s(last));
    let (wall, cpu) = (wall_s(last) / wall_s(first), now_s / before_s);
    if (wall.is_normal() && cpu.is_normal()) && (cpu - wall).abs() > RUN_TO_RUN {
        text.push_str(&format!(
            " CPU time: {before_s:.2} s before, {now_s:.2} s now."
        ));
    }
    text
}

fn wall(before: f64, now: f64) -> String {
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
