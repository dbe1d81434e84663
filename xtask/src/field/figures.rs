//! The targets of the field, and whether they are met.

use membound_model::stats::median;
use serde::Serialize;

use super::entry::{Entry, Threads};
use super::session::{Mode, Row, Savings};

/// A target, and the worst value found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) limit: f64,
    /// `None` if no entry has a value.
    pub(crate) found: Option<f64>,
    /// The entry with the worst value.
    pub(crate) entry: Option<String>,
    /// Unit of `limit` and `found`.
    pub(crate) unit: &'static str,
    pub(crate) met: bool,
}

impl Figure {
    fn at_most(what: String, limit: f64, unit: &'static str, found: Option<(f64, &str)>) -> Self {
        Self {
            what,
            limit,
            found: found.map(|(value, _)| value),
            entry: found.map(|(_, entry)| entry.to_owned()),
            unit,
            met: found.is_none_or(|(value, _)| value <= limit),
        }
    }

    /// The limit and the found value, formatted for people.
    pub(crate) fn shown(&self) -> [String; 2] {
        let write = |value: f64| match self.unit {
            "%" => format!("{:.1} %", value * 100.0),
            unit => format!("{value:.2} {unit}"),
        };
        [
            write(self.limit),
            self.found.map_or_else(|| "not measured".to_owned(), write),
        ]
    }
}

/// The figures of `rows`; `entries` define how each program uses the processors.
pub(crate) fn judge(entries: &[Entry], rows: &[Row]) -> Vec<Figure> {
    let threads = |row: &Row| {
        entries
            .iter()
            .find(|entry| entry.name == row.entry)
            .map(|entry| entry.threads)
    };
    let mut figures = Vec::new();
    for (mode, single, busy, p99, stop, process) in [
        (Mode::All, 0.08, 0.10, 0.20, 2.0, 2.0),
        (Mode::Samples, 0.03, 0.05, 0.10, 0.0, 1.0),
    ] {
        let worst = |value: &dyn Fn(&Row) -> Option<f64>| {
            rows.iter()
                .filter(|row| row.mode == mode)
                .filter_map(|row| Some((value(row)?, row.entry.as_str())))
                .max_by(|left, right| left.0.total_cmp(&right.0))
        };
        let cost_of =
            |kind: Threads| worst(&|row| (threads(row) == Some(kind)).then_some(row.cost?.median));
        let name = mode.name();
        figures.extend([
            Figure::at_most(
                format!("{name}: slowdown of single-threaded programs, worst"),
                single,
                "%",
                cost_of(Threads::Single),
            ),
            Figure::at_most(
                format!("{name}: throughput lost by programs that keep every CPU busy, worst"),
                busy,
                "%",
                cost_of(Threads::AllCpus),
            ),
            Figure::at_most(
                format!("{name}: throughput lost by servers, worst"),
                busy,
                "%",
                cost_of(Threads::Server),
            ),
            Figure::at_most(
                format!("{name}: 99th percentile of servers' requests, worst"),
                p99,
                "%",
                worst(&|row| Some(row.p99_cost?.median)),
            ),
            Figure::at_most(
                format!("{name}: longest stop"),
                stop,
                "ms",
                worst(&|row| row.longest_stop_ms),
            ),
            Figure::at_most(
                format!("{name}: additional time of a short process"),
                process,
                "ms",
                worst(&|row| row.process_ms),
            ),
        ]);
    }
    let different: Vec<&Row> = rows
        .iter()
        .filter(|row| !row.same_output || !row.same_ending)
        .collect();
    figures.push(Figure {
        what: "rows with another output or exit code".to_owned(),
        limit: 0.0,
        found: Some(different.len() as f64),
        entry: different.first().map(|row| row.entry.clone()),
        unit: "rows",
        met: different.is_empty(),
    });
    figures.extend(coverage(rows));
    figures.extend(savings(rows));
    figures
}

/// How often intervals contain the truth, and how far the shares are from it.
fn coverage(rows: &[Row]) -> Vec<Figure> {
    let held: Vec<&Row> = rows.iter().filter(|row| row.held.is_some()).collect();
    if held.is_empty() {
        return Vec::new();
    }
    let outside: Vec<&&Row> = held.iter().filter(|row| row.held == Some(false)).collect();
    let share = outside.len() as f64 / held.len() as f64;
    let errors: Vec<f64> = held.iter().filter_map(|row| row.error).collect();
    vec![
        Figure {
            what: format!("truths outside of the interval, of {}", held.len()),
            limit: 0.1,
            found: Some(share),
            entry: outside.first().map(|row| row.entry.clone()),
            unit: "%",
            met: share <= 0.1,
        },
        Figure {
            what: "distance of the share from the truth, median".to_owned(),
            limit: 0.05,
            found: median(&errors),
            entry: None,
            unit: "%",
            met: median(&errors).is_none_or(|error| error <= 0.05),
        },
    ]
}

/// How far predicted savings are from those of repaired builds.
fn savings(rows: &[Row]) -> Vec<Figure> {
    let both: Vec<(&Row, Savings)> = rows
        .iter()
        .filter_map(|row| Some((row, row.savings()?)))
        .collect();
    // `is_off` gives `None` for a row that does not count.
    let figure = |what: &str, is_off: fn(&Savings) -> Option<bool>| {
        let judged = both.iter();
        let judged: Vec<(&str, bool)> = judged
            .filter_map(|(row, savings)| Some((row.entry.as_str(), is_off(savings)?)))
            .collect();
        let off = || judged.iter().filter(|(_, is_off)| *is_off);
        let share = off().count() as f64 / judged.len() as f64;
        (!judged.is_empty()).then(|| Figure {
            what: format!("{what}, of {}", judged.len()),
            limit: 0.1,
            found: Some(share),
            entry: off().next().map(|(entry, _)| (*entry).to_owned()),
            unit: "%",
            met: share <= 0.1,
        })
    };
    let figures = [
        figure(
            "savings more than 10 points from the mended build's, or promised where it has none",
            |savings| Some(is_off(savings)),
        ),
        figure(
            "savings of mended builds outside of the predicted interval",
            |savings| {
                let [low, high] = savings.predicted_interval;
                let [least, most] = savings.saved_interval?;
                Some(most < low - ROUNDING || least > high + ROUNDING)
            },
        ),
    ];
    figures.into_iter().flatten().collect()
}

/// Compares with the nearest value in the interval of what the repaired build saved.
fn is_off(savings: &Savings) -> bool {
    let [low, high] = savings.saved_interval.unwrap_or([savings.saved; 2]);
    let nearest = savings.predicted.clamp(low, high);
    let for_nothing = high < NO_SAVING && savings.predicted >= NO_SAVING;
    (savings.predicted - nearest).abs() > 0.1 || for_nothing
}

/// Differences between shares below this are no differences.
const ROUNDING: f64 = 0.005;

/// Share of its time below which a repaired build counts as saving nothing.
const NO_SAVING: f64 = 0.03;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, threads: &str) -> Entry {
        let text = format!(
            "name = \"{name}\"\nabout = \"\"\nkind = \"tool\"\nthreads = \"{threads}\"\n\
             needs = [\"true\"]\n[run]\ncommand = [\"true\"]\n"
        );
        toml::from_str(&text).unwrap()
    }

    fn row(name: &str, cost: f64, held: bool) -> Row {
        serde_json::from_value(serde_json::json!({
            "entry": name, "mode": "all", "pairs": 1, "alone_s": 1.0,
            "cost": { "median": cost, "low": cost, "high": cost },
            "wall_cost": null, "p99_cost": null, "process_ms": null, "memory_mb": null,
            "same_output": true, "same_ending": true, "longest_stop_ms": 3.0,
            "recorded": null, "truth": null, "truth_kind": null,
            "held": held, "error": 0.02, "expected": null, "trouble": null,
        }))
        .unwrap()
    }

    #[test]
    fn the_worst_of_each_kind_is_judged() {
        let entries = [
            entry("a", "single"),
            entry("b", "single"),
            entry("c", "all-cpus"),
        ];
        let rows = [
            row("a", 0.05, true),
            row("b", 0.09, false),
            row("c", 0.09, true),
        ];
        let figures = judge(&entries, &rows);
        let of = |part: &str| {
            figures
                .iter()
                .find(|figure| figure.what.contains(part))
                .unwrap()
        };
        let single = of("all: slowdown of single");
        assert_eq!(single.entry.as_deref(), Some("b"));
        assert!(!single.met);
        assert!(of("all: throughput lost by programs").met);
        assert!(!of("all: longest stop").met);
        assert!(of("samples: longest stop").met);
        assert!(!of("truths outside").met);
        assert!(of("distance").met);
        assert!(of("another output").met);
    }
}
