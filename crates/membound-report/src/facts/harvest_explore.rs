//! Columns of the tables of a harvest exploration, and the sentence below each table.

use membound_types::{ExploreFigure, ExploreRow, ExploreSweep, ExploredSweep, HarvestExplore};

use super::run::NONE;
use crate::units;

mod sentences;

pub(crate) use sentences::{sentence, summary};

/// Column of a table.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Priority on a narrow terminal: 0 is always kept; of the others the highest is dropped first.
    pub(crate) expendable: u8,
    /// True if the interval is shown even if there is little room.
    pub(crate) is_compared: bool,
    pub(crate) of: fn(&ExploreRow) -> Option<ExploreFigure>,
    pub(crate) format: fn(f64) -> String,
}

impl Column {
    /// Text of a cell: the median, with its interval if `shown` includes it and rounds differ.
    pub(crate) fn cell(&self, row: &ExploreRow, shown: Intervals) -> String {
        let has_room = match shown {
            Intervals::All => true,
            Intervals::OfCompared => self.is_compared,
            Intervals::None => false,
        };
        match (self.of)(row) {
            Some(found) if has_room => with_interval(found, self.format),
            Some(found) => (self.format)(found.value),
            None => NONE.to_owned(),
        }
    }
}

/// Figures that are shown with their intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intervals {
    All,
    /// Only figures of columns with [`Column::is_compared`].
    OfCompared,
    None,
}

const fn column(
    title: &'static str,
    expendable: u8,
    of: fn(&ExploreRow) -> Option<ExploreFigure>,
    format: fn(f64) -> String,
) -> Column {
    Column {
        title,
        expendable,
        is_compared: false,
        of,
        format,
    }
}

const fn compared(
    title: &'static str,
    expendable: u8,
    of: fn(&ExploreRow) -> Option<ExploreFigure>,
    format: fn(f64) -> String,
) -> Column {
    Column {
        is_compared: true,
        ..column(title, expendable, of, format)
    }
}

const PRIMARY: Column = column("primary takes", 4, |row| row.primary_s, units::seconds);
const SLOWDOWN: Column = compared("slower", 0, |row| row.slowdown, change);
const P95: Column = column("p95", 1, |row| row.p95_ns, units::duration_ns);
const P95_CHANGE: Column = compared("p95 longer", 0, |row| row.p95_change, change);
const ALL: Column = column("all done in", 3, |row| row.all_s, units::seconds);
const SPEEDUP: Column = compared("× as fast", 1, |row| row.speedup, times);
const WORK: Column = column("their work", 2, |row| row.work, units::percent);
const TURN: Column = column("slice", 5, |row| row.turn_p50_ns, units::duration_ns);
const TURN_90: Column = column("90 %", 6, |row| row.turn_p90_ns, units::duration_ns);
const WITHIN: Column = column("kept to", 7, |row| row.within, units::percent);
const YIELD: Column = column("a yield", 3, |row| row.yield_ns, units::duration_ns);
const LOADS: Column = column("loads", 1, |row| row.loads, units::compact);
const SAME_LOADS: Column = column("in common", 0, |row| row.same_loads, units::percent);
const EACH: Column = column("a program", 3, each, units::seconds);

/// Time until all programs ended ÷ their number.
fn each(row: &ExploreRow) -> Option<ExploreFigure> {
    let programs = row.at.filter(|programs| *programs > 0.0)?;
    let of = |seconds: f64| seconds / programs;
    let all = row.all_s.or(row.primary_s)?;
    Some(ExploreFigure {
        value: of(all.value),
        low: of(all.low),
        high: of(all.high),
    })
}

/// Columns of a table after the setting.
pub(crate) fn columns(explore: &HarvestExplore, sweep: ExploreSweep) -> Vec<Column> {
    let has_requests = explore.options.requests.is_some();
    let slowdown = || if has_requests { P95_CHANGE } else { SLOWDOWN };
    match sweep {
        ExploreSweep::Bound => vec![slowdown(), SPEEDUP, WORK, TURN, TURN_90, WITHIN],
        ExploreSweep::Distance => vec![slowdown(), SPEEDUP, WORK, TURN, TURN_90],
        ExploreSweep::Overhead => vec![slowdown(), SPEEDUP, WORK, LOADS, YIELD],
        ExploreSweep::Parts => vec![slowdown(), YIELD, SPEEDUP, WORK],
        ExploreSweep::Periods => vec![PRIMARY, SLOWDOWN, LOADS, SAME_LOADS],
        ExploreSweep::Chases => vec![ALL, EACH, SPEEDUP, slowdown()],
        ExploreSweep::Kernel if has_requests => vec![P95, P95_CHANGE, ALL, SPEEDUP, WORK],
        ExploreSweep::Kernel => vec![PRIMARY, SLOWDOWN, ALL, SPEEDUP, WORK],
        ExploreSweep::Slo => vec![P95, P95_CHANGE, WORK, SPEEDUP],
        ExploreSweep::Load if has_requests => vec![P95, P95_CHANGE, WORK, SPEEDUP],
        ExploreSweep::Load => vec![PRIMARY, SLOWDOWN, WORK, SPEEDUP],
        ExploreSweep::PartsByDistance => vec![slowdown(), SPEEDUP, WORK, TURN, TURN_90],
    }
}

/// Heading of the first column, which holds the setting.
pub(crate) const fn setting_title(sweep: ExploreSweep) -> &'static str {
    match sweep {
        ExploreSweep::Bound => "bound",
        ExploreSweep::Distance => "distance",
        ExploreSweep::Overhead => "overhead",
        ExploreSweep::Parts => "left out",
        ExploreSweep::Periods => "period",
        ExploreSweep::Chases => "programs",
        ExploreSweep::Kernel => "scheduler",
        ExploreSweep::Slo => "objective",
        ExploreSweep::Load => "load, scheduler",
        ExploreSweep::PartsByDistance => "distance, left out",
    }
}

/// Heading of a table: what is varied.
pub(crate) const fn title(sweep: ExploreSweep) -> &'static str {
    match sweep {
        ExploreSweep::Bound => "Bound on the time until the primary runs again",
        ExploreSweep::Distance => "Distance between a scavenger's yields",
        ExploreSweep::Overhead => "Bound on the overhead of yields",
        ExploreSweep::Parts => "Parts of a yield, each left out",
        ExploreSweep::Periods => "Sampling period of the profile",
        ExploreSweep::Chases => "Programs at once",
        ExploreSweep::Kernel => "Who schedules",
        ExploreSweep::Slo => "Objective for the latency of requests",
        ExploreSweep::Load => "Load on the primary",
        ExploreSweep::PartsByDistance => "Parts of a yield, each left out at each distance",
    }
}

/// Short heading for links.
pub(crate) const fn short_title(sweep: ExploreSweep) -> &'static str {
    match sweep {
        ExploreSweep::Bound => "Bound",
        ExploreSweep::Distance => "Distance",
        ExploreSweep::Overhead => "Overhead",
        ExploreSweep::Parts => "Parts",
        ExploreSweep::Periods => "Periods",
        ExploreSweep::Chases => "At once",
        ExploreSweep::Kernel => "Schedulers",
        ExploreSweep::Slo => "Objectives",
        ExploreSweep::Load => "Loads",
        ExploreSweep::PartsByDistance => "Parts by distance",
    }
}

/// Explanation of the columns, once for all tables.
pub(crate) fn legend(explore: &HarvestExplore) -> Vec<String> {
    let mut out = vec![
        "slower: how much longer the primary takes than by itself".to_owned(),
        "× as fast: the time of all programs one after another, by the time in which all are done".to_owned(),
        "their work: what scavengers get done while the primary runs, by what they get done in as much time \
         with the CPU to themselves"
            .to_owned(),
    ];
    let has = |wanted: ExploreSweep| explore.sweeps.iter().any(|it| it.sweep == wanted);
    let has_slices = [
        ExploreSweep::Bound,
        ExploreSweep::Distance,
        ExploreSweep::PartsByDistance,
    ];
    if has_slices.into_iter().any(has) {
        out.push(
            "slice, 90 %: the time from a yield until the primary ran again that half, and 90 in 100, of the \
             time slices did not exceed"
                .to_owned(),
        );
    }
    if has(ExploreSweep::Overhead) {
        out.push(
            "overhead: the share of the CPU time that yields may cost where loads hit; loads: how many loads of \
             the primary yield within it"
                .to_owned(),
        );
    }
    if has(ExploreSweep::Parts) || has(ExploreSweep::Overhead) {
        out.push(
            "a yield: the growth of the primary's time divided by the number of its time slices"
                .to_owned(),
        );
    }
    if has(ExploreSweep::PartsByDistance) {
        out.push(
            "yield costs: the parts that make a yield cheaper (liveness, vectors, loops, loop-saves) are left out \
             together, so that each yield saves all registers"
                .to_owned(),
        );
    }
    if explore.options.requests.is_some() {
        out.push("p95: the duration that 95 in 100 requests do not exceed".to_owned());
    }
    if explore.options.pairs > 1 {
        let ends = if explore.options.pairs < 6 {
            "the smallest and the largest"
        } else {
            "the 95 % interval"
        };
        out.push(format!(
            "figures are medians of {} rounds; brackets hold {ends}",
            explore.options.pairs
        ));
    }
    out
}

/// The values of [`ExploreRow::series`] in a table that crosses two settings, in the order of its rows.
pub(crate) fn series(sweep: &ExploredSweep) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for name in sweep.rows.iter().filter_map(|row| row.series.as_deref()) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Effect on the primary: on the 95th percentile of its requests if they were observed, else on its time.
pub(crate) fn longer(row: &ExploreRow) -> Option<ExploreFigure> {
    row.p95_change.or(row.slowdown)
}

/// True if the intervals of two figures overlap.
pub(crate) fn overlap(a: ExploreFigure, b: ExploreFigure) -> bool {
    a.low <= b.high && b.low <= a.high
}

/// Joins the words of a command line.
pub(crate) fn words(words: &[String]) -> String {
    words.join(" ")
}

/// Describes the programs that run alongside the primary.
pub(crate) fn corunners(explore: &HarvestExplore) -> String {
    let options = &explore.options;
    let copies = match options.copies {
        1 => String::new(),
        copies => format!("{copies} copies of "),
    };
    if options.own_scavenger {
        return if options.copies == 1 {
            "itself".to_owned()
        } else {
            format!("{copies}itself")
        };
    }
    let each: Vec<String> = options
        .scavengers
        .iter()
        .map(|line| format!("{copies}{}", words(line)))
        .collect();
    each.join(", ")
}

/// Effect on the primary, for use after another figure.
pub(crate) fn short(row: &ExploreRow) -> String {
    match (row.p95_change, row.slowdown) {
        (Some(longer), _) => format!("p95 {}", with_interval(longer, change)),
        (None, Some(slower)) => format!("primary {}", with_interval(slower, change)),
        (None, None) => "primary not known".to_owned(),
    }
}

/// Formats a median with its interval if rounds differ.
pub(crate) fn with_interval(figure: ExploreFigure, format: fn(f64) -> String) -> String {
    let [value, low, high] = [figure.value, figure.low, figure.high].map(format);
    if low == value && high == value {
        return value;
    }
    // Write the unit only once.
    let bare = |end: &str| {
        let unit = value.rsplit_once(' ').map_or("", |(_, unit)| unit);
        end.strip_suffix(unit).map_or(end, str::trim_end).to_owned()
    };
    format!("{value} [{}, {}]", bare(&low), bare(&high))
}

/// Formats a relative change with its sign.
pub(crate) fn change(share: f64) -> String {
    let text = units::percent(share);
    if share > 0.0 && text != "0 %" {
        format!("+{text}")
    } else {
        text
    }
}

/// Formats a factor with two decimals.
pub(crate) fn times(factor: f64) -> String {
    if factor.is_finite() {
        format!("{factor:.2}")
    } else {
        units::NO_VALUE.to_owned()
    }
}

/// True if the setting could be run, so that its row has figures.
pub(crate) const fn has_figures(row: &ExploreRow) -> bool {
    row.failed.is_none()
}

/// Reasons why settings of a table have no figures, with settings grouped by reason.
pub(crate) fn failures(sweep: &ExploredSweep) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in &sweep.rows {
        let Some(why) = row.failed.as_deref() else {
            continue;
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, settings)) => settings.push(&row.setting),
            None => reasons.push((why, vec![&row.setting])),
        }
    }
    let all = sweep.rows.len();
    reasons
        .into_iter()
        .map(|(why, settings)| match settings.len() {
            many if many == all && all > 1 => format!("all {all} settings: {why}"),
            _ => format!("{}: {why}", settings.join(", ")),
        })
        .collect()
}

/// True if no setting of a table could be run.
pub(crate) fn is_empty(sweep: &ExploredSweep) -> bool {
    !sweep.rows.iter().any(has_figures)
}
