//! `docs/field.md`: the newest row of every entry, the figures, and a line for every run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::elsewhere::{self, Checked};
use super::entry::Entry;
use super::figures::{Figure, judge};
use super::kept::Kept;
use super::session::{Mode, Row};
use super::statistics::Interval;
use crate::results;

/// Writes the page from every result of the field in `directory`.
pub(crate) fn write(entries: &[Entry], directory: &Path, page: &Path) -> Result<()> {
    let runs = results::all_of(directory, "field")?;
    let runs: Vec<Kept> = runs.into_iter().map(|(_, run)| run).collect();
    std::fs::write(page, text(entries, &runs))
        .with_context(|| format!("cannot write {}", page.display()))
}

fn text(entries: &[Entry], runs: &[Kept]) -> String {
    let mut newest: BTreeMap<(&str, &str), (&Row, &Kept)> = BTreeMap::new();
    let mut skipped: BTreeMap<&str, &str> = BTreeMap::new();
    for run in runs {
        for row in &run.summary.rows {
            newest.insert((&row.entry, row.mode.name()), (row, run));
            skipped.remove(row.entry.as_str());
        }
        for one in &run.summary.skipped {
            skipped.insert(&one.entry, &one.reason);
        }
    }
    let rows: Vec<Row> = newest.values().map(|(row, _)| (*row).clone()).collect();
    let mut out = String::from(
        "# The field\n\n\
         Foreign programs under membound, from `field/*.toml`. `cargo xtask field` runs them and writes\n\
         this page from the raw results in `bench/results/`; each row is the newest one of its entry.\n\n\
         Cost: slowdown of a program's own time (single-threaded, short processes) or throughput lost\n\
         (programs that keep every CPU busy, servers); the median of the pairs, and its interval by ranks.\n\
         Samples: `--no-latencies --no-objects`. All: the defaults.\n\n\
         ## Figures to reach\n\n",
    );
    out.push_str(&figures(&judge(entries, &rows)));
    out.push_str("\n## Cost\n\n");
    out.push_str("| entry | mode | pairs | alone | cost | interval | p99 | longest stop | memory | output | run |\n");
    out.push_str("|---|---|--:|--:|--:|---|--:|--:|--:|---|---|\n");
    for (row, run) in newest.values() {
        let [cost, interval] = costs(row.cost);
        add(
            &mut out,
            &[
                row.entry.clone(),
                row.mode.name().to_owned(),
                row.pairs.to_string(),
                format!("{:.2} s", row.alone_s),
                cost,
                interval,
                costs(row.p99_cost)[0].clone(),
                row.longest_stop_ms
                    .map_or_else(String::new, |ms| format!("{ms:.2} ms")),
                row.memory_mb
                    .map_or_else(String::new, |mb| format!("{mb:+.0} MiB")),
                match (row.same_output, row.same_ending) {
                    (true, true) => "same".to_owned(),
                    (false, _) => "**differs**".to_owned(),
                    (true, false) => "**other exit code**".to_owned(),
                },
                day(&run.machine.date).to_owned(),
            ],
        );
    }
    out.push_str("\n## What is said, and the truth\n\n");
    out.push_str("| entry | share | interval | unknown | truth | source | held | error | saves: predicted | mended build | top line | top object | not measured |\n");
    out.push_str("|---|--:|---|--:|---|---|---|--:|--:|--:|---|---|---|\n");
    for row in newest.values().map(|(row, _)| row) {
        if row.mode == Mode::All {
            add(&mut out, &said(row));
        }
    }
    let rows = newest.values().copied();
    other_machines(&mut out, &elsewhere::checked(entries, rows, runs));
    if !skipped.is_empty() {
        out.push_str("\n## Skipped\n\n| entry | reason |\n|---|---|\n");
        for (entry, reason) in skipped {
            add(&mut out, &[entry.to_owned(), reason.to_owned()]);
        }
    }
    out.push_str("\n## History\n\n");
    out.push_str("| date | commit | machine | entries | cost, all: median | worst | cost, samples: median | worst | truths held |\n");
    out.push_str("|---|---|---|--:|--:|--:|--:|--:|--:|\n");
    for run in runs.iter().rev() {
        add(&mut out, &history(run));
    }
    out
}

/// The table of predictions for other machines; nothing without one.
fn other_machines(out: &mut String, checked: &[Checked<'_>]) {
    if checked.is_empty() {
        return;
    }
    let held = checked.iter().filter(|it| it.held()).count();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\n## On other machines\n\n\
         Run time there ÷ run time here: predicted by `membound report --machine` from the profile here, and\n\
         measured by runs of the same entry alone on both. {held} of {} lie in the interval, within 5 %.\n\n\
         | entry | from | to | predicted | interval | measured | held |\n|---|---|---|--:|---|--:|---|\n",
        checked.len()
    );
    for row in checked {
        let [value, low, high] = row.predicted;
        add(
            out,
            &[
                row.entry.to_owned(),
                row.from.to_owned(),
                row.to.to_owned(),
                format!("{value:.2}"),
                format!("[{low:.2}, {high:.2}]"),
                format!("{:.2}", row.measured),
                if row.held() { "yes" } else { "**no**" }.to_owned(),
            ],
        );
    }
}

fn between([low, high]: [f64; 2]) -> String {
    format!("[{:.0}, {:.0}]", low * 100.0, high * 100.0)
}

/// The cells of an entry's row: findings of a profile of everything, and the truth.
fn said(row: &Row) -> Vec<String> {
    let recorded = row.recorded.as_ref();
    let share = recorded.and_then(|it| it.share);
    let top = |found: Option<&(String, f64)>| {
        found.map_or_else(String::new, |(name, stall)| {
            format!("{} ({:.0} %)", short(name, 48), stall * 100.0)
        })
    };
    let missing = recorded.map_or_else(Vec::new, |it| it.missing.clone());
    vec![
        row.entry.clone(),
        share.map_or_else(
            || {
                row.trouble
                    .as_deref()
                    .map_or_else(String::new, |it| short(it, 60))
            },
            |share| percent(share[0]),
        ),
        share.map_or_else(String::new, |[_, low, high]| between([low, high])),
        recorded
            .and_then(|it| it.unknown)
            .map_or_else(String::new, percent),
        row.truth.map_or_else(String::new, |truth| {
            format!("{:.0}–{:.0} %", truth.low * 100.0, truth.high * 100.0)
        }),
        row.truth_kind.clone().unwrap_or_default(),
        match row.held {
            Some(true) => "yes".to_owned(),
            Some(false) => "**no**".to_owned(),
            None => String::new(),
        },
        row.error
            .map_or_else(String::new, |error| format!("{:.1}", error * 100.0)),
        row.savings().map_or_else(String::new, |it| {
            format!(
                "{} {}",
                percent(it.predicted),
                between(it.predicted_interval)
            )
        }),
        row.saved.map_or_else(String::new, |saved| {
            let interval = row.saved_interval.map_or_else(String::new, between);
            format!("{} {interval}", percent(saved))
        }),
        top(recorded.and_then(|it| it.top_line.as_ref())),
        top(recorded.and_then(|it| it.top_object.as_ref())),
        short(missing.first().map_or("", String::as_str), 80),
    ]
}

fn history(run: &Kept) -> Vec<String> {
    let of = |mode: Mode| -> [String; 2] {
        let mut costs: Vec<(f64, &str)> = run
            .summary
            .rows
            .iter()
            .filter(|row| row.mode == mode)
            .filter_map(|row| Some((row.cost?.median, row.entry.as_str())))
            .collect();
        costs.sort_by(|left, right| left.0.total_cmp(&right.0));
        let values: Vec<f64> = costs.iter().map(|(cost, _)| *cost).collect();
        [
            membound_model::stats::median(&values).map_or_else(String::new, percent),
            costs.last().map_or_else(String::new, |(cost, entry)| {
                format!("{} ({entry})", percent(*cost))
            }),
        ]
    };
    let [all, worst_all] = of(Mode::All);
    let [samples, worst_samples] = of(Mode::Samples);
    let names: std::collections::BTreeSet<&str> = run
        .summary
        .rows
        .iter()
        .map(|row| row.entry.as_str())
        .collect();
    let judged: Vec<bool> = run.summary.rows.iter().filter_map(|row| row.held).collect();
    let held = judged.iter().filter(|held| **held).count();
    vec![
        run.machine.date.clone(),
        run.commit.clone().unwrap_or_default(),
        run.machine.cpu.model_name.clone(),
        names.len().to_string(),
        all,
        worst_all,
        samples,
        worst_samples,
        format!("{held} of {}", judged.len()),
    ]
}

/// The figures as a table.
pub(crate) fn figures(figures: &[Figure]) -> String {
    let mut out = String::from("| figure | limit | found | entry | |\n|---|--:|--:|---|---|\n");
    for figure in figures {
        let [limit, found] = figure.shown();
        add(
            &mut out,
            &[
                figure.what.clone(),
                limit,
                found,
                figure.entry.clone().unwrap_or_default(),
                match (figure.found, figure.met) {
                    (None, _) => String::new(),
                    (_, true) => "met".to_owned(),
                    (_, false) => "**missed**".to_owned(),
                },
            ],
        );
    }
    out
}

/// Appends a row to a table; bars are escaped, because they would end a cell.
fn add(out: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells
        .iter()
        .map(|cell| cell.replace('|', "\\|").replace('\n', " "))
        .collect();
    // Writing to a string does not fail.
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

/// The median and the interval of a cost.
pub(crate) fn costs(cost: Option<Interval>) -> [String; 2] {
    cost.map_or_else(Default::default, |cost| {
        [
            format!("{:+.1} %", cost.median * 100.0),
            format!("[{:+.1}, {:+.1}]", cost.low * 100.0, cost.high * 100.0),
        ]
    })
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The day of a date with a time.
fn day(date: &str) -> &str {
    date.split('T').next().unwrap_or(date)
}

/// `text`, cut when it is long; paths lose their folders.
fn short(text: &str, letters: usize) -> String {
    let text = text
        .split(' ')
        .map(|word| {
            if word.starts_with('/') {
                word.rsplit('/').next().unwrap_or(word)
            } else {
                word
            }
        })
        .collect::<Vec<_>>()
        .join(" ");
    if text.chars().count() <= letters {
        return text;
    }
    text.chars()
        .take(letters.saturating_sub(1))
        .chain(['…'])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::recorded::Recorded;

    fn run(date: &str, entry: &str, cost: f64) -> Kept {
        serde_json::from_value(serde_json::json!({
            "bench": "field", "commit": "abc",
            "machine": { "date": date, "cpu": { "model_name": "A CPU" } },
            "summary": {
                "rows": [{
                    "entry": entry, "mode": "all", "pairs": 5, "alone_s": 1.0,
                    "cost": { "median": cost, "low": cost, "high": cost },
                    "wall_cost": null, "p99_cost": null, "process_ms": null,
                    "memory_mb": 3.0, "same_output": true, "same_ending": true,
                    "longest_stop_ms": null, "recorded": null, "truth": null,
                    "truth_kind": null, "held": null, "error": null, "expected": null,
                    "trouble": "a | b",
                }],
                "skipped": [{ "entry": "lost", "reason": "no lost" }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_row_of_an_entry_stands_and_every_run_is_kept() {
        let runs = [
            run("2026-01-01T00:00:00Z", "x", 0.5),
            run("2026-01-02T00:00:00Z", "y", 0.25),
            run("2026-01-03T00:00:00Z", "x", 0.125),
        ];
        let text = text(&[], &runs);
        assert!(text.contains("| x | all | 5 | 1.00 s | +12.5 % | [+12.5, +12.5] |"));
        assert!(!text.contains("+50.0 %"));
        assert!(text.contains("| y | all |"));
        assert!(text.contains("2026-01-01T00:00:00Z"));
        assert!(text.contains("a \\| b"));
        assert!(text.contains("| lost | no lost |"));
    }

    #[test]
    fn a_prediction_is_compared_with_a_run_on_that_machine() {
        let here = |entry: &str, low: f64| {
            let mut here = run("2026-01-02T00:00:00Z", entry, 0.1);
            here.machine.cpu.microarchitecture = Some("Golden Cove".to_owned());
            let prediction = serde_json::json!([{ "machine": "amd-zen4-guest (measured)", "ratio": [1.5, low, 2.0] }]);
            let mut recorded = Recorded::of(&serde_json::Value::Null);
            recorded.elsewhere = serde_json::from_value(prediction).unwrap();
            here.summary.rows[0].recorded = Some(recorded);
            here
        };
        let there = |entry: &str| {
            let mut there = run("2026-01-01T00:00:00Z", entry, 0.1);
            there.machine.cpu.microarchitecture = Some("Zen 4".to_owned());
            there.summary.rows[0].alone_s = 1.2;
            there
        };
        let entries = crate::field::entry::all().unwrap();
        let (one, other) = ("c-chase", "c-gather");
        let runs = [there(one), there(other), here(one, 1.0), here(other, 1.4)];
        let text = text(&entries, &runs);
        assert!(
            text.contains("| c-chase | Golden Cove | Zen 4 | 1.50 | [1.00, 2.00] | 1.20 | yes |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| c-gather | Golden Cove | Zen 4 | 1.50 | [1.40, 2.00] | 1.20 | **no** |"
            )
        );
        assert!(text.contains("1 of 2 lie in the interval"));
    }

    #[test]
    fn long_names_are_cut_and_paths_lose_their_folders() {
        assert_eq!(short("f of /usr/lib/libc.so.6", 40), "f of libc.so.6");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
