//! Document 000's Table 6.1: one row per condition, with its effect on parallel loads.

use std::collections::BTreeMap;

use membound_types::{
    ComparedValue, ConditionRow, LoadsTime, NodePolicy, Outcome, PageKind, Placements,
};

use super::view::{MlpView, ProfileView};
use crate::mlp::{RuleReading, Run};
use crate::stats::median;

/// Results from the cells of one condition, by the same selection as for the rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cells {
    /// Cycles of one load.
    pub(super) one: Option<ComparedValue>,
    /// Cycles of two loads in sequence.
    pub(super) pair: Option<ComparedValue>,
    /// Parallelism by the rule.
    pub(super) rule: Outcome<ComparedValue>,
    /// The measured parallel times just below and at the crossing with the pair.
    pub(super) between: (Option<LoadsTime>, Option<LoadsTime>),
    /// T(N) of parallel loads, inside the reorder buffer.
    pub(super) parallel: Vec<LoadsTime>,
    /// T(n) of loads in sequence.
    pub(super) sequential: Vec<LoadsTime>,
}

impl Cells {
    pub(super) fn of(part: &MlpView) -> Self {
        let run = Run::new(&part.cells, part.page, part.node);
        let sequential = run.sequential_times();
        let parallel = run.parallel_times();
        let one = run.one_load().as_ref().map(scattered);
        let from_cells = sequential.iter().find(|time| time.loads == 2);
        let stated = part.sequential_pair_cycles.known().copied();
        let pair = match (stated.filter(|cycles| cycles.is_finite()), from_cells) {
            (Some(value), Some(cell)) => Some(ComparedValue {
                value,
                low: Some(value - cell.spread),
                high: Some(value + cell.spread),
            }),
            (Some(value), None) => Some(ComparedValue {
                value,
                low: None,
                high: None,
            }),
            (None, cell) => cell.map(scattered),
        };
        let reading = run.read_rule(pair.map(|pair| pair.value));
        Self {
            one,
            pair,
            rule: rule(part, &reading),
            between: between(&reading, &parallel, pair),
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

/// The profile's own parallelism if it has one, else that of the cells. The interval is that of
/// the cells if the profile has none.
fn rule(part: &MlpView, reading: &Outcome<RuleReading>) -> Outcome<ComparedValue> {
    let value = match (&part.mlp_rule, reading) {
        (Outcome::Known(value), _) => *value,
        (Outcome::Missing { .. }, Outcome::Known(reading)) => reading.parallelism,
        (Outcome::Missing { not_measured }, Outcome::Missing { .. }) => {
            return Outcome::Missing {
                not_measured: not_measured.clone(),
            };
        }
    };
    let interval = part.mlp_rule_interval.known().or_else(|| {
        let reading = reading.known()?;
        reading.interval.known()
    });
    Outcome::Known(ComparedValue {
        value,
        low: interval.map(|interval| interval.low.min(value)),
        high: interval.map(|interval| interval.high.max(value)),
    })
}

/// The measured times of the most parallel loads below the pair's time and of the fewest at or
/// above it, where the rule's monotone times cross.
fn between(
    reading: &Outcome<RuleReading>,
    parallel: &[LoadsTime],
    pair: Option<ComparedValue>,
) -> (Option<LoadsTime>, Option<LoadsTime>) {
    let at = |loads: u32| parallel.iter().find(|time| time.loads == loads).copied();
    match (reading, parallel.last()) {
        (Outcome::Known(reading), _) => (
            reading.between.below.and_then(|time| at(time.loads)),
            at(reading.between.reached.loads),
        ),
        // No number of loads reaches the pair's time.
        (Outcome::Missing { .. }, Some(last)) => {
            let short = pair.is_some_and(|pair| last.loads >= 2 && last.cycles < pair.value);
            (short.then_some(*last), None)
        }
        (Outcome::Missing { .. }, None) => (None, None),
    }
}

/// The rows of a profile; `profile` is its short name. [`finish`] fills the overheads.
#[must_use]
pub fn rows(profile: &str, view: &ProfileView) -> Vec<ConditionRow> {
    view.mlp
        .conditions()
        .map(|part| {
            let cells = Cells::of(part);
            let (below, reached) = cells.between;
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
                throughput_interval: part.mlp_throughput_interval.known().map(|found| {
                    ComparedValue {
                        value: found.value,
                        low: Some(found.low),
                        high: Some(found.high),
                    }
                }),
                one_load_cycles: known(cells.one, "one load"),
                pair_cycles: known(cells.pair, "two loads in sequence"),
                below,
                reached,
                placement_noise: part.placements.as_ref().and_then(placement_noise),
                overhead_cycles: Outcome::missing("the first row, which others are held against"),
            }
        })
        .collect()
}

/// Scatter between placements: the median over the numbers of loads.
fn placement_noise(placements: &Placements) -> Option<f64> {
    let points = placements.points.iter();
    let between: Vec<f64> = points.map(|point| point.between).collect();
    median(&between).filter(|between| between.is_finite())
}

/// Fills each row's overhead: the cycles of one load minus those of the first row that has them.
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

/// Name of a condition: labels of the run, pages, and the node unless it is local.
pub(super) fn condition(view: &ProfileView, page: PageKind, node: NodePolicy) -> String {
    let mut words = label_words(&view.conditions().labels);
    words.push(format!("{page} pages"));
    if node != NodePolicy::LOCAL {
        words.push(format!("node {node}"));
    }
    words.join(", ")
}

/// A title with the page kind, and the node unless it is local.
pub(super) fn conditional_title(title: &str, page: PageKind, node: NodePolicy) -> String {
    match node {
        NodePolicy::LOCAL => format!("{title}, {page}"),
        node => format!("{title}, {page}, node {node}"),
    }
}

/// Name of the label for activity of others on the machine, with values `quiet` and `noisy`.
const PLACEMENT: &str = "placement";

/// Name of the label for transparent huge pages of the guest.
const GUEST_THP: &str = "guest-thp";

/// Whether the label `name` says that something is switched on or off; `None` for another value or no label.
fn is_on(labels: &BTreeMap<String, String>, name: &str) -> Option<bool> {
    match labels.get(name)?.to_lowercase().as_str() {
        "on" | "always" | "enabled" | "yes" | "1" => Some(true),
        "off" | "never" | "disabled" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// True if the labels of a run say that the guest has no transparent huge pages.
#[must_use]
pub fn lacks_thp(labels: &BTreeMap<String, String>) -> bool {
    is_on(labels, GUEST_THP) == Some(false)
}

/// Labels as words, such as `noisy placement`.
///
/// Labels of host's and guest's huge pages take the document's short form: `H0G1`, where 0 means
/// enabled.
pub(super) fn label_words(labels: &BTreeMap<String, String>) -> Vec<String> {
    let digit = |name: &str| is_on(labels, name).map(|on| u8::from(!on));
    let mut words = Vec::new();
    let short = digit("host-thp").zip(digit(GUEST_THP));
    if let Some((host, guest)) = short {
        words.push(format!("H{host}G{guest}"));
    }
    for (name, value) in labels {
        if name == PLACEMENT && matches!(value.as_str(), "noisy" | "quiet") {
            words.push(format!("{value} placement"));
        } else if short.is_none() || (name != "host-thp" && name != GUEST_THP) {
            words.push(format!("{name}={value}"));
        }
    }
    words
}
