//! Document 000's Table 6.1: one condition a row, and what it does to parallel loads.

use membound_types::{
    ComparedValue, ConditionRow, LoadsTime, MlpCell, MlpMode, NodePolicy, Outcome, PageKind,
};

use super::view::{MlpView, ProfileView};
use crate::mlp;
use crate::stats::{isotonic_median, median};

/// What the cells of one condition say, read as the rule reads them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cells {
    /// One load.
    pub(super) one: Option<ComparedValue>,
    /// Two loads in sequence.
    pub(super) pair: Option<ComparedValue>,
    /// Parallelism by the rule; its interval follows from the scatter of the pair and of
    /// the parallel times.
    pub(super) rule: Outcome<ComparedValue>,
    /// T(N) inside the window.
    pub(super) parallel: Vec<LoadsTime>,
    /// T(n) in sequence.
    pub(super) sequential: Vec<LoadsTime>,
}

impl Cells {
    pub(super) fn of(part: &MlpView) -> Self {
        let area = main_area(part);
        let sequential = series(part, area, MlpMode::Sequential);
        let parallel = series(part, area, MlpMode::Parallel);
        // The sequential series has one load without fillers that only shift it.
        let one = [&sequential, &parallel]
            .into_iter()
            .find_map(|series| series.iter().find(|time| time.loads == 1))
            .map(scattered);
        let from_cells = sequential.iter().find(|time| time.loads == 2);
        let pair = match (part.sequential_pair_cycles.known(), from_cells) {
            (Some(&value), Some(cell)) => Some(ComparedValue {
                value,
                low: Some(value - cell.spread),
                high: Some(value + cell.spread),
            }),
            (Some(&value), None) => Some(ComparedValue {
                value,
                low: None,
                high: None,
            }),
            (None, cell) => cell.map(scattered),
        };
        let rule = rule(part, &parallel, pair);
        Self {
            one,
            pair,
            rule,
            parallel,
            sequential,
        }
    }
}

const fn scattered(time: &LoadsTime) -> ComparedValue {
    ComparedValue {
        value: time.cycles,
        low: Some(time.cycles - time.spread),
        high: Some(time.cycles + time.spread),
    }
}

/// The profile's own answer where it has one, with the interval that comes of moving the
/// pair against the table by what the two scatter.
fn rule(
    part: &MlpView,
    parallel: &[LoadsTime],
    pair: Option<ComparedValue>,
) -> Outcome<ComparedValue> {
    let points: Vec<(u32, f64)> = parallel
        .iter()
        .map(|time| (time.loads, time.cycles))
        .collect();
    let value = match (&part.mlp_rule, pair) {
        (Outcome::Known(value), _) => *value,
        (Outcome::Missing { not_measured }, None) => {
            return Outcome::Missing {
                not_measured: not_measured.clone(),
            };
        }
        // A document that was never interpreted.
        (Outcome::Missing { .. }, Some(pair)) => match mlp::rule(&points, pair.value) {
            Outcome::Known(value) => value,
            Outcome::Missing { not_measured } => return Outcome::Missing { not_measured },
        },
    };
    let spreads: Vec<f64> = parallel.iter().map(|time| time.spread).collect();
    let ends = pair.and_then(|pair| {
        let scatter = (pair.high? - pair.value).hypot(median(&spreads)?);
        let low = *mlp::rule(&points, pair.value - scatter).known()?;
        let high = *mlp::rule(&points, pair.value + scatter).known()?;
        Some((low.min(value), high.max(value)))
    });
    Outcome::Known(ComparedValue {
        value,
        low: ends.map(|(low, _)| low),
        high: ends.map(|(_, high)| high),
    })
}

/// The area that most parallel cells fall into.
fn main_area(part: &MlpView) -> Option<u64> {
    let mine = || {
        part.cells.iter().filter(|cell| {
            cell.mode == MlpMode::Parallel && cell.page == part.page && cell.node == part.node
        })
    };
    mine()
        .map(|cell| cell.area_bytes)
        .max_by_key(|&area| (mine().filter(|cell| cell.area_bytes == area).count(), area))
}

/// The cells of one mode with the fewest fillers, by loads; the median of those measured
/// twice.
fn series(part: &MlpView, area: Option<u64>, mode: MlpMode) -> Vec<LoadsTime> {
    let mine: Vec<&MlpCell> = part
        .cells
        .iter()
        .filter(|cell| {
            cell.mode == mode
                && cell.page == part.page
                && cell.node == part.node
                && area.is_none_or(|area| cell.area_bytes == area)
                && cell.cycles.is_finite()
                && cell.spread.is_finite()
        })
        .collect();
    let mut counts: Vec<u32> = mine.iter().map(|cell| cell.loads).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
        .into_iter()
        .filter_map(|loads| {
            let of_n = || mine.iter().filter(move |cell| cell.loads == loads);
            let fewest = of_n().map(|cell| cell.fillers).min()?;
            let read = |value: fn(&MlpCell) -> f64| {
                let values: Vec<f64> = of_n()
                    .filter(|cell| cell.fillers == fewest)
                    .map(|cell| value(cell))
                    .collect();
                median(&values)
            };
            Some(LoadsTime {
                loads,
                cycles: read(|cell| cell.cycles)?,
                spread: read(|cell| cell.spread)?,
            })
        })
        .collect()
}

/// The rows of a profile; `profile` is its short name. Overheads are filled by [`finish`].
#[must_use]
pub fn rows(profile: &str, view: &ProfileView) -> Vec<ConditionRow> {
    view.mlp
        .conditions()
        .map(|part| {
            let cells = Cells::of(part);
            let (below, reached) = crossing(&cells);
            let known = |value: Option<ComparedValue>, what: &str| {
                value.map_or_else(
                    || Outcome::missing(format!("{what} was not measured")),
                    Outcome::Known,
                )
            };
            ConditionRow {
                profile: profile.to_owned(),
                condition: condition(view, part.page, part.node),
                page: part.page,
                node: part.node,
                effective_mlp: cells.rule.clone(),
                throughput_mlp: part.mlp_throughput.clone(),
                one_load_cycles: known(cells.one, "one load"),
                pair_cycles: known(cells.pair, "two loads in sequence"),
                below,
                reached,
                overhead_cycles: Outcome::missing("the first row, which others are held against"),
            }
        })
        .collect()
}

/// Fills the overhead of one load over the first row that has one.
pub fn finish(rows: &mut [ConditionRow]) {
    let first = rows
        .iter()
        .find_map(|row| row.one_load_cycles.known().copied());
    let Some(first) = first else { return };
    for row in rows.iter_mut().skip(1) {
        row.overhead_cycles = match &row.one_load_cycles {
            Outcome::Known(one) => Outcome::Known(ComparedValue {
                value: one.value - first.value,
                low: one.low.zip(first.high).map(|(low, high)| low - high),
                high: one.high.zip(first.low).map(|(high, low)| high - low),
            }),
            Outcome::Missing { not_measured } => Outcome::Missing {
                not_measured: not_measured.clone(),
            },
        };
    }
}

/// The most loads at once that take less than the pair and the fewest that do not, on the
/// times made monotone as the rule makes them; the times are those measured.
fn crossing(cells: &Cells) -> (Option<LoadsTime>, Option<LoadsTime>) {
    let Some(pair) = cells.pair else {
        return (None, None);
    };
    let table: Vec<LoadsTime> = cells
        .parallel
        .iter()
        .copied()
        .filter(|time| time.loads >= 2)
        .collect();
    let times: Vec<f64> = table.iter().map(|time| time.cycles).collect();
    match isotonic_median(&times)
        .iter()
        .position(|time| *time >= pair.value)
    {
        Some(first) => (
            first.checked_sub(1).map(|below| table[below]),
            Some(table[first]),
        ),
        None => (table.last().copied(), None),
    }
}

/// The labels of the run, in the document's short form where host's and guest's huge pages
/// are labelled, then pages and node where they say more.
fn condition(view: &ProfileView, page: PageKind, node: NodePolicy) -> String {
    let labels = &view.conditions().labels;
    let digit = |name: &str| match labels.get(name)?.to_lowercase().as_str() {
        "on" | "always" | "enabled" | "yes" | "1" => Some(0),
        "off" | "never" | "disabled" | "no" | "0" => Some(1),
        _ => None,
    };
    let mut words = Vec::new();
    let short = digit("host-thp").zip(digit("guest-thp"));
    if let Some((host, guest)) = short {
        words.push(format!("H{host}G{guest}"));
    }
    for (name, value) in labels {
        if short.is_none() || (name != "host-thp" && name != "guest-thp") {
            words.push(format!("{name}={value}"));
        }
    }
    words.push(format!("{page} pages"));
    if node != NodePolicy::LOCAL {
        words.push(format!("node {node}"));
    }
    words.join(", ")
}
