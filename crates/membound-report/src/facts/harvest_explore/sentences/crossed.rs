//! Sentences below tables that cross two settings: loads and schedulers, distances and parts of a yield.

use membound_types::{ExploreRow, HarvestExplore};

use crate::facts::harvest_explore::{longer, overlap, short, with_interval};
use crate::units;

/// The row of a series among rows with the same number.
fn of_series<'a>(rows: &[&'a ExploreRow], name: &str) -> Option<&'a ExploreRow> {
    let found = rows.iter().find(|row| row.series.as_deref() == Some(name));
    found.copied()
}

/// Rows with the same number, in their order.
fn by_number<'a>(rows: &[&'a ExploreRow]) -> Vec<Vec<&'a ExploreRow>> {
    let groups = rows.chunk_by(|a, b| a.at == b.at);
    groups.map(<[_]>::to_vec).collect()
}

/// The number of a row in words, without its series.
fn number(row: &ExploreRow) -> &str {
    row.setting
        .split_once(", ")
        .map_or(row.setting.as_str(), |(number, _)| number)
}

/// How the work of scavengers in a harvest compares with that under the kernel's schedulers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    More,
    Less,
    Undecided,
}

/// Compares a harvest with the kernel's best scheduler at each load, and gives the figures at the lowest.
pub(super) fn loads(explore: &HarvestExplore, rows: &[&ExploreRow]) -> String {
    let mut verdicts: Vec<(Verdict, &str)> = Vec::new();
    let mut lowest = None;
    for at_load in by_number(rows) {
        let Some(own) = of_series(&at_load, "harvest").and_then(|row| row.work) else {
            continue;
        };
        let kernel = at_load.iter().filter(|row| is_kernel(row));
        let best = kernel
            .filter_map(|row| row.work)
            .max_by(|a, b| a.value.total_cmp(&b.value));
        let Some(best) = best else { continue };
        let verdict = match own.value > best.value {
            _ if overlap(own, best) => Verdict::Undecided,
            true => Verdict::More,
            false => Verdict::Less,
        };
        verdicts.push((verdict, number(at_load[0])));
        lowest.get_or_insert(at_load);
    }
    let Some(lowest) = lowest else {
        return "No load has both a harvest and one of the kernel's schedulers to compare it with."
            .to_owned();
    };
    let at = |wanted: Verdict| -> Option<String> {
        let loads = verdicts.iter().filter(|(verdict, _)| *verdict == wanted);
        let loads: Vec<&str> = loads.map(|(_, load)| *load).collect();
        (!loads.is_empty()).then(|| loads.join(", "))
    };
    let compared = [
        (
            Verdict::More,
            "more than under the kernel's schedulers at load",
        ),
        (Verdict::Less, "less at load"),
        (
            Verdict::Undecided,
            "about as much, as far as these rounds show, at load",
        ),
    ];
    let compared: Vec<String> = compared
        .into_iter()
        .filter_map(|(verdict, words)| Some(format!("{words} {}", at(verdict)?)))
        .collect();
    let figures: Vec<String> = lowest
        .iter()
        .filter_map(|row| {
            let work = with_interval(row.work?, units::percent);
            Some(format!(
                "{} {work} ({})",
                row.series.as_deref()?,
                short(row)
            ))
        })
        .collect();
    let rounds = match explore.options.pairs {
        1 => ", by one round",
        _ => "",
    };
    format!(
        "Work of scavengers in the harvest{rounds}: {}. At load {}: {}.",
        compared.join("; "),
        number(lowest[0]),
        figures.join(", ")
    )
}

fn is_kernel(row: &ExploreRow) -> bool {
    !matches!(row.series.as_deref(), Some("alone" | "harvest"))
}

/// Names the parts without which the primary or its requests take longer, by distance.
pub(super) fn parts_by_distance(explore: &HarvestExplore, rows: &[&ExploreRow]) -> String {
    let what = match explore.options.requests {
        Some(_) => "the 95th percentile of requests",
        None => "the primary's time",
    };
    if explore.options.pairs < 2 {
        return "One round does not tell differences from chance (--pairs 3).".to_owned();
    }
    let mut worse = Vec::new();
    for at_distance in by_number(rows) {
        let Some(all) = of_series(&at_distance, "nothing").and_then(longer) else {
            continue;
        };
        let mut losses: Vec<(&str, f64)> = at_distance
            .iter()
            .filter_map(|row| {
                let without = longer(row).filter(|without| without.low > all.high)?;
                // Both are increases over the time by itself.
                let loss = (1.0 + without.value) / (1.0 + all.value) - 1.0;
                Some((row.series.as_deref()?, loss))
            })
            .collect();
        losses.sort_by(|a, b| b.1.total_cmp(&a.1));
        let losses: Vec<String> = losses
            .iter()
            .map(|(part, loss)| format!("{part} ({})", units::percent(*loss)))
            .collect();
        if !losses.is_empty() {
            worse.push(format!(
                "at {} {}",
                number(at_distance[0]),
                losses.join(", ")
            ));
        }
    }
    if worse.is_empty() {
        return format!(
            "No part shortens {what} at any of these distances beyond what rounds differ by."
        );
    }
    format!(
        "Beyond what rounds differ by, {what} becomes longer without these parts: {}.",
        worse.join("; ")
    )
}
