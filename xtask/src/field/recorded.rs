//! What the field keeps of a run's report.
//!
//! The document is read without its types: fields that a build does not have yet stay empty instead
//! of failing a field run that took an hour.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bundled profiles of machines on which the field was run, each with its processors' microarchitecture.
pub(super) const MACHINES: [(&str, &str); 3] = [
    ("amd-zen4-guest", "Zen 4"),
    ("amd-zen5-guest", "Zen 5"),
    ("intel-emerald-rapids-guest", "Raptor Cove (Emerald Rapids)"),
];

/// Findings of a profile of an entry.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// Share of CPU time that waits for memory, with its interval.
    pub(crate) share: Option<[f64; 3]>,
    /// Part of the share that is unknown.
    pub(crate) unknown: Option<f64>,
    /// Line with the largest stall, and its share of CPU time.
    pub(crate) top_line: Option<(String, f64)>,
    /// Function with the largest stall.
    pub(crate) top_function: Option<String>,
    /// Object with the largest stall, and its share of CPU time.
    pub(crate) top_object: Option<(String, f64)>,
    /// Longest stop of the program's threads, in milliseconds, if the build reports it.
    pub(crate) longest_stop_ms: Option<f64>,
    /// Text of the first finding.
    pub(crate) advice: Option<String>,
    /// Largest saving that a finding predicts.
    pub(crate) predicted_gain: Option<f64>,
    /// Its interval.
    #[serde(default)]
    pub(crate) predicted_interval: Option<[f64; 2]>,
    /// Missing tables with reasons, except missing debug information.
    pub(crate) missing: Vec<String>,
    /// The document's figures of its own cost.
    pub(crate) overhead: Value,
    /// Run times that the profile predicts for other machines.
    #[serde(default)]
    pub(crate) elsewhere: Vec<Elsewhere>,
    pub(crate) samples: Option<f64>,
    pub(crate) timed_accesses: Option<f64>,
    /// Whether the document says that the recording is incomplete.
    pub(crate) incomplete: bool,
}

/// Predicted run time on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Elsewhere {
    /// Name of its bundled profile.
    pub(crate) machine: String,
    /// Run time there ÷ run time here, with its interval.
    pub(crate) ratio: [f64; 3],
}

impl Recorded {
    /// Extracts from a report's document what the field keeps.
    pub(crate) fn of(document: &Value) -> Self {
        let bound = &document["memory_bound"];
        let line = largest(&document["lines"]);
        let overhead = &document["overhead"];
        let gain = gain(document);
        Self {
            share: numbers(bound, ["fraction", "low", "high"]),
            unknown: bound["unknown"].as_f64(),
            top_line: line.map(|row| (named(row), stall(row))),
            top_function: largest(&document["functions"]).map(named),
            top_object: largest(&document["objects"]).map(|row| (named(row), stall(row))),
            longest_stop_ms: longest_stop(overhead),
            advice: document["findings"][0]["text"].as_str().map(str::to_owned),
            predicted_gain: gain.map(|(value, _)| value),
            predicted_interval: gain.and_then(|(_, interval)| interval),
            missing: missing(document),
            overhead: overhead.clone(),
            elsewhere: elsewhere(&document["elsewhere"]),
            samples: document["run"]["samples"].as_f64(),
            timed_accesses: document["run"]["timed_accesses"].as_f64(),
            incomplete: document["incomplete"].as_bool().unwrap_or_default(),
        }
    }
}

/// The fields `names` of `object`, if all are numbers.
fn numbers(object: &Value, names: [&str; 3]) -> Option<[f64; 3]> {
    let mut found = [0.0; 3];
    for (place, name) in found.iter_mut().zip(names) {
        *place = object[name].as_f64()?;
    }
    Some(found)
}

fn elsewhere(rows: &Value) -> Vec<Elsewhere> {
    let one = |row: &Value| {
        Some(Elsewhere {
            machine: row["machine"].as_str()?.to_owned(),
            ratio: numbers(&row["time_ratio"], ["value", "low", "high"])?,
        })
    };
    rows.as_array()
        .into_iter()
        .flatten()
        .filter_map(one)
        .collect()
}

fn stall(row: &Value) -> f64 {
    row["stall_fraction"].as_f64().unwrap_or_default()
}

/// The row with the largest stall, if any row has one.
fn largest(rows: &Value) -> Option<&Value> {
    rows.as_array()?
        .iter()
        .filter(|row| stall(row) > 0.0)
        .max_by(|left, right| stall(left).total_cmp(&stall(right)))
}

fn named(row: &Value) -> String {
    row["name"].as_str().unwrap_or_default().to_owned()
}

/// The longest stop in milliseconds, under any of the names that builds have used.
fn longest_stop(overhead: &Value) -> Option<f64> {
    [
        (&overhead["longest_stop_ms"], 1.0),
        (&overhead["longest_stop_ns"], 1e-6),
        (&overhead["longest_stop_s"], 1e3),
        (&overhead["stops"]["longest_ms"], 1.0),
        (&overhead["stops"]["longest_ns"], 1e-6),
        (&overhead["stops"]["longest_us"], 1e-3),
        (&overhead["stops"]["longest_s"], 1e3),
    ]
    .into_iter()
    .find_map(|(value, to_ms)| Some(value.as_f64()? * to_ms))
}

/// The largest predicted saving with its interval; a figure that was not measured has no number.
fn gain(document: &Value) -> Option<(f64, Option<[f64; 2]>)> {
    let rows = [&document["findings"], &document["false_sharing"]];
    rows.into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|row| {
            let gain = &row["predicted_gain"];
            let measured = &gain["measured"];
            let figure = if measured.is_object() { measured } else { gain };
            let value = figure.as_f64().or_else(|| figure["value"].as_f64())?;
            let ends = figure["low"].as_f64().zip(figure["high"].as_f64());
            Some((value, ends.map(<[f64; 2]>::from)))
        })
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
}

fn missing(document: &Value) -> Vec<String> {
    const KEPT: usize = 6;
    let rows = document["missing"].as_array();
    let mut found: Vec<String> = Vec::new();
    for row in rows.into_iter().flatten() {
        let why = &row["why"];
        let reason = why["reason"]
            .as_str()
            .or_else(|| why["not_measured"]["reason"].as_str())
            .unwrap_or_default();
        let text = format!("{}: {reason}", row["table"].as_str().unwrap_or_default());
        if !reason.starts_with("no debug information") && !found.contains(&text) {
            found.push(text);
        }
    }
    found.truncate(KEPT);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_an_older_build_leaves_fields_empty() {
        let found = Recorded::of(&serde_json::json!({}));
        assert_eq!(found.share, None);
        assert_eq!(found.longest_stop_ms, None);
        assert!(found.missing.is_empty());
    }

    #[test]
    fn the_largest_stall_is_the_top() {
        let found = Recorded::of(&serde_json::json!({
            "memory_bound": { "fraction": 0.5, "low": 0.4, "high": 0.6, "unknown": 0.1 },
            "lines": [
                { "name": "a.c:1", "stall_fraction": 0.1 },
                { "name": "a.c:2", "stall_fraction": 0.4 },
            ],
            "objects": [],
            "elsewhere": [
                { "machine": "far", "time_ratio": { "value": 1.5, "low": 1.0, "high": 2.0 } },
                { "machine": "unknown", "time_ratio": null },
            ],
            "overhead": { "longest_stop_ms": 1.5 },
            "findings": [{ "text": "t", "predicted_gain": { "value": 0.3 } }],
            "missing": [
                { "table": "latency", "why": { "reason": "32-bit" } },
                { "table": "functions", "why": { "reason": "no debug information: x" } },
            ],
        }));
        assert_eq!(found.share, Some([0.5, 0.4, 0.6]));
        assert_eq!(found.top_line, Some(("a.c:2".to_owned(), 0.4)));
        assert_eq!(found.top_object, None);
        let far = Elsewhere {
            machine: "far".to_owned(),
            ratio: [1.5, 1.0, 2.0],
        };
        assert_eq!(found.elsewhere, [far]);
        assert_eq!(found.longest_stop_ms, Some(1.5));
        assert_eq!(found.predicted_gain, Some(0.3));
        assert_eq!(found.missing, ["latency: 32-bit"]);
    }
}
