//! A sentence below each table of an exploration; differences are stated only if intervals do not overlap.

mod crossed;

use membound_types::{ExploreFigure, ExploreRow, ExploreSweep, ExploredSweep, HarvestExplore};

use super::{change, has_figures, short, times, with_interval};
use crate::units;

/// Sentence below a table.
pub(crate) fn sentence(explore: &HarvestExplore, sweep: &ExploredSweep) -> String {
    let rows: Vec<&ExploreRow> = sweep.rows.iter().filter(|row| has_figures(row)).collect();
    if rows.is_empty() {
        return "No setting could be run, so this says nothing about the programs.".to_owned();
    }
    match sweep.sweep {
        ExploreSweep::Bound => varied(&rows, "bound"),
        ExploreSweep::Distance => varied(&rows, "distance"),
        ExploreSweep::Overhead => overheads(&rows),
        ExploreSweep::Parts => parts(explore, &rows),
        ExploreSweep::Periods => periods(&rows),
        ExploreSweep::Chases => at_once(&rows),
        ExploreSweep::Kernel => schedulers(explore, &rows),
        ExploreSweep::Slo => objectives(&rows),
        ExploreSweep::Load => crossed::loads(explore, &rows),
        ExploreSweep::PartsByDistance => crossed::parts_by_distance(explore, &rows),
    }
}

/// Main result: the comparison with the kernel's scheduler, else the first table.
pub(crate) fn summary(explore: &HarvestExplore) -> Option<String> {
    let of = |wanted: ExploreSweep| explore.sweeps.iter().find(|it| it.sweep == wanted);
    let sweep = of(ExploreSweep::Kernel).or_else(|| explore.sweeps.first())?;
    Some(sentence(explore, sweep))
}

fn best<'a>(
    rows: &[&'a ExploreRow],
    of: impl Fn(&ExploreRow) -> Option<ExploreFigure>,
) -> Option<(&'a ExploreRow, ExploreFigure)> {
    rows.iter()
        .filter_map(|row| Some((*row, of(row)?)))
        .max_by(|a, b| a.1.value.total_cmp(&b.1.value))
}

fn named(row: &ExploreRow, noun: &str) -> String {
    match row.at {
        Some(_) => format!("a {noun} of {}", row.setting),
        None => format!("no {noun}"),
    }
}

/// Effect on the primary: on its requests if they were observed, else on its time.
fn primary_slowdown(row: &ExploreRow) -> String {
    match (row.p95_change, row.slowdown) {
        (Some(change), _) => direction(
            change,
            "the 95th percentile of its requests is",
            "longer",
            "shorter",
        ),
        (None, Some(slowdown)) => direction(slowdown, "the primary takes", "longer", "less"),
        (None, None) => "how the primary fares is not known".to_owned(),
    }
}

fn direction(share: ExploreFigure, what: &str, more: &str, less: &str) -> String {
    if share.value < 0.0 {
        let turned = ExploreFigure {
            value: -share.value,
            low: -share.high,
            high: -share.low,
        };
        return format!("{what} {} {less}", with_interval(turned, units::percent));
    }
    format!("{what} {} {more}", with_interval(share, units::percent))
}

fn varied(rows: &[&ExploreRow], noun: &str) -> String {
    if let Some((row, speedup)) = best(rows, |row| row.speedup) {
        let fast = with_interval(speedup, times);
        let setting = named(row, noun);
        return if speedup.low > 1.0 {
            format!(
                "With {setting} all programs are done {fast} times as fast as one after another, the most of \
                 these, and {}.",
                primary_slowdown(row)
            )
        } else {
            format!(
                "Harvest does not pay here with any {noun}: the best, {setting}, has all programs done {fast} \
                 times as fast as one after another, and {}.",
                primary_slowdown(row)
            )
        };
    }
    best(rows, |row| row.work).map_or_else(
        || "What scavengers got done is not known.".to_owned(),
        |(row, work)| {
            format!(
                "With {} scavengers have {} of the primary's time as CPU time of their own, the most of these, \
                 and {}.",
                named(row, noun),
                with_interval(work, units::percent),
                primary_slowdown(row)
            )
        },
    )
}

/// Sentence about the bound on the overhead of yields: the best setting, and how many loads yield.
fn overheads(rows: &[&ExploreRow]) -> String {
    let varied = varied(rows, "bound");
    let yielding_loads: Vec<(&str, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.setting.as_str(), row.loads?.value)))
        .collect();
    let (Some((first, least)), Some((last, most))) =
        (yielding_loads.first(), yielding_loads.last())
    else {
        return varied;
    };
    let [least, most] = [least, most].map(|loads| units::compact(*loads));
    if yielding_loads
        .iter()
        .all(|(_, loads)| units::compact(*loads) == least)
    {
        return format!(
            "The same loads of the primary ({least}) yield with all of these bounds, which exclude none that pays. \
             {varied}"
        );
    }
    format!("Loads of the primary that yield: {least} with {first}, {most} with {last}. {varied}")
}

fn parts(explore: &HarvestExplore, rows: &[&ExploreRow]) -> String {
    let is_switch = |row: &&&ExploreRow| row.setting == "switch";
    let all = rows.iter().find(|row| row.setting == "nothing");
    let Some(all) = all else {
        return "The harvest with all parts failed, so that nothing can be compared with it."
            .to_owned();
    };
    let alone = rows.iter().find(is_switch).and_then(|row| row.slowdown);
    let own = alone.map_or_else(String::new, |slowdown| {
        format!(
            " Yields alone, with nobody else running, change the primary's time by {}.",
            with_interval(slowdown, change)
        )
    });
    if explore.options.pairs < 2 {
        return format!("One round does not tell differences from chance (--pairs 3).{own}");
    }
    let mut worse: Vec<(&str, f64)> = rows
        .iter()
        .filter(|row| !is_switch(row))
        .filter_map(|row| Some((row.setting.as_str(), loss(all, row)?)))
        .collect();
    worse.sort_by(|a, b| b.1.total_cmp(&a.1));
    if worse.is_empty() {
        return format!("No part makes a difference here beyond what rounds differ by.{own}");
    }
    let parts: Vec<String> = worse
        .iter()
        .map(|(part, loss)| format!("{part} ({})", units::percent(*loss)))
        .collect();
    format!(
        "Beyond what rounds differ by, it costs to leave out {}.{own}",
        parts.join(", ")
    )
}

/// Loss without a part: in speed of all programs, else in time of the primary; `None` if the intervals
/// overlap.
fn loss(all: &ExploreRow, without: &ExploreRow) -> Option<f64> {
    if let (Some(all), Some(without)) = (all.speedup, without.speedup) {
        return (without.high < all.low).then(|| 1.0 - without.value / all.value);
    }
    let (all, without) = (all.slowdown?, without.slowdown?);
    (without.low > all.high).then_some(without.value - all.value)
}

fn periods(rows: &[&ExploreRow]) -> String {
    let profiled: Vec<&&ExploreRow> = rows.iter().filter(|row| row.at.is_some()).collect();
    let (Some(first), Some(last)) = (profiled.first(), profiled.last()) else {
        return "No profile could be taken.".to_owned();
    };
    let slows = |row: &ExploreRow| {
        let slowdown = row.slowdown.map(|it| with_interval(it, change));
        let slowdown = slowdown.unwrap_or_else(|| "an unknown share".to_owned());
        format!("{slowdown} with a sample each {}", row.setting)
    };
    let least = profiled
        .iter()
        .filter_map(|row| row.same_loads)
        .map(|same| same.low)
        .fold(f64::NAN, f64::min);
    let same = if least >= 1.0 {
        "all plans have the same loads yield".to_owned()
    } else if least.is_finite() {
        format!(
            "plans have at least {} of the loads that yield in common with that of 1.27 ms",
            units::percent(least)
        )
    } else {
        "no plan has a load yield".to_owned()
    };
    format!(
        "A profile changes the program's time by {}, and by {}; {same}.",
        slows(first),
        slows(last)
    )
}

fn at_once(rows: &[&ExploreRow]) -> String {
    let Some((row, speedup)) = best(rows, |row| row.speedup) else {
        return "No programs were done at once.".to_owned();
    };
    let fast = with_interval(speedup, times);
    if speedup.low > 1.0 {
        format!(
            "{} at once are done {fast} times as fast as one after another, the most of these.",
            row.setting
        )
    } else {
        format!(
            "Harvest does not pay here: {} at once, the best, are done {fast} times as fast as one after \
             another.",
            row.setting
        )
    }
}

fn schedulers(explore: &HarvestExplore, rows: &[&ExploreRow]) -> String {
    let harvest = rows.iter().find(|row| row.setting == "harvest");
    let Some(harvest) = harvest else {
        return "The harvest failed, so that it cannot be compared.".to_owned();
    };
    let others: Vec<&ExploreRow> = rows
        .iter()
        .filter(|row| !["harvest", "alone", "one after another"].contains(&row.setting.as_str()))
        .copied()
        .collect();
    let of = |row: &ExploreRow| row.speedup.or(row.work);
    let Some(own) = of(harvest) else {
        return "What the harvest gave is not known.".to_owned();
    };
    let by_speed = harvest.speedup.is_some();
    let formatted = |figure: ExploreFigure| {
        with_interval(figure, if by_speed { times } else { units::percent })
    };
    let measure = if by_speed {
        "Times as fast as one after another"
    } else {
        "CPU time of scavengers, as a share of the primary's time"
    };
    let compared: Vec<String> = others
        .iter()
        .filter_map(|row| {
            Some(format!(
                "{} {} ({})",
                row.setting,
                formatted(of(row)?),
                short(row)
            ))
        })
        .collect();
    let most = others
        .iter()
        .filter_map(|row| of(row))
        .map(|figure| figure.high)
        .fold(if by_speed { 1.0 } else { 0.0 }, f64::max);
    let longest = others
        .iter()
        .filter_map(|row| row.p95_change)
        .map(|change| change.high)
        .fold(0.0, f64::max);
    let verdict = if own.low > most {
        match harvest.p95_change {
            Some(change) if change.low > longest => {
                "Harvest gives scavengers most here, and requests take longest"
            }
            _ => "Harvest pays here",
        }
    } else if own.high < most {
        "Harvest does not pay here"
    } else {
        "These rounds do not show whether harvest pays here"
    };
    let verdict = match explore.options.pairs {
        1 => format!("{verdict}, by one round"),
        _ => verdict.to_owned(),
    };
    let smt = others.iter().find(|row| row.setting == "SMT");
    let of_smt = smt.and_then(|smt| share_of_smt(harvest, smt));
    format!(
        "{verdict}. {measure}: harvest {} ({}){}{}.{}",
        formatted(own),
        short(harvest),
        if compared.is_empty() { "" } else { ", " },
        compared.join(", "),
        of_smt.unwrap_or_default()
    )
}

/// Sentence about the harvest's work as a share of that on the core's second hardware thread.
fn share_of_smt(harvest: &ExploreRow, smt: &ExploreRow) -> Option<String> {
    let (own, smt) = (harvest.work?, smt.work.filter(|work| work.low > 0.0)?);
    let share = ExploreFigure {
        value: own.value / smt.value,
        low: own.low / smt.high,
        high: own.high / smt.low,
    };
    Some(format!(
        " In the harvest scavengers get {} of the work done that they get done on the core's other hardware \
         thread.",
        with_interval(share, units::percent)
    ))
}

fn objectives(rows: &[&ExploreRow]) -> String {
    let kept = |row: &&&ExploreRow| {
        row.p95_ns
            .zip(row.at)
            .is_some_and(|(p95, objective)| p95.value <= objective)
    };
    let kept_rows: Vec<&ExploreRow> = rows.iter().filter(kept).copied().collect();
    let within = format!("{} of {} objectives were kept", kept_rows.len(), rows.len());
    best(&kept_rows, |row| row.work).map_or_else(
        || format!("{within}."),
        |(row, work)| {
            format!(
                "{within}; the most work within one is {} of what scavengers do with the CPU to themselves, at \
                 {}.",
                with_interval(work, units::percent),
                row.setting
            )
        },
    )
}
